"""The answer to a search: as many of the best passages as fit, in the order of the history.

Small ones that fit are not held back by a large one that does not. What another passage has already said is left out,
since agents read the same file again and again. Neighbouring turns share one reference: the words of a conversation
cost more than their names. What stands near and did not fit is named at the end. Cost: the passages that are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from kompakt.engine.recall.result import Hit, Recalled
from kompakt.model.tokens import Counter

_TOKEN = re.compile(r"(?:[~@]|(?<![\w.-]))[\w.-]*+(?:/[\w.@+-]+)+|[A-Za-z_]\w*(?:[.-]\w+)*|\d[\w.-]*")
_INNER_CAPITAL = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2}[a-z]")

_LINE_NUMBER = re.compile(r"(?<=\w)-\d+\Z")
"""What a search prints behind a path."""

_SHORTEST = 6
_LONGEST = 120
"""Characters of a name: shorter ones say little, longer ones are data."""


def names(text: str) -> Iterator[str]:
    """Yield the names in a text; ordinary words are none."""
    for found in _TOKEN.findall(text):
        name = found.rstrip("./-")
        if "/" in name:
            name = _LINE_NUMBER.sub("", name)
        if _SHORTEST <= len(name) <= _LONGEST and _is_name(name):
            yield name


def _is_name(name: str) -> bool:
    if name.replace("-", "").isalpha():
        return _INNER_CAPITAL.search(name) is not None
    return True


def listed(found: Iterable[str], *, beside: str, tokens: int, counter: Counter) -> list[str]:
    """Take as many names as fit that do not stand beside them already."""
    taken: list[str] = []
    for name in dict.fromkeys(found):
        if name in beside:
            continue
        cost = counter.scaled(counter.text(f" {name}"))
        if cost <= tokens:
            taken.append(name)
            tokens -= cost
        if tokens < 3:
            break
    return taken


_LOOK_AT = 80
"""Passages that are tried, best first, before an answer is taken for full."""

_LEAST = 12
"""Tokens below which no further passage is tried."""

_HEADER = 7
"""About what a reference and a label cost; the exact count follows when all is written."""

_SAID = 0.6
"""Share of a passage's lines that stand in the answer already before it is left out."""

_PASSES = 4
"""How often room that was left is filled again."""

_NAMES_FROM = 40
"""Best passages whose names may be listed."""

_MIN_NAMES = 12
"""Names in them before there is a list: a conversation has few, and needs the room for its words."""

NAMES_SHARE = 0.4
"""Share of an answer that lists names, where there are any; the other part is passages."""

NEAR_SHARE = 0.6
"""Share of that list which stands near; the other part was used last."""


class AnswerPassage(msgspec.Struct, frozen=True, gc=False):
    """A passage as it may be printed."""

    place: int
    score: float
    message: int
    reference: str
    label: str
    text: str
    whole: bool
    """Whether it is all of its message."""
    named: bool = False
    """Whether its text begins with the name of who speaks."""

    def line(self, *, follows: bool) -> str:
        """Write the text behind its label; what follows its neighbour needs no reference, and no role beside a name."""
        gap = "\n" if "\n" in self.text.strip() else " "
        if not follows:
            return f"{self.reference} {self.label}{gap if self.named else ':' + gap}{self.text}"
        return self.text if self.named else f"{self.label}:{gap}{self.text}"


class AnswerBuilder:
    """Puts one answer together within a number of tokens."""

    __slots__ = ("_counter", "_said", "_tokens", "chosen")

    def __init__(self, *, tokens: int | None, counter: Counter) -> None:
        self._tokens = tokens
        self._counter = counter
        self._said: set[str] = set()
        self.chosen: list[AnswerPassage] = []

    def _size(self, text: str) -> int:
        return self._counter.scaled(self._counter.text(text))

    def fill(self, waiting: Iterable[AnswerPassage], tokens: int | None) -> None:
        """Choose passages, best first; what the estimate left over is filled in further passes."""
        for _ in range(_PASSES):
            before = len(self.chosen)
            room = None if tokens is None else tokens - self._size(printed(self.chosen))
            waiting = self._take(waiting, room)
            if len(self.chosen) == before or tokens is None:
                break
        while self.chosen and tokens is not None and self._size(printed(self.chosen)) > tokens:
            self.chosen.pop()
        best = next(iter(waiting), None)
        if not self.chosen and best is not None and self._tokens is not None:
            self.chosen = self._beginning(best, self._tokens)

    def _take(self, waiting: Iterable[AnswerPassage], room: int | None) -> list[AnswerPassage]:
        """Move what fits from the waiting to the chosen; return what still waits."""
        left: list[AnswerPassage] = []
        for one in waiting:
            if room is not None and room < _LEAST:
                left.append(one)
                break
            lines = [line for line in map(str.strip, one.text.split("\n")) if line]
            if sum(line in self._said for line in lines) > _SAID * len(lines):
                continue
            cost = self._counter.scaled(self._counter.text(one.text) + _HEADER)
            if room is not None and cost > room:
                left.append(one)
                continue
            self.chosen.append(one)
            self._said.update(lines)
            room = None if room is None else room - cost
        return left

    def _beginning(self, one: AnswerPassage, tokens: int) -> list[AnswerPassage]:
        """Cut the best passage where not even that fits."""
        low, high = 0, len(one.text)
        while low < high:
            middle = (low + high + 1) // 2
            fits = self._size(printed([msgspec.structs.replace(one, text=one.text[:middle])])) <= tokens
            low, high = (middle, high) if fits else (low, middle - 1)
        return [msgspec.structs.replace(one, text=one.text[:low])] if low else []

    def names_line(self, near: Iterable[str], used: Iterable[str], *, beside: str) -> str:
        """List names for the room that is left."""
        if self._tokens is None:
            return ""
        room = self._tokens - self._size(beside) - 2 * _HEADER
        first = listed(near, beside=beside, tokens=int(room * NEAR_SHARE), counter=self._counter)
        room -= self._size(" ".join(first))
        others = (name for name in used if name not in first)
        last = listed(others, beside=beside, tokens=room, counter=self._counter)
        while first or last:
            found = [f"named near: {' '.join(first)}"] * bool(first) + [f"used last: {' '.join(last)}"] * bool(last)
            line = f"[kompakt] Also {'; '.join(found)}"
            if self._size(f"{beside}\n{line}") <= self._tokens:
                return line
            (last or first).pop()
        return ""


def answer(
    ranked: Sequence[tuple[int, float]],
    entry: Callable[[int, float], AnswerPassage],
    used: Iterable[str],
    *,
    shown: frozenset[str],
    tokens: int | None,
    counter: Counter,
) -> Recalled:
    """Print the best passages within a number of tokens, then names that are not shown elsewhere."""
    best = [entry(place, score) for place, score in ranked[:_NAMES_FROM]]
    near = list(dict.fromkeys(name for one in best for name in names(one.text)))
    if len(near) < _MIN_NAMES:
        near = []
    names_room = int(tokens * NAMES_SHARE) if tokens is not None and near else 0
    answering = AnswerBuilder(tokens=tokens, counter=counter)
    answering.fill(_entries(best, ranked, entry), None if tokens is None else tokens - names_room)
    chosen = answering.chosen
    if not chosen:
        return Recalled(text="")
    text = printed(chosen)
    line = answering.names_line((name for name in near if name not in shown), used, beside=text) if near else ""
    text = f"{text}\n{line}" if line else text
    return Recalled(
        text=text,
        references=tuple(dict.fromkeys(one.reference for one in chosen)),
        tokens=counter.scaled(counter.text(text)),
        hits=tuple(Hit(one.reference, one.score, one.label, one.text) for one in chosen),
    )


def _entries(
    best: Sequence[AnswerPassage], ranked: Sequence[tuple[int, float]], entry: Callable[[int, float], AnswerPassage]
) -> Iterator[AnswerPassage]:
    """Go through the candidates; those beyond the best are made only when it comes to them."""
    yield from best
    for place, score in ranked[len(best) : _LOOK_AT]:
        yield entry(place, score)


def printed(chosen: Sequence[AnswerPassage]) -> str:
    """Write passages in the order of the history; a whole message right behind another needs no reference."""
    lines: list[str] = []
    previous: AnswerPassage | None = None
    for one in sorted(chosen, key=lambda one: one.place):
        follows = previous is not None and previous.whole and one.whole and one.message == previous.message + 1
        lines.append(one.line(follows=follows))
        previous = one
    return "\n".join(line.removesuffix("\n") for line in lines)
