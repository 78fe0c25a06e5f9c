"""Events of a session, and the state that follows from them.

Events are append-only. A revert lists rows that no longer count, an undo names an event that no longer counts. One pass
over the events gives the state of the session. The ``tag`` of each class is stored and must not change.

A compaction is an event too and changes no row. Its record lists the messages that the model sees from then on, the
state that the next compaction continues from, and the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from secrets import token_hex
from typing import TypeAlias

import msgspec

from kompakt.engine.compaction.report import Report
from kompakt.engine.pivot.saved_state import SavedContext
from kompakt.model.json import encode, prepare
from kompakt.model.messages import Json

Span: TypeAlias = tuple[int, int]
"""First and last row of a range, both included."""


class ViewEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message that the model sees after a compaction."""

    seq: int
    """Its row."""
    item: Json = None
    """Replaces the row's own item; ``None`` if the row is shown unchanged."""
    pruned: tuple[int, ...] = ()
    """Indices of the parts whose output is hidden."""
    pruned_at: tuple[float, ...] = ()
    """When each of them was hidden; empty in records of version 0.1."""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """What the model sees after a compaction, with its report. Large, so it is stored apart and read on demand."""

    view: tuple[ViewEntry, ...]
    state: SavedContext
    report: Report


class CompactionRecord(msgspec.Struct, frozen=True, kw_only=True, tag="compaction"):
    """A compaction."""

    id: str
    frame: Json
    """A ``Frame`` as JSON text, or a pointer to the blob that holds a long one."""
    covers_to: int
    """The last row that the pivot replaces; 0 if it replaces none."""
    tip: int
    """The last row when it was made; later rows follow the view unchanged."""
    summary: int = 0
    """The row of the summary."""
    resume: int = 0
    """The row that asks the agent to continue; 0 if there is none."""
    markers: tuple[int, ...] = ()
    """Rows of the requests that it answers."""
    auto: bool = True
    reason: str
    policy: str
    tokens_before: int
    tokens_after: int
    failures: tuple[str, ...] = ()
    """Summarizer and strategy errors that did not stop the compaction."""


class CompactionFailure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """A compaction that failed; the session is unchanged."""

    reason: str
    markers: tuple[int, ...] = ()
    """Automatic requests that are dropped. They would fail again, and are repeated if a compaction is still due."""


class UndoEvent(msgspec.Struct, frozen=True, kw_only=True, tag="undo"):
    """Takes back an event; if that is an undo, this is a redo."""

    event: int
    """The number of that event."""


class RevertEvent(msgspec.Struct, frozen=True, kw_only=True, tag="revert"):
    """Takes back rows."""

    turn: int
    """How many turns remain."""
    dead: Span


class EditEvent(msgspec.Struct, frozen=True, kw_only=True, tag="edit"):
    """Replaces the text of a summary."""

    compaction: str
    text: Json
    """The text, or a pointer to the blob that holds a long one."""


class PinEvent(msgspec.Struct, frozen=True, kw_only=True, tag="pin"):
    """Pins a text, or removes the pin."""

    text: str
    pinned: bool = True


class LinkEvent(msgspec.Struct, frozen=True, kw_only=True, tag="link"):
    """Names the session of a sub-agent, or the session that a sub-agent works for."""

    session: str
    is_parent: bool = False


SessionEvent: TypeAlias = (
    CompactionRecord | CompactionFailure | UndoEvent | RevertEvent | EditEvent | PinEvent | LinkEvent
)


class RecordedEvent(msgspec.Struct, frozen=True):
    """An event with its number and time."""

    number: int
    event: SessionEvent
    at: float
    tip: int = 0
    """The last row when it happened."""


class Timeline:
    """All events of a session, and what follows from them."""

    def __init__(self, events: Iterable[RecordedEvent]) -> None:
        self.events = list(events)
        self.undone = _undone(self.events)
        self.dead: list[Span] = sorted(one.event.dead for one in self._active() if type(one.event) is RevertEvent)

    def _active(self) -> Iterable[RecordedEvent]:
        return (one for one in self.events if one.number not in self.undone)

    def is_live(self, seq: int) -> bool:
        """Return whether a row was not reverted."""
        return not any(first <= seq <= last for first, last in self.dead)

    def live_spans(self, after: int, upto: int) -> list[Span]:
        """Return the live rows with ``after < seq <= upto`` as spans."""
        spans: list[Span] = []
        start = after + 1
        for first, last in self.dead:
            if first > upto:
                break
            if first > start:
                spans.append((start, first - 1))
            start = max(start, last + 1)
        return [*spans, (start, upto)] if start <= upto else spans

    @property
    def compactions(self) -> list[tuple[RecordedEvent, CompactionRecord]]:
        """All compactions, oldest first, including those that were undone."""
        return [(one, one.event) for one in self.events if type(one.event) is CompactionRecord]

    def is_undone(self, recorded: RecordedEvent, record: CompactionRecord) -> bool:
        """Return whether a compaction no longer counts: it was undone, or its rows were reverted."""
        return recorded.number in self.undone or not self.is_live(max(record.tip, record.summary))

    @property
    def pivot(self) -> CompactionRecord | None:
        """The newest compaction that counts."""
        return next((record for one, record in reversed(self.compactions) if not self.is_undone(one, record)), None)

    def edited_summary(self, record: CompactionRecord) -> Json:
        """Return the edited summary of a compaction, a text or a pointer to one; ``None`` if it was not edited."""
        edits = [one.event for one in self._active() if type(one.event) is EditEvent]
        return next((edit.text for edit in reversed(edits) if edit.compaction == record.id), None)

    @property
    def muted(self) -> set[int]:
        """Rows of resume messages whose compaction was undone."""
        return {record.resume for one, record in self.compactions if self.is_undone(one, record)}

    @property
    def answered(self) -> set[int]:
        """Rows of markers that need no answer. An undone compaction is not requested again."""
        events = [one.event for one in self.events]
        return {seq for one in events if isinstance(one, CompactionRecord | CompactionFailure) for seq in one.markers}

    @property
    def pins(self) -> tuple[str, ...]:
        pins: dict[str, None] = {}
        for one in self._active():
            if type(one.event) is PinEvent:
                pins.pop(one.event.text, None)
                if one.event.pinned:
                    pins[one.event.text] = None
        return tuple(pins)

    @property
    def parent(self) -> str | None:
        """The session that this one works for, if it is that of a sub-agent."""
        links = (one.event for one in self.events if type(one.event) is LinkEvent)
        return next((link.session for link in links if link.is_parent), None)

    @property
    def children(self) -> tuple[str, ...]:
        """The sessions of sub-agents, oldest first."""
        links = (one.event for one in self.events if type(one.event) is LinkEvent)
        return tuple(dict.fromkeys(link.session for link in links if not link.is_parent))

    def last_undoable(self) -> RecordedEvent | None:
        """Return the newest event that can be undone."""
        kinds = (CompactionRecord, RevertEvent, EditEvent)
        return next((one for one in reversed(list(self._active())) if type(one.event) in kinds), None)

    def last_redoable(self) -> tuple[RecordedEvent, CompactionRecord | EditEvent] | None:
        """Return the newest undo of a compaction or an edit, and what it took back.

        ``None`` if something was compacted, reverted or edited since.
        """
        events = {one.number: one.event for one in self.events}
        for one in reversed(list(self._active())):
            if type(one.event) is UndoEvent:
                taken = events.get(one.event.event)
                if type(taken) is UndoEvent:  # a redo
                    continue
                return (one, taken) if isinstance(taken, CompactionRecord | EditEvent) else None
            if isinstance(one.event, CompactionRecord | RevertEvent | EditEvent):
                return None
        return None

    def compaction(self, id: str) -> RecordedEvent | None:
        return next((one for one, record in self.compactions if record.id == id), None)


def _undone(events: Sequence[RecordedEvent]) -> set[int]:
    """Return the numbers of the events that no longer count. An undo can be undone itself, by a later event."""
    undone: set[int] = set()
    for one in reversed(events):
        if type(one.event) is UndoEvent and one.number not in undone:
            undone.add(one.event.event)
    return undone


# --- the record of a compaction ---

RECOVERABLE = "everything that was left out is in the store"
"""``Report.recoverable`` of every compaction of a stored session."""


class PreparedCompaction(msgspec.Struct):
    """A compaction that is ready to be committed."""

    record: CompactionRecord
    summary: str
    report: Report
    resume: str | None = None
    """Text of the message that asks the agent to continue, if any."""
    changed: bool = True
    """False if a trigger fired but its strategy changed nothing, so that there is nothing to commit."""


def build_record(
    view: Sequence[ViewEntry],
    state: SavedContext,
    report: Report,
    *,
    covers_to: int,
    tip: int,
    markers: Iterable[int] = (),
    auto: bool = False,
    id: str | None = None,
) -> CompactionRecord:
    """Build the record of a compaction that shows ``view``.

    The stored report has no actions: there is one for each message that ever existed.
    """
    frame = Frame(view=tuple(view), state=state, report=msgspec.structs.replace(report, actions=()))
    return CompactionRecord(
        id=id if id is not None else f"c{token_hex(6)}",
        frame=frame_text(frame),
        covers_to=covers_to,
        tip=tip,
        markers=tuple(markers),
        auto=auto,
        reason=report.reason,
        policy=report.policy,
        tokens_before=report.tokens_before,
        tokens_after=report.tokens_after,
        failures=report.failures,
    )


def frame_text(frame: Frame) -> str:
    return encode(msgspec.to_builtins(frame)).decode()


prepare(Frame, SessionEvent)
