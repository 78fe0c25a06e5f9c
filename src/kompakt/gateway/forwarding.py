"""To a provider and back: headers without what belongs to one connection only, bytes as they come.

An answer is passed on in the pieces in which it arrives, still compressed if it was. Only what is between client and
gateway is taken off a request, and the client's credential stays in its own header.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple

import httpx
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from kompakt.gateway.configuration import Settings
from kompakt.gateway.refusing import Refused
from kompakt.gateway.routing import Route
from kompakt.gateway.telling import told_of
from kompakt.gateway.tenants import is_private

_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer".split()
    + b"transfer-encoding upgrade".split()
)
"""Headers that are about one connection (RFC 9110, 7.6.1)."""

MAX_ERROR = 1_000_000
"""Bytes of an error that are read to see what it says; more of it is passed on unread."""


MOMENT = 0.2
"""Seconds after an announcement in which a refusal comes, if it comes."""

_ANNOUNCEMENTS = (b"response.created", b"response.queued", b"response.in_progress")


class Upstream(NamedTuple):
    """A provider's answer that has begun."""

    response: httpx.Response
    chunks: AsyncIterator[bytes]
    read: bytes = b""
    """What was read of it already."""

    @property
    def status(self) -> int:
        """The provider's status."""
        return self.response.status_code

    def words(self) -> str:
        """Return what was read, uncompressed where it was compressed."""
        try:
            copy = httpx.Response(self.status, headers=self.response.headers, content=self.read)
            return copy.content.decode("utf-8", "replace")
        except httpx.DecodingError:
            return ""


async def ask(
    client: httpx.AsyncClient, request: Request, route: Route, settings: Settings, body: bytes | None
) -> Upstream:
    """Send a request upstream; ``body`` of ``None`` sends what the client sends, piece by piece.

    Raises:
        Refused: the provider cannot be reached.
    """
    began = time.perf_counter()
    query = request.scope.get("query_string", b"").decode("latin-1")
    url = httpx.URL(f"{route.url}?{query}" if query else route.url)
    content = request.stream() if body is None and _has_body(request) else body
    made = client.build_request(request.method, url, content=content)
    made.headers = httpx.Headers([*_passed(request.headers.raw, settings), *_own(made.headers, body)])
    try:
        response = await client.send(made, stream=True)
    except httpx.TimeoutException:
        raise Refused(504, "the provider did not answer in time", code="upstream_timeout") from None
    except httpx.HTTPError as error:
        name = type(error).__name__
        raise Refused(502, f"the provider cannot be reached ({name})", code="upstream_unreachable") from None
    told = told_of(request)
    told.upstream_seconds = (told.upstream_seconds or 0.0) + time.perf_counter() - began
    return Upstream(response, response.aiter_raw())


def _has_body(request: Request) -> bool:
    return "content-length" in request.headers or "transfer-encoding" in request.headers


def _passed(headers: Iterable[tuple[bytes, bytes]], settings: Settings) -> list[tuple[bytes, bytes]]:
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


async def begun(upstream: Upstream, *, announced: bool = False) -> Upstream:
    """Read the first piece of an answer, or all of a short error.

    Some providers announce an answer before they look at the request. Where that is so (``announced``) the piece behind
    the announcement is waited for a moment: it may say that the request is refused.
    """
    if upstream.status < 400:
        first = await anext(upstream.chunks, b"")
        if announced and first and _only_announces(first):
            return await _with_next(upstream._replace(read=first))
        return upstream._replace(read=first)
    read = b""
    async for chunk in upstream.chunks:
        read += chunk
        if len(read) > MAX_ERROR:
            break
    return upstream._replace(read=read)


def _only_announces(read: bytes) -> bool:
    """Tell whether nothing was streamed but that an answer is going to come."""
    named = [line.partition(b":")[2].strip() for line in read.splitlines() if line.startswith(b"event:")]
    return bool(named) and all(name in _ANNOUNCEMENTS for name in named)


async def _with_next(upstream: Upstream) -> Upstream:
    """Read what follows an announcement, if it follows at once."""
    task = asyncio.ensure_future(anext(upstream.chunks, b""))
    done, _ = await asyncio.wait({task}, timeout=MOMENT)
    if done:
        return upstream._replace(read=upstream.read + task.result())

    async def rest() -> AsyncIterator[bytes]:
        yield await task
        async for chunk in upstream.chunks:
            yield chunk

    return upstream._replace(chunks=rest())


def answer(upstream: Upstream, headers: Sequence[tuple[str, str]] = ()) -> Response:
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
    response.raw_headers = [*answered(upstream), *((name.encode(), value.encode()) for name, value in headers)]
    return response


def answered(upstream: Upstream, *, without: frozenset[bytes] = frozenset()) -> list[tuple[bytes, bytes]]:
    """Choose the provider's headers that go back."""
    raw = upstream.response.headers.raw
    named = {part.strip().lower() for name, value in raw if name.lower() == b"connection" for part in value.split(b",")}
    return [(name.lower(), value) for name, value in raw if name.lower() not in _HOP | named | without]
