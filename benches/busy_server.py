#!/usr/bin/env python3
"""Measures what a busy server's clients and supervisor feel: 1,000 connections, 256 of them streams.

`health` asks for /health on new connections, 20 times a second and from a process of its own,
while 256 completions stream and 744 connections idle.

`http` runs 256 completions that are streamed, then the same that are not, and compares the engine's
steps: what streaming to all of them adds to each. One is streamed in both, so that its events tell
when steps end; nobody reads the others'. What is added is some milliseconds, whatever the model,
and less than a machine may drift from one run to the next: a model of short steps shows it best,
such as the first layer of one (`first_layers.py`), in many short rounds. It also says how long the
threads for HTTP ran meanwhile, on Linux, which does not drift as much, but leaves out what they
push out of caches.

    cargo build --release
    python3 benches/busy_server.py health MODEL
    python3 benches/busy_server.py http MODEL --rounds 60 --tokens 24
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
# Tokens that all others get beyond those of the stream whose steps are timed.
WATCHED_LEAD = 40


def connect(port):
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def completions(port, max_tokens, stream, count=NUM_STREAMS):
    """Sends requests with a prompt of their own each, as good as at once; returns connections."""
    connections = [connect(port) for _ in range(count)]
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


def text_times(connection):
    """Yields when each server-sent event with text was read."""
    text = b""
    while part := connection.recv(1 << 16):
        at = time.perf_counter()
        text += part
        while b"\n\n" in text:
            event, _, text = text.partition(b"\n\n")
            if b'"finish_reason":null' in event:
                yield at


def decode_steps(server, args, stream):
    """Returns the seconds of steps in which all decode, as one stream sees them, and the mean
    seconds of what lies between steps and of HTTP's threads in one."""
    port = server.port
    # The one that is watched comes last and ends first.
    others = completions(port, args.tokens + WATCHED_LEAD, stream, NUM_STREAMS - 1)
    while metric(get(port, "/metrics"), "mini_infer_running_sequences") < NUM_STREAMS - 1:
        time.sleep(0.02)
    watched = connect(port)
    ask_for_completion(watched, NUM_STREAMS, args.tokens, True)
    times = []
    for at in text_times(watched):
        times.append(at)
        if len(times) == 1:
            before, http = get(port, "/metrics"), http_seconds(server.process.pid)
    http = http_seconds(server.process.pid) - http
    after = get(port, "/metrics")
    # The watched one has just ended when it is asked for the second time.
    num_running = [metric(text, "mini_infer_running_sequences") for text in (before, after)]
    if min(num_running) < NUM_STREAMS - 1:
        sys.exit(f"not all ran all the time, but {num_running} sequences")
    grown = lambda name: metric(after, name) - metric(before, name)
    num_steps = grown("mini_infer_steps_total")
    between = (grown(phase_sum("commands")) + grown(phase_sum("delivery"))) / num_steps
    for connection in [watched, *others]:
        connection.close()
    while metric(get(port, "/metrics"), "mini_infer_running_sequences") > 0:
        time.sleep(0.1)
    # The first is held up by what is asked for meanwhile.
    steps = [later - at for at, later in zip(times[1:], times[2:])]
    return steps, between, http / (len(times) - 1)


def phase_sum(phase):
    return f'mini_infer_step_phase_time_seconds_sum{{phase="{phase}"}}'


def measure_http(server, args):
    """Compares neighbours, of which the machine's drift of minutes changes both alike, and all
    steps of either kind."""
    added, shares, all_steps = [], [], {True: [], False: []}
    for round_number in range(args.rounds + 1):
        step = {}
        for stream in (True, False) if round_number % 2 == 0 else (False, True):
            steps, between, http = decode_steps(server, args, stream)
            step[stream] = statistics.quantiles(steps, n=4)[0]
            print(
                f"{'streamed' if stream else 'whole'}: step {1e3 * step[stream]:.2f} ms (lower "
                f"quarter of {len(steps)}, median {1e3 * statistics.median(steps):.2f}), between "
                f"steps {1e6 * between:.0f} us, HTTP {1e3 * http:.2f} ms",
                flush=True,
            )
            # The first pair finds a server whose memory is new.
            if round_number > 0:
                all_steps[stream] += steps
            if stream and round_number > 0:
                shares.append(100 * http / step[stream])
        if round_number > 0:
            added.append(100 * (step[True] / step[False] - 1))
    print(f"streaming to {NUM_STREAMS} clients adds {spread(added)} to a step")
    quarters = {stream: statistics.quantiles(steps, n=4) for stream, steps in all_steps.items()}
    for name, i in (("lower quarter", 0), ("median", 1)):
        streamed, whole = (1e3 * quarters[stream][i] for stream in (True, False))
        share = 100 * (streamed / whole - 1)
        print(f"{name} of all: {streamed:.2f} for {whole:.2f} ms, {share:+.2f} %")
    print(f"the threads for HTTP run for {spread(shares)} of a streamed step")


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
