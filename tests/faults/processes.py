"""Writers in separate processes, and the checks of what they stored.

A writer says in a file what it is going to do and, when its store has acknowledged it, that it is done. The file
outlives the process however that ends, so whoever killed it knows what must be there.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.session.builders import answered, asked, called, said

from kompakt.session import lock
from kompakt.session.session import Session
from kompakt.session.store import open_store

Body = dict[str, Any]
LEASE = 0.5
"""Seconds after which a dead writer's lock is free, here."""

PRELOADED = [
    "tests.faults.processes",
    *(f"kompakt.store.{name}" for name in ("sql.sqlite", "sql.postgres", "redis.records")),
]


def shorten_leases() -> None:
    """Let locks in this process lapse soon."""
    lock.hold.__wrapped__.__kwdefaults__["lease"] = LEASE  # type: ignore[attr-defined]


def started(work: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Start a process that shares nothing with this one but files and servers."""
    context: ForkServerContext = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=work, args=arguments, daemon=True)
    process.start()
    return process


class Log:
    """Lines that survive their writer."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def say(self, *what: Any) -> None:
        """Write a line, whole or not at all."""
        os.write(self._file, json.dumps(what).encode() + b"\n")


def turn_of(name: str, number: int, *, chars: int = 300) -> list[Body]:
    """Make the four messages of a turn, each with the writer's name and number."""
    mark = f"[{name} {number}]"
    return [
        asked(f"{mark} please look at file_{number}.py"),
        called(f"{name}-{number}", path=f"{mark} file_{number}.py"),
        answered(f"{name}-{number}", f"{mark} " + f"line of {name} {number}\n" * (chars // 20)),
        said(f"{mark} looked."),
    ]


def write_until_killed(url: str, id: str, seed: int, path: str) -> None:
    """Perform random operations on a session until killed."""
    shorten_leases()
    asyncio.run(_write(url, id, random.Random(seed), Log(Path(path))))


async def _write(url: str, id: str, chance: random.Random, log: Log) -> None:
    async with await open_store(url) as store:
        session = await store.session(id)
        turns = (await session.head()).turn if await session.exists() else 0
        log.say("ready")
        while True:
            turns = await _step(session, turns, chance, log)


async def _step(session: Session, turns: int, chance: random.Random, log: Log) -> int:
    """Perform one operation; return the number of turns after it."""
    what = chance.choices(["append", "compact", "revert"], [12, 2, 1])[0]
    if what == "append" or turns < 4:
        name = chance.randbytes(4).hex()
        messages = turn_of(name, turns, chars=chance.choice([100, 600, 6_000]))
        log.say("append", name, messages)
        async with session.turn():
            await session.append(messages, key=name)
        turns += 1
    elif what == "compact":
        log.say("compact")
        done = await session.compact(3_000)
        if done.changed and chance.random() < 0.5:
            await session.undo(done.id)
    else:
        to = turns - chance.randint(1, 3)
        log.say("revert", to)
        await session.revert(to)
        if chance.random() < 0.5:
            log.say("done")
            log.say("undo")
            await session.undo()
        else:
            turns = to
    log.say("done")
    return turns
