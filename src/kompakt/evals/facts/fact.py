"""A fact: a key, what the history says about it, and the words that say so.

A fact is told when its key stands verbatim in a text and a word for its relation stands within 200 characters, or when
the call and the result that it was taken from both stand there unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal[
    "read", "modified", "created", "deleted", "command", "error", "test", "number", "id", "task", "constraint"
]

KINDS: tuple[Kind, ...] = (
    "modified", "read", "created", "deleted", "command", "error", "test", "number", "id", "task", "constraint"
)  # fmt: skip

REACH = 200
"""Characters either side of the key in which the relation must stand."""


def words(*stems: str) -> str:
    """Return a pattern for ordinary words that begin with one of these stems; a piece of a name or a path is none."""
    return rf"(?<![\w./-])(?:{'|'.join(stems)})[a-z]*(?![\w/(]|[.-]\w)"


class Fact(msgspec.Struct, frozen=True):
    """Something a history bears out."""

    kind: Kind
    key: str
    relation: str
    """What is said of the key, for reports: an outcome, a source, a state."""
    words: str = ""
    """A pattern for the words that say so; empty when the key alone says everything."""
    origins: tuple[str, ...] = ()
    """The calls it was taken from."""

    def told(self, text: str, whole: frozenset[str] = frozenset()) -> bool:
        """Tell whether a text says it; ``whole`` are the calls that stand in it with their results, unchanged."""
        if not whole.isdisjoint(self.origins):
            return True
        if not self.words:
            return self.key in text
        pattern = re.compile(self.words, re.IGNORECASE)
        return any(pattern.search(around) for around in surroundings(text, self.key, REACH))


def surroundings(text: str, key: str, reach: int) -> Iterator[str]:
    """Yield what stands around each place of a key, the key itself left out."""
    for start, end in places(text, key):
        yield f"{text[max(0, start - reach) : start]} \0 {text[end : end + reach]}"


def places(text: str, key: str) -> Iterator[tuple[int, int]]:
    """Yield where a key stands as a whole: not inside a longer word."""
    at = text.find(key)
    while at >= 0:
        end = at + len(key)
        if not (_joined(text[at - 1 : at], key[0]) or _joined(key[-1], text[end : end + 1])):
            yield at, end
        at = text.find(key, at + 1)


def _joined(left: str, right: str) -> bool:
    """Tell whether two neighbouring characters belong to one word."""
    return bool(left) and bool(right) and (left.isalnum() or left == "_") and (right.isalnum() or right == "_")


def merged(facts: Iterable[Fact]) -> list[Fact]:
    """Make facts that say the same into one with all their origins."""
    found: dict[tuple[str, str, str], Fact] = {}
    for fact in facts:
        name = (fact.kind, fact.key, fact.relation)
        known = found.get(name)
        origins = fact.origins if known is None else (*known.origins, *fact.origins)
        found[name] = msgspec.structs.replace(fact, origins=origins)
    return list(found.values())
