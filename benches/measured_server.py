"""A server that is measured: started for a round, ended after it; and the machine it ran on.

Needs only the Python standard library.
"""

import dataclasses
import hashlib
import http.client
import os
import pathlib
import platform
import re
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
STARTUP_TIMEOUT_S = 900  # vLLM compiles its kernels at every start

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
class Contender:
    """A server to measure; `command` has {port} where the port goes."""

    name: str
    command: list
    request_fields: dict
    environment: dict = dataclasses.field(default_factory=dict)


class Server:
    """A running server: started on entry once it is ready, ended on exit."""

    def __init__(self, contender, log):
        self.contender = contender
        self.log = log
        self.port = free_port()

    def __enter__(self):
        command = [part.format(port=self.port) for part in self.contender.command]
        started = time.perf_counter()
        self.process = subprocess.Popen(
            command,
            stdout=self.log,
            stderr=self.log,
            env={**os.environ, **self.contender.environment},
        )
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
        """Returns resident memory with that of child processes, or None where nothing says."""
        return self._sum_mib("VmRSS")

    def peak_mib(self):
        """Returns the sum of the processes' largest resident memory so far, or None."""
        return self._sum_mib("VmHWM")

    def _sum_mib(self, field):
        try:
            return sum(status_kib(pid, field) for pid in process_tree(self.process.pid)) // 1024
        except OSError:
            return None


def process_tree(root):
    """Returns a process and all below it."""
    pids = [root]
    for pid in pids:
        for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
            pids += map(int, (thread / "children").read_text().split())
    return pids


def status_kib(pid, field):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", status)[1])


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


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
