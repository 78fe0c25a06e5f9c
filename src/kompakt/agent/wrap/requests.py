"""A request of a wrapped client: compact its body, send it, and shorten it again if the provider rejects it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

import msgspec

from kompakt import api
from kompakt.agent.clients.failures import MAX_MESSAGE, failure_from
from kompakt.agent.recall.exchange import RecallExchange, RecallOffer, RoundCache, offer_for
from kompakt.agent.summarizer.llm import NarrativeCache
from kompakt.api import Compaction
from kompakt.engine.compaction.policies import Policy, with_summarizer
from kompakt.engine.pivot.pivot import Summarizer
from kompakt.engine.strategies import OverflowByRounds
from kompakt.errors import DoesNotFit, InputError, Overflowed, StoreError, UsageError
from kompakt.model.budget import Budget
from kompakt.model.groups import is_request
from kompakt.model.json import as_object, decode
from kompakt.model.messages import JsonObject
from kompakt.model.references import digest
from kompakt.model.tokens import Tokenizer
from kompakt.session.store import Store
from kompakt.wire.openai_responses.rules import is_managed
from kompakt.wire.overflow import Overflow, overflow

_log = logging.getLogger("kompakt.agent")

ROUTES = {
    "/chat/completions": "openai-chat",
    "/responses": "openai-responses",
    "/messages": "anthropic",
    ":generateContent": "gemini",
    ":streamGenerateContent": "gemini",
}
"""The format of a request, by the end of its path."""

TRIES = 3
"""How often a request that is rejected as too long is shortened and sent again."""

OUTPUT_KEYS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
"""Fields of a body with the output limit."""

_SHARE = 0.75
"""Share of a rejected request to keep if the provider does not state its limit."""

_MARGIN = 0.95
"""Share of the limit to aim for, because the provider's token count differs from ours."""

_retries: ContextVar[bool] = ContextVar("kompakt_retries", default=False)
_sent: ContextVar[int] = ContextVar("kompakt_sent", default=0)
"""Tokens of the current request."""
exchange_of_request: ContextVar[RecallExchange | None] = ContextVar("kompakt_exchange", default=None)
"""The current request, if it offers the recall tool."""


class WrapOptions(msgspec.Struct, frozen=True):
    """How the requests of a wrapped client are compacted."""

    budget: int | Budget | None
    policy: Policy
    store: Store | None
    tokenizer: Tokenizer | None = None
    summarizer: Callable[[str, str], Summarizer] | None = None
    """Returns who writes narratives, for the format and the model of a request; ``None`` for code alone."""
    narratives: NarrativeCache = msgspec.field(default_factory=NarrativeCache)
    accepted: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """Tokens, as counted here, that the provider accepts for a model, once it has rejected more."""
    rounds: RoundCache | None = None
    """Recall rounds that callers do not see; ``None`` when the recall tool is not offered."""

    def for_body(self, body: JsonObject, format: str) -> dict[str, Any]:
        """Return the arguments for ``compact``: those of the caller, within what the provider accepts."""
        model = body.get("model")
        budget = Budget.of(self.budget) if isinstance(self.budget, int) else self.budget
        policy = self._narrated(str(model or ""), format)
        options = {"format": format, "policy": policy, "tokenizer": self.tokenizer, "budget": budget}
        limit = self.accepted.get(str(model))
        if limit is None:
            return options
        if _retries.get():  # remove no more than needed, first from the round that caused the overflow
            retried = Budget(window=limit, trigger=limit, target=int(limit * _MARGIN))
            policy = msgspec.structs.replace(self.policy, steps=(OverflowByRounds(), *self.policy.steps))
            return {**options, "budget": retried, "policy": policy}
        own = api.budget_for(budget, model if isinstance(model, str) else None)
        return options if 0 < own.trigger <= limit else {**options, "budget": Budget.of(limit)}

    def _narrated(self, model: str, format: str) -> Policy:
        """Return the policy with the summarizer in its summarization steps; a rejected request is not narrated anew."""
        if self.summarizer is None or _retries.get():
            return self.policy
        return with_summarizer(self.policy, self.narratives.over(self.summarizer(format, model)))

    def offer(self, body: JsonObject, format: str) -> RecallOffer | None:
        """Return the request with the recall tool; ``None`` where it cannot be offered."""
        return None if self.rounds is None else offer_for(format, body, self.rounds)

    def continued(self, body: Any) -> Any:
        """Return a request that continues an answer by its id, after the hidden recall rounds of that answer."""
        if self.rounds is None or not isinstance(body, Mapping) or not is_managed(cast("JsonObject", body)):
            return body
        return self.rounds.continued(cast("JsonObject", body))

    def learn(self, body: JsonObject, refused: Overflow) -> None:
        """Remember what the provider accepts, from its error and the size of the request."""
        counted, outputs = _sent.get(), [body.get(name) for name in OUTPUT_KEYS]
        goal = int(counted * _SHARE)
        if refused.limit and not refused.by_bytes:
            output = refused.output or next((number for number in outputs if isinstance(number, int)), 0)
            ratio = max(1.0, (refused.actual or 0) / max(1, counted))
            goal = min(goal, int((refused.limit - output) / ratio * _MARGIN))
        self.accepted[str(body.get("model"))] = max(1, goal if goal > 0 else int(counted * _SHARE))


async def settled(value: Any) -> Any:
    """Return what an asynchronous SDK awaits, and the value itself for a synchronous one."""
    return await value if inspect.isawaitable(value) else value


async def retried(
    send: Callable[[], Coroutine[Any, Any, Any]], options: Any, wrapping: WrapOptions, rejections: Any
) -> Any:
    """Send a request; shorten it and send it again while it is too long."""
    last: _Refusal | None = None
    for attempt in range(TRIES + 1):
        retried = _retries.set(attempt > 0)
        try:
            return await send()
        except rejections as error:
            last = _check_retry(error, last, options, wrapping, attempt)
            if last is None:
                raise
        finally:
            _retries.reset(retried)
    raise AssertionError("unreachable")


def named(made: type, base: Any) -> type:
    """Give a class the name of its base."""
    made.__name__, made.__qualname__, made.__module__, made.__doc__ = (
        base.__name__,
        base.__qualname__,
        base.__module__,
        base.__doc__,
    )
    return made


def format_of(options: Any) -> str | None:
    """Return the format of a request that contains its whole history, and ``None`` for any other request."""
    path = str(options.url).partition("?")[0].rstrip("/")
    body = options.json_data
    if str(options.method).lower() != "post" or not isinstance(body, Mapping):
        return None
    if is_managed(cast("JsonObject", body)):  # the provider has the history, the request only what is new
        return None
    return next((format for end, format in ROUTES.items() if path.endswith(end)), None)


class StreamRejected(Exception):
    """The first event of a stream rejects the request as too long. Only used inside this module."""

    def __init__(self, body: JsonObject) -> None:
        self.body = body
        super().__init__(str(body)[:MAX_MESSAGE])


def _refusal(error: Exception, options: Any) -> Overflow | None:
    """Return the overflow of an error that rejects one of our requests as too long, else ``None``."""
    if format_of(options) is None:
        return None
    return overflow(error.body) if isinstance(error, StreamRejected) else failure_from(error).overflow


class _Refusal(NamedTuple):
    """The error that rejected a request as too long."""

    error: Exception
    stated: Overflow


def _check_retry(
    error: Exception, last: _Refusal | None, options: Any, wrapping: WrapOptions, attempt: int
) -> _Refusal | None:
    """Learn from an overflow before the next attempt; return ``None`` for any other error.

    Raises:
        Overflowed: the request is too long, and no attempt is left or nothing more can be removed.
    """
    if isinstance(error, DoesNotFit) and last is not None:
        raise _overflowed(last, str(error)) from last.error
    stated = _refusal(error, options)
    if stated is None:
        return None
    refusal = _Refusal(error, stated)
    if attempt >= TRIES or not _sent.get():
        raise _overflowed(refusal, f"shortened {attempt} times") from error
    wrapping.learn(_body(options.json_data), stated)
    limit = wrapping.accepted[str(options.json_data.get("model"))]
    rejected = "overflow: the provider rejected a request of %d tokens; kompakt sends it again with at most %d"
    _log.warning(rejected, _sent.get(), limit)
    return refusal


def _overflowed(refusal: _Refusal, why: str) -> Overflowed:
    """Return an error that is both kompakt's and the SDK's, so that handlers of either catch it."""
    error, message = refusal.error, f"the request is too long ({why}): {refusal.error}"
    if isinstance(error, StreamRejected):
        return Overflowed(message, overflow=refusal.stated)
    kind = type("Overflowed", (Overflowed, type(error)), {"__doc__": Overflowed.__doc__})
    made: Any = kind.__new__(kind)
    made.__dict__.update(error.__dict__)
    made.args, made.message, made.overflow, made.round = (message,), message, refusal.stated, None
    made.status = getattr(error, "status_code", None)
    return made


async def compacted(body: Mapping[str, Any], format: str, wrapping: WrapOptions, *, is_async: bool) -> JsonObject:
    """Return the body to send: compacted, and with the recall tool if something left the context."""
    given = _body(body)
    options = wrapping.for_body(given, format)

    async def compact(payload: JsonObject) -> Compaction[JsonObject]:
        if is_async:
            return await api.acompact(payload, **options)
        if wrapping.summarizer is None:
            return api.compact(payload, **options)
        with ThreadPoolExecutor(1, "kompakt-summary") as threads:  # the caller may be inside of an event loop
            return threads.submit(lambda: asyncio.run(api.acompact(payload, **options))).result()

    offer = wrapping.offer(given, format)
    try:
        done = None
        if offer is not None:
            with suppress(DoesNotFit):  # there is no room for the tool
                done = await compact(offer.body)
        if done is None:
            done, offer = await compact(given), None
        if wrapping.store is not None and done.changed:
            await _save(given, format, wrapping.store)
    except (DoesNotFit, InputError) as error:
        return _unchanged(given, error)
    _sent.set(done.tokens_after)
    if offer is None:
        return done.payload
    if not done.changed:
        return offer.given
    model = given.get("model")
    budget = api.budget_for(options["budget"], model if isinstance(model, str) else None)
    exchange_of_request.set(offer.exchange(done.payload, done.memory, budget=budget, tokens=done.tokens_after))
    return done.payload


def _unchanged(body: JsonObject, error: DoesNotFit | InputError) -> JsonObject:
    if _retries.get():
        raise error
    _log.warning("passthrough: the request is sent unchanged: %s", error)
    _sent.set(0)
    return body


async def _save(body: JsonObject, format: str, store: Store) -> None:
    """Save a history in the session named after its first messages; a history that diverges gets another session.

    The caller's request is sent whatever becomes of the store.
    """
    history = api.parse(body, format)
    first = next((at for at, message in enumerate(history) if is_request(message)), 0)
    first_messages = "".join(digest(message).hex()[:8] for message in history.messages[first : first + 2])
    try:
        await store.save(f"wrapped-{format}-{first_messages}", history)
    except (StoreError, UsageError) as error:
        _log.warning("compacted history not saved in the store: %s", error)


def _body(body: Mapping[str, Any]) -> JsonObject:
    """Copy a body without the SDK's placeholders for omitted fields."""
    return {key: value for key, value in body.items() if type(value).__name__ not in ("NotGiven", "Omit")}


def object_in(data: bytes) -> JsonObject:
    try:
        return as_object(decode(data))
    except (ValueError, RecursionError):
        return {}
