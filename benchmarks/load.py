"""Requests per second with one and two workers, next to a bare proxy: python -m benchmarks.load [--quick].

Many sessions are alive at once, each with its own open connection. A session grows by one round per request, is
compacted when it reaches its trigger, and is replaced by a new one after ``LIFE`` requests. Sessions start at different
ages, so the load does not change over time. Every message is written to the store.

1. Peak: ``IN_FLIGHT`` requests are always open. The requests that are answered per second.
2. Half of the peak: requests are sent at fixed times. The gateway's own time per request, from its log.

Provider and clients are one process with precomputed bytes, so that they take little of the processors. They share the
machine with the workers all the same: with w seconds of processor per request in a worker and g in this process, two
cores serve at most 2 / (w + g) requests per second, and one worker at most 1 / w. The result has w and g.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import cast

import msgspec

from benchmarks.gateway import PATH, ROOT, free_port, quantile, rounds
from benchmarks.measurement import Row, save, show
from benchmarks.upstream import Cheap

SESSIONS = 2_000
IN_FLIGHT = 48
START, LIFE = 6, 110
"""Rounds before the first request of a session, and requests per session."""
LINES = 5
"""Lines of a tool result."""
WINDOW = 12_000
"""The context window: a session is compacted once in its life."""
KEY = "sk-benchmark-0123456789abcdef0123456789abcdef"


class Phases(msgspec.Struct, frozen=True):
    """Seconds of each phase, and how often each server is measured."""

    peak: float = 12
    half: float = 15
    repeats: int = 2


QUICK = Phases(peak=3, half=3, repeats=1)


class Measured(msgspec.Struct, kw_only=True):
    """One server under load."""

    server: str
    workers: int
    requests_per_second: float
    compacted: float
    """Share of requests that needed a compaction."""
    server_seconds: float
    """Processor time per request in all processes of the server."""
    driver_seconds: float
    """Processor time per request in this process: clients and provider."""
    idle: float
    """Share of the processors that was idle."""
    latency_p50: float
    latency_p99: float
    memory: int
    """Resident bytes of all processes of the server."""
    half_rate: float = 0
    own_p50: float = 0
    own_p99: float = 0
    """Seconds of the gateway's own time per request at half of the peak."""
    balance: float = 1
    """Requests of the least busy worker over those of the busiest."""


# --- request bodies ------------------------------------------------------------------------------------------------


class Bodies:
    """Requests of all sessions, made from one precomputed history: a session differs from others in its first words."""

    TAG = 12

    def __init__(self) -> None:
        items = rounds(START + LIFE, size=LINES)
        pairs = [items[at] + b"," + items[at + 1] for at in range(0, len(items), 2)]
        self._tails: list[bytes] = []
        tail = b""
        for pair in pairs:
            tail += b"," + pair
            self._tails.append(tail + b"]}")
        self._first = (
            b'{"model":"test-model","max_completion_tokens":500,"messages":[{"role":"user","content":"Session '
        )
        self._rest = b': find out why the queue stalls. Never touch the migrations folder."}'
        sizes = [len(self._first) + self.TAG + len(self._rest) + len(one) for one in self._tails]
        head = (
            f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nauthorization: Bearer {KEY}"
        )
        self._heads = [f"{head}\r\ncontent-length: {size}\r\n\r\n".encode() + self._first for size in sizes]
        self.mean_bytes = statistics.mean(sizes[START:])

    def request(self, session: int, life: int, rounds: int) -> bytes:
        tag = b"%06d-%05d" % (session, life)
        return b"".join((self._heads[rounds - 1], tag, self._rest, self._tails[rounds - 1]))


# --- clients -------------------------------------------------------------------------------------------------------


class Client(asyncio.Protocol):
    """One session and its connection, which is opened again when the server closed it."""

    def __init__(self, number: int, bodies: Bodies, port: int, done: Callable[[Client, bool], None]) -> None:
        self.number, self.bodies, self.port, self.done = number, bodies, port, done
        self.life, self.rounds = 0, START + number % LIFE
        self.began = 0.0
        self.transport: asyncio.Transport | None = None
        self._body = b""
        """The request that waits for its answer."""
        self._head, self._left = b"", -1
        self._is_compacted = False
        self._opening: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", self.port)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._head, self._left = b"", -1
        if self._body:
            self.transport.write(self._body)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.transport = None
        if self._body:
            self._opening = asyncio.get_running_loop().create_task(self.connect())

    def send(self) -> None:
        if self.rounds >= START + LIFE:
            self.life, self.rounds = self.life + 1, START
        self.rounds += 1
        self.began = time.perf_counter()
        self._body = self.bodies.request(self.number, self.life, self.rounds)
        if self.transport is None:
            self._opening = asyncio.get_running_loop().create_task(self.connect())
        elif not self.transport.is_closing():  # else it is sent when the connection is open again
            self.transport.write(self._body)

    def close(self) -> None:
        self._body = b""
        if self.transport is not None:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if not self._body:  # the server closes an idle connection
            return
        if self._left < 0:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            head, data, self._head = self._head[:end].lower(), self._head[end + 4 :], b""
            if not head.startswith(b"http/1.1 200"):
                raise RuntimeError(f"{head[:200]!r} {data[:300]!r}")
            self._is_compacted = b"x-kompakt-compaction" in head
            length = head.find(b"content-length:")
            self._left = int(head[length + 15 :].split(b"\r\n", 1)[0]) if length >= 0 else 1 << 40
        self._left -= len(data)
        if self._left <= 0 or (self._left > 1 << 39 and data.endswith(b"0\r\n\r\n")):
            self._left, self._body = -1, b""
            self.done(self, self._is_compacted)


class Driver:
    """Sends requests of many sessions and counts the answers."""

    def __init__(self, sessions: int) -> None:
        self._bodies = Bodies()
        self._clients: deque[Client] = deque()
        self._sessions = sessions
        self.answers = self.compacted = 0
        self.latencies: list[float] = []
        self._goes_on = False
        self.open = 0

    async def connect(self, port: int) -> None:
        for number in range(self._sessions):
            client = Client(number, self._bodies, port, self._done)
            await client.connect()
            self._clients.append(client)

    def _done(self, client: Client, is_compacted: bool) -> None:
        self.answers += 1
        self.compacted += is_compacted
        self.latencies.append(time.perf_counter() - client.began)
        self.open -= 1
        self._clients.append(client)
        if self._goes_on:
            self._next()

    def _next(self) -> None:
        self.open += 1
        self._clients.popleft().send()

    async def saturate(self, seconds: float) -> None:
        """Keep requests open all the time."""
        self._reset()
        self._goes_on = True
        while self.open < min(IN_FLIGHT, self._sessions):
            self._next()
        await asyncio.sleep(seconds)
        self._goes_on = False

    async def warm_up(self) -> None:
        """Send a request of every session: some are so long that the first one is compacted."""
        end = time.monotonic() + 300
        await self.saturate(0)
        self._goes_on = True
        while self.answers < self._sessions:
            if time.monotonic() > end:
                raise RuntimeError(f"only {self.answers} requests were answered")
            await asyncio.sleep(0.01)

    async def pace(self, rate: float, seconds: float) -> None:
        """Send at fixed times, whether or not earlier requests were answered."""
        self._reset()
        began = time.perf_counter()
        sent = 0
        while (now := time.perf_counter() - began) < seconds:
            while sent < now * rate and self._clients:
                self._next()
                sent += 1
            await asyncio.sleep(0.001)

    def _reset(self) -> None:
        self.answers = self.compacted = 0
        self.latencies = []

    async def settle(self) -> None:
        """Wait until every request was answered."""
        end = time.monotonic() + 60
        while self.open:
            if time.monotonic() > end:
                raise RuntimeError(f"{self.open} requests were not answered")
            await asyncio.sleep(0.01)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()


# --- servers -------------------------------------------------------------------------------------------------------


@contextmanager
def server(kind: str, workers: int, target: int, folder: Path, store: str | None) -> Generator[tuple[int, int, Path]]:
    """Run a server; yield its port, its process id and its log."""
    port = free_port()
    folder.mkdir()
    log = folder / "log"
    if kind == "gateway":
        url = store or f"sqlite:///{folder / 'load.db'}"
        command = [sys.executable, "-m", "kompakt", "serve", "--port", str(port), "--workers", str(workers)]
        command += ["--store", url, "--upstream", f"openai=http://127.0.0.1:{target}", "--log-json"]
        command += ["--context-window", str(WINDOW)]
    else:
        code = f"import uvicorn; from benchmarks.passthrough import passing; app = passing('http://127.0.0.1:{target}')"
        code += f"\nuvicorn.run(app, port={port}, log_level='critical', timeout_keep_alive=75)"
        command = [sys.executable, "-c", code]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    with log.open("wb") as out:
        running = subprocess.Popen(command, cwd=folder, env=environ, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield port, running.pid, log
    finally:
        running.terminate()
        try:
            running.wait(60)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait(10)


async def _until_ready(port: int, log: Path) -> None:
    end = time.monotonic() + 90
    while time.monotonic() < end:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
            answer = await reader.read(100)
            writer.close()
            if answer:
                return
        except OSError:
            await asyncio.sleep(0.05)
    raise RuntimeError(f"did not start: {log.read_text()[-500:]}")


def _processes(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _idle() -> float:
    """Return the seconds that the processors were idle."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")


async def measure(kind: str, workers: int, sessions: int, phases: Phases, folder: Path, store: str | None) -> Measured:
    loop = asyncio.get_running_loop()
    upstream = await loop.create_server(Cheap, "127.0.0.1", 0, backlog=2_048)
    driver = Driver(sessions)
    with server(kind, workers, upstream.sockets[0].getsockname()[1], folder, store) as (port, pid, log):
        await _until_ready(port, log)
        await driver.connect(port)
        await driver.warm_up()
        processes = _processes(pid)
        used, own, idle, began = sum(map(_cpu, processes)), time.process_time(), _idle(), time.perf_counter()
        await driver.saturate(phases.peak)
        took = time.perf_counter() - began
        answers, latencies = driver.answers, driver.latencies
        found = Measured(
            server=kind,
            workers=workers,
            requests_per_second=answers / took,
            compacted=driver.compacted / max(1, answers),
            server_seconds=(sum(map(_cpu, processes)) - used) / answers,
            driver_seconds=(time.process_time() - own) / answers,
            idle=(_idle() - idle) / took / (os.cpu_count() or 1),
            latency_p50=quantile(latencies, 0.5),
            latency_p99=quantile(latencies, 0.99),
            memory=sum(map(_memory, processes)),
        )
        await driver.settle()
        start = log.stat().st_size
        found.half_rate = found.requests_per_second / 2
        await driver.pace(found.half_rate, phases.half)
        await driver.settle()
        await asyncio.sleep(0.2)
        with log.open("rb") as lines:
            lines.seek(start)
            read = [json.loads(line) for line in lines if line.startswith(b"{")]
        own_times = [one["overhead_ms"] / 1_000 for one in read if one.get("route") == "chat"]
        if own_times:
            found.own_p50, found.own_p99 = quantile(own_times, 0.5), quantile(own_times, 0.99)
            shares = [sum(one.get("worker", 1) == number for one in read) for number in range(1, workers + 1)]
            found.balance = min(shares) / max(shares)
        driver.close()
    upstream.close()
    return found


# --- results -------------------------------------------------------------------------------------------------------


def _best(found: list[Measured], kind: str, workers: int) -> Measured:
    """Return the run with the median rate; the upper one of two."""
    runs = sorted(
        (one for one in found if (one.server, one.workers) == (kind, workers)), key=lambda one: one.requests_per_second
    )
    return runs[len(runs) // 2]


def rows_of(found: list[Measured]) -> list[Row]:
    one, two, bare = _best(found, "gateway", 1), _best(found, "gateway", 2), _best(found, "bare", 1)
    ratios = [
        b.requests_per_second / a.requests_per_second
        for a, b in zip(
            [run for run in found if (run.server, run.workers) == ("gateway", 1)],
            [run for run in found if (run.server, run.workers) == ("gateway", 2)],
            strict=True,
        )
    ]
    ratio = statistics.median(ratios)
    cost = (
        f"{1_000 * one.server_seconds:.2f} ms of processor per request, {1_000 * one.driver_seconds:.2f} in the driver"
    )
    return [
        Row(name="requests per second, one worker", value=one.requests_per_second, unit="/s", note=cost),
        Row(name="requests per second, two workers", value=two.requests_per_second, unit="/s"),
        Row(name="requests per second, bare proxy, one process", value=bare.requests_per_second, unit="/s", peer=True),
        Row(
            name="two workers over one",
            value=ratio,
            unit="x",
            at_least=1.7,
            low=min(ratios),
            high=max(ratios),
            note=f"at most {2 * one.server_seconds / (one.server_seconds + one.driver_seconds):.2f} with two cores",
        ),
        Row(name="own time at half of the peak, median, two workers", value=1_000 * two.own_p50, unit="ms"),
        Row(
            name="own time at half of the peak, 99 of 100, two workers",
            value=1_000 * two.own_p99,
            unit="ms",
            at_most=25,
        ),
        Row(
            name="own time at half of the peak, 99 of 100, one worker", value=1_000 * one.own_p99, unit="ms", at_most=25
        ),
        Row(name="memory of a worker", value=one.memory / 1e6, unit="MB"),
        Row(name="memory of two workers and their supervisor", value=two.memory / 1e6, unit="MB"),
    ]


def main(arguments: list[str]) -> int:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(prog="benchmarks.load", description="Load one and two workers.")
    parser.add_argument("--quick", action="store_true", help="a few seconds, fewer sessions; writes no result")
    parser.add_argument("--store", help="store of the gateway; default: a new SQLite file per run")
    parser.add_argument("--sessions", type=int, help=f"live sessions; default: {SESSIONS}")
    given = parser.parse_args(arguments)
    phases, sessions = (QUICK, 200) if given.quick else (Phases(), SESSIONS)
    sessions = given.sessions or sessions
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    found: list[Measured] = []
    loops = import_module("uvloop").new_event_loop
    with tempfile.TemporaryDirectory() as name, asyncio.Runner(loop_factory=loops) as runner:
        for repeat in range(phases.repeats):
            for kind, workers in (("bare", 1), ("gateway", 1), ("gateway", 2)):
                folder = Path(name) / f"{kind}-{workers}-{repeat}"
                one = runner.run(measure(kind, workers, sessions, phases, folder, given.store))
                print(msgspec.json.encode(one).decode(), flush=True)
                found.append(one)
    rows = rows_of(found)
    show("load", rows)
    if not given.quick:
        setting = {"sessions": sessions, "in_flight": IN_FLIGHT, "mean_body_bytes": round(Bodies().mean_bytes)}
        save("load", rows, setting=setting, runs=[msgspec.to_builtins(one) for one in found])
    return 1 if any(row.verdict == "MISSED" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
