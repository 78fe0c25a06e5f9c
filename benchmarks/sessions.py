"""The cost of a long session: append, open, project, and memory.

A compacted session of 100,000 messages in a SQLite file, compared with shorter ones. Goals: an append costs at most
twice as much as at 100 messages; open and project take at most a second; memory depends on what is shown, not on
what is stored.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.measurement import Row, Spread, row, spread
from kompakt.session.store import open_store

SIZES = (100, 10_000, 100_000)
BUDGET = 100_000
APPENDS = 40
RUNS = 5

_numbers = count(1)

_PROJECT = """
import asyncio, sys
from kompakt.model.tokens import counter_for
from kompakt.session.store import open_store

def peak():
    lines = open("/proc/self/status").read().split("\\n")
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1000

async def main():
    counter_for(None).text("warm")
    async with await open_store(sys.argv[1]) as store:
        small = await store.session("100")
        await small.project()
        base = peak()
        await (await store.session(sys.argv[2])).project()
        print(peak() - base)

asyncio.run(main())
"""


def _messages(size: int) -> list[Any]:
    """Make a conversation of turns with a call, its output and an answer."""
    made: list[Any] = []
    for number in range(size // 4):
        call = {"name": "read_file", "arguments": f'{{"path": "src/part_{number % 400}.py"}}'}
        made += [
            {"role": "user", "content": f"Request {number}: look at part {number} and say what it does."},
            {"role": "assistant", "tool_calls": [{"id": f"c{number}", "type": "function", "function": call}]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": f"part {number}\n" + f"line of {number}\n" * 20},
            {"role": "assistant", "content": f"Part {number} does what part {number % 7} does."},
        ]
    return made


async def _build(url: str) -> None:
    async with await open_store(url) as store:
        for size in SIZES:
            session = await store.session(str(size))
            await session.save({"model": "gpt-4o", "messages": _messages(size)})
            if size > 100:
                await session.compact(BUDGET)


async def _appends(url: str) -> Spread:
    """Append a call and its result to the longest and the shortest in turn, so that a busy machine slows both."""
    async with await open_store(url) as store:
        times: dict[int, list[float]] = {SIZES[0]: [], SIZES[-1]: []}
        for _ in range(APPENDS):
            for size, taken in times.items():
                name = f"n{next(_numbers)}"
                call = {"id": name, "type": "function", "function": {"name": "run", "arguments": "{}"}}
                messages = [
                    {"role": "assistant", "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": name, "content": "fine"},
                ]
                session = await store.session(str(size))
                began = time.perf_counter()
                await session.append(messages, format="openai-chat")
                taken.append(time.perf_counter() - began)
    low, high = (sorted(taken) for taken in times.values())
    ratio = statistics.median(high) / statistics.median(low)
    return Spread(ratio, high[APPENDS // 4] / low[APPENDS // 4], high[APPENDS * 3 // 4] / low[APPENDS * 3 // 4])


async def _projects(url: str, size: int) -> float:
    began = time.perf_counter()
    async with await open_store(url) as store:
        await (await store.session(str(size))).project()
    return time.perf_counter() - began


def _memory(url: str, size: int) -> Iterator[float]:
    """Measure what a process needs beyond what the shortest session takes."""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", _PROJECT, url, str(size)], capture_output=True, check=True)
        yield float(done.stdout)


def measure() -> list[Row]:
    """Measure the area."""
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{Path(directory) / 'sessions.db'}"
        began = time.perf_counter()
        asyncio.run(_build(url))
        built = time.perf_counter() - began
        note = f"SQLite; built and compacted in {built:.0f} s"
        rows = [
            row("append 2 messages at 100,000 over at 100", asyncio.run(_appends(url)), "x", at_most=2, note=note),
        ]
        for size in SIZES[1:]:
            runs = spread(asyncio.run(_projects(url, size)) for _ in range(RUNS))
            goal = {"at_most": 1.0} if size == SIZES[-1] else {}
            rows.append(row(f"open and project {size:,} messages, compacted", runs, "s", **goal))
        rows += [row(f"memory of that, {size:,} messages", spread(_memory(url, size)), "MB") for size in SIZES[1:]]
    return rows
