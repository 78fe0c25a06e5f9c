"""``wrap``: an SDK client whose requests are compacted, with nothing else changed.

The given client is copied, and the copy gets a subclass of its class, so ``isinstance`` checks still hold. Before it
sends a request, the SDK calls a hook. There the body of a chat, response or message request is compacted; other
requests are not changed. So streaming, parsing, raw responses, Azure and ``with_options`` work as before.

A request that the provider rejects as too long is shortened where it grew and sent again, a limited number of times.
The accepted size is remembered for the model, so that later requests are not rejected first.

With ``summarizer`` a model writes a part of each summary. It is asked through the client itself, once for each
compaction, while the request that needs it waits.

A compacted request offers the model the recall tool. Before the SDK reads a response, the calls of that tool are
answered and the request is sent again, so the caller gets one answer or one stream without them.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import sys
import warnings
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from kompakt import api
from kompakt.agent.clients import AnthropicMessages, OpenAIChat, OpenAIResponses
from kompakt.agent.clients.failures import MAX_MESSAGE, failure_from
from kompakt.agent.recall.exchange import RecallExchange, RecallOffer, RoundCache, offer_for
from kompakt.agent.recall.sse import EventParser
from kompakt.agent.recall.turn import RoundStream
from kompakt.agent.summarizer.llm import LLMSummarizer, NarrativeCache
from kompakt.api import Compaction
from kompakt.engine.compaction.policies import AnyPolicy, Policy, policy_named, with_summarizer
from kompakt.engine.pivot.pivot import Summarizer
from kompakt.engine.strategies import OverflowByRounds
from kompakt.errors import DoesNotFit, InputError, Overflowed, UsageError
from kompakt.model.budget import Budget
from kompakt.model.groups import is_request
from kompakt.model.json import as_object, decode, encode, json_text
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

PREAMBLE = ("response.created", "response.in_progress", "response.queued")
"""Events before the first one with content."""

_SHARE = 0.75
"""Share of a rejected request to keep if the provider does not state its limit."""

_MARGIN = 0.95
"""Share of the limit to aim for, because the provider's token count differs from ours."""

_retries: ContextVar[bool] = ContextVar("kompakt_retries", default=False)
_sent: ContextVar[int] = ContextVar("kompakt_sent", default=0)
"""Tokens of the current request."""
_exchange: ContextVar[RecallExchange | None] = ContextVar("kompakt_exchange", default=None)
"""The current request, if it offers the recall tool."""
_is_round: ContextVar[bool] = ContextVar("kompakt_is_round", default=False)
"""Whether the current request continues an exchange, so that it is neither compacted nor read by the SDK."""

_BODY_HEADERS = ("content-length", "content-encoding", "transfer-encoding")

Client = TypeVar("Client")


class WrapOptions(msgspec.Struct, frozen=True):
    """How the requests of a wrapped client are compacted."""

    budget: int | Budget | None
    policy: Policy
    store: Store | None
    tokenizer: Tokenizer | None = None
    summarizer: Callable[[str, str], Summarizer] | None = None
    """Returns who writes narratives, for the format and the model of a request; ``None`` for code alone."""
    narratives: NarrativeCache = msgspec.field(default_factory=NarrativeCache)
    accepted: dict[str, int] = {}
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


def wrap(
    client: Client,
    *,
    budget: int | Budget | None = None,
    policy: AnyPolicy = "default",
    store: Store | None = None,
    tokenizer: Tokenizer | None = None,
    summarizer: Summarizer | str | None = None,
    recall: bool = True,
) -> Client:
    """Return a copy of an SDK client that compacts its requests.

    The client is ``OpenAI``, ``AsyncOpenAI``, ``Anthropic``, ``AsyncAnthropic`` or Google's ``genai.Client``.

    ``budget`` defaults to the budget of the model. ``policy`` is a name, a ``Policy`` or one strategy. ``tokenizer``, a
    ``Counter`` or a function from a text to its tokens, replaces the model's own counter. With ``store`` (asynchronous
    clients only) compacted conversations are saved in a session that is named after their first messages. A history
    that cannot be made to fit is sent unchanged.

    By default code writes summaries alone. With ``summarizer`` a model writes the narrative: ``"auto"`` asks the model
    of the request through this client, another text names the model to ask, and a summarizer such as ``LLMSummarizer``
    decides itself. The request that needs a compaction waits for it. The cost is in ``Report.narrative``, which
    ``on_compaction`` reports.

    A compacted request that has tools also offers the model the tool ``recall``, which searches and restores what is no
    longer shown. Its calls are answered here: the caller gets one answer or one stream without them, with the usage of
    all requests. ``recall=False`` does not offer it.

    Requests raise ``Overflowed``, which is also the SDK's own error, if the provider still rejects the request as too
    long after everything that can go was removed.

    Raises:
        UsageError: the client is of another class.
    """
    found = type(client)
    rounds = RoundCache() if recall else None
    if hasattr(getattr(client, "_api_client", None), "async_request_streamed"):
        if store is not None or isinstance(summarizer, str):
            raise UsageError("a genai.Client takes no store and no model name as summarizer; pass an LLMSummarizer")
        narrator = _narrator(client, summarizer, is_async=False)
        options = WrapOptions(budget, policy_named(policy), None, tokenizer, narrator, accepted={}, rounds=rounds)
        return _wrapped_genai(client, options)
    hook = getattr(client, "_prepare_options", None)
    if hook is None or not hasattr(client, "copy"):
        raise UsageError(
            f"{found.__name__} cannot be wrapped; pass OpenAI, AsyncOpenAI, Anthropic, AsyncAnthropic or genai.Client"
        )
    is_async = inspect.iscoroutinefunction(hook)
    if store is not None and not is_async:
        raise UsageError("store=… needs an asynchronous client; wrap AsyncOpenAI or AsyncAnthropic")
    base: Any = found.__mro__[1] if hasattr(found, "kompakt_options") else found
    narrator = _narrator(client, summarizer, is_async=is_async)
    options = WrapOptions(budget, policy_named(policy), store, tokenizer, narrator, accepted={}, rounds=rounds)
    copied = cast("Any", client).copy()
    copied.__class__ = _async_class(base, options) if is_async else _sync_class(base, options)
    return copied


def _rejections(base: Any) -> tuple[type[Exception], ...]:
    """Return the errors that may mean that a request is too long: those of the SDK, and our own."""
    packages = (sys.modules.get(kind.__module__.partition(".")[0]) for kind in base.__mro__)
    found = next((package for package in packages if hasattr(package, "APIError")), None)
    return (StreamRejected, DoesNotFit, *([found.APIError] if found is not None else []))


_CLIENTS = {"openai-chat": OpenAIChat, "openai-responses": OpenAIResponses, "anthropic": AnthropicMessages}


def _narrator(
    client: object, summarizer: Summarizer | str | None, *, is_async: bool
) -> Callable[[str, str], Summarizer] | None:
    """Return a function from format and model of a request to the summarizer for it; ``None`` for code alone."""
    if summarizer is None:
        return None
    if not isinstance(summarizer, str):
        return lambda _, model: summarizer
    sdk: Any = client if is_async else _ThreadedSDK(client)

    def narrator(format: str, model: str) -> Summarizer:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the request itself has warned about an unknown model
            return LLMSummarizer(_CLIENTS[format](model if summarizer == "auto" else summarizer, client=sdk))

    return narrator


class _ThreadedSDK:
    """A synchronous SDK client for callers that await: each request runs in a thread."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.api_key = client.api_key

    def with_options(self, **options: Any) -> _ThreadedSDK:
        return _ThreadedSDK(self._client.with_options(**options))

    async def post(self, path: str, **how: Any) -> object:
        return await asyncio.to_thread(self._client.post, path, **how)


def _sync_class(base: Any, wrapping: WrapOptions) -> type:
    rejections = _rejections(base)

    class WrappedClient(base):
        kompakt_options = wrapping

        def _prepare_options(self, options: Any) -> Any:
            prepared = super()._prepare_options(options)
            format = None if _is_round.get() else _format(prepared)
            if not _is_round.get():
                _exchange.set(None)
            if format is not None:
                prepared.json_data = _compacted(prepared.json_data, format, wrapping)
            elif not _is_round.get():
                prepared.json_data = wrapping.continued(prepared.json_data)
            return prepared

        def request(self, cast_to: Any, options: Any, **how: Any) -> Any:
            base_request = super().request
            return _retried(lambda: _peeked(base_request(cast_to, options, **how)), options, wrapping, rejections)

        def _process_response(self, *, response: Any, **how: Any) -> Any:
            exchange = _exchange.get()
            if _is_round.get():
                return response
            if exchange is not None and response.status_code < 400:
                _exchange.set(None)

                def send(body: JsonObject) -> Any:
                    is_round = _is_round.set(True)
                    try:
                        return super(WrappedClient, self).request(
                            type(response), _continued(how["options"], body), stream=how["stream"]
                        )
                    finally:
                        _is_round.reset(is_round)

                response = _answered(response, exchange, send)
            return super()._process_response(response=response, **how)

    return _named(WrappedClient, base)


def _async_class(base: Any, wrapping: WrapOptions) -> type:
    rejections = _rejections(base)

    class WrappedAsyncClient(base):
        kompakt_options = wrapping

        async def _prepare_options(self, options: Any) -> Any:
            prepared = await super()._prepare_options(options)
            format = None if _is_round.get() else _format(prepared)
            if not _is_round.get():
                _exchange.set(None)
            if format is not None:
                prepared.json_data = await _acompacted(prepared.json_data, format, wrapping)
            elif not _is_round.get():
                prepared.json_data = wrapping.continued(prepared.json_data)
            return prepared

        async def request(self, cast_to: Any, options: Any, **how: Any) -> Any:
            base_request = super().request

            async def send() -> Any:
                return await _apeeked(await base_request(cast_to, options, **how))

            return await _aretried(send, options, wrapping, rejections)

        async def _process_response(self, *, response: Any, **how: Any) -> Any:
            exchange = _exchange.get()
            if _is_round.get():
                return response
            if exchange is not None and response.status_code < 400:
                _exchange.set(None)

                async def send(body: JsonObject) -> Any:
                    is_round = _is_round.set(True)
                    try:
                        return await super(WrappedAsyncClient, self).request(
                            type(response), _continued(how["options"], body), stream=how["stream"]
                        )
                    finally:
                        _is_round.reset(is_round)

                response = await _aanswered(response, exchange, send)
            return await super()._process_response(response=response, **how)

    return _named(WrappedAsyncClient, base)


def _retried(send: Callable[[], Any], options: Any, wrapping: WrapOptions, rejections: Any) -> Any:
    """Send a request; shorten it and send it again while it is too long."""
    last: _Refusal | None = None
    for attempt in range(TRIES + 1):
        retried = _retries.set(attempt > 0)
        try:
            return send()
        except rejections as error:
            last = _check_retry(error, last, options, wrapping, attempt)
            if last is None:
                raise
        finally:
            _retries.reset(retried)
    raise AssertionError("unreachable")


async def _aretried(send: Callable[[], Any], options: Any, wrapping: WrapOptions, rejections: Any) -> Any:
    """Like ``_retried``, for an asynchronous client."""
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


# --- recall ----------------------------------------------------------------------------------------------------------


def _continued(options: Any, body: JsonObject) -> Any:
    """Return the options of a further request of an exchange."""
    return options.model_copy(update={"json_data": body, "idempotency_key": None})


def _is_stream(response: Any) -> bool:
    return str(response.headers.get("content-type", "")).startswith("text/event-stream")


def _rebuilt(response: Any, **content: Any) -> Any:
    """Return a response with other content."""
    headers = [pair for pair in response.headers.multi_items() if pair[0].lower() not in _BODY_HEADERS]
    made = type(response)(response.status_code, headers=headers, request=response.request, **content)
    made.extensions.update({key: value for key, value in response.extensions.items() if key == "http_version"})
    if response.is_closed and hasattr(response, "_elapsed"):
        made.elapsed = response.elapsed
    return made


def _object(data: bytes) -> JsonObject:
    try:
        return as_object(decode(data))
    except (ValueError, RecursionError):
        return {}


def _answered(response: Any, exchange: RecallExchange, send: Callable[[JsonObject], Any]) -> Any:
    """Return the response to a request and to its recall rounds."""
    if _is_stream(response):
        http = sys.modules[type(response).__module__.partition(".")[0]]
        chunks = _chunks(response, exchange, send)

        class RecallStream(http.SyncByteStream):
            def __iter__(self) -> Any:
                return chunks

            def close(self) -> None:
                chunks.close()
                response.close()

        return _rebuilt(response, stream=RecallStream())
    first = _object(response.read())
    merged = exchange.whole(lambda body: _object(send(body).read()), first)
    return response if merged == first else _rebuilt(response, content=encode(merged))


async def _aanswered(response: Any, exchange: RecallExchange, send: Callable[[JsonObject], Any]) -> Any:
    """Return the response to an asynchronous request and to its recall rounds."""
    if _is_stream(response):
        http = sys.modules[type(response).__module__.partition(".")[0]]
        chunks = _achunks(response, exchange, send)

        class AsyncRecallStream(http.AsyncByteStream):
            def __aiter__(self) -> Any:
                return chunks

            async def aclose(self) -> None:
                await chunks.aclose()
                await response.aclose()

        return _rebuilt(response, stream=AsyncRecallStream())

    async def sent(body: JsonObject) -> JsonObject:
        return _object(await (await send(body)).aread())

    first = _object(await response.aread())
    merged = await exchange.awhole(sent, first)
    return response if merged == first else _rebuilt(response, content=encode(merged))


def _chunks(response: Any, exchange: RecallExchange, send: Callable[[JsonObject], Any]) -> Generator[bytes, None, None]:
    """Yield the streams of all rounds as one stream."""
    stream = exchange.stream()
    while True:
        events = EventParser()
        try:
            for received in response.iter_bytes():
                for data, raw in events.feed(received):
                    yield from stream.feed(data, raw)
            for data, raw in events.last():
                yield from stream.feed(data, raw)
        finally:
            response.close()
        if not exchange.goes_on(stream):
            break
        response = send(exchange.next_body())
    if not stream.has_failed:
        yield from stream.end()


async def _achunks(
    response: Any, exchange: RecallExchange, send: Callable[[JsonObject], Any]
) -> AsyncGenerator[bytes, None]:
    """Yield the asynchronous streams of all rounds as one stream."""
    stream = exchange.stream()
    while True:
        events = EventParser()
        try:
            async for received in response.aiter_bytes():
                for data, raw in events.feed(received):
                    for chunk in stream.feed(data, raw):
                        yield chunk
            for data, raw in events.last():
                for chunk in stream.feed(data, raw):
                    yield chunk
        finally:
            await response.aclose()
        if not exchange.goes_on(stream):
            break
        response = await send(exchange.next_body())
    if not stream.has_failed:
        for chunk in stream.end():
            yield chunk


def _named(made: type, base: Any) -> type:
    """Give a class the name of its base."""
    made.__name__, made.__qualname__, made.__module__, made.__doc__ = (
        base.__name__,
        base.__qualname__,
        base.__module__,
        base.__doc__,
    )
    return made


def _format(options: Any) -> str | None:
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
    if _format(options) is None:
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
    _log.warning("overflow: a request of %d tokens is too long; retry with at most %d", _sent.get(), limit)
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


def _peeked(answer: Any) -> Any:
    """Check the first events of a stream: a rejection may be among them."""
    if "_iterator" not in getattr(answer, "__dict__", {}):
        return answer
    held: list[Any] = []
    for event in answer._iterator:
        held.append(event)
        if (refused := _refused_by(event)) is not None:
            answer.close()
            raise StreamRejected(refused)
        if getattr(event, "type", None) not in PREAMBLE:
            break
    answer._iterator = chain(held, answer._iterator)
    return answer


async def _apeeked(answer: Any) -> Any:
    """Check the first events of an asynchronous stream."""
    if "_iterator" not in getattr(answer, "__dict__", {}):
        return answer
    held: list[Any] = []
    rest = answer._iterator
    async for event in rest:
        held.append(event)
        if (refused := _refused_by(event)) is not None:
            await answer.close()
            raise StreamRejected(refused)
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
    """Return the body of an error event that rejects the request as too long. The model's output is never checked."""
    if getattr(event, "type", None) not in ("error", "response.failed") or not hasattr(event, "model_dump"):
        return None
    dumped = event.model_dump()
    body = {"error": dumped["response"].get("error")} if isinstance(dumped.get("response"), dict) else dumped
    return body if overflow(body) is not None else None


def _compacted(body: Mapping[str, Any], format: str, wrapping: WrapOptions) -> JsonObject:
    given = _body(body)
    options = wrapping.for_body(given, format)

    def compacted(payload: JsonObject) -> Compaction[JsonObject]:
        if wrapping.summarizer is None:
            return api.compact(payload, **options)
        with ThreadPoolExecutor(1, "kompakt-summary") as threads:  # the caller may be inside of an event loop
            return threads.submit(lambda: asyncio.run(api.acompact(payload, **options))).result()

    offer = wrapping.offer(given, format)
    try:
        done = None
        if offer is not None:
            with suppress(DoesNotFit):  # there is no room for the tool
                done = compacted(offer.body)
        if done is None:
            done, offer = compacted(given), None
    except (DoesNotFit, InputError) as error:
        return _unchanged(given, error)
    if offer is not None:
        return _sent_with(offer, done, options)
    _sent.set(done.tokens_after)
    return done.payload


async def _acompacted(body: Mapping[str, Any], format: str, wrapping: WrapOptions) -> JsonObject:
    given = _body(body)
    options = wrapping.for_body(given, format)
    offer = wrapping.offer(given, format)
    try:
        done = None
        if offer is not None:
            with suppress(DoesNotFit):  # there is no room for the tool
                done = await api.acompact(offer.body, **options)
        if done is None:
            done, offer = await api.acompact(given, **options), None
        if wrapping.store is not None and done.changed:
            await _save(given, format, wrapping.store)
    except (DoesNotFit, InputError) as error:
        return _unchanged(given, error)
    if offer is not None:
        return _sent_with(offer, done, options)
    _sent.set(done.tokens_after)
    return done.payload


def _sent_with(offer: RecallOffer, done: Compaction[JsonObject], options: Mapping[str, Any]) -> JsonObject:
    """Return the request to send: with the tool if something left the context, else as the caller gave it."""
    _sent.set(done.tokens_after)
    if not done.changed:
        return offer.given
    model = offer.given.get("model")
    budget = api.budget_for(options["budget"], model if isinstance(model, str) else None)
    _exchange.set(offer.exchange(done.payload, done.memory, budget=budget, tokens=done.tokens_after))
    return done.payload


def _unchanged(body: JsonObject, error: DoesNotFit | InputError) -> JsonObject:
    if _retries.get():
        raise error
    _log.warning("passthrough: the request is sent unchanged: %s", error)
    _sent.set(0)
    return body


async def _save(body: JsonObject, format: str, store: Store) -> None:
    """Save a history in the session named after its first messages; a history that diverges gets another session."""
    history = api.parse(body, format)
    first = next((at for at, message in enumerate(history) if is_request(message)), 0)
    first_messages = "".join(digest(message).hex()[:8] for message in history.messages[first : first + 2])
    try:
        await store.save(f"wrapped-{format}-{first_messages}", history)
    except UsageError as error:
        _log.warning("not saved: %s", error)


def _body(body: Mapping[str, Any]) -> JsonObject:
    """Copy a body without the SDK's placeholders for omitted fields."""
    return {key: value for key, value in body.items() if type(value).__name__ not in ("NotGiven", "Omit")}


# --- Google's client -------------------------------------------------------------------------------------------------


class _GenaiOptions(NamedTuple):
    """A request of Google's client, with the names of the other SDKs. Its model is in the path."""

    method: str
    url: str
    json_data: JsonObject

    @classmethod
    def of(cls, method: str, path: str, body: Mapping[str, Any]) -> _GenaiOptions:
        model = path.partition("?")[0].rpartition(":")[0].rpartition("models/")[2]
        return cls(method, path, {**body, "model": model})

    def sent(self, payload: JsonObject) -> JsonObject:
        return {key: value for key, value in payload.items() if key != "model"}


def _wrapped_genai(client: Any, wrapping: WrapOptions) -> Any:
    """Return a copy of a ``genai.Client`` whose modules use a copy of its connection."""
    given = client._api_client
    base: Any = type(given).__mro__[1] if hasattr(type(given), "kompakt_options") else type(given)
    connection = copy.copy(given)
    connection.__class__ = _genai_class(base, wrapping)

    def copied(module: Any) -> Any:
        made = copy.copy(module)
        if hasattr(type(module), "__del__"):  # the original closes the connections, not the copy
            made.__class__ = _named(
                type(type(module).__name__, (type(module),), {"__del__": lambda self: None}), type(module)
            )
        for name, value in vars(module).items():
            if value is given:
                setattr(made, name, connection)
            elif getattr(value, "_api_client", None) is given:
                setattr(made, name, copied(value))
        made.kompakt_original = module  # it closes the connections when it is collected
        return made

    return copied(client)


def _genai_class(base: Any, wrapping: WrapOptions) -> type:
    errors = sys.modules[base.__module__.rpartition(".")[0] + ".errors"]
    rejections = (DoesNotFit, errors.APIError)

    class WrappedGenai(base):
        kompakt_options = wrapping

        def __del__(self) -> None:
            """Leave the connections to the original."""

        def request(self, http_method: str, path: str, request_dict: Any, http_options: Any = None) -> Any:
            send = partial(super().request, http_method, path)
            options = _GenaiOptions.of(http_method, path, request_dict)
            if _format(options) is None:
                return send(request_dict, http_options)

            def attempt() -> Any:
                _exchange.set(None)
                answer = send(options.sent(_compacted(options.json_data, "gemini", wrapping)), http_options)
                exchange = _exchange.get()
                if exchange is not None:
                    first = _object((answer.body or "").encode())
                    again = lambda body: _object((send(options.sent(body), http_options).body or "").encode())  # noqa: E731
                    answer = answer.model_copy(update={"body": json_text(exchange.whole(again, first))})
                return answer

            return _retried(attempt, options, wrapping, rejections)

        def request_streamed(self, http_method: str, path: str, request_dict: Any, http_options: Any = None) -> Any:
            send = partial(super().request_streamed, http_method, path)
            options = _GenaiOptions.of(http_method, path, request_dict)
            if _format(options) is None:
                return send(request_dict, http_options)

            def attempt() -> Any:
                _exchange.set(None)
                chunks = send(options.sent(_compacted(options.json_data, "gemini", wrapping)), http_options)
                first = list(islice(chunks, 1))  # a rejection comes with the first chunk
                return _genai_chunks(
                    chain(first, chunks), _exchange.get(), lambda body: send(options.sent(body), http_options)
                )

            return _retried(attempt, options, wrapping, rejections)

        async def async_request(self, http_method: str, path: str, request_dict: Any, http_options: Any = None) -> Any:
            send = partial(super().async_request, http_method, path)
            options = _GenaiOptions.of(http_method, path, request_dict)
            if _format(options) is None:
                return await send(request_dict, http_options)

            async def again(body: JsonObject) -> JsonObject:
                return _object(((await send(options.sent(body), http_options)).body or "").encode())

            async def attempt() -> Any:
                _exchange.set(None)
                body = await _acompacted(options.json_data, "gemini", wrapping)
                exchange = _exchange.get()
                answer = await send(options.sent(body), http_options)
                if exchange is not None:
                    merged = await exchange.awhole(again, _object((answer.body or "").encode()))
                    answer = answer.model_copy(update={"body": json_text(merged)})
                return answer

            return await _aretried(attempt, options, wrapping, rejections)

        async def async_request_streamed(
            self, http_method: str, path: str, request_dict: Any, http_options: Any = None
        ) -> Any:
            send = partial(super().async_request_streamed, http_method, path)
            options = _GenaiOptions.of(http_method, path, request_dict)
            if _format(options) is None:
                return await send(request_dict, http_options)

            async def attempt() -> Any:
                _exchange.set(None)
                body = await _acompacted(options.json_data, "gemini", wrapping)
                exchange = _exchange.get()
                chunks = await send(options.sent(body), http_options)
                return _genai_achunks(chunks, exchange, lambda body: send(options.sent(body), http_options))

            return await _aretried(attempt, options, wrapping, rejections)

    return _named(WrappedGenai, base)


def _genai_events(stream: RoundStream, chunk: Any) -> list[Any]:
    """Return the chunks that the caller gets for a chunk of a round."""
    data = (chunk.body or "").encode()
    return _genai_answers(stream.feed(data, b"data: " + data + b"\n\n"), chunk)


def _genai_answers(events: Iterable[bytes], chunk: Any) -> list[Any]:
    bodies = [event.removeprefix(b"data: ").strip().decode() for event in events]
    return [chunk.model_copy(update={"body": body}) for body in bodies]


def _genai_chunks(chunks: Any, exchange: RecallExchange | None, send: Callable[[JsonObject], Any]) -> Any:
    """Yield the chunks of all rounds as one stream."""
    if exchange is None:
        yield from chunks
        return
    stream, last = exchange.stream(), None
    while True:
        for last in chunks:
            yield from _genai_events(stream, last)
        if not exchange.goes_on(stream):
            break
        chunks = send(exchange.next_body())
    if last is not None and not stream.has_failed:
        yield from _genai_answers(stream.end(), last)


async def _genai_achunks(chunks: Any, exchange: RecallExchange | None, send: Callable[[JsonObject], Any]) -> Any:
    """Yield the chunks of all rounds as one asynchronous stream."""
    stream, last = None if exchange is None else exchange.stream(), None
    while True:
        async for last in chunks:
            for chunk in [last] if stream is None else _genai_events(stream, last):
                yield chunk
        if exchange is None or stream is None or not exchange.goes_on(stream):
            break
        chunks = await send(exchange.next_body())
    if stream is not None and last is not None and not stream.has_failed:
        for chunk in _genai_answers(stream.end(), last):
            yield chunk
