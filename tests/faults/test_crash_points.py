"""A process that ends, or loses its connection, at each call of an operation: what was acknowledged is there, what was
not is there whole or not at all, and the operation can be finished.

Every operation is tried once for each call it makes to its store and for each way that call can fail. What the session
is after each commit is known from an undisturbed run; after a crash it must be one of these, byte for byte.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.contract.backends import STORES, Place
from tests.faults.crashes import CRASHES, DROPS, Crash, Crashing, Mode, cloned, session_of
from tests.session.builders import answered, asked, called, said, turns

from kompakt.errors import StoreUnavailable, UsageError
from kompakt.session import session as sessions
from kompakt.session.session import Session
from kompakt.store.records import Records

BODY = {"model": "gpt-x", "temperature": 0, "messages": turns(8, chars=300, steps=1)}
MORE = [asked("And now?"), called("x1", path="src/a.py"), answered("x1", "long output\n" * 400), said("Done.")]
BUDGET = 1_500


class Operation(NamedTuple):
    """Something done to a session."""

    name: str
    act: Callable[[Session], Awaitable[Any]]
    prepare: Callable[[Session], Awaitable[Any]] | None = None
    again: bool = False
    """Whether it may be repeated though it was done: nothing happens then."""


async def _compacted(session: Session) -> None:
    await session.compact(BUDGET)


async def _requested(session: Session) -> None:
    await session.compact(BUDGET)
    await session.append(MORE)
    await session.request_compaction(instructions="keep the paths")


async def _reverted(session: Session) -> None:
    await session.compact(BUDGET)
    await session.append(MORE)
    await session.revert(5)


async def _take_turn(session: Session) -> None:
    async with session.turn():
        await session.append(MORE, key="in turn")


async def _fork(session: Session) -> None:
    other = session.sibling(f"{session.id} fork")
    if not await other.exists():
        await session.fork(other.id, turn=6)
    assert await other.verify() == []
    assert len((await other.export())["messages"]) == 24  # type: ignore[index, call-overload]


OPERATIONS = [
    Operation("append", lambda session: session.append(MORE)),
    Operation("append with a key", lambda session: session.append(MORE, key="k"), again=True),
    Operation("append after a compaction", lambda session: session.append(MORE, key="k"), _compacted, again=True),
    Operation("append in a turn", _take_turn, again=True),
    Operation("save", lambda session: session.save({**BODY, "messages": BODY["messages"] + MORE}), again=True),
    Operation("request", lambda session: session.request_compaction(auto=True, instructions="keep it short")),
    Operation("compact", lambda session: session.compact(BUDGET), again=True),
    Operation("compact as asked for", lambda session: session.compact(BUDGET), _requested, again=True),
    Operation("undo a compaction", lambda session: session.undo(), _compacted),
    Operation("undo a revert", lambda session: session.undo(), _reverted),
    Operation("revert", lambda session: session.revert(3)),
    Operation("revert after a compaction", lambda session: session.revert(3), _compacted),
    Operation("edit", lambda session: session.edit_summary("In other words."), _compacted),
    Operation("pin", lambda session: session.pin("never touch main"), again=True),
    Operation("fork", _fork, again=True),
]
SERVERS = ("postgres", "redis")
ON_SERVERS = {"append with a key", "save", "compact", "compact as asked for", "undo a revert", "revert", "fork"}
"""The cases that also run on servers; the others make the same calls."""

PAIRS = [(store, one) for store in STORES for one in OPERATIONS if store not in SERVERS or one.name in ON_SERVERS]

BEGUN = [
    Operation("first append", lambda session: session.append(BODY, key="first"), again=True),
    Operation("first save", lambda session: session.save(BODY), again=True),
]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a whole history be saved in several commits."""
    monkeypatch.setattr(sessions, "BATCH", 20)


async def snapshot(records: Any, id: str) -> str:
    """Return all that can be seen of a session, as text; nothing for one that does not exist."""
    session = session_of(records, id)
    if not await session.exists():
        return ""
    assert await session.verify() == []
    past = [(one.undone, one.auto, one.covers_to) for one in await session.compactions()]
    pending = [(seq, marker.auto, marker.instructions) for seq, marker in (await session.pending()).items()]
    pins = (await session.reader()).timeline.pins
    return json.dumps([await session.export(), await session.export(view="model"), past, pending, pins])


class Trial:
    """One operation on one store, again and again, each time on a copy of the same session."""

    def __init__(self, records: Records, operation: Operation, *, is_new: bool = False) -> None:
        self.records = records
        self.operation = operation
        self.is_new = is_new
        self.states: list[str] = []
        """The session as it is before the operation, and after each of its commits."""
        self._numbers = count(1)

    async def copy(self) -> str:
        """Make a session as the operation finds it; return its id."""
        id = f"copy {next(self._numbers)}"
        if not self.is_new:
            await cloned(self.records, "origin", id)
        return id

    async def prepare(self) -> None:
        """Make the session that the others are copies of, and learn what the operation does to it."""
        if not self.is_new:
            origin = session_of(self.records, "origin")
            await origin.append(BODY)
            if self.operation.prepare is not None:
                await self.operation.prepare(origin)
        id = await self.copy()

        async def learn() -> None:
            self.states.append(await snapshot(self.records, id))

        await learn()
        await self.operation.act(session_of(Crashing(self.records, committed=learn), id))
        assert len(self.states) > 1

    async def fails_at(self, call: int, mode: Mode) -> bool:
        """Let the operation fail at a call; return whether it made that call."""
        id = await self.copy()
        crashing = Crashing(self.records, call, mode)
        try:
            await self.operation.act(session_of(crashing, id))
        except (Crash, StoreUnavailable):
            assert crashing.calls >= call
        else:
            await self.ends_well(id)
            return crashing.calls >= call
        await crashing.expire()
        assert await snapshot(self.records, id) == self.states[crashing.commits]
        if crashing.commits < len(self.states) - 1 or self.operation.again:
            await self.operation.act(session_of(self.records, id))
        await self.ends_well(id)
        return True

    async def ends_well(self, id: str) -> None:
        assert await snapshot(self.records, id) == self.states[-1]


def every_call(place: Place, operation: Operation, modes: tuple[Mode, ...], *, is_new: bool = False) -> None:
    async def run() -> None:
        async with place.opened() as records:
            trial = Trial(records, operation, is_new=is_new)
            await trial.prepare()
            for mode in modes:
                tried = 0
                while await trial.fails_at(tried + 1, mode):
                    tried += 1
                assert tried >= 2, "the operation hardly asked its store"

    asyncio.run(run())


def str_or_name(value: str | Operation) -> str:
    return value if isinstance(value, str) else value.name.replace(" ", "-")


class TestEveryCall:
    @pytest.mark.parametrize("store, operation", PAIRS, ids=str_or_name)
    def test_a_crash_at_any_call(self, store: str, operation: Operation, tmp_path: Path) -> None:
        every_call(Place(store, tmp_path), operation, CRASHES)

    @pytest.mark.parametrize("store", STORES)
    @pytest.mark.parametrize("operation", BEGUN, ids=str_or_name)
    def test_a_crash_while_a_session_is_created(self, store: str, operation: Operation, tmp_path: Path) -> None:
        every_call(Place(store, tmp_path), operation, CRASHES, is_new=True)

    @pytest.mark.parametrize("store", ["memory", "sqlite"])
    @pytest.mark.parametrize("operation", OPERATIONS, ids=str_or_name)
    def test_a_lost_connection_at_any_call(self, store: str, operation: Operation, tmp_path: Path) -> None:
        every_call(Place(store, tmp_path), operation, DROPS)


def test_references_are_returned_after_a_lost_answer() -> None:
    """A batch that is repeated because its confirmation was lost is confirmed like any other."""

    async def run() -> None:
        place = Place("memory", Path())
        async with place.opened() as records:
            session = session_of(records, "a")
            await session.append(BODY)
            for call in count(1):
                crashing = Crashing(records, call, "lost answer")
                try:
                    refs = await session_of(crashing, "a").append(MORE)
                except StoreUnavailable:
                    continue
                assert len(refs) == len(MORE)
                if crashing.calls < call:
                    break

    asyncio.run(run())


def test_a_fork_is_made_once() -> None:
    """A fork whose answer was lost is there; asking for it again says so."""

    async def run() -> None:
        place = Place("memory", Path())
        async with place.opened() as records:
            session = session_of(records, "a")
            await session.append(BODY)
            await session.fork("b")
            with pytest.raises(UsageError, match="exists already"):
                await session.fork("b")

    asyncio.run(run())
