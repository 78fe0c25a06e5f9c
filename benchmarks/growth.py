"""Costs of one very long session and of very many sessions: python -m benchmarks.growth [--quick].

A session of a million messages in a SQLite file is appended, compacted, projected, searched and deleted; ten thousand
short sessions are written, listed and opened. Each operation runs in a process of its own, which reports its time and
its peak memory. The memory of a process that only opens the store is subtracted nowhere.

The whole takes about half an hour. With ``--folder`` the stores and the results of finished operations stay there, and
the next run with the same folder continues after them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gateway import ROOT, quantile
from benchmarks.measurement import Row, save, show
from kompakt.session.store import open_store

MESSAGES, SESSIONS = 1_000_000, 10_000
QUICK_MESSAGES, QUICK_SESSIONS = 50_000, 500
BATCH = 2_000
SESSION_MESSAGES, SESSION_LINES = 40, 12
"""Messages of a short session, and lines of each tool output in it."""
BUDGET = 100_000
POINTS = 20
"""Points of the curve of append times."""


def messages(start: int, count: int, lines: int = 0) -> list[dict[str, Any]]:
    """Make turns of a request, a call, its output with additional lines, and an answer."""
    made: list[dict[str, Any]] = []
    for number in range(start // 4, (start + count) // 4):
        call = {"name": "read", "arguments": f'{{"path": "src/module_{number}.py"}}'}
        made += [
            {"role": "user", "content": f"Check the value in src/module_{number}.py and tell me what it is."},
            {"role": "assistant", "tool_calls": [{"id": f"c{number}", "type": "function", "function": call}]},
            {
                "role": "tool",
                "tool_call_id": f"c{number}",
                "content": f"# module {number}\nvalue = {number * 7919}\n" + _output(number, lines),
            },
            {"role": "assistant", "content": f"The value in module {number} is {number * 7919}."},
        ]
    return made


def _output(number: int, lines: int) -> str:
    """Return lines like those of a listing, which differ from each other."""
    return "".join(
        f"{line:4d}  src/part_{number}/module_{line * 31 % 97}.py  {number * line % 9973} bytes  read in {line} ms\n"
        for line in range(lines)
    )


# --- operations, each in its own process ---------------------------------------------------------------------------


async def _append(url: str, count: int) -> dict[str, Any]:
    curve: list[tuple[int, float]] = []
    async with await open_store(url) as store:
        session = await store.session("long")
        step, since = max(1, count // POINTS // BATCH) * BATCH, time.perf_counter()
        for at in range(0, count, BATCH):
            size = min(BATCH, count - at)
            await session.append(messages(at, size), format="openai-chat")
            if (at + size) % step == 0:
                now = time.perf_counter()
                curve.append((at + size, (now - since) / step))
                since = now
    return {"curve": curve}


async def _compact(url: str, count: int) -> dict[str, Any]:
    del count
    async with await open_store(url) as store:
        session = await store.session("long")
        made = await session.compact(BUDGET)
        stages = len(await session.compactions())
    return {"tokens_before": made.tokens_before, "tokens_after": made.tokens_after, "stages": stages}


async def _project(url: str, count: int) -> dict[str, Any]:
    del count
    async with await open_store(url) as store:
        return {"tokens": (await (await store.session("long")).project()).tokens}


async def _recall(url: str, count: int) -> dict[str, Any]:
    number = count // 8
    async with await open_store(url) as store:
        found = await (await store.session("long")).recall(f"value in module_{number}.py")
    if str(number * 7919) not in found.text:
        raise RuntimeError("the message was not found")
    return {"references": len(found.references)}


async def _delete(url: str, count: int) -> dict[str, Any]:
    del count
    async with await open_store(url) as store:
        return {"existed": await (await store.session("long")).delete()}


async def _sessions(url: str, count: int) -> dict[str, Any]:
    async with await open_store(url) as store:
        for number in range(count):
            session = await store.session(f"s{number}")
            made = messages(number * SESSION_MESSAGES, SESSION_MESSAGES, SESSION_LINES)
            await session.append(made, format="openai-chat")
    return {}


async def _open_sessions(url: str, count: int) -> dict[str, Any]:
    times: list[float] = []
    async with await open_store(url) as store:
        listed = 0
        after = ""
        began = time.perf_counter()
        while page := await store.records.heads("", after=after, limit=500):
            listed, after = listed + len(page), page[-1].key
        listing = time.perf_counter() - began
        tokens = 0
        for number in range(0, count, max(1, count // 200)):
            began = time.perf_counter()
            tokens = (await (await store.session(f"s{number}")).project()).tokens
            times.append(time.perf_counter() - began)
    p50, p99 = quantile(times, 0.5), quantile(times, 0.99)
    return {"listed": listed, "listing": listing, "project_p50": p50, "project_p99": p99, "tokens": tokens}


OPERATIONS = {
    "append": _append,
    "compact": _compact,
    "project": _project,
    "recall": _recall,
    "delete": _delete,
    "sessions": _sessions,
    "open_sessions": _open_sessions,
}


def run_here(operation: str, url: str, count: int) -> None:
    """Run an operation and print its result, time and peak memory."""
    began = time.perf_counter()
    found = asyncio.run(OPERATIONS[operation](url, count))
    took = time.perf_counter() - began
    lines = Path("/proc/self/status").read_text().split("\n")
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
    print(json.dumps({**found, "seconds": took, "cpu": time.process_time(), "peak": peak}))


def run(operation: str, store: Path, count: int) -> dict[str, Any]:
    """Run an operation in a new process, unless its result is next to the store."""
    result = store.with_name(f"{operation}.json")
    if result.exists():
        return json.loads(result.read_text())
    if operation in ("append", "sessions"):  # one that was interrupted starts again
        for left in store.parent.glob(f"{store.name}*"):
            left.unlink()
    command = [sys.executable, "-m", "benchmarks.growth", "--operation", operation]
    command += ["--url", f"sqlite:///{store}", "--count", str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{operation}: {done.stderr[-1_000:]}")
    found = json.loads(done.stdout) | {"size": store.stat().st_size}
    result.write_text(json.dumps(found))
    took = f"{found['seconds']:.1f} s, processor {found['cpu']:.1f} s"
    print(f"{operation}: {took}, peak {found['peak'] / 1e6:.0f} MB", flush=True)
    return found


# --- results -------------------------------------------------------------------------------------------------------


def measure(length: int, many: int, folder: Path) -> tuple[list[Row], dict[str, Any]]:
    """Measure the long session, then the many; keep stores and results in a folder."""
    long, short = folder / "long.db", folder / "many.db"
    operations = ("append", "compact", "project", "recall", "delete")
    found = {operation: run(operation, long, length) for operation in operations}
    found |= {operation: run(operation, short, many) for operation in ("sessions", "open_sessions")}
    size, many_size = found["append"]["size"], found["open_sessions"]["size"]
    tokens = found["compact"]["tokens_before"]
    many_tokens = found["open_sessions"]["tokens"] * many
    derived = {
        "messages": length,
        "sessions": many,
        "session_messages": SESSION_MESSAGES,
        "tokens": tokens,
        "disk_bytes": size,
        "disk_per_million_tokens": size / tokens * 1e6,
        "sessions_disk_per_million_tokens": many_size / many_tokens * 1e6,
        "session_disk": many_size / many,
        "session_tokens": many_tokens / many,
        "session_append_seconds": found["sessions"]["seconds"] / many,
    }
    rows = [
        Row(name=f"append {length:,} messages", value=found["append"]["seconds"], unit="s"),
        Row(name="append, memory", value=found["append"]["peak"] / 1e6, unit="MB"),
        Row(
            name=f"first compaction of {length:,} messages",
            value=found["compact"]["seconds"],
            unit="s",
            note=f"{found['compact']['stages']} compactions",
        ),
        Row(name="first compaction, memory", value=found["compact"]["peak"] / 1e6, unit="MB", at_most=300),
        Row(name="open and project after it", value=found["project"]["seconds"], unit="s", at_most=1),
        Row(name="open and recall by words", value=found["recall"]["seconds"], unit="s"),
        Row(name="delete", value=found["delete"]["seconds"], unit="s"),
        Row(name="delete, memory", value=found["delete"]["peak"] / 1e6, unit="MB"),
        Row(name="disk per million tokens, long session", value=derived["disk_per_million_tokens"] / 1e6, unit="MB"),
        Row(name=f"write {many:,} sessions", value=found["sessions"]["seconds"], unit="s"),
        Row(name=f"list {many:,} sessions", value=found["open_sessions"]["listing"], unit="s"),
        Row(name="project one of them, 99 of 100", value=1_000 * found["open_sessions"]["project_p99"], unit="ms"),
        Row(name="memory of reading them", value=found["open_sessions"]["peak"] / 1e6, unit="MB"),
    ]
    return rows, {"derived": derived, "operations": found}


def main(arguments: list[str]) -> int:
    """Measure, print and write the result; or run one operation."""
    parser = argparse.ArgumentParser(prog="benchmarks.growth", description="Measure long and many sessions.")
    parser.add_argument("--quick", action="store_true", help="a small session and few others; writes no result")
    parser.add_argument("--messages", type=int, help=f"messages of the long session; default: {MESSAGES:,}")
    parser.add_argument("--sessions", type=int, help=f"number of short sessions; default: {SESSIONS:,}")
    parser.add_argument("--folder", type=Path, help="keep stores and results here, and continue an earlier run")
    parser.add_argument("--operation", choices=OPERATIONS, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.operation:
        run_here(given.operation, given.url, given.count)
        return 0
    length, many = (QUICK_MESSAGES, QUICK_SESSIONS) if given.quick else (MESSAGES, SESSIONS)
    with tempfile.TemporaryDirectory() as name:
        folder = given.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        rows, more = measure(given.messages or length, given.sessions or many, folder)
    show("growth", rows)
    if not given.quick:
        save("growth", rows, **more)
    return 1 if any(row.verdict == "MISSED" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
