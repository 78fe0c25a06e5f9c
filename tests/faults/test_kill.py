"""kill -9 at random moments: acknowledged data is stored byte for byte, and the next process continues at once."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from tests.contract.backends import Place
from tests.faults.processes import LEASE, shorten_leases, started, turn_of, write_until_killed

from kompakt.session import lock
from kompakt.session.store import open_store

KILLS = 8
Body = dict[str, Any]


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = lock.hold.__wrapped__.__kwdefaults__  # type: ignore[attr-defined]
    monkeypatch.setitem(defaults, "lease", defaults["lease"])  # restored after the test
    shorten_leases()


class Model:
    """What must be stored: acknowledged writes; and what may be stored: writes without an acknowledgement."""

    def __init__(self) -> None:
        self.turns: list[list[Body]] = []
        self.taken: list[list[Body]] = []
        self.unsure: list[Any] = []
        """What a writer was about to do when it was killed."""
        self.keys: dict[str, list[Body]] = {}
        """The appends that were acknowledged."""
        self.done = 0

    def read(self, path: Path) -> None:
        """Check the output of a writer."""
        self.unsure = []
        for line in path.read_text().splitlines():
            said = json.loads(line)
            if said == ["done"]:
                self.settle(self.unsure)
            elif said != ["ready"]:
                self.unsure = said

    def settle(self, intent: list[Any]) -> None:
        """Know that something was done."""
        self.turns = self.outcome(intent)
        if intent[0] == "append":
            self.keys[intent[1]] = intent[2]
        self.unsure = []
        self.done += 1

    def outcome(self, intent: list[Any]) -> list[list[Body]]:
        """Return what is there when something was done."""
        if intent[0] == "append":
            return [*self.turns, intent[2]]
        if intent[0] == "revert":
            self.taken = self.turns[intent[1] :]
            return self.turns[: intent[1]]
        return [*self.turns, *self.taken] if intent[0] == "undo" else self.turns

    def compare(self, messages: object) -> None:
        """Look at what is there."""
        if messages != flat(self.turns):
            assert self.unsure, "what was acknowledged is not what is there"
            self.settle(self.unsure)
        assert messages == flat(self.turns)


def flat(turns: list[list[Body]]) -> list[Body]:
    return [message for turn in turns for message in turn]


def killed(url: str, seed: int, path: Path) -> None:
    """Kill a writer during the last of several operations."""
    chance = random.Random(seed)
    process = started(write_until_killed, url, "victim", seed, str(path))
    lines, deadline = chance.randint(1, 20), time.monotonic() + 60
    while not (path.exists() and path.read_bytes().count(b"\n") >= lines):
        assert process.is_alive() and time.monotonic() < deadline, "the writer ended, or did not start"
        time.sleep(0.001)
    time.sleep(chance.uniform(0.0, 0.03))
    process.kill()
    process.join(10)


async def checked(url: str, model: Model) -> None:
    """Open the store as the next process would, check everything, finish started operations, and continue."""
    async with await open_store(url) as store:
        session = await store.session("victim")
        if await session.exists():
            assert await session.verify() == []
            model.compare(await session.export())
        if model.unsure and model.unsure[0] == "append":
            model.keys[model.unsure[1]] = model.unsure[2]
            model.turns.append(model.unsure[2])
        for key, messages in list(model.keys.items())[-3:]:
            await session.append(messages, key=key)
        model.unsure = []
        model.compare(await session.export() if model.turns else [])
        start = time.monotonic()
        async with session.turn(patience=30):
            await session.append(turn_of("after", model.done))
        await session.compact(3_000, patience=30)
        assert time.monotonic() - start < LEASE * 2 + 60, "the lock of a dead process was not free after its lease"
        model.turns.append(turn_of("after", model.done))
        model.compare(await session.export())
        assert await session.verify() == []


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_killed_at_random_moments(store: str, tmp_path: Path) -> None:
    """A writer is killed again and again; each time the next one finds all that was acknowledged, and nothing half."""
    place, model = Place(store, tmp_path), Model()
    for number in range(KILLS):
        path = tmp_path / f"log {number}"
        killed(place.url, number, path)
        model.read(path)
        asyncio.run(checked(place.url, model))
    assert model.done > KILLS, "the writers hardly got to work"
