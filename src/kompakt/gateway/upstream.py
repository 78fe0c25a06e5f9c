"""To a provider and back: headers without what belongs to one connection only, bytes as they come.

An answer is passed on in the pieces in which it arrives, still compressed if it was. Only what is between client and
gateway is removed from a request, and the client's credential stays in its own header.

A provider can fail at any point. This module turns every exception of httpx into ``GatewayError``: the client gets 502
or 504 in its own protocol if nothing was sent to it yet, and a closed connection otherwise.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import NamedTuple

import httpx
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Scope

from kompakt.gateway.config import GatewayConfig
from kompakt.gateway.errors import GatewayError
from kompakt.gateway.http import encodings
from kompakt.gateway.http.access_log import request_log
from kompakt.gateway.routes import Route
from kompakt.gateway.tenancy.tenants import is_private

_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer".split()
    + b"transfer-encoding upgrade".split()
)
"""Headers that are about one connection (RFC 9110, 7.6.1)."""

MAX_ERROR = 1_000_000
"""Bytes of an error that are read, and that it may decompress to, to see what it says; the rest is passed on unread."""

_OPENED = "kompakt.upstreams"
"""Where a request's scope lists the answers of providers that were opened for it."""

MOMENT = 0.2
"""Seconds after an announcement in which a refusal comes, if it comes."""

_EMPTY = (204, 304)
"""Statuses whose answers have no body, whatever their headers say."""

_ANNOUNCEMENTS = (b"response.created", b"response.queued", b"response.in_progress")


class UpstreamResponse(NamedTuple):
    """A provider's answer that has begun."""

    response: httpx.Response
    chunks: AsyncIterator[bytes]
    read: bytes = b""
    """What was read of it already."""

    @property
    def status(self) -> int:
        """The provider's status."""
        return self.response.status_code

    def text(self) -> str:
        """Return the text of what was read, decompressed up to a limit; empty when it cannot be read."""
        applied = encodings.listed(self.response.headers.get("content-encoding", ""))
        decoded = encodings.decode_prefix(self.read, applied, MAX_ERROR)
        return (decoded or b"").decode("utf-8", "replace")


async def send(
    client: httpx.AsyncClient, request: Request, route: Route, settings: GatewayConfig, body: bytes | None
) -> UpstreamResponse:
    """Send a request upstream; ``body`` of ``None`` sends what the client sends, piece by piece.

    Raises:
        GatewayError: the provider cannot be reached, or its answer is not HTTP.
    """
    began = time.perf_counter()
    query = request.scope.get("query_string", b"").decode("latin-1")
    try:
        url = httpx.URL(f"{route.url}?{query}" if query else route.url)
    except httpx.InvalidURL:
        raise GatewayError(400, "the address cannot be sent to a provider", code="invalid_path") from None
    content = request.stream() if body is None and has_body(request) else body
    made = client.build_request(request.method, url, content=content)
    made.headers = httpx.Headers([*_passed(request.headers.raw, settings), *_own(made.headers, body)])
    if body is not None and "accept-encoding" in made.headers:
        made.headers["accept-encoding"] = encodings.readable(made.headers["accept-encoding"])
    with _failures("the provider cannot be reached", code="upstream_unreachable"):
        response = await client.send(made, stream=True)
    request.scope.setdefault(_OPENED, []).append(response)
    if response.status_code < 200:
        raise GatewayError(502, "the provider switched to another protocol", code="upstream_unreachable")
    told = request_log(request)
    told.upstream_seconds = (told.upstream_seconds or 0.0) + time.perf_counter() - began
    return UpstreamResponse(response, _chunks(response))


@asynccontextmanager
async def closing_responses(scope: Scope) -> AsyncGenerator[None]:
    """Close every answer that is opened for a request, however the request ends."""
    opened: list[httpx.Response] = []
    scope[_OPENED] = opened
    try:
        yield
    finally:
        for response in opened:
            with suppress(httpx.HTTPError, httpx.StreamError):
                await response.aclose()


@contextmanager
def _failures(message: str, *, code: str) -> Generator[None]:
    """Turn what httpx raises into a refusal."""
    try:
        yield
    except httpx.TimeoutException:
        raise GatewayError(504, "the provider did not answer in time", code="upstream_timeout") from None
    except (httpx.HTTPError, httpx.StreamError) as error:
        raise GatewayError(502, f"{message} ({type(error).__name__})", code=code) from None


async def _chunks(response: httpx.Response) -> AsyncIterator[bytes]:
    with _failures("the provider broke off its answer", code="upstream_broken"):
        async for chunk in response.aiter_raw():
            yield chunk


def has_body(request: Request) -> bool:
    """Tell whether a request announces a body."""
    return "content-length" in request.headers or "transfer-encoding" in request.headers


def _passed(headers: Iterable[tuple[bytes, bytes]], settings: GatewayConfig) -> list[tuple[bytes, bytes]]:
    """Choose the client's headers that go upstream."""
    pairs = [(name.lower(), value) for name, value in headers]
    named = {part.strip().lower() for name, value in pairs if name == b"connection" for part in value.split(b",")}
    left_out = _HOP | named | {b"host", b"content-length"}
    return [
        (name, value)
        for name, value in pairs
        if name not in left_out and not is_private(name.decode("latin-1"), settings)
    ]


def _own(headers: httpx.Headers, body: bytes | None) -> list[tuple[bytes, bytes]]:
    """Take what belongs to the connection upstream from httpx."""
    wanted = (b"host", b"content-length") if body is not None else (b"host", b"content-length", b"transfer-encoding")
    return [(name, value) for name, value in headers.raw if name.lower() in wanted]


async def peek(upstream: UpstreamResponse, *, announced: bool = False) -> UpstreamResponse:
    """Read the first piece of an answer, or all of a short error.

    Some providers announce an answer before they look at the request. Where that is so (``announced``) this waits a
    moment for the piece after the announcement: it may say that the request is refused.

    Raises:
        GatewayError: the provider breaks off or takes too long; the client has not been sent anything yet.
    """
    if upstream.status < 400:
        first = await anext(upstream.chunks, b"")
        if announced and first and _only_announces(first):
            return await _with_next(upstream._replace(read=first))
        return upstream._replace(read=first)
    pieces, size = list[bytes](), 0
    async for chunk in upstream.chunks:
        pieces.append(chunk)
        size += len(chunk)
        if size > MAX_ERROR:
            break
    return upstream._replace(read=b"".join(pieces))


def _only_announces(read: bytes) -> bool:
    """Tell whether nothing was streamed but that an answer is going to come."""
    named = [line.partition(b":")[2].strip() for line in read.splitlines() if line.startswith(b"event:")]
    return bool(named) and all(name in _ANNOUNCEMENTS for name in named)


async def _with_next(upstream: UpstreamResponse) -> UpstreamResponse:
    """Read what follows an announcement, if it follows at once."""
    task = asyncio.ensure_future(anext(upstream.chunks, b""))
    task.add_done_callback(lambda done: None if done.cancelled() else done.exception())  # nobody may be left to ask
    try:
        done, _ = await asyncio.wait({task}, timeout=MOMENT)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if done:
        return upstream._replace(read=upstream.read + task.result())

    async def rest() -> AsyncIterator[bytes]:
        yield await task
        async for chunk in upstream.chunks:
            yield chunk

    return upstream._replace(chunks=rest())


def client_response(upstream: UpstreamResponse, headers: Sequence[tuple[str, str]] = ()) -> Response:
    """Pass an answer on."""

    async def pieces() -> AsyncIterator[bytes]:
        try:
            if upstream.read:
                yield upstream.read
            async for chunk in upstream.chunks:
                yield chunk
        finally:
            await upstream.response.aclose()

    response = StreamingResponse(pieces(), upstream.status)
    response.raw_headers = [*client_headers(upstream), *((name.encode(), value.encode()) for name, value in headers)]
    return response


def client_headers(upstream: UpstreamResponse, *, without: frozenset[bytes] = frozenset()) -> list[tuple[bytes, bytes]]:
    """Choose the provider's headers that go back: none that only the gateway sets, none that contradicts the body."""
    raw = [(name.lower(), value) for name, value in upstream.response.headers.raw]
    named = {part.strip().lower() for name, value in raw if name == b"connection" for part in value.split(b",")}
    left_out = _HOP | named | without
    if upstream.status in _EMPTY:
        left_out |= {b"content-length"}
    return [(name, value) for name, value in raw if name not in left_out and not name.startswith(b"x-kompakt-")]
