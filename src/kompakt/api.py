"""The functions for payloads: check, repair, count, compact, recall, parse and render.

Results have the shape of the given payload. This module connects wire, engine and model, and has no provider-specific
code. It never mutates its arguments.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast, overload

import msgspec

from kompakt.engine.compaction.compact import CompactionOrder, Outcome, run_sync
from kompakt.engine.compaction.compact import compact as compact_history
from kompakt.engine.compaction.policies import AnyPolicy, Policy, policy_named
from kompakt.engine.compaction.report import Report, Step, announce, build_report
from kompakt.engine.recall import DEFAULT_TOKENS, Memory, Recalled
from kompakt.engine.recall.answer import TOOL_DESCRIPTION, TOOL_NAME, TOOL_SCHEMA
from kompakt.engine.strategies import Strategy
from kompakt.errors import AmbiguousFormat, MalformedPayload, UsageError
from kompakt.model import groups as boundaries
from kompakt.model import tokens
from kompakt.model.budget import Budget
from kompakt.model.groups import Group, Round, Turn
from kompakt.model.json import Origins, plain, restore
from kompakt.model.limits import limits as limits_of
from kompakt.model.limits import with_window
from kompakt.model.messages import History, Json, JsonObject, Message, Text
from kompakt.model.phrases import CONTINUE_LINE
from kompakt.model.tokens import Counter, TokenCount, Tokenizer
from kompakt.wire.fields import replace_surrogates, surrogate_problems
from kompakt.wire.registry import WIRES, detect, wire_for
from kompakt.wire.translate import Drop, translate
from kompakt.wire.wire import Change, Problem, Repair, Shape, Wire

Payload: TypeAlias = Sequence[Any] | Mapping[str, Any] | History
"""A request body, a list of one provider's messages, or a history that was parsed from either.

Messages and their parts are JSON, or objects of a provider's SDK (anything with ``model_dump``), in lists or tuples.
"""

Item = TypeVar("Item")

_log = logging.getLogger("kompakt")


class _Given(NamedTuple):
    """A payload and the history parsed from it."""

    payload: Payload
    history: History
    origins: Origins

    def returned(self, history: History) -> Any:
        """Return a history in the shape of the payload; unchanged parts are the caller's own objects."""
        if history is self.history and not isinstance(self.payload, History):
            return self.payload
        made = restore(render(history), self.origins)
        return tuple(made) if isinstance(self.payload, tuple) else made


def _read(payload: Payload, format: str | None) -> _Given:
    if isinstance(payload, History):
        return _Given(payload, payload, {})
    value, origins = plain(payload)
    try:
        history = _parsed(value, detect(value, format=format))
    except AmbiguousFormat as error:
        agreed = _agreed(value, error.candidates)
        if agreed is None:
            raise
        history = agreed
    return _Given(payload, history, origins)


def _parsed(value: Json, format: str) -> History:
    wire = WIRES[format]
    if isinstance(value, dict):
        return wire.parse(_items(value, wire), value)
    return wire.parse(_as_list(value, "payload"), None)


def _agreed(value: Json, candidates: Sequence[str]) -> History | None:
    """Parse plain text messages that belong to several formats, if all find the same problems in them.

    Then it does not matter which format is used: a result is valid in each of them.
    """
    items = value.get("messages") if isinstance(value, dict) else value
    if not isinstance(items, list) or not all(map(_is_plain, items)):
        return None
    first, *others = (_parsed(value, format) for format in candidates)
    found = _problems(_sent(first, False), first, strict=False)
    if any(_problems(_sent(other, False), other, strict=False) != found for other in others):
        return None
    return first


def _is_plain(item: Json) -> bool:
    return isinstance(item, dict) and item.keys() == {"role", "content"} and isinstance(item["content"], str)


def parse(payload: Payload, format: str | None = None) -> History:
    """Parse a payload into messages; the result keeps the request body around them.

    Plain text messages that all formats read alike have to be given a format: what is appended later may differ.

    Raises:
        InputError: the payload is not a history, or its format cannot be detected.
    """
    if isinstance(payload, History):
        return payload
    value, _ = plain(payload)
    return _parsed(value, detect(value, format=format))


def parse_any(payload: Payload, format: str | None = None) -> History:
    """Parse a payload that nothing is appended to; plain text messages that all formats read alike need no format.

    Raises:
        InputError: the payload is not a history, or its format cannot be detected.
    """
    return _read(payload, format).history


def _items(body: JsonObject, wire: Wire) -> list[Json]:
    """Return the messages of a body; a string as input is one message."""
    value = body.get(wire.messages_key)
    if isinstance(value, str) and wire.messages_key == "input":
        return [value]
    return [] if value is None else _as_list(value, wire.messages_key)


def _as_list(value: object, path: str) -> list[Json]:
    if not isinstance(value, list):
        raise MalformedPayload(path, "an array of messages", value)
    return cast("list[Json]", value)


def render(
    messages: History | Sequence[Message], format: str | None = None, *, dropped: list[Drop] | None = None
) -> Json:
    """Render messages as a payload: in their own format with the original body, in another format translated.

    What the other format cannot express is appended to ``dropped``, or logged when no list is given.
    """
    history = messages if isinstance(messages, History) else History(messages, format=format or "openai-chat")
    wire = wire_for(format or history.format)
    if wire.format != history.format:
        payload, drops = translate(history, wire)
        if dropped is not None:
            dropped.extend(drops)
        elif drops:
            _log.warning("rendering %s as %s dropped: %s", history.format, wire.format, "; ".join(map(str, drops)))
        return payload
    items = [item for message in history for item in wire.render(message)]
    if history.body is None:
        return items
    if items == [history.body.get(wire.messages_key)]:
        return history.body
    if wire.messages_key not in history.body:
        return {**history.body, wire.messages_key: items} if items else history.body
    return {key: items if key == wire.messages_key else value for key, value in history.body.items()}


def check(payload: Payload, format: str | None = None, *, strict: bool = False, resting: bool = False) -> list[Problem]:
    """List every place where the provider would reject the payload; an empty list means that it is valid.

    ``strict`` adds the rules of servers that are only compatible with the format. ``resting`` is for a history that is
    not being sent yet: it is checked as if a user message came next, so the assistant message may be the last.

    Raises:
        InputError: the payload is not a history, or its format cannot be detected.
    """
    history = parse_any(payload, format)
    return _problems(_sent(history, resting), history, strict)


def _problems(sent: Sequence[Json], history: History, strict: bool) -> list[Problem]:
    wire = WIRES[history.format]
    found = surrogate_problems(sent, history.body, wire.messages_key)
    return [*found, *wire.problems(sent, history.body, strict=strict)]


def _sent(history: History, resting: bool) -> list[Json]:
    """Render the messages as they would be sent."""
    wire = WIRES[history.format]
    items = [item for message in history for item in wire.render(message)]
    return items + wire.render(_NEXT_PROMPT) if resting and _ends_with_answer(history) else items


def _ends_with_answer(history: History) -> bool:
    return bool(history.messages) and history.messages[-1].role == "assistant"


_NEXT_PROMPT = Message("user", (Text(CONTINUE_LINE),))


@overload
def repair(
    payload: History, format: str | None = None, *, strict: bool = False, resting: bool = False
) -> Repair[Any]: ...
@overload
def repair(
    payload: Shape, format: str | None = None, *, strict: bool = False, resting: bool = False
) -> Repair[Shape]: ...
def repair(payload: Any, format: str | None = None, *, strict: bool = False, resting: bool = False) -> Repair[Any]:
    """Repair a payload with as few changes as possible; return it in the same shape, with the changes.

    ``strict`` and ``resting`` have the same meaning as in ``check``.

    Raises:
        InputError: the payload is not a history, or its format cannot be detected.
    """
    given = _read(payload, format)
    repaired = _repaired(given.history, strict=strict, resting=resting)
    return Repair(given.returned(repaired.history), repaired.changes, repaired.remaining)


class _Repaired(NamedTuple):
    """A repaired history, its changes and what could not be repaired."""

    history: History
    changes: tuple[Change, ...] = ()
    remaining: tuple[Problem, ...] = ()


def _repaired(history: History, *, strict: bool = False, resting: bool = False) -> _Repaired:
    done = _repaired_once(history, strict=strict, resting=resting)
    if resting and _ends_with_answer(done.history) != _ends_with_answer(history):
        # The repair dropped, moved or completed the last message: whether a user message comes next has changed.
        again = _repaired_once(done.history, strict=strict, resting=True)
        done = _Repaired(again.history, (*done.changes, *again.changes), again.remaining)
    return done


def _repaired_once(history: History, *, strict: bool, resting: bool) -> _Repaired:
    wire = WIRES[history.format]
    sent = _sent(history, resting)
    if not _problems(sent, history, strict):
        return _Repaired(history)
    items, body, changes = replace_surrogates(sent, history.body, wire.messages_key)
    whole = wire.parse(items, body)
    messages, more = wire.repair(whole, strict=strict)
    next_request = messages
    if resting and _ends_with_answer(history):
        messages = boundaries.without_last(messages, whole[-1])
        if not messages or messages[-1].role != "assistant":
            next_request = messages  # no user message comes next
    body, beside = wire.repair_body(whole, next_request)
    payload = render(whole.with_messages(messages, body=body))
    repaired = parse(payload, history.format)
    remaining = _problems(_sent(repaired, resting), repaired, strict)
    return _Repaired(repaired, (*changes, *more, *beside), tuple(remaining))


def count(payload: Payload, model: str | None = None, format: str | None = None) -> TokenCount:
    """Count the tokens of a whole request: messages, system, tools, media.

    The counter is that of ``model``, else of the model in the payload, else o200k without a factor.

    Raises:
        InputError: the payload is not a history, or its format cannot be detected.
    """
    history = parse_any(payload, format)
    return tokens.count(history, _counter(history, model))


def _counter(history: History, model: str | None, tokenizer: Tokenizer | None = None) -> Counter:
    name = model or history.model
    return tokens.counter_for(name) if tokenizer is None else tokens.counter_of(tokenizer, name)


def rounds(payload: Payload, format: str | None = None) -> list[Round]:
    """Split a payload into API rounds."""
    return boundaries.rounds(parse_any(payload, format))


def groups(payload: Payload, format: str | None = None) -> list[Group]:
    """Split a payload into atomic groups."""
    return boundaries.groups(parse_any(payload, format))


def turns(payload: Payload, format: str | None = None) -> list[Turn]:
    """Split a payload into turns."""
    return boundaries.turns(parse_any(payload, format))


@overload
def split(payload: History, min_keep_tail: int = 4, format: str | None = None) -> tuple[list[Any], list[Any]]: ...
@overload
def split(
    payload: Sequence[Item], min_keep_tail: int = 4, format: str | None = None
) -> tuple[list[Item], list[Item]]: ...
@overload
def split(
    payload: Mapping[str, Any], min_keep_tail: int = 4, format: str | None = None
) -> tuple[list[Any], list[Any]]: ...
def split(payload: Any, min_keep_tail: int = 4, format: str | None = None) -> tuple[list[Any], list[Any]]:
    """Split the messages of a payload at the start of a turn; the tail has at least ``min_keep_tail`` messages.

    Raises:
        InputError: the payload is not a history, or its format cannot be detected.
        UsageError: ``min_keep_tail`` is negative.
    """
    given = _read(payload, format)
    wire = WIRES[given.history.format]
    messages = given.history.messages
    head, tail = boundaries.sides(messages, boundaries.split_at(messages, min_keep_tail=min_keep_tail))
    first, second = ([item for message in side for item in wire.render(message)] for side in (head, tail))
    return restore(first, given.origins), restore(second, given.origins)


class Compaction(msgspec.Struct, Generic[Shape], frozen=True, kw_only=True):
    """A payload that fits the budget, in its original shape, and the report of the compaction.

    It can be pickled, unless its ``tokenizer`` cannot, such as a lambda.
    """

    payload: Shape
    tokens_before: int
    tokens_after: int
    changed: bool
    report: Report
    request_changes: dict[str, Json] = {}
    """Headers and parameters that the sender has to add, because the payload cannot contain them."""
    memory: Memory
    """The history before the compaction, which ``recall`` searches and restores."""

    def recall(self, query_or_reference: str, tokens: int | None = DEFAULT_TOKENS) -> Recalled:
        """Find or restore what is no longer in the payload; see ``kompakt.recall``."""
        return self.memory.recall(query_or_reference, tokens=tokens)


Answer_co = TypeVar("Answer_co", covariant=True)


class Recallable(Protocol[Answer_co]):
    """An object with its own ``recall``: a compaction, a session, a store."""

    def recall(self, query_or_reference: str, tokens: int | None = ..., /) -> Answer_co:
        """Find or restore something."""
        ...


@overload
def recall(
    source: Recallable[Answer_co],
    query_or_reference: str,
    tokens: int | None = DEFAULT_TOKENS,
    format: str | None = None,
) -> Answer_co: ...
@overload
def recall(
    source: Payload, query_or_reference: str, tokens: int | None = DEFAULT_TOKENS, format: str | None = None
) -> Recalled: ...
def recall(source: Any, query_or_reference: str, tokens: int | None = DEFAULT_TOKENS, format: str | None = None) -> Any:
    """Find passages of a history by words, or restore byte-exactly what a reference names.

    ``source`` is the original payload, a ``Compaction``, or a session or store, whose answer must be awaited. The
    answer has at most ``tokens`` tokens; ``None`` means no limit. An unknown reference is searched like other words.

    Raises:
        InputError: the payload is not a history, or its format cannot be detected.
        UsageError: the query is not a string, or ``tokens`` is not positive.
    """
    own_recall = getattr(source, "recall", None)
    if own_recall is not None:
        return own_recall(query_or_reference, tokens)
    try:
        history = parse(source, format)
    except AmbiguousFormat as error:  # the text is the same in all candidates
        history = parse(source, error.candidates[0])
    memory = Memory(history, counter=_counter(history, None))
    if memory.lacks(query_or_reference):  # references in a compacted payload name messages of the repaired history
        repaired = _repaired(history)
        if repaired.changes:
            memory = Memory(repaired.history, counter=_counter(history, None))
    return memory.recall(query_or_reference, tokens=tokens)


def recall_tool(format: str) -> JsonObject:
    """Return the definition of a tool with which a model can recall.

    Answer its calls with ``recall(source, input["query"]).text``.

    Raises:
        UnknownFormat: no format has this name.
    """
    return wire_for(format).define_tool(name=TOOL_NAME, description=TOOL_DESCRIPTION, schema=copy.deepcopy(TOOL_SCHEMA))


@overload
def compact(
    payload: History,
    budget: int | Budget | None = None,
    *,
    model: str | None = None,
    format: str | None = None,
    policy: AnyPolicy = "default",
    strategy: Strategy | None = None,
    pins: Iterable[str | int] = (),
    instructions: str | None = None,
    tokenizer: Tokenizer | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Compaction[Any]: ...
@overload
def compact(
    payload: Shape,
    budget: int | Budget | None = None,
    *,
    model: str | None = None,
    format: str | None = None,
    policy: AnyPolicy = "default",
    strategy: Strategy | None = None,
    pins: Iterable[str | int] = (),
    instructions: str | None = None,
    tokenizer: Tokenizer | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Compaction[Shape]: ...
def compact(
    payload: Any,
    budget: int | Budget | None = None,
    *,
    model: str | None = None,
    format: str | None = None,
    policy: AnyPolicy = "default",
    strategy: Strategy | None = None,
    pins: Iterable[str | int] = (),
    instructions: str | None = None,
    tokenizer: Tokenizer | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Compaction[Any]:
    """Return a payload within the budget that the provider accepts; unchanged when no compaction is due.

    ``format`` selects the format; without it, the format is detected. Several formats may share a plain list of
    messages. Where they would treat it differently, the list is ambiguous, and an ``AmbiguousFormat`` names them.

    ``budget`` is a number of tokens or a ``Budget``; by default it is that of the model. ``policy`` is a name, a
    ``Policy`` or a strategy, which may also be given as ``strategy``. The triggers of the policy apply in addition to
    the budget; if it has any, budget and model may be unknown. ``pins`` are texts that must be kept verbatim, or
    indices of messages. ``tokenizer`` replaces the counter of the model: a ``Counter``, or a function that counts the
    tokens of a text. ``progress`` is called with the number of finished messages and their total.

    Raises:
        DoesNotFit: what must be kept is larger than the budget.
        InputError: the payload is not a history, or its format cannot be detected.
        UsageError: the policy has to await something and an event loop is running; use ``acompact``.
    """
    chosen = _policy_for(policy, strategy)
    work = acompact(
        payload,
        budget,
        model=model,
        format=format,
        policy=chosen,
        pins=pins,
        instructions=instructions,
        tokenizer=tokenizer,
        progress=progress,
    )
    return run_sync(work, may_wait=chosen.awaits)


@overload
async def acompact(
    payload: History,
    budget: int | Budget | None = None,
    *,
    model: str | None = None,
    format: str | None = None,
    policy: AnyPolicy = "default",
    strategy: Strategy | None = None,
    pins: Iterable[str | int] = (),
    instructions: str | None = None,
    tokenizer: Tokenizer | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Compaction[Any]: ...
@overload
async def acompact(
    payload: Shape,
    budget: int | Budget | None = None,
    *,
    model: str | None = None,
    format: str | None = None,
    policy: AnyPolicy = "default",
    strategy: Strategy | None = None,
    pins: Iterable[str | int] = (),
    instructions: str | None = None,
    tokenizer: Tokenizer | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Compaction[Shape]: ...
async def acompact(
    payload: Any,
    budget: int | Budget | None = None,
    *,
    model: str | None = None,
    format: str | None = None,
    policy: AnyPolicy = "default",
    strategy: Strategy | None = None,
    pins: Iterable[str | int] = (),
    instructions: str | None = None,
    tokenizer: Tokenizer | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Compaction[Any]:
    """Like ``compact``, also for policies that have to await something.

    Raises:
        DoesNotFit: what must be kept is larger than the budget.
        InputError: the payload is not a history, or its format cannot be detected.
    """
    began = time.perf_counter()
    if not isinstance(instructions, str | None):  # type: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"instructions={instructions!r} is not a text")
    if progress is not None and not callable(progress):
        raise UsageError(f"progress={progress!r} is not callable; pass a function of two numbers")
    given = _read(payload, format)
    repaired = _repaired(given.history)
    chosen = _policy_for(policy, strategy)
    order = CompactionOrder(
        budget=budget_for(budget, model or given.history.model, chosen, request=given.history),
        policy=chosen,
        counter=_counter(given.history, model, tokenizer),
        pins=_pins(pins, given.history, repaired.history),
        instructions=instructions,
        progress=progress,
        manual_thinking=WIRES[repaired.history.format].manual_thinking(repaired.history.body),
    )
    outcome = await compact_history(repaired.history, order)
    return _account(given, repaired, order, outcome, began)


def _account(
    given: _Given, repaired: _Repaired, order: CompactionOrder, outcome: Outcome, began: float
) -> Compaction[Any]:
    """Return the outcome in the caller's shape, with its report."""
    context = outcome.context
    result = repaired.history.with_messages(context.project())
    known = context.fixed_tokens + context.archive.tokens  # the same number as `count` of the compacted history
    before = known if not repaired.changes else tokens.count(given.history, order.counter).total
    repair_step = (Step("repair", before, known, len(given.history)),) if before != known else ()
    rewritten = context.is_rewritten
    due = outcome.reason or f"over {order.budget.trigger} tokens"
    report = build_report(
        context,
        policy=order.policy.name,
        reason=due if rewritten else "outputs admitted" if context.differs else "nothing due",
        tokens_before=before,
        messages_before=len(given.history),
        messages_after=len(result),
        budget=order.budget.trigger,
        steps=(*repair_step, *outcome.steps),
        at_message=len(repaired.history),
        repairs=tuple(map(str, repaired.changes)),
        problems=tuple(map(str, repaired.remaining)),
        failures=(*context.failures, *(f"{step.strategy}: {step.failed}" for step in outcome.steps if step.failed)),
        seconds=time.perf_counter() - began,
    )
    if context.differs:
        announce(report)
    return Compaction(
        payload=given.returned(result if context.differs else repaired.history),
        tokens_before=before,
        tokens_after=report.tokens_after,
        changed=context.differs or bool(repaired.changes),
        report=report,
        memory=Memory(repaired.history, counter=order.counter),
    )


def _pins(pins: Iterable[str | int], given: History, history: History) -> tuple[str | int, ...]:
    """Validate pins; update the indices of pinned messages that a repair moved."""
    if isinstance(pins, str) or not isinstance(pins, Iterable):  # type: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"pins={pins!r} is not a list; pass pins=[{pins!r}]")
    wanted: list[str | int] = []
    for pin in pins:
        if isinstance(pin, bool) or not isinstance(pin, str | int) or pin == "":  # type: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"pin {pin!r} is neither a text nor the index of a message; pass a string or an integer")
        if pin not in wanted:
            wanted.append(pin)
    if history is given:
        return tuple(wanted)
    places = {id(message.raw): index for index, message in enumerate(history)}
    return tuple(pin if isinstance(pin, str) else _moved(pin, given, places) for pin in wanted)


def _moved(pin: int, given: History, places: dict[int, int]) -> int:
    if not -len(given) <= pin < len(given):
        raise UsageError(f"pin {pin!r} is not the index of a message; the history has {len(given)}")
    place = places.get(id(given[pin].raw))
    if place is None:
        raise UsageError(f"message {pin!r} is pinned but had to be repaired; repair the history first, or pin its text")
    return place


def _policy_for(policy: AnyPolicy, strategy: Strategy | None) -> Policy:
    """Return the policy for the arguments.

    Raises:
        UsageError: both a policy and a strategy are given, or the policy is unknown.
    """
    if strategy is None:
        return policy_named(policy)
    if policy != "default":
        raise UsageError("policy=… and strategy=… are both given; pass only one of them")
    return policy_named(strategy)


def budget_for(
    budget: int | Budget | None, model: str | None, policy: Policy | None = None, *, request: History | None = None
) -> Budget:
    """Return the given budget, or that of the model less the output that a request asks for.

    It is empty where only the triggers of the policy apply.

    Raises:
        UsageError: neither a budget nor a model is given.
    """
    if isinstance(budget, Budget):
        return budget
    if budget is not None:
        return Budget.of(budget, steady=False)
    if model is None:
        if policy is not None and policy.has_triggers:
            return Budget(window=0, trigger=0, target=0)
        raise UsageError("no budget, and no model to take it from; pass budget=… (the most tokens of a request)")
    found = limits_of(model)
    if request is None:
        return Budget.for_model(found)
    if request.contract is not None and request.contract.separate_output:
        found = with_window(found, found.context, separate=True)
    output = wire_for(request.format).stated_output((request.body or {}).get)
    if output is None:
        return Budget.for_model(found)
    fixed = tokens.count(request.with_messages(()), _counter(request, model)).total
    return Budget.for_request(found, output=output, fixed=fixed)
