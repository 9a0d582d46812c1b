#!/usr/bin/env python3
"""Measures single steps of mini-infer beside llama.cpp and PyTorch, in turn, without HTTP.

In each round every engine runs once on every file: a prompt of 512 tokens, and decode steps of 1
to 32 sequences at a context of 300 tokens. llama.cpp is measured by its `llama-batched-bench`,
PyTorch through transformers on a bf16 folder of the same weights. Between rounds the order turns
around. The machine's limits are measured in the same run, and shares of them are printed.

    cargo build --release -p mini-infer-model --example step_profile
    cargo build --release -p mini-infer-kernels --example machine_limits
    python3 benches/compare_steps.py --record benches/record/NAME.json FILE.gguf…
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import statistics
import subprocess

import peer_engines
from measured_server import ROOT, machine, output_of, sha256

EXAMPLES = ROOT / "target" / "release" / "examples"
PROMPT_TOKENS = 512
CONTEXT_TOKENS = 300
NUM_DECODED = 32

PYTORCH = """
import json, sys, time, torch
from transformers import AutoModelForCausalLM
folder, dtype, threads, prompt, context, sequences, decoded = sys.argv[1:]
torch.set_num_threads(int(threads))
model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
vocabulary = model.config.vocab_size
tokens = lambda rows, length: torch.randint(0, vocabulary, (rows, length))
times = {}
with torch.inference_mode():
    for _ in range(3):
        started = time.perf_counter()
        model(tokens(1, int(prompt)), logits_to_keep=1)
        times["prefill"] = int(prompt) / (time.perf_counter() - started)
    for rows in map(int, sequences.split(",")):
        cache = model(tokens(rows, int(context)), logits_to_keep=1).past_key_values
        model(tokens(rows, 1), past_key_values=cache)
        started = time.perf_counter()
        for _ in range(int(decoded)):
            model(tokens(rows, 1), past_key_values=cache)
        times[f"decode {rows}"] = rows * int(decoded) / (time.perf_counter() - started)
print(json.dumps(times))
"""


def run(command, **options):
    """Returns what a command prints; shows its errors where it fails."""
    result = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, **options
    )
    if result.returncode != 0:
        raise SystemExit(f"{command[0]} failed:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    return result.stdout


def steps(args):
    """Returns the name of every step and how step_profile calls it."""
    named = {"prefill": f"prefill:{PROMPT_TOKENS}"}
    named |= {f"decode {n}": f"decode:{n}:{CONTEXT_TOKENS}" for n in args.sequences}
    return named


def mini_infer(args, gguf):
    """Returns the tokens per second of each step."""
    named = steps(args)
    environment = {**os.environ, "THREADS": str(args.threads)}
    printed = run([EXAMPLES / "step_profile", gguf, *named.values()], env=environment)
    rates = {}
    for name, step in named.items():
        found = re.search(rf"^{step}\n.*?([0-9.]+) tokens/s", printed, re.M)
        rates[name] = float(found[1])
    return rates


def llama_cpp(args, gguf):
    """Returns the tokens per second of each step."""
    program = peer_engines.llama_cpp() / "llama-batched-bench"
    libraries = {**os.environ, "LD_LIBRARY_PATH": str(program.parent)}

    def bench(prompt, decoded, sequences):
        # Room to spare: llama.cpp rounds the share of each sequence.
        room = (prompt + decoded + 64) * max(sequences)
        options = ("-m", gguf, "-t", args.threads, "-c", room, "-npp", prompt, "-ntg", decoded)
        batches = ("-npl", ",".join(map(str, sequences)), "--output-format", "jsonl")
        printed = run([program, *options, *batches], env=libraries)
        return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]

    rates = {"prefill": bench(PROMPT_TOKENS, 1, [1])[0]["speed_pp"]}
    for row in bench(CONTEXT_TOKENS - NUM_DECODED // 2, NUM_DECODED, args.sequences):
        rates[f"decode {row['pl']}"] = row["speed_tg"]
    return rates


def pytorch(args, dtype):
    """Returns the tokens per second of each step on the bf16 folder."""
    shape = (PROMPT_TOKENS, CONTEXT_TOKENS, ",".join(map(str, args.sequences)), NUM_DECODED)
    python = args.pytorch / "bin" / "python"
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(args.threads)}
    command = [python, "-c", PYTORCH, args.bf16_folder, dtype, args.threads, *shape]
    return json.loads(run(command, env=offline).splitlines()[-1])


def contenders(args):
    """Returns what runs in a round: names and functions that measure."""
    found = []
    for gguf in args.gguf:
        dtype = gguf.name.removesuffix(".gguf").rsplit(".", 1)[-1]
        found.append((f"mini-infer {dtype}", lambda gguf=gguf: mini_infer(args, gguf)))
        found.append((f"llama.cpp {dtype}", lambda gguf=gguf: llama_cpp(args, gguf)))
    if args.pytorch:
        for dtype in ("bfloat16", "float32"):
            found.append((f"PyTorch {dtype}", lambda dtype=dtype: pytorch(args, dtype)))
    return found


def limits():
    """Returns what machine_limits says, by name: one thread and all threads, 10^9 per second."""
    rows = (line.rsplit(None, 2) for line in run([EXAMPLES / "machine_limits"]).splitlines()[1:])
    return {name.strip(): [float(one), float(all_)] for name, one, all_ in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("gguf", nargs="+", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 4, 16, 32])
    parser.add_argument("--pytorch", type=pathlib.Path, help="environment with transformers")
    parser.add_argument("--bf16-folder", type=pathlib.Path, help="checkpoint for PyTorch")
    parser.add_argument("--record", type=pathlib.Path)
    args = parser.parse_args()
    args.gguf = [gguf.absolute() for gguf in args.gguf]
    measured = contenders(args)
    samples = {name: [] for name, _ in measured}
    machine_limits = [limits()]
    for number in range(args.rounds):
        for name, measure in measured if number % 2 == 0 else reversed(measured):
            samples[name].append(measure())
            print(f"round {number + 1} {name}: {samples[name][-1]}", flush=True)
    machine_limits.append(limits())
    medians = {
        name: {step: statistics.median(s[step] for s in taken) for step in taken[0]}
        for name, taken in samples.items()
    }
    print(f"\n{'tokens/s, median':24}" + "".join(f"{step:>12}" for step in steps(args)))
    for name, rates in medians.items():
        print(f"{name:24}" + "".join(f"{rates[step]:12.1f}" for step in steps(args)))
    if args.record:
        record = {
            "date": datetime.date.today().isoformat(),
            "commit": output_of(["git", "rev-parse", "--short", "HEAD"]),
            "machine": machine(),
            "machine_limits_before_and_after": machine_limits,
            "threads": args.threads,
            "llama.cpp": peer_engines.LLAMA_CPP,
            "files": {gguf.name: sha256(gguf) for gguf in args.gguf},
            "tokens_per_s": {"medians": medians, "samples": samples},
        }
        args.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
