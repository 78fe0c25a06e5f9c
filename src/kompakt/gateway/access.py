"""Access control: who may send requests to a local gateway, and who may see sessions, ``/inspect`` and ``/metrics``.

Any web page in a browser on the same machine can send requests to a gateway on the loopback: to 127.0.0.1 directly, or
to a foreign name that resolves to it (DNS rebinding). On every route the Host must therefore be a loopback name or a
configured one, and the Origin, if present, the gateway's own or a configured one. Programs other than browsers send no
Origin and are not affected. A valid gateway key passes both checks, because no web page knows it.

Sessions and metrics are visible to a key, or to clients on the same machine. A request that passed through another
proxy does not count as local.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

from kompakt.gateway.config import GatewayConfig
from kompakt.gateway.errors import GatewayError
from kompakt.gateway.storage.storage import Owner
from kompakt.gateway.tenants import (
    ANONYMOUS,
    KEY_HEADER,
    Tenant,
    credential_of,
    is_admin,
    tenant_of,
    tenant_of_key,
)

_LOOPBACK = re.compile(r"127(?:\.\d{1,3}){3}|::1|::ffff:127(?:\.\d{1,3}){3}")
_NAMES = re.compile(r"(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])(?::(?P<port>\d{1,5}))?", re.IGNORECASE)
_LOCAL = re.compile(rf"localhost|{_LOOPBACK.pattern}", re.IGNORECASE)
_FROM_CONTAINERS = ("host.docker.internal", "host.containers.internal")
"""Names under which containers reach their host. They cannot be registered, so no web page can use them."""
_PORT = re.compile(r":\d+$")
_DEFAULT_PORT = re.compile(r":(?:80|443)$")
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


class Access(NamedTuple):
    """Which sessions a request may see."""

    owner: Owner | None
    """The owner of the sessions; ``None`` for the sessions of all tenants."""
    is_keyless: bool = False
    """Whether keys are configured and the request has none."""


def check_site(scope: Scope, settings: GatewayConfig) -> None:
    """Reject requests that a foreign web page sends to a gateway on the loopback.

    Raises:
        GatewayError: the Host is not a name of this gateway, or the Origin is a foreign site.
    """
    if not (settings.allowed_hosts or is_loopback(settings.host) or is_loopback((scope.get("server") or ("",))[0])):
        return
    headers = Headers(scope=scope)
    if _has_key(headers, settings):
        return
    host = headers.get("host", "").lower()
    if host and not _is_own(host, settings):
        raise GatewayError(
            403,
            "the Host header is not a name of this gateway; allow a name with --allow-host NAME",
            code="host_not_allowed",
        )
    origin = headers.get("origin", "").lower()
    if origin in settings.allowed_origins:
        return
    site = origin.partition("://")[2]
    is_foreign = bool(origin) and _DEFAULT_PORT.sub("", site) != _DEFAULT_PORT.sub("", host)
    if is_foreign or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise GatewayError(
            403,
            "web pages of other origins may not use this gateway; allow one with --allow-origin ORIGIN",
            code="origin_not_allowed",
        )


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable from this machine only."""
    return _LOCAL.fullmatch(host) is not None


def _is_own(host: str, settings: GatewayConfig) -> bool:
    allowed = {*settings.allowed_hosts, *_FROM_CONTAINERS}
    return bool(_NAMES.fullmatch(host)) or not allowed.isdisjoint(["*", host, _PORT.sub("", host)])


def _has_key(headers: Headers, settings: GatewayConfig) -> bool:
    """Return whether a request has a valid gateway key."""
    if not settings.keys and not settings.admin_keys:
        return False
    key = headers.get(KEY_HEADER) or _bearer(headers)
    return bool(key) and (is_admin(key, settings) or tenant_of_key(key, settings) is not None)


def access_of(request: Request, settings: GatewayConfig) -> Access:
    """Return which sessions a request may see.

    Raises:
        GatewayError: the key is invalid, or there is none and the client is on another machine.
    """
    key = request.headers.get(KEY_HEADER) or _bearer(request.headers)
    if key and (settings.keys or settings.admin_keys):
        if is_admin(key, settings):
            return Access(None)
        tenant = tenant_of_key(key, settings)
        if tenant is not None:
            return Access(Owner.of(Tenant(tenant, "key")))
        if KEY_HEADER in request.headers:
            raise GatewayError(401, f"the key in {KEY_HEADER} is invalid", code="invalid_kompakt_key")
    if not is_local(request):
        raise GatewayError(
            403,
            f"access requires a key in {KEY_HEADER}, or a client on the gateway's machine that connects to localhost",
            code="not_allowed",
        )
    return _local(request, settings)


def _bearer(headers: Headers) -> str:
    kind, _, rest = headers.get("authorization", "").partition(" ")
    return rest.strip() if kind.lower() == "bearer" else ""


def _local(request: Request, settings: GatewayConfig) -> Access:
    """Return which sessions a local client sees: all, unless keys or a tenant header are configured."""
    if settings.tenant_header is not None and request.headers.get(settings.tenant_header):
        return Access(Owner.of(tenant_of(request.headers, {}, settings)))
    if settings.keys or settings.tenant_header is not None:
        return Access(Owner.of(Tenant(ANONYMOUS, "none")), is_keyless=True)
    if credential_of(request.headers, request.query_params):
        return Access(Owner.of(tenant_of(request.headers, request.query_params, settings)))
    return Access(None)


def is_local(request: Request) -> bool:
    """Return whether a request comes from this machine, directly and not on behalf of a web page."""
    headers = request.headers
    if request.client is None or not _LOOPBACK.fullmatch(request.client.host):
        return False
    if any(name in headers for name in _FORWARDED) or not _NAMES.fullmatch(headers.get("host", "")):
        return False
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return False
    origin = headers.get("origin")
    return origin is None or origin.lower() == f"{request.url.scheme}://{headers['host'].lower()}"
