"""Routes: the endpoint of a request, its format, and the configured upstream.

The path alone determines the endpoint. It may start with the name of an upstream. Nothing in a request can name a host,
so only configured upstreams can be reached.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias
from urllib.parse import unquote

import msgspec

from kompakt.gateway.config import GatewayConfig, Upstream
from kompakt.gateway.errors import GatewayError

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
        raise GatewayError(400, "the path is not valid", code="invalid_path")
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
