"""The body of a request as JSON bytes: decompressed where the client compressed it, within the limit on bodies.

A request that the gateway does not look into goes upstream as it came, still compressed. Any other goes uncompressed.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from kompakt.gateway.errors import GatewayError
from kompakt.gateway.http import encodings
from kompakt.gateway.http.encodings import BadEncoding, TooLong, UnknownEncoding

_KEY = "kompakt-body"
_HEADER = "content-encoding"


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body of a request, decompressed; later calls cost nothing.

    Raises:
        GatewayError: it is compressed in a way that is not known, is not what its header says, or exceeds the limit.
    """
    found = request.scope.get(_KEY)
    if found is None:
        found = request.scope[_KEY] = await _decoded(request, limit)
    return found


async def _decoded(request: Request, limit: int) -> bytes:
    body = await request.body()
    applied = encodings.listed(",".join(request.headers.getlist(_HEADER)))
    if not body or not [name for name in applied if name != "identity"]:
        return body
    try:
        return await asyncio.to_thread(encodings.decode, body, applied, limit)
    except UnknownEncoding as error:
        accepted = ", ".join(sorted(encodings.REQUESTS))
        message = f"content-encoding {error} is not one that the gateway reads; use one of {accepted}, or none"
        raise GatewayError(415, message, code="unsupported_encoding", headers={"accept-encoding": accepted}) from None
    except TooLong:
        message = f"the body has more than {limit:,} bytes when decompressed; the gateway's --max-body allows no more"
        raise GatewayError(413, message, code="body_too_large") from None
    except BadEncoding as error:
        raise GatewayError(
            400, f"the body is not what content-encoding says: {error}", code="invalid_encoding"
        ) from None


def uncompressed(request: Request) -> Request:
    """Return a request whose headers fit the decompressed body."""
    if _HEADER not in request.headers:
        return request
    headers = [pair for pair in request.scope["headers"] if pair[0] != _HEADER.encode()]
    return Request({**request.scope, "headers": headers}, request.receive)
