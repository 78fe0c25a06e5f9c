"""Token budget of a request, when a compaction is due, and how many messages it covers.

All functions are pure: they depend only on the request, the pivot it matches and the settings, so every replica
decides alike.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple, cast

import msgspec

from kompakt.engine.context.context import Context
from kompakt.gateway.config import GatewayConfig
from kompakt.gateway.pivots.lookup import PivotMatch, covered_items
from kompakt.gateway.request.history import HashChain, RequestBody, decode_item, parse_items
from kompakt.model.budget import TARGET_SHARE, TRIGGER_SHARE, Budget, size_after_refusal
from kompakt.model.limits import Limits, lookup, with_window
from kompakt.model.lru import Lru
from kompakt.model.messages import Json, JsonObject
from kompakt.model.tokens import counter_for
from kompakt.wire.overflow import Overflow
from kompakt.wire.registry import WIRES

PREPARE_SHARE = 0.95
"""Share of the variable tokens below the trigger at which a pivot is prepared in the background.

It must be close to 1: steps that come later are not covered by the prepared pivot.
"""

FEW_STEPS = 6
"""Steps between two compactions below which the operator is warned that system prompt and tools leave little room."""


class RequestSize(NamedTuple):
    """Tokens of a request."""

    given: int
    """As the client sent it."""
    sent: int
    """As it is sent upstream, with a pivot in place of its start."""
    fixed: int
    """System prompt and tools, which compaction does not change."""


class RequestSizes:
    """Counts the tokens of requests; the count of everything but the messages is cached."""

    def __init__(self, limit: int = 2_000) -> None:
        self._known = Lru[bytes, int](limit)

    def of(self, chain: HashChain, found: PivotMatch | None) -> RequestSize:
        envelope = self.envelope(chain)
        given, fixed = envelope + chain.cost(0), envelope + chain.cost(0, chain.lead)
        if found is None:
            return RequestSize(given, given, fixed)
        return RequestSize(given, fixed + found.pivot.tokens + chain.cost(found.at), fixed)

    def envelope(self, chain: HashChain) -> int:
        """Count a request without its messages."""
        key = hashlib.sha256(chain.request.envelope_raw()).digest() + chain.counter.encode()
        found = self._known.get(key)
        if found is None:
            envelope = WIRES[chain.request.format].parse([], chain.request.envelope())
            found = Context(envelope, counter=counter_for(chain.request.model)).fixed_tokens
            self._known.put(key, found)
        return found


# --- Budget ---


class LearnedLimits(msgspec.Struct, frozen=True):
    """What a provider's overflow error revealed about its limits."""

    scale: float = 1.0
    """Provider tokens per token counted here."""
    limit: int | None = None
    """The provider's limit in its own tokens."""
    output_counts: bool = False
    """Whether the requested output counts against the window."""


def learned_limits(found: PivotMatch | None) -> LearnedLimits:
    """Return the limits recorded in the pivot that a request matches."""
    if found is None:
        return LearnedLimits()
    pivot = found.pivot
    return LearnedLimits(pivot.scale, pivot.limit, pivot.output_counts)


def budget_for(chain: HashChain, settings: GatewayConfig, found: PivotMatch | None, *, fixed: int) -> Budget:
    """Return the budget, in tokens counted here, of a request with ``fixed`` tokens of system prompt and tools."""
    window = window_for(chain.request.model or "", settings)
    learned = learned_limits(found)
    most = window.context if learned.limit is None else min(window.context or learned.limit, learned.limit)
    window = with_window(window, most, separate=WIRES[chain.request.format].contract.separate_output)
    budget = Budget.for_request(
        window,
        output=chain.request.output,
        fixed=int(fixed * learned.scale),
        output_counts=learned.output_counts,
        trigger_share=settings.trigger or TRIGGER_SHARE,
    )
    return budget.scaled(learned.scale)


def window_for(model: str, settings: GatewayConfig) -> Limits:
    """Return a model's limits: those configured for it, else the known ones capped by ``context_window``."""
    known = lookup(model)
    stated = settings.windows.get(model)
    if stated is None and settings.context_window is not None:
        most = settings.context_window
        stated = min(known.context or most, most) if known.known else most
    return known if stated is None else with_window(known, stated)


def budget_after_overflow(
    budget: Budget, overflow: Overflow, sent: int, known: LearnedLimits
) -> tuple[Budget, LearnedLimits]:
    """Return the budget for the next attempt after an overflow error, and the limits learned from it."""
    limit = None if overflow.by_bytes else overflow.limit
    size, scale = size_after_refusal(
        sent, limit=limit, actual=overflow.actual, output=overflow.output, reserve=budget.reserve
    )
    learned = LearnedLimits(
        max(scale, known.scale),
        limit or known.limit,
        known.output_counts or (limit is not None and overflow.output is not None),
    )
    return Budget.of(size), learned


def room_warning(chain: HashChain, budget: Budget, size: RequestSize) -> str | None:
    """Explain why a conversation is compacted every few steps and which settings change that; ``None`` if it is not."""
    steps = max(1, sum(1 for _ in chain.tips()))
    between = budget.steps_between((size.given - size.fixed) / steps, fixed=size.fixed)
    if not budget.trigger or between >= FEW_STEPS:
        return None
    reserve = f" or a lower max_tokens, which reserves {budget.reserve} tokens," if budget.reserve else ""
    return (
        f"system prompt and tools use {size.fixed} of the {budget.trigger} tokens that trigger a compaction, so one "
        f"happens about every {max(1, int(between))} steps. If the model's context window is larger than "
        f"{budget.window} tokens, set it with --window MODEL=N or --context-window N. Fewer tools{reserve} also help"
    )


# --- When and how far to compact ---


def is_due(budget: Budget, size: RequestSize) -> bool:
    """Whether a request must be compacted before it is sent."""
    return budget.due(size.sent)


def is_nearly_due(budget: Budget, size: RequestSize) -> bool:
    """Whether a pivot may be needed soon and should be prepared."""
    return budget.trigger > 0 and budget.mark(PREPARE_SHARE, fixed=size.fixed) <= size.sent


def pivot_end(chain: HashChain, found: PivotMatch | None, size: RequestSize, budget: Budget) -> int:
    """Return how many items the pivot of a request that is due covers.

    The pivot ends where the first nearly due request ended: the replica that served it has prepared that pivot, and
    later messages are sent unchanged. It covers the whole request when that would not free enough tokens, or when later
    reasoning is only valid after the original prefix.
    """
    start = covered_items(chain, found)
    contract = WIRES[chain.request.format].contract
    nearly_due = budget.mark(PREPARE_SHARE, fixed=size.fixed)
    for at in chain.tips():
        if at > start and nearly_due <= size.sent - chain.cost(at):
            bound = contract.prefix_rule == "strip-all" and any(index >= at for index in chain.reasons)
            enough = chain.cost(at) + budget.mark(TARGET_SHARE, fixed=size.fixed) <= budget.trigger
            return at if enough and not bound else chain.length
    return chain.length


# --- The clear_tool_uses edit of Anthropic ---
# https://platform.claude.com/docs/en/build-with-claude/context-editing

CLEARS_AT = 100_000
"""Input tokens at which the edit starts when it names no trigger."""

KEEPS = 3
"""Tool uses that the edit keeps when it names no number."""


class ToolClearing(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a ``clear_tool_uses`` edit."""

    tokens: int | None
    """Input tokens above which it starts; ``None`` when the number of tool uses decides."""
    uses: int
    """Tool uses above which it starts."""
    keep: int
    excluded: frozenset[str]


def tool_clearing(request: RequestBody) -> ToolClearing | None:
    """Return the ``clear_tool_uses`` edit of a request, if it has one."""
    context = request.field("context_management")
    edits = cast("JsonObject", context).get("edits") if isinstance(context, dict) else None
    for edit in cast("list[Json]", edits) if isinstance(edits, list) else ():
        fields = cast("JsonObject", edit) if isinstance(edit, dict) else {}
        if str(fields.get("type")).startswith("clear_tool_uses_"):
            kind, at = _counted(fields.get("trigger"), CLEARS_AT)
            names = fields.get("exclude_tools")
            return ToolClearing(
                tokens=None if kind == "tool_uses" else at,
                uses=at if kind == "tool_uses" else 0,
                keep=_counted(fields.get("keep"), KEEPS)[1],
                excluded=frozenset(map(str, cast("list[Json]", names))) if isinstance(names, list) else frozenset(),
            )
    return None


def _counted(value: Json, default: int) -> tuple[str, int]:
    fields = cast("JsonObject", value) if isinstance(value, dict) else {}
    number = fields.get("value")
    return str(fields.get("type")), number if isinstance(number, int) else default


def cleared_tokens(chain: HashChain, start: int, sent: int, clearing: ToolClearing) -> int:
    """Count the tokens that the provider clears from the items after ``start`` of a request of ``sent`` tokens.

    Raises:
        InputError: an item is not a message.
    """
    indices = range(start, chain.length)
    messages = parse_items([decode_item(chain.request.item(index)) for index in indices], chain.request.format)
    names = {call.id: call.name for message in messages for call in message.calls}
    results = [
        (names.get(result.call_id, ""), chain.cost(index, index + 1) // len(message.parts))
        for index, message in zip(indices, messages, strict=True)
        for result in message.results
    ]
    if sent <= clearing.tokens if clearing.tokens is not None else len(results) <= clearing.uses:
        return 0
    old = results[: max(0, len(results) - clearing.keep)]
    return sum(tokens for name, tokens in old if name not in clearing.excluded)
