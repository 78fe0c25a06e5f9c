"""What to send for a request: its budget, whether something is due, and the pivot that is then made.

Everything here follows from the request, the pivot it stands on and the settings, so each replica decides alike. It
is synchronous and touches nothing outside.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from kompakt import api
from kompakt.engine.compaction import compact as engine
from kompakt.engine.compaction.compact import Order, drive
from kompakt.engine.compaction.policies import Policy
from kompakt.engine.context.context import Context
from kompakt.engine.pivot.saved_state import Kept, State, resume, state_of
from kompakt.engine.pivot.text import retell
from kompakt.errors import DoesNotFit
from kompakt.gateway.config import GatewayConfig
from kompakt.gateway.pivots.lookup import Pivot, PivotMatch, VisibleMessage
from kompakt.gateway.request.anthropic import without_cache_marks
from kompakt.gateway.request.body import decode_item, parse_items
from kompakt.gateway.request.hash_chain import HashChain
from kompakt.model.budget import TARGET_SHARE, TRIGGER_SHARE, Budget, size_after_refusal
from kompakt.model.limits import Limits, lookup, with_window
from kompakt.model.messages import History, Json, Message, ToolResult
from kompakt.model.tokens import counter_for
from kompakt.wire.overflow import Overflow
from kompakt.wire.registry import WIRES

_log = logging.getLogger("kompakt.gateway")

PREPARE_SHARE = 0.95
"""Share of what can change below the trigger from which a pivot is prepared, so that it is there when it is due. It
does not cover the steps that come later, so preparing must not begin long before."""


class RequestSize(NamedTuple):
    """What a request costs, with a pivot in the place of its beginning and without."""

    given: int
    sent: int
    fixed: int
    """What of it no compaction changes: system prompt and tools."""


class RequestSizes:
    """Counts whole requests; what stands beside the messages is counted once."""

    def __init__(self, most: int = 2_000) -> None:
        self._most = most
        self._known: dict[bytes, int] = {}

    def of(self, chain: HashChain, found: PivotMatch | None) -> RequestSize:
        """Count a request."""
        beside = self.beside(chain)
        given, fixed = beside + chain.cost(0), beside + chain.cost(0, chain.lead)
        if found is None:
            return RequestSize(given, given, fixed)
        return RequestSize(given, fixed + found.pivot.tokens + chain.cost(found.at), fixed)

    def beside(self, chain: HashChain) -> int:
        """Count what stands beside the messages."""
        key = hashlib.sha256(chain.request.envelope_raw()).digest() + chain.counter.encode()
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= self._most:
                self._known.clear()
            envelope = WIRES[chain.request.format].parse([], chain.request.envelope())
            found = self._known[key] = Context(envelope, counter=counter_for(chain.request.model)).fixed_tokens
        return found


class LearnedLimits(msgspec.Struct, frozen=True):
    """What a provider's refusal says about how it counts."""

    scale: float = 1.0
    """How many tokens the provider counts for one that is counted here."""
    limit: int | None = None
    """What the provider takes."""
    output_counts: bool = False
    """Whether it refuses what exceeds the window together with the output that is asked for."""


def learned_limits(found: PivotMatch | None) -> LearnedLimits:
    """Return what the pivot that a request stands on knows of the provider."""
    if found is None:
        return LearnedLimits()
    pivot = found.pivot
    return LearnedLimits(pivot.scale, pivot.limit, pivot.output_counts)


def budget_for(chain: HashChain, settings: GatewayConfig, found: PivotMatch | None, *, fixed: int) -> Budget:
    """Compute the budget of a request with ``fixed`` tokens of system prompt and tools, in tokens as counted here."""
    window = window_for(chain.request.model or "", settings)
    known = learned_limits(found)
    most = window.context if known.limit is None else min(window.context or known.limit, known.limit)
    window = with_window(window, most, separate=WIRES[chain.request.format].contract.separate_output)
    budget = Budget.for_request(
        window,
        output=chain.request.output,
        fixed=int(fixed * known.scale),
        output_counts=known.output_counts,
        trigger_share=settings.trigger or TRIGGER_SHARE,
    )
    return budget.scaled(known.scale)


def window_for(model: str, settings: GatewayConfig) -> Limits:
    """Return what a model holds: what is configured for it, else what is known, and no more than what is for all."""
    known = lookup(model)
    stated = settings.windows.get(model)
    if stated is None and settings.context_window is not None:
        most = settings.context_window
        stated = min(known.context or most, most) if known.known else most
    if stated is None:
        return known
    return with_window(known, stated)


def budget_after_overflow(
    budget: Budget, overflow: Overflow, sent: int, known: LearnedLimits
) -> tuple[Budget, LearnedLimits]:
    """Return the budget to try after a refusal, and what is known of the provider then."""
    limit = None if overflow.by_bytes else overflow.limit
    size, scale = size_after_refusal(
        sent, limit=limit, actual=overflow.actual, output=overflow.output, reserve=budget.reserve
    )
    learnt = LearnedLimits(
        max(scale, known.scale),
        limit or known.limit,
        known.output_counts or (limit is not None and overflow.output is not None),
    )
    return Budget.of(size), learnt


# --- the pivot ----------------------------------------------------------------------------------------------------


class PivotRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a pivot is made of."""

    chain: HashChain
    found: PivotMatch | None
    """The pivot that the request stands on."""
    budget: Budget
    policy: Policy
    session: str
    names: tuple[str, ...] = ()
    """What the messages behind that pivot are called in the store; empty when there is none to ask."""
    reason: str
    learnt: LearnedLimits = LearnedLimits()
    attempt: int = 0


def build_pivot(wanted: PivotRequest) -> Pivot:
    """Make the pivot of a whole request; the smallest there is, where what must stay is larger than the budget.

    Raises:
        InputError: a message is none.
    """
    try:
        return _made(wanted)
    except DoesNotFit as error:
        _log.warning("session %s: the smallest request that can be made is sent: %s", wanted.session, error)
        return _made(msgspec.structs.replace(wanted, budget=Budget.of(error.floor)))


def _made(wanted: PivotRequest) -> Pivot:
    chain = wanted.chain
    history, view, tail = _read(wanted)
    before = wanted.found.pivot if wanted.found is not None else None
    names = tuple(one.name for one in before.view) if before else ()
    if len(wanted.names) >= len(tail):
        names += wanted.names[: len(tail)]
    counter = counter_for(chain.request.model).own()
    state = before.state if before else State()
    context = resume(history.with_messages(view), state, counter=counter, references=names)
    context.is_resumed = bool(state.ledger)
    context.extend(tail)
    ripe = wanted.budget.mark(
        PREPARE_SHARE, fixed=context.fixed_tokens
    )  # steps that came later are sent after the pivot
    order = Order(
        budget=wanted.budget.triggered_at(ripe),
        policy=wanted.policy,
        counter=counter,
        manual_thinking=WIRES[history.format].manual_thinking(history.body),
        references=names,
    )
    count = context.projected_tokens
    outcome = drive(engine.proceed(context, history.with_messages((*view, *tail)), order, forced=True), may_wait=False)
    used = tuple(dict.fromkeys(step.strategy for step in outcome.steps))
    return msgspec.structs.replace(_recorded(wanted, history, outcome.context, count), strategies=used)


def _read(wanted: PivotRequest) -> tuple[History, list[Message], list[Message]]:
    """Read the envelope, what is shown of what the pivot stands for, and what came behind it; all items together."""
    chain, request = wanted.chain, wanted.chain.request
    start = wanted.found.at if wanted.found is not None else chain.lead
    shown = wanted.found.pivot.view if wanted.found is not None else ()
    raw = request.items(start)[: chain.length - start]
    items = [*(one.item for one in shown), *map(decode_item, raw)]
    messages = parse_items(items, request.format)
    envelope = WIRES[request.format].parse([], request.envelope())
    lead = parse_items([decode_item(request.item(index)) for index in range(chain.lead)], request.format)
    history = History(
        (),
        format=request.format,
        body=envelope.body,
        system=(*envelope.system, *lead),
        tools=envelope.tools,
        model=request.model,
        contract=envelope.contract,
    )
    view = [_as_shown(message, one.pruned) for message, one in zip(messages, shown, strict=False)]
    return history, view, list(messages[len(shown) :])


def _as_shown(message: Message, pruned: Sequence[int]) -> Message:
    if not pruned:
        return message
    parts = [
        msgspec.structs.replace(part, pruned_at=0.0) if place in pruned and type(part) is ToolResult else part
        for place, part in enumerate(message.parts)
    ]
    return msgspec.structs.replace(message, parts=tuple(parts))


def _recorded(wanted: PivotRequest, history: History, context: Context, before: int) -> Pivot:
    chain = wanted.chain
    state, kept = state_of(context)
    shown = history.with_messages(context.project())
    items = _mended(shown)
    cost = sum(context.counter.message(message) for message in parse_items(items, shown.format))
    key = chain.key
    return Pivot(
        id=f"c{hashlib.blake2b(key + bytes([wanted.attempt]), digest_size=6).hexdigest()}",
        session=wanted.session,
        covers=chain.length - chain.lead,
        items=[without_cache_marks(item) for item in items],
        tokens=cost,
        state=state,
        view=tuple(_shown(one, wanted, context) for one in kept),
        policy=wanted.policy.name,
        reason=wanted.reason,
        tokens_before=before,
        tokens_after=context.projected_tokens,
        told=retell(context) if context.summary_text else "",
        scale=wanted.learnt.scale,
        limit=wanted.learnt.limit,
        output_counts=wanted.learnt.output_counts,
        attempt=wanted.attempt,
    )


def _shown(kept: Kept, wanted: PivotRequest, context: Context) -> VisibleMessage:
    """Say which item a message of the context is, and how it is shown."""
    found, lead = wanted.found, wanted.chain.lead
    view = found.pivot.view if found is not None else ()
    earlier = view[kept.index] if kept.index < len(view) else None
    start = (found.at if found is not None else lead) - lead
    (item,) = WIRES[wanted.chain.request.format].render(kept.instead or context.messages[kept.index])
    return VisibleMessage(
        earlier.at if earlier else start + kept.index - len(view),
        without_cache_marks(item),
        context.reference(kept.index),
        kept.pruned,
        altered=kept.instead is not None or (earlier is not None and earlier.altered),
    )


def _mended(shown: History) -> list[Json]:
    """Write what is shown, mended where the client's own history was broken."""
    payload = api.repair(shown).payload
    key = WIRES[shown.format].messages_key
    return list(payload[key] if isinstance(payload, dict) else payload)


# --- room ---------------------------------------------------------------------------------------------------------

FEW_STEPS = 6
"""Steps between two compactions below which the operator is told that system prompt and tools leave too little."""


def room_warning(chain: HashChain, budget: Budget, size: RequestSize) -> str | None:
    """Explain why a conversation is compacted every few steps, and which settings change that; else ``None``."""
    steps = max(1, sum(1 for _ in chain.tips()))
    between = budget.steps_between((size.given - size.fixed) / steps, fixed=size.fixed)
    if not budget.trigger or between >= FEW_STEPS:
        return None
    reserve = f"; a lower max_tokens does too, since {budget.reserve} tokens are kept free" if budget.reserve else ""
    return (
        f"system prompt and tools take {size.fixed} of the {budget.trigger} tokens at which a compaction is due: "
        f"there is one about every {max(1, int(between))} steps. If the model holds more than {budget.window} tokens, "
        f"state it with --window MODEL=N or --context-window N. Fewer tools leave more room{reserve}"
    )


# --- when ---------------------------------------------------------------------------------------------------------


def is_due(budget: Budget, size: RequestSize) -> bool:
    """Tell whether a request has to be compacted before it is sent."""
    return budget.due(size.sent)


def is_nearly_due(budget: Budget, size: RequestSize) -> bool:
    """Tell whether a pivot may be needed soon."""
    return budget.trigger > 0 and budget.mark(PREPARE_SHARE, fixed=size.fixed) <= size.sent


def pivot_end(chain: HashChain, found: PivotMatch | None, size: RequestSize, budget: Budget) -> int:
    """Say how many items the pivot of a request that is due covers.

    Up to the end of the first request that was ripe: what came later then goes as it is, and whoever served that
    request has prepared the pivot. All of them where that would not be enough, and where reasoning that came later is
    bound to what stood before it.
    """
    start = found.at if found is not None else chain.lead
    contract = WIRES[chain.request.format].contract
    ripe = budget.mark(PREPARE_SHARE, fixed=size.fixed)
    for at in chain.tips():
        if at > start and ripe <= size.sent - chain.cost(at):
            bound = contract.prefix_rule == "strip-all" and any(index >= at for index in chain.reasons)
            enough = chain.cost(at) + budget.mark(TARGET_SHARE, fixed=size.fixed) <= budget.trigger
            return at if enough and not bound else chain.length
    return chain.length
