"""A fact: a key, what the history states about it, and the words that state it.

A text states a fact when it has the key and a word for the relation within 200 characters, or when it has the original
call and result unchanged. Quotation marks and blanks may differ, except in the user's own words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Literal, TypeAlias

import msgspec

FactKind: TypeAlias = Literal[
    "read",
    "modified",
    "created",
    "deleted",
    "command",
    "error",
    "test",
    "number",
    "id",
    "task",
    "constraint",
    "refusal",
]

KINDS: tuple[FactKind, ...] = (
    "modified", "read", "created", "deleted", "command", "error", "test", "number", "id", "task", "constraint",
    "refusal",
)  # fmt: skip

REACH = 200
"""Characters on either side of the key in which the relation must occur."""


def words(*stems: str) -> str:
    """Return a pattern for words that begin with one of the stems, but not inside a name or a path."""
    return rf"(?<![\w./-])(?:{'|'.join(stems)})[a-z]*(?![\w/(]|[.-]\w)"


class OperationalFact(msgspec.Struct, frozen=True):
    """A fact that a history contains."""

    kind: FactKind
    key: str
    relation: str
    """What is stated about the key, for reports: an outcome, a source or a state."""
    words: str = ""
    """A pattern for words that state the relation. Empty when the key alone is the fact."""
    origins: tuple[str, ...] = ()
    """Ids of the calls it was taken from."""
    implied_by: str = ""
    """Another key that states the fact as well: the command of a test run that passed, for a test of that run."""

    def stated_in(self, text: str, unchanged: frozenset[str] = frozenset()) -> bool:
        """Return whether a text states the fact; ``unchanged`` are calls shown with their original results."""
        if not unchanged.isdisjoint(self.origins):
            return True
        if not self.words:
            return self.key in text
        pattern = re.compile(self.words, re.IGNORECASE)
        keys = [plain(key) for key in (self.key, self.implied_by) if key]
        return any(pattern.search(around) for key in keys for around in surroundings(plain(text), key, REACH))


_MARKS = str.maketrans(dict.fromkeys('`"“”‘’', "'"))
_BLANKS = re.compile(r"[ \t]{2,}|\t")


@lru_cache(maxsize=16)
def plain(text: str) -> str:
    """Make quotation marks and blanks equal: a quote may need other marks than its original."""
    return _BLANKS.sub(" ", text.translate(_MARKS))


def surroundings(text: str, key: str, reach: int) -> Iterator[str]:
    """Yield the text around each occurrence of a key, without the key."""
    for start, end in places(text, key):
        yield f"{text[max(0, start - reach) : start]} \0 {text[end : end + reach]}"


def places(text: str, key: str) -> Iterator[tuple[int, int]]:
    """Yield each occurrence of a key that is not part of a longer word."""
    at = text.find(key)
    while at >= 0:
        end = at + len(key)
        if not (_same_word(text[at - 1 : at], key[0]) or _same_word(key[-1], text[end : end + 1])):
            yield at, end
        at = text.find(key, at + 1)


def _same_word(left: str, right: str) -> bool:
    return bool(left) and bool(right) and (left.isalnum() or left == "_") and (right.isalnum() or right == "_")


def merge_facts(facts: Iterable[OperationalFact]) -> list[OperationalFact]:
    """Merge equal facts into one with the origins of all."""
    found: dict[tuple[str, str, str], OperationalFact] = {}
    for fact in facts:
        name = (fact.kind, fact.key, fact.relation)
        known = found.get(name)
        origins = fact.origins if known is None else (*known.origins, *fact.origins)
        found[name] = msgspec.structs.replace(fact, origins=origins)
    return list(found.values())
