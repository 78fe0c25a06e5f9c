"""Recall rounds: the model calls the recall tool, the gateway answers and asks again, the client gets one answer.

Text is passed on to the client as it arrives. Two things are held back: calls that may be calls of the recall tool, and
the end of a round until it is known to be the end of the answer. When the provider's stream breaks off, the client's
stream breaks off too.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from kompakt.agent.recall.rounds import answer_turn
from kompakt.agent.recall.sse import EventParser
from kompakt.agent.recall.turn import ModelTurn, RecallProtocol, RoundStream, identity_of
from kompakt.errors import KompaktError
from kompakt.gateway.errors import GatewayError, error_body
from kompakt.gateway.http.metrics import Metrics
from kompakt.gateway.recall.hidden_rounds import HiddenRounds, SavedRounds, mixed_note, round_note
from kompakt.gateway.request.history import HashChain
from kompakt.gateway.storage.recorder import RecordedBranch
from kompakt.gateway.storage.storage import GatewayStorage, Owner
from kompakt.gateway.upstream import UpstreamResponse, client_headers, client_response
from kompakt.model.json import as_object, decode, encode
from kompakt.model.messages import JsonObject
from kompakt.model.phrases import RECALL_DOWN

_BODY_HEADERS = frozenset([b"content-length", b"content-encoding", b"transfer-encoding"])


class Exchange(msgspec.Struct, kw_only=True):
    """One request of a client and all provider requests that are made for it."""

    owner: Owner
    chain: HashChain
    branch: RecordedBranch
    protocol: RecallProtocol
    hidden: HiddenRounds | None
    """``None`` when the tool is not offered; then only the reported usage changes."""
    send_again: Callable[[], Awaitable[UpstreamResponse]]
    """Sends the request again, with all rounds so far."""
    room: Callable[[], int]
    """Returns how many tokens may still be added."""
    extra_input: int = 0
    """Tokens that are added to the reported input size."""
    headers: Sequence[tuple[str, str]] = ()

    @property
    def tool_name(self) -> str:
        """The name of the recall tool; empty when it is not offered."""
        return self.hidden.name if self.hidden is not None else ""

    @property
    def envelope(self) -> JsonObject:
        """The request without its messages."""
        return self.chain.request.envelope()


def without_compression(request: Request) -> Request:
    """Ask the provider for an uncompressed answer, so that the gateway can read it as it arrives."""
    headers = [pair for pair in request.scope["headers"] if pair[0] != b"accept-encoding"]
    return Request({**request.scope, "headers": [*headers, (b"accept-encoding", b"identity")]}, request.receive)


class RecallRounds:
    """Answers calls of the recall tool."""

    def __init__(self, storage: GatewayStorage, saved: SavedRounds, metrics: Metrics) -> None:
        self._storage = storage
        self._saved = saved
        self._metrics = metrics

    async def respond(self, exchange: Exchange, upstream: UpstreamResponse) -> Response:
        """Build the client's response from the provider's, with as many rounds as the model asks for."""
        kind = upstream.response.headers.get("content-type", "")
        encoding = upstream.response.headers.get("content-encoding", "identity")
        if encoding != "identity":
            return client_response(upstream, exchange.headers)
        if kind.startswith("text/event-stream"):
            response = StreamingResponse(self._stream(exchange, upstream), upstream.status)
            response.raw_headers = _headers(exchange, upstream)
            return response
        return await self._respond_whole(exchange, upstream)

    async def _respond_whole(self, exchange: Exchange, upstream: UpstreamResponse) -> Response:
        responses: list[JsonObject] = []
        while True:
            data = await _read(upstream)
            response = _object(data)
            if response is None:
                break
            responses.append(response)
            turn = exchange.protocol.turn(response, exchange.tool_name, exchange.envelope)
            if not await self._answer_calls(exchange, turn):
                data = _merged(exchange, responses, data)
                break
            upstream = await exchange.send_again()
            if upstream.status >= 400:
                return client_response(upstream, exchange.headers)
        response = Response(data, upstream.status)
        length = (b"content-length", str(len(data)).encode())
        response.raw_headers = [*_headers(exchange, upstream), length]
        return response

    async def _stream(self, exchange: Exchange, upstream: UpstreamResponse) -> AsyncIterator[bytes]:
        stream = exchange.protocol.stream(exchange.tool_name, exchange.envelope, exchange.extra_input)
        while True:
            async with aclosing(_round_chunks(stream, upstream)) as chunks:
                async for chunk in chunks:
                    yield chunk
            if stream.has_failed or not stream.is_over or not await self._answer_calls(exchange, stream.turn()):
                break
            stream.next_round()
            try:
                upstream = await exchange.send_again()
            except GatewayError as error:
                body = error_body(exchange.protocol.format, error.status, error.message, code=error.code)
                for chunk in stream.error(dict(body)):
                    yield chunk
                return
            if upstream.status >= 400:
                data = await _read(upstream)
                for chunk in stream.error(_object(data) or {}):
                    yield chunk
                return
        if not stream.has_failed:
            for chunk in stream.end():
                yield chunk

    async def _answer_calls(self, exchange: Exchange, turn: ModelTurn) -> bool:
        """Answer the recall calls of a turn; return whether to send the request again.

        A turn that also calls the client's tools goes to the client. Its recall results are stored, and added to the
        results that the client sends next.
        """
        hidden = exchange.hidden
        if hidden is None:
            return False
        number = len(hidden.rounds)
        recall = partial(self._recall, exchange)
        found = await answer_turn(hidden.protocol, turn, hidden.name, recall, room=exchange.room, number=number)
        if found is None:
            return False
        self._metrics.recalls.inc(len(turn.calls) - len(found.client_calls))
        prefix = exchange.chain.key
        note = mixed_note(prefix, identity_of(found.client_calls)) if found.client_calls else round_note(prefix, number)
        await self._saved.save(exchange.owner, exchange.branch.session, note, found.made)
        if found.client_calls:
            return False
        hidden.rounds.append(found.made)
        return True

    async def _recall(self, exchange: Exchange, query: str, tokens: int) -> str:
        try:
            found = await self._storage.recall(exchange.owner, exchange.chain, exchange.branch, query, tokens=tokens)
        except KompaktError as error:
            self._storage.store_failed(error)
            return RECALL_DOWN
        return found.text


async def _round_chunks(stream: RoundStream, upstream: UpstreamResponse) -> AsyncGenerator[bytes, None]:
    """Read the streamed answer of one round; yield the bytes for the client."""
    events = EventParser()
    try:
        for data, raw in events.feed(upstream.read):
            for chunk in stream.feed(data, raw):
                yield chunk
        async for received in upstream.chunks:
            for data, raw in events.feed(received):
                for chunk in stream.feed(data, raw):
                    yield chunk
        for data, raw in events.last():
            for chunk in stream.feed(data, raw):
                yield chunk
    finally:
        await upstream.response.aclose()


async def _read(upstream: UpstreamResponse) -> bytes:
    """Read a whole answer.

    Raises:
        GatewayError: the answer breaks off.
    """
    try:
        return b"".join([upstream.read, *[chunk async for chunk in upstream.chunks]])
    finally:
        await upstream.response.aclose()


def _object(data: bytes) -> JsonObject | None:
    try:
        return as_object(decode(data)) or None
    except (ValueError, RecursionError):
        return None


def _merged(exchange: Exchange, responses: Sequence[JsonObject], data: bytes) -> bytes:
    """Encode the client's answer; return the provider's bytes where nothing changed."""
    merged = exchange.protocol.merge(responses, exchange.tool_name)
    if exchange.extra_input:
        merged = exchange.protocol.with_more_input(merged, exchange.extra_input)
    return data if merged == responses[-1] else encode(merged)


def _headers(exchange: Exchange, upstream: UpstreamResponse) -> list[tuple[bytes, bytes]]:
    own = [(name.encode(), value.encode()) for name, value in exchange.headers]
    return [*client_headers(upstream, without=_BODY_HEADERS), *own]
