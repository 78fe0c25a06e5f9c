"""Who may see what the gateway knows: the session API, ``/inspect`` and ``/metrics``.

Either a key, or the machine itself. A browser on that machine is not to be trusted with any page's wishes, so the Host
must be a name of the loopback and the Origin, where there is one, must be the gateway's own: a foreign name that
resolves to 127.0.0.1 gets nothing. What passed through another proxy is not from the machine itself.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from starlette.requests import Request

from kompakt.gateway.configuration import Settings
from kompakt.gateway.keeping import Owner
from kompakt.gateway.refusing import Refused
from kompakt.gateway.tenants import ANONYMOUS, KEY_HEADER, Tenant, credential_of, is_admin, tenant_of, tenant_of_key

_LOOPBACK = re.compile(r"127(?:\.\d{1,3}){3}|::1|::ffff:127(?:\.\d{1,3}){3}")
_NAMES = re.compile(r"(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])(?::(?P<port>\d{1,5}))?", re.IGNORECASE)
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


class Access(NamedTuple):
    """What somebody may see."""

    owner: Owner | None
    """Whose sessions; ``None`` for those of all tenants."""
    is_keyless: bool = False
    """Whether tenants have keys and none was shown."""


def access_of(request: Request, settings: Settings) -> Access:
    """Say what whoever asks may see.

    Raises:
        Refused: nothing.
    """
    key = request.headers.get(KEY_HEADER) or _bearer(request)
    if key and (settings.keys or settings.admin_keys):
        if is_admin(key, settings):
            return Access(None)
        tenant = tenant_of_key(key, settings)
        if tenant is not None:
            return Access(Owner.of(Tenant(tenant, "key")))
        if KEY_HEADER in request.headers:
            raise Refused(401, f"the key in {KEY_HEADER} is not known", code="invalid_kompakt_key")
    if not is_local(request):
        raise Refused(
            403,
            f"this is shown to a key in {KEY_HEADER}, or on the gateway's own machine under the name localhost",
            code="not_allowed",
        )
    return _local(request, settings)


def _bearer(request: Request) -> str:
    kind, _, rest = request.headers.get("authorization", "").partition(" ")
    return rest.strip() if kind.lower() == "bearer" else ""


def _local(request: Request, settings: Settings) -> Access:
    """Say whose sessions the machine itself sees: all, unless tenants are told apart by more than a credential."""
    if settings.tenant_header is not None and request.headers.get(settings.tenant_header):
        return Access(Owner.of(tenant_of(request.headers, {}, settings)))
    if settings.keys or settings.tenant_header is not None:
        return Access(Owner.of(Tenant(ANONYMOUS, "none")), is_keyless=True)
    if credential_of(request.headers, request.query_params):
        return Access(Owner.of(tenant_of(request.headers, request.query_params, settings)))
    return Access(None)


def is_local(request: Request) -> bool:
    """Tell whether a request is from this machine and from nobody who only pretends."""
    headers = request.headers
    if request.client is None or not _LOOPBACK.fullmatch(request.client.host):
        return False
    if any(name in headers for name in _FORWARDED) or not _NAMES.fullmatch(headers.get("host", "")):
        return False
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return False
    origin = headers.get("origin")
    return origin is None or origin.lower() == f"{request.url.scheme}://{headers['host'].lower()}"
