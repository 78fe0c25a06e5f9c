"""Requests per second with one and two workers, next to a bare proxy: python -m benchmarks.load [--quick].

Many sessions are alive at once, each with its own open connection and its own texts. A session grows by one round per
request, is compacted when it reaches its trigger, and is replaced by a new one after ``LIFE`` requests. Sessions start
at different ages, so the load does not change over time. Every message is written to the store.

1. Cold start, once: a gateway without any data gets the first request of every session, and compacts the histories that
   are already too long. The store that results is the start of each later run, so all of them have the same sessions.
2. For each run: one request of every session, to fill the caches, and some seconds of load, to fill the write queue.
3. Peak: ``IN_FLIGHT`` requests are always open. The requests that are answered per second, and the writes that are
   queued at the start and at the end: a rate at which the queue grows could not last.
4. Half of the peak, after the write queue is empty: requests are sent at fixed times. The gateway's own time per
   request, from its log, so that delays of this process are not in it. The result has those delays as well.
5. The same peak with each worker bound to a processor of its own. Without that, one worker uses more than one
   processor, because its threads write and send while another one runs Python.
6. At the end once with twice as many sessions, through two workers.

Runs with one and two workers alternate; goals are compared with the median of all runs. Provider and clients are one
process with precomputed bytes, so that they take little of the processors. They share the machine with the workers all
the same: with w seconds of processor per request in a worker and g in this process, two cores serve at most 2 / (w + g)
requests per second, and one worker at most 1 / w, or more if its threads use a part of the second core. The result has
w, g and the processors that each server used, and those that other processes took. A run starts when the machine is
quiet, and is repeated if other processes took more than ``QUIET``; the less disturbed one counts. The whole takes about
ten minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import msgspec

from benchmarks.gateway import PATH, ROOT, free_port, quantile, rounds
from benchmarks.measurement import Row, row, save, show, spread
from benchmarks.upstream import Cheap

SESSIONS, MANY = 1_000, 2_000
"""Live sessions of the runs that are compared, and of the last one. One worker can cache the former."""
QUIET = 0.05
"""Share of the processors that other processes may take."""
QUIET_WAIT = 20.0
"""Seconds to wait until they take less, before a run."""
IN_FLIGHT = 192
"""Open requests, of whichever sessions come next. When a worker pauses for some milliseconds, they collect there; with
48, the other worker had none for 15 % of the time, although each session waits only for its own answer."""
COLD_IN_FLIGHT = 48
"""The same during the cold start, in which a quarter of the requests wait for a compaction."""
START, LIFE = 6, 110
"""Rounds before the first request of a session, and requests per session."""
LINES = 5
"""Lines of a tool result."""
WINDOW = 12_000
"""The context window: a session is compacted once in its life."""
KEY = "sk-benchmark-0123456789abcdef0123456789abcdef"


class Phases(msgspec.Struct, frozen=True):
    """Seconds of each phase, and how often each server is measured."""

    lead_in: float = 5
    peak: float = 12
    half: float = 8
    repeats: int = 3
    tries: int = 2
    """How often a run that other processes disturb is made."""


QUICK = Phases(lead_in=1, peak=3, half=3, repeats=1, tries=1)


class OwnTimes(msgspec.Struct):
    """The gateway's own seconds per request, for requests with the same outcome."""

    requests: int
    p50: float
    p99: float
    slowest: int
    """How many of them are among the slowest hundredth of all requests."""


class ColdStart(msgspec.Struct, kw_only=True):
    """The first requests of all sessions, through two workers without any data."""

    seconds: float
    """Until all of them were answered."""
    server_seconds: float
    """Processor time per request in all processes, with the writes that follow."""
    own: dict[str, OwnTimes]


class Measured(msgspec.Struct, kw_only=True):
    """One server under load."""

    server: str
    workers: int
    pinned: bool = False
    """Whether each worker was bound to a processor of its own."""
    requests_per_second: float
    queued: tuple[int, int] = (0, 0)
    """Writes in the queues at the start and at the end of the peak."""
    requests_per_write: float = 0
    """At the peak a write of a session contains several of its requests."""
    compacted: float
    """Share of requests that needed a compaction."""
    server_seconds: float
    """Processor time per request in all processes of the server; of a gateway at half of the peak, with all writes."""
    driver_seconds: float
    """Processor time per request in this process: clients and provider."""
    idle: float
    """Share of the processors that was idle."""
    cores: float = 0
    """Processors that the server used."""
    others: float = 0
    """Share of the processors that other processes used."""
    disturbed: int = 0
    """Earlier tries, which other processes disturbed more."""
    latency_p50: float
    latency_p99: float
    memory: int
    """Resident bytes of all processes of the server."""
    degraded: int = 0
    """Requests of the whole run that were served without the store, because it was too slow."""
    half_rate: float = 0
    own_p50: float = 0
    own_p99: float = 0
    """Seconds of the gateway's own time per request at half of the peak."""
    half_latency_p99: float = 0
    """Seconds until a client had its answer at half of the peak; includes delays of this process."""
    late_p99: float = 0
    """Seconds by which this process sent requests too late at half of the peak."""
    own: dict[str, OwnTimes] = {}
    """The same by outcome."""
    balance: float = 1
    """Requests of the least busy worker over those of the busiest."""


# --- request bodies ------------------------------------------------------------------------------------------------


class Bodies:
    """Requests of all sessions, made from one precomputed history: every message contains the name of its session."""

    TAG = b"@@@@@@@@@@@@"

    def __init__(self) -> None:
        items = [
            item.replace(b"src/part_", b"src/" + self.TAG + b"/part_").replace(
                b'"content": "0: ', b'"content": "0: ' + self.TAG
            )
            for item in rounds(START + LIFE, size=LINES)
        ]
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
        sizes = [len(self._first) + len(self.TAG) + len(self._rest) + len(one) for one in self._tails]
        head = (
            f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nauthorization: Bearer {KEY}"
        )
        self._heads = [f"{head}\r\ncontent-length: {size}\r\n\r\n".encode() + self._first for size in sizes]
        self.mean_bytes = statistics.mean(sizes[START:])

    def request(self, session: int, life: int, rounds: int) -> bytes:
        tag = b"%06d-%05d" % (session, life)
        tail = self._tails[rounds - 1].replace(self.TAG, tag)
        return b"".join((self._heads[rounds - 1], tag, self._rest, tail))


# --- clients -------------------------------------------------------------------------------------------------------


class Client(asyncio.Protocol):
    """One session and its connection, which is opened again when the server closed it."""

    def __init__(
        self, number: int, bodies: Bodies, port: int, done: Callable[[Client, bool], None], *, life: int, sent: int
    ) -> None:
        self.number, self.bodies, self.port, self.done = number, bodies, port, done
        self.life, self.rounds = life, START + number % LIFE + sent
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
            if head.startswith(b"http/1.1 408"):  # the server closes a connection without requests; it is opened again
                return
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
    """Sends requests of many sessions and counts the answers.

    ``life`` tells sessions in the same store apart, and ``sent`` is how many requests of each were sent before.
    """

    def __init__(self, sessions: int, *, life: int, sent: int) -> None:
        self._bodies = Bodies()
        self._life, self._sent = life, sent
        self._clients: deque[Client] = deque()
        self._sessions = sessions
        self.answers = self.compacted = 0
        self.latencies: list[float] = []
        self.late: list[float] = []
        """Seconds by which paced requests were sent too late."""
        self._goes_on = False
        self.open = self.port = 0

    async def connect(self, port: int) -> None:
        self.port = port
        for number in range(self._sessions):
            client = Client(number, self._bodies, port, self._done, life=self._life, sent=self._sent)
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

    async def saturate(self, seconds: float, *, in_flight: int = IN_FLIGHT) -> None:
        """Keep requests open all the time."""
        self._reset()
        self._goes_on = True
        while self.open < min(in_flight, self._sessions):
            self._next()
        await asyncio.sleep(seconds)
        self._goes_on = False

    async def warm_up(self, *, in_flight: int = IN_FLIGHT) -> None:
        """Send a request of every session."""
        end = time.monotonic() + 300
        await self.saturate(0, in_flight=in_flight)
        self._goes_on = True
        while self.answers + self.open < self._sessions:
            if time.monotonic() > end:
                raise RuntimeError(f"only {self.answers} requests were answered")
            await asyncio.sleep(0.001)
        self._goes_on = False
        await self.settle()

    async def pace(self, rate: float, seconds: float) -> None:
        """Send at fixed times, whether or not earlier requests were answered."""
        self._reset()
        began = time.perf_counter()
        sent = 0
        while (now := time.perf_counter() - began) < seconds:
            while sent < now * rate and self._clients:
                self.late.append(time.perf_counter() - began - sent / rate)
                self._next()
                sent += 1
            await asyncio.sleep(0.001)

    def _reset(self) -> None:
        self.answers = self.compacted = 0
        self.latencies, self.late = [], []

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
def server(
    kind: str, workers: int, target: int, folder: Path, store: str, *, patience: float
) -> Generator[tuple[int, int, Path]]:
    """Run a server that waits ``patience`` seconds for its store; yield its port, its process id and its log."""
    port = free_port()
    log = folder / "log"
    if kind == "gateway":
        command = [sys.executable, "-m", "kompakt", "serve", "--port", str(port), "--workers", str(workers)]
        command += ["--store", store, "--upstream", f"openai=http://127.0.0.1:{target}", "--log-json"]
        command += ["--context-window", str(WINDOW)]
    else:
        code = f"import uvicorn; from benchmarks.passthrough import passing; app = passing('http://127.0.0.1:{target}')"
        code += f"\nuvicorn.run(app, port={port}, log_level='critical', timeout_keep_alive=75)"
        command = [sys.executable, "-c", code]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    environ["KOMPAKT_STORE_TIMEOUT"] = str(patience)
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


def _pin(processes: list[int]) -> None:
    """Bind each process, with all its threads, to a processor of its own."""
    for number, pid in enumerate(processes):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {number % (os.cpu_count() or 1)})


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _idle() -> float:
    """Return the seconds that the processors were idle."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")


async def _queue(port: int) -> tuple[int, int]:
    """Return how many writes are queued in all workers, and how many were made so far."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("kompakt_"))
    return int(float(found["kompakt_queued_writes"])), int(float(found["kompakt_background_writes_total"]))


async def _until_quiet() -> None:
    """Wait until other processes leave the processors alone, for at most ``QUIET_WAIT`` seconds."""
    end = time.monotonic() + QUIET_WAIT
    while time.monotonic() < end:
        idle, began = _idle(), time.perf_counter()
        await asyncio.sleep(2)
        if (_idle() - idle) / (time.perf_counter() - began) / (os.cpu_count() or 1) >= 1 - QUIET:
            return


async def _until_idle(processes: list[int]) -> None:
    """Wait until the server has nothing to do, for at most 30 seconds."""
    end = time.monotonic() + 30
    used = sum(map(_cpu, processes))
    while time.monotonic() < end:
        await asyncio.sleep(0.5)
        before, used = used, sum(map(_cpu, processes))
        if used - before < 0.05:
            return


class Bench:
    """Servers under load, with the same sessions."""

    def __init__(self, folder: Path, sessions: int, phases: Phases, store: str | None) -> None:
        self._folder, self._sessions, self._phases, self._store = folder, sessions, phases, store
        self._template = folder / "template.db"
        self._life = self._copies = 0

    async def start_cold(self, sessions: int) -> ColdStart:
        """Send the first request of every session to a gateway without data."""
        self._life += 1_000
        url = self._store or f"sqlite:///{self._template}"
        async with self._driven("gateway", 2, url, sessions, sent=0, patience=60) as (driver, pid, log):
            processes, began = _processes(pid), time.perf_counter()
            used = sum(map(_cpu, processes))
            await driver.warm_up(in_flight=COLD_IN_FLIGHT)
            seconds = time.perf_counter() - began
            await _until_idle(processes)
            used = sum(map(_cpu, processes)) - used
            own = _by_outcome(_logged(log, 0))
        return ColdStart(seconds=seconds, server_seconds=used / sessions, own=own)

    async def measure(self, kind: str, workers: int, *, sessions: int | None = None, pinned: bool = False) -> Measured:
        """Measure a server when the machine is quiet; repeat it if other processes disturb it."""
        found: list[Measured] = []
        while not found or (found[-1].others > QUIET and len(found) < self._phases.tries):
            if self._phases.tries > 1:
                await _until_quiet()
            found.append(await self._measure(kind, workers, sessions or self._sessions, pinned=pinned))
        best = min(found, key=lambda one: one.others)
        best.disturbed = len(found) - 1
        print(msgspec.json.encode(best).decode(), flush=True)
        return best

    async def _measure(self, kind: str, workers: int, sessions: int, *, pinned: bool) -> Measured:
        phases = self._phases
        url = self._store
        if url is not None and kind == "gateway":
            await self.start_cold(sessions)  # sessions that this store does not have yet
        if url is None:
            url = f"sqlite:///{self._copy()}"
        async with self._driven(kind, workers, url, sessions, sent=1) as (driver, pid, log):
            processes, is_gateway = _processes(pid), kind == "gateway"
            if pinned:
                _pin(processes[-workers:])
            await driver.warm_up()
            await _until_idle(processes)  # also the labels of all sessions are written now
            await driver.saturate(phases.lead_in)
            queued, written = await _queue(driver.port) if is_gateway else (0, 0)
            used, own, idle, began = sum(map(_cpu, processes)), time.process_time(), _idle(), time.perf_counter()
            await driver.saturate(phases.peak)
            took = time.perf_counter() - began
            answers, latencies = driver.answers, driver.latencies
            server, driven = sum(map(_cpu, processes)) - used, time.process_time() - own
            cores, idle = server / took, (_idle() - idle) / took / (os.cpu_count() or 1)
            left, wrote = await _queue(driver.port) if is_gateway else (0, 0)
            found = Measured(
                server=kind,
                workers=workers,
                pinned=pinned,
                requests_per_second=answers / took,
                queued=(queued, left),
                requests_per_write=answers / max(1, wrote - written),
                compacted=driver.compacted / max(1, answers),
                server_seconds=server / answers,
                driver_seconds=driven / answers,
                idle=idle,
                cores=cores,
                others=max(0.0, 1 - idle - (cores + driven / took) / (os.cpu_count() or 1)),
                latency_p50=quantile(latencies, 0.5),
                latency_p99=quantile(latencies, 0.99),
                memory=sum(map(_memory, processes)),
            )
            await driver.settle()
            await _until_idle(processes)
            if is_gateway and not pinned:
                start, used = log.stat().st_size, sum(map(_cpu, processes))
                found.half_rate = found.requests_per_second / 2
                await driver.pace(found.half_rate, phases.half)
                await driver.settle()
                found.half_latency_p99, found.late_p99 = quantile(driver.latencies, 0.99), quantile(driver.late, 0.99)
                await asyncio.sleep(0.2)
                read = _logged(log, start)
                await _until_idle(processes)
                found.server_seconds = (sum(map(_cpu, processes)) - used) / len(read)
                times = [one["overhead_ms"] / 1_000 for one in read]
                found.own_p50, found.own_p99, found.own = quantile(times, 0.5), quantile(times, 0.99), _by_outcome(read)
                shares = [sum(one.get("worker", 1) == number for one in read) for number in range(1, workers + 1)]
                found.balance = min(shares) / max(shares)
                found.degraded = sum("degraded" in one for one in _logged(log, 0))
        return found

    def _copy(self) -> Path:
        """Copy the store of the cold start, also what is still in its write-ahead log."""
        for earlier in self._folder.glob("sessions-*"):
            earlier.unlink()
        self._copies += 1
        made = self._folder / f"sessions-{self._copies}.db"
        with closing(sqlite3.connect(self._template)) as template, closing(sqlite3.connect(made)) as copy:
            template.backup(copy)
        return made

    @asynccontextmanager
    async def _driven(
        self, kind: str, workers: int, url: str, sessions: int, *, sent: int, patience: float = 3
    ) -> AsyncGenerator[tuple[Driver, int, Path]]:
        """Run a provider, a server and its clients; yield the clients, the process id of the server and its log."""
        upstream = await asyncio.get_running_loop().create_server(Cheap, "127.0.0.1", 0, backlog=2_048)
        driver = Driver(sessions, life=self._life, sent=sent)
        target = upstream.sockets[0].getsockname()[1]
        with server(kind, workers, target, self._folder, url, patience=patience) as (port, pid, log):
            await _until_ready(port, log)
            await driver.connect(port)
            yield driver, pid, log
            driver.close()
        upstream.close()


def _logged(log: Path, start: int) -> list[dict[str, Any]]:
    """Read the requests that were logged after the first ``start`` bytes."""
    with log.open("rb") as lines:
        lines.seek(start)
        read = [json.loads(line) for line in lines if line.startswith(b"{")]
    return [one for one in read if one.get("route") == "chat"]


def _by_outcome(read: list[dict[str, Any]]) -> dict[str, OwnTimes]:
    slow = quantile([one["overhead_ms"] for one in read], 0.99)
    found: dict[str, OwnTimes] = {}
    for outcome in sorted({str(one["outcome"]) for one in read}):
        times = [one["overhead_ms"] for one in read if one["outcome"] == outcome]
        slowest = sum(time > slow for time in times)
        found[outcome] = OwnTimes(len(times), quantile(times, 0.5) / 1_000, quantile(times, 0.99) / 1_000, slowest)
    return found


# --- results -------------------------------------------------------------------------------------------------------


def _runs(found: list[Measured], kind: str, workers: int, *, pinned: bool = False) -> list[Measured]:
    return [one for one in found if (one.server, one.workers, one.pinned) == (kind, workers, pinned)]


def rows_of(found: list[Measured], many: Measured, cold: ColdStart) -> list[Row]:
    one, two, bare = (_runs(found, *kind) for kind in (("gateway", 1), ("gateway", 2), ("bare", 1)))
    alone, both = _runs(found, "gateway", 1, pinned=True), _runs(found, "gateway", 2, pinned=True)
    pairs = list(zip(one, two, strict=True))

    def rate(runs: list[Measured], name: str, **more: Any) -> Row:
        rates = spread(run.requests_per_second for run in runs)
        return row(f"requests per second, {name}", rates, "/s", **more)

    def own(runs: list[Measured], what: str, name: str, **more: Any) -> Row:
        times = spread(1_000 * (run.own_p50 if what == "median" else run.own_p99) for run in runs)
        return row(f"own time at half of the peak, {what}, {name}", times, "ms", **more)

    def over(first: list[Measured], second: list[Measured], name: str) -> Row:
        ratios = spread(b.requests_per_second / a.requests_per_second for a, b in zip(first, second, strict=True))
        return row(name, ratios, "x", at_least=1.7, note=_possible(first, second))

    rows = [
        rate(one, "one worker", note=_cost(one)),
        rate(two, "two workers", note=_cost(two)),
        rate(bare, "bare proxy, one process", peer=True),
        over(one, two, "two workers over one"),
        rate(alone, "one worker on one processor", note=_cost(alone)),
        rate(both, "two workers, one processor each", note=_cost(both)),
        over(alone, both, "two workers over one, one processor each"),
        row(
            "requests per second and processor, two workers over one",
            spread((b.requests_per_second / b.cores) / (a.requests_per_second / a.cores) for a, b in pairs),
            "x",
        ),
        own(two, "median", "two workers"),
        own(two, "99 of 100", "two workers", at_most=25, note=_tail(two)),
        own(one, "99 of 100", "one worker", at_most=25, note=_tail(one)),
        row(
            "latency at half of the peak as clients see it, 99 of 100, two workers",
            spread(1_000 * run.half_latency_p99 for run in two),
            "ms",
            note=f"clients sent up to {1_000 * max(run.late_p99 for run in two):.1f} ms late",
        ),
        Row(name="requests per second, two workers, twice the sessions", value=many.requests_per_second, unit="/s"),
        Row(
            name="own time at half of the peak, 99 of 100, two workers, twice the sessions",
            value=1_000 * many.own_p99,
            unit="ms",
            at_most=25,
            note=_tail([many]),
        ),
        row("memory of a worker", spread(run.memory / 1e6 for run in one), "MB"),
        row("memory of two workers and their supervisor", spread(run.memory / 1e6 for run in two), "MB"),
        Row(name="cold start, processor time of a session", value=1_000 * cold.server_seconds, unit="ms"),
    ]
    compacted = cold.own.get("compacted")
    if compacted is not None:
        name = "cold start, own time of a history that is compacted first, median"
        rows.append(Row(name=name, value=1_000 * compacted.p50, unit="ms"))
    return rows


def _cost(runs: list[Measured]) -> str:
    """Say what a request costs at the peak, and whether the queue of writes grew meanwhile."""
    cost, driver = (1_000 * statistics.median(found) for found in ([_at_peak(run) for run in runs], _driver(runs)))
    start, end = (round(statistics.median(run.queued[at] for run in runs)) for at in (0, 1))
    per_write = statistics.median(run.requests_per_write for run in runs)
    return (
        f"{cost:.2f} ms of processor per request, {driver:.2f} in clients and provider; "
        f"{start} queued writes at the start, {end} at the end, {per_write:.1f} requests in a write"
    )


def _possible(one: list[Measured], two: list[Measured]) -> str:
    """Say how many times the requests two workers could serve if no processor was ever idle."""
    count = os.cpu_count() or 1
    most = statistics.median(
        count / (_at_peak(b) + b.driver_seconds) / a.requests_per_second for a, b in zip(one, two, strict=True)
    )
    used, used_by_two = (statistics.median(run.cores for run in runs) for runs in (one, two))
    return (
        f"at most {most:.2f} with {count} processors; one worker used {used:.2f} of them, two {used_by_two:.2f}, "
        f"{_busiest([*one, *two])}"
    )


def _at_peak(run: Measured) -> float:
    """Return the processor time per request at the peak."""
    return run.cores / run.requests_per_second


def _driver(runs: list[Measured]) -> list[float]:
    return [run.driver_seconds for run in runs]


def _busiest(runs: list[Measured]) -> str:
    """Say how much other processes took."""
    most = max(run.others for run in runs)
    warning = "" if most <= QUIET else ": too much, repeat it on a quiet machine"
    return f"other processes up to {most:.0%}{warning}"


def _tail(runs: list[Measured]) -> str:
    """Say which requests are the slowest hundredth."""
    slow = Counter[str]()
    for run in runs:
        slow.update({outcome: own.slowest for outcome, own in run.own.items()})
    return "slowest: " + ", ".join(f"{number} {outcome}" for outcome, number in slow.most_common() if number)


def main(arguments: list[str]) -> int:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(prog="benchmarks.load", description="Load one and two workers.")
    parser.add_argument("--quick", action="store_true", help="a few seconds, fewer sessions; writes no result")
    parser.add_argument("--store", help="store of the gateway; default: a new SQLite file per run")
    parser.add_argument("--sessions", type=int, help=f"live sessions; default: {SESSIONS:,}, {MANY:,} in the last run")
    parser.add_argument("--repeats", type=int, help=f"runs of each server; default: {Phases().repeats}")
    given = parser.parse_args(arguments)
    phases, sessions = (QUICK, 200) if given.quick else (Phases(), SESSIONS)
    sessions, repeats = given.sessions or sessions, given.repeats or phases.repeats
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    loops = import_module("uvloop").new_event_loop
    with tempfile.TemporaryDirectory() as name, asyncio.Runner(loop_factory=loops) as runner:
        gc.freeze()
        gc.disable()  # a collection would delay requests
        bench = Bench(Path(name), sessions, phases, given.store)
        cold, found, many = runner.run(_all(bench, sessions, repeats))
    rows = rows_of(found, many, cold)
    show("load", rows)
    if not given.quick:
        setting = {"sessions": sessions, "many_sessions": sessions * MANY // SESSIONS, "in_flight": IN_FLIGHT}
        setting["mean_body_bytes"] = round(Bodies().mean_bytes)
        runs = [msgspec.to_builtins(one) for one in found]
        more = {"many": msgspec.to_builtins(many), "cold_start": msgspec.to_builtins(cold)}
        save("load", rows, setting=setting, runs=runs, **more)
    return 1 if any(one.verdict == "MISSED" for one in rows) else 0


async def _all(bench: Bench, sessions: int, repeats: int) -> tuple[ColdStart, list[Measured], Measured]:
    """Measure the cold start, each server in turn, in alternating order, and twice as many sessions."""
    cold = await bench.start_cold(sessions * MANY // SESSIONS)
    print(msgspec.json.encode(cold).decode(), flush=True)
    found: list[Measured] = []
    for repeat in range(repeats):
        for workers in (1, 2) if repeat % 2 == 0 else (2, 1):
            found += [await bench.measure("gateway", workers, pinned=pinned) for pinned in (False, True)]
        if not repeat:
            found.append(await bench.measure("bare", 1))
    return cold, found, await bench.measure("gateway", 2, sessions=sessions * MANY // SESSIONS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
