"""The front door for payloads: what a caller hands in and gets back, in the shape it came in.

Binds wire and model; holds no knowledge of its own. Nothing here mutates what it is given.
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
from kompakt.engine.compaction.report import Report, Step, announce, balanced
from kompakt.engine.pivot.text import retell
from kompakt.engine.recall import DEFAULT_TOKENS, Memory, Recalled
from kompakt.engine.recall.result import TOOL_DESCRIPTION, TOOL_NAME, TOOL_SCHEMA
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
from kompakt.wire import surrogates
from kompakt.wire.problems import Change, Problem, Repair, Shape
from kompakt.wire.registry import WIRES, detect, wire_for
from kompakt.wire.translate import Drop, translate
from kompakt.wire.wire import Wire

Payload: TypeAlias = Sequence[Any] | Mapping[str, Any] | History
"""A request body, a list of one provider's messages, or a history that was parsed from either.

Messages and their parts are JSON, or objects of a provider's SDK (anything with ``model_dump``), in lists or tuples.
"""

Item = TypeVar("Item")

_log = logging.getLogger("kompakt")


class _Given(NamedTuple):
    """What a caller handed in, read."""

    payload: Payload
    history: History
    origins: Origins

    def returned(self, history: History) -> Any:
        """Write a history in the caller's shape: untouched parts are the caller's own objects."""
        if history is self.history and not isinstance(self.payload, History):
            return self.payload
        made = restore(render(history), self.origins)
        return tuple(made) if isinstance(self.payload, tuple) else made


def _read(payload: Payload, format: str | None) -> _Given:
    if isinstance(payload, History):
        return _Given(payload, payload, {})
    value, origins = plain(payload)
    wire = WIRES[detect(value, format=format)]
    if isinstance(value, dict):
        body = cast("JsonObject", value)
        return _Given(payload, wire.parse(_items(body, wire), body), origins)
    return _Given(payload, wire.parse(_listed(value, "payload"), None), origins)


def parse(payload: Payload, format: str | None = None) -> History:
    """Read a payload into messages; the result remembers the envelope they came in.

    Raises:
        InputError: the payload is not a history, or its format cannot be told.
    """
    return _read(payload, format).history


def _items(body: JsonObject, wire: Wire) -> list[Json]:
    """Take the messages out of a body; a plain string is the one message it stands for."""
    value = body.get(wire.messages_key)
    if isinstance(value, str) and wire.messages_key == "input":
        return [value]
    return [] if value is None else _listed(value, wire.messages_key)


def _listed(value: object, path: str) -> list[Json]:
    if not isinstance(value, list):
        raise MalformedPayload(path, "an array of messages", value)
    return cast("list[Json]", value)


def render(
    messages: History | Sequence[Message], format: str | None = None, *, dropped: list[Drop] | None = None
) -> Json:
    """Write messages as a payload: the same format restores the body, another says them in its own words.

    What the other format has no words for is appended to ``dropped``, or logged when no list is given.
    """
    history = messages if isinstance(messages, History) else History(messages, format=format or "openai-chat")
    wire = wire_for(format or history.format)
    if wire.format != history.format:
        payload, drops = translate(history, wire)
        if dropped is not None:
            dropped.extend(drops)
        elif drops:
            _log.warning("%s to %s left out: %s", history.format, wire.format, "; ".join(map(str, drops)))
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
    """List every place where the payload's provider would refuse it; an empty list means it is accepted.

    ``strict`` adds the rules of servers that merely speak the format. ``resting`` is for a history that is not being
    sent yet: it is judged as if the user had spoken next, so the assistant may have the last word.

    Raises:
        InputError: the payload is not a history, or its format cannot be told.
    """
    history = parse(payload, format)
    return _problems(_sent(history, resting), history, strict)


def _problems(sent: Sequence[Json], history: History, strict: bool) -> list[Problem]:
    wire = WIRES[history.format]
    found = surrogates.problems(sent, history.body, wire.messages_key)
    return [*found, *wire.problems(sent, history.body, strict=strict)]


def _sent(history: History, resting: bool) -> list[Json]:
    """Write the messages as they would be sent."""
    wire = WIRES[history.format]
    items = [item for message in history for item in wire.render(message)]
    return items + wire.render(_NEXT) if resting and _answered(history) else items


def _answered(history: History) -> bool:
    return bool(history.messages) and history.messages[-1].role == "assistant"


_NEXT = Message("user", (Text(CONTINUE_LINE),))


@overload
def repair(
    payload: History, format: str | None = None, *, strict: bool = False, resting: bool = False
) -> Repair[Any]: ...
@overload
def repair(
    payload: Shape, format: str | None = None, *, strict: bool = False, resting: bool = False
) -> Repair[Shape]: ...
def repair(payload: Any, format: str | None = None, *, strict: bool = False, resting: bool = False) -> Repair[Any]:
    """Repair a payload with as little change as possible; the same shape comes back, with what was done.

    ``strict`` and ``resting`` mean what they mean to ``check``.

    Raises:
        InputError: the payload is not a history, or its format cannot be told.
    """
    given = _read(payload, format)
    repaired = _repaired(given.history, strict=strict, resting=resting)
    return Repair(given.returned(repaired.history), repaired.changes, repaired.remaining)


class _Repaired(NamedTuple):
    """A history that its provider accepts, as far as a repair can go."""

    history: History
    changes: tuple[Change, ...] = ()
    remaining: tuple[Problem, ...] = ()


def _repaired(history: History, *, strict: bool = False, resting: bool = False) -> _Repaired:
    wire = WIRES[history.format]
    sent = _sent(history, resting)
    if not _problems(sent, history, strict):
        return _Repaired(history)
    items, body, changes = surrogates.repair(sent, history.body, wire.messages_key)
    whole = wire.parse(items, body)
    messages, more = wire.repair(whole, strict=strict)
    next_request = messages
    if resting and _answered(history):
        messages = boundaries.without_last(messages, whole[-1])
        if not messages or messages[-1].role != "assistant":
            next_request = messages  # the repair moved or dropped the answer, so no user message comes next
    body, beside = wire.repair_body(whole, next_request)
    payload = render(whole.with_messages(messages, body=body))
    repaired = parse(payload, history.format)
    remaining = _problems(_sent(repaired, resting), repaired, strict)
    return _Repaired(repaired, (*changes, *more, *beside), tuple(remaining))


def count(payload: Payload, model: str | None = None, format: str | None = None) -> TokenCount:
    """Count the tokens of a whole request: messages, system, tools, media.

    Counted for ``model``, else for the payload's own model, else in o200k as it is.

    Raises:
        InputError: the payload is not a history, or its format cannot be told.
    """
    history = parse(payload, format)
    return tokens.count(history, _counter(history, model))


def _counter(history: History, model: str | None, tokenizer: Tokenizer | None = None) -> Counter:
    name = model or history.model
    return tokens.counter_for(name) if tokenizer is None else tokens.counter_of(tokenizer, name)


def rounds(payload: Payload, format: str | None = None) -> list[Round]:
    """Split a payload into API rounds."""
    return boundaries.rounds(parse(payload, format))


def groups(payload: Payload, format: str | None = None) -> list[Group]:
    """Split a payload into atomic groups."""
    return boundaries.groups(parse(payload, format))


def turns(payload: Payload, format: str | None = None) -> list[Turn]:
    """Split a payload into turns."""
    return boundaries.turns(parse(payload, format))


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
    """Split a payload's messages in two where a turn begins; the tail keeps at least ``min_keep_tail``.

    Raises:
        InputError: the payload is not a history, or its format cannot be told.
        UsageError: ``min_keep_tail`` is negative.
    """
    given = _read(payload, format)
    wire = WIRES[given.history.format]
    messages = given.history.messages
    head, tail = boundaries.sides(messages, boundaries.split_at(messages, min_keep_tail=min_keep_tail))
    first, second = ([item for message in side for item in wire.render(message)] for side in (head, tail))
    return restore(first, given.origins), restore(second, given.origins)


class Compaction(msgspec.Struct, Generic[Shape], frozen=True, kw_only=True):
    """A payload that fits, in the shape it came in, and the account of what was done.

    It can be pickled, unless it was made with a ``tokenizer`` that cannot, such as a lambda.
    """

    payload: Shape
    tokens_before: int
    tokens_after: int
    changed: bool
    report: Report
    request_changes: dict[str, Json] = {}
    """What the payload cannot say and the sender has to: headers and parameters."""
    memory: Memory
    """The history as it was before, which ``recall`` searches and restores."""

    def recall(self, query_or_reference: str, tokens: int | None = DEFAULT_TOKENS) -> Recalled:
        """Find or restore what is no longer in the payload; see ``kompakt.recall``."""
        return self.memory.recall(query_or_reference, tokens=tokens)


Answer_co = TypeVar("Answer_co", covariant=True)


class Recallable(Protocol[Answer_co]):
    """Something that answers ``recall`` itself: a compaction, a session, a store."""

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
    """Find passages of a history by words, or give back byte-exactly what a reference names.

    ``source`` is the original payload, a ``Compaction``, or a session or store, whose answer is awaited. It has at most
    ``tokens`` tokens, or any number with ``None``; a reference that names nothing is searched for like any words.

    Raises:
        InputError: the payload is not a history, or its format cannot be told.
        UsageError: the question is no text, or ``tokens`` is not positive.
    """
    asked = getattr(source, "recall", None)
    if asked is not None:
        return asked(query_or_reference, tokens)
    try:
        history = parse(source, format)
    except AmbiguousFormat as error:  # what was said reads the same in all of them
        history = parse(source, error.candidates[0])
    memory = Memory(history, counter=_counter(history, None))
    if memory.lacks(query_or_reference):  # references of ``compact`` name messages of the repaired history
        repaired = _repaired(history)
        if repaired.changes:
            memory = Memory(repaired.history, counter=_counter(history, None))
    return memory.recall(query_or_reference, tokens=tokens)


def recall_tool(format: str) -> JsonObject:
    """Return the definition of a tool that lets a model recall.

    Answer its calls with ``recall(source, input["query"]).text``.

    Raises:
        UnknownFormat: there is no such format.
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
    """Give back a payload within budget that the provider accepts; untouched when nothing is due.

    ``budget`` is a number of tokens or a ``Budget``; without one it is the model's own. ``policy`` is a name, a
    ``Policy`` or one strategy, which may also be given as ``strategy``; its triggers count beside the budget, and where
    it has any, neither budget nor model has to be known. ``pins`` are texts that must survive as they are, or indices
    of messages. ``tokenizer``, a ``Counter`` or a function from a text to its tokens, counts instead of the model's own
    counter. ``progress`` is told how many messages are done, and of how many.

    Raises:
        DoesNotFit: what must stay is larger than the budget.
        InputError: the payload is not a history, or its format cannot be told.
        UsageError: the policy has to await something and a loop is running; use ``acompact``.
    """
    chosen = _chosen(policy, strategy)
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
    """Do what ``compact`` does, with policies that await something.

    Raises:
        DoesNotFit: what must stay is larger than the budget.
        InputError: the payload is not a history, or its format cannot be told.
    """
    began = time.perf_counter()
    if not isinstance(instructions, str | None):  # type: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"instructions={instructions!r} is not a text")
    if progress is not None and not callable(progress):
        raise UsageError(f"progress={progress!r} cannot be called")
    given = _read(payload, format)
    repaired = _repaired(given.history)
    chosen = _chosen(policy, strategy)
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
    """Put the outcome into the caller's shape and report what was done."""
    context = outcome.context
    result = repaired.history.with_messages(context.project())
    known = context.fixed_tokens + context.archive.tokens  # what `count` says of the history that was compacted
    before = known if not repaired.changes else tokens.count(given.history, order.counter).total
    repair_step = (Step("repair", before, known, len(given.history)),) if before != known else ()
    rewritten = context.is_rewritten
    due = outcome.reason or f"over {order.budget.trigger} tokens"
    report = Report(
        policy=order.policy.name,
        reason=due if rewritten else "outputs admitted" if context.differs else "nothing due",
        tokens_before=before,
        tokens_after=context.projected_tokens,
        messages_before=len(given.history),
        messages_after=len(result),
        budget=order.budget.trigger,
        steps=balanced((*repair_step, *outcome.steps), before, context.projected_tokens, len(repaired.history)),
        actions=tuple(context.actions()),
        repairs=tuple(map(str, repaired.changes)),
        problems=tuple(map(str, repaired.remaining)),
        failures=(*context.failures, *(f"{step.strategy}: {step.failed}" for step in outcome.steps if step.failed)),
        told=retell(context) if context.summary_text else "",
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
        memory=Memory(repaired.history, counter=order.counter, projection=result),
    )


def _pins(pins: Iterable[str | int], given: History, history: History) -> tuple[str | int, ...]:
    """Check pins, and find messages that were pinned by index again where a repair moved them."""
    if isinstance(pins, str) or not isinstance(pins, Iterable):  # type: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"pins={pins!r} is not a list; pass pins=[{pins!r}]")
    wanted: list[str | int] = []
    for pin in pins:
        if isinstance(pin, bool) or not isinstance(pin, str | int) or pin == "":  # type: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"pin {pin!r} is neither a text nor the index of a message")
        if pin not in wanted:
            wanted.append(pin)
    if history is given:
        return tuple(wanted)
    places = {id(message.raw): index for index, message in enumerate(history)}
    return tuple(pin if isinstance(pin, str) else _moved(pin, given, places) for pin in wanted)


def _moved(pin: int, given: History, places: dict[int, int]) -> int:
    if not -len(given) <= pin < len(given):
        raise UsageError(f"pin {pin!r} is not a message: there are {len(given)}")
    place = places.get(id(given[pin].raw))
    if place is None:
        raise UsageError(f"message {pin!r} is pinned but had to be repaired; repair the history first, or pin its text")
    return place


def _chosen(policy: AnyPolicy, strategy: Strategy | None) -> Policy:
    """Return the policy that is meant.

    Raises:
        UsageError: both a policy and a strategy are given, or there is no such policy.
    """
    if strategy is None:
        return policy_named(policy)
    if policy != "default":
        raise UsageError("policy=… and strategy=… are two names for one thing; give one of them")
    return policy_named(strategy)


def budget_for(
    budget: int | Budget | None, model: str | None, policy: Policy | None = None, *, request: History | None = None
) -> Budget:
    """Return the budget that is meant: the one given, or the model's own, less the output that a request asks for.

    There is none where only the policy's triggers count.

    Raises:
        UsageError: neither is known.
    """
    if isinstance(budget, Budget):
        return budget
    if budget is not None:
        return Budget.of(budget, steady=False)
    if model is None:
        if policy is not None and policy.has_triggers:
            return Budget(window=0, trigger=0, target=0)
        raise UsageError("no budget and no model to take one from; pass budget=… or model=…")
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
