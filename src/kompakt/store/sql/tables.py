"""The tables of a SQL store, and the words that its full-text index knows.

Ids of callers, tenants and names of notes are kept as bytes, since they may hold what no text column takes: a zero,
half of a pair of surrogates. Whatever else is text is written by kompakt itself, and what is merely asked for is
dropped when no column could hold it.

A word is indexed as a name made from the session and the word. A search therefore touches only what its own session
wrote, however many sessions there are, and what is asked for can never be read as an operator of a query language. The
session's part comes first, so that the index keeps what one session wrote together.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

from sqlalchemy import BigInteger, Boolean, Column, Double, LargeBinary, MetaData, Table, Text

CHUNK = 500
"""Values bound to one statement at most: servers allow some thousands."""

LARGEST = 2**63 - 1
"""The largest number a column holds."""

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
"""Every table that holds something of a session."""

_Value = TypeVar("_Value")


def chunks(values: Iterable[_Value]) -> Iterator[list[_Value]]:
    """Cut values into lists that one statement can take."""
    listed = list(values)
    return (listed[at : at + CHUNK] for at in range(0, len(listed), CHUNK))


def as_bytes(text: str) -> bytes:
    """Write a text that may hold anything as bytes."""
    return text.encode("utf-8", "surrogatepass")


def storable(texts: Collection[str]) -> list[str]:
    """Return those of some texts, each once and in order, that a text column could hold."""
    return sorted(text for text in set(texts) if cleaned(text) == text)


def cleaned(text: str) -> str:
    """Return a text for a text column: what no such column takes becomes a space or a question mark."""
    return text.encode("utf-8", "replace").decode().replace("\0", " ")


def index_names(key: str, text: str) -> list[str]:
    """Return what the words of a text are called in the index of a session, in order."""
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
