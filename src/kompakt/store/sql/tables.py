"""The tables of a SQL store, and the terms of its full-text index.

Session ids, tenants and names of notes are stored as bytes, because they may contain what text columns reject: zero
characters and lone surrogates. All other text is written by kompakt. Values in a query that no column could hold are
dropped, since they cannot match.

A word is indexed as a term made from the session key and a hash of the word. A search therefore reads only entries of
its own session, however many sessions there are, and no query text can be parsed as an operator. The key comes first in
a term, so that the entries of one session are adjacent in the index.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

from sqlalchemy import BigInteger, Boolean, Column, Double, LargeBinary, MetaData, Table, Text

CHUNK = 500
"""Maximum number of values bound to one statement; databases allow a few thousand."""

LARGEST = 2**63 - 1
"""The largest integer that a column holds."""

_WORD = re.compile(r"[^\W_]+")

_metadata = MetaData()

HEADS = Table(
    "kompakt_heads", _metadata,
    Column("key", Text, primary_key=True), Column("tenant", LargeBinary), Column("id", LargeBinary),
    Column("format", Text), Column("envelope", LargeBinary), Column("created", Double), Column("rows", BigInteger),
    Column("events", BigInteger), Column("tip", BigInteger), Column("turn", BigInteger), Column("chain", LargeBinary),
    Column("messages", BigInteger), Column("touched", Double),
)  # fmt: skip
ROWS = Table(
    "kompakt_rows", _metadata,
    Column("key", Text, primary_key=True), Column("seq", BigInteger, primary_key=True), Column("turn", BigInteger),
    Column("kind", Text), Column("name", Text), Column("chain", LargeBinary), Column("content", LargeBinary),
    Column("item", LargeBinary), Column("note", LargeBinary), Column("blobs", Text),
)  # fmt: skip
EVENTS = Table(
    "kompakt_events", _metadata,
    Column("key", Text, primary_key=True), Column("number", BigInteger, primary_key=True), Column("kind", Text),
    Column("tip", BigInteger), Column("at", Double), Column("data", LargeBinary), Column("blobs", Text),
)  # fmt: skip
BATCHES = Table(
    "kompakt_batches", _metadata, Column("key", Text, primary_key=True), Column("id", Text, primary_key=True)
)
BLOBS = Table(
    "kompakt_blobs", _metadata,
    Column("tenant", LargeBinary, primary_key=True), Column("hash", Text, primary_key=True),
    Column("data", LargeBinary),
)  # fmt: skip
USES = Table(
    "kompakt_uses", _metadata,
    Column("key", Text, primary_key=True), Column("hash", Text, primary_key=True), Column("tenant", LargeBinary),
)  # fmt: skip
WORDS = Table(
    "kompakt_words", _metadata,
    Column("key", Text, primary_key=True), Column("seq", BigInteger, primary_key=True), Column("text", Text),
)  # fmt: skip
LOCKS = Table(
    "kompakt_locks", _metadata,
    Column("key", Text, primary_key=True), Column("name", Text, primary_key=True), Column("fence", BigInteger),
    Column("expires", Double), Column("guarded", Boolean),
)  # fmt: skip
NOTES = Table(
    "kompakt_notes", _metadata,
    Column("tenant", LargeBinary, primary_key=True), Column("name", LargeBinary, primary_key=True),
    Column("key", Text), Column("data", LargeBinary),
)  # fmt: skip

NAMES = [table.name for table in _metadata.sorted_tables]
"""All tables with data of sessions."""

_Value = TypeVar("_Value")


def chunks(values: Iterable[_Value]) -> Iterator[list[_Value]]:
    """Split values into lists that fit into one statement."""
    listed = list(values)
    return (listed[at : at + CHUNK] for at in range(0, len(listed), CHUNK))


def as_bytes(text: str) -> bytes:
    """Encode a text that may contain lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def storable(texts: Collection[str]) -> list[str]:
    """Return the distinct texts that a text column can hold, sorted."""
    return sorted(text for text in set(texts) if cleaned(text) == text)


def cleaned(text: str) -> str:
    """Replace characters that text columns reject by a space or a question mark."""
    return text.encode("utf-8", "replace").decode().replace("\0", " ")


def index_names(key: str, text: str) -> list[str]:
    """Return the index terms of the words of a text, in order."""
    known: dict[str, str] = {}
    names: list[str] = []
    salt = key.encode()[:64]
    for word in _WORD.findall(text.casefold()):
        name = known.get(word)
        if name is None:
            digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=7, key=salt).hexdigest()
            name = known[word] = f"k{key[:8]}{digest}"
        names.append(name)
    return names
