#!/usr/bin/env python3
"""Measures mini-infer beside llama.cpp's server, on one machine, over HTTP, in turn.

Both servers load the same file (or each its own, with --llama-model), get the same prompts from
the same client, and are started afresh for every round: ours, theirs, ours, theirs. Three loads:

  prefill   one stream, 512 tokens in, 1 out: input tokens per second until the first token
  decode    one stream, 16 tokens in, 128 out: output tokens per second after the first token
  streams   16 streams in a closed loop, 256 tokens in, 128 out: output tokens per second in all

Prompts are random common words, new for every request, so that no prefix cache can help; both
caches are switched off as well. Connections are closed after each request. Every request must
succeed and return exactly the tokens asked for, or the run fails. Reported are medians over
rounds and the ratio of ours to theirs; all samples go to a JSON record.

Needs only the Python standard library.

    cargo build --release
    python3 benches/compare_llama_cpp.py --llama-bin DIR --model FILE.gguf
"""

import argparse
import concurrent.futures
import dataclasses
import datetime
import http.client
import json
import os
import pathlib
import random
import signal
import statistics
import sys
import tempfile
import time

from measured_server import ROOT, WORDS, Contender, Server, machine, output_of, sha256

REQUEST_TIMEOUT_S = 900
NUM_STREAMS = 16
CONTEXT_TOKENS = 1024


@dataclasses.dataclass(frozen=True)
class Load:
    """What one request asks for, in tokens."""

    prompt_tokens: int
    output_tokens: int


PREFILL = Load(prompt_tokens=512, output_tokens=1)
DECODE = Load(prompt_tokens=16, output_tokens=128)
STREAMS = Load(prompt_tokens=256, output_tokens=128)


@dataclasses.dataclass(frozen=True)
class Sample:
    """What the client saw of one request; times in seconds."""

    ttft_s: float
    e2e_s: float
    prompt_tokens: int
    output_tokens: int

    @property
    def tpot_s(self):
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1)


class StreamingServer(Server):
    """A server with a client that counts what streams."""

    def __init__(self, contender, log):
        super().__init__(contender, log)
        self.words_off = {}

    def complete(self, load, rng):
        """Runs one request of `load` with a fresh prompt; checks what came back."""
        for _ in range(4):
            num_words = load.prompt_tokens - self.words_off.get(load, 0)
            # The same first word for all: without a blank before it, others split unlike.
            words = ["The", *rng.choices(WORDS, k=num_words - 1)]
            sample = self._stream(load, " ".join(words))
            if sample.prompt_tokens == load.prompt_tokens:
                break
            # A tokenizer adds a token at the front, or splits a word: calibrate once per load.
            self.words_off[load] = sample.prompt_tokens - num_words
        assert sample.prompt_tokens == load.prompt_tokens, (load, sample)
        assert sample.output_tokens == load.output_tokens, (load, sample)
        return sample

    def _stream(self, load, prompt):
        body = {
            "prompt": prompt,
            "max_tokens": load.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.contender.request_fields,
        }
        headers = {"Content-Type": "application/json", "Connection": "close"}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_TIMEOUT_S)
        started = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{self.contender.name}: {response.status} {response.read()!r}")
        first = last = None
        usage = None
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            if b'"usage":{' in line or b'"usage": {' in line:
                usage = json.loads(line[6:])["usage"]
            last = time.perf_counter()
            first = first or last
        connection.close()
        if usage is None:
            raise RuntimeError(f"{self.contender.name}: the stream ended without usage")
        return Sample(
            ttft_s=round(first - started, 6),
            e2e_s=round(last - started, 6),
            prompt_tokens=usage["prompt_tokens"],
            output_tokens=usage["completion_tokens"],
        )


def measure(server, rng, args):
    """Returns one round's figures of a running server."""
    for load in (PREFILL, DECODE, STREAMS):
        server.complete(load, rng)  # warms up and calibrates the prompt length
    prefill = [server.complete(PREFILL, rng) for _ in range(args.repeats)]
    decode = [server.complete(DECODE, rng) for _ in range(args.repeats)]
    resident_mib = server.resident_mib()
    streams, wall_s = closed_loop(server, rng, args.requests_per_stream)
    num_output_tokens = sum(sample.output_tokens for sample in streams)
    return {
        "ready_s": round(server.ready_s, 3),
        "resident_mib": resident_mib,
        "resident_after_streams_mib": server.resident_mib(),
        "prefill_input_tokens_per_s": round(
            PREFILL.prompt_tokens / statistics.median(s.ttft_s for s in prefill), 1
        ),
        "decode_output_tokens_per_s": round(1 / statistics.median(s.tpot_s for s in decode), 1),
        "streams_output_tokens_per_s": round(num_output_tokens / wall_s, 1),
        "streams_ttft_p50_ms": round(1e3 * statistics.median(s.ttft_s for s in streams), 1),
        "streams_tpot_p50_ms": round(1e3 * statistics.median(s.tpot_s for s in streams), 2),
        "samples": {
            "prefill": [dataclasses.asdict(s) for s in prefill],
            "decode": [dataclasses.asdict(s) for s in decode],
            "streams": [dataclasses.asdict(s) for s in streams],
            "streams_wall_s": wall_s,
        },
    }


def closed_loop(server, rng, requests_per_stream):
    """Returns the samples of NUM_STREAMS clients, each asking again as soon as it is served."""
    seeds = [rng.getrandbits(64) for _ in range(NUM_STREAMS)]

    def client(seed):
        own_rng = random.Random(seed)
        return [server.complete(STREAMS, own_rng) for _ in range(requests_per_stream)]

    started = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(NUM_STREAMS) as pool:
        samples = [sample for batch in pool.map(client, seeds) for sample in batch]
    return samples, time.perf_counter() - started


def contenders(args):
    ours = [str(args.mini_infer), "serve", "--model", str(args.model), "--port", "{port}"]
    ours += ["--threads", str(args.threads), "--max-num-seqs", str(NUM_STREAMS)]
    ours += ["--max-model-len", str(CONTEXT_TOKENS), "--no-prefix-caching"]
    theirs = [str(args.llama_bin / "llama-server"), "-m", str(args.llama_model or args.model)]
    theirs += ["--port", "{port}", "-t", str(args.threads), "-np", str(NUM_STREAMS)]
    theirs += ["-c", str(NUM_STREAMS * CONTEXT_TOKENS), "--cache-ram", "0"]
    return [
        Contender("mini-infer", ours + args.mini_infer_arg, {}),
        Contender("llama.cpp", theirs + args.llama_arg, {"cache_prompt": False}),
    ]


def medians(rounds):
    """Returns the median over rounds of every figure that is a number."""
    names = [name for name, value in rounds[0].items() if isinstance(value, (int, float))]
    return {name: statistics.median(figures[name] for figures in rounds) for name in names}


def record(args, rounds):
    """Returns all that is needed to judge and repeat the run, without this machine's folders."""
    without_folders = lambda command: [os.path.basename(part) or part for part in command]
    models = dict.fromkeys([args.model, args.llama_model or args.model])
    summary = {name: medians(figures) for name, figures in rounds.items()}
    ratios = {
        figure: round(summary["mini-infer"][figure] / summary["llama.cpp"][figure], 3)
        for figure in summary["mini-infer"]
        if figure.endswith("_per_s")
    }
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "commit": output_of(["git", "rev-parse", "HEAD"]),
        "uncommitted_changes": bool(output_of(["git", "status", "--porcelain", "-uno"])),
        "llama_cpp": output_of([str(args.llama_bin / "llama-server"), "--version"]).splitlines(),
        "models": {path.name: sha256(path) for path in models},
        "commands": {c.name: without_folders(c.command) for c in contenders(args)},
        "loads": {
            "prefill": dataclasses.asdict(PREFILL),
            "decode": dataclasses.asdict(DECODE),
            "streams": {**dataclasses.asdict(STREAMS), "num_streams": NUM_STREAMS},
        },
        "seed": args.seed,
        "medians": summary,
        "ratio_ours_to_theirs": ratios,
        "rounds": rounds,
    }


def print_summary(result):
    ours, theirs = (result["medians"][name] for name in ("mini-infer", "llama.cpp"))
    print(f"\n{'':34}{'mini-infer':>12}{'llama.cpp':>12}{'ratio':>8}")
    for figure in ours:
        ratio = result["ratio_ours_to_theirs"].get(figure, "")
        print(f"{figure:34}{ours[figure]:12}{theirs[figure]:12}{ratio:>8}")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    path = pathlib.Path
    parser.add_argument("--llama-bin", type=path, required=True, help="folder of llama-server")
    parser.add_argument("--model", type=path, required=True, help="GGUF file for both")
    parser.add_argument("--llama-model", type=path, help="GGUF file for llama.cpp, if another")
    parser.add_argument("--mini-infer", type=path, default=ROOT / "target/release/mini-infer")
    parser.add_argument("--mini-infer-arg", action="append", default=[], help="further flag")
    parser.add_argument("--llama-arg", action="append", default=[], help="further flag")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5, help="single-stream requests a round")
    parser.add_argument("--requests-per-stream", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=path, default=ROOT / "benches/record")
    parser.add_argument("--name", help="name of the record; the model's and the date by default")
    return parser.parse_args()


def main():
    args = parse_args()
    # Leave through the context managers, so that no server outlives the script.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rounds = {contender.name: [] for contender in contenders(args)}
    with tempfile.TemporaryFile() as log:
        for i in range(args.rounds):
            for contender in contenders(args):
                with StreamingServer(contender, log) as server:
                    # The same prompts for both, other ones in each round.
                    figures = measure(server, random.Random(args.seed + i), args)
                rounds[contender.name].append(figures)
                shown = {k: v for k, v in figures.items() if k != "samples"}
                print(f"round {i + 1} {contender.name}: {json.dumps(shown)}", flush=True)
    result = record(args, rounds)
    print_summary(result)
    name = args.name or f"{result['date'][:10]}-llama-cpp-{args.model.stem}"
    args.record.mkdir(parents=True, exist_ok=True)
    target = args.record / f"{name}.json"
    target.write_text(json.dumps(result, indent=1) + "\n")
    print(f"recorded in {target}")


if __name__ == "__main__":
    main()
