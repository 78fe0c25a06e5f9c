"""Go back and aside: undo, revert, edit, fork, export. By turn and sequence number; clocks are never asked.

Nothing is removed. A revert says which rows no longer count, an undo which event no longer does.
"""

from __future__ import annotations

import time
from bisect import bisect
from collections.abc import Sequence
from secrets import token_hex
from typing import TYPE_CHECKING, Literal

import msgspec

from kompakt import api
from kompakt.engine.compaction.report import Report
from kompakt.engine.pivot.saved_state import State, resume
from kompakt.errors import UsageError
from kompakt.model.groups import sides, turn_cuts
from kompakt.model.messages import History, Json, Message
from kompakt.model.references import digest
from kompakt.session.compaction import RECOVERABLE, SessionCompaction, frame_text, new_id
from kompakt.session.draft import Draft
from kompakt.session.projection import ResumedSession, ledger_without, project_session, resume_session
from kompakt.session.reader import SessionReader
from kompakt.session.row_codec import history_of
from kompakt.session.timeline import (
    CompactionRecord,
    Frame,
    Pin,
    RecordedEvent,
    Revert,
    SessionEvent,
    SummaryEdit,
    Timeline,
    Undo,
    ViewEntry,
)
from kompakt.store.records import Head, StoredRow

if TYPE_CHECKING:
    from kompakt.session.session import Session


class CompactionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of a compaction."""

    id: str
    at: float
    undone: bool
    """Whether it no longer counts: taken back, or reverted with the turns behind it."""
    auto: bool
    reason: str
    policy: str
    tokens_before: int
    tokens_after: int
    covers_to: int
    failures: tuple[str, ...] = ()


def accounts(timeline: Timeline) -> list[CompactionInfo]:
    """Tell of all compactions, oldest first."""
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
    """Take back a compaction, or whatever was done last; say what that was."""
    said = ""

    async def make(_: Head) -> Draft:
        nonlocal said
        reader = await session.reader()
        event = _to_undo(reader.timeline, id)
        draft = Draft(reader.head, reader.codec)
        draft.do(Undo(event=event.number))
        if type(event.deed) is Revert:
            await _return(draft, reader, event.deed)
        said = _said(event.deed)
        return draft

    await session.write(make)
    return said


def _to_undo(timeline: Timeline, id: str | None) -> RecordedEvent:
    event = timeline.last_undoable() if id is None else timeline.compaction(id)
    if event is None:
        raise UsageError("there is nothing to undo" if id is None else f"there is no compaction {id!r} in the session")
    if event.number in timeline.undone:
        raise UsageError(f"compaction {id!r} has been undone already")
    return event


async def _return(draft: Draft, reader: SessionReader, revert: Revert) -> None:
    """Make rows count again that a revert took back; only while nothing has taken their place."""
    first, last = revert.dead
    if reader.head.rows != last:
        raise UsageError(f"messages were appended since the revert to turn {revert.turn}; fork the session instead")
    others = [span for span in reader.timeline.dead if span != revert.dead]
    rows = await reader.records.rows(reader.head.key, after=first - 1, upto=last, limit=last - first + 1)
    live = [row for row in rows if not any(one <= row.seq <= other for one, other in others)]
    _stand_on(draft, live, messages=reader.head.messages + sum(row.kind == "message" for row in live))


def _stand_on(draft: Draft, live: Sequence[StoredRow], *, messages: int) -> None:
    """Let the head stand on the last of some rows."""
    if live:
        turn = max((row.turn for row in live if row.kind == "message"), default=draft.head.turn)
        draft.change(tip=live[-1].seq, chain=live[-1].chain, turn=turn, messages=messages)


def _said(deed: SessionEvent) -> str:
    if type(deed) is CompactionRecord:
        return f"compaction {deed.id}"
    if type(deed) is Revert:
        return f"the revert to turn {deed.turn}"
    return f"the edit of compaction {deed.compaction}" if type(deed) is SummaryEdit else "an event"


# --- revert ------------------------------------------------------------------------------------------------------


async def revert(session: Session, turn: int) -> int:
    """Return to where the session stood after so many turns; return how many messages that took back."""
    taken = 0

    async def make(_: Head) -> Draft:
        nonlocal taken
        reader = await session.reader()
        head = reader.head
        if not 0 <= turn < head.turn:
            raise UsageError(f"the session has {head.turn} turns: it cannot go back to turn {turn}")
        first = await _end_of(reader, turn) + 1
        draft = Draft(head, reader.codec)
        draft.do(Revert(turn=turn, dead=(first, head.rows)))
        spans = reader.timeline.live_spans(0, first - 1)
        before = await reader.records.rows_at(head.key, [spans[-1][1]]) if spans else []
        taken = 0
        async for page in reader.rows(after=first - 1):
            taken += sum(row.kind == "message" for row in page)
        draft.change(tip=0, chain=b"", turn=turn, messages=head.messages - taken)
        if before:
            draft.change(tip=before[-1].seq, chain=before[-1].chain)
        return draft

    await session.write(make)
    return taken


async def _end_of(reader: SessionReader, turn: int) -> int:
    """Find the row before which the next turn begins, when the session may be cut there.

    Raises:
        UsageError: a later turn answers a call of this one.
    """
    cuts = set(await reader.cuts())
    for earlier in range(turn, -1, -1):
        first = await _first_of(reader, earlier + 1)
        spans = reader.timeline.live_spans(0, first - 1)
        if (spans[-1][1] if spans else 0) in cuts:
            break
    else:
        earlier, first = 0, 1
    if earlier != turn:
        raise UsageError(f"a later turn answers a call of turn {turn} or before; go to turn {earlier} instead")
    return first - 1


async def _first_of(reader: SessionReader, turn: int) -> int:
    """Find the first row of a turn that still counts."""
    turns = reader.head.turn
    if not 1 <= turn <= turns:
        raise UsageError(f"the session has {turns} turns: there is no turn {turn}")
    seqs = [seq for seq in await reader.records.turn_seqs(reader.head.key, turn) if reader.timeline.is_live(seq)]
    return seqs[0]


# --- edit --------------------------------------------------------------------------------------------------------


async def edit(session: Session, text: str, id: str | None) -> None:
    """Say a summary in other words."""
    if not text.strip():
        raise UsageError("a summary cannot be empty; undo the compaction instead")

    def deeds(reader: SessionReader) -> Sequence[SessionEvent]:
        pivot = reader.timeline.pivot
        found = reader.timeline.compaction(id) if id is not None else None
        if pivot is None or (id is not None and found is None):
            raise UsageError(f"there is no compaction {id!r} in the session" if id else "the session has no summary")
        return [SummaryEdit(compaction=id or pivot.id, text=reader.codec.cleaned(text))]

    await session.do(deeds)


# --- replace -----------------------------------------------------------------------------------------------------


async def replace(session: Session, history: History, *, reason: str = "asked for") -> SessionCompaction:
    """Let the model see other messages: those that are stored are shown as they are, the others are inserted."""
    made: list[SessionCompaction] = []

    async def make(_: Head) -> Draft:
        reader = await session.reader()
        now = await resume_session(reader)
        known: dict[bytes, list[int]] = {}
        for seq, message in zip(now.seqs, now.context.messages, strict=True):
            known.setdefault(digest(message), []).append(seq)
        draft = Draft(reader.head, reader.codec)
        view = [_placed(draft, known, item, message) for item, message in reader.codec.items(history)]
        made[:] = [_replaced(draft, reader, now, view, history, reason)]
        return draft

    await session.write(make)
    return made[0]


def _placed(draft: Draft, known: dict[bytes, list[int]], item: Json, message: Message) -> ViewEntry:
    """Find the row of a message, or insert one."""
    seqs = known.get(digest(message))
    return ViewEntry(seqs.pop(0) if seqs else draft.add(item, message, kind="inserted"))


def _replaced(
    draft: Draft, reader: SessionReader, now: ResumedSession, view: list[ViewEntry], history: History, reason: str
) -> SessionCompaction:
    before, shown = now.context.projected_tokens, {entry.seq for entry in view}
    state = State(breaks=tuple(range(1, len(view))), stripped=len(view), ledger=ledger_without(now, shown))
    context = resume(now.history.with_messages(history), state, counter=now.context.counter)
    report = Report(
        policy="replace",
        reason=reason,
        tokens_before=before,
        tokens_after=context.projected_tokens,
        messages_before=len(now.history),
        messages_after=len(view),
        budget=0,
        recoverable=RECOVERABLE,
    )
    record = CompactionRecord(
        id=new_id(),
        frame=frame_text(Frame(view=tuple(view), state=state, report=report)),
        covers_to=max([seq for seq in now.seqs if seq not in shown], default=0),
        tip=draft.head.rows,
        auto=False,
        reason=report.reason,
        policy=report.policy,
        tokens_before=before,
        tokens_after=report.tokens_after,
    )
    draft.do(record)
    return SessionCompaction(
        id=record.id, changed=True, tokens_before=before, tokens_after=report.tokens_after, report=report
    )


# --- fork --------------------------------------------------------------------------------------------------------


async def fork(session: Session, id: str | None, turn: int | None) -> Session:
    """Begin another session with the first turns of this one: same messages, same references, its own future."""
    reader = await session.reader()
    upto = reader.head.rows if turn is None or turn == reader.head.turn else await _end_of(reader, turn)
    other = session.sibling(id if id is not None else f"{session.id}-{token_hex(4)}")
    if await other.exists():
        raise UsageError(f"session {other.id!r} exists already; give the fork another id")
    carried = await _carried(reader, upto)
    left = _left(reader, carried)
    rows = [row async for page in reader.rows(upto=upto) for row in page if row.seq not in left]
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
        chosen = rows[start : start + 500]
        draft.copy(await reader.stored(chosen), await reader.blobs(chosen))
    draft.change(turn=reader.head.turn if turn is None else turn)
    for text in reader.timeline.pins:
        draft.do(Pin(text=text))
    if carried is not None:
        draft.do(_moved(*carried, places))
    await session.records.commit(await draft.batch(session.records), seen=None)
    return other


async def _carried(reader: SessionReader, upto: int) -> tuple[CompactionRecord, Frame] | None:
    """Find the newest compaction that counts in the fork: one that lies within it."""
    for event, record in reversed(reader.timeline.compactions):
        if max(record.tip, record.summary) <= upto and not reader.timeline.is_undone(event, record):
            return record, await reader.frame(record)
    return None


def _left(reader: SessionReader, carried: tuple[CompactionRecord, Frame] | None) -> set[int]:
    """List the rows that a fork does without: what compactions that were taken back asked, and were asked for."""
    needed = {entry.seq for entry in carried[1].view} | set(carried[0].markers) if carried else set[int]()
    return (reader.timeline.mute | reader.timeline.answered) - needed


def _moved(record: CompactionRecord, frame: Frame, places: dict[int, int]) -> CompactionRecord:
    """Say a compaction with the numbers its rows have in the fork."""
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


# --- export ------------------------------------------------------------------------------------------------------


async def export(
    session: Session,
    *,
    view: Literal["full", "model"] = "full",
    format: str | None = None,
    last: int | None = None,
    first: int | None = None,
) -> Json:
    """Return a session as a request."""
    reader = await session.reader()
    if last is not None and last < 1:
        raise UsageError(f"turns={last!r}: give how many of the last turns to export, 1 or more")
    if view == "model":
        shown = project_session(await resume_session(reader))
        history = _last_turns(api.parse(shown.payload, reader.head.format), last)
        made = api.render(history, format)
        return made if format in (None, reader.head.format) else api.repair(made, format, resting=True).payload
    if last is not None and reader.head.turn:
        first = max(1, reader.head.turn - last + 1)
    after = 0
    if first is not None:  # as much more as the groups want that reach into the turn
        cuts = await reader.cuts()
        after = cuts[bisect(cuts, await _first_of(reader, first) - 1) - 1]
    messages = [one.message for one in await reader.all(after=after) if one.row.kind == "message"]
    return api.render(history_of(messages, reader.head.format, reader.envelope), format)


def _last_turns(history: History, last: int | None) -> History:
    """Keep the last turns of what the model sees, cut where a turn begins."""
    cuts = turn_cuts(history.messages)
    if last is None or last >= len(cuts):
        return history
    return history.with_messages(sides(history.messages, cuts[-last])[1])
