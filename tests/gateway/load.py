"""Many concurrent sessions through one gateway, for load and leak tests.

The upstream answers at once. Each session grows by one round per request, is compacted when it reaches the trigger, and
is replaced by a new session after ``LIFE`` requests. Sessions start at different ages, so the load is stationary: after
every ``LIFE`` requests of each session the gateway has the same number of sessions of each size as before.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
from tests.gateway.gateway_server import ROOT, Replica, free_port, replica
from tests.gateway.measured_gateway import ADDRESS, blocks_of
from tests.gateway.payloads import FILLER, HEADERS, PATHS, history, one_round
from tests.gateway.upstreams import wait_for

SESSIONS = 200
PAUSE = 1.5
"""Seconds between the answer and the next request of a session, as if a model answered and tools ran."""
START, LIFE = 4, 8
"""Rounds before the first request of a session, and requests per session."""
SIZE, WINDOW = 50, 8_000
"""Lines of a tool result (about 800 tokens), and the context window: it has room for nine rounds."""


@dataclass
class Load:
    """Measurements of one load run."""

    seconds: float = 0
    requests: int = 0
    failures: list[str] = field(default_factory=list)
    compactions: int = 0
    latencies: list[float] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)
    """Seconds since the start, and resident bytes of the gateway."""
    blocks: list[int] = field(default_factory=list)
    """Memory blocks in use by the idle gateway after each cycle; besides its caches."""
    cpu_seconds: float = 0
    """Processor time of the gateway."""
    overhead: dict[str, float] = field(default_factory=dict)
    """Quantiles of the seconds that the gateway itself takes, from its histogram."""
    log: str = ""

    def memory_at(self, share: float, width: float = 0.08) -> float:
        """Return the mean resident memory around a share of the run time."""
        whole = self.memory[-1][0]
        near = [size for at, size in self.memory if abs(at / whole - share) <= width]
        return sum(near) / len(near)

    @property
    def growth(self) -> float:
        """Return the relative growth of resident memory from the middle to the end of the run."""
        return self.memory_at(0.96, 0.04) / self.memory_at(0.5) - 1


@contextmanager
def cheap_upstream(milliseconds: int = 0) -> Iterator[str]:
    """Run the cheap upstream in a process and yield its URL."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.upstream", str(port), str(milliseconds)]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: _listens(url), "the upstream starts", pause=0.05)
        yield url
    finally:
        process.kill()
        process.wait(10)


def _listens(url: str) -> bool:
    try:
        return httpx.get(url, timeout=1).status_code == 200
    except httpx.HTTPError:
        return False


def memory_of(pid: int) -> int:
    """Return the resident bytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds_of(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Writer:
    """Writes the request bodies of a growing session and of its successors."""

    def __init__(self, number: int) -> None:
        self.number, self.life, self.rounds = number, 0, 0
        self.items = b""
        self._start(START + number % LIFE)

    def _start(self, rounds: int) -> None:
        items = history("openai-chat", rounds, size=SIZE, tag=f"s{self.number}l{self.life}")
        self.items, self.rounds = b",".join(json.dumps(item).encode() for item in items), rounds

    def next(self) -> bytes:
        """Return the next body."""
        if self.rounds >= START + LIFE:
            self.life += 1
            self._start(START)
        tag = f"marker{self.rounds:05d}s{self.number}l{self.life}"
        grown = one_round("openai-chat", self.rounds, FILLER * SIZE + tag)
        self.items += b"," + b",".join(json.dumps(item).encode() for item in grown)
        self.rounds += 1
        return b'{"model":"test-model","max_completion_tokens":500,"messages":[' + self.items + b"]}"


async def _send_cycle(writer: Writer, client: httpx.AsyncClient, load: Load, pause: float) -> None:
    headers = {**HEADERS["openai-chat"], "content-type": "application/json"}
    headers |= {"x-cheap": "stream"} if writer.number % 2 else {}
    await asyncio.sleep(pause * writer.number / SESSIONS)
    for _ in range(LIFE):
        start = time.perf_counter()
        try:
            answer = await client.post(PATHS["openai-chat"], content=writer.next(), headers=headers)
        except httpx.HTTPError as error:
            load.failures.append(f"{type(error).__name__}: {error}")
        else:
            load.latencies.append(time.perf_counter() - start)
            load.compactions += "x-kompakt-compaction" in answer.headers
            if answer.status_code != 200 or "x-kompakt-degraded" in answer.headers:
                load.failures.append(f"{answer.status_code} {answer.text[:200]} {dict(answer.headers)}")
        load.requests += 1
        await asyncio.sleep(pause)


async def _watch(pid: int, load: Load) -> None:
    start = time.monotonic()
    while True:
        load.memory.append((time.monotonic() - start, memory_of(pid)))
        await asyncio.sleep(0.25)


async def _send(gate: Replica, done: Callable[[int], bool], measure: Callable[[], int] | None, pause: float) -> Load:
    """Send whole cycles until ``done`` says of their number that they are enough."""
    load, writers, cycles = Load(), [Writer(number) for number in range(SESSIONS)], 0
    limits = httpx.Limits(max_connections=SESSIONS + 10, max_keepalive_connections=SESSIONS + 10)
    watching = asyncio.create_task(_watch(gate.process.pid, load))
    start = time.monotonic()
    while not done(cycles):
        async with httpx.AsyncClient(base_url=gate.url, timeout=120, limits=limits) as client:
            await asyncio.gather(*(_send_cycle(writer, client, load, pause) for writer in writers))
        cycles += 1
        if measure is not None:  # no connection is open now
            load.blocks.append(await asyncio.to_thread(_settled, measure))
    load.seconds = time.monotonic() - start
    load.cpu_seconds = cpu_seconds_of(gate.process.pid)
    watching.cancel()
    return load


def _settled(measure: Callable[[], int], *, tolerance: int = 50) -> int:
    """Measure until two measurements agree, because then no task runs in the background."""
    end, before = time.monotonic() + 120, measure()
    while time.monotonic() < end:
        time.sleep(0.5)
        now = measure()
        if abs(now - before) <= tolerance:
            return now
        before = now
    raise AssertionError(f"the gateway does not come to rest: {before:,} blocks in use")


def load_gateway(folder: Path, done: Callable[[int], bool], *, measured: bool = False, pause: float = PAUSE) -> Load:
    """Send requests of many sessions at once through a gateway.

    ``done`` gets the number of cycles so far; in a cycle each session sends ``LIFE`` requests.
    """
    store, address = f"sqlite:///{folder / 'load.db'}", str(folder / "measure.sock")
    options = {"KOMPAKT_STORE_TIMEOUT": "120"}
    if measured:
        options |= {"module": "tests.gateway.measured_gateway", ADDRESS: address}
    with (
        cheap_upstream(20) as upstream,
        replica(upstream, store=store, folder=folder, window=WINDOW, **options) as gate,
    ):
        measure = partial(blocks_of, address) if measured else None
        load = asyncio.run(_send(gate, done, measure, pause))
        load.overhead = quantiles(gate.get("/metrics").text, "kompakt_overhead_seconds")
        load.log = gate.log.read_text(errors="replace")
        assert gate.end(40) == 0
    return load


def quantiles(metrics: str, name: str) -> dict[str, float]:
    """Return the upper bounds of quantiles of a Prometheus histogram."""
    found = re.findall(rf'^{name}_bucket{{le="([^"]+)"}} (\S+)$', metrics, re.MULTILINE)
    buckets = [(float(bound.replace("+Inf", "inf")), float(count)) for bound, count in found]
    whole = buckets[-1][1] if buckets else 0
    return {
        f"p{int(share * 100)}": next(bound for bound, count in buckets if count >= share * whole)
        for share in (0.5, 0.9, 0.99)
        if whole
    }
