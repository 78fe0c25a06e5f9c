"""What is known of one raw item: what it says, as a hash, and what it costs. Looked at once, cached for a while.

The hash is over a canonical form, since real clients move cache marks, write a text now as a string and now as a block,
and change their reminders from request to request. None of that makes it another message.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import msgspec

from kompakt.errors import InputError
from kompakt.model.messages import Json, Message, Reasoning, Text
from kompakt.model.references import digest
from kompakt.model.tokens import Counter
from kompakt.store.codec import decode
from kompakt.wire.registry import WIRES

MAX_DIGESTS = 20_000
"""Items remembered; the older half goes when there are more. About 7 MB."""

_REMINDER = re.compile(r"\s*<(system[-_]reminder)>.*</\1>\s*", re.DOTALL)
"""A text that a client's runtime added and may word otherwise next time."""


class MessageDigest(msgspec.Struct, frozen=True, gc=False):
    """One item, looked at."""

    digest: bytes
    """Hash of what it says, reminders left out. One that says nothing else still counts: items are told by number."""
    tokens: int
    is_system: bool
    is_answer: bool
    """Whether the model said it."""
    has_reasoning: bool


class DigestCache:
    """Remembers items by their bytes; nothing else depends on it. Threads may share it."""

    def __init__(self, limit: int = MAX_DIGESTS) -> None:
        self._half = max(1, limit // 2)
        self._young: dict[bytes, MessageDigest] = {}
        self._old: dict[bytes, MessageDigest] = {}

    def of(self, raw: bytes, format: str, counter: Counter) -> MessageDigest:
        """Look at an item.

        Raises:
            InputError: it is no message of this format.
        """
        key = hashlib.sha256(raw).digest() + f"{format} {counter.name}".encode()
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key) or _look(decode_item(raw), format, counter)
            if len(self._young) >= self._half:
                self._old, self._young = self._young, {}
            self._young[key] = found
        return found


def decode_item(raw: bytes) -> Json:
    """Read one item.

    Raises:
        InputError: the bytes are not JSON.
    """
    try:
        return decode(raw)
    except (ValueError, RecursionError):
        raise InputError("an item of the request is not JSON") from None


def parse_items(items: Sequence[Json], format: str) -> tuple[Message, ...]:
    """Read items as messages, one each.

    Raises:
        InputError: they are no messages of this format.
    """
    messages = WIRES[format].parse(items, None).messages
    if len(messages) != len(items):
        raise InputError("an item of the request is no message of its own")
    return messages


def _look(item: Json, format: str, counter: Counter) -> MessageDigest:
    (message,) = parse_items([item], format)
    said = [part for part in message.parts if type(part) is not Text or not _REMINDER.fullmatch(part.text)]
    hashed = digest(message if len(said) == len(message.parts) else msgspec.structs.replace(message, parts=tuple(said)))
    has_reasoning = any(type(part) is Reasoning for part in message.parts)
    role = message.role
    return MessageDigest(hashed, counter.message(message), role == "system", role == "assistant", has_reasoning)
