"""Content encodings that the gateway can read, and decompression that never produces more than it is asked for.

A few hundred kilobytes can decompress to gigabytes, so nothing that comes from outside is decompressed without a limit.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

READABLE = frozenset(["identity", "gzip", "x-gzip", "deflate"])

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


def listed(header: str) -> list[str]:
    """Split a ``Content-Encoding`` header."""
    return [name.strip().lower() for name in header.split(",") if name.strip()]


def readable(accepted: str) -> str:
    """Reduce an ``Accept-Encoding`` header to what can be read here."""
    offers = [offer.strip() for offer in accepted.split(",")]
    kept = [offer for offer in offers if offer.partition(";")[0].strip().lower() in READABLE]
    return ", ".join(kept) or "identity"
