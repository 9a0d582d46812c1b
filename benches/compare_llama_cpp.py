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
import hashlib
import http.client
import json
import os
import pathlib
import platform
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
STARTUP_TIMEOUT_S = 300
REQUEST_TIMEOUT_S = 900
NUM_STREAMS = 16
CONTEXT_TOKENS = 1024

# One token each, with the blank before it, in the vocabularies of common English models.
WORDS = (
    "time people way water day part word work place year back thing name line right hand high "
    "house world land home air point page letter mother answer study plant food sun state city "
    "tree farm story night life paper group music book room friend fish mountain horse color "
    "wood road rock fire problem piece sea river order door wind question area money map field "
    "travel reason front table love person king space hour game power town unit figure fall lead "
    "dark machine note wait plan star box noun force blue object surface moon island foot system"
).split()


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


@dataclasses.dataclass(frozen=True)
class Contender:
    """A server to measure; `command` has {port} where the port goes."""

    name: str
    command: list
    request_fields: dict


class Server:
    """A running server: started on entry once it is ready, ended on exit."""

    def __init__(self, contender, log):
        self.contender = contender
        self.log = log
        self.port = free_port()
        self.words_off = {}

    def __enter__(self):
        command = [part.format(port=self.port) for part in self.contender.command]
        started = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        try:
            self._wait_until_ready(started + STARTUP_TIMEOUT_S)
        except BaseException:
            self.__exit__()
            raise
        self.ready_s = time.perf_counter() - started
        return self

    def _wait_until_ready(self, deadline):
        while not self._is_ready():
            if self.process.poll() is not None:
                sys.exit(f"{self.contender.name} ended with {self.process.returncode} at start")
            if time.perf_counter() > deadline:
                sys.exit(f"{self.contender.name} was not ready after {STARTUP_TIMEOUT_S} s")
            time.sleep(0.02)

    def _is_ready(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def resident_mib(self):
        """Returns resident memory, or None where the system does not say."""
        try:
            status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return None
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) // 1024

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


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


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


def machine():
    """Says what the figures were measured on."""
    cpu, flags = platform.processor(), []
    try:
        info = pathlib.Path("/proc/cpuinfo").read_text()
        model = re.search(r"^model name\s*: (.*)$", info, re.M)
        listed = re.search(r"^flags\s*: (.*)$", info, re.M)
        cpu = model[1] if model else cpu
        flags = listed[1].split() if listed else []
    except OSError:
        pass
    wanted = re.compile(r"avx|amx|fma$|f16c|vnni|bf16")
    return {
        "cpu": cpu,
        "cpu_flags": [flag for flag in flags if wanted.search(flag)],
        "num_cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
    }


def output_of(command):
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return (result.stdout or result.stderr).strip()


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


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
                with Server(contender, log) as server:
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
