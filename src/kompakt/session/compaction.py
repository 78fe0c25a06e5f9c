"""The lifecycle of a compaction: one read, a pure preparation that may wait for a summarizer, one commit.

A request to compact is durable: until the commit nothing is changed, so a crash costs the summary and nothing else, and
the request is found again. An automatic compaction writes its request before it waits for a summarizer; without one it
writes the request in the same commit. One compaction of a session runs at a time; those who waited use its result.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from secrets import token_hex
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kompakt import api
from kompakt.engine.compaction.compact import Order, proceed
from kompakt.engine.compaction.policies import AnyPolicy, policy_named
from kompakt.engine.compaction.report import Report, Step, balanced
from kompakt.engine.compaction.telemetry import announce
from kompakt.engine.context.context import Context
from kompakt.engine.pivot.saved_state import Kept, State, state_of
from kompakt.engine.pivot.summarizer import MAX_FAULT, Summarizer
from kompakt.engine.strategies import Strategy
from kompakt.errors import Conflict, DoesNotFit
from kompakt.model.budget import Budget
from kompakt.model.messages import Marker, Message, Text
from kompakt.model.tokens import Tokenizer, count
from kompakt.session.draft import Draft
from kompakt.session.projection import ResumedSession, project_session, resume_session
from kompakt.session.reader import SessionReader
from kompakt.session.resume_prompt import mid_step, resuming, room_for
from kompakt.session.retrying_summarizer import with_summarizer
from kompakt.session.row_codec import RowCodec
from kompakt.session.timeline import CompactionFailure, CompactionRecord, Frame, ViewEntry
from kompakt.store.codec import encode
from kompakt.store.records import Fence, Head
from kompakt.wire.registry import WIRES

if TYPE_CHECKING:
    from kompakt.session.session import Session

_log = logging.getLogger("kompakt.session")

TRIES = 3
"""How often a compaction is worked out again because the session was changed meanwhile."""

RECOVERABLE = "everything that was left out is in the store"


class CompactionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller wants of a compaction."""

    budget: int | Budget | None = None
    policy: AnyPolicy = "default"
    summarizer: Summarizer | None = None
    instructions: str | None = None
    model: str | None = None
    tokenizer: Tokenizer | None = None
    reason: str | None = None
    """Why to compact now, whether or not the budget is due; ``None`` compacts only when it is, or on request."""


class SessionCompaction(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a wish to compact."""

    id: str | None
    """The compaction that the session stands on now."""
    changed: bool
    """Whether it was made just now."""
    tokens_before: int
    tokens_after: int
    report: Report | None = None


class PreparedCompaction(msgspec.Struct):
    """A compaction that only waits to be written."""

    record: CompactionRecord
    summary: str
    report: Report
    asks: bool = False
    """Whether the agent is asked to go on."""
    changed: bool = True
    """Whether there is anything to write: a trigger may fire and its strategy find nothing to do."""


async def compact(session: Session, wish: CompactionOptions, fence: Fence) -> SessionCompaction:
    """Compact a session whose lock is held, when there is a reason to: one read, one commit."""
    for _ in range(TRIES):
        reader = await session.reader()
        now = await resume_session(reader, model=wish.model, tokenizer=wish.tokenizer)
        policy, tokens, triggered = policy_named(wish.policy), now.context.projected_tokens, False
        if not now.markers and wish.reason is None:
            triggered = not budget_of(now, wish).due(tokens)
            if triggered and policy.due(now.context) is None:
                return standing(reader, tokens)
        if not now.markers and not triggered and (wish.summarizer is not None or policy.awaits):
            if not await _request(session, reader, now, wish):
                continue
        try:
            prepared = await prepare_from(reader, now, wish, now.markers, triggered=triggered)
        except DoesNotFit as error:
            _log.warning("session %r was not compacted: %s", session.id, error)
            given_up = tuple(seq for seq, marker in now.markers.items() if marker.auto)
            failure = CompactionFailure(reason=str(error)[:MAX_FAULT], markers=given_up)
            await session.do(lambda _, failure=failure: [failure])
            raise
        if not prepared.changed:
            return standing(reader, tokens)
        if await written(session, prepared, reader, fence):
            return told(prepared)
    raise Conflict(f"session {session.id!r} is changed faster than it can be compacted; try again later")


async def _request(session: Session, reader: SessionReader, now: ResumedSession, wish: CompactionOptions) -> bool:
    """Write a marker before a compaction that waits for a summarizer; false when somebody else has written since."""
    marker = Marker(reason=wish.reason)
    row = await session.request_compaction(auto=True, reason=wish.reason)
    if row != reader.head.rows + 1:
        return False
    reader.head = msgspec.structs.replace(reader.head, rows=row, tip=row)
    now.markers = {row: marker}
    return True


def told(prepared: PreparedCompaction) -> SessionCompaction:
    """Let everyone know that a compaction is written."""
    announce(prepared.report)
    record = prepared.record
    return SessionCompaction(
        id=record.id,
        changed=True,
        tokens_before=record.tokens_before,
        tokens_after=record.tokens_after,
        report=prepared.report,
    )


def standing(reader: SessionReader, tokens: int) -> SessionCompaction:
    """Say what a session stands on when nothing was done."""
    pivot = reader.timeline.pivot
    return SessionCompaction(
        id=None if pivot is None else pivot.id, changed=False, tokens_before=tokens, tokens_after=tokens
    )


async def written(session: Session, prepared: PreparedCompaction, reader: SessionReader, fence: Fence) -> bool:
    """Write a compaction in one batch, unless something was done to the session as a whole meanwhile."""
    stale = False

    async def make(head: Head) -> Draft:
        nonlocal stale
        draft = Draft(head, reader.codec)
        stale = (head.created, head.events) != (reader.head.created, reader.head.events)
        if not stale:
            write(draft, prepared, reader.codec, asks=prepared.asks and not await _goes_on(session, reader, head))
        return draft

    await session.write(make, fence=fence)
    return not stale


async def _goes_on(session: Session, reader: SessionReader, head: Head) -> bool:
    """Tell whether a step has begun since a compaction was prepared, and is not over."""
    if head.rows == reader.head.rows:
        return False
    now = await resume_session(await session.reader())
    return mid_step(now.context.messages, now.context.contract)


def budget_of(session: ResumedSession, wish: CompactionOptions) -> Budget:
    """Return the budget that a wish means for a session."""
    model, policy = wish.model or session.history.model, policy_named(wish.policy)
    return api.budget_for(wish.budget, model, policy, request=session.history)


def order_of(
    session: ResumedSession, wish: CompactionOptions, markers: Mapping[int, Marker], pins: tuple[str, ...]
) -> Order:
    """Say what is asked of the engine."""
    said = [marker.instructions for marker in markers.values() if marker.instructions]
    policy = policy_named(wish.policy)
    return Order(
        budget=budget_of(session, wish),
        policy=policy,
        counter=session.context.counter,
        pins=pins,
        instructions="\n".join(filter(None, [*said, wish.instructions])) or None,
        manual_thinking=WIRES[session.history.format].manual_thinking(session.history.body),
        references=session.names,
    )


async def prepare_from(
    reader: SessionReader,
    session: ResumedSession,
    wish: CompactionOptions,
    markers: Mapping[int, Marker],
    *,
    triggered: bool = False,
) -> PreparedCompaction:
    """Work out a compaction of what was read; the store is not touched.

    Without markers the compaction is automatic, and its marker is written together with it. ``triggered`` runs what the
    policy's triggers ask for and nothing else.

    Raises:
        DoesNotFit: what must stay is larger than the budget.
    """
    began = time.perf_counter()
    order = order_of(session, wish, markers, reader.timeline.pins)
    order = msgspec.structs.replace(order, policy=with_summarizer(order.policy, wish.summarizer, reader.codec))
    before = session.context.projected_tokens
    auto = is_auto(markers)
    asks = auto and not mid_step(session.context.messages, session.context.contract)
    order = msgspec.structs.replace(order, spare=_mending(session) + (room_for(order.counter) if asks else 0))
    replays = auto and reader.timeline.pivot is None and "resume" not in session.kinds
    outcome = await proceed(session.context, session.history, order, forced=not triggered, replays=replays)
    steps, budget = outcome.steps, order.budget
    reason = (wish.reason if auto else None) or (triggered and outcome.reason) or _reason(markers, budget, before)
    account = _Account(order.policy.name, reason, before, budget.trigger, steps, time.perf_counter() - began)
    failed = [f"{step.strategy}: {step.failed}" for step in steps if step.failed]
    failures = tuple(reader.codec.cleaned(one)[:MAX_FAULT] for one in (*outcome.context.failures, *failed))
    prepared = recorded(reader, session, outcome.context, account, markers=markers, auto=auto, failures=failures)
    summarized = not triggered or outcome.context.summary_text is not None
    prepared.asks = asks and summarized and not outcome.context.single_message  # which asks to go on by itself
    prepared.changed = not triggered or outcome.reason is not None
    return prepared


def _reason(markers: Mapping[int, Marker], budget: Budget, tokens: int) -> str:
    """Say why a compaction is made: the budget, what the requests say, or that somebody asked."""
    if budget.due(tokens):
        return f"over {budget.trigger} tokens"
    given = [marker.reason for marker in markers.values() if marker.reason]
    if given or not is_auto(markers):
        return given[-1] if given else "asked for"
    return f"over {budget.trigger} tokens, as the provider counts"


class _Account(NamedTuple):
    """What is told of a compaction beside what can be seen."""

    policy: str
    reason: str
    tokens: int
    """What there was before."""
    budget: int = 0
    steps: tuple[Step, ...] = ()
    seconds: float = 0.0


def recorded(
    reader: SessionReader,
    session: ResumedSession,
    context: Context,
    account: _Account,
    *,
    markers: Mapping[int, Marker] = MappingProxyType({}),
    auto: bool = False,
    failures: tuple[str, ...] = (),
) -> PreparedCompaction:
    """Put what a context shows into a record."""
    state, kept = state_of(context)
    report = msgspec.structs.replace(_report(session, context, account, state), failures=failures)
    brief = msgspec.structs.replace(report, actions=())  # one for each message that was ever there: told, not kept
    frame = Frame(view=tuple(_entry(session, one, reader.codec) for one in kept), state=state, report=brief)
    record = CompactionRecord(
        id=new_id(),
        frame=frame_text(frame),
        covers_to=_covers_to(session, kept, reader),
        tip=reader.head.rows,
        markers=tuple(markers),
        auto=auto,
        reason=report.reason,
        policy=report.policy,
        tokens_before=report.tokens_before,
        tokens_after=report.tokens_after,
        failures=failures,
    )
    return PreparedCompaction(record, state.summary, report)


def is_auto(markers: Mapping[int, Marker]) -> bool:
    """Tell whether a compaction is automatic: no person asked for it."""
    return all(marker.auto for marker in markers.values())


def _mending(session: ResumedSession) -> int:
    """Count what has to be added to a broken history so that the provider takes it."""
    shown = project_session(session)
    if not shown.repairs:
        return 0
    repaired = api.parse(shown.payload, session.history.format)
    return max(0, count(repaired, session.context.counter).total - shown.tokens)


def new_id() -> str:
    """Name a compaction."""
    return f"c{token_hex(6)}"


def frame_text(frame: Frame) -> str:
    """Write a frame as JSON."""
    return encode(msgspec.to_builtins(frame)).decode()


async def apply(
    session: Session,
    strategy: Strategy,
    fence: Fence,
    *,
    tokenizer: Tokenizer | None = None,
    reason: str | None = None,
) -> SessionCompaction:
    """Run one strategy on what is stored; nothing is written when it changes nothing.

    The reason is the caller's, else what the strategy states in its attribute ``reason``.
    """
    for _ in range(TRIES):
        reader = await session.reader()
        now = await resume_session(reader, tokenizer=tokenizer)
        now.context.pinned_texts = list(reader.timeline.pins)
        before, began = now.context.projected_tokens, time.perf_counter()
        if not await strategy(now.context):
            return standing(reader, before)
        if now.context.is_rewritten:
            now.context.strip_reasoning()
            now.context.note_pins()
        name = getattr(strategy, "__name__", None) or type(strategy).__name__
        why = reason or getattr(strategy, "reason", None) or "asked for"
        account = _Account(name, why, before, seconds=time.perf_counter() - began)
        prepared = recorded(reader, now, now.context, account)
        if await written(session, prepared, reader, fence):
            return told(prepared)
    raise Conflict(f"session {session.id!r} is changed faster than it can be compacted; try again later")


def _entry(session: ResumedSession, kept: Kept, codec: RowCodec) -> ViewEntry:
    seq, message = session.seqs[kept.index], kept.instead
    if message is None and seq in session.altered:  # what an earlier compaction shows instead is what this one found
        message = session.context.messages[kept.index]
    if message is None:
        return ViewEntry(seq)
    (item,) = codec.wire.render(message)
    now = time.time()  # the engine says 0 for what it has just hidden: the same history gives the same values there
    return ViewEntry(seq, item, kept.pruned, tuple(at or now for at in kept.pruned_at))


def _covers_to(session: ResumedSession, kept: list[Kept], reader: SessionReader) -> int:
    """Find the last row that is no longer shown."""
    shown = {one.index for one in kept}
    hidden = [seq for index, seq in enumerate(session.seqs) if index not in shown]
    pivot = reader.timeline.pivot
    return max([*hidden, pivot.covers_to if pivot is not None else 0])


def _report(session: ResumedSession, context: Context, account: _Account, state: State) -> Report:
    return Report(
        policy=account.policy,
        reason=account.reason,
        tokens_before=account.tokens,
        tokens_after=context.projected_tokens,
        messages_before=len(session.history),
        messages_after=len(context.project()),
        budget=account.budget,
        steps=balanced(account.steps, account.tokens, context.projected_tokens, len(session.history)),
        actions=tuple(context.actions()),
        told=state.summary,
        recoverable=RECOVERABLE,
        seconds=account.seconds,
    )


def write(draft: Draft, prepared: PreparedCompaction, codec: RowCodec, *, asks: bool) -> None:
    """Put a prepared compaction into a draft: its marker where nobody wrote one, summary, resume message, record."""
    record = prepared.record
    if record.auto and not record.markers:
        record = msgspec.structs.replace(record, markers=(add_marker(draft, Marker(reason=record.reason)),))
    summary = draft.add({"text": prepared.summary, "compaction": record.id}, _spoken(prepared.summary), kind="summary")
    resume = 0
    if asks:
        message = resuming()
        (item,) = codec.wire.render(message)
        resume = draft.add(item, message, kind="resume")
    draft.do(msgspec.structs.replace(record, summary=summary, resume=resume))


def add_marker(draft: Draft, marker: Marker) -> int:
    """Append a request to compact to a draft; return its row."""
    return draft.add(draft.codec.cleaned(msgspec.to_builtins(marker)), Message("user", (marker,)), kind="marker")


def _spoken(text: str) -> Message:
    return Message("assistant", (Text(text),), is_summary=True)
