"""Build the pivot that replaces the start of a request, in a worker thread. It is pure if there is no summarizer."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence

import msgspec

from kompakt import api
from kompakt.engine.compaction import compact as engine
from kompakt.engine.compaction.compact import CompactionOrder, run_sync
from kompakt.engine.compaction.policies import Policy, with_summarizer
from kompakt.engine.context.context import Context
from kompakt.engine.pivot.pivot import pivot_text
from kompakt.engine.pivot.saved_state import SavedContext, SavedMessage, resume, save_context
from kompakt.engine.pivot.summarizer import Summarizer, combined
from kompakt.errors import DoesNotFit
from kompakt.gateway.pivots.budget import PREPARE_SHARE, LearnedLimits
from kompakt.gateway.pivots.lookup import Pivot, PivotMatch, VisibleMessage, covered_items
from kompakt.gateway.request.anthropic import without_cache_marks
from kompakt.gateway.request.body import decode_item, parse_items
from kompakt.gateway.request.hash_chain import HashChain
from kompakt.model.budget import Budget
from kompakt.model.messages import History, Json, Message, ToolResult
from kompakt.model.tokens import counter_for
from kompakt.wire.registry import WIRES

_log = logging.getLogger("kompakt.gateway")


class PivotRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Input of ``build_pivot``."""

    chain: HashChain
    found: PivotMatch | None
    """The pivot that the request matches now."""
    budget: Budget
    policy: Policy
    session: str
    names: tuple[str, ...] = ()
    """References in the store of the messages after that pivot; empty when the store is unavailable."""
    reason: str
    learned: LearnedLimits = LearnedLimits()
    attempt: int = 0
    seal_key: bytes = b""
    """Seals the pivot; see ``Context.seal_key``."""
    summarizer: Summarizer | None = None
    """Writes the narrative; without it code writes the whole summary."""


def build_pivot(request: PivotRequest) -> Pivot:
    """Build the pivot of a whole request, or the smallest possible one when the budget cannot be met.

    Raises:
        InputError: an item is not a message.
    """
    try:
        return _built(request)
    except DoesNotFit as error:
        _log.warning("session %s: budget cannot be met, sending the smallest request: %s", request.session, error)
        return _built(msgspec.structs.replace(request, budget=Budget.of(error.floor)))


def _built(request: PivotRequest) -> Pivot:
    history, view, tail = _parsed(request)
    before = request.found.pivot if request.found is not None else None
    names = tuple(one.name for one in before.view) if before else ()
    if len(request.names) >= len(tail):
        names += request.names[: len(tail)]
    counter = counter_for(history.model).own()
    state = before.state if before else SavedContext()
    context = resume(history.with_messages(view), state, counter=counter, references=names, seal_key=request.seal_key)
    context.is_resumed = bool(state.ledger)
    context.extend(tail)
    # Build for the size at which pivots are prepared: later steps are sent after the pivot.
    trigger = request.budget.mark(PREPARE_SHARE, fixed=context.fixed_tokens)
    order = CompactionOrder(
        budget=request.budget.triggered_at(trigger),
        policy=request.policy if request.summarizer is None else with_summarizer(request.policy, request.summarizer),
        counter=counter,
        manual_thinking=WIRES[history.format].manual_thinking(history.body),
        references=names,
        seal_key=request.seal_key,
    )
    tokens_before = context.projected_tokens
    work = engine.proceed(context, history.with_messages((*view, *tail)), order, forced=True)
    outcome = run_sync(work, may_wait=False) if request.summarizer is None else asyncio.run(work)
    used = tuple(dict.fromkeys(step.strategy for step in outcome.steps))
    return msgspec.structs.replace(_pivot(request, history, outcome.context, tokens_before), strategies=used)


def _parsed(request: PivotRequest) -> tuple[History, list[Message], list[Message]]:
    """Parse the envelope, the messages that the matching pivot still shows, and the messages after it."""
    chain, body = request.chain, request.chain.request
    start = covered_items(chain, request.found)
    shown = request.found.pivot.view if request.found is not None else ()
    raw = body.items(start)[: chain.length - start]
    messages = parse_items([*(one.item for one in shown), *map(decode_item, raw)], body.format)
    envelope = WIRES[body.format].parse([], body.envelope())
    lead = parse_items([decode_item(body.item(index)) for index in range(chain.lead)], body.format)
    history = History(
        (),
        format=body.format,
        body=envelope.body,
        system=(*envelope.system, *lead),
        tools=envelope.tools,
        model=body.model,
        contract=envelope.contract,
    )
    view = [_with_pruned(message, one.pruned) for message, one in zip(messages, shown, strict=False)]
    return history, view, list(messages[len(shown) :])


def _with_pruned(message: Message, pruned: Sequence[int]) -> Message:
    """Mark the tool results whose output an earlier compaction hid."""
    if not pruned:
        return message
    parts = [
        msgspec.structs.replace(part, pruned_at=0.0) if place in pruned and type(part) is ToolResult else part
        for place, part in enumerate(message.parts)
    ]
    return msgspec.structs.replace(message, parts=tuple(parts))


def _pivot(request: PivotRequest, history: History, context: Context, tokens_before: int) -> Pivot:
    chain = request.chain
    state, kept = save_context(context)
    shown = history.with_messages(context.project())
    items = _rendered(shown)
    return Pivot(
        id=f"c{hashlib.blake2b(chain.key + bytes([request.attempt]), digest_size=6).hexdigest()}",
        session=request.session,
        covers=chain.length - chain.lead,
        items=[without_cache_marks(item) for item in items],
        tokens=sum(context.counter.message(message) for message in parse_items(items, shown.format)),
        state=state,
        view=tuple(_visible(one, request, context) for one in kept),
        policy=request.policy.name,
        reason=request.reason,
        tokens_before=tokens_before,
        tokens_after=context.projected_tokens,
        told=pivot_text(context) if context.summary_text else "",
        scale=request.learned.scale,
        limit=request.learned.limit,
        output_counts=request.learned.output_counts,
        attempt=request.attempt,
        narrative=combined(context.narratives),
    )


def _visible(kept: SavedMessage, request: PivotRequest, context: Context) -> VisibleMessage:
    found, chain = request.found, request.chain
    view = found.pivot.view if found is not None else ()
    earlier = view[kept.index] if kept.index < len(view) else None
    start = covered_items(chain, found) - chain.lead
    (item,) = WIRES[chain.request.format].render(kept.instead or context.messages[kept.index])
    return VisibleMessage(
        earlier.at if earlier else start + kept.index - len(view),
        without_cache_marks(item),
        context.reference(kept.index),
        kept.pruned,
        altered=kept.instead is not None or (earlier is not None and earlier.altered),
    )


def _rendered(shown: History) -> list[Json]:
    """Render the visible messages, repaired where the client's own history is invalid."""
    payload = api.repair(shown).payload
    key = WIRES[shown.format].messages_key
    return list(payload[key] if isinstance(payload, dict) else payload)
