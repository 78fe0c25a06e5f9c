"""Undo, revert, edit and fork. All of them go by turns and sequence numbers; no clock is involved.

Nothing is removed. An undo names an event that no longer counts, a revert lists rows that no longer count.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from secrets import token_hex
from typing import TYPE_CHECKING

import msgspec

from kompakt.errors import UsageError
from kompakt.session.reader import SessionReader
from kompakt.session.rows import Draft
from kompakt.session.timeline import (
    CompactionRecord,
    EditEvent,
    Frame,
    PinEvent,
    RecordedEvent,
    RevertEvent,
    SessionEvent,
    Timeline,
    UndoEvent,
    ViewEntry,
    frame_text,
)
from kompakt.store.records import Head

if TYPE_CHECKING:
    from kompakt.session.session import Session


class CompactionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One compaction, as listed by ``Session.compactions``."""

    id: str
    at: float
    undone: bool
    """Whether it no longer counts: it was undone, or its turns were reverted."""
    auto: bool
    reason: str
    policy: str
    tokens_before: int
    tokens_after: int
    covers_to: int
    failures: tuple[str, ...] = ()


def list_compactions(timeline: Timeline) -> list[CompactionInfo]:
    """List all compactions, oldest first."""
    return [
        CompactionInfo(
            id=record.id,
            at=event.at,
            undone=timeline.is_undone(event, record),
            auto=record.auto,
            reason=record.reason,
            policy=record.policy,
            tokens_before=record.tokens_before,
            tokens_after=record.tokens_after,
            covers_to=record.covers_to,
            failures=record.failures,
        )
        for event, record in timeline.compactions
    ]


# --- undo --------------------------------------------------------------------------------------------------------


async def undo(session: Session, id: str | None) -> str:
    """Undo a compaction with all newer ones, or the newest event that can be undone; return its description."""
    description = ""

    async def make(_: Head) -> Draft:
        nonlocal description
        reader = await session.reader()
        newer, recorded = _to_undo(reader.timeline, id)
        draft = Draft(reader.head, reader.codec)
        for number in (*newer, recorded.number):
            draft.add_event(UndoEvent(event=number))
        if type(recorded.event) is RevertEvent:
            await _restore_rows(draft, reader, recorded.event)
        description = _described(recorded.event) + (f" and {len(newer)} newer" if newer else "")
        return draft

    async with session.change_lock() as fence:
        await session.write(make, fence=fence)
    return description


async def redo(session: Session) -> str:
    """Take back the newest undo of a compaction or an edit; return the description of what counts again."""
    description = ""

    def events(reader: SessionReader) -> Sequence[SessionEvent]:
        nonlocal description
        found = reader.timeline.last_redoable()
        if found is None:
            raise UsageError("there is nothing to redo: no compaction or edit was undone, or the session changed since")
        undone, taken = found
        description = _described(taken)
        return [UndoEvent(event=undone.number)]

    await session.change(events)
    return description


def _to_undo(timeline: Timeline, id: str | None) -> tuple[list[int], RecordedEvent]:
    """Return the event to undo, and the newer compactions that continue from it, newest first."""
    recorded = timeline.last_undoable() if id is None else timeline.compaction(id)
    if recorded is None:
        raise UsageError("there is nothing to undo" if id is None else f"there is no compaction {id!r} in the session")
    if recorded.number in timeline.undone:
        raise UsageError(f"compaction {id!r} has been undone already")
    later = [one.number for one, _ in timeline.compactions if one.number > recorded.number] if id is not None else []
    return [number for number in reversed(later) if number not in timeline.undone], recorded


async def _restore_rows(draft: Draft, reader: SessionReader, revert: RevertEvent) -> None:
    """Make reverted rows live again, if no row was appended since."""
    first, last = revert.dead
    if reader.head.rows != last:
        raise UsageError(f"messages were appended since the revert to turn {revert.turn}; fork the session instead")
    others = [span for span in reader.timeline.dead if span != revert.dead]
    rows = await reader.records.rows(reader.head.key, after=first - 1, upto=last, limit=last - first + 1)
    live = [row for row in rows if not any(start <= row.seq <= end for start, end in others)]
    if live:
        turn = max((row.turn for row in live if row.kind == "message"), default=draft.head.turn)
        messages = reader.head.messages + sum(row.kind == "message" for row in live)
        draft.change(tip=live[-1].seq, chain=live[-1].chain, turn=turn, messages=messages)


def _described(event: SessionEvent) -> str:
    if type(event) is CompactionRecord:
        return f"compaction {event.id}"
    if type(event) is RevertEvent:
        return f"the revert to turn {event.turn}"
    return f"the edit of compaction {event.compaction}" if type(event) is EditEvent else "an event"


# --- revert ------------------------------------------------------------------------------------------------------


async def revert(session: Session, turn: int) -> int:
    """Go back to the end of a turn; return the number of messages taken back."""
    removed = 0

    async def make(_: Head) -> Draft:
        nonlocal removed
        reader = await session.reader()
        head = reader.head
        if not 0 <= turn < head.turn:
            raise UsageError(f"cannot go back to turn {turn}; the session has {head.turn} turns")
        first = await reader.turn_end(turn) + 1
        draft = Draft(head, reader.codec)
        draft.add_event(RevertEvent(turn=turn, dead=(first, head.rows)))
        spans = reader.timeline.live_spans(0, first - 1)
        before = await reader.records.rows_at(head.key, [spans[-1][1]]) if spans else []
        removed = 0
        async for page in reader.rows(after=first - 1):
            removed += sum(row.kind == "message" for row in page)
        draft.change(tip=0, chain=b"", turn=turn, messages=head.messages - removed)
        if before:
            draft.change(tip=before[-1].seq, chain=before[-1].chain)
        return draft

    await session.write(make)
    return removed


# --- edit --------------------------------------------------------------------------------------------------------


async def edit_summary(session: Session, text: str, id: str | None) -> None:
    if not text.strip():
        raise UsageError("a summary cannot be empty; undo the compaction instead")

    def events(reader: SessionReader) -> Sequence[SessionEvent]:
        pivot = reader.timeline.pivot
        found = reader.timeline.compaction(id) if id is not None else None
        if pivot is None or (id is not None and found is None):
            raise UsageError(f"there is no compaction {id!r} in the session" if id else "the session has no summary")
        return [EditEvent(compaction=id or pivot.id, text=reader.codec.cleaned(text))]

    await session.change(events)


# --- fork --------------------------------------------------------------------------------------------------------


async def fork(session: Session, id: str | None, turn: int | None) -> Session:
    """Create a session with the first turns of this one: same messages and references, independent from then on."""
    reader = await session.reader()
    upto = reader.head.rows if turn is None or turn == reader.head.turn else await reader.turn_end(turn)
    other = session.sibling(id if id is not None else f"{session.id}-{token_hex(4)}")
    if await other.exists():
        raise UsageError(f"session {other.id!r} exists already; give the fork another id")
    carried = await _newest_compaction(reader, upto)
    skipped = _skipped_rows(reader, carried)
    rows = [row async for page in reader.rows(upto=upto) for row in page if row.seq not in skipped]
    places = {row.seq: number for number, row in enumerate(rows, 1)}
    begun = msgspec.structs.replace(
        reader.head,
        key=other.key,
        id=other.id.encode("utf-8", "surrogatepass"),
        created=time.time(),
        **{"rows": 0, "events": 0, "tip": 0, "messages": 0, "turn": 0, "chain": b""},
    )
    draft = Draft(begun, reader.codec)
    for start in range(0, len(rows), 500):
        page = rows[start : start + 500]
        draft.copy(await reader.stored(page), await reader.blobs(page))
    draft.change(turn=reader.head.turn if turn is None else turn)
    for text in reader.timeline.pins:
        draft.add_event(PinEvent(text=text))
    if carried is not None:
        draft.add_event(_renumbered(*carried, places))
    await session.records.commit(await draft.batch(session.records), seen=None)
    return other


async def _newest_compaction(reader: SessionReader, upto: int) -> tuple[CompactionRecord, Frame] | None:
    """Return the newest active compaction of the rows that are copied."""
    for event, record in reversed(reader.timeline.compactions):
        if max(record.tip, record.summary) <= upto and not reader.timeline.is_undone(event, record):
            return record, await reader.frame(record)
    return None


def _skipped_rows(reader: SessionReader, carried: tuple[CompactionRecord, Frame] | None) -> set[int]:
    """Return the rows a fork does not need: markers and resume messages of other compactions."""
    needed = {entry.seq for entry in carried[1].view} | set(carried[0].markers) if carried else set[int]()
    return (reader.timeline.muted | reader.timeline.answered) - needed


def _renumbered(record: CompactionRecord, frame: Frame, places: dict[int, int]) -> CompactionRecord:
    """Return a compaction with the sequence numbers of the fork."""
    view = tuple(ViewEntry(places[entry.seq], entry.item, entry.pruned, entry.pruned_at) for entry in frame.view)
    before = sorted(places)

    def nearest(seq: int) -> int:
        return max((places[one] for one in before if one <= seq), default=0)

    return msgspec.structs.replace(
        record,
        frame=frame_text(msgspec.structs.replace(frame, view=view)),
        covers_to=nearest(record.covers_to),
        tip=nearest(record.tip),
        summary=places.get(record.summary, 0),
        resume=places.get(record.resume, 0),
        markers=tuple(places[seq] for seq in record.markers if seq in places),
    )
