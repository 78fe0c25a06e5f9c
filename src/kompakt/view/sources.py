"""Where the inspector reads a session: a store, or a transcript that was loaded into memory.

Both give the same values: rows in order, the changes of what the model sees (compactions, undos, reverts), and what one
request contained. Reading writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Protocol

import msgspec

from kompakt import api
from kompakt.engine.compaction.compact import CompactionOrder, Outcome, run_sync
from kompakt.engine.compaction.compact import compact as compact_history
from kompakt.engine.compaction.policies import policy_named
from kompakt.engine.compaction.report import Report
from kompakt.engine.context.context import Action, Context
from kompakt.engine.pivot.pivot import pivot_text
from kompakt.engine.recall import Memory, Recalled
from kompakt.model import tokens
from kompakt.model.budget import Usage
from kompakt.model.messages import History, Json, Message
from kompakt.model.references import References
from kompakt.model.tokens import PRIMING, Counter, counter_for, tool_tokens
from kompakt.session.compaction import CompactionOptions, budget_of, run_engine
from kompakt.session.reader import (
    ResumedSession,
    SessionReader,
    SessionRows,
    project_session,
    read_shown,
    resume_rows,
    resume_session,
)
from kompakt.session.rows import StoredMessage, history_of
from kompakt.session.session import Session
from kompakt.session.timeline import (
    CompactionRecord,
    EditEvent,
    Frame,
    RecordedEvent,
    RevertEvent,
    Span,
    Timeline,
    UndoEvent,
)
from kompakt.store.records import Head
from kompakt.view.status import (
    BY_AGENT,
    SessionStatus,
    resumed_status,
    summary_runs,
    time_of_summary,
    transcript_status,
)
from kompakt.wire.registry import WIRES
from kompakt.wire.transcripts import Transcript

BATCH = 1_000
"""Messages of a transcript that are indexed at once."""

_LISTED = ("message", "summary", "resume", "inserted")
"""Kinds of rows that are shown. Markers are requests to compact; finished results are repeated by a message."""


class SourceRow(msgspec.Struct, frozen=True):
    """One row of a session."""

    seq: int
    stored: str
    """The kind of the stored row."""
    name: str
    message: Message
    tokens: int | None = None
    """Counted when it was written; ``None`` if another counter counted."""
    at: float | None = None


class ViewPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A compaction, and from where on it counts."""

    id: str
    number: int
    since: int
    """Requests after this row have the compacted history."""
    tip: int
    """Rows after this one follow the view of the compaction unchanged."""
    summary: int = 0
    resume: int = 0
    at: float | None = None
    auto: bool = True
    reason: str = ""
    policy: str = ""
    tokens_before: int | None = None
    tokens_after: int | None = None
    failures: tuple[str, ...] = ()
    undone: bool = False


class ViewState(msgspec.Struct, frozen=True):
    """What counts for the requests after a row."""

    since: int
    event: int
    """The newest event that counts."""
    point: ViewPoint | None
    dead: tuple[Span, ...] = ()
    muted: frozenset[int] = frozenset()
    """Rows that do not count because their compaction was undone."""


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """A session as it was at one time. Its version changes with every write."""

    version: tuple[float, int, int]
    rows: int
    """The last sequence number."""
    messages: int
    """Messages that count: without pivots, and without what was taken back."""
    envelope: History
    """System prompt, tools and model, without messages."""
    model: str | None
    """The model of the session, also if it is not part of the recorded requests."""
    counter: Counter
    states: tuple[ViewState, ...]
    points: tuple[ViewPoint, ...] = ()
    pins: tuple[str, ...] = ()
    parent: str | None = None
    created: float = 0.0
    touched: float = 0.0
    can_undo: bool = False
    can_redo: bool = False

    @property
    def now(self) -> ViewState:
        """What counts for the next request."""
        return self.states[-1]

    @property
    def system_tokens(self) -> int:
        """Tokens of the system prompt, and of the beginning of the answer."""
        return PRIMING + sum(map(self.counter.message, self.envelope.system))

    @property
    def tools_tokens(self) -> int:
        """Tokens of the definitions of tools."""
        return tool_tokens(self.envelope.tools, self.counter) if self.envelope.tools else 0

    def point(self, id: str) -> ViewPoint | None:
        """Return a compaction by its id."""
        return next((one for one in self.points if one.id == id), None)


class StoredMoment(Moment, frozen=True, kw_only=True):
    """A stored session as it was at one time, with the reader that read it."""

    reader: SessionReader


class ShownMessage(msgspec.Struct, frozen=True):
    """A message as a request contains it."""

    seq: int
    message: Message
    tokens: int
    shortened: bool = False


class ShownRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What one request contained."""

    rows: tuple[ShownMessage, ...]
    total: int
    pivot: str = ""
    pivot_tokens: int = 0
    pivot_at: int = 0
    """How many of the messages come before the pivot."""
    body: Callable[[], Json]
    """Renders the request, repaired as it would be sent."""


class PlannedCompaction(msgspec.Struct, frozen=True, kw_only=True):
    """A compaction that was prepared and not written."""

    before: ShownRequest
    after: ShownRequest
    budget: int
    due: bool
    strategies: tuple[str, ...] = ()
    actions: tuple[Action, ...] = ()
    failures: tuple[str, ...] = ()
    note: str = ""
    """What the compaction starts from, if that is not the next request."""


class Source(Protocol):
    """One session."""

    key: str
    """Identifies the session among those of all callers."""
    id: str
    client: str | None
    read_only: str
    """Why the session cannot be changed; empty if it can."""
    usages: dict[int, Usage]
    """What the provider reported for the answers that begin at these rows."""

    async def moment(self) -> Moment:
        """Return the session as it is now; reads only the head if nothing changed."""
        ...

    async def status(self, moment: Moment) -> SessionStatus:
        """Return the numbers that the command line and MCP print."""
        ...

    def batches(self, moment: Moment, *, after: int) -> AsyncIterator[Sequence[SourceRow]]:
        """Iterate over the rows after a row, taken back or not."""
        ...

    async def at(self, moment: Moment, seqs: Collection[int]) -> list[SourceRow]:
        """Read single rows."""
        ...

    async def named(self, moment: Moment, names: Collection[str]) -> dict[str, int]:
        """Return which references exist, with their rows."""
        ...

    async def shown(
        self, moment: Moment, *, rows: int | None = None, events: int | None = None, edited: bool = False
    ) -> ShownRequest:
        """Return the next request, or the one after a row, with the changes up to an event.

        With ``edited`` a pivot has the text that it was given later.
        """
        ...

    async def visible(self, moment: Moment) -> dict[int, bool]:
        """Return the rows that the newest compaction shows, and whether they are shortened; reads no messages."""
        ...

    async def report(self, moment: Moment, point: ViewPoint) -> Report | None:
        """Read the report of a compaction."""
        ...

    async def recall(self, query: str, tokens: int | None) -> Recalled:
        """Answer as the recall tool does."""
        ...

    async def restored(self, moment: Moment, seqs: Collection[int]) -> set[int]:
        """Return which of these rows recall restores by their reference. Each one is really asked for."""
        ...

    async def plan(self, moment: Moment, options: CompactionOptions) -> PlannedCompaction:
        """Prepare a compaction and write nothing.

        Raises:
            DoesNotFit: what must stay is larger than the budget.
            UsageError: the options are wrong.
        """
        ...


# --- a session in a store ------------------------------------------------------------------------------------------


class StoredSource:
    """A session in a store."""

    read_only = ""

    def __init__(self, session: Session, *, client: str | None = None, model: str | None = None) -> None:
        self.session = session
        self.key = session.key
        self.id = session.id
        self.client = client
        self.usages: dict[int, Usage] = {}
        self._model = model
        self._moment: StoredMoment | None = None
        self._planning = asyncio.Lock()
        self._counter: Counter | None = None
        self._read: tuple[Moment, Frame | None, SessionRows] | None = None
        """What the model sees, as it is in the store; previews start from it."""
        self._unchanged: tuple[Moment, ResumedSession, ShownRequest] | None = None
        """The same as a context that no preview has changed."""
        self._resuming = asyncio.Lock()
        self._resumed: tuple[Moment, ResumedSession] | None = None

    async def moment(self) -> Moment:
        head = await self.session.head()
        version = version_of(head)
        if self._moment is None or self._moment.version != version:
            self._moment = self._moment_of(await self.session.reader())
        return self._moment

    def _moment_of(self, reader: SessionReader) -> StoredMoment:
        head, timeline = reader.head, reader.timeline
        envelope = history_of((), head.format, reader.envelope)
        states = _states(timeline)
        return StoredMoment(
            reader=reader,
            version=version_of(head),
            rows=head.rows,
            messages=head.messages,
            envelope=envelope,
            model=envelope.model or self._model,
            counter=counter_for(envelope.model).own(),
            states=states,
            points=tuple(_point(timeline, one, record) for one, record in timeline.compactions),
            pins=timeline.pins,
            parent=timeline.parent,
            created=head.created,
            touched=head.last_write,
            can_undo=timeline.last_undoable() is not None,
            can_redo=timeline.last_redoable() is not None,
        )

    def _reader(
        self, moment: Moment, rows: int | None = None, events: int | None = None, *, edited: bool = False
    ) -> SessionReader:
        """Return a reader of the session as it was after a row, with the changes up to an event."""
        assert isinstance(moment, StoredMoment)
        now = moment.reader
        if rows is None and events is None:
            return now
        head = now.head if rows is None else msgspec.structs.replace(now.head, rows=rows)
        edits = {one.number for one in now.timeline.events if type(one.event) is EditEvent} - now.timeline.undone
        timeline = Timeline(
            one
            for one in now.timeline.events
            if events is None or one.number <= events or (edited and one.number in edits)
        )
        return SessionReader(now.records, head, now.codec, timeline)

    async def _now(self, moment: Moment) -> ResumedSession:
        """Read what the model sees now, once."""
        async with self._resuming:
            if self._resumed is None or self._resumed[0] is not moment:
                self._resumed = moment, await self._resume(moment)
            return self._resumed[1]

    async def status(self, moment: Moment) -> SessionStatus:
        resumed = await self._now(moment)
        return await asyncio.to_thread(resumed_status, self.id, self._reader(moment), resumed)

    async def batches(self, moment: Moment, *, after: int) -> AsyncIterator[Sequence[SourceRow]]:
        reader = self._reader(moment)
        whole = SessionReader(reader.records, reader.head, reader.codec, Timeline(()))  # with rows that were taken back
        async for rows in whole.rows(after=after):
            listed = [row for row in rows if row.kind in _LISTED]
            blobs = await reader.blobs(listed)
            read = await asyncio.to_thread(reader.codec.stored, listed, blobs)
            yield [_source_row(one, moment.counter.name) for one in read]

    async def at(self, moment: Moment, seqs: Collection[int]) -> list[SourceRow]:
        read = await self._reader(moment).at(list(seqs))
        return [_source_row(one, moment.counter.name) for one in read if one.row.kind in _LISTED]

    async def named(self, moment: Moment, names: Collection[str]) -> dict[str, int]:
        return await self.session.records.named(self._reader(moment).head.key, names) if names else {}

    async def shown(
        self, moment: Moment, *, rows: int | None = None, events: int | None = None, edited: bool = False
    ) -> ShownRequest:
        if rows is None and events is None:
            resumed = await self._now(moment)
        else:
            resumed = await resume_session(self._reader(moment, rows, events, edited=edited))
        return await asyncio.to_thread(_shown, resumed)

    async def visible(self, moment: Moment) -> dict[int, bool]:
        reader = self._reader(moment)
        pivot = reader.timeline.pivot
        if pivot is None:
            return {}
        return {entry.seq: entry.item is not None for entry in (await reader.frame(pivot)).view}

    async def report(self, moment: Moment, point: ViewPoint) -> Report | None:
        reader = self._reader(moment)
        record = next((record for _, record in reader.timeline.compactions if record.id == point.id), None)
        return (await reader.frame(record)).report if record is not None else None

    async def recall(self, query: str, tokens: int | None) -> Recalled:
        return await self.session.recall(query, tokens)

    async def restored(self, moment: Moment, seqs: Collection[int]) -> set[int]:
        reader = self._reader(moment)
        rows = await reader.records.rows_at(reader.head.key, seqs)
        blobs = await reader.blobs(rows)
        found = await self.named(moment, [row.name for row in rows])
        read = await asyncio.to_thread(reader.codec.stored, rows, blobs)

        def ask() -> set[int]:
            codec = reader.codec
            whole = {row.seq for row in rows if codec.value_codec.is_whole(codec.item(row, blobs), row.content)}
            kept = [one for one in read if one.row.seq in whole and found.get(one.row.name) == one.row.seq]
            names = {one.row.name: one.row.seq for one in kept}
            return _fetched([one.message for one in kept], names)

        return await asyncio.to_thread(ask)

    async def plan(self, moment: Moment, options: CompactionOptions) -> PlannedCompaction:
        async with self._planning:
            reader = self._reader(moment)
            self._counter = self._counter or counter_for(moment.envelope.model).own()
            options = msgspec.structs.replace(options, tokenizer=self._counter)
            kept, self._unchanged = self._unchanged, None
            known = kept if kept is not None and kept[0] is moment else None
            resumed = known[1] if known is not None else await self._resume(moment, self._counter)

            def prepare() -> PlannedCompaction:
                before = known[2] if known is not None else _shown(resumed)
                budget = budget_of(resumed, options)
                if not budget.due(before.total) and not resumed.markers:
                    self._unchanged = moment, resumed, before
                    return PlannedCompaction(before=before, after=before, budget=budget.trigger, due=False)
                ran = run_sync(run_engine(reader, resumed, options, resumed.markers), may_wait=False)
                self._unchanged = (moment, resumed, before) if ran.replayed else None
                after = _request(ran.outcome.context, resumed.seqs, resumed.altered, lambda: None)
                return _planned(before, after, budget.trigger, ran.outcome)

            return await asyncio.to_thread(prepare)

    async def _resume(self, moment: Moment, counter: Counter | None = None) -> ResumedSession:
        """Build the context of the session; its messages are read once for each version of it."""
        reader, read = self._reader(moment), self._read
        if read is None or read[0] is not moment:
            self._read = read = moment, *await read_shown(reader)
        return await resume_rows(reader, *read[1:], tokenizer=counter)


def version_of(head: Head) -> tuple[float, int, int]:
    """Return the version of a stored session: it changes with every write, and when the session is made again."""
    return head.created, head.rows, head.events


def _since(recorded: RecordedEvent) -> int:
    """Return the last row that was written before an event took effect."""
    event = recorded.event
    # A fork copies a compaction after all rows. The row of its summary tells when it was made.
    return event.summary or recorded.tip if type(event) is CompactionRecord else recorded.tip


def _point(timeline: Timeline, recorded: RecordedEvent, record: CompactionRecord) -> ViewPoint:
    return ViewPoint(
        id=record.id,
        number=recorded.number,
        since=_since(recorded),
        tip=record.tip,
        summary=record.summary,
        resume=record.resume,
        at=recorded.at,
        auto=record.auto,
        reason=record.reason,
        policy=record.policy,
        tokens_before=record.tokens_before,
        tokens_after=record.tokens_after,
        failures=record.failures,
        undone=timeline.is_undone(recorded, record),
    )


def _states(timeline: Timeline) -> tuple[ViewState, ...]:
    """Return what counted after each event, oldest first."""
    states = [ViewState(0, 0, None)]
    changes = (CompactionRecord, UndoEvent, RevertEvent, EditEvent)
    for number, one in enumerate(timeline.events, 1):
        if type(one.event) not in changes:
            continue
        then = Timeline(timeline.events[:number])
        pivot = next(((r, p) for r, p in reversed(then.compactions) if not then.is_undone(r, p)), None)
        point = _point(then, *pivot) if pivot is not None else None
        since = max(states[-1].since, _since(one))
        states.append(ViewState(since, one.number, point, tuple(then.dead), frozenset(then.muted)))
    return tuple(states)


def _source_row(one: StoredMessage, counter: str) -> SourceRow:
    known = one.note.tokens if one.note.counter == counter and one.row.kind == "message" else None
    ends = [part.finished_at for part in one.message.results if part.finished_at is not None]
    return SourceRow(one.row.seq, one.row.kind, one.row.name, one.message, known, max(ends, default=None))


def _shown(resumed: ResumedSession) -> ShownRequest:
    return _request(resumed.context, resumed.seqs, resumed.altered, lambda: project_session(resumed).payload)


def _request(context: Context, seqs: Sequence[int], altered: Collection[int], body: Callable[[], Json]) -> ShownRequest:
    """Return what a context shows."""
    changed = context.visibility.replacements
    summary, indices = context.summary_text, context.shown_indices()
    return ShownRequest(
        rows=tuple(
            ShownMessage(
                seqs[index],
                context.shown(index),
                context.message_tokens(index),
                index in changed or seqs[index] in altered,
            )
            for index in indices
        ),
        total=context.projected_tokens,
        pivot=pivot_text(context) if summary is not None else "",
        pivot_tokens=summary.tokens if summary is not None else 0,
        pivot_at=sum(index <= summary.covers_to for index in indices) if summary is not None else 0,
        body=body,
    )


def _planned(before: ShownRequest, after: ShownRequest, budget: int, outcome: Outcome) -> PlannedCompaction:
    failed = tuple(f"{step.strategy}: {step.failed}" for step in outcome.steps if step.failed)
    return PlannedCompaction(
        before=before,
        after=after,
        budget=budget,
        due=True,
        strategies=tuple(dict.fromkeys(step.strategy for step in outcome.steps)),
        actions=tuple(outcome.context.actions()),
        failures=(*outcome.context.failures, *failed),
    )


def _fetched(messages: Sequence[Message], names: dict[str, int]) -> set[int]:
    """Ask recall for each message by its reference; return those that it restores."""
    memory = Memory(messages, counter=counter_for(None).own(), references=list(names))
    return {seq for name, seq in names.items() if memory.fetch(name, tokens=None)}


# --- a transcript --------------------------------------------------------------------------------------------------


class TranscriptSource:
    """A transcript, or a request body, in memory. Its messages are numbered from 1.

    An agent's own summaries are its compactions: the agent sees its newest summary and what follows it.
    """

    def __init__(
        self,
        id: str,
        history: History,
        transcript: Transcript | None,
        *,
        modified: float = 0.0,
        parent: str | None = None,
        read_only: str = "",
    ) -> None:
        self.key = id
        self.id = id
        self.client: str | None = transcript.kind if transcript is not None else None
        self.read_only = read_only
        self._history = history
        self._transcript = transcript
        self._references = References()
        self._planning = asyncio.Lock()
        self._naming = asyncio.Lock()
        self._plannable: tuple[History, list[int], Counter] | None = None
        self._memory: Memory | None = None
        wire = WIRES[history.format]
        self.usages = {index + 1: wire.usage(one) for index, one in transcript.usages} if transcript is not None else {}
        self._times = {index + 1: at for index, at in transcript.times} if transcript is not None else {}
        runs = summary_runs(transcript.summaries) if transcript is not None else []
        points = [
            ViewPoint(
                id=f"summary-{number}",
                number=number,
                since=run.start,
                tip=run.start,
                summary=run.start + 1,
                at=time_of_summary(transcript.times, run) if transcript is not None else None,
                reason=BY_AGENT,
                policy=self.client or "",
            )
            for number, run in enumerate(runs, 1)
        ]
        times = self._times.values()
        self._moment = Moment(
            version=(modified, len(history), len(points)),
            rows=len(history),
            messages=len(history),
            envelope=history.with_messages(()),
            model=history.model,
            counter=counter_for(history.model).own(),
            states=(ViewState(0, 0, None), *(ViewState(point.since, point.number, point) for point in points)),
            points=tuple(points),
            parent=parent,
            created=min(times, default=modified),
            touched=max(times, default=modified),
        )

    async def moment(self) -> Moment:
        return self._moment

    async def status(self, moment: Moment) -> SessionStatus:
        return await asyncio.to_thread(transcript_status, self._transcript, self._history, id=self.id)

    async def _named(self, upto: int | None = None) -> References:
        """Return the references of the first messages, or of all."""
        async with self._naming:
            missing = self._history.messages[len(self._references.names) : upto]
            if missing:
                await asyncio.to_thread(self._references.extend, missing)
        return self._references

    async def batches(self, moment: Moment, *, after: int) -> AsyncIterator[Sequence[SourceRow]]:
        for start in range(after, len(self._history), BATCH):
            stop = min(start + BATCH, len(self._history))
            await self._named(stop)
            yield [self._row(index) for index in range(start, stop)]

    def _row(self, index: int) -> SourceRow:
        message = self._history.messages[index]
        kind = "summary" if message.is_summary else "message"
        return SourceRow(index + 1, kind, self._references.names[index], message, None, self._times.get(index + 1))

    async def at(self, moment: Moment, seqs: Collection[int]) -> list[SourceRow]:
        found = [seq for seq in sorted(seqs) if 1 <= seq <= len(self._history)]
        await self._named(found[-1] if found else 0)
        return [self._row(seq - 1) for seq in found]

    async def named(self, moment: Moment, names: Collection[str]) -> dict[str, int]:
        references = await self._named()
        found = {name: references.find(name) for name in names}
        return {name: index + 1 for name, index in found.items() if index is not None}

    async def shown(
        self, moment: Moment, *, rows: int | None = None, events: int | None = None, edited: bool = False
    ) -> ShownRequest:
        last = len(self._history) if rows is None else rows
        points = [point for point in moment.points if events is None or point.number <= events]
        first = points[-1].tip if points else 0
        messages = self._history.messages[first:last]
        count = moment.counter.message

        def make() -> ShownRequest:
            rows = tuple(
                ShownMessage(number, message, count(message)) for number, message in enumerate(messages, first + 1)
            )
            fixed = moment.system_tokens + moment.tools_tokens
            sent = self._history.with_messages(messages)
            return ShownRequest(
                rows=rows,
                total=fixed + sum(row.tokens for row in rows),
                body=lambda: api.repair(api.render(sent), sent.format, resting=True).payload,
            )

        return await asyncio.to_thread(make)

    async def visible(self, moment: Moment) -> dict[int, bool]:
        return {}

    async def report(self, moment: Moment, point: ViewPoint) -> Report | None:
        return None

    async def recall(self, query: str, tokens: int | None) -> Recalled:
        def ask() -> Recalled:
            if self._memory is None:
                self._memory = Memory(self._history, counter=counter_for(None).own())
            if self._memory.lacks(query):  # a reference in a compacted copy names a message of the repaired history
                return api.recall(self._history, query, tokens)
            return self._memory.recall(query, tokens=tokens)

        async with self._naming:
            return await asyncio.to_thread(ask)

    async def restored(self, moment: Moment, seqs: Collection[int]) -> set[int]:
        names = (await self._named()).names
        wanted = {names[seq - 1]: seq for seq in sorted(seqs)}
        messages = [self._history.messages[seq - 1] for seq in wanted.values()]
        return await asyncio.to_thread(_fetched, messages, wanted)

    async def plan(self, moment: Moment, options: CompactionOptions) -> PlannedCompaction:
        """Compact the whole transcript from its originals, as `kompakt compact FILE` does."""
        async with self._planning:
            return await asyncio.to_thread(self._plan, options)

    def _plan(self, options: CompactionOptions) -> PlannedCompaction:
        if self._plannable is None:
            repaired = api.parse(api.repair(self._history, resting=True).payload, self._history.format)
            places = {id(message.raw): seq for seq, message in enumerate(self._history, 1) if message.raw is not None}
            seqs = [places.get(id(message.raw), 0) for message in repaired]
            self._plannable = repaired, seqs, counter_for(self._history.model).own()
        history, seqs, counter = self._plannable
        policy = policy_named(options.policy)
        order = CompactionOrder(
            budget=api.budget_for(options.budget, history.model, policy, request=history),
            policy=policy,
            counter=counter,
            manual_thinking=WIRES[history.format].manual_thinking(history.body),
        )
        count = counter.message
        rows = tuple(ShownMessage(seq, message, count(message)) for seq, message in zip(seqs, history, strict=True))
        total = tokens.count(history, counter).total
        before = ShownRequest(rows=rows, total=total, body=lambda: None)
        outcome = run_sync(compact_history(history, order), may_wait=False)
        after = _request(outcome.context, seqs, (), lambda: None)
        planned = _planned(before, after, order.budget.trigger, outcome)
        due = planned.due and outcome.context.differs
        return msgspec.structs.replace(planned, due=due, note=FROM_FILE if self._transcript is not None else "")


FROM_FILE = (
    "The dry run starts from all messages of the file, without the agent's own summaries. Sizes leave out the system "
    "prompt and tools, which the file does not contain."
)
"""What the preview of a transcript says."""
