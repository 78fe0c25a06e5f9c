"""Content encodings of requests and responses, decompressed within a limit.

A few hundred kilobytes can decompress to gigabytes, so nothing is decompressed without a limit. A request that the
gateway does not read is forwarded as it came, still compressed. Any other request is forwarded uncompressed.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from starlette.requests import Request

from kompakt.errors import InputError
from kompakt.gateway.errors import GatewayError
from kompakt.version import install_command

_log = logging.getLogger("kompakt.gateway")

READABLE = frozenset(["identity", "gzip", "x-gzip", "deflate"])
"""Encodings of responses that the gateway reads."""

REQUESTS = frozenset(["gzip", "deflate"] + ["zstd"] * (find_spec("zstandard") is not None))
"""Encodings of requests that the gateway reads."""

_CHUNK = 256 * 1024
"""Bytes that zstandard decompresses at a time; it allocates them beforehand."""

ZSTD_WINDOW = 8 * 1024 * 1024
"""Largest zstd window in bytes: the limit that RFC 9659 sets for HTTP."""

_AUTOMATIC = 32 + zlib.MAX_WBITS
"""zlib window bits that detect gzip and zlib headers."""

_MAX_LAYERS = 3
"""Encodings applied one after the other. Servers use one."""

_BODY_KEY = "kompakt-body"
_HEADER = "content-encoding"


def decode_prefix(data: bytes, encodings: Sequence[str], limit: int) -> bytes | None:
    """Undo content encodings as far as the data and the limit go.

    ``encodings`` are in the order in which they were applied. Returns ``None`` when one is unknown or the data is not
    encoded that way.
    """
    applied = [name for name in encodings if name != "identity"]
    if len(applied) > _MAX_LAYERS or not READABLE.issuperset(applied):
        return None
    for name in reversed(applied):
        decoded = _inflate(data, name, limit)
        if decoded is None:
            return None
        data = decoded
    return data[:limit]


def _inflate(data: bytes, name: str, limit: int) -> bytes | None:
    try:
        return zlib.decompressobj(_AUTOMATIC).decompress(data, limit)
    except zlib.error:
        pass
    try:  # some servers send a raw deflate stream without the zlib header
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, limit) if name == "deflate" else None
    except zlib.error:
        return None


# --- Whole bodies ---


class UnknownEncoding(InputError):
    """A content encoding that the gateway does not support; the message is its name."""


class BadEncoding(InputError):
    """Data that does not match its content-encoding header."""


class TooLong(InputError):
    """Data whose decompressed size exceeds the limit."""


def decode(data: bytes, encodings: Sequence[str], limit: int) -> bytes:
    """Undo content encodings, given in the order in which they were applied.

    Raises:
        UnknownEncoding: one of them is unknown, or there are too many.
        BadEncoding: the data is not encoded that way, or is truncated.
        TooLong: the decompressed data exceeds the limit.
    """
    applied = [name for name in encodings if name != "identity"]
    readers = [_reader(name) for name in applied]
    if len(applied) > _MAX_LAYERS:
        raise UnknownEncoding(", ".join(applied))
    for read in reversed(readers):
        data = read(data, limit)
    return data


def _reader(name: str) -> Callable[[bytes, int], bytes]:
    if name == "zstd":
        if name in REQUESTS:
            return _unzstd
        _log_missing_zstandard()
    if name in READABLE:
        return _gunzip if name.endswith("gzip") else _undeflate
    raise UnknownEncoding(repr(name))


@cache
def _log_missing_zstandard() -> None:
    """Log once how to read the encoding of a client."""
    _log.warning("a client sends zstd, which needs zstandard; install it with: %s", install_command("gateway"))


def _gunzip(data: bytes, limit: int) -> bytes:
    # A gzip file may consist of several members.
    out: list[bytes] = []
    size = 0
    while data:
        made, data = _member(data, limit - size, 16 + zlib.MAX_WBITS)
        out.append(made)
        size += len(made)
    return b"".join(out)


def _undeflate(data: bytes, limit: int) -> bytes:
    # Some clients send a raw deflate stream without the zlib header.
    try:
        return _member(data, limit, zlib.MAX_WBITS)[0]
    except BadEncoding:
        return _member(data, limit, -zlib.MAX_WBITS)[0]


def _member(data: bytes, limit: int, bits: int) -> tuple[bytes, bytes]:
    """Decompress one stream; return its content and the bytes after it."""
    inflater = zlib.decompressobj(bits)
    try:
        made = inflater.decompress(data, limit + 1)
    except zlib.error as error:
        raise BadEncoding(str(error)) from None
    if len(made) > limit:
        raise TooLong
    if not inflater.eof:
        raise BadEncoding("the data is truncated")
    return made, inflater.unused_data


def _unzstd(data: bytes, limit: int) -> bytes:
    zstandard: Any = import_module("zstandard")
    reader = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).stream_reader(data, read_across_frames=True)
    out = bytearray()
    try:
        while chunk := reader.read(_CHUNK):
            out += chunk
            if len(out) > limit:
                raise TooLong
    except zstandard.ZstdError as error:
        raise BadEncoding(str(error)) from None
    return bytes(out)


def listed(header: str) -> list[str]:
    """Split a ``Content-Encoding`` header."""
    return [name.strip().lower() for name in header.split(",") if name.strip()]


def readable(accepted: str) -> str:
    """Reduce an ``Accept-Encoding`` header to the encodings that the gateway reads."""
    offers = [offer.strip() for offer in accepted.split(",")]
    kept = [offer for offer in offers if offer.partition(";")[0].strip().lower() in READABLE]
    return ", ".join(kept) or "identity"


# --- Request bodies ---


async def read_body(request: Request, limit: int) -> bytes:
    """Return the decompressed body of a request; the result is cached.

    Raises:
        GatewayError: the encoding is unsupported, the body does not match it, or the body exceeds the limit.
    """
    found = request.scope.get(_BODY_KEY)
    if found is None:
        found = request.scope[_BODY_KEY] = await _decoded(request, limit)
    return found


async def _decoded(request: Request, limit: int) -> bytes:
    body = await request.body()
    applied = listed(",".join(request.headers.getlist(_HEADER)))
    if not body or not [name for name in applied if name != "identity"]:
        return body
    try:
        return await asyncio.to_thread(decode, body, applied, limit)
    except UnknownEncoding as error:
        accepted = ", ".join(sorted(REQUESTS))
        message = f"content-encoding {error} is not supported; use one of {accepted}, or none"
        raise GatewayError(415, message, code="unsupported_encoding", headers={"accept-encoding": accepted}) from None
    except TooLong:
        message = f"the decompressed body exceeds the gateway's limit of {limit:,} bytes (--max-body)"
        raise GatewayError(413, message, code="body_too_large") from None
    except BadEncoding as error:
        message = f"the body does not match its content-encoding: {error}"
        raise GatewayError(400, message, code="invalid_encoding") from None


def uncompressed(request: Request) -> Request:
    """Return the request without its ``content-encoding`` header."""
    if _HEADER not in request.headers:
        return request
    headers = [pair for pair in request.scope["headers"] if pair[0] != _HEADER.encode()]
    return Request({**request.scope, "headers": headers}, request.receive)
