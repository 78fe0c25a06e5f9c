"""Words of prose and code, as search compares them.

A word is lower-cased and brought to its stem; an identifier or a path counts as a whole and as its pieces, so that both
``parse_row`` and "row" find it. One pass over the text; what one word stands for is computed once a process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kompakt.engine.recall.english import IRREGULAR, LIKE, STOP

_WORD = re.compile(r"\w+(?:[-./\\:@]{1,3}\w+)*")
_PIECE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")

_MAX_WHOLE = 80
"""Longest word that counts as a whole; longer ones are encoded data and only their pieces count."""

_MAX_PIECES = 24
"""Most pieces of one word that count, for the same reason."""

_MAX_KNOWN = 200_000
"""Words remembered with their terms; all are forgotten when there are more. About 40 MB."""

_ENDINGS = (
    ("ational", "ate"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ously", "ous"),
    ("ly", ""),
    ("ment", ""),
    ("ness", ""),
    ("ful", ""),
    ("tion", "t"),
    ("er", ""),
    ("or", ""),
)
_VOWEL = re.compile("[aeiouy]")


def stem(word: str) -> str:
    """Take the commonest English endings off a lower-case word, so that its forms meet."""
    word = IRREGULAR.get(word, word)
    if len(word) < 4 or not word.isascii() or not word.isalpha():
        return word
    word = _without_verb_ending(_singular(word))
    for ending, instead in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            word = word[: -len(ending)] + instead
            break
    if len(word) > 4 and word[-1] == "e":
        word = word[:-1]
    return word[:-1] + "i" if len(word) > 3 and word[-1] == "y" else word


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith("sses"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def _without_verb_ending(word: str) -> str:
    for ending in ("ingly", "edly", "ing", "ed"):
        rest = word[: -len(ending)]
        if word.endswith(ending) and len(rest) >= 3 and _VOWEL.search(rest):
            doubled = len(rest) > 3 and rest[-1] == rest[-2] and rest[-1] not in "lsz"
            return rest[:-1] if doubled else rest
    return word


def _likes() -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for row in LIKE:
        stems = [stem(word) for word in row.split(" ")]
        for one in stems:
            found.setdefault(one, {}).update(dict.fromkeys(other for other in stems if other != one))
    return {term: tuple(others) for term, others in found.items()}


LIKES = _likes()
"""Terms that may stand for a term."""


class _Known(dict[str, tuple[str, ...]]):
    """The terms of each word seen so far."""

    def __missing__(self, word: str) -> tuple[str, ...]:
        if len(self) >= _MAX_KNOWN:
            self.clear()
        found = self[word] = tuple(dict.fromkeys(_terms_of(word)))
        return found


def _terms_of(word: str) -> Iterable[str]:
    """List what one word of a text stands for: itself and its pieces."""
    if word.isascii() and word.isalpha() and (word.islower() or word.istitle()):
        lower = word.lower()
        return () if lower in STOP else (stem(lower),)
    if not word.isascii() and _IDEOGRAPH.search(word):
        return [word[i : i + 2] for i in range(max(1, min(len(word) - 1, _MAX_WHOLE)))]
    pieces = _PIECE.findall(word)
    terms = [stem(piece) for piece in (piece.lower() for piece in pieces[:_MAX_PIECES]) if piece not in STOP]
    if len(pieces) > 1 and len(word) <= _MAX_WHOLE:
        terms.append(stem(word.lower().replace("-", "")))
    return terms


_known = _Known()


def terms(text: str) -> list[str]:
    """List the terms of a text in order, as often as they occur."""
    known = _known
    return [term for word in _WORD.findall(text) for term in known[word]]


def tally(text: str) -> dict[str, int]:
    """Count the terms of a text."""
    counts: dict[str, int] = {}
    for term in terms(text):
        counts[term] = counts.get(term, 0) + 1
    return counts
