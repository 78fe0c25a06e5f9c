"""A very long history is compacted in stages: bounded memory, resumable, nothing lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.session.builders import fresh, run

import kompakt
from kompakt.engine.pivot.pivot import Material
from kompakt.session import compaction
from kompakt.session.compaction import SessionCompaction
from kompakt.session.rows import RowCodec, StoredMessage
from kompakt.session.session import Session
from kompakt.store.records import StoredRow

STAGE = 160
BUDGET = 2_000
ROUNDS = 250


class _Interrupted(Exception):
    """Simulates the end of the process."""


def history() -> list[dict[str, Any]]:
    """Make rounds of a request, a call, its result and an answer."""
    made: list[dict[str, Any]] = []
    for number in range(ROUNDS):
        call = {"name": "run", "arguments": f'{{"command": "make part-{number}"}}'}
        made += [
            {"role": "user", "content": f"Build part {number}, and never touch file keep_{number}.txt."},
            {"role": "assistant", "tool_calls": [{"id": f"c{number}", "type": "function", "function": call}]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": f"built part {number} in {number} seconds"},
            {"role": "assistant", "content": f"Part {number} is built; its checksum is {number * 7919:x}."},
        ]
    return made


@pytest.fixture(autouse=True)
def small_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "STAGE", STAGE)


async def long_session() -> Session:
    session = await fresh()
    await session.append(history(), format="openai-chat")
    return session


class Decoded:
    """Records how many rows are decoded at once, and which."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most, self.first = 0, 10**9
        stored = RowCodec.stored

        def counted(codec: RowCodec, rows: Sequence[StoredRow], *rest: Any) -> list[StoredMessage]:
            self.most = max(self.most, len(rows))
            self.first = min([self.first, *(row.seq for row in rows)])
            return stored(codec, rows, *rest)

        monkeypatch.setattr(RowCodec, "stored", counted)


def test_messages_in_memory_do_not_depend_on_the_length_of_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        session = await long_session()
        tokens = (await session.project()).tokens
        decoded = Decoded(monkeypatch)
        made = await session.compact(BUDGET)
        shown = await session.project()
        assert decoded.most < 2 * STAGE < len(history()) / 3
        assert made.changed and shown.tokens <= BUDGET
        assert tokens * 0.99 < made.tokens_before < tokens * 1.01
        assert len(await session.compactions()) > len(history()) / STAGE / 2
        assert kompakt.check(shown.payload) == []

    run(main())


def test_every_message_can_still_be_recalled() -> None:
    async def main() -> None:
        session = await long_session()
        await session.compact(BUDGET)
        for number in (0, ROUNDS // 2, ROUNDS - 2):
            assert f"checksum is {number * 7919:x}" in (await session.recall(f"{number * 7919:x}")).text
        assert await session.export() == history()

    run(main())


def test_an_interrupted_compaction_continues_after_its_last_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with the same bytes as one that was not interrupted, and reads no finished stage again."""

    async def main() -> None:
        whole, parts = await long_session(), await long_session()
        await whole.compact(BUDGET)
        expected = (await whole.project()).payload
        announce, left = compaction.announce, 3

        def interrupted(prepared: Any) -> SessionCompaction:
            nonlocal left
            left -= 1
            if not left:
                raise _Interrupted
            return announce(prepared)

        with monkeypatch.context() as patched:
            patched.setattr(compaction, "announce", interrupted)
            with pytest.raises(_Interrupted):
                await parts.compact(BUDGET)
        done = await parts.compactions()
        assert len(done) == 3
        decoded = Decoded(monkeypatch)
        reader = await parts.reader()
        assert reader.timeline.pivot is not None
        frame = await reader.frame(reader.timeline.pivot)
        await parts.compact(BUDGET)
        kept = {entry.seq for entry in frame.view}
        assert decoded.first in {*kept, reader.timeline.pivot.tip + 1}
        assert (await parts.project()).payload == expected

    run(main())


def test_a_summarizer_is_asked_once() -> None:
    async def main() -> None:
        asked: list[Material] = []

        def summarize(material: Material) -> str:
            asked.append(material)
            return "The parts were built one after the other."

        session = await long_session()
        await session.compact(BUDGET, summarizer=summarize)
        assert len(asked) == 1
        assert "one after the other" in str((await session.project()).payload)

    run(main())


def test_a_history_that_fits_is_not_compacted() -> None:
    async def main() -> None:
        session = await long_session()
        made = await session.compact(10_000_000)
        assert not made.changed and await session.compactions() == []

    run(main())
