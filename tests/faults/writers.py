"""Fifty writers on ten sessions, from four processes, and what must be true afterwards.

Each writer appends turns of its own, the call and its result in one batch, and asks for a compaction now and then, as
all the others do. Half of them take turns, half write as they come.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from tests.faults.processes import Log, started, turn_of

from kompakt.session.store import Store, open_store
from kompakt.store.memory import MemoryRecords

WRITERS = 50
SESSIONS = 10
PROCESSES = 4
BUDGET = 6_000
LEAST_TURNS = 4
"""Turns that each writer appends at least, however slow the machine is."""

MARK = re.compile(r"\[(w\d+) (\d+)\]")


class Outcome(msgspec.Struct):
    """The result of a race."""

    store: str
    seconds: float = 0.0
    appends: int = 0
    compactions: int = 0
    failures: list[str] = []


async def _writer(store: Store, number: int, end: float, log: Log) -> None:
    """Append turns to one session until the time is over, and a few in any case."""
    session = await store.session(f"session {number % SESSIONS}")
    name, chance, count = f"w{number}", random.Random(number), 0
    takes_turns = number // SESSIONS % 2 == 0
    while count < LEAST_TURNS or time.monotonic() < end:
        asked, *pair, answer = turn_of(name, count, chars=chance.choice([100, 400, 5_000]))
        if takes_turns:
            async with session.turn():
                for batch in ([asked], pair, [answer]):
                    await session.append(batch, format="openai-chat")
        else:
            for batch in ([asked], pair, [answer]):
                key = f"{name} {count} {len(batch)} {batch[0]['role']}"
                await session.append(batch, key=key, format="openai-chat")
        count += 1
        log.say("turn", session.id, name, count)
        if chance.random() < 0.2:
            done = await session.compact(BUDGET)
            log.say("compaction", session.id, done.id, done.changed)
        await asyncio.sleep(chance.uniform(0, 0.02))


async def _writers(store: Store, share: int, end: float, log: Log) -> None:
    async with store:
        numbers = range(share, WRITERS, PROCESSES)
        await asyncio.gather(*(_writer(store, number, end, log) for number in numbers))
        log.say("ended", share)


def _process(url: str, share: int, end: float, path: str) -> None:
    async def run() -> None:
        await _writers(await open_store(url), share, end, Log(Path(path)))

    asyncio.run(run())


def _thread(records: MemoryRecords, share: int, end: float, path: str) -> None:
    asyncio.run(_writers(Store(records), share, end, Log(Path(path))))


def race(url: str, seconds: float, directory: Path, *, memory: MemoryRecords | None = None) -> Outcome:
    """Let them all write for some time; say what is wrong with what they left."""
    path, since = directory / "log", time.monotonic()
    end, limit = since + seconds, seconds + 240
    workers: list[Any] = []
    for share in range(PROCESSES):
        if memory is not None:
            workers.append(threading.Thread(target=_thread, args=(memory, share, end, str(path)), daemon=True))
            workers[-1].start()
        else:
            workers.append(started(_process, url, share, end, str(path)))
    for worker in workers:
        worker.join(max(1.0, since + limit - time.monotonic()))
    outcome = Outcome("memory" if memory is not None else url.partition(":")[0], time.monotonic() - since)
    if _ended(path) < PROCESSES:
        outcome.failures.append(f"only {_ended(path)} of {PROCESSES} processes ended: a deadlock, or an error")
    asyncio.run(_judge(url, path, outcome, memory))
    return outcome


def _said(path: Path) -> list[list[Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []


def _ended(path: Path) -> int:
    return sum(said[0] == "ended" for said in _said(path))


async def _judge(url: str, path: Path, outcome: Outcome, memory: MemoryRecords | None) -> None:
    wanted: dict[str, dict[str, int]] = {}
    for said in _said(path):
        if said[0] == "turn":
            wanted.setdefault(said[1], {})[said[2]] = said[3]
    async with Store(memory) if memory is not None else await open_store(url) as store:
        for id, writers in sorted(wanted.items()):
            session = await store.session(id)
            found = outcome.failures
            found += [f"{id}: {fault}" for fault in await session.verify()]
            found += [f"{id}: {fault}" for fault in _faults(await session.export(), writers, outcome)]
            records = [record for _, record in (await session.reader()).timeline.compactions]
            outcome.compactions += len(records)
            found += [f"{id}: {fault}" for fault in _compaction_faults(records)]
            if markers := await session.pending():
                found.append(f"{id}: requests {sorted(markers)} were not answered")
    if len(wanted) != SESSIONS:
        outcome.failures.append(f"only {len(wanted)} sessions were written to")


def _faults(messages: Any, writers: dict[str, int], outcome: Outcome) -> list[str]:
    """Look for what is lost, doubled, out of order or torn apart."""
    found: list[str] = []
    seen: dict[str, list[tuple[int, str]]] = {}
    for place, message in enumerate(messages):
        name, number = MARK.search(json.dumps(message)).groups()  # type: ignore[union-attr]
        seen.setdefault(name, []).append((int(number), message["role"]))
        if message["role"] == "tool":
            before = messages[place - 1]
            if not before.get("tool_calls") or before["tool_calls"][0]["id"] != message["tool_call_id"]:
                found.append(f"message {place + 1} of {name}: a result away from its call")
    for name, count in writers.items():
        want = [(number, role) for number in range(count) for role in ("user", "assistant", "tool", "assistant")]
        if seen.get(name, [])[: len(want)] != want:
            found.append(f"{name}: messages were lost, doubled or moved")
        elif len(seen[name]) != len(want):
            found.append(f"{name}: {len(seen[name]) - len(want)} messages more than were acknowledged")
        outcome.appends += 3 * count
    return found


def _compaction_faults(records: list[Any]) -> list[str]:
    """Look for compactions of the same point, and requests that were answered twice or never needed."""
    tips = Counter(record.tip for record in records)
    markers = Counter(marker for record in records for marker in record.markers)
    found = [f"{count} compactions at row {tip}" for tip, count in tips.items() if count > 1]
    found += [f"request {marker} was answered {count} times" for marker, count in markers.items() if count > 1]
    found += [
        f"compaction {record.id} was not due: {record.reason}" for record in records if "over" not in record.reason
    ]
    if len(markers) != len(records):
        found.append(f"{len(records)} compactions answer {len(markers)} requests")
    return found


def race_on(name: str, seconds: float, directory: Path) -> Outcome:
    """Race on one of the stores, which is empty."""
    from tests.contract.backends import Place

    directory.mkdir(parents=True, exist_ok=True)
    place = Place(name, directory)
    return race(place.url, seconds, directory, memory=place.memory if name == "memory" else None)
