"""Rounds: the model calls the tool, the gateway answers and asks again, and the client gets one answer.

Text goes on to the client the moment it comes. What is held back are calls that may be the tool's, and the end of a
round until it is known to be the end of the answer. A stream that breaks off breaks off for the client as well.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeAlias

import httpx
import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from kompakt.errors import KompaktError
from kompakt.gateway import upstream as forwarding
from kompakt.gateway.errors import GatewayError, error_body
from kompakt.gateway.http.access_log import RequestLog
from kompakt.gateway.http.metrics import Metrics
from kompakt.gateway.recall import turn as turns
from kompakt.gateway.recall.injection import Aside
from kompakt.gateway.recall.saved_rounds import MAX_ROUNDS, Notes, mixed_name, round_name
from kompakt.gateway.recall.sse import Events
from kompakt.gateway.recall.turn import Call, Dialect, Round, Stream, Turn, as_object
from kompakt.gateway.request.hash_chain import HashChain
from kompakt.gateway.storage.recorder import RecordedBranch
from kompakt.gateway.storage.storage import GatewayStorage, Owner
from kompakt.gateway.upstream import UpstreamResponse
from kompakt.model.messages import JsonObject
from kompakt.model.phrases import RECALL_DOWN, RECALL_NO_ROOM, RECALL_UNREADABLE, RECALL_USED_UP
from kompakt.store.codec import decode, encode

MAX_TOKENS = 2_000
"""Tokens of one answer of the tool, where there is room for them."""

MAX_ROOM = 1_000_000
"""Tokens that may be added where nobody knows how much a model holds."""

_LEAST = 100
"""Tokens below which no answer is worth its place."""

_BODY = frozenset([b"content-length", b"content-encoding", b"transfer-encoding"])

Ask: TypeAlias = Callable[[], Awaitable[UpstreamResponse]]
"""Asks the provider again, with all rounds so far."""


class Exchange(msgspec.Struct, kw_only=True):
    """One request of a client, with all that is asked for it."""

    owner: Owner
    trail: HashChain
    line: RecordedBranch
    dialect: Dialect
    aside: Aside | None
    """``None`` when the tool is not offered, and the answer is only told otherwise."""
    ask: Ask
    room: Callable[[], int]
    """Says how many tokens may still be added."""
    raised: int = 0
    """By how much the input is told larger than it was."""
    headers: Sequence[tuple[str, str]] = ()
    told: RequestLog

    @property
    def name(self) -> str:
        """What the tool is called; empty when it is not offered."""
        return self.aside.name if self.aside is not None else ""

    @property
    def body(self) -> JsonObject:
        """The request without its messages."""
        return self.trail.request.envelope()


def plain(request: Request) -> Request:
    """Ask for an answer that can be read as it comes."""
    headers = [pair for pair in request.scope["headers"] if pair[0] != b"accept-encoding"]
    return Request({**request.scope, "headers": [*headers, (b"accept-encoding", b"identity")]}, request.receive)


class Answering:
    """Answers calls of the tool."""

    def __init__(self, keeping: GatewayStorage, notes: Notes, metrics: Metrics) -> None:
        self._keeping = keeping
        self._notes = notes
        self._metrics = metrics

    async def answer(self, exchange: Exchange, upstream: UpstreamResponse) -> Response:
        """Make the client's answer of a provider's that has begun."""
        kind = upstream.response.headers.get("content-type", "")
        encoding = upstream.response.headers.get("content-encoding", "identity")
        if encoding != "identity":
            return forwarding.client_response(upstream, exchange.headers)
        if kind.startswith("text/event-stream"):
            response = StreamingResponse(self._streamed(exchange, upstream), upstream.status)
            response.raw_headers = _headers(exchange, upstream)
            return response
        return await self._whole(exchange, upstream)

    # --- in one piece ---------------------------------------------------------------------------------------------

    async def _whole(self, exchange: Exchange, upstream: UpstreamResponse) -> Response:
        said: list[JsonObject] = []
        while True:
            data = await _read(upstream, exchange.told)
            response = _object(data)
            if response is None:
                break
            said.append(response)
            turn = exchange.dialect.turn(response, exchange.name, exchange.body)
            if not await self._goes_on(exchange, turn):
                data = _told(exchange, said, data)
                break
            upstream = await exchange.ask()
            if upstream.status >= 400:
                return forwarding.client_response(upstream, exchange.headers)
        response = Response(data, upstream.status)
        length = (b"content-length", str(len(data)).encode())
        response.raw_headers = [*_headers(exchange, upstream), length]
        return response

    # --- in pieces ------------------------------------------------------------------------------------------------

    async def _streamed(self, exchange: Exchange, upstream: UpstreamResponse) -> AsyncIterator[bytes]:
        stream = exchange.dialect.stream(exchange.name, exchange.body, exchange.raised)
        while True:
            async with aclosing(_pieces(stream, upstream)) as pieces:
                async for piece in pieces:
                    yield piece
            if stream.has_failed or not stream.is_over or not await self._goes_on(exchange, stream.turn()):
                break
            stream.again()
            try:
                upstream = await exchange.ask()
            except GatewayError as refused:
                told = error_body(exchange.dialect.format, refused.status, refused.message, code=refused.code)
                for piece in stream.error(dict(told)):
                    yield piece
                return
            if upstream.status >= 400:
                data = await _read(upstream, exchange.told)
                for piece in stream.error(_object(data) or {}):
                    yield piece
                return
        if not stream.has_failed:
            for piece in stream.end():
                yield piece

    # --- rounds ---------------------------------------------------------------------------------------------------

    async def _goes_on(self, exchange: Exchange, turn: Turn) -> bool:
        """Answer the calls of a turn; tell whether the provider is to be asked again."""
        aside = exchange.aside
        calls = turns.hidden(turn, exchange.name) if aside is not None and turn.ends else ()
        if aside is None or not calls:
            return False
        own = turns.own(turn, exchange.name)
        number = len(aside.rounds)
        if number >= MAX_ROUNDS and not own:
            return False
        texts = [await self._text(exchange, call, len(calls), is_last=number >= MAX_ROUNDS - 1) for call in calls]
        made = Round(turn=turn.items, results=aside.dialect.results(calls, texts), shown=turn.shown)
        prefix = exchange.trail.key
        name = mixed_name(prefix, turns.named_by(own)) if own else round_name(prefix, number)
        await self._notes.keep(exchange.owner, exchange.line.session, name, made)
        if not own:
            aside.rounds.append(made)
        return not own

    async def _text(self, exchange: Exchange, call: Call, calls: int, *, is_last: bool) -> str:
        """Answer one call."""
        self._metrics.recalls.inc()
        query = call.query
        tokens = min(MAX_TOKENS, exchange.room() // (2 * calls))
        if is_last or query is None or tokens < _LEAST:
            return RECALL_USED_UP if is_last else RECALL_UNREADABLE if query is None else RECALL_NO_ROOM
        try:
            found = await self._keeping.recall(exchange.owner, exchange.trail, exchange.line, query, tokens=tokens)
        except KompaktError as error:
            self._keeping.store_failed(error)
            return RECALL_DOWN
        return found.text


async def _pieces(stream: Stream, upstream: UpstreamResponse) -> AsyncGenerator[bytes, None]:
    """Read the answer of one round."""
    events = Events()
    try:
        for data, raw in events.feed(upstream.read):
            for piece in stream.feed(data, raw):
                yield piece
        async for chunk in upstream.chunks:
            for data, raw in events.feed(chunk):
                for piece in stream.feed(data, raw):
                    yield piece
        for data, raw in events.last():
            for piece in stream.feed(data, raw):
                yield piece
    finally:
        await upstream.response.aclose()


async def _read(upstream: UpstreamResponse, told: RequestLog) -> bytes:
    """Read all of an answer; the time that it takes is the provider's.

    Raises:
        GatewayError: it breaks off.
    """
    pieces, began = [upstream.read], time.perf_counter()
    try:
        pieces += [chunk async for chunk in upstream.chunks]
    except httpx.HTTPError:
        raise GatewayError(502, "the provider broke off its answer", code="upstream_broken") from None
    finally:
        told.upstream_seconds = (told.upstream_seconds or 0.0) + time.perf_counter() - began
        await upstream.response.aclose()
    return b"".join(pieces)


def _object(data: bytes) -> JsonObject | None:
    try:
        return as_object(decode(data)) or None
    except (ValueError, RecursionError):
        return None


def _told(exchange: Exchange, said: Sequence[JsonObject], data: bytes) -> bytes:
    """Write what the client gets: the very bytes where nothing is told otherwise."""
    whole = exchange.dialect.whole(said, exchange.name)
    if exchange.raised:
        whole = exchange.dialect.raised(whole, exchange.raised)
    return data if whole == said[-1] else encode(whole)


def _headers(exchange: Exchange, upstream: UpstreamResponse) -> list[tuple[bytes, bytes]]:
    own = [(name.encode(), value.encode()) for name, value in exchange.headers]
    return [*forwarding.client_headers(upstream, without=_BODY), *own]
