"""Lines of an output: their printed line numbers, and which lines the history showed before.

Line numbers take about a third of the tokens of a file. Each follows from the one before, so one in ten is enough, and
without them the lines equal those of the file, which an edit has to quote. Lines that are in the context already are
replaced by a pointer; lines that were folded are shown when they are read again. Cost: one lookup per line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import eq

import msgspec

from kompakt.model.messages import ToolCall
from kompakt.model.phrases import FOLD

_NUMBER = re.compile(r" *(\d{1,7})(?:→|\t|:(?!\d) ?|\| ?)")

_MIN_LINES = 5
"""Minimum numbered lines of a page; fewer are a list."""

_MIN_SHARE = 0.6
"""Minimum share of numbered lines: a page may have a header and a trailer."""


_MIN_FOLLOWS = 0.9
"""Share of the numbers that must follow from the one before: a page may be cut once or twice."""

_SAMPLE = 40
"""Lines that are checked before all are."""


class NumberedText(msgspec.Struct, frozen=True):
    """Lines without their numbers."""

    lines: list[str]
    numbers: list[int]
    """The number of each line; counted from 1 where none is printed, 0 for lines around a numbered page."""
    found: list[re.Match[str] | None] | None = None
    """The numbers as they were printed; ``None`` when there are none."""

    @property
    def is_numbered(self) -> bool:
        """Return whether numbers were printed."""
        return self.found is not None

    @property
    def first(self) -> int:
        """The first number of the page."""
        return next((number for number in self.numbers if number), 1)

    def prefix(self, place: int) -> str:
        """Return the number of a line as it was printed."""
        match = self.found[place] if self.found is not None else None
        return match[0] if match is not None else ""


def numbered_text(text: str) -> NumberedText:
    """Read a text as a page."""
    lines = text.split("\n")
    return _numbered(lines) or plain(lines)


def plain(lines: list[str]) -> NumberedText:
    """Take lines as they are."""
    return NumberedText(lines, list(range(1, len(lines) + 1)))


def _numbered(lines: list[str]) -> NumberedText | None:
    """Remove the numbers if nearly every line has one and each follows from the one before."""
    sample = lines[:_SAMPLE]
    if len(lines) < _MIN_LINES or sum(_NUMBER.match(line) is not None for line in sample) * 3 < len(sample):
        return None
    found = [_NUMBER.match(line) for line in lines]
    numbers = [int(match[1]) if match else 0 for match in found]
    count = len(numbers) - numbers.count(0)
    follows = sum(map(eq, numbers[1:], [number + 1 for number in numbers]))
    if count < max(_MIN_LINES, len(lines) * _MIN_SHARE) or follows < (count - 1) * _MIN_FOLLOWS:
        return None
    bare = [line[match.end() :] if match else line for line, match in zip(lines, found, strict=True)]
    return NumberedText(bare, numbers, found)


def write(
    page: NumberedText,
    keep: Collection[int],
    marks: Mapping[int, tuple[int, str]],
    *,
    every: int,
    exact: Collection[int] = (),
) -> tuple[str, int]:
    """Write the lines kept; return the text and how many lines are not in it.

    One number in ``every`` is written, and those of the lines in ``exact``. ``marks`` has, for the first line of a run,
    the end of the run and the text that replaces it. For other runs, the number of the last line is added to the line
    before the run.
    """
    out: list[str] = []
    folded, fresh, last = 0, True, -1
    for place in [*sorted({*keep, *marks}), len(page.lines)]:
        if place <= last:
            continue
        if place > last + 1 and _fold(page, out, last + 1, place):
            folded += place - last - 1
            fresh = fresh or last < 0
        if place in marks:
            last, mark = marks[place][0] - 1, marks[place][1]
            out.append(mark)
            folded += last - place + 1
            fresh = True
        elif place < len(page.lines):
            number = page.numbers[place]
            out.append(
                (page.prefix(place) if fresh or not number % every or place in exact else "") + page.lines[place]
            )
            fresh, last = fresh and not number, place
    return "\n".join(out), folded


def _fold(page: NumberedText, out: list[str], start: int, end: int) -> bool:
    """Replace the lines from ``start`` up to ``end`` by a number; short runs are written out instead."""
    lines = page.lines[start:end]
    if end - start <= 2 and sum(map(len, lines)) <= len(FOLD) + 4:
        out += lines
        return False
    last = page.numbers[end - 1] or end
    if out:
        out[-1] += f" {FOLD}{last}"
    else:
        out.append(f"{FOLD}{page.numbers[start] or start + 1}-{last}")
    return True


def written_lines(page: NumberedText, keep: Sequence[int]) -> tuple[str, ...]:
    """List the lines that are shown, with a break where something between them is not."""
    shown: list[str] = []
    last = -1
    for place in keep:
        if place != last + 1:
            shown.append("\n")
        shown.append(page.lines[place])
        last = place
    return tuple(shown)


_MIN_ANCHOR = 16
"""Minimum characters of a line that is looked up; shorter ones, such as a closing brace, are everywhere."""

_MIN_RUN = 200
"""Minimum characters of a run that is replaced by a pointer."""

_BREAK = "\n"
"""Marks a gap in a list of lines; no line equals it."""


class SeenRun(msgspec.Struct, frozen=True):
    """A run of lines that was shown before, and the reference of the earlier output."""

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
        """Record an output that is shown unchanged."""
        self.add_whole(reference, text)
        self.add(reference, numbered_text(text).lines)

    def add(self, reference: str, lines: Sequence[str]) -> None:
        """Record lines that are shown from now on."""
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
        """Record lines that were folded."""
        self._folded.update(line for line in lines if len(line) >= _MIN_ANCHOR)

    def was_folded(self, lines: Iterable[str]) -> bool:
        """Return whether most of these lines were folded before, so the agent asks for them again."""
        anchors = [line for line in lines if len(line) >= _MIN_ANCHOR]
        return bool(anchors) and sum(line in self._folded for line in anchors) * 2 > len(anchors)

    def runs(self, lines: Sequence[str]) -> list[SeenRun]:
        """Find the runs of lines that were shown before, in order and without overlap."""
        found: list[SeenRun] = []
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
                found.append(SeenRun(start, end, self._texts[spot[0]][0]))
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
