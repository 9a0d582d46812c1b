#!/usr/bin/env python3
"""Measures a prompt of 6,500 tokens beside a running stream: mini-infer, llama.cpp and vLLM.

In each round every engine is started afresh. First the prompt arrives alone and its time to the
first token is taken. Then a stream runs, another prompt of the same length arrives in the middle
of it, and the gaps between the stream's tokens are taken: their median before the prompt and the
worst until the prompt's first token.

    cargo build --release
    python3 benches/long_prompt.py --record benches/record/NAME.json
"""

import argparse
import datetime
import http.client
import json
import os
import pathlib
import random
import statistics
import tempfile
import threading
import time

import peer_engines
from compare_engines import contenders
from measured_server import WORDS, Server, machine, output_of

PROMPT_TOKENS = 6500
CONTEXT_TOKENS = 8192
TOKENS_BEFORE = 64


class Stream:
    """A streamed completion; `times` holds when each token came. Ends early once `is_enough`."""

    def __init__(self, port, prompt, max_tokens):
        self.times = []
        self.is_enough = False
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        body = {
            "model": "measured",
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
            "stream": True,
        }
        self._body = json.dumps(body)

    def run(self):
        self.sent = time.perf_counter()
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", "/v1/completions", self._body, headers)
        response = self._connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"{response.status}: {response.read()[:300]}")
        for line in response:
            if line.startswith(b"data: {") and json.loads(line[6:]).get("choices"):
                self.times.append(time.perf_counter())
            if self.is_enough:
                break
        self._connection.close()

    def time_to_first_token(self):
        return self.times[0] - self.sent


def words(num, seed):
    choose = random.Random(seed)
    return " ".join(choose.choice(WORDS) for _ in range(num))


def measure(contender, seed):
    """Returns the times of one round."""
    with tempfile.TemporaryFile() as log, Server(contender, log) as server:
        Stream(server.port, words(64, seed), 8).run()
        alone = Stream(server.port, words(PROMPT_TOKENS, seed + 1), 1)
        alone.run()
        stream = Stream(server.port, words(32, seed + 2), CONTEXT_TOKENS - 192)
        thread = threading.Thread(target=stream.run, daemon=True)
        thread.start()
        while len(stream.times) < TOKENS_BEFORE:
            time.sleep(0.005)
        prompt = Stream(server.port, words(PROMPT_TOKENS, seed + 3), 1)
        prompt.run()
        stream.is_enough = True
        thread.join()
    gaps = list(zip(stream.times[1:], map(lambda a, b: b - a, stream.times, stream.times[1:])))
    before = [gap for at, gap in gaps if at < prompt.sent]
    # The gap that the prompt's end falls into belongs to it too.
    during = [gap for at, gap in gaps if at >= prompt.sent and at - gap <= prompt.times[0]]
    return {
        "alone_ttft_s": alone.time_to_first_token(),
        "beside_ttft_s": prompt.time_to_first_token(),
        "median_gap_ms": statistics.median(before) * 1e3,
        "median_gap_during_ms": statistics.median(during) * 1e3,
        "worst_gap_ms": max(during) * 1e3,
        "tokens_during": len(during),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--model", type=pathlib.Path, help="GGUF file; default: fetched")
    parser.add_argument("--engines", nargs="+", default=["mini-infer-q4_0", "llama.cpp-q4_0", "vllm"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--record", type=pathlib.Path)
    args = parser.parse_args()
    args.concurrency, args.context_tokens = [2], CONTEXT_TOKENS
    engines = contenders(args)
    samples = {engine.name: [] for engine in engines}
    for number in range(args.rounds):
        for engine in engines if number % 2 == 0 else reversed(engines):
            samples[engine.name].append(measure(engine, 10 * number))
            print(f"round {number + 1} {engine.name}: {samples[engine.name][-1]}", flush=True)
    medians = {
        name: {figure: statistics.median(s[figure] for s in taken) for figure in taken[0]}
        for name, taken in samples.items()
    }
    for name, figures in medians.items():
        print(f"{name:24}" + "".join(f"  {figure} {value:.2f}" for figure, value in figures.items()))
    if args.record:
        record = {
            "date": datetime.date.today().isoformat(),
            "commit": output_of(["git", "rev-parse", "--short", "HEAD"]),
            "machine": machine(),
            "commands": {engine.name: peer_engines.paths_in(engine) for engine in engines},
            "medians": medians,
            "samples": samples,
        }
        args.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
