"""Originals into sessions: every message a client ever sent is in the store, in a session that people can open.

A line is a conversation as far as it is recorded: which session, how many items, under which key. Marks in the store
say so for every replica. What a client changes afterwards is another line, in another session. A line is written
behind the answers, so nobody waits for it; a pivot waits for the originals it hides.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kompakt.engine.report import Report
from kompakt.engine.resuming import State
from kompakt.errors import Conflict
from kompakt.gateway.looks import decoded, parsed
from kompakt.gateway.pivots import Pivot
from kompakt.gateway.trails import Trail
from kompakt.model.messages import Message
from kompakt.model.references import digest
from kompakt.session.coding import Coding
from kompakt.session.compacting import RECOVERABLE, frame_text
from kompakt.session.events import Compacted, Entry, Frame
from kompakt.session.session import Session
from kompakt.session.store import Store
from kompakt.session.writing import Draft
from kompakt.store.values import Head
from kompakt.wire.formats import WIRES

_PAGE = 500
_FORK_DIGITS = 8
_TRIES = 8
"""How often a session is looked at again that others write to at the same time."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as far as it is recorded."""

    session: str
    items: int
    """How many items of it are recorded, system messages at its head not counted."""
    offset: int
    """How many rows stand before the first of them: the system messages of the first request."""

    @property
    def rows(self) -> int:
        """The row of the newest item."""
        return self.offset + self.items


class _Moved(Exception):
    """Somebody else has written to the session."""


def mark_name(key: bytes) -> str:
    """Name the note that says where a prefix is recorded."""
    return f"mark {key.hex()}"


async def record(store: Store, trail: Trail, line: Line) -> Line:
    """Write what a session does not have of a request, into it or, where it went on otherwise, into another.

    Raises:
        Conflict: others write to all sessions that were tried, at the same time.
    """
    for _ in range(_TRIES):
        session = await store.session(line.session)
        head = await store.records.head(session.key)
        rows = 0 if head is None else head.messages
        if rows != line.rows:
            known = await _compared(session, trail, line, rows)
            if known.session != line.session:
                line = known
                continue
            line = known
        try:
            return await _append(session, trail, line)
        except _Moved:
            continue
    raise Conflict(f"session {line.session!r} is written to by too many at once; it is recorded with the next request")


async def _append(session: Session, trail: Trail, line: Line) -> Line:
    """Write the items behind a line."""
    start = trail.lead + line.items
    asked = trail.asked
    first = 0 if not line.rows else start
    raw = [asked.item(index) for index in range(first, trail.length)]
    offset = line.offset if line.rows else trail.lead
    grown = Line(session=line.session, items=trail.length - trail.lead, offset=offset)
    if not raw:
        return line
    history = WIRES[asked.format].parse(list(map(decoded, raw)), asked.envelope())

    async def make(head: Head) -> Draft:
        if head.messages != line.rows:
            raise _Moved
        draft = Draft(head, session.coding(head.format, model=history.model))
        if not head.rows:
            draft.change(envelope=session.packing.pack_whole(draft.coding.cleaned(asked.envelope())))
        for item, message in draft.coding.items(history.messages):
            draft.add(item, message)
        return draft

    await session.write(make, history=history)
    return grown


async def _compared(session: Session, trail: Trail, line: Line, rows: int) -> Line:
    """Find out how much of a request a session has that others wrote to; another session when it went on otherwise."""
    reader = await session.reader()
    if rows < line.rows or reader.head.format != trail.asked.format:
        return _forked(line, trail, line.items)
    stored = await reader.all(after=line.rows)
    messages = [one.message for one in stored if one.row.kind == "message"]
    offset = line.offset
    if not line.rows:
        offset = next((at for at, one in enumerate(messages) if one.role != "system"), len(messages))
        messages = messages[offset:]
    own = _own(trail, trail.lead + line.items, len(messages))
    same = _common(messages, own, reader.coding)
    if same < min(len(own), len(messages)):
        return _forked(line, trail, line.items + same)
    return Line(session=line.session, items=line.items + same, offset=offset)


def _forked(line: Line, trail: Trail, items: int) -> Line:
    """Name the session of a conversation that went on otherwise behind so many items: by how it goes on."""
    key = trail.keys[min(trail.length, trail.lead + items + 1)]
    return Line(session=f"{line.session}-{key.hex()[:_FORK_DIGITS]}", items=0, offset=0)


def _own(trail: Trail, start: int, most: int) -> Sequence[Message]:
    end = min(trail.length, start + most)
    return parsed([decoded(trail.asked.item(index)) for index in range(start, end)], trail.asked.format)


def _common(stored: Sequence[Message], own: Sequence[Message], coding: Coding) -> int:
    """Count the messages with which both begin; what was left out of those that are stored is left out of these."""
    cleaned = [message for _, message in coding.items(own)]
    pairs = enumerate(zip(stored, cleaned, strict=False))
    return next((at for at, (one, other) in pairs if digest(one) != digest(other)), min(len(stored), len(cleaned)))


async def names(session: Session, line: Line, start: int) -> tuple[str, ...]:
    """Return what the items from one on are called, system messages not counted."""
    found: list[str] = []
    at, end = line.offset + start, line.rows
    while at < end:
        rows = await session.records.rows(session.key, after=at, upto=end, limit=_PAGE)
        if not rows or any(row.kind != "message" for row in rows):  # somebody did more than the gateway does
            return ()
        found += [row.name for row in rows]
        at = rows[-1].seq
    return tuple(found)


async def tell(session: Session, line: Line, pivot: Pivot) -> None:
    """Say in the session that a pivot was made, so that people see what the model sees."""
    shown = {one.at for one in pivot.view}
    hidden = max((at for at in range(pivot.covers) if at not in shown), default=-1)
    record = Compacted(
        id=pivot.id,
        frame=frame_text(_frame(line, pivot)),
        covers_to=line.offset + hidden + 1 if hidden >= 0 else 0,
        tip=line.offset + pivot.covers,
        reason=pivot.reason,
        policy=pivot.policy,
        tokens_before=pivot.tokens_before,
        tokens_after=pivot.tokens_after,
    )

    async def make(head: Head) -> Draft:
        draft = Draft(head, session.coding(head.format))
        draft.do(record)
        return draft

    await session.write(make, id=f"pivot {pivot.id}")


def _frame(line: Line, pivot: Pivot) -> Frame:
    """Say a pivot's view in rows of the session, system messages first."""
    offset, state = line.offset, pivot.state
    lead = tuple(Entry(seq) for seq in range(1, offset + 1))
    shown = tuple(Entry(offset + one.at + 1, one.item if one.altered else None, one.pruned) for one in pivot.view)
    shifted: State = msgspec.structs.replace(
        state,
        covers=state.covers + offset if state.summary else state.covers,
        stripped=state.stripped + offset if state.stripped else 0,
        breaks=tuple(index + offset for index in state.breaks),
    )
    report = Report(
        policy=pivot.policy,
        reason=pivot.reason,
        tokens_before=pivot.tokens_before,
        tokens_after=pivot.tokens_after,
        messages_before=line.items,
        messages_after=len(pivot.items),
        budget=0,
        steps=(),
        actions=(),
        told=pivot.told,
        recoverable=RECOVERABLE,
        seconds=0.0,
    )
    return Frame(view=(*lead, *shown), state=shifted, report=report)
