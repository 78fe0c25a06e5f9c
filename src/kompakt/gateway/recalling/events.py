"""Server-sent events out of pieces, one behind the other, each as the bytes that it came as and as its data."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kompakt.model.messages import Json
from kompakt.store.packing import encode

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE = re.compile(rb"\r\n|\n|\r")

MAX_EVENT = 64 * 1024 * 1024
"""Bytes of one event; a stream in which none ends is no stream of events."""


class Events:
    """Takes pieces and gives events."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, piece: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Take a piece; yield the data and the bytes of every event that ends in it."""
        self._held += piece
        at = 0
        for found in _END.finditer(self._held):
            raw, at = self._held[at : found.end()], found.end()
            yield _data(raw), raw
        self._held = self._held[at:]
        if len(self._held) > MAX_EVENT:
            raise ValueError("an event of the provider does not end")

    def rest(self) -> bytes:
        """Return what came behind the last event."""
        held, self._held = self._held, b""
        return held


def _data(raw: bytes) -> bytes:
    lines = [line[5:].removeprefix(b" ") for line in _LINE.split(raw) if line.startswith(b"data:")]
    return b"\n".join(lines)


def event(data: Json, name: str | None = None) -> bytes:
    """Write an event."""
    named = b"event: " + name.encode() + b"\n" if name else b""
    return named + b"data: " + encode(data) + b"\n\n"
