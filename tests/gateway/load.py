"""Many sessions at once through one gateway, each in a process of its own; what it cost is read from outside.

The upstream is as cheap as can be. Every session grows by a round with each request, is compacted when it is due, and
begins anew when it is long.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from tests.gateway.gateway_server import ROOT, Replica, free_port, replica
from tests.gateway.payloads import FILLER, HEADERS, PATHS, history, one_round
from tests.gateway.upstreams import wait_for

SESSIONS = 200
PAUSE = 4.0
"""Seconds between a session's answer and its next request: the model thinks, tools run."""
START, SPREAD, END = 4, 36, 60
"""Rounds that a session begins with, that sessions lie apart at first, and that it ends with; a window holds 37."""
SIZE = 25
"""Lines of a result, about 400 tokens."""


@dataclass
class Load:
    """What came of it."""

    seconds: float = 0
    requests: int = 0
    failures: list[str] = field(default_factory=list)
    compactions: int = 0
    latencies: list[float] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)
    """Seconds since the start, and bytes of the gateway's memory."""
    overhead: dict[str, float] = field(default_factory=dict)
    """Seconds that the gateway itself took, by share of requests, from its own histogram."""
    log: str = ""

    def memory_at(self, share: float, width: float = 0.08) -> float:
        """Return the mean memory around a share of the time."""
        whole = self.memory[-1][0]
        near = [size for at, size in self.memory if abs(at / whole - share) <= width]
        return sum(near) / len(near)

    @property
    def growth(self) -> float:
        """Return by what share memory grew from the second third to the end."""
        return self.memory_at(0.96, 0.04) / self.memory_at(0.5) - 1


@contextmanager
def cheap_upstream(milliseconds: int = 0) -> Iterator[str]:
    """Run the cheap upstream in a process; its address."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.upstream", str(port), str(milliseconds)]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: _listens(url), "the upstream starts")
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
    """Return the bytes of memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Writer:
    """Writes the bodies of one session that grows, each from the bytes of the one before."""

    def __init__(self, number: int) -> None:
        self.number, self.life, self.rounds = number, 0, 0
        self.items = b""
        self._begin(START + number % SPREAD)

    def _begin(self, rounds: int) -> None:
        items = history("openai-chat", rounds, size=SIZE, tag=f"s{self.number}l{self.life}")
        self.items, self.rounds = b",".join(json.dumps(item).encode() for item in items), rounds

    def next(self) -> bytes:
        """Return the next body."""
        if self.rounds >= END:
            self.life += 1
            self._begin(START)
        tag = f"marker{self.rounds:05d}s{self.number}l{self.life}"
        grown = one_round("openai-chat", self.rounds, FILLER * SIZE + tag)
        self.items += b"," + b",".join(json.dumps(item).encode() for item in grown)
        self.rounds += 1
        return b'{"model":"test-model","max_completion_tokens":500,"messages":[' + self.items + b"]}"


async def _session(number: int, client: httpx.AsyncClient, load: Load, end: float) -> None:
    writer = Writer(number)
    headers = {**HEADERS["openai-chat"], "content-type": "application/json"}
    headers |= {"x-cheap": "stream"} if number % 2 else {}
    await asyncio.sleep(PAUSE * number / SESSIONS)
    while time.monotonic() < end:
        began = time.perf_counter()
        try:
            answer = await client.post(PATHS["openai-chat"], content=writer.next(), headers=headers)
        except httpx.HTTPError as error:
            load.failures.append(f"{type(error).__name__}: {error}")
        else:
            load.latencies.append(time.perf_counter() - began)
            load.compactions += "x-kompakt-compaction" in answer.headers
            if answer.status_code != 200 or "x-kompakt-degraded" in answer.headers:
                load.failures.append(f"{answer.status_code} {answer.text[:200]} {dict(answer.headers)}")
        load.requests += 1
        await asyncio.sleep(PAUSE)


async def _watch(pid: int, load: Load, end: float) -> None:
    start = time.monotonic()
    while time.monotonic() < end:
        load.memory.append((time.monotonic() - start, memory_of(pid)))
        await asyncio.sleep(0.25)


async def _drive(gate: Replica, seconds: float, sessions: int) -> Load:
    load, end = Load(), time.monotonic() + seconds
    limits = httpx.Limits(max_connections=sessions + 10, max_keepalive_connections=sessions + 10)
    async with httpx.AsyncClient(base_url=gate.url, timeout=30, limits=limits) as client:
        watching = asyncio.create_task(_watch(gate.process.pid, load, end))
        began = time.monotonic()
        await asyncio.gather(*(_session(number, client, load, end) for number in range(sessions)))
        load.seconds = time.monotonic() - began
        await watching
    return load


def load_gateway(folder: Path, seconds: float, *, sessions: int = SESSIONS, store: str | None = None) -> Load:
    """Hold sessions at once through a gateway for some time."""
    store = store or f"sqlite:///{folder / 'load.db'}"
    with cheap_upstream(20) as upstream, replica(upstream, store=store, folder=folder) as gate:
        load = asyncio.run(_drive(gate, seconds, sessions))
        load.overhead = quantiles(gate.get("/metrics").text, "kompakt_overhead_seconds")
        load.log = gate.log.read_text(errors="replace")
        assert gate.end(40) == 0
    return load


def quantiles(metrics: str, name: str) -> dict[str, float]:
    """Read the upper bounds of quantiles from a histogram of Prometheus."""
    found = re.findall(rf'^{name}_bucket{{le="([^"]+)"}} (\S+)$', metrics, re.MULTILINE)
    buckets = [(float(bound.replace("+Inf", "inf")), float(count)) for bound, count in found]
    whole = buckets[-1][1] if buckets else 0
    return {
        f"p{int(share * 100)}": next(bound for bound, count in buckets if count >= share * whole)
        for share in (0.5, 0.9, 0.99)
        if whole
    }
