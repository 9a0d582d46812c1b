#!/usr/bin/env python3
"""Measures what a JSON schema costs: decode steps of 16 outputs with one and without.

Rounds take turns: 16 completions at once under a schema that never lets them end early, and the
same without. Compared are the means of the engine's decode steps, and the output tokens per second
of the whole round.

    cargo build --release
    python3 benches/constrained_speed.py MODEL
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import statistics
import sys
import time

from busy_server import get, mean_step, metric
from measured_server import ROOT, Contender, Server, machine

SCHEMA = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 4},
            "kind": {"enum": ["person", "place", "thing"]},
        },
        "required": ["name", "age", "tags", "kind"],
        "additionalProperties": False,
    },
}
FREE, BOUND = {}, {"guided_json": SCHEMA}


def complete(port, number, args, fields):
    body = {
        "prompt": f"A JSON list of {number + 10} people, places and things:\n",
        "max_tokens": args.tokens,
        "temperature": args.temperature,
        "seed": number,
        "ignore_eos": True,
        "cache_prompt": False,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body | fields), headers)
    answer = json.loads(connection.getresponse().read())
    if "usage" not in answer:
        sys.exit(f"refused: {answer}")
    return answer["usage"]["completion_tokens"], answer["choices"][0]["text"]


def measure(port, args, fields):
    """Returns output tokens per second and the mean time of a step."""
    before, started = get(port, "/metrics"), time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(args.streams) as pool:
        ask = lambda number: complete(port, number, args, fields)
        answers = list(pool.map(ask, range(args.streams)))
    elapsed, after = time.perf_counter() - started, get(port, "/metrics")
    if any(num_tokens != args.tokens for num_tokens, _ in answers):
        sys.exit(f"an output ended early: {answers}")
    if args.show:
        print(answers[0][1])
    num_tokens = sum(num_tokens for num_tokens, _ in answers)
    return num_tokens / elapsed, mean_step(before, after), phases(before, after)


def phases(before, after):
    """Returns the mean microseconds of each phase of a step."""
    name = "mini_infer_step_phase_time_seconds"
    grown = lambda what: metric(after, what) - metric(before, what)
    labels = ["commands", "schedule", "prefill", "decode", "masks", "sampling", "output", "delivery"]
    sums = {label: grown(f'{name}_sum{{phase="{label}"}}') for label in labels}
    num_steps = max(1, grown("mini_infer_steps_total"))
    return {label: round(1e6 * sums[label] / num_steps) for label in labels}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--binary", default=ROOT / "target" / "release" / "mini-infer")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--temperature", type=float, default=0)
    parser.add_argument("--show", action="store_true", help="print an output of each round")
    args = parser.parse_args()
    command = [args.binary, "serve", "--model", args.model, "--port", "{port}"]
    contender = Contender("mini-infer", list(map(str, command)), {})
    print(json.dumps(machine()))
    rates = {"free": [], "bound": []}
    with open(os.devnull, "wb") as log, Server(contender, log) as server:
        measure(server.port, args, BOUND)  # the grammar is compiled once
        for _ in range(args.rounds):
            for name, fields in (("free", FREE), ("bound", BOUND)):
                rate, step, parts = measure(server.port, args, fields)
                rates[name].append(rate)
                print(f"{name}: {rate:.1f} tokens/s, step {1e3 * step:.2f} ms, us {parts}", flush=True)
    free, bound = (statistics.median(rates[name]) for name in ("free", "bound"))
    print(f"with the schema {bound:.1f}, without {free:.1f} tokens/s: {bound / free:.3f} of it")


if __name__ == "__main__":
    main()
