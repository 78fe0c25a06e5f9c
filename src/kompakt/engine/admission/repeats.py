"""What a history has shown before: whole outputs, and lines of them.

What stands in the context already is pointed to, not said again. Only lines that were really shown count: what was
folded away once and is asked for again is shown. Grows with the history; looking costs one lookup a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kompakt.engine.admission.page import page_of
from kompakt.model.messages import ToolCall

_MIN_ANCHOR = 16
"""Characters of a line that is looked up; shorter ones, such as a closing brace, stand everywhere."""

_MIN_RUN = 200
"""Characters of a run that is worth pointing to."""

_BREAK = "\n"
"""Stands in a list of lines where something is missing; no line equals it."""


class Run(msgspec.Struct, frozen=True):
    """Lines that were shown before: from ``start`` up to ``end``, and the name of where they stand."""

    start: int
    end: int
    reference: str


class Seen:
    """The lines that one history has shown."""

    __slots__ = ("_folded", "_places", "_texts", "_wholes", "calls")

    def __init__(self) -> None:
        self.calls: dict[str, ToolCall] = {}
        """The calls that wait for their results, by their ids."""
        self._texts: list[tuple[str, Sequence[str]]] = []
        self._places: dict[str, tuple[int, int]] = {}
        self._wholes: dict[str, str] = {}
        self._folded: set[str] = set()

    def add_text(self, reference: str, text: str) -> None:
        """Note an output that is shown as it came."""
        self.add_whole(reference, text)
        self.add(reference, page_of(text).lines)

    def add(self, reference: str, lines: Sequence[str]) -> None:
        """Note lines that are shown from now on."""
        number = len(self._texts)
        self._texts.append((reference, lines))
        self._places.update(
            {line: (number, place) for place, line in enumerate(lines) if len(line) >= _MIN_ANCHOR},
        )

    def add_whole(self, reference: str, text: str) -> None:
        """Note a whole output; the first of its kind is the one pointed to."""
        self._wholes.setdefault(text, reference)

    def whole(self, text: str) -> str | None:
        """Return the name of an equal output."""
        return self._wholes.get(text)

    def add_folded(self, lines: Iterable[str]) -> None:
        """Note lines that were there and are not shown."""
        self._folded.update(line for line in lines if len(line) >= _MIN_ANCHOR)

    def was_folded(self, lines: Iterable[str]) -> bool:
        """Tell whether most of these lines were folded away before, so that somebody asks for them again."""
        anchors = [line for line in lines if len(line) >= _MIN_ANCHOR]
        return bool(anchors) and sum(line in self._folded for line in anchors) * 2 > len(anchors)

    def runs(self, lines: Sequence[str]) -> list[Run]:
        """Find the runs of lines that were shown before, in order and without overlap."""
        found: list[Run] = []
        if not self._places:
            return found
        place = floor = 0
        while place < len(lines):
            spot = self._places.get(lines[place])
            if spot is None:
                place += 1
                continue
            start, end = self._extent(lines, place, floor, spot)
            if sum(map(len, lines[start:end])) + end - start >= _MIN_RUN:
                found.append(Run(start, end, self._texts[spot[0]][0]))
                floor = end
            place = end
        return found

    def _extent(self, lines: Sequence[str], place: int, floor: int, spot: tuple[int, int]) -> tuple[int, int]:
        """Extend a match of one line to both sides."""
        theirs = self._texts[spot[0]][1]
        start, at = place, spot[1]
        while start > floor and at > 0 and lines[start - 1] == theirs[at - 1] != _BREAK:
            start, at = start - 1, at - 1
        end, at = place + 1, spot[1] + 1
        while end < len(lines) and at < len(theirs) and lines[end] == theirs[at] != _BREAK:
            end, at = end + 1, at + 1
        return start, end
