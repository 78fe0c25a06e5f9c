"""What can be done to a session as a whole, as values, and what the session is after all of it.

Nothing is taken out: a revert says which rows no longer count, an undo says which event no longer does. The state of a
session follows from its events in one pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from kompakt.engine.compaction.report import Report
from kompakt.engine.pivot.saved_state import State
from kompakt.model.messages import Json

Span: TypeAlias = tuple[int, int]
"""The first and the last of some rows, both included."""


class ViewEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of a view: a row, and what is shown in its place."""

    seq: int
    item: Json = None
    pruned: tuple[int, ...] = ()
    """The parts whose output is hidden."""
    pruned_at: tuple[float, ...] = ()
    """When each of them was hidden; empty in records of earlier versions."""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """What the model sees since a compaction, and the account of it; large, and read only when needed."""

    view: tuple[ViewEntry, ...]
    state: State
    report: Report


class CompactionRecord(msgspec.Struct, frozen=True, kw_only=True, tag="compaction"):
    """A compaction."""

    id: str
    frame: Json
    """A ``Frame`` as JSON text; where it is long, a pointer to the blob that holds it."""
    covers_to: int
    """The last row that the pivot stands for; 0 when it stands for none."""
    tip: int
    """The last row there was; what came later follows the view as it is."""
    summary: int = 0
    """The row of the summary."""
    resume: int = 0
    """The row that asks the agent to go on; 0 when nobody is asked."""
    markers: tuple[int, ...] = ()
    """The requests it answers."""
    auto: bool = True
    reason: str
    policy: str
    tokens_before: int
    tokens_after: int
    failures: tuple[str, ...] = ()
    """What went wrong on the way."""


class CompactionFailure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """A compaction that came to nothing; the session is as it was."""

    reason: str
    markers: tuple[int, ...] = ()
    """The requests that are given up: nobody asked for them, and who needs one will find that it is due."""


class Undo(msgspec.Struct, frozen=True, kw_only=True, tag="undo"):
    """An event that no longer counts."""

    event: int


class Revert(msgspec.Struct, frozen=True, kw_only=True, tag="revert"):
    """Rows that no longer count."""

    turn: int
    """How many turns were left."""
    dead: Span


class SummaryEdit(msgspec.Struct, frozen=True, kw_only=True, tag="edit"):
    """A summary in somebody's own words."""

    compaction: str
    text: Json
    """The text; where it is long, a pointer to the blob that holds it."""


class Pin(msgspec.Struct, frozen=True, kw_only=True, tag="pin"):
    """A text that must survive from now on, or need not any longer."""

    text: str
    pinned: bool = True


SessionEvent: TypeAlias = CompactionRecord | CompactionFailure | Undo | Revert | SummaryEdit | Pin


class RecordedEvent(msgspec.Struct, frozen=True):
    """A deed with its number and time."""

    number: int
    deed: SessionEvent
    at: float


class Timeline:
    """The events of a session, and what follows from them."""

    def __init__(self, done: Iterable[RecordedEvent]) -> None:
        self.done = list(done)
        self.undone = {event.deed.event for event in self.done if type(event.deed) is Undo}
        self.dead: list[Span] = sorted(event.deed.dead for event in self._standing() if type(event.deed) is Revert)

    def _standing(self) -> Iterable[RecordedEvent]:
        return (event for event in self.done if event.number not in self.undone)

    def is_live(self, seq: int) -> bool:
        """Tell whether a row still counts."""
        return not any(first <= seq <= last for first, last in self.dead)

    def live_spans(self, after: int, upto: int) -> list[Span]:
        """List the rows that count behind one and up to another, as spans."""
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
        """List all compactions, oldest first, whatever became of them."""
        return [(event, event.deed) for event in self.done if type(event.deed) is CompactionRecord]

    def is_undone(self, event: RecordedEvent, record: CompactionRecord) -> bool:
        """Tell whether a compaction no longer counts: taken back, or reverted with the turns behind it."""
        return event.number in self.undone or not self.is_live(max(record.tip, record.summary))

    @property
    def pivot(self) -> CompactionRecord | None:
        """The newest compaction that counts."""
        standing = (record for event, record in reversed(self.compactions) if not self.is_undone(event, record))
        return next(standing, None)

    def rewording(self, record: CompactionRecord) -> Json:
        """Return what somebody made of a compaction's summary, a text or a pointer to one; ``None`` for nothing."""
        edits = [event.deed for event in self._standing() if type(event.deed) is SummaryEdit]
        return next((edit.text for edit in reversed(edits) if edit.compaction == record.id), None)

    @property
    def mute(self) -> set[int]:
        """The rows that ask the agent to go on after a compaction that was taken back."""
        return {record.resume for event, record in self.compactions if self.is_undone(event, record)}

    @property
    def answered(self) -> set[int]:
        """The markers that need no answer any more; a compaction that was taken back is not asked for again."""
        deeds = [event.deed for event in self.done]
        return {seq for deed in deeds if isinstance(deed, CompactionRecord | CompactionFailure) for seq in deed.markers}

    @property
    def pins(self) -> tuple[str, ...]:
        """The texts that must survive."""
        pins: dict[str, None] = {}
        for event in self._standing():
            if type(event.deed) is Pin:
                pins.pop(event.deed.text, None)
                if event.deed.pinned:
                    pins[event.deed.text] = None
        return tuple(pins)

    def last_undoable(self) -> RecordedEvent | None:
        """Return the newest event that can be taken back."""
        standing = list(self._standing())
        return next(
            (event for event in reversed(standing) if type(event.deed) in (CompactionRecord, Revert, SummaryEdit)), None
        )

    def compaction(self, id: str) -> RecordedEvent | None:
        """Return a compaction by its id."""
        return next((event for event, record in self.compactions if record.id == id), None)
