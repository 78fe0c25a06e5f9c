"""Upstreams: the provider that a request goes to, the request to it, and its response.

The path alone determines the endpoint. It may start with the name of an upstream. Nothing in a request can name a host,
so only configured upstreams can be reached.

Only headers between client and gateway are removed from a request; the client's credential stays in its own header. A
response is passed on chunk by chunk as it arrives, still compressed if it was.

A provider can fail at any point. This module turns every exception of httpx into ``GatewayError``: the client gets 502
or 504 in its own protocol if nothing was sent to it yet, and a closed connection otherwise.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeAlias, cast
from urllib.parse import unquote

import anyio
import httpcore
import httpx
import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Scope

from kompakt.gateway.config import GatewayConfig, Upstream
from kompakt.gateway.errors import GatewayError
from kompakt.gateway.http import encodings
from kompakt.gateway.http.access_log import RequestLog, request_log
from kompakt.gateway.tenants import is_private

# --- Routes ---

Name: TypeAlias = Literal["chat", "responses", "messages", "count_tokens", "generate", "stream", "models", "other"]
"""The kind of an endpoint; also a label of the metrics."""

COMPACTED = frozenset[str](["chat", "responses", "messages", "count_tokens", "generate", "stream"])

_ENDPOINTS: tuple[tuple[re.Pattern[str], Name, str], ...] = (
    (re.compile(r".*/chat/completions"), "chat", "openai-chat"),
    (re.compile(r".*/responses"), "responses", "openai-responses"),
    (re.compile(r".*/messages/count_tokens"), "count_tokens", "anthropic"),
    (re.compile(r"(?:/v\d+)?/messages"), "messages", "anthropic"),
    (re.compile(r".*/models/(?P<model>[^/]+):generateContent"), "generate", "gemini"),
    (re.compile(r".*/models/(?P<model>[^/]+):streamGenerateContent"), "stream", "gemini"),
)
_PROTOCOLS = {"openai-chat": "openai", "openai-responses": "openai", "anthropic": "anthropic", "gemini": "gemini"}
_SUSPECT = re.compile(r"[%\\;]|/\.")
_PATH = re.compile(r"/[\x21-\x7e]*")


class Endpoint(NamedTuple):
    """The endpoint of a path."""

    name: Name
    format: str | None
    model: str | None = None


class Route(msgspec.Struct, frozen=True):
    """The destination of one request."""

    name: Name
    format: str | None
    """The format of bodies and errors; ``None`` for endpoints without a conversation."""
    upstream: Upstream
    path: str
    """The path at the upstream, with the client's escapes and without the upstream's name."""
    model: str | None = None
    """The model, if the path contains it."""
    protocol: str = "openai"
    """The provider of the called endpoint: openai, anthropic or gemini."""

    @property
    def url(self) -> str:
        """The full URL without the query."""
        return f"{self.upstream.url}{self.path}"

    @property
    def compacts(self) -> bool:
        """Whether requests of this kind hold a history."""
        return self.name in COMPACTED


def endpoint_of(path: str) -> Endpoint:
    for pattern, name, format in _ENDPOINTS:
        found = pattern.fullmatch(path)
        if found:
            return Endpoint(name, format, found.groupdict().get("model"))
    if path.startswith("/v1beta/"):
        return Endpoint("models" if path.startswith("/v1beta/models") else "other", "gemini")
    if path.startswith("/v1/messages/"):
        return Endpoint("other", "anthropic")
    return Endpoint("models" if path.startswith("/v1/models") else "other", None)


def error_format(path: str, settings: GatewayConfig) -> str | None:
    """Return the format of errors for any path, valid or not."""
    return endpoint_of(_split(path, settings)[1]).format


def route_of(path: str, headers: Mapping[str, str], settings: GatewayConfig) -> Route:
    """Return the route of a request.

    Raises:
        GatewayError: the path leaves the upstream's base path, or no upstream is configured for it.
    """
    if path == "/kompakt" or path.startswith("/kompakt/"):
        raise GatewayError(404, "no such gateway endpoint; see /kompakt/openapi.json", code="not_found")
    if not _PATH.fullmatch(path) or _leaves(path):
        raise GatewayError(400, "the path has a '..' segment or a character that is not allowed", code="invalid_path")
    named, rest = _split(path, settings)
    endpoint = endpoint_of(rest)
    protocol = _PROTOCOLS[endpoint.format] if endpoint.format else _protocol_of(headers)
    upstream = named or settings.upstreams.get(protocol) or _only(settings)
    if upstream is None:
        raise GatewayError(
            404, f"no upstream is configured for {protocol}; start with --upstream {protocol}=URL", code="no_upstream"
        )
    model = unquote(endpoint.model) if endpoint.model else None
    return Route(endpoint.name, endpoint.format, upstream, rest, model, protocol)


def _split(path: str, settings: GatewayConfig) -> tuple[Upstream | None, str]:
    """Split a path into the upstream that it names and the rest."""
    name, slash, rest = path[1:].partition("/")
    upstream = settings.upstreams.get(name)
    return (None, path) if upstream is None or not slash else (upstream, slash + rest)


def _only(settings: GatewayConfig) -> Upstream | None:
    return next(iter(settings.upstreams.values())) if len(settings.upstreams) == 1 else None


def _leaves(path: str) -> bool:
    """Return whether a path contains ``.`` or ``..`` segments, also when escaped several times."""
    if not _SUSPECT.search(path):
        return False
    for _ in range(3):
        if {".", ".."}.intersection(re.split(r"[/\\;]", path)):
            return True
        path = unquote(path)
    return "\\" in path or not path.isprintable()


def _protocol_of(headers: Mapping[str, str]) -> str:
    """Guess the provider of an endpoint that several providers have, by the headers of their clients."""
    if "anthropic-version" in headers or "x-api-key" in headers:
        return "anthropic"
    return "gemini" if "x-goog-api-key" in headers else "openai"


# --- Requests and responses ---

_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer".split()
    + b"transfer-encoding upgrade".split()
)
"""Hop-by-hop headers (RFC 9110, section 7.6.1)."""

MAX_ERROR = 1_000_000
"""Bytes of an error that are read to classify it, before and after decompression. The rest is passed on unread."""

_OPENED = "kompakt.upstreams"
"""Key of the ASGI scope with the provider responses that were opened for a request."""

ERROR_DELAY = 0.2
"""Seconds to wait for an error after an announcement."""

_EMPTY = (204, 304)
"""Statuses whose responses have no body, whatever their headers say."""

_ANNOUNCEMENTS = (b"response.created", b"response.queued", b"response.in_progress")
"""Events that the Responses API sends before it validates the request."""


class UpstreamResponse(NamedTuple):
    """A provider's response whose headers have arrived."""

    response: httpx.Response
    chunks: AsyncIterator[bytes]
    read: bytes = b""
    """The bytes that were read already."""

    @property
    def status(self) -> int:
        return self.response.status_code

    def text(self) -> str:
        """Return ``read`` as text, decompressed up to ``MAX_ERROR`` bytes; empty when it cannot be decoded."""
        applied = encodings.listed(self.response.headers.get("content-encoding", ""))
        decoded = encodings.decode_prefix(self.read, applied, MAX_ERROR)
        return (decoded or b"").decode("utf-8", "replace")


async def send(
    client: httpx.AsyncClient, request: Request, route: Route, settings: GatewayConfig, body: bytes | None
) -> UpstreamResponse:
    """Send a request upstream. If ``body`` is ``None``, the client's body is streamed.

    Raises:
        GatewayError: the provider is unreachable, or its response is not HTTP.
    """
    query = request.scope.get("query_string", b"").decode("latin-1")
    try:
        url = httpx.URL(f"{route.url}?{query}" if query else route.url)
    except httpx.InvalidURL:
        raise GatewayError(400, "the path or the query is not a valid URL", code="invalid_path") from None
    content = request.stream() if body is None and has_body(request) else body
    made = client.build_request(request.method, url, content=content)
    made.headers = httpx.Headers(
        [*forwarded_headers(request.headers.raw, settings), *_connection_headers(made.headers, body)]
    )
    if body is not None and "accept-encoding" in made.headers:
        made.headers["accept-encoding"] = encodings.readable(made.headers["accept-encoding"])
    log = request_log(request)
    with _failures("the provider is unreachable", code="upstream_unreachable"), log.waiting():
        response = await client.send(made, stream=True)
    request.scope.setdefault(_OPENED, []).append(response)
    if response.status_code < 200:
        raise GatewayError(502, "the provider tried to switch protocols", code="upstream_unreachable")
    return UpstreamResponse(response, _chunks(response, log))


@asynccontextmanager
async def closing_responses(scope: Scope) -> AsyncGenerator[None]:
    """Close all provider responses of a request when it ends."""
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
    """Turn exceptions of httpx into ``GatewayError``."""
    try:
        yield
    except httpx.TimeoutException as error:
        message = f"the provider did not answer in time ({type(error).__name__}, see --upstream-timeout)"
        raise GatewayError(504, message, code="upstream_timeout") from None
    except (httpx.HTTPError, httpx.StreamError) as error:
        raise GatewayError(502, f"{message} ({type(error).__name__})", code=code) from None


async def _chunks(response: httpx.Response, log: RequestLog) -> AsyncIterator[bytes]:
    """Yield the body. The waits before the client's response starts and for the first chunk are the provider's time."""
    chunks = response.aiter_raw()
    with _failures("the provider broke off its answer", code="upstream_broken"):
        while True:
            with log.waiting():
                chunk = await anext(chunks, None)
            if chunk is None:
                return
            yield chunk
            if log.status:
                break
        async for chunk in chunks:
            yield chunk


def has_body(request: Request) -> bool:
    return "content-length" in request.headers or "transfer-encoding" in request.headers


def _end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers that are not hop-by-hop, with names in lower case."""
    pairs = [(name.lower(), value) for name, value in headers]
    named = {part.strip().lower() for name, value in pairs if name == b"connection" for part in value.split(b",")}
    return [(name, value) for name, value in pairs if name not in _HOP and name not in named]


def forwarded_headers(headers: Iterable[tuple[bytes, bytes]], settings: GatewayConfig) -> list[tuple[bytes, bytes]]:
    """Return the client's headers that go upstream."""
    return [
        (name, value)
        for name, value in _end_to_end(headers)
        if name not in (b"host", b"content-length") and not is_private(name.decode("latin-1"), settings)
    ]


def _connection_headers(headers: httpx.Headers, body: bytes | None) -> list[tuple[bytes, bytes]]:
    """Return the headers of httpx that belong to the upstream connection."""
    wanted = (b"host", b"content-length") if body is not None else (b"host", b"content-length", b"transfer-encoding")
    return [(name, value) for name, value in headers.raw if name.lower() in wanted]


async def peek(upstream: UpstreamResponse, *, announced: bool = False) -> UpstreamResponse:
    """Read the first chunk of a response, or the whole of a short error.

    The Responses API announces an answer before it validates the request (``announced``). Then this waits
    ``ERROR_DELAY`` seconds for the next chunk, which may be an error.

    Raises:
        GatewayError: the provider breaks off or times out; nothing has been sent to the client yet.
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
    """Return whether the stream holds only announcements so far."""
    named = [line.partition(b":")[2].strip() for line in read.splitlines() if line.startswith(b"event:")]
    return bool(named) and all(name in _ANNOUNCEMENTS for name in named)


async def _with_next(upstream: UpstreamResponse) -> UpstreamResponse:
    """Read the next chunk if it arrives within ``ERROR_DELAY`` seconds."""
    task = asyncio.ensure_future(anext(upstream.chunks, b""))
    # Retrieve the exception even if nobody awaits the task any more; asyncio would log it otherwise.
    task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
    try:
        done, _ = await asyncio.wait({task}, timeout=ERROR_DELAY)
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
    """Return the provider's response for the client."""

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
    """Return the provider's headers for the client, without those of the gateway and those that contradict the body."""
    left_out = without | {b"content-length"} if upstream.status in _EMPTY else without
    return [
        (name, value)
        for name, value in _end_to_end(upstream.response.headers.raw)
        if name not in left_out and not name.startswith(b"x-kompakt-")
    ]


# --- Connections ---
# The connection pool of httpcore checks all its connections whenever a request starts or ends. With hundreds of answers
# open, that takes more time than everything else the gateway does. This pool looks only at the idle connection that it
# takes and at the oldest idle ones, so the cost of a request does not depend on how many others are open.

KEEP_ALIVE = 5.0
"""Seconds after which an idle connection is closed."""

_Origin: TypeAlias = tuple[bytes, bytes, int]


class ProviderTransport(httpx.AsyncHTTPTransport):
    """A transport of httpx over ``ConnectionPool``. It ignores proxy variables."""

    def __init__(self, *, max_idle: int) -> None:
        context = httpx.create_ssl_context(trust_env=False)
        super().__init__(verify=context, trust_env=False)
        self._pool = cast("httpcore.AsyncConnectionPool", ConnectionPool(context, max_idle=max_idle))


class ConnectionPool:
    """Idle connections by origin. It offers what ``httpx.AsyncHTTPTransport`` uses of a pool."""

    def __init__(self, context: ssl.SSLContext, *, max_idle: int) -> None:
        self._context, self._max_idle = context, max_idle
        self._idle: dict[_Origin, deque[httpcore.AsyncHTTPConnection]] = {}
        """Least recently used first."""
        self._used: set[httpcore.AsyncHTTPConnection] = set()

    @property
    def idle(self) -> int:
        """Number of idle connections."""
        return sum(map(len, self._idle.values()))

    async def __aenter__(self) -> ConnectionPool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def handle_async_request(self, request: httpcore.Request) -> httpcore.Response:
        """Send a request on the idle connection that was used last, or on a new one."""
        while True:
            connection = await self._take(request.url.origin)
            self._used.add(connection)
            async with AsyncExitStack() as unfinished:
                unfinished.push_async_callback(self._drop, connection)
                try:
                    response = await connection.handle_async_request(request)
                except httpcore.ConnectionNotAvailable:  # closed by the provider, nothing was sent
                    continue
                unfinished.pop_all()
            content = _Content(cast("Any", response.stream), connection, _key(request.url.origin), self)
            return httpcore.Response(
                response.status, headers=response.headers, content=content, extensions=response.extensions
            )

    async def _take(self, origin: httpcore.Origin) -> httpcore.AsyncHTTPConnection:
        await self._close_expired()
        idle = self._idle.get(_key(origin))
        while idle:
            connection = idle.pop()
            if connection.is_available() and not connection.has_expired():
                return connection
            await self._drop(connection)
        return httpcore.AsyncHTTPConnection(origin, ssl_context=self._context, keepalive_expiry=KEEP_ALIVE)

    async def _close_expired(self) -> None:
        for key, idle in list(self._idle.items()):
            while idle and idle[0].has_expired():
                await self._drop(idle.popleft())
            if not idle and self._idle.get(key) is idle:  # else another task has removed it, and may have a new one
                del self._idle[key]

    async def release(self, connection: httpcore.AsyncHTTPConnection, origin: _Origin) -> None:
        """Keep a connection whose response was read completely, and close it otherwise."""
        if connection.is_idle() and not connection.is_closed() and self.idle < self._max_idle:
            self._used.discard(connection)
            self._idle.setdefault(origin, deque()).append(connection)
        else:
            await self._drop(connection)

    async def _drop(self, connection: httpcore.AsyncHTTPConnection) -> None:
        self._used.discard(connection)
        with anyio.CancelScope(shield=True):
            await connection.aclose()

    async def aclose(self) -> None:
        """Close all connections, also those in use."""
        idle = [connection for listed in self._idle.values() for connection in listed]
        self._idle.clear()
        for connection in (*idle, *self._used):
            await self._drop(connection)


class _Content:
    """The body of a response, which releases its connection at the end."""

    def __init__(
        self, stream: Any, connection: httpcore.AsyncHTTPConnection, origin: _Origin, pool: ConnectionPool
    ) -> None:
        self._stream, self._connection, self._origin, self._pool = stream, connection, origin, pool
        self._is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._stream:
                yield part
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        with anyio.CancelScope(shield=True):
            await self._stream.aclose()
            await self._pool.release(self._connection, self._origin)


def _key(origin: httpcore.Origin) -> _Origin:
    return origin.scheme, origin.host, origin.port
