#!/usr/bin/env python3
"""Measures one server with the Python servebench 1.1.3 and with ours, in turn.

Both send the same prompts, in closed loops of the same size, to one running mini-infer without a
prefix cache; what they say of it must agree. One core is left to the client: on all of them, a
client that needs more of the processor measures a slower server. Prints and records the medians over rounds and their
ratio. Installs the Python program into a folder of the build.

    cargo build --release
    python3 benches/compare_load_generators.py
"""

import argparse
import datetime
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

from measured_server import ROOT, WORDS, Contender, Server, machine, output_of

PROGRAMS = ROOT / "target" / "release"
PYTHON_SERVEBENCH = "1.1.3"
PROMPT_WORDS = 200
OUTPUT_TOKENS = 64
NUM_REQUESTS = 32


def python_servebench():
    """Returns the command of the Python program, installing it first."""
    folder = ROOT / "target" / "peers" / f"servebench-{PYTHON_SERVEBENCH}"
    program = folder / "bin" / "servebench"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, f"servebench=={PYTHON_SERVEBENCH}"], check=True)
    return program


def measure(program, server, prompts, concurrency, out):
    """Returns what a program says of a server: load to figure to value."""
    command = [
        program,
        *("run", "--url", f"http://127.0.0.1:{server.port}/v1", "--model", "measured"),
        *("--concurrency", ",".join(map(str, concurrency))),
        *("--prompts", prompts, "--output-len", OUTPUT_TOKENS, "--num-requests", NUM_REQUESTS),
        *("--seed", 1, "--no-gpu", "--out", out),
    ]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    figures = {}
    for level in json.loads(out.read_text())["levels"]:
        summary = level["summary"]
        assert summary["failed"] == 0 and summary["completed"] == NUM_REQUESTS, summary
        figures[f"c={int(level['value'])}"] = {
            "output_tokens_per_s": summary["output_throughput"],
            "ttft_p50_ms": summary["ttft"]["p50"] * 1e3,
            "tpot_p50_ms": summary["tpot"]["p50"] * 1e3,
            "itl_p50_ms": summary["itl"]["p50"] * 1e3,
            "e2e_p50_ms": summary["e2e"]["p50"] * 1e3,
        }
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=max(1, os.cpu_count() - 1))
    parser.add_argument("--record", type=pathlib.Path, default=ROOT / "benches" / "record")
    args = parser.parse_args()

    programs = {"python": python_servebench(), "ours": PROGRAMS / "servebench"}
    served = ["serve", "--model", args.model, "--served-model-name", "measured"]
    flags = ["--port", "{port}", "--no-prefix-caching", "--threads", str(args.threads)]
    contender = Contender("mini-infer", [str(PROGRAMS / "mini-infer"), *served, *flags], {})
    rounds = []
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile() as log:
        prompts = pathlib.Path(scratch, "prompts.txt")
        rng = random.Random(1)
        lines = [" ".join(rng.choices(WORDS, k=PROMPT_WORDS)) for _ in range(NUM_REQUESTS)]
        prompts.write_text("\n".join(lines) + "\n")
        with Server(contender, log) as server:
            for _ in range(args.rounds):
                out = pathlib.Path(scratch, "run.json")
                rounds.append(
                    {
                        name: measure(program, server, prompts, args.concurrency, out)
                        for name, program in programs.items()
                    }
                )
                print(json.dumps(rounds[-1]), flush=True)
    ratios = {}
    for load, figures in rounds[0]["ours"].items():
        for figure in figures:
            of = {
                name: statistics.median(entry[name][load][figure] for entry in rounds)
                for name in programs
            }
            ratio = of["ours"] / of["python"]
            ratios[f"{load} {figure}"] = round(ratio, 4)
            print(f"{load:5} {figure:20} {of['python']:9.2f} {of['ours']:9.2f}  {ratio:.3f}")
    record = {
        "date": datetime.date.today().isoformat(),
        "commit": output_of(["git", "rev-parse", "--short=10", "HEAD"]),
        "machine": machine(),
        "ours_to_python": ratios,
        "rounds": rounds,
    }
    path = args.record / f"{record['date']}-load-generators.json"
    path.write_text(json.dumps(record) + "\n")
    print(f"recorded in {path}")


if __name__ == "__main__":
    main()
