"""References: short stable names of messages and parts.

The reference of a message is a prefix of a hash over it and all messages before it, so the same history gives the same
names in every pass, fork and replica. If a prefix is taken, the later message gets a longer one: a name never changes.
The hash covers a canonical form: without cache marks, a string equals its single text block, and key order is ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from kompakt.model.json import json_text
from kompakt.model.messages import Marker, Media, Message, Opaque, Part, Reasoning, Text, ToolCall, ToolResult

MIN_DIGITS = 4
"""Digits of the shortest reference: enough for a long session, short enough to print everywhere."""

_DIGEST_BYTES = 16


class References:
    """Assigns references to messages, in the order of the history."""

    __slots__ = ("_chain", "_given", "_known", "names")

    def __init__(self, messages: Iterable[Message] = (), *, given: Sequence[str] = ()) -> None:
        self.names: list[str] = []
        self._chain = b""
        self._given = given
        """Existing names of the first messages, where the caller knows more of the history."""
        self._known: dict[str, int] = {}
        for message in messages:
            self.add(message)

    def add(self, message: Message) -> str:
        """Assign a reference to the next message."""
        if len(self.names) < len(self._given):
            name = self._given[len(self.names)]
        else:
            self._chain = linked(self._chain, message)
            name = f"m{self._chain.hex()[:MIN_DIGITS]}"
            if name in self._known:
                name = next(name for name in candidates(self._chain) if name not in self._known)
        self._known[name] = len(self.names)
        self.names.append(name)
        return name

    def find(self, reference: str) -> int | None:
        """Return the index of the message of a reference, or of the reference of a part."""
        return self._known.get(reference.partition(".")[0])


def linked(chain: bytes, message: Message) -> bytes:
    """Add a message to a hash chain."""
    return hashlib.blake2b(chain + digest(message), digest_size=_DIGEST_BYTES).digest()


def candidates(chain: bytes) -> Iterator[str]:
    """Yield the possible names of a message with this chain, shortest first."""
    whole = chain.hex()
    yield from (f"m{whole[:length]}" for length in range(MIN_DIGITS, len(whole) + 1))
    number = 2
    while True:  # the same history twice: equal chains are numbered
        yield f"m{whole}{number:x}"
        number += 1


def digest(message: Message) -> bytes:
    """Hash one message in its canonical form."""
    pieces = [message.role.encode()]
    for part in message.parts:
        for text in _canonical(part):
            data = text.encode() if text.isascii() else text.encode("utf-8", "surrogatepass")
            pieces.append(len(data).to_bytes(8, "big"))
            pieces.append(data)
    return hashlib.blake2b(b"".join(pieces), digest_size=_DIGEST_BYTES).digest()


def _canonical(part: Part) -> tuple[str, ...]:
    if type(part) is Text:
        return ("text", part.text)
    if type(part) is ToolResult:
        shown = [text for item in part.media for text in _canonical(item)] if part.media else ()
        return ("result", part.call_id, part.output, *shown)
    if type(part) is ToolCall:
        return ("call", part.id, part.name, part.input if type(part.input) is str else _ordered(part.input))
    if type(part) is Media:
        return ("media", part.media, _ordered(part.data or part.url or ""), _ordered(part.detail or ""))
    if type(part) is Reasoning:
        return ("reasoning", part.text, _ordered(part.blob or ""))
    if type(part) is Marker:
        return ("marker",)
    return ("other", _ordered(part.raw)) if type(part) is Opaque else ()


def _ordered(value: object) -> str:
    """Write a JSON value with sorted keys."""
    if isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value, order="sorted").decode()
    except (TypeError, ValueError, UnicodeEncodeError, RecursionError):
        return json_text(value)
