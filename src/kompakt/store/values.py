"""What a store keeps: rows, events, blobs, one head a session; all written by batches, nothing ever rewritten.

A row is a message as its provider wrote it, under a sequence number that is never given twice. An event is something
done to the session as a whole: a compaction, its undoing, a revert. What the session is now follows from both. The head
counts them, so one comparison tells whether somebody else was here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from kompakt.errors import UsageError

LONGEST_NAME = 200
"""Characters of a note's name at most."""

RowKind: TypeAlias = Literal["message", "marker", "summary", "resume", "inserted", "finished"]
"""What a row is: a message of the conversation, one that kompakt or a caller put into the model's view, or what a tool
answered while others of its step were still at work, which the step's own message says too."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """One message of a session."""

    seq: int
    """1 for the first row of a session, one more for each that follows."""
    turn: int
    """The turn it belongs to; 1 for the first, and for what precedes it."""
    kind: RowKind
    name: str
    """Its reference, unique in the session."""
    chain: bytes
    """Hash over this message and all that were live before it; the reference is a prefix of it."""
    content: bytes
    """Hash of the item before it was packed."""
    item: bytes
    """The message, packed; see ``packing``."""
    note: bytes
    """What is known of it beside the item, packed."""
    blobs: tuple[str, ...] = ()
    """The blobs that the item points to."""
    words: str = ""
    """What recall's index is to know; written, never read back."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """One thing done to a session."""

    number: int
    """1 for the first event of a session, one more for each that follows."""
    kind: str
    tip: int
    """The last row when it happened."""
    at: float
    """When, in seconds since 1970; said to people, never decided by."""
    data: bytes
    """What was done, packed."""
    blobs: tuple[str, ...] = ()


class Head(msgspec.Struct, frozen=True, gc=False):
    """A session in one value."""

    key: str
    """The name of the session in the store; see ``key_of``."""
    tenant: str
    id: bytes
    """The id the caller gave, in UTF-8 with lone surrogates kept: bytes, since it may hold anything."""
    format: str
    envelope: bytes
    """The request that the messages belong to, without them, packed."""
    created: float
    rows: int = 0
    """The newest sequence number, live or not."""
    events: int = 0
    """The newest event's number."""
    tip: int = 0
    """The newest live row; smaller than ``rows`` after a revert."""
    turn: int = 0
    """How many turns there are; 0 while nobody has spoken."""
    chain: bytes = b""
    """The chain of the tip."""
    messages: int = 0
    """How many live rows are messages."""
    touched: float = 0.0
    """When it was last written to; said to people, and to whoever removes what is old."""


class Batch(msgspec.Struct, frozen=True):
    """What is written at once: all of it or nothing."""

    id: str
    """Unique in the session: a batch that is written twice is written once."""
    head: Head
    """The session afterwards."""
    rows: tuple[Row, ...] = ()
    events: tuple[Event, ...] = ()
    blobs: dict[str, bytes] = {}
    """Packed blobs by hash; one that the tenant's store has already is left as it is."""


class Fence(msgspec.Struct, frozen=True):
    """A lock that is held: who writes under it proves that nobody has taken it since."""

    name: str
    number: int
    """Grows each time the lock changes hands."""


_LATEST = 253_402_300_800.0
"""The year 10000 in seconds since 1970: no date is written behind it."""


def is_sound(head: Head) -> bool:
    """Tell whether the values of a head are possible ones: its id is text, its counts and times can be written."""
    try:
        head.id.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    counts = (head.rows, head.events, head.tip, head.turn, head.messages)
    return min(counts) >= 0 and all(0 <= time < _LATEST for time in (head.created, head.touched))


def key_of(tenant: str, id: str) -> str:
    """Name a session in a store: plain hexadecimal digits, whatever bytes the id holds."""
    parts = [text.encode("utf-8", "surrogatepass") for text in (tenant, id)]
    hasher = hashlib.blake2b(digest_size=16, person=b"kompakt key")
    for part in parts:
        hasher.update(len(part).to_bytes(8, "big") + part)
    return hasher.hexdigest()


def check_names(names: Iterable[str]) -> None:
    """Refuse names of notes that are no names.

    Raises:
        UsageError: one is too long.
    """
    for name in names:
        if len(name) > LONGEST_NAME:
            raise UsageError(f"the name of a note has at most {LONGEST_NAME} characters, not {len(name)}")
