"""The state that follows from the events of a session, and what ``verify`` detects after tampering."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.session.builders import fresh, run, turns

from kompakt.model.messages import Message, Reasoning, Text, ToolCall, ToolResult
from kompakt.session.reader import mid_step
from kompakt.session.timeline import (
    CompactionFailure,
    CompactionRecord,
    EditEvent,
    PinEvent,
    RecordedEvent,
    RevertEvent,
    SessionEvent,
    Timeline,
    UndoEvent,
)
from kompakt.store.memory import MemoryRecords

REST: dict[str, Any] = {"frame": "{}", "reason": "", "policy": "", "tokens_before": 9, "tokens_after": 1}


def timeline(*deeds: SessionEvent) -> Timeline:
    """Make a timeline of events, numbered from 1."""
    return Timeline(RecordedEvent(number, deed, 0.0) for number, deed in enumerate(deeds, 1))


def compaction(id: str, tip: int, **more: Any) -> CompactionRecord:
    """Return a compaction with its summary after a row, followed by the resume message."""
    return CompactionRecord(
        id=id, covers_to=tip - 1, tip=tip, **{"summary": tip + 1, "resume": tip + 2, **REST, **more}
    )


class TestTimeline:
    @given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 10))), st.integers(0, 30), st.integers(0, 40))
    def test_live_spans_are_the_live_rows(self, dead: list[tuple[int, int]], after: int, upto: int) -> None:
        """In order, apart from one another, and exactly those that no revert took."""
        made = timeline(*(RevertEvent(turn=0, dead=(first, first + more)) for first, more in dead))
        spans = made.live_spans(after, upto)
        listed = [seq for first, last in spans for seq in range(first, last + 1)]
        assert listed == [seq for seq in range(after + 1, upto + 1) if made.is_live(seq)]
        assert all(first <= last for first, last in spans)
        gone = {seq for first, more in dead for seq in range(first, first + more + 1)}
        assert listed == [seq for seq in range(after + 1, upto + 1) if seq not in gone]

    def test_the_newest_active_compaction_is_the_pivot(self) -> None:
        """An undone or reverted one is not; its resume message is ignored."""
        one, two = compaction("a", 5), compaction("b", 9)
        assert timeline().pivot is None
        assert timeline(one, two).pivot == two
        assert timeline(one, two, UndoEvent(event=2)).pivot == one
        assert timeline(one, two, UndoEvent(event=1)).pivot == two
        assert timeline(one, two, UndoEvent(event=1), UndoEvent(event=2)).pivot is None
        assert timeline(one, two, RevertEvent(turn=1, dead=(8, 12))).pivot == one
        assert timeline(one, two, RevertEvent(turn=1, dead=(8, 12)), UndoEvent(event=3)).pivot == two
        assert timeline(one, two, UndoEvent(event=2)).muted == {11}
        assert timeline(one, two).muted == set()

    def test_requests_are_answered_once(self) -> None:
        """By a compaction, also one that was taken back, or by a failure that gives them up."""
        one, failed = compaction("a", 5, markers=(4,)), CompactionFailure(reason="too large", markers=(7,))
        assert timeline(one, failed, UndoEvent(event=1)).answered == {4, 7}

    def test_edits_and_pins_are_active_until_undone(self) -> None:
        """The newest words of a summary; the pins in the order they were set."""
        one, said = compaction("a", 5), [EditEvent(compaction="a", text=words) for words in ("x", "y")]
        assert timeline(one, *said).edited_summary(one) == "y"
        assert timeline(one, *said, UndoEvent(event=3)).edited_summary(one) == "x"
        assert timeline(one, *said).edited_summary(compaction("b", 5)) is None
        pins = [
            PinEvent(text="a"),
            PinEvent(text="b"),
            PinEvent(text="a"),
            PinEvent(text="c"),
            PinEvent(text="c", pinned=False),
        ]
        assert timeline(*pins).pins == ("b", "a")

    def test_the_newest_undoable_event(self) -> None:
        """Compactions, reverts and edits, newest first; never pins, failures or what was undone."""
        one, edit = compaction("a", 5), EditEvent(compaction="a", text="x")
        assert timeline(PinEvent(text="a"), CompactionFailure(reason="")).last_undoable() is None
        last = timeline(one, edit, PinEvent(text="a"), UndoEvent(event=2)).last_undoable()
        assert last is not None
        assert last.number == 1


class TestMidStep:
    @pytest.mark.parametrize(
        ("messages", "expected"),
        [
            ([], False),
            ([Message("user", (Text("go"),))], False),
            ([Message("assistant", (Text("done"),))], False),
            ([Message("assistant", (ToolCall("a", "read", {}),))], True),
            ([Message("assistant", (Reasoning("hm"),))], True),
            ([Message("assistant", (ToolCall("a", "read", {}),)), Message("tool", (ToolResult("a", "x"),))], False),
            (
                [
                    Message("assistant", (ToolCall("a", "read", {}), ToolCall("b", "read", {}))),
                    Message("tool", (ToolResult("a", "x"),)),
                ],
                True,
            ),
            ([Message("assistant", (ToolCall("a", "read", {}),)), Message("user", (Text("stop"),))], False),
        ],
    )
    def test_mid_step(self, messages: list[Message], expected: bool) -> None:
        """A call that waits for its result, or reasoning for what it leads to."""
        assert mid_step(messages) == expected


class TestVerify:
    def test_tampering_is_found(self) -> None:
        """A changed item, a lost row, a lost blob and a wrong count in the head are each reported."""

        async def work() -> None:
            for tamper, said in (
                (_change_item, "the content differs from what was written"),
                (_lose_row, "missing"),
                (_lose_blob, "is missing"),
                (_swap_rows, "out of order|chain|reference"),
                (_miscount, "messages: the head says"),
                (_change_reverted, "reverted: the content differs from what was written"),
                (_lose_shown, "are missing"),
            ):
                records = MemoryRecords()
                session = await fresh(records)
                await session.save(turns(8, chars=5000), format="openai-chat")
                await session.request_compaction()
                await session.compact(6000)
                await session.append([{"role": "user", "content": "One more."}])
                await session.revert(8)
                assert await session.verify() == []
                tamper(next(iter(records._sessions.values())), records)
                found = " ".join(await session.verify())
                assert any(word in found for word in said.split("|")), (tamper, found)

        run(work())


def _change_item(kept: Any, _: Any) -> None:
    kept.rows[3] = msgspec.structs.replace(kept.rows[3], item=kept.rows[1].item, blobs=())


def _lose_row(kept: Any, _: Any) -> None:
    del kept.rows[5]


def _lose_blob(_: Any, records: Any) -> None:
    records._blobs.pop(next(iter(records._blobs)))


def _swap_rows(kept: Any, _: Any) -> None:
    one, two = kept.rows[1], kept.rows[6]
    kept.rows[1] = msgspec.structs.replace(two, seq=1)
    kept.rows[6] = msgspec.structs.replace(one, seq=6)


def _miscount(kept: Any, _: Any) -> None:
    kept.head = msgspec.structs.replace(kept.head, messages=3)


def _change_reverted(kept: Any, _: Any) -> None:
    last = max(kept.rows)
    kept.rows[last] = msgspec.structs.replace(kept.rows[last], item=kept.rows[1].item)


def _lose_shown(kept: Any, _: Any) -> None:
    del kept.rows[1]
