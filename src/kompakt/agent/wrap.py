"""An ordinary SDK client whose calls are compacted, with nothing else changed.

The client given is copied; the copy is of a subclass of its class, so that it is what it was to everyone who looks. Its
requests pass one hook of the SDK's before they are sent: the body of a chat, a response or a message is made to fit,
everything else goes as it is. So streaming, parsing, raw responses, Azure and ``with_options`` work as they did.

A request that the provider refuses as too long is cut where it grew and sent again, a bounded number of times. What the
provider takes is remembered for the model, so that the next request is not refused first.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Mapping
from contextvars import ContextVar
from itertools import chain
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from kompakt import api
from kompakt.agent.clients.failures import MAX_WORDS, failed_of
from kompakt.engine.compaction.policies import AnyPolicy, Policy, policy_named
from kompakt.engine.strategies import OverflowByRounds
from kompakt.errors import DoesNotFit, InputError, Overflowed, UsageError
from kompakt.model.budget import Budget
from kompakt.model.groups import is_request
from kompakt.model.messages import JsonObject
from kompakt.model.references import digest
from kompakt.model.tokens import Tokenizer
from kompakt.session.store import Store
from kompakt.wire.openai_responses.rules import is_managed
from kompakt.wire.overflow import Overflow, overflow

_log = logging.getLogger("kompakt.agent")

ROUTES = {"/chat/completions": "openai-chat", "/responses": "openai-responses", "/messages": "anthropic"}
"""Which format is posted where; the end of a path tells."""

_BRANCHES = 20
"""Conversations that begin alike and are kept apart at most."""

TRIES = 3
"""How often a request that was refused as too long is cut and sent again."""

OUTPUT_KEYS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
"""Where a body says how long the answer may be."""

PREAMBLE = ("response.created", "response.in_progress", "response.queued")
"""Events that come before the first that says anything."""

_SHARE = 0.8
"""Part of a request that is kept when the provider says that it is too long and not by how much."""

_MARGIN = 0.95
"""Part of what would fit that is aimed for: the provider's count and ours differ from text to text."""

_retries: ContextVar[bool] = ContextVar("kompakt_retries", default=False)
_sent: ContextVar[int] = ContextVar("kompakt_sent", default=0)
"""Tokens of the request that is being sent."""

Client = TypeVar("Client")


class Terms(msgspec.Struct, frozen=True):
    """How the calls of a wrapped client are compacted."""

    budget: int | Budget | None
    policy: Policy
    store: Store | None
    tokenizer: Tokenizer | None = None
    taken: dict[str, int] = {}
    """Tokens that the provider takes for a model, where it has refused more; counted here."""

    def asked(self, body: JsonObject, format: str) -> dict[str, Any]:
        """Return the options to compact a body with: the caller's, within what the provider takes."""
        model = body.get("model")
        budget = Budget.of(self.budget) if isinstance(self.budget, int) else self.budget
        options = {"format": format, "policy": self.policy, "tokenizer": self.tokenizer, "budget": budget}
        limit = self.taken.get(str(model))
        if limit is None:
            return options
        if _retries.get():  # only what is needed, and the round that brought the overflow first
            retried = Budget(window=limit, trigger=limit, target=int(limit * _MARGIN))
            policy = msgspec.structs.replace(self.policy, steps=(OverflowByRounds(), *self.policy.steps))
            return {**options, "budget": retried, "policy": policy}
        own = api.budget_for(budget, model if isinstance(model, str) else None)
        return options if 0 < own.trigger <= limit else {**options, "budget": Budget.of(limit)}

    def learn(self, body: JsonObject, refused: Overflow) -> None:
        """Remember what the provider takes, from what it says and from what was sent."""
        counted, asked = _sent.get(), [body.get(name) for name in OUTPUT_KEYS]
        goal = int(counted * _SHARE)
        if refused.limit and not refused.by_bytes:
            output = refused.output or next((number for number in asked if isinstance(number, int)), 0)
            ratio = max(1.0, (refused.actual or 0) / max(1, counted))
            goal = min(goal, int((refused.limit - output) / ratio * _MARGIN))
        self.taken[str(body.get("model"))] = max(1, goal if goal > 0 else int(counted * _SHARE))


def wrap(
    client: Client,
    *,
    budget: int | Budget | None = None,
    policy: AnyPolicy = "default",
    store: Store | None = None,
    tokenizer: Tokenizer | None = None,
) -> Client:
    """Return a client like the one given (OpenAI, AsyncOpenAI, Anthropic, AsyncAnthropic) whose calls are compacted.

    ``budget`` is the model's own when none is given; ``policy`` is a name, a ``Policy`` or one strategy. With ``store``
    (asynchronous clients only) what was said is kept in a session, named by how the conversation began. A history that
    cannot be made to fit is sent as it is. ``tokenizer``, a ``Counter`` or a function from a text to its tokens, counts
    instead of the model's own counter.

    The client's calls raise ``Overflowed``, which is also the SDK's own error, when the provider refuses a request as
    too long whatever was cut.

    Raises:
        UsageError: this is not such a client.
    """
    found = type(client)
    hook = getattr(client, "_prepare_options", None)
    if hook is None or not hasattr(client, "copy"):
        raise UsageError(f"{found.__name__} cannot be wrapped; pass OpenAI, Anthropic or their async kin")
    waits = inspect.iscoroutinefunction(hook)
    if store is not None and not waits:
        raise UsageError("a store needs a client that awaits; wrap AsyncOpenAI or AsyncAnthropic instead")
    base: Any = found.__mro__[1] if hasattr(found, "kompakt_terms") else found
    terms = Terms(budget, policy_named(policy), store, tokenizer, {})
    copied = cast("Any", client).copy()
    copied.__class__ = _waiting(base, terms) if waits else _plain(base, terms)
    return copied


def _plain(base: Any, terms: Terms) -> type:
    """Make a class of clients that compact what they send."""

    class Wrapped(base):
        kompakt_terms = terms

        def _prepare_options(self, options: Any) -> Any:
            prepared = super()._prepare_options(options)
            format = _format(prepared)
            if format is not None:
                prepared.json_data = _compacted(prepared.json_data, format, terms)
            return prepared

        def request(self, cast_to: Any, options: Any, **how: Any) -> Any:
            last: _Refusal | None = None
            for attempt in range(TRIES + 1):
                retried = _retries.set(attempt > 0)
                try:
                    return _peeked(super().request(cast_to, options, **how))
                except Exception as error:
                    last = _again(error, last, options, terms, attempt)
                    if last is None:
                        raise
                finally:
                    _retries.reset(retried)
            raise AssertionError("unreachable")

    return _named(Wrapped, base)


def _waiting(base: Any, terms: Terms) -> type:
    """Make a class of clients that compact what they send, where the policy may await."""

    class Wrapped(base):
        kompakt_terms = terms

        async def _prepare_options(self, options: Any) -> Any:
            prepared = await super()._prepare_options(options)
            format = _format(prepared)
            if format is not None:
                prepared.json_data = await _acompacted(prepared.json_data, format, terms)
            return prepared

        async def request(self, cast_to: Any, options: Any, **how: Any) -> Any:
            last: _Refusal | None = None
            for attempt in range(TRIES + 1):
                retried = _retries.set(attempt > 0)
                try:
                    return await _apeeked(await super().request(cast_to, options, **how))
                except Exception as error:
                    last = _again(error, last, options, terms, attempt)
                    if last is None:
                        raise
                finally:
                    _retries.reset(retried)
            raise AssertionError("unreachable")

    return _named(Wrapped, base)


def _named(made: type, base: Any) -> type:
    """Let a class be called what its base is called."""
    made.__name__, made.__qualname__, made.__module__, made.__doc__ = (
        base.__name__,
        base.__qualname__,
        base.__module__,
        base.__doc__,
    )
    return made


def _format(options: Any) -> str | None:
    """Tell which format a request is in, when it holds a history that is the caller's to keep."""
    path = str(options.url).partition("?")[0].rstrip("/")
    body = options.json_data
    if str(options.method).lower() != "post" or not isinstance(body, Mapping):
        return None
    if is_managed(cast("JsonObject", body)):  # the provider keeps the history: what is sent is only what is new
        return None
    return next((format for end, format in ROUTES.items() if path.endswith(end)), None)


class InStream(Exception):
    """A stream whose first event says that the request is too long. Never leaves this module."""

    def __init__(self, body: JsonObject) -> None:
        self.body = body
        super().__init__(str(body)[:MAX_WORDS])


def _refusal(error: Exception, options: Any) -> Overflow | None:
    """Tell whether an error says that a request was too long which is ours to shorten."""
    if _format(options) is None:
        return None
    return overflow(error.body) if isinstance(error, InStream) else failed_of(error).overflow


class _Refusal(NamedTuple):
    """A request that was refused as too long."""

    error: Exception
    stated: Overflow


def _again(error: Exception, last: _Refusal | None, options: Any, terms: Terms, attempt: int) -> _Refusal | None:
    """Note what the provider takes before the next try; ``None`` when the error is about something else.

    Raises:
        Overflowed: the request was refused as too long, and there is no next try or nothing left to cut.
    """
    if isinstance(error, DoesNotFit) and last is not None:
        raise _overflowed(last, str(error)) from last.error
    stated = _refusal(error, options)
    if stated is None:
        return None
    refusal = _Refusal(error, stated)
    if attempt >= TRIES or not _sent.get():
        raise _overflowed(refusal, f"cut {attempt} times") from error
    terms.learn(_body(options.json_data), stated)
    limit = terms.taken[str(options.json_data.get("model"))]
    _log.warning("a request of %d tokens was refused as too long: sent again with %d at most", _sent.get(), limit)
    return refusal


def _overflowed(refusal: _Refusal, why: str) -> Overflowed:
    """Make an error that is both kompakt's and the SDK's, so that handlers of either see it."""
    error, told = refusal.error, f"the request is too long ({why}): {refusal.error}"
    if isinstance(error, InStream):
        return Overflowed(told, overflow=refusal.stated)
    kind = type("Overflowed", (Overflowed, type(error)), {"__doc__": Overflowed.__doc__})
    made: Any = kind.__new__(kind)
    made.__dict__.update(error.__dict__)
    made.args, made.message, made.overflow, made.round = (told,), told, refusal.stated, None
    made.status = getattr(error, "status_code", None)
    return made


def _peeked(answer: Any) -> Any:
    """Look at how a stream begins: a refusal may come as its first event."""
    if "_iterator" not in getattr(answer, "__dict__", {}):
        return answer
    held: list[Any] = []
    for event in answer._iterator:
        held.append(event)
        if (refused := _refused_by(event)) is not None:
            answer.close()
            raise InStream(refused)
        if getattr(event, "type", None) not in PREAMBLE:
            break
    answer._iterator = chain(held, answer._iterator)
    return answer


async def _apeeked(answer: Any) -> Any:
    """Look at how a stream begins, where that has to be awaited."""
    if "_iterator" not in getattr(answer, "__dict__", {}):
        return answer
    held: list[Any] = []
    rest = answer._iterator
    async for event in rest:
        held.append(event)
        if (refused := _refused_by(event)) is not None:
            await answer.close()
            raise InStream(refused)
        if getattr(event, "type", None) not in PREAMBLE:
            break

    async def whole() -> AsyncGenerator[Any]:
        for event in held:
            yield event
        async for event in rest:
            yield event

    answer._iterator = whole()
    return answer


def _refused_by(event: Any) -> JsonObject | None:
    """Return an error event that says that the request was too long; the model's words are never looked at."""
    if getattr(event, "type", None) not in ("error", "response.failed") or not hasattr(event, "model_dump"):
        return None
    told = event.model_dump()
    body = {"error": told["response"].get("error")} if isinstance(told.get("response"), dict) else told
    return body if overflow(body) is not None else None


def _compacted(body: Mapping[str, Any], format: str, terms: Terms) -> JsonObject:
    given = _body(body)
    try:
        done = api.compact(given, **terms.asked(given, format))
    except (DoesNotFit, InputError) as error:
        return _as_it_is(given, error)
    _sent.set(done.tokens_after)
    return done.payload


async def _acompacted(body: Mapping[str, Any], format: str, terms: Terms) -> JsonObject:
    given = _body(body)
    try:
        done = await api.acompact(given, **terms.asked(given, format))
        if terms.store is not None and done.changed:
            await _kept(given, format, terms.store)
    except (DoesNotFit, InputError) as error:
        return _as_it_is(given, error)
    _sent.set(done.tokens_after)
    return done.payload


def _as_it_is(body: JsonObject, error: DoesNotFit | InputError) -> JsonObject:
    if _retries.get():
        raise error
    _log.warning("sent as it is: %s", error)
    _sent.set(0)
    return body


async def _kept(body: JsonObject, format: str, store: Store) -> None:
    """Keep a history in the session that is named by how it began; one that went on otherwise in another."""
    history = api.parse(body, format)
    first = next((at for at, message in enumerate(history) if is_request(message)), 0)
    begun = "".join(digest(message).hex()[:8] for message in history.messages[first : first + 2])
    for number in range(_BRANCHES):
        session = await store.session(f"wrapped-{format}-{begun}" + (f"-{number + 1}" if number else ""))
        try:
            await session.save(history)
        except UsageError:  # the caller has changed what was said: that is another conversation
            continue
        return
    _log.warning("not kept: a conversation that began like this one went on in %d other ways", _BRANCHES)


def _body(body: Mapping[str, Any]) -> JsonObject:
    """Copy a body without what the SDK puts in for fields that were not given."""
    return {key: value for key, value in body.items() if type(value).__name__ not in ("NotGiven", "Omit")}
