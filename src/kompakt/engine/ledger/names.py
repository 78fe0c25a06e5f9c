"""Names worth keeping: identifiers and paths that an agent is likely to use again, with where they were seen.

Ranked by how lately they were seen, and by whom: a name that the agent itself used in a call or in its answer comes
back far more often than one that merely stood in an output. The weights are those of a logistic fit on recorded
sessions. Each text is read once, when it leaves the view; of many that leave at once the newest are read first, until
there are several times more names than there is room for. Of a long run the newest names are remembered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
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

_NEVER = 6.0
"""Stands for how long ago a name was used that no call used."""

_TOKEN = re.compile(r"[\w.~@/-]{6,}")
_ODD = re.compile(r"[a-z][A-Z]|[A-Z]{2}[a-z]|\d|_|\w\.\w")
_DEFINING = {
    "def": "function", "func": "function", "fn": "function", "function": "function", "class": "class", "type": "type",
    "interface": "interface", "struct": "struct", "enum": "enum", "trait": "trait", "const": "constant",
    "let": "variable", "var": "variable", "val": "variable", "module": "module", "package": "package",
}  # fmt: skip
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
    base: float = 0.0
    """What it is worth for what it costs, but for the time that has passed; a logarithm."""
    offset: int = -2
    """Where it first stands in its place; -2 until somebody looked."""
    line: str = ""
    """The line it stands in there, where that is short enough to be quoted."""
    beside: tuple[str, ...] = ()
    """The names in that line."""
    word: str = ""
    """What it is defined as there."""
    price: int = 0
    """Tokens of the name; 0 until somebody counted."""
    line_price: int = 0
    """Tokens of the line."""


def candidates(text: str, *, numbers: bool = False) -> Iterator[str]:
    """Find the names of a text, each once; long numbers too where they were chosen by somebody."""
    for token in dict.fromkeys(_TOKEN.findall(text)):
        name = token.strip("./-~@") if "/" not in token else token.rstrip("./-~@")
        if not 6 <= len(name) <= MAX_NAME:
            continue
        if "/" in name:
            if name.count("/") < len(name) // 3 and not name.startswith("//"):
                yield ending(name)
        elif name[0].isdigit():
            if numbers and name.isdigit():
                yield name
        elif not (name.isalpha() and name[1:].islower()) and _ODD.search(name):
            yield name


def ending(path: str) -> str:
    """Keep the end of a path that is only mentioned: the last components tell it from others."""
    parts = path.split("/")
    return "/".join(parts[-ENDING:]) if len(parts) > ENDING else path.lstrip("/")


class Names:
    """The names of all that left the view."""

    __slots__ = ("sightings",)

    def __init__(self) -> None:
        self.sightings: dict[str, Sighting] = {}

    def gather(self, places: Iterable[Place], room: int) -> None:
        """Read places from the newest on until there are names enough; calls and answers are cheap and always read."""
        left = room * SURPLUS
        for place in places:
            if left <= 0 and place.speaker == "output":
                continue
            for name in candidates(place.text, numbers=place.speaker != "output"):
                left -= self._note(name, place)
        if len(self.sightings) > MAX_NAMES:
            kept = sorted(self.sightings.items(), key=lambda item: (-item[1].at, item[0]))[: MAX_NAMES * 2 // 3]
            self.sightings = dict(kept)

    def _note(self, name: str, place: Place) -> int:
        """Note that a name stands at a place; return about what it costs when it is new."""
        sighting = self.sightings.get(name)
        cost = 0
        if sighting is None:
            sighting = self.sightings[name] = Sighting(place.at, place)
            cost = len(name) // 3
        elif place.at > sighting.at:
            sighting.at, sighting.place, sighting.offset = place.at, place, -2
        if place.speaker == "call":
            sighting.calls += 1
            sighting.called_at = max(sighting.called_at, place.at)
        elif place.speaker == "output":
            sighting.outputs += 1
        elif place.speaker == "answer":
            sighting.told = True
        else:
            sighting.asked = True
        sighting.base = _base(name, sighting)
        return cost

    def remember(self, words: str, place: Place) -> None:
        """Take over names that an earlier pass told."""
        for name in candidates(words):
            if name not in self.sightings:
                sighting = self.sightings[name] = Sighting(-1, place, calls=1)
                sighting.base = _base(name, sighting)

    def ranked(self, now: int) -> list[str]:
        """Order names by what they are worth for what they cost."""

        def score(item: tuple[str, Sighting]) -> tuple[float, str]:
            name, seen = item
            since = log1p(now - seen.called_at) if seen.called_at >= 0 else _NEVER
            return 0.61 * log1p(now - seen.at) + 0.14 * since - seen.base, name

        return [name for name, _ in sorted(self.sightings.items(), key=score)]


def _base(name: str, sighting: Sighting) -> float:
    used = 0.66 * log1p(sighting.calls) + 0.78 if sighting.calls else 0.0
    seen = 0.26 * log1p(sighting.outputs) if sighting.outputs else 0.0
    return used - seen + 0.81 * sighting.told + 0.43 * sighting.asked - log(len(name) / 3.5 + 2)


def definition(text: str, at: int) -> str:
    """Say what a name is defined as where it first stands, if it is defined there."""
    before = text[max(0, at - 80) : max(0, at)].rpartition("\n")[2]
    if before.endswith((") ", ")")):
        before = _RECEIVER.sub("", before)
    return _DEFINING.get(before.rstrip().rpartition(" ")[2], "")


def cost(name: str) -> float:
    """Estimate the tokens of a name in a list."""
    return len(name) / 3.4 + 1.3
