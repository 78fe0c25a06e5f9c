"""Digest, token count and role of one raw message item, computed once and cached.

The digest covers a canonical form of the message. Real clients move cache marks, send the same text as a string or as a
block, and change their reminders from request to request; none of that makes it another message.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from kompakt.gateway.request.body import decode_item, parse_items
from kompakt.model.lru import Lru
from kompakt.model.messages import Json, Reasoning, Text
from kompakt.model.references import digest
from kompakt.model.tokens import Counter

MAX_DIGESTS = 20_000
"""Items in the cache: about 7 MB."""

_REMINDER = re.compile(r"\s*<(system[-_]reminder)>.*</\1>\s*", re.DOTALL)
"""A text that the client's runtime added and may change in the next request."""


class MessageDigest(msgspec.Struct, frozen=True, gc=False):
    """What the gateway needs to know of an item without decoding it again."""

    digest: bytes
    """Hash of the message without reminders. An item that holds only reminders still counts as an item."""
    tokens: int
    is_system: bool
    is_answer: bool
    """Whether it is from the model."""
    has_reasoning: bool


class DigestCache:
    """Digests by the raw bytes of items. Threads may share it."""

    def __init__(self, limit: int = MAX_DIGESTS) -> None:
        self._digests = Lru[bytes, MessageDigest](limit)

    def of(self, raw: bytes, format: str, counter: Counter) -> MessageDigest:
        """Return the digest of an item.

        Raises:
            InputError: the item is not a message of this format.
        """
        key = hashlib.sha256(raw).digest() + f"{format} {counter.name}".encode()
        found = self._digests.get(key)
        if found is None:
            found = _digest(decode_item(raw), format, counter)
            self._digests.put(key, found)
        return found


def _digest(item: Json, format: str, counter: Counter) -> MessageDigest:
    (message,) = parse_items([item], format)
    kept = [part for part in message.parts if type(part) is not Text or not _REMINDER.fullmatch(part.text)]
    hashed = digest(message if len(kept) == len(message.parts) else msgspec.structs.replace(message, parts=tuple(kept)))
    has_reasoning = any(type(part) is Reasoning for part in message.parts)
    role = message.role
    return MessageDigest(hashed, counter.message(message), role == "system", role == "assistant", has_reasoning)
