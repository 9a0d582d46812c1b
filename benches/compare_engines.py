#!/usr/bin/env python3
"""Measures mini-infer, llama.cpp and vLLM on one model, in turn, with servebench.

Installs what is missing from the Python package index (see `peer_engines.py`), starts each engine
afresh in every round, and runs the same closed loops against it: same prompts for all engines,
others in each round, so that no prefix cache can help. Of each engine the round with the median
output throughput at the highest load is kept as its `run.json`; the others' figures are in
`rounds.json`. From the kept runs it writes one table and one HTML page.

    cargo build --release --workspace
    python3 benches/compare_engines.py
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import statistics
import subprocess
import tempfile

import peer_engines
from measured_server import ROOT, Contender, Server, machine, output_of

PROGRAMS = ROOT / "target" / "release"


def gguf_of_smollm2():
    """Fetches the model as a user would, and returns its file."""
    printed = subprocess.run(
        [PROGRAMS / "mini-infer", "pull", "smollm2-135m"], check=True, capture_output=True, text=True
    ).stdout
    return pathlib.Path(re.search(r"(/\S+\.gguf)", printed)[1])


def contenders(args):
    """Returns the engines to measure, installing them first."""
    gguf = args.model or gguf_of_smollm2()
    threads = args.threads
    max_streams = max(args.concurrency)

    def llama(name, file):
        return peer_engines.llama_server(name, file, max_streams, args.context_tokens, threads)

    def ours(name, file, *options):
        command = [
            str(PROGRAMS / "mini-infer"),
            *("serve", "--model", str(file), "--served-model-name", "measured"),
            *("--port", "{port}", "--threads", str(threads), *options),
        ]
        return Contender(name, command, {})

    def stored_as(dtype):
        return peer_engines.quantised(gguf, dtype)

    makers = {
        "mini-infer": lambda: ours("mini-infer Q4_1", gguf),
        "mini-infer-q4_0": lambda: ours("mini-infer Q4_0", stored_as("Q4_0")),
        "mini-infer-q4_0-int8-kv": lambda: ours(
            "mini-infer Q4_0, int8 KV", stored_as("Q4_0"), "--kv-cache-dtype", "int8"
        ),
        "mini-infer-bf16": lambda: ours("mini-infer BF16", stored_as("BF16")),
        "llama.cpp": lambda: llama("llama.cpp Q4_1", gguf),
        "llama.cpp-q4_0": lambda: llama("llama.cpp Q4_0", stored_as("Q4_0")),
        "llama.cpp-bf16": lambda: llama("llama.cpp BF16", stored_as("BF16")),
        "vllm": lambda: peer_engines.vllm_server(
            "vLLM bf16", peer_engines.bf16_folder(gguf), args.context_tokens, threads
        ),
    }
    return [makers[name]() for name in args.engines]


def measure(contender, args, seed, out):
    """Runs servebench against a fresh server; returns its run and what the server took."""
    with tempfile.TemporaryFile() as log, Server(contender, log) as server:
        command = [
            PROGRAMS / "servebench",
            *("run", "--url", f"http://127.0.0.1:{server.port}/v1", "--model", "measured"),
            *("--concurrency", ",".join(map(str, args.concurrency))),
            *("--input-len", args.input_len, "--output-len", args.output_len),
            *("--num-requests", args.num_requests, "--seed", seed, "--no-gpu"),
            *("--label", contender.name, "--notes", " ".join(peer_engines.paths_in(contender))),
            *("--out", out),
            # llama.cpp's server drops connections that it said it would keep.
            *(["--no-keep-alive"] if contender.name.startswith("llama") else []),
        ]
        subprocess.run(list(map(str, command)), check=True)
        resident_mib, peak_mib = server.resident_mib(), server.peak_mib()
        ready_s = round(server.ready_s, 2)
    run = json.loads(out.read_text())
    model_info = run["environment"]["model_info"] or {}
    if "model_path" in model_info:
        model_info["model_path"] = pathlib.Path(model_info["model_path"]).name
        out.write_text(json.dumps(run, separators=(",", ":")))
    for level in run["levels"]:
        if level["summary"]["failed"]:
            print(f"{contender.name}: {level['summary']['errors']}", flush=True)
    figures = {"engine": contender.name, "ready_s": ready_s, "resident_mib": resident_mib}
    figures["peak_mib"] = peak_mib
    figures["levels"] = [
        {
            "streams": level["value"],
            "failed": level["summary"]["failed"],
            "output_tokens_per_s": round(level["summary"]["output_throughput"], 1),
            "ttft_p50_ms": round((level["summary"]["ttft"]["p50"] or 0) * 1e3, 1),
            "tpot_p50_ms": round((level["summary"]["tpot"]["p50"] or 0) * 1e3, 2),
        }
        for level in run["levels"]
    ]
    print(json.dumps(figures), flush=True)
    return figures


def median_round(rounds):
    """Returns the number of the round whose peak throughput is the median."""
    peaks = [figures["levels"][-1]["output_tokens_per_s"] for figures in rounds]
    return peaks.index(statistics.median_low(peaks))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = ["mini-infer", "llama.cpp", "llama.cpp-q4_0", "vllm"]
    ours = ["mini-infer-q4_0", "mini-infer-q4_0-int8-kv", "mini-infer-bf16"]
    all_engines = [*default, *ours, "llama.cpp-bf16"]
    parser.add_argument("--engines", nargs="+", choices=all_engines, default=default)
    parser.add_argument("--model", type=pathlib.Path, help="GGUF file instead of SmolLM2-135M")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--num-requests", type=int, default=32, help="of each level")
    parser.add_argument("--input-len", type=int, default=256)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--context-tokens", type=int, default=1024, help="of each request at most")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "benches" / "record")
    args = parser.parse_args()

    engines = contenders(args)
    date = datetime.date.today().isoformat()
    folder = args.out / f"{date}-engines"
    folder.mkdir(parents=True, exist_ok=True)
    rounds = {engine.name: [] for engine in engines}
    with tempfile.TemporaryDirectory() as scratch:
        runs = {}
        for number in range(args.rounds):
            for engine in engines:
                path = pathlib.Path(scratch, f"{engine.name}-{number}.json".replace(" ", "-"))
                rounds[engine.name].append(measure(engine, args, 1_000_000 * (number + 1), path))
                runs[engine.name, number] = path.read_text()
        kept = []
        for engine in engines:
            path = folder / f"{engine.name.lower().replace(' ', '-')}.json"
            path.write_text(runs[engine.name, median_round(rounds[engine.name])])
            kept.append(path)
    record = {
        "date": date,
        "commit": output_of(["git", "rev-parse", "--short=10", "HEAD"]),
        "machine": machine(),
        "commands": {engine.name: peer_engines.paths_in(engine) for engine in engines},
        "rounds": rounds,
    }
    (folder / "rounds.json").write_text(json.dumps(record, indent=1) + "\n")
    servebench = PROGRAMS / "servebench"
    table = subprocess.run([servebench, "compare", *kept], check=True, stdout=subprocess.PIPE).stdout
    (folder / "comparison.txt").write_bytes(table)
    print(table.decode())
    subprocess.run([servebench, "report", *kept, "--out", folder / "report.html"], check=True)


if __name__ == "__main__":
    main()
