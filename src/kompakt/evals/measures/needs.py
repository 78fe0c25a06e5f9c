"""Forward need: what the agent will use next and nobody shows it again.

A need is a path, an id, a number or an identifier of six characters or more that stands before the cut and is used in
one of the agent's next 40 calls before any tool or user shows it again. It is told when it stands in the context with
at least two ordinary lower-case words within 60 characters: a name without its sentence is not knowledge.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import msgspec

from kompakt.evals.facts.fact import places
from kompakt.evals.sources.trail import Event, strings

CALLS = 40
SHORTEST = 6
REACH = 60
WORDS = 2
QUERY_REACH = 160
_LONGEST = 30
"""Characters beyond reach that are looked at, so that no word seems to end where the reach does."""
FORMULA = 12
FORMULA_SHARE = 0.02

_TOKEN = re.compile(r"(?:[~@]|(?<![\w.-]))[\w.-]*+(?:/[\w.@+-]+)+/?|[A-Za-z_][\w]*(?:[.-][\w]+)*|\d[\w.-]*")
_WORD = re.compile(r"(?<![\w./\\-])[a-z]{2,}(?![\w/\\(=]|[.:-]\w)")
_INNER_CAPITAL = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2}[a-z]")
_QUERY_WORD = re.compile(r"[A-Za-z]{3,}")


_WRITTEN = re.compile(r"(?:new_?|file_?)?(?:str|string|text|content|contents|source)", re.IGNORECASE)
"""Keys of an input whose text is being written, not used."""


class Need(msgspec.Struct, frozen=True):
    """A string that will be used."""

    key: str
    place: int
    """Which of the next calls uses it first, from 0."""
    around: str = ""
    """What stands around its first use."""

    def told(self, text: str, formulas: frozenset[str] = frozenset()) -> bool:
        """Tell whether a text has it with its words; those of formulas do not count."""
        return any(_words_near(text, *place, formulas) >= WORDS for place in places(text, self.key))

    @property
    def query(self) -> str:
        """Return the words around the first use, without the need and without its pieces."""
        pieces = {piece.lower() for piece in re.findall(r"[A-Za-z]+|\d+", self.key)} | {self.key.lower()}
        pieces |= {piece.lower() for piece in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", self.key)}
        words = _QUERY_WORD.findall(self.around)
        return " ".join(word for word in words if word.lower() not in pieces and self.key.lower() not in word.lower())


def _words_near(text: str, start: int, end: int, formulas: frozenset[str]) -> int:
    """Count the ordinary words that stand whole within reach of a place."""
    found = _WORD.finditer(text, max(0, start - REACH), end + REACH + _LONGEST)
    spans = [one for one in found if one.end() <= start or (one.start() >= end and one.end() <= end + REACH)]
    return sum(one[0] not in formulas for one in spans)


def formulas(text: str) -> frozenset[str]:
    """List the words that a text repeats so often that they say nothing of what they stand beside."""
    spread = Counter(_WORD.findall(text))
    return frozenset(
        word for word, count in spread.items() if count >= FORMULA and count > FORMULA_SHARE * spread.total()
    )


def needs(before: str, after: list[Event]) -> list[Need]:
    """List the needs at a cut: the text before it, the events behind it."""
    shown: list[str] = []
    found: dict[str, Need] = {}
    seen: set[str] = set()
    said = ""
    place = 0
    for event in after:
        if event.kind in ("result", "user"):
            shown.append(event.text)
        elif event.kind == "assistant":
            said = f"{said[-QUERY_REACH:]} {event.text}"
        elif event.kind == "call":
            if place == CALLS:
                break
            for key in used(event):
                if key not in seen and not any(key in text for text in shown) and _stands(before, key):
                    found[key] = Need(key, place, _around(said, event.text, key))
                seen.add(key)
            said = f"{said[-QUERY_REACH:]} {event.text}"
            place += 1
    return list(found.values())


def _stands(text: str, key: str) -> bool:
    """Tell whether a text has a key as a whole."""
    return next(places(text, key), None) is not None


def used(event: Event) -> Iterator[str]:
    """Yield the paths, ids, numbers and identifiers that a call uses; paths by their last two components."""
    for key, value in event.input.items():
        if not _WRITTEN.fullmatch(key):
            for text in strings(value):
                yield from names(text)


def names(text: str) -> Iterator[str]:
    """Yield the paths, ids, numbers and identifiers of a text; ordinary words are none."""
    for match in _TOKEN.finditer(text):
        key = match[0].strip("./-")
        if "/" in key:
            key = "/".join([part for part in key.split("/") if part][-2:])
        if len(key) >= SHORTEST and _is_name(key):
            yield key


def _is_name(key: str) -> bool:
    odd = "/" in key or "_" in key or "." in key or any(char.isdigit() for char in key)
    return odd or bool(_INNER_CAPITAL.search(key))


def _around(said: str, text: str, key: str) -> str:
    """Return what the agent wrote around the first use of a key."""
    stream = f"{said} {text}"
    at = stream.find(key, len(said))
    return stream[max(0, at - QUERY_REACH) : at + len(key) + QUERY_REACH] if at >= 0 else stream[-QUERY_REACH:]
