#!/usr/bin/env python3
"""Explains the time of a step by seven constants of model and machine.

Measures steps of many shapes with step_profile and fits

    time = products + sequences * (sequence + context * attended) + pairs * pair

where a sequence of a decode costs `sequence` and `attended` for each token of its context, and a
prompt `pair` for each pair of query and key. The products with the weights have two kernels:

    few rows:   passes * passed + rows * few      (a pass takes up to 16 rows)
    more:       unpacked + rows * many            (rows in fours)

so `passed` is what reading and unpacking all weights takes, with all that does not grow with rows,
`unpacked` the same for panels. Prints measured and explained times and the largest difference,
and says where the speed of a larger batch falls.

    cargo build --release -p mini-infer-model --example step_profile
    python3 benches/step_model.py --record benches/record/NAME.json FILE.gguf
"""

import argparse
import dataclasses
import datetime
import json
import math
import os
import pathlib
import re
import statistics

from compare_steps import EXAMPLES, run
from measured_server import machine, output_of, sha256

CONSTANTS = ("passed", "few", "unpacked", "many", "sequence", "attended", "pair")
# As in the kernels for integer weights: rows of a pass, of a group of rows in panels, and that are
# few, with AVX-512 and with AVX2.
PASS_ROWS, QUAD_ROWS = 16, 4
MAX_FEW_ROWS = 24 if "avx512_vnni" in machine()["cpu_flags"] else 10
BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 15, 16, 17, 20, 24, 28, 31, 32, 33, 40, 48, 56, 64)
DECODES = [(n, 300) for n in BATCHES] + [(1, 1000), (1, 4000), (1, 8000), (4, 2000), (16, 1000)]
PREFILLS = [(64, 0), (128, 0), (256, 0), (512, 0), (256, 2000), (512, 4000)]


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of `sequences` decodes at a context, or of one chunk of a prompt."""

    name: str
    sequences: int
    rows: int
    context: int
    pairs: int

    def explained(self, constants):
        passed, few, unpacked, many, sequence, attended, pair = constants
        if self.rows <= MAX_FEW_ROWS:
            products = math.ceil(self.rows / PASS_ROWS) * passed + self.rows * few
        else:
            products = unpacked + math.ceil(self.rows / QUAD_ROWS) * QUAD_ROWS * many
        decodes = self.sequences * (sequence + self.context * attended)
        return products + decodes + self.pairs * pair


def steps():
    for sequences, context in DECODES:
        yield Step(f"decode:{sequences}:{context}", sequences, sequences, context, 0)
    for tokens, context in PREFILLS:
        pairs = tokens * context + tokens * (tokens + 1) // 2
        yield Step(f"prefill:{tokens}:{context}", 0, tokens, 0, pairs)


def measure(args, measured):
    """Returns the median milliseconds of every step over the rounds."""
    environment = {**os.environ, "THREADS": str(args.threads)}
    samples = {step.name: [] for step in measured}
    for number in range(args.rounds):
        ordered = measured if number % 2 == 0 else measured[::-1]
        names = [step.name for step in ordered]
        printed = run([EXAMPLES / "step_profile", args.gguf, *names], env=environment)
        for name, time in re.findall(r"^(\w+:\d+:\d+)\nmedian ([0-9.]+) ms", printed, re.M):
            samples[name].append(float(time))
    return {name: statistics.median(times) for name, times in samples.items()}


def worst_error(constants, times):
    return max(abs(math.log(step.explained(constants) / time)) for step, time in times)


def fit(times):
    """Returns the constants with the least largest relative error: a search that halves its steps.

    The error's largest value has kinks, so the search also follows its mean square.
    """

    def cost(constants):
        errors = [math.log(step.explained(constants) / time) for step, time in times]
        return max(map(abs, errors)) + math.sqrt(sum(e * e for e in errors) / len(errors))

    best = [3.0, 0.5, 6.0, 0.5, 0.05, 1e-3, 1e-4]
    reach = 2.0
    while reach > 1e-4:
        trials = []
        for index in range(len(best)):
            for factor in (math.exp(reach), math.exp(-reach)):
                trials.append([c * (factor if i == index else 1) for i, c in enumerate(best)])
            for other in range(index):
                pair = {index: math.exp(reach), other: math.exp(-reach)}
                trials.append([c * pair.get(i, 1) for i, c in enumerate(best)])
                pair = {index: math.exp(-reach), other: math.exp(reach)}
                trials.append([c * pair.get(i, 1) for i, c in enumerate(best)])
        candidate = min(trials, key=cost)
        if cost(candidate) < cost(best):
            best = candidate
        else:
            reach *= 0.7
    return best


def falls(times):
    """Returns the batches whose tokens per second are below those of a smaller batch, by how much."""
    found, best = [], (0, 0.0)
    for step, time in times:
        if step.context == 300 and step.sequences:
            rate = step.sequences / time
            if rate < best[1]:
                found.append((step.sequences, best[0], 1 - rate / best[1]))
            best = max(best, (step.sequences, rate), key=lambda item: item[1])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("gguf", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--record", type=pathlib.Path)
    args = parser.parse_args()
    args.gguf = args.gguf.absolute()
    measured = list(steps())
    medians = measure(args, measured)
    times = [(step, medians[step.name]) for step in measured]
    constants = fit(times)
    print(f"{'step':>20} {'ms':>10} {'explained':>10} {'error':>8}")
    for step, time in times:
        explained = step.explained(constants)
        print(f"{step.name:>20} {time:10.3f} {explained:10.3f} {explained / time - 1:8.1%}")
    print("\nmilliseconds: " + ", ".join(f"{n} {c:.3g}" for n, c in zip(CONSTANTS, constants)))
    print(f"largest error {math.expm1(worst_error(constants, times)):.1%}")
    for larger, smaller, by in falls(times):
        print(f"{larger} sequences give {by:.1%} fewer tokens/s than {smaller}")
    if args.record:
        record = {
            "date": datetime.date.today().isoformat(),
            "commit": output_of(["git", "rev-parse", "--short", "HEAD"]),
            "machine": machine(),
            "threads": args.threads,
            "file": {args.gguf.name: sha256(args.gguf)},
            "constants_ms": dict(zip(CONSTANTS, constants)),
            "steps_ms": {
                step.name: {"measured": time, "explained": round(step.explained(constants), 3)}
                for step, time in times
            },
        }
        args.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
