"""Forward needs: identifiers that the agent uses after the cut without seeing them again.

A need is a path, an id, a number or an identifier of at least six characters that occurs before the cut and is used in
one of the agent's next 40 calls before a tool or the user shows it again. A text states it when it has the key with
at least two ordinary lower-case words within 60 characters: a name without its sentence is not knowledge.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import msgspec

from kompakt.evals.facts.fact import places
from kompakt.evals.history_events import HistoryEvent, strings

CALLS = 40
SHORTEST = 6
REACH = 60
WORDS = 2
QUERY_REACH = 160
_LONGEST = 30
"""Characters read beyond the reach, so that no word is cut at its end."""
FILLER = 12
FILLER_SHARE = 0.02

_TOKEN = re.compile(r"(?:[~@]|(?<![\w.-]))[\w.-]*+(?:/[\w.@+-]+)+/?|[A-Za-z_][\w]*(?:[.-][\w]+)*|\d[\w.-]*")
_WORD = re.compile(r"(?<![\w./\\-])[a-z]{2,}(?![\w/\\(=]|[.:-]\w)")
_INNER_CAPITAL = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2}[a-z]")
_QUERY_WORD = re.compile(r"[A-Za-z]{3,}")


_WRITTEN = re.compile(r"(?:new_?|file_?)?(?:str|string|text|content|contents|source)", re.IGNORECASE)
"""Input keys whose text is being written, not used."""


class Need(msgspec.Struct, frozen=True):
    """A string that the agent will use."""

    key: str
    place: int
    """Index of the call that uses it first, counted from the cut."""
    around: str = ""
    """The text around its first use."""

    def stated_in(self, text: str, filler: frozenset[str] = frozenset()) -> bool:
        """Return whether a text has the key with enough words beside it, not counting ``filler``."""
        return any(_words_near(text, *place, filler) >= WORDS for place in places(text, self.key))

    @property
    def query(self) -> str:
        """The words around the first use, without the key and its pieces."""
        pieces = {piece.lower() for piece in re.findall(r"[A-Za-z]+|\d+", self.key)} | {self.key.lower()}
        pieces |= {piece.lower() for piece in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", self.key)}
        words = _QUERY_WORD.findall(self.around)
        return " ".join(word for word in words if word.lower() not in pieces and self.key.lower() not in word.lower())


def _words_near(text: str, start: int, end: int, filler: frozenset[str]) -> int:
    """Count the complete ordinary words within reach."""
    found = _WORD.finditer(text, max(0, start - REACH), end + REACH + _LONGEST)
    spans = [one for one in found if one.end() <= start or (one.start() >= end and one.end() <= end + REACH)]
    return sum(one[0] not in filler for one in spans)


def filler_words(text: str) -> frozenset[str]:
    """Return words that a text repeats so often that they carry no information."""
    spread = Counter(_WORD.findall(text))
    return frozenset(
        word for word, count in spread.items() if count >= FILLER and count > FILLER_SHARE * spread.total()
    )


def needs(before: str, after: list[HistoryEvent]) -> list[Need]:
    """List the needs at a cut, from the text before it and the events after it."""
    shown: list[str] = []
    found: dict[str, Need] = {}
    seen: set[str] = set()
    written = ""
    place = 0
    for event in after:
        if event.kind in ("result", "user"):
            shown.append(event.text)
        elif event.kind == "assistant":
            written = f"{written[-QUERY_REACH:]} {event.text}"
        elif event.kind == "call":
            if place == CALLS:
                break
            for key in used(event):
                if key not in seen and not any(key in text for text in shown) and _contains(before, key):
                    found[key] = Need(key, place, _around(written, event.text, key))
                seen.add(key)
            written = f"{written[-QUERY_REACH:]} {event.text}"
            place += 1
    return list(found.values())


def _contains(text: str, key: str) -> bool:
    return next(places(text, key), None) is not None


def used(event: HistoryEvent) -> Iterator[str]:
    """Yield the paths, ids, numbers and identifiers that a call uses; paths by their last two components."""
    for key, value in event.input.items():
        if not _WRITTEN.fullmatch(key):
            for text in strings(value):
                yield from names(text)


def names(text: str) -> Iterator[str]:
    """Yield the paths, ids, numbers and identifiers of a text, but not ordinary words."""
    for match in _TOKEN.finditer(text):
        key = match[0].strip("./-")
        if "/" in key:
            key = "/".join([part for part in key.split("/") if part][-2:])
        if len(key) >= SHORTEST and _is_name(key):
            yield key


def _is_name(key: str) -> bool:
    odd = "/" in key or "_" in key or "." in key or any(char.isdigit() for char in key)
    return odd or bool(_INNER_CAPITAL.search(key))


def _around(written: str, text: str, key: str) -> str:
    """Return what the agent wrote around the first use of a key."""
    stream = f"{written} {text}"
    at = stream.find(key, len(written))
    return stream[max(0, at - QUERY_REACH) : at + len(key) + QUERY_REACH] if at >= 0 else stream[-QUERY_REACH:]
