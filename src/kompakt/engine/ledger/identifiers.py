"""Names worth keeping: identifiers and paths that an agent is likely to use again, with where they were seen.

Ranked by how lately they were seen, and by whom: a name that the agent itself used in a call or in its answer comes
back far more often than one that merely stood in an output. The weights are those of a logistic fit on recorded
sessions. Each text is read once, when it leaves the view; of many that leave at once the newest are read first, until
there are several times more names than there is room for. Of a long run the newest names are remembered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from math import log, log1p

import msgspec

SURPLUS = 2
"""How many times more than the room is gathered before ranking."""

MAX_NAMES = 6_000
"""Names remembered; of more the ones not seen for longest are forgotten."""

MAX_NAME = 160
"""Longest name that is kept."""

ENDING = 2
"""Components kept of a path that is only mentioned."""

_NEVER = 0.14 * 6.0
"""Stands for how long ago a name was used that no call used."""

_TOKEN = re.compile(r"[\w.~@/-]{6,}")
_ASCII_TOKEN = re.compile(r"[0-9A-Z_a-z.~@/-]{6,}")
"""The same for a text of nothing but ASCII, twice as fast."""

_ODD = re.compile(r"[a-z][A-Z]|[A-Z]{2}[a-z]|\d|_|\w\.\w")
_DEFINING = {
    "def": "function", "func": "function", "fn": "function", "function": "function", "class": "class", "type": "type",
    "interface": "interface", "struct": "struct", "enum": "enum", "trait": "trait", "const": "constant",
    "let": "variable", "var": "variable", "val": "variable", "module": "module", "package": "package",
}  # fmt: skip
_ALTERNATIVES = re.compile(r"[A-Za-z]+/[A-Za-z]+")
"""Two words that somebody could not choose between; a path has more to it."""

_RECEIVER = re.compile(r"\([^()\n]{0,60}\)\s*$")

Speaker = str
"""Who showed a name: ``call``, ``answer``, ``user`` or ``output``."""


class Place(msgspec.Struct, frozen=True, gc=False):
    """A text that names were seen in."""

    at: int
    speaker: Speaker
    text: str
    kind: str = ""
    key: str = ""
    """The fact it belongs to, when it belongs to one."""
    reference: str = ""
    """Where it stood, when only an earlier pass knows."""


class Sighting(msgspec.Struct, gc=False):
    """What is known of one name."""

    at: int
    """The newest message it stood in."""
    place: Place
    calls: int = 0
    outputs: int = 0
    called_at: int = -1
    told: bool = False
    asked: bool = False
    base: float | None = None
    """What it is worth for what it costs, but for the time that has passed; a logarithm, worked out when ranking."""
    offset: int = -2
    """Where it first stands in its place; -2 until somebody looked."""
    line: str = ""
    """The line it stands in there, where that is short enough to be quoted."""
    beside: tuple[str, ...] = ()
    """The names in that line."""
    word: str | None = None
    """What it is defined as there; ``None`` until somebody asked."""
    price: int = 0
    """Tokens of the name; 0 until somebody counted."""
    line_price: int = 0
    """Tokens of the line."""


class Found(msgspec.Struct, frozen=True, gc=False):
    """What could be a name in a text."""

    names: list[str]
    all: list[str]
    """With long numbers: these are names only where somebody chose them."""


def found_in(text: str) -> Found:
    """Find the names of a text."""
    names: list[str] = []
    numbers: list[str] = []
    for token in dict.fromkeys((_ASCII_TOKEN if text.isascii() else _TOKEN).findall(text)):
        if token.isdigit():
            if len(token) <= MAX_NAME:
                numbers.append(token)
        elif name := (_known_name if len(token) <= MAX_NAME else _name)(token):
            (numbers if name.isdigit() and token[0] != "/" else names).append(name)
    return Found(names, names + numbers if numbers else names)


def _name(token: str) -> str:
    """Tell which name or number a token is; nothing when it is none."""
    name = token.strip(_TRIMMED) if "/" not in token else token.rstrip(_TRIMMED)
    if "-" in name and "." in name:
        name = _LINE_NUMBER.sub(r"\1", name)
    if not 6 <= len(name) <= MAX_NAME:
        return ""
    if "/" in name:
        return ending(name) if name.count("/") < len(name) // 3 and not name.startswith("//") else ""
    if name[0].isdigit():
        return name if name.isdigit() else ""
    return name if not (name.isalpha() and name[1:].islower()) and _ODD.search(name) else ""


_TRIMMED = "./-~@"
_LINE_NUMBER = re.compile(r"(?<=\w\.[A-Za-z])(\w{0,4})-[0-9]+(?:-.*)?\Z")
"""What a search puts behind the name of a file for a line beside one that it found."""

_known_name = lru_cache(maxsize=16_384)(_name)
"""Tokens come again and again; the newest are remembered, about 3 MB of them."""


def ending(path: str) -> str:
    """Keep the end of a path that is only mentioned: the last components tell it from others."""
    parts = path.split("/")
    return "/".join(parts[-ENDING:]) if len(parts) > ENDING else path.lstrip("/")


@lru_cache(maxsize=16_384)
def ends_of(name: str) -> tuple[str, ...]:
    """List the names that a longer one ends in: who reads it has read them."""
    found: list[str] = []
    for mark in "/.":
        _, _, end = name.partition(mark)
        while end:
            found.append(end)
            _, _, end = end.partition(mark)
    return tuple(found)


class Names:
    """The names of all that left the view."""

    __slots__ = ("_read", "sightings")

    def __init__(self) -> None:
        self.sightings: dict[str, Sighting] = {}
        self._read: dict[str, Found] = {}
        """What was found in the texts that were said last: some are said again, and others leave the view next."""

    def gather(self, places: Iterable[Place], room: int) -> None:
        """Read places from the newest on until there are names enough; calls and answers are cheap and always read."""
        left = room * SURPLUS
        for place in places:
            if left <= 0 and place.speaker == "output":
                continue
            found = self._read.get(place.text) or found_in(place.text)
            names = found.names if place.speaker == "output" else found.all
            if place.speaker in ("answer", "user"):
                names = [name for name in names if not _ALTERNATIVES.fullmatch(name)]
            left -= self._note(names, place)
        if len(self.sightings) > MAX_NAMES:
            kept = sorted(self.sightings.items(), key=lambda item: (-item[1].at, item[0]))[: MAX_NAMES * 2 // 3]
            self.sightings = dict(kept)

    def _note(self, names: Iterable[str], place: Place) -> int:
        """Note that names stand at a place; return about what those cost that are new."""
        sightings, at, speaker = self.sightings, place.at, place.speaker
        cost = 0
        for name in names:
            sighting = sightings.get(name)
            if sighting is None:
                sighting = sightings[name] = Sighting(at, place)
                cost += len(name) // 3
            elif at > sighting.at:
                sighting.at, sighting.place, sighting.offset = at, place, -2
            if speaker == "output":
                sighting.outputs += 1
            elif speaker == "call":
                sighting.calls += 1
                sighting.called_at = max(sighting.called_at, at)
            elif speaker == "answer":
                sighting.told = True
            else:
                sighting.asked = True
            sighting.base = None
        return cost

    def remember(self, words: str, place: Place) -> None:
        """Take over names that an earlier pass told."""
        for name in found_in(words).all:
            if name not in self.sightings:
                self.sightings[name] = Sighting(-1, place, calls=1)

    def ranked(self, now: int, said: Iterable[str]) -> list[str]:
        """Order the names that are not said anyway by what they are worth for what they cost."""
        self._read = {text: self._read.get(text) or found_in(text) for text in said}
        known = set[str]().union(*[found.all for found in self._read.values()])
        known.update(*map(ends_of, known))
        scored: list[tuple[float, str]] = []
        for name, seen in self.sightings.items():
            if name in known:
                continue
            base, called_at = seen.base, seen.called_at
            if base is None:
                base = seen.base = _base(name, seen)
            since = 0.14 * log1p(now - called_at) if called_at >= 0 else _NEVER
            scored.append((0.61 * log1p(now - seen.at) + since - base, name))
        scored.sort()
        return [name for _, name in scored]


def _base(name: str, sighting: Sighting) -> float:
    used = 0.66 * log1p(sighting.calls) + 0.78 if sighting.calls else 0.0
    seen = 0.26 * log1p(sighting.outputs) if sighting.outputs else 0.0
    return used - seen + 0.81 * sighting.told + 0.43 * sighting.asked - log(len(name) / 3.5 + 2)


def definition(text: str, at: int) -> str:
    """Say what a name is defined as where it first stands, if it is defined there."""
    start = max(0, at - 80)
    before = text[max(start, text.rfind("\n", start, at) + 1) : at]
    if before.endswith((") ", ")")):
        before = _RECEIVER.sub("", before)
    return _DEFINING.get(before.rstrip().rpartition(" ")[2], "")


def cost(name: str) -> float:
    """Estimate the tokens of a name in a list."""
    return len(name) / 3.4 + 1.3
