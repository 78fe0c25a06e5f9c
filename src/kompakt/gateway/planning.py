"""What to send for a request: its budget, whether something is due, and the pivot that is then made.

Everything here follows from the request, the pivot it stands on and the settings, so each replica decides alike. It
is synchronous and touches nothing outside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple, cast

import msgspec

from kompakt import api
from kompakt.engine import compact as engine
from kompakt.engine.compact import Order, drive
from kompakt.engine.context import Context
from kompakt.engine.policies import Policy
from kompakt.engine.resuming import Kept, State, resume, state_of
from kompakt.engine.retelling import retell
from kompakt.gateway.configuration import Settings
from kompakt.gateway.looks import decoded, parsed
from kompakt.gateway.pivots import Found, Pivot, Shown
from kompakt.gateway.trails import Trail
from kompakt.model.budget import OUTPUT_CAP, TRIGGER_SHARE, Budget
from kompakt.model.limits import ASSUMED_OUTPUT, Limits, lookup
from kompakt.model.messages import History, Json, JsonObject, Message, ToolResult
from kompakt.model.tokens import counter_for
from kompakt.wire.formats import WIRES
from kompakt.wire.overflow import Overflow
from kompakt.wire.thinking import thinks_by_hand

_SHARE = 0.85
"""Share of what was too long that is tried next, where the provider does not say how much it takes."""

_MARGIN = 0.95
"""Share of what a provider says it takes that is used: its count and ours never agree to the token."""


RIPE = 0.85
"""Share of the trigger from which a pivot is prepared, so that it is there when it is due."""


class Size(NamedTuple):
    """What a request costs, with a pivot in the place of its beginning and without."""

    given: int
    sent: int


class Sizes:
    """Counts whole requests; what stands beside the messages is counted once."""

    def __init__(self, most: int = 2_000) -> None:
        self._most = most
        self._known: dict[bytes, int] = {}

    def of(self, trail: Trail, found: Found | None) -> Size:
        """Count a request."""
        beside = self.beside(trail)
        given = beside + trail.cost(0)
        if found is None:
            return Size(given, given)
        return Size(given, beside + trail.cost(0, trail.lead) + found.known.pivot.tokens + trail.cost(found.at))

    def beside(self, trail: Trail) -> int:
        """Count what stands beside the messages."""
        key = hashlib.sha256(trail.asked.envelope_raw()).digest() + trail.counter.encode()
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= self._most:
                self._known.clear()
            envelope = WIRES[trail.asked.format].parse([], trail.asked.envelope())
            found = self._known[key] = Context(envelope, counter=counter_for(trail.asked.model)).fixed_tokens
        return found


def budget_of(trail: Trail, settings: Settings, found: Found | None) -> Budget:
    """Say how much may be sent, in tokens as they are counted here."""
    model = trail.asked.model or ""
    window = window_of(model, settings)
    pivot = found.known.pivot if found is not None else None
    if pivot is not None and pivot.limit is not None:
        window = msgspec.structs.replace(window, context=min(window.context or pivot.limit, pivot.limit))
    asked = trail.asked.output
    output = min(asked or window.output or OUTPUT_CAP, window.output or OUTPUT_CAP, OUTPUT_CAP)
    output = max(1, min(output, window.context // 2)) if window.context else output
    budget = Budget.for_model(
        msgspec.structs.replace(window, output=output, input=_input(window)),
        trigger_share=settings.trigger or TRIGGER_SHARE,
    )
    return scaled(budget, pivot.scale if pivot is not None else 1.0)


def _input(window: Limits) -> int | None:
    return min(window.input, window.context) if window.input and window.context else window.input


def window_of(model: str, settings: Settings) -> Limits:
    """Return what a model holds: what is configured for it, else what is known, and no more than what is for all."""
    known = lookup(model)
    stated = settings.windows.get(model)
    if stated is None and settings.context_window is not None:
        most = settings.context_window
        stated = min(known.context or most, most) if known.known else most
    if stated is None:
        return known
    output = known.output if known.known else ASSUMED_OUTPUT
    return msgspec.structs.replace(known, context=stated, output=output)


def scaled(budget: Budget, scale: float) -> Budget:
    """Say a budget in tokens as they are counted here."""
    if scale <= 1.0 or not budget.trigger:
        return budget
    numbers = {name: int(getattr(budget, name) / scale) for name in ("window", "reserve", "trigger", "target")}
    return msgspec.structs.replace(budget, **numbers)


def tighter(budget: Budget, overflow: Overflow | None, sent: int) -> tuple[Budget, float, int | None]:
    """Say what to come down to after an overflow, how the provider counts, and what it takes."""
    goal, scale, limit = int(sent * _SHARE), 1.0, None
    if overflow is not None and not overflow.by_bytes and overflow.limit:
        limit = overflow.limit
        scale = max(1.0, (overflow.actual or 0) / max(1, sent))
        room = limit - (overflow.output or min(budget.reserve or ASSUMED_OUTPUT, limit // 2))
        goal = min(goal, int(max(room, limit // 4) / scale * _MARGIN))
    goal = max(2, goal)
    return Budget(window=goal, trigger=goal, target=min(budget.target or goal // 2, goal // 2)), scale, limit


# --- the pivot ----------------------------------------------------------------------------------------------------


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a pivot is made of."""

    trail: Trail
    found: Found | None
    """The pivot that the request stands on."""
    budget: Budget
    policy: Policy
    session: str
    names: tuple[str, ...] = ()
    """What the messages behind that pivot are called in the store; empty when there is none to ask."""
    reason: str
    scale: float = 1.0
    limit: int | None = None
    attempt: int = 0


def make(wanted: Wanted) -> Pivot:
    """Make the pivot of a whole request.

    Raises:
        DoesNotFit: what must stay is larger than the budget.
        InputError: a message is none.
    """
    trail = wanted.trail
    history, view, tail = _read(wanted)
    before = wanted.found.known.pivot if wanted.found is not None else None
    names = tuple(one.name for one in before.view) if before else ()
    if len(wanted.names) >= len(tail):
        names += wanted.names[: len(tail)]
    counter = counter_for(trail.asked.model).own()
    state = before.state if before else State()
    context = resume(history.with_messages(view), state, counter=counter, references=names)
    context.is_resumed = bool(state.ledger)
    context.extend(tail)
    order = Order(
        budget=wanted.budget,
        policy=wanted.policy,
        counter=counter,
        manual_thinking=thinks_by_hand(history.body),
        references=names,
    )
    count = context.projected_tokens
    outcome = drive(engine.proceed(context, history.with_messages((*view, *tail)), order, forced=True), may_wait=False)
    used = tuple(dict.fromkeys(step.strategy for step in outcome.steps))
    return msgspec.structs.replace(_recorded(wanted, history, outcome.context, count), strategies=used)


def _read(wanted: Wanted) -> tuple[History, list[Message], list[Message]]:
    """Read the envelope, what is shown of what the pivot stands for, and what came behind it; all items together."""
    trail, asked = wanted.trail, wanted.trail.asked
    start = wanted.found.at if wanted.found is not None else trail.lead
    shown = wanted.found.known.pivot.view if wanted.found is not None else ()
    raw = asked.items(start)[: trail.length - start]
    items = [*(one.item for one in shown), *map(decoded, raw)]
    messages = parsed(items, asked.format)
    envelope = WIRES[asked.format].parse([], asked.envelope())
    lead = parsed([decoded(asked.item(index)) for index in range(trail.lead)], asked.format)
    history = History(
        (),
        format=asked.format,
        body=envelope.body,
        system=(*envelope.system, *lead),
        tools=envelope.tools,
        model=asked.model,
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


def _recorded(wanted: Wanted, history: History, context: Context, before: int) -> Pivot:
    trail = wanted.trail
    state, kept = state_of(context)
    shown = history.with_messages(context.project())
    items = _mended(shown)
    cost = sum(context.counter.message(message) for message in parsed(items, shown.format))
    key = trail.key
    return Pivot(
        id=f"c{hashlib.blake2b(key + bytes([wanted.attempt]), digest_size=6).hexdigest()}",
        session=wanted.session,
        covers=trail.length - trail.lead,
        items=[unmarked(item) for item in items],
        tokens=cost,
        state=state,
        view=tuple(_shown(one, wanted, context) for one in kept),
        policy=wanted.policy.name,
        reason=wanted.reason,
        tokens_before=before,
        tokens_after=context.projected_tokens,
        told=retell(context) if context.summary_text else "",
        scale=wanted.scale,
        limit=wanted.limit,
        attempt=wanted.attempt,
    )


def _shown(kept: Kept, wanted: Wanted, context: Context) -> Shown:
    """Say which item a message of the context is, and how it is shown."""
    found, lead = wanted.found, wanted.trail.lead
    view = found.known.pivot.view if found is not None else ()
    earlier = view[kept.index] if kept.index < len(view) else None
    start = (found.at if found is not None else lead) - lead
    (item,) = WIRES[wanted.trail.asked.format].render(kept.instead or context.messages[kept.index])
    return Shown(
        earlier.at if earlier else start + kept.index - len(view),
        unmarked(item),
        context.reference(kept.index),
        kept.pruned,
        altered=kept.instead is not None or (earlier is not None and earlier.altered),
    )


def _mended(shown: History) -> list[Json]:
    """Write what is shown, mended where the client's own history was broken."""
    payload = api.repair(shown).payload
    key = WIRES[shown.format].messages_key
    return list(payload[key] if isinstance(payload, dict) else payload)


def unmarked(item: Json) -> Json:
    """Copy an item without cache marks: those that the client puts on what it sends now are all a provider takes."""
    if not isinstance(item, dict):
        return item
    own = cast("JsonObject", item)
    copy = {name: value for name, value in own.items() if name != "cache_control"}
    if isinstance(copy.get("content"), list):
        copy["content"] = [unmarked(block) for block in copy["content"]]
    return copy


# --- when ---------------------------------------------------------------------------------------------------------


def is_due(budget: Budget, size: Size) -> bool:
    """Tell whether a request has to be compacted before it is sent."""
    return budget.due(size.sent)


def is_ripe(budget: Budget, size: Size) -> bool:
    """Tell whether a pivot may be needed soon."""
    return 0 < budget.trigger * RIPE <= size.sent


def ripe_at(trail: Trail, found: Found | None, size: Size, budget: Budget) -> int:
    """Say how many items the pivot of a request that is due covers.

    Up to the end of the first request that was ripe: what came later then goes as it is, and whoever served that
    request has prepared the pivot. All of them where that would not be enough, and where reasoning that came later is
    bound to what stood before it.
    """
    start = found.at if found is not None else trail.lead
    contract = WIRES[trail.asked.format].contract
    for at in trail.tips():
        if at > start and budget.trigger * RIPE <= size.sent - trail.cost(at):
            bound = contract.prefix_rule == "strip-all" and any(index >= at for index in trail.reasons)
            enough = trail.cost(at) + budget.target <= budget.trigger
            return at if enough and not bound else trail.length
    return trail.length
