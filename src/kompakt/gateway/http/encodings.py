"""Content encodings that the gateway can read, and decompression that never produces more than it is asked for.

A few hundred kilobytes can decompress to gigabytes, so nothing that comes from outside is decompressed without a limit.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from kompakt.errors import InputError

READABLE = frozenset(["identity", "gzip", "x-gzip", "deflate"])
"""Encodings of answers that are read."""

REQUESTS = frozenset(["gzip", "deflate", "zstd"])
"""Encodings of requests that are read."""

_PIECE = 256 * 1024
"""Bytes that are decompressed at once where the library allocates them beforehand."""

ZSTD_WINDOW = 8 * 1024 * 1024
"""Bytes that a zstd stream may look back: what RFC 9659 allows for HTTP."""

_AUTOMATIC = 32 + zlib.MAX_WBITS
"""zlib reads the header and accepts both gzip and zlib."""

_MAX_LAYERS = 3
"""Encodings applied one after the other; no server uses more than one."""


def decode_prefix(data: bytes, encodings: Sequence[str], limit: int) -> bytes | None:
    """Undo content encodings, as far as the data and the limit go.

    ``encodings`` are listed in the order in which they were applied. ``None`` means that one of them is unknown or that
    the data is not encoded like this.
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
    try:  # some servers send a bare deflate stream
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, limit) if name == "deflate" else None
    except zlib.error:
        return None


# --- whole bodies -------------------------------------------------------------------------------------------------


class UnknownEncoding(InputError):
    """A content encoding that the gateway does not read; the message is its name."""


class BadEncoding(InputError):
    """Data that is not encoded as its header says."""


class TooLong(InputError):
    """Data that decompresses to more than the limit."""


def decode(data: bytes, encodings: Sequence[str], limit: int) -> bytes:
    """Undo content encodings, listed in the order in which they were applied; never produce more than the limit.

    Raises:
        UnknownEncoding: one of them is not known, or there are too many.
        BadEncoding: the data is not encoded like this, or is cut off.
        TooLong: the data decompresses to more than the limit.
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
        return _unzstd
    if name in READABLE:
        return _gunzip if name.endswith("gzip") else _undeflate
    raise UnknownEncoding(repr(name))


def _gunzip(data: bytes, limit: int) -> bytes:
    """Read all members of a gzip file."""
    out: list[bytes] = []
    size = 0
    while data:
        made, data = _member(data, limit - size, 16 + zlib.MAX_WBITS)
        out.append(made)
        size += len(made)
    return b"".join(out)


def _undeflate(data: bytes, limit: int) -> bytes:
    """Read a zlib stream, or a bare one, as some clients send it."""
    try:
        return _member(data, limit, zlib.MAX_WBITS)[0]
    except BadEncoding:
        return _member(data, limit, -zlib.MAX_WBITS)[0]


def _member(data: bytes, limit: int, bits: int) -> tuple[bytes, bytes]:
    """Read one stream; return what it holds and what follows it."""
    inflater = zlib.decompressobj(bits)
    try:
        made = inflater.decompress(data, limit + 1)
    except zlib.error as error:
        raise BadEncoding(str(error)) from None
    if len(made) > limit:
        raise TooLong
    if not inflater.eof:
        raise BadEncoding("it is cut off")
    return made, inflater.unused_data


def _unzstd(data: bytes, limit: int) -> bytes:
    try:
        zstandard: Any = import_module("zstandard")
    except ImportError:
        raise UnknownEncoding("'zstd' (install zstandard to read it)") from None
    reader = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).stream_reader(data, read_across_frames=True)
    out = bytearray()
    try:
        while piece := reader.read(_PIECE):
            out += piece
            if len(out) > limit:
                raise TooLong
    except zstandard.ZstdError as error:
        raise BadEncoding(str(error)) from None
    return bytes(out)


def listed(header: str) -> list[str]:
    """Split a ``Content-Encoding`` header."""
    return [name.strip().lower() for name in header.split(",") if name.strip()]


def readable(accepted: str) -> str:
    """Reduce an ``Accept-Encoding`` header to what can be read here."""
    offers = [offer.strip() for offer in accepted.split(",")]
    kept = [offer for offer in offers if offer.partition(";")[0].strip().lower() in READABLE]
    return ", ".join(kept) or "identity"
