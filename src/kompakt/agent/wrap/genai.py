"""Google's ``genai.Client``. Its modules send all requests through one connection object, which is replaced."""

from __future__ import annotations

import copy
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

from kompakt.agent.recall.exchange import RecallExchange
from kompakt.agent.recall.turn import RoundStream
from kompakt.agent.wrap.requests import (
    WrapOptions,
    compacted,
    exchange_of_request,
    format_of,
    named,
    object_in,
    retried,
    settled,
)
from kompakt.engine.compaction.compact import run_sync
from kompakt.errors import DoesNotFit
from kompakt.model.json import json_text
from kompakt.model.messages import JsonObject


def wrapped_genai(client: Any, wrapping: WrapOptions) -> Any:
    """Return a copy of a ``genai.Client`` whose modules use a copy of its connection."""
    given = client._api_client
    base: Any = type(given).__mro__[1] if hasattr(type(given), "kompakt_options") else type(given)
    connection = copy.copy(given)
    connection.__class__ = _connection_class(base, wrapping)

    def copied(module: Any) -> Any:
        made = copy.copy(module)
        if hasattr(type(module), "__del__"):  # the original closes the connections, not the copy
            made.__class__ = named(
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


def _connection_class(base: Any, wrapping: WrapOptions) -> type:
    errors = sys.modules[base.__module__.rpartition(".")[0] + ".errors"]

    def method(name: str, read: Callable[[_GenaiCall], Any]) -> Any:
        is_async = name.startswith("async")

        def request(self: Any, http_method: str, path: str, request_dict: Any, http_options: Any = None) -> Any:
            send = partial(getattr(base, name), self, http_method, path)
            options = _GenaiOptions.of(http_method, path, request_dict)
            if format_of(options) is None:
                return send(request_dict, http_options)
            call = _GenaiCall(send, options, http_options, wrapping, is_async)
            work = retried(partial(read, call), options, wrapping, (DoesNotFit, errors.APIError))
            return work if is_async else run_sync(work, may_wait=False)

        return request

    class WrappedGenai(base):
        kompakt_options = wrapping

        request = method("request", _answer)
        request_streamed = method("request_streamed", _stream)
        async_request = method("async_request", _answer)
        async_request_streamed = method("async_request_streamed", _stream)

        def __del__(self) -> None:
            """Leave the connections to the original."""

    return named(WrappedGenai, base)


class _GenaiOptions(NamedTuple):
    """A request of Google's client, with the names of the other SDKs. Its model is in the path."""

    method: str
    url: str
    json_data: JsonObject

    @classmethod
    def of(cls, method: str, path: str, body: Mapping[str, Any]) -> _GenaiOptions:
        model = path.partition("?")[0].rpartition(":")[0].rpartition("models/")[2]
        return cls(method, path, {**body, "model": model})


class _GenaiCall(NamedTuple):
    """A request and how it is sent."""

    sender: Callable[[JsonObject, Any], Any]
    options: _GenaiOptions
    http_options: Any
    wrapping: WrapOptions
    is_async: bool

    async def compact(self) -> tuple[JsonObject, RecallExchange | None]:
        """Return the body to send, and its exchange if it offers the recall tool."""
        exchange_of_request.set(None)
        body = await compacted(self.options.json_data, "gemini", self.wrapping, is_async=self.is_async)
        return body, exchange_of_request.get()

    async def send(self, body: JsonObject) -> Any:
        sent = {key: value for key, value in body.items() if key != "model"}
        return await settled(self.sender(sent, self.http_options))


async def _answer(call: _GenaiCall) -> Any:
    async def again(body: JsonObject) -> JsonObject:
        return object_in(((await call.send(body)).body or "").encode())

    body, exchange = await call.compact()
    answer = await call.send(body)
    if exchange is None:
        return answer
    merged = await exchange.whole(again, object_in((answer.body or "").encode()))
    return answer.model_copy(update={"body": json_text(merged)})


async def _stream(call: _GenaiCall) -> Any:
    body, exchange = await call.compact()
    chunks = await call.send(body)
    if not call.is_async:
        chunks = chain(list(islice(chunks, 1)), chunks)  # a rejection comes with the first chunk
    if exchange is None:
        return chunks
    return (_async_chunks if call.is_async else _chunks)(chunks, exchange, call)


def _chunks(chunks: Any, exchange: RecallExchange, call: _GenaiCall) -> Generator[Any]:
    """Yield the chunks of all rounds as one stream."""
    stream, last = exchange.stream(), None
    while True:
        for last in chunks:
            yield from _events(stream, last)
        if not exchange.continues(stream):
            break
        chunks = run_sync(call.send(exchange.next_body()), may_wait=False)
    yield from _end(stream, last)


async def _async_chunks(chunks: Any, exchange: RecallExchange, call: _GenaiCall) -> AsyncGenerator[Any]:
    """Yield the chunks of all rounds as one asynchronous stream."""
    stream, last = exchange.stream(), None
    while True:
        async for last in chunks:
            for chunk in _events(stream, last):
                yield chunk
        if not exchange.continues(stream):
            break
        chunks = await call.send(exchange.next_body())
    for chunk in _end(stream, last):
        yield chunk


def _events(stream: RoundStream, chunk: Any) -> list[Any]:
    """Return the chunks that the caller gets for a chunk of a round."""
    data = (chunk.body or "").encode()
    return _chunks_of(stream.feed(data, b"data: " + data + b"\n\n"), chunk)


def _end(stream: RoundStream, last: Any) -> list[Any]:
    return [] if last is None or stream.has_failed else _chunks_of(stream.end(), last)


def _chunks_of(events: Iterable[bytes], chunk: Any) -> list[Any]:
    bodies = [event.removeprefix(b"data: ").strip().decode() for event in events]
    return [chunk.model_copy(update={"body": body}) for body in bodies]
