"""The lifecycle of a compaction: read the session once, prepare without touching the store, commit once.

A request to compact (a marker) is durable. Nothing changes until the commit, so a crash loses at most a summary, and
the next compaction finds the request again. An automatic compaction writes its marker before it waits for a summarizer;
without a summarizer, marker and result are one commit. A lock allows one compaction of a session at a time; callers
that waited for it find the result of the first.

A history of more than ``STAGE`` messages is compacted in stages, from the oldest messages on, as if it had been
compacted while it grew. Each stage reads at most about ``STAGE`` messages and what the stage before it shows, and is
committed as a compaction of its own. So memory does not depend on the length of the history, and a compaction that was
interrupted continues after its last stage.
"""

from __future__ import annotations

import asyncio
import logging
import operator
import time
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Self

import msgspec

from kompakt import api
from kompakt.engine.compaction import report as reports
from kompakt.engine.compaction.compact import CompactionOrder, Outcome, proceed, run_sync
from kompakt.engine.compaction.policies import AnyPolicy, Policy, policy_named
from kompakt.engine.compaction.report import Report, Step, build_report
from kompakt.engine.context.context import Context
from kompakt.engine.pivot.pivot import MAX_FAULT, Material, NarrativeAccount, Summarizer, combined
from kompakt.engine.pivot.saved_state import SavedContext, SavedMessage, save_context
from kompakt.engine.strategies import Strategy, Summarization
from kompakt.errors import Conflict, DoesNotFit
from kompakt.model.budget import Budget
from kompakt.model.groups import safe_cuts
from kompakt.model.json import prepare
from kompakt.model.messages import Marker, Message, Text
from kompakt.model.phrases import ASSISTANT_LINE, RESUME_PROMPT, resume_note
from kompakt.model.references import digest
from kompakt.model.tokens import Counter, Tokenizer, count
from kompakt.session.lock import COMPACTION, hold
from kompakt.session.reader import ResumedSession, SessionReader, mid_step, project_session, resume_session
from kompakt.session.rows import Draft, RowCodec
from kompakt.session.timeline import (
    RECOVERABLE,
    CompactionFailure,
    CompactionRecord,
    PreparedCompaction,
    ViewEntry,
    build_record,
)
from kompakt.store.records import Fence, Head, StoredRow
from kompakt.wire.registry import WIRES

if TYPE_CHECKING:
    from kompakt.session.session import Session

_log = logging.getLogger("kompakt.session")

TRIES = 3
"""How often a compaction is prepared again because the session changed in the meantime."""

STAGE = 20_000
"""Messages that a compaction reads at once."""

STAGE_TOKENS = 8_000_000
"""Tokens of these messages; about 32 MB of text."""

_WINDOW = 2_000
"""Last messages of a stage among which it looks for a place to end: between two turns, else between two groups."""

RESUME_SOURCE = "kompakt.resume"
"""``source_id`` of the message that asks the agent to continue."""


class CompactionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a compaction."""

    budget: int | Budget | None = None
    policy: AnyPolicy = "default"
    summarizer: Summarizer | None = None
    instructions: str | None = None
    model: str | None = None
    tokenizer: Tokenizer | None = None
    resume: bool | str = True
    """The message that asks the agent to continue after an automatic compaction: the default text, another, or none."""
    question: str | None = None
    """The user message before the summary, in the application's own words; ``None`` keeps those of the latest one."""
    reason: str | None = None
    """Compact now and report this reason; ``None`` compacts only if the budget is exceeded or a request is pending."""


class SessionCompaction(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of ``Session.compact``."""

    id: str | None
    """The newest compaction of the session."""
    changed: bool
    """Whether this call made it."""
    tokens_before: int
    tokens_after: int
    report: Report | None = None


async def compact(session: Session, options: CompactionOptions, fence: Fence) -> SessionCompaction:
    """Compact a session if that is due. The caller holds the lock of ``fence``.

    Raises:
        DoesNotFit: what must stay is larger than the budget; the failure is recorded.
        Conflict: the session changed during every attempt.
    """
    reader, staged = await _compact_stages(session, options, fence)
    for attempt in range(TRIES):
        reader = await session.reader() if attempt else reader
        now = await resume_session(reader, model=options.model, tokenizer=options.tokenizer)
        policy, tokens, triggered = policy_named(options.policy), now.context.projected_tokens, False
        if not now.markers and options.reason is None:
            triggered = not budget_of(now, options).due(tokens)
            if triggered and policy.due(now.context) is None:
                return staged or unchanged(reader, tokens)
        if not now.markers and not triggered and (options.summarizer is not None or policy.awaits):
            if not await _request(session, reader, now, options):
                continue
        try:
            prepared = await prepare_from(reader, now, options, now.markers, triggered=triggered)
        except DoesNotFit as error:
            _log.warning("session %r not compacted: %s", session.id, error)
            dropped = tuple(seq for seq, marker in now.markers.items() if marker.auto)
            await record_failure(session, error, markers=dropped)
            raise
        if not prepared.changed:
            return staged or unchanged(reader, tokens)
        if await commit(session, prepared, reader, fence):
            return _with_stages(announce(prepared), staged)
    raise _changed_too_often(session)


async def compact_served(session: Session, options: CompactionOptions, fence: Fence) -> SessionCompaction:
    """Compact a session that a gateway records, if that is due or has a reason.

    No row is added: the rows are the messages of the client.

    Raises:
        DoesNotFit: what must stay is larger than the budget.
        Conflict: the session changed during every attempt.
    """
    waits = options.summarizer is not None or policy_named(options.policy).awaits
    for _ in range(TRIES):
        reader = await session.reader()
        now = await resume_session(reader, model=options.model, tokenizer=options.tokenizer)
        tokens = now.context.projected_tokens
        if options.reason is None and not budget_of(now, options).due(tokens):
            return unchanged(reader, tokens)
        preparing = prepare_from(reader, now, options, {})
        prepared = await (preparing if waits else asyncio.to_thread(run_sync, preparing, may_wait=False))
        record = msgspec.structs.replace(prepared.record, auto=False)
        if await _commit_event(session, record, reader, fence):
            return announce(prepared)
    raise _changed_too_often(session)


async def _compact_stages(
    session: Session, options: CompactionOptions, fence: Fence
) -> tuple[SessionReader, SessionCompaction | None]:
    """Compact the oldest messages, stage by stage, until few enough are left to read them at once.

    A stage is made only where the budget is due, so it never compacts what would have fit. Summarizers are not asked:
    what they write follows from the last part. Returns a reader of the rest, and the outcome of the stages together.
    """
    done: SessionCompaction | None = None
    policy, factor, failed = _without_summarizers(policy_named(options.policy)), 1, 0
    alone = msgspec.structs.replace(options, policy=policy, summarizer=None, resume=False, reason=None)
    while True:
        reader = await session.reader()
        end = await _stage_end(reader, factor)
        if end is None:
            return reader, done
        part = SessionReader(
            reader.records, msgspec.structs.replace(reader.head, rows=end, tip=end), reader.codec, reader.timeline
        )
        now = await resume_session(part, model=options.model, tokenizer=options.tokenizer)
        if not budget_of(now, options).due(now.context.projected_tokens):
            factor *= 2
            continue
        try:
            prepared = await prepare_from(part, now, alone, {})
        except DoesNotFit:  # more messages may fit, because others are the newest then
            factor *= 2
            continue
        if await commit(session, prepared, part, fence):
            done, failed = _with_stages(announce(prepared), done), 0
        elif (failed := failed + 1) == TRIES:
            raise _changed_too_often(session)


def _without_summarizers(policy: Policy) -> Policy:
    steps = tuple(
        Summarization(share=step.share, when=step.when, target=step.target) if isinstance(step, Summarization) else step
        for step in policy.steps
    )
    return msgspec.structs.replace(policy, steps=steps)


async def _stage_end(reader: SessionReader, factor: int) -> int | None:
    """Return the last row of the next stage; ``None`` if all rows can be read at once."""
    pivot = reader.timeline.pivot
    after = pivot.tip if pivot is not None else 0
    if reader.head.rows - after <= min(STAGE, _WINDOW):
        return None
    messages = tokens = 0
    window: deque[StoredRow] = deque(maxlen=_WINDOW)
    async for rows in reader.rows(after=after):
        for row in rows:
            if row.kind not in ("message", "resume"):
                continue
            if messages >= factor * STAGE or tokens >= factor * STAGE_TOKENS:
                return await _last_cut(reader, [*window, row])
            messages += 1
            tokens += reader.codec.note(row).tokens
            window.append(row)
    return None


async def _last_cut(reader: SessionReader, rows: Sequence[StoredRow]) -> int:
    """Return the last of these rows, except the last one, after which the session may be cut."""
    stored = await reader.stored(rows)
    cuts = [cut for cut in safe_cuts([one.message for one in stored]) if 0 < cut < len(rows)]
    turns = [cut for cut in cuts if rows[cut].turn > rows[cut - 1].turn]
    at = (turns or cuts or [len(rows) - 1])[-1]
    return rows[at - 1].seq


def _with_stages(made: SessionCompaction, staged: SessionCompaction | None) -> SessionCompaction:
    """Return the outcome of a compaction as if it and its stages were one."""
    if staged is None:
        return made
    return msgspec.structs.replace(made, tokens_before=staged.tokens_before + made.tokens_before - staged.tokens_after)


async def apply(
    session: Session,
    strategy: Strategy,
    fence: Fence,
    *,
    tokenizer: Tokenizer | None = None,
    reason: str | None = None,
) -> SessionCompaction:
    """Run one strategy on the session; nothing is written if it changes nothing.

    ``reason`` defaults to the attribute ``reason`` of the strategy.
    """
    for _ in range(TRIES):
        reader = await session.reader()
        now = await resume_session(reader, tokenizer=tokenizer)
        now.context.pinned_texts = list(reader.timeline.pins)
        before, began = now.context.projected_tokens, time.perf_counter()
        if not await strategy(now.context):
            return unchanged(reader, before)
        if now.context.is_rewritten:
            now.context.strip_reasoning()
            now.context.note_pins()
        name = getattr(strategy, "__name__", None) or type(strategy).__name__
        why = reason or getattr(strategy, "reason", None) or "asked for"
        run = _Run(name, why, before, seconds=time.perf_counter() - began)
        prepared = _prepared(reader, now, now.context, run)
        if await commit(session, prepared, reader, fence):
            return announce(prepared)
    raise _changed_too_often(session)


def _changed_too_often(session: Session) -> Conflict:
    return Conflict(f"session {session.id!r} changed during {TRIES} attempts to compact it; try again later")


async def _request(session: Session, reader: SessionReader, now: ResumedSession, options: CompactionOptions) -> bool:
    """Write a marker before waiting for a summarizer; false if another writer appended in the meantime."""
    row = await session.request_compaction(auto=True, reason=options.reason)
    if row != reader.head.rows + 1:
        return False
    reader.head = msgspec.structs.replace(reader.head, rows=row, tip=row)
    now.markers = {row: Marker(reason=options.reason)}
    return True


def announce(prepared: PreparedCompaction) -> SessionCompaction:
    """Log and trace a committed compaction and call its listeners; return the outcome."""
    reports.announce(prepared.report)
    record = prepared.record
    return SessionCompaction(
        id=record.id,
        changed=True,
        tokens_before=record.tokens_before,
        tokens_after=record.tokens_after,
        report=prepared.report,
    )


def unchanged(reader: SessionReader, tokens: int) -> SessionCompaction:
    """Return the outcome of a call that compacted nothing."""
    pivot = reader.timeline.pivot
    return SessionCompaction(
        id=None if pivot is None else pivot.id, changed=False, tokens_before=tokens, tokens_after=tokens
    )


# --- prepare -----------------------------------------------------------------------------------------------------


async def prepare_from(
    reader: SessionReader,
    session: ResumedSession,
    options: CompactionOptions,
    markers: Mapping[int, Marker],
    *,
    triggered: bool = False,
) -> PreparedCompaction:
    """Prepare a compaction of a session as it was read; the store is not used.

    Without markers the compaction is automatic, and its marker is committed with it. ``triggered`` runs only the steps
    whose triggers fired.

    Raises:
        DoesNotFit: what must stay is larger than the budget.
    """
    began = time.perf_counter()
    ran = await run_engine(reader, session, options, markers, triggered=triggered)
    outcome, order, before, auto = ran.outcome, ran.order, ran.tokens_before, is_auto(markers)
    steps, budget = outcome.steps, order.budget
    reason = (options.reason if auto else None) or (triggered and outcome.reason) or _reason(markers, budget, before)
    run = _Run(order.policy.name, reason, before, budget.trigger, steps, time.perf_counter() - began)
    failed = [f"{step.strategy}: {step.failed}" for step in steps if step.failed]
    failures = tuple(reader.codec.cleaned(one)[:MAX_FAULT] for one in (*outcome.context.failures, *failed))
    prepared = _prepared(reader, session, outcome.context, run, markers=markers, auto=auto, failures=failures)
    # Without a summary, for example after pruning alone, the model sees every message and needs no request to continue.
    summarized = outcome.context.summary_text is not None
    # The single-message shape already ends with a request to continue.
    prepared.resume = ran.resume if summarized and not outcome.context.single_message else None
    prepared.changed = not triggered or outcome.reason is not None
    return prepared


class EngineRun(NamedTuple):
    """What the engine made of a session; nothing is stored yet."""

    outcome: Outcome
    order: CompactionOrder
    tokens_before: int
    resume: str | None
    """Text of the message that asks the agent to continue, if it may be added."""
    replayed: bool
    """Whether the session was compacted from its messages, so that its own context is unchanged."""


async def run_engine(
    reader: SessionReader,
    session: ResumedSession,
    options: CompactionOptions,
    markers: Mapping[int, Marker],
    *,
    triggered: bool = False,
) -> EngineRun:
    """Run the policy on a session as it was read. Its context changes unless ``replayed``; the store is not used.

    Raises:
        DoesNotFit: what must stay is larger than the budget.
    """
    order = order_of(session, options, markers, reader.timeline.pins)
    order = msgspec.structs.replace(order, policy=with_summarizer(order.policy, options.summarizer, reader.codec))
    before = session.context.projected_tokens
    auto = is_auto(markers)
    may_ask = auto and not mid_step(session.context.messages, session.context.contract)
    resume = resume_text(options.resume) if may_ask else None
    spare = _repair_tokens(session) + (resume_tokens(order.counter, resume) if resume else 0)
    order = msgspec.structs.replace(order, spare=spare)
    replays = auto and reader.timeline.pivot is None and "resume" not in session.kinds
    replayed = replays and order.budget.due(session.context.tokens)
    outcome = await proceed(session.context, session.history, order, forced=not triggered, replays=replays)
    return EngineRun(outcome, order, before, resume, replayed)


def budget_of(session: ResumedSession, options: CompactionOptions) -> Budget:
    model, policy = options.model or session.history.model, policy_named(options.policy)
    return api.budget_for(options.budget, model, policy, request=session.history)


def order_of(
    session: ResumedSession, options: CompactionOptions, markers: Mapping[int, Marker], pins: tuple[str, ...]
) -> CompactionOrder:
    requested = [marker.instructions for marker in markers.values() if marker.instructions]
    return CompactionOrder(
        budget=budget_of(session, options),
        policy=policy_named(options.policy),
        counter=session.context.counter,
        pins=pins,
        instructions="\n".join(filter(None, [*requested, options.instructions])) or None,
        manual_thinking=WIRES[session.history.format].manual_thinking(session.history.body),
        references=session.names,
        seal_key=session.context.seal_key,
        question=None if options.question is None else options.question.strip(),
    )


def with_summarizer(policy: Policy, summarizer: Summarizer | None, codec: RowCodec) -> Policy:
    """Make the summarization steps of a policy use ``summarizer``, or their own, and redact what it returns.

    A summary is stored like any message, and a model can repeat a secret that it read before redaction.
    """
    steps = tuple(_redacted(step, summarizer, codec) for step in policy.steps)
    return policy if steps == policy.steps else msgspec.structs.replace(policy, steps=steps)


def _redacted(step: Strategy, summarizer: Summarizer | None, codec: RowCodec) -> Strategy:
    if not isinstance(step, Summarization) or (chosen := summarizer or step.summarizer) is None:
        return step

    async def summarize(material: Material) -> str:
        made = chosen(material)
        return codec.cleaned((await made if isinstance(made, Awaitable) else made).strip())

    return Summarization(summarize, share=step.share, when=step.when, target=step.target)


def _reason(markers: Mapping[int, Marker], budget: Budget, tokens: int) -> str:
    """Return the reason of a compaction: the budget, the newest reason of a request, or that it was requested."""
    if budget.due(tokens):
        return f"over {budget.trigger} tokens"
    given = [marker.reason for marker in markers.values() if marker.reason]
    if given or not is_auto(markers):
        return given[-1] if given else "asked for"
    return f"over {budget.trigger} tokens, as the provider counts"


class _Run(NamedTuple):
    """How a context was changed, for the report."""

    policy: str
    reason: str
    tokens_before: int
    budget: int = 0
    steps: tuple[Step, ...] = ()
    seconds: float = 0.0


def _prepared(
    reader: SessionReader,
    session: ResumedSession,
    context: Context,
    run: _Run,
    *,
    markers: Mapping[int, Marker] = MappingProxyType({}),
    auto: bool = False,
    failures: tuple[str, ...] = (),
) -> PreparedCompaction:
    """Turn what a context shows into a record and a report."""
    state, kept = save_context(context)
    report = build_report(
        context,
        policy=run.policy,
        reason=run.reason,
        tokens_before=run.tokens_before,
        messages_before=len(session.history),
        messages_after=len(context.project()),
        budget=run.budget,
        steps=run.steps,
        at_message=len(session.history),
        failures=failures,
        narrative=_cleaned(combined(context.narratives), reader.codec),
        recoverable=RECOVERABLE,
        seconds=run.seconds,
        session=reader.head.name,
    )
    record = build_record(
        [_entry(session, one, reader.codec) for one in kept],
        state,
        report,
        covers_to=_covers_to(session, kept, reader),
        tip=reader.head.rows,
        markers=markers,
        auto=auto,
    )
    return PreparedCompaction(record, state.summary, report)


def _cleaned(account: NarrativeAccount | None, codec: RowCodec) -> NarrativeAccount | None:
    """Redact the sentences of an account like everything that is stored."""
    if account is None:
        return None
    marked, dropped = (tuple(map(codec.cleaned, sentences)) for sentences in (account.marked, account.dropped))
    return msgspec.structs.replace(account, marked=marked, dropped=dropped)


def _entry(session: ResumedSession, kept: SavedMessage, codec: RowCodec) -> ViewEntry:
    seq, message = session.seqs[kept.index], kept.instead
    if message is None and seq in session.altered:  # unchanged now, but an earlier compaction replaced it
        message = session.context.messages[kept.index]
    return _entry_of(seq, message, kept, codec)


def _entry_of(seq: int, message: Message | None, kept: SavedMessage, codec: RowCodec) -> ViewEntry:
    if message is None:
        return ViewEntry(seq)
    (item,) = codec.wire.render(message)
    now = time.time()  # the engine writes 0 for outputs it has just hidden, so that its results are reproducible
    return ViewEntry(seq, item, kept.pruned, tuple(at or now for at in kept.pruned_at))


def _covers_to(session: ResumedSession, kept: list[SavedMessage], reader: SessionReader) -> int:
    """Return the last row that is hidden."""
    shown = {one.index for one in kept}
    hidden = [seq for index, seq in enumerate(session.seqs) if index not in shown]
    pivot = reader.timeline.pivot
    return max([*hidden, pivot.covers_to if pivot is not None else 0])


async def record_failure(session: Session, error: DoesNotFit, *, markers: tuple[int, ...] = ()) -> None:
    """Record that a compaction failed; ``markers`` are automatic requests that are dropped with it."""
    failure = CompactionFailure(reason=str(error)[:MAX_FAULT], markers=markers)
    await session.do(lambda _: [failure])


async def record_compaction(session: Session, context: Context, report: Report, stored: Sequence[Message]) -> bool:
    """Record what was made of a session's messages outside of it, so that it shows what the model sees.

    ``stored`` are all messages of the session. If it has others, nothing is recorded, and false is returned. Those of
    ``context`` differ from them after a repair; what the repair wrote and the model sees is inserted.
    The record has neither marker nor summary row: nobody asked for it, and the next compaction is not made from it.
    """
    state, kept = save_context(context)
    places = _stored_places(context.messages, stored)
    report = msgspec.structs.replace(report, actions=())
    recorded = False

    async def make(_: Head) -> Draft:
        nonlocal recorded
        reader = await session.reader()
        codec, seqs = reader.codec, await reader.message_rows()
        draft = Draft(reader.head, codec)
        recorded = len(seqs) == len(stored)
        if recorded:
            view: list[ViewEntry] = []
            for one in kept:
                place = places.get(one.index)
                seq = _inserted(draft, context.messages[one.index]) if place is None else seqs[place]
                view.append(_entry_of(seq, one.instead, one, codec))
            visible = {one.seq for one in view}
            draft.add_event(
                build_record(
                    [msgspec.structs.replace(one, item=codec.cleaned(one.item)) for one in view],
                    msgspec.convert(codec.cleaned(msgspec.to_builtins(state)), SavedContext),
                    msgspec.convert(codec.cleaned(msgspec.to_builtins(report)), Report),
                    covers_to=max((seq for seq in seqs if seq not in visible), default=0),
                    tip=draft.head.rows,
                    auto=True,
                )
            )
        return draft

    await session.write(make)
    return recorded


def _stored_places(messages: Sequence[Message], stored: Sequence[Message]) -> Mapping[int, int]:
    """Return the place of each message among the stored ones; those that a repair wrote have none."""
    if len(messages) == len(stored) and all(map(operator.eq, messages, stored)):
        return dict(enumerate(range(len(stored))))
    known: dict[bytes, deque[int]] = {}
    for place, message in enumerate(stored):
        known.setdefault(digest(message), deque()).append(place)
    found = ((index, known.get(digest(message))) for index, message in enumerate(messages))
    return {index: places.popleft() for index, places in found if places}


def _inserted(draft: Draft, message: Message) -> int:
    """Insert a row that is no message of the session; return its number."""
    ((item, read),) = draft.codec.items([message])
    return draft.add(item, read, kind="inserted")


def is_auto(markers: Mapping[int, Marker]) -> bool:
    """Return whether a compaction is automatic: no marker was written on request of a user."""
    return all(marker.auto for marker in markers.values())


def _repair_tokens(session: ResumedSession) -> int:
    """Count what a repair will add to a broken history."""
    shown = project_session(session)
    if not shown.repairs:
        return 0
    repaired = api.parse(shown.payload, session.history.format)
    return max(0, count(repaired, session.context.counter).total - shown.tokens)


# --- commit ------------------------------------------------------------------------------------------------------


async def commit(session: Session, prepared: PreparedCompaction, reader: SessionReader, fence: Fence) -> bool:
    """Write a compaction in one batch; false if an event was recorded since ``reader`` was made.

    Messages appended in the meantime do no harm: they follow the view.
    """
    stale = False

    async def make(head: Head) -> Draft:
        nonlocal stale
        draft = Draft(head, reader.codec)
        stale = is_stale(reader, head)
        if not stale:
            blocked = prepared.resume is not None and await _step_began(session, reader, head)
            add_compaction(draft, prepared, resume=None if blocked else prepared.resume)
        return draft

    await session.write(make, fence=fence)
    return not stale


async def _commit_event(session: Session, record: CompactionRecord, reader: SessionReader, fence: Fence) -> bool:
    """Write a compaction without rows; false if an event was recorded since ``reader`` was made."""
    stale = False

    async def make(head: Head) -> Draft:
        nonlocal stale
        draft = Draft(head, reader.codec)
        stale = is_stale(reader, head)
        if not stale:
            draft.add_event(record)
        return draft

    await session.write(make, fence=fence)
    return not stale


def is_stale(reader: SessionReader, head: Head) -> bool:
    """Return whether the session was recreated, or has new events, since it was read."""
    return (head.created, head.events) != (reader.head.created, reader.head.events)


async def _step_began(session: Session, reader: SessionReader, head: Head) -> bool:
    """Return whether a step began after the compaction was prepared and has not ended."""
    if head.rows == reader.head.rows:
        return False
    now = await resume_session(await session.reader())
    return mid_step(now.context.messages, now.context.contract)


def add_compaction(draft: Draft, prepared: PreparedCompaction, *, resume: str | None) -> None:
    """Add a compaction to a draft: its marker if there is none yet, the summary, the resume message, the record."""
    record = prepared.record
    if record.auto and not record.markers:
        record = msgspec.structs.replace(record, markers=(add_marker(draft, Marker(reason=record.reason)),))
    text = Message("assistant", (Text(prepared.summary),), is_summary=True)
    summary = draft.add({"text": prepared.summary, "compaction": record.id}, text, kind="summary")
    row = 0
    if resume is not None:
        message = resume_message(resume)
        (item,) = draft.codec.wire.render(message)
        row = draft.add(item, message, kind="resume")
    draft.add_event(msgspec.structs.replace(record, summary=summary, resume=row))


def add_marker(draft: Draft, marker: Marker) -> int:
    """Add a request to compact to a draft; return its row."""
    return draft.add(draft.codec.cleaned(msgspec.to_builtins(marker)), Message("user", (marker,)), kind="marker")


def resume_text(resume: bool | str) -> str | None:
    """Return the text that asks the agent to continue, or ``None`` for ``False`` or an empty text."""
    if isinstance(resume, str):
        return resume_note(resume.strip()) if resume.strip() else None
    return RESUME_PROMPT if resume else None


def resume_message(text: str) -> Message:
    """Return the message that asks the agent to continue after an automatic compaction."""
    return Message("user", (Text(text),), source_id=RESUME_SOURCE)


def resume_tokens(counter: Counter, text: str) -> int:
    """Count the resume message and the assistant line that may have to separate it from an earlier user message."""
    return counter.message(resume_message(text)) + counter.message(Message("assistant", (Text(ASSISTANT_LINE),)))


# --- ahead of time -----------------------------------------------------------------------------------------------


class CompactionPlan(NamedTuple):
    """A compaction that is prepared while the agent continues, and published later if it is still valid.

    Everything is read first. Preparing does not use the store, so abandoning it costs only the summary. Messages
    appended in the meantime follow the view. Any event in the meantime (another compaction, an undo, a revert, a pin)
    makes the plan invalid.
    """

    reader: SessionReader
    session: ResumedSession
    options: CompactionOptions

    @classmethod
    async def read(cls, session: Session, options: CompactionOptions) -> Self:
        """Read the session as it is now."""
        reader = await session.reader()
        now = await resume_session(reader, model=options.model, tokenizer=options.tokenizer)
        return cls(reader, now, options)

    async def prepare(self) -> PreparedCompaction:
        """Prepare the compaction; waits for the summarizer and nothing else.

        Raises:
            DoesNotFit: what must stay is larger than the budget.
        """
        budget = budget_of(self.session, self.options)
        reason = self.options.reason or f"prepared ahead of {budget.trigger} tokens"
        options = msgspec.structs.replace(self.options, reason=reason)
        return await prepare_from(self.reader, self.session, options, {})  # ``publish`` adds the markers

    async def publish(self, session: Session, prepared: PreparedCompaction) -> SessionCompaction | None:
        """Commit the prepared compaction; ``None``, without a change, if it is no longer valid.

        A request by a user, or one with instructions, is not answered with something that was prepared before it.
        """
        async with hold(session.records, session.key, COMPACTION, session=session.id) as fence:
            markers = await (await session.reader()).markers()
            if not all(marker.auto and not marker.instructions for marker in markers.values()):
                return None
            prepared.record = msgspec.structs.replace(prepared.record, markers=tuple(markers))
            return announce(prepared) if await commit(session, prepared, self.reader, fence) else None


prepare(SavedContext, Report)
