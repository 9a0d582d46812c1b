#!/usr/bin/env python3
"""Measures what paging and sharing do for a running server.

  concurrency  the same burst of requests on the same bytes of KV memory, once with one stretch of
               the maximum length for each request, once paged: requests that ran at once while
               others waited, requests per second, output tokens per second
  prefix       requests that share a long system prompt: time to the first token when nothing is
               cached, when it is, one at a time and 16 at once; and how much KV memory they hold

Each server is started afresh for every round, in turn. Every request must succeed and return the
tokens asked for, or the run fails. Reported are medians over rounds; all samples go to a record.

Needs only the Python standard library.

    cargo build --release
    python3 benches/kv_memory.py
"""

import argparse
import concurrent.futures
import datetime
import http.client
import json
import os
import pathlib
import random
import re
import signal
import statistics
import sys
import tempfile
import threading
import time

from measured_server import ROOT, WORDS, Contender, Server, machine, output_of

REQUEST_TIMEOUT_S = 900
NUM_STREAMS = 16
CONTEXT_TOKENS = 2048
SYSTEM_PROMPT_WORDS = 790  # 800 tokens with the template's own
POLL_S = 0.05


class KvServer(Server):
    """A server with a client, and a look at its KV memory."""

    def post(self, path, body):
        """Returns the JSON response to a request that must succeed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_TIMEOUT_S)
        headers = {"Content-Type": "application/json", "Connection": "close"}
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{self.contender.name}: {response.status} {response.read()!r}")
        return response

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_TIMEOUT_S)
        connection.request("GET", path, headers={"Connection": "close"})
        return connection.getresponse().read().decode()

    def metrics(self, *names):
        text = self.get("/metrics")
        found = [re.search(rf"^mini_infer_{name} (\S+)$", text, re.M) for name in names]
        return [float(match[1]) for match in found]

    def complete(self, prompt_words, num_output_tokens):
        body = {
            "prompt": " ".join(prompt_words),
            "max_tokens": num_output_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        usage = json.load(self.post("/v1/completions", body))["usage"]
        assert usage["completion_tokens"] == num_output_tokens, usage

    def time_to_first_token(self, system_prompt, question, num_output_tokens):
        """Returns TTFT in seconds and the usage of one streamed chat."""
        body = {
            "messages": [
                {"role": "system", "content": system_prompt},
                {"role": "user", "content": question},
            ],
            "max_tokens": num_output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        started = time.perf_counter()
        first = usage = None
        for line in self.post("/v1/chat/completions", body):
            if b'"content":"' in line and b'"content":""' not in line:
                first = first or time.perf_counter()
            if b'"usage":{' in line:
                usage = json.loads(line[6:])["usage"]
        return first - started, usage


def burst(rng, num_requests):
    """Returns prompts (words) and output lengths, long-tailed, far below the maximum length."""
    lengths = []
    for _ in range(num_requests):
        num_prompt = min(700, max(4, round(rng.lognormvariate(4.6, 0.9))))
        num_output = min(500, max(4, round(rng.lognormvariate(4.5, 0.8))))
        lengths.append((["The", *rng.choices(WORDS, k=num_prompt - 1)], num_output))
    return lengths


def measure_concurrency(server, rng, args):
    """Returns one round's figures of a burst that arrives at once."""
    server.complete(["Hello"], 4)
    requests = burst(rng, args.requests)
    samples = []
    ended = threading.Event()

    def watch():
        while not ended.wait(POLL_S):
            samples.append(server.metrics("running_sequences", "waiting_sequences"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        list(pool.map(lambda request: server.complete(*request), requests))
    wall_s = time.perf_counter() - started
    ended.set()
    watcher.join()
    crowded = [running for running, waiting in samples if waiting > 0]
    (preemptions,) = server.metrics("preemptions_total")
    return {
        "mean_running": round(statistics.mean(crowded), 2),
        "peak_running": int(max(running for running, _ in samples)),
        "requests_per_s": round(len(requests) / wall_s, 3),
        "output_tokens_per_s": round(sum(n for _, n in requests) / wall_s, 1),
        "preemptions": int(preemptions),
        "resident_mib": server.resident_mib(),
        "samples": samples,
    }


def measure_prefix(server, rng, _args):
    """Returns one round's figures of requests that share a system prompt."""
    fresh = lambda: " ".join(["Be", *rng.choices(WORDS, k=SYSTEM_PROMPT_WORDS - 1)])
    question = lambda: "Where is " + " ".join(rng.choices(WORDS, k=8)) + "?"
    server.time_to_first_token(fresh(), question(), 2)
    cold, warm = [], []
    for _ in range(5):
        system_prompt = fresh()
        cold.append(server.time_to_first_token(system_prompt, question(), 2)[0])
        warm += [server.time_to_first_token(system_prompt, question(), 2)[0] for _ in range(4)]
    before = json.loads(server.get("/v1/kv"))
    looks = []

    def all_at_once(prompt):
        with concurrent.futures.ThreadPoolExecutor(NUM_STREAMS) as pool:
            asked = [
                pool.submit(server.time_to_first_token, prompt, question(), 64)
                for _ in range(NUM_STREAMS)
            ]
            while not all(request.done() for request in asked):
                looks.append(json.loads(server.get("/v1/kv")))
            return [request.result() for request in asked]

    together_warm = all_at_once(system_prompt)
    together_cold = all_at_once(fresh())
    widest = max(looks, key=lambda look: look["shared_tokens"])
    return {
        "cold_ttft_s": round(statistics.median(cold), 4),
        "warm_ttft_s": round(statistics.median(warm), 4),
        "cold_to_warm": round(statistics.median(cold) / statistics.median(warm), 1),
        "together_warm_ttft_s": round(statistics.median(t for t, _ in together_warm), 4),
        "together_cold_ttft_s": round(statistics.median(t for t, _ in together_cold), 4),
        "samples": {
            "cold_ttft_s": cold,
            "warm_ttft_s": warm,
            "together_warm": together_warm,
            "together_cold": together_cold,
            "kv_before": before,
            "kv_widest": widest,
        },
    }


def contenders(args):
    """Returns the servers of each measurement."""
    serve = [str(args.mini_infer), "serve", "--model", str(args.model), "--port", "{port}"]
    serve += ["--threads", str(args.threads), "--max-model-len", str(CONTEXT_TOKENS)]
    fixed = [*serve, "--kv-cache-memory", args.kv_cache_memory, "--kv-allocator"]
    return {
        "concurrency": [
            Contender(name, [*fixed, name], {}) for name in ("contiguous-max", "paged")
        ],
        "prefix": [Contender("paged", serve, {})],
    }


def medians(rounds):
    names = [name for name, value in rounds[0].items() if isinstance(value, (int, float))]
    return {name: statistics.median(figures[name] for figures in rounds) for name in names}


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    path = pathlib.Path
    parser.add_argument("--only", choices=["concurrency", "prefix"], help="one measurement")
    parser.add_argument("--mini-infer", type=path, default=ROOT / "target/release/mini-infer")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--kv-cache-memory", default="96MiB", help="pool of `concurrency`")
    parser.add_argument("--requests", type=int, default=64, help="requests in the burst")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=path, default=ROOT / "benches/record")
    return parser.parse_args()


def main():
    args = parse_args()
    # Leave through the context managers, so that no server outlives the script.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    measures = {"concurrency": measure_concurrency, "prefix": measure_prefix}
    rounds = {}
    with tempfile.TemporaryFile() as log:
        for what, servers in contenders(args).items():
            if args.only not in (None, what):
                continue
            for i in range(args.rounds):
                for contender in servers:
                    with KvServer(contender, log) as server:
                        # The same requests for all, other ones in each round.
                        figures = measures[what](server, random.Random(args.seed + i), args)
                    rounds.setdefault(f"{what} {contender.name}", []).append(figures)
                    shown = {k: v for k, v in figures.items() if k != "samples"}
                    print(f"round {i + 1} {what} {contender.name}: {json.dumps(shown)}", flush=True)
    result = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "commit": output_of(["git", "rev-parse", "HEAD"]),
        "uncommitted_changes": bool(output_of(["git", "status", "--porcelain", "-uno"])),
        "arguments": {k: str(v) for k, v in vars(args).items() if not isinstance(v, pathlib.Path)},
        "medians": {name: medians(figures) for name, figures in rounds.items()},
        "rounds": rounds,
    }
    for name, figures in result["medians"].items():
        print(f"{name}: {json.dumps(figures)}")
    args.record.mkdir(parents=True, exist_ok=True)
    target = args.record / f"{result['date'][:10]}-kv-memory{'-' + args.only if args.only else ''}.json"
    target.write_text(json.dumps(result) + "\n")
    print(f"recorded in {target}")


if __name__ == "__main__":
    main()
