#!/usr/bin/env python3
"""Measures what a busy server's clients and supervisor feel: 1,000 connections, 256 of them streams.

`health` asks for /health on new connections, 20 times a second and from a process of its own,
while 256 completions stream and 744 connections idle. `http` runs 256 completions that are
streamed, then the same that are not, and compares the engine's steps: what streaming to all of
them at each step adds. It also says how long the threads for HTTP ran meanwhile, on Linux, which
does not drift as the machine does, but leaves out what they push out of caches. The clients run on
the server's machine: they read twice a second and parse nothing.

    cargo build --release
    python3 benches/busy_server.py health MODEL
    python3 benches/busy_server.py http MODEL
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import re
import selectors
import socket
import statistics
import sys
import time

from measured_server import ROOT, Contender, Server, machine

NUM_STREAMS = 256
NUM_IDLE = 744
HEALTH_INTERVAL_S = 0.05
# Clients on the server's machine that woke up for each event would be measured with it.
READ_INTERVAL_S = 0.5


def connect(port):
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def completions(port, max_tokens, stream):
    """Sends requests with a prompt of their own each, as good as at once; returns connections."""
    connections = [connect(port) for _ in range(NUM_STREAMS)]
    for number, connection in enumerate(connections):
        ask_for_completion(connection, number, max_tokens, stream)
    return connections


def ask_for_completion(connection, number, max_tokens, stream):
    body = {
        "prompt": f"Story number {number}:",
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
        "stream": stream,
    }
    text = json.dumps(body)
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        b"content-type: application/json\r\n"
        + f"content-length: {len(text)}\r\n\r\n{text}".encode()
    )


def get(port, path):
    """Returns the body of an answer with status 200."""
    with connect(port) as connection:
        connection.settimeout(30)
        connection.sendall(
            f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()
        )
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    if not answer.startswith(b"HTTP/1.1 200 "):
        sys.exit(f"{path}: {answer[:300]}")
    return answer.partition(b"\r\n\r\n")[2].decode()


def metric(text, name):
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.M)
    return float(found[1]) if found else 0.0


def read_all(connections, until=None):
    """Reads without looking until all have ended or `until` says so; returns the bytes read."""
    num_bytes = 0
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ)
        while selector.get_map() and not (until and until()):
            for key, _ in selector.select(0.1):
                part = key.fileobj.recv(1 << 16)
                num_bytes += len(part)
                if not part:
                    selector.unregister(key.fileobj)
            time.sleep(READ_INTERVAL_S)
    return num_bytes


def ask_for_health(port, seconds, results):
    latencies = []
    until = time.perf_counter() + seconds
    while (started := time.perf_counter()) < until:
        get(port, "/health")
        latency = time.perf_counter() - started
        latencies.append(latency)
        time.sleep(max(0.0, HEALTH_INTERVAL_S - latency))
    results.put(latencies)


def measure_health(server, args):
    port = server.port
    idle = [connect(port) for _ in range(NUM_IDLE)]
    streams = completions(port, 1900, True)
    results = multiprocessing.Queue()
    prober = multiprocessing.Process(target=ask_for_health, args=(port, args.seconds, results))
    before, started = get(port, "/metrics"), time.perf_counter()
    prober.start()
    latencies = []

    def is_over():
        if not results.empty():
            latencies.extend(results.get())
        return bool(latencies)

    read_all(streams, is_over)
    elapsed = time.perf_counter() - started
    after = get(port, "/metrics")
    prober.join()
    num_tokens = metric(after, 'mini_infer_tokens_total{kind="output"}') - metric(
        before, 'mini_infer_tokens_total{kind="output"}'
    )
    latencies.sort()
    at = lambda share: round(1e3 * latencies[min(len(latencies) - 1, int(len(latencies) * share))], 2)
    report = {
        "running": metric(after, "mini_infer_running_sequences"),
        "idle connections": len(idle),
        "output tokens/s": round(num_tokens / elapsed, 1),
        "step ms": round(1e3 * mean_step(before, after), 2),
        "health": {"asked": len(latencies), "p50 ms": at(0.5), "p90 ms": at(0.9)}
        | {"p99 ms": at(0.99), "max ms": at(1)},
        "load average": os.getloadavg(),
    }
    print(json.dumps(report, indent=1))


def mean_step(before, after):
    """Returns the mean seconds of a step between two scrapes."""
    grown = lambda what: metric(after, what) - metric(before, what)
    name = "mini_infer_step_time_seconds"
    return grown(f"{name}_sum") / max(1, grown(f"{name}_count"))


def http_seconds(pid):
    """Returns how long the threads that do not compute have run."""
    nanoseconds = 0
    for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
        name = (thread / "comm").read_text().strip()
        if name != "engine" and not name.startswith("compute-"):
            nanoseconds += int((thread / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


def decode_steps(server, args, stream):
    """Returns the mean seconds of steps, of what lies between them and of HTTP's threads in one,
    while all decode, and the number of steps."""
    port = server.port
    connections = completions(port, args.tokens, stream)
    finished = 'mini_infer_finished_sequences_total{reason="length"}'
    num_finished = metric(get(port, "/metrics"), finished)
    while metric(before := get(port, "/metrics"), "mini_infer_running_sequences") < NUM_STREAMS:
        if metric(before, finished) > num_finished:
            sys.exit("the first ended before the last ran: give --tokens more")
        time.sleep(0.02)
    steps_before = metric(before, "mini_infer_steps_total")
    http_before = http_seconds(server.process.pid)
    scraped = {}

    def is_enough():
        # Taken while all of them still run.
        now = time.perf_counter()
        if "at" not in scraped or now > scraped["at"] + 0.5:
            text = get(port, "/metrics")
            if metric(text, "mini_infer_running_sequences") == NUM_STREAMS:
                scraped.update(at=now, text=text, http=http_seconds(server.process.pid))
            else:
                return True
        return False

    read_all(connections, is_enough)
    read_all(connections)
    after = scraped["text"]
    num_steps = metric(after, "mini_infer_steps_total") - steps_before
    grown = lambda phase: metric(after, phase_sum(phase)) - metric(before, phase_sum(phase))
    between = (grown("commands") + grown("delivery")) / num_steps
    http = (scraped["http"] - http_before) / num_steps
    return mean_step(before, after), between, http, num_steps


def phase_sum(phase):
    return f'mini_infer_step_phase_time_seconds_sum{{phase="{phase}"}}'


def measure_http(server, args):
    """Compares neighbours, of which the machine's drift of minutes changes both alike."""
    added, shares = [], []
    for round_number in range(args.rounds + 1):
        step = {}
        for stream in (True, False) if round_number % 2 == 0 else (False, True):
            step[stream], between, http, num_steps = decode_steps(server, args, stream)
            print(
                f"{'streamed' if stream else 'whole'}: step {1e3 * step[stream]:.2f} ms, between "
                f"steps {1e6 * between:.0f} us, HTTP {1e3 * http:.2f} ms, {num_steps:.0f} steps",
                flush=True,
            )
            # The first pair finds a server whose memory is new.
            if stream and round_number > 0:
                shares.append(100 * http / step[stream])
        if round_number > 0:
            added.append(100 * (step[True] / step[False] - 1))
    print(f"streaming to {NUM_STREAMS} clients adds {spread(added)} to a step")
    print(f"the threads for HTTP then run for {spread(shares)} of the step's time")


def spread(shares):
    """Says the median and the middle half of some percentages."""
    quarters = statistics.quantiles(shares, n=4) if len(shares) > 1 else shares * 3
    return (
        f"{statistics.median(shares):.2f} % (median of {len(shares)}, half of them from "
        f"{quarters[0]:.2f} to {quarters[2]:.2f})"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["health", "http"])
    parser.add_argument("model")
    parser.add_argument("--binary", default=ROOT / "target" / "release" / "mini-infer")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=10, help="pairs that count")
    parser.add_argument("--tokens", type=int, default=30)
    args = parser.parse_args()
    command = [args.binary, "serve", "--model", args.model, "--port", "{port}"]
    command += ["--max-num-seqs", NUM_STREAMS, "--max-num-batched-tokens", 512]
    command += ["--max-queue-len", 2 * NUM_STREAMS, "--max-model-len", 2048]
    if args.what == "http":
        # All prompts first, so that most steps are decodes of all.
        command += ["--target-itl-ms", 60_000]
    contender = Contender("mini-infer", list(map(str, command)), {})
    print(json.dumps(machine()))
    with open(os.devnull, "wb") as log, Server(contender, log) as server:
        {"health": measure_health, "http": measure_http}[args.what](server, args)


if __name__ == "__main__":
    main()
