"""Who may use the inspector: a person on this machine who has the token.

The token is in the printed URL. The page exchanges it for a cookie, so that it does not stay in the address bar. A page
of another site cannot use the cookie: it is ``SameSite=Strict``, requests of other origins are refused, and so are
requests to another host name, which stops DNS rebinding.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from typing import NamedTuple

from starlette.requests import Request

from kompakt.inspector.errors import InspectorError

_LOOPBACK = re.compile(r"(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])(?::\d{1,5})?")

WRITE_HEADER = "x-kompakt-inspect"
"""Header of every request that changes something. A form of another site cannot send it."""

MAX_BODY = 2_000_000
"""Bytes of the largest request."""


class TokenAccess(NamedTuple):
    """Access with a token."""

    token: str
    port: int
    hosts: tuple[str, ...] = ()
    """Names besides those of the loopback under which the inspector may be reached."""

    @property
    def cookie(self) -> str:
        """The name of the cookie. Cookies of one host are sent to all of its ports, so the port is in the name."""
        return f"kompakt_inspect_{self.port}"

    def check(self, request: Request) -> None:
        """Refuse a request of another site, to another host, or without the token.

        Raises:
            InspectorError: the request is refused.
        """
        check_host(request, self.hosts)
        check_origin(request)
        if not self.knows_token(request):
            raise InspectorError(
                403, "no_token", "open the URL that `kompakt inspect` printed; it contains the token of this inspector"
            )

    def knows_token(self, request: Request) -> bool:
        """Return whether the request has the token: in its cookie, or as a bearer token."""
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = [request.cookies.get(self.cookie, ""), bearer if kind.lower() == "bearer" else ""]
        return any(self.is_token(one) for one in given)

    def is_token(self, text: str) -> bool:
        """Compare in constant time."""
        return hmac.compare_digest(text.encode("utf-8", "replace"), self.token.encode())


def check_host(request: Request, hosts: Iterable[str] = ()) -> None:
    """Refuse a request that was sent to another host name.

    Raises:
        InspectorError: the Host header is not a name of this machine.
    """
    host = request.headers.get("host", "").lower()
    if _LOOPBACK.fullmatch(host) is None and host.rpartition(":")[0] not in hosts and host not in hosts:
        raise InspectorError(403, "host_not_allowed", "open the inspector at 127.0.0.1 or localhost")


def check_origin(request: Request) -> None:
    """Refuse a request that a page of another origin sends.

    Raises:
        InspectorError: the request comes from another origin.
    """
    headers = request.headers
    origin = headers.get("origin")
    own = f"{request.url.scheme}://{headers.get('host', '').lower()}"
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") or (origin is not None and origin != own):
        raise InspectorError(403, "origin_not_allowed", "pages of other sites may not use the inspector")


async def read_json(request: Request) -> bytes:
    """Return the body of a request that changes something or starts work.

    Raises:
        InspectorError: a header is missing, or the body is too large.
    """
    if request.headers.get(WRITE_HEADER) != "1":
        raise InspectorError(403, "header_missing", "send the header X-Kompakt-Inspect: 1")
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise InspectorError(415, "not_json", "send a JSON body with the content type application/json")
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY:
            raise InspectorError(
                413, "too_large", f"the request is larger than {MAX_BODY:,} bytes; send a shorter text"
            )
    return bytes(data)
