"""Where names are told: at the line of the fact they were seen with, in a line of their source or as what it uses.

A short line of code or prose that holds several names says more than the names alone and costs little more; it is
quoted as it stands. Names whose lines are long are only listed, with what each is where that can be seen.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter

import msgspec

from kompakt.engine.ledger import format as lines
from kompakt.engine.ledger.events import THOUGHT, Called, Event, Order, Spoken
from kompakt.engine.ledger.extract.numbers import IDS, id_words
from kompakt.engine.ledger.facts import Fact
from kompakt.engine.ledger.identifiers import Names, Place, Sighting, definition, ending, ends_of, found_in
from kompakt.engine.ledger.quotes import harmless, keyed, one_line, quoted

LINE = 110
"""Longest line that is quoted for its names."""

EXTRA = 3.0
"""How many times the price of its names a line may cost that says something of them in words."""

EXTRA_CODE = 1.25
"""The same for a line of code: it tells little more than its names."""

_NUMBERED = re.compile(r"\s*\d+\s*[\u2192|:\t]\s?")

_REMEMBERED = 4_096
"""Lines whose names are remembered, about 2 MB of them."""

Owner = tuple[str, str]
"""Kind and key of the fact whose line carries names, or nothing and a label of their own."""

Told = dict[Owner, str]


class Choice(msgspec.Struct, frozen=True, gc=False):
    """A name, or a line with several, that is told."""

    place: Place
    text: str
    sighting: Sighting
    is_line: bool
    price: int


THOUGHTS = "thoughts"
"""Where names were seen that the assistant only thought of."""


def places_of(events: Sequence[Event]) -> Iterator[Place]:
    """Go through the texts of events, newest first."""
    for event in reversed(events):
        if type(event) is Spoken:
            where = THOUGHTS if event.role == THOUGHT else ""
            yield Place(event.at, "user" if event.role == "user" else "answer", event.text, key=where)
        elif type(event) is Called:
            kind, key = _fact_of(event)
            if event.result is not None:
                yield Place(event.answered_at, "output", event.result.output, kind, key)
            yield Place(event.at, "call", event.words, kind, key)


def _fact_of(event: Called) -> Owner:
    """Name the fact whose line can carry the names of a call and its answer."""
    if event.command is not None:
        return "command", event.command
    for _, path in event.deed.files:
        return "file", keyed(path)
    return "", one_line(f"{event.origin} {event.deed.sought or event.words}", 50)


def named(facts: Sequence[Fact], known: Names, room: int, order: Order) -> tuple[Told, list[str], bool]:
    """Choose the names there is room for and put them where they were seen: at facts, and on lines of their own.

    The last value says whether there was room for all of them.
    """
    if room <= 0:
        return {}, [], True
    wanted = known.ranked(order.upto, [*order.shown(), *map(lines.line_of, facts)])[: room * _SEVERAL // _LEAST]
    lined = {(fact.kind, fact.key) for fact in facts}
    taken, all_names = _afforded(_choices(wanted, known, order), lined, room, order)
    return *_lay_out(taken), all_names


_SEVERAL = 2
_LEAST = 4
"""Tokens of the shortest name: more names than fit several times over are not worth a look."""


def _choices(wanted: Sequence[str], known: Names, order: Order) -> Iterator[Choice]:
    """Decide for each name, best first, whether its line is worth quoting; a line covers all names in it."""
    left = set(wanted)
    sightings = known.sightings
    for name in wanted:
        if name not in left:
            continue
        seen = sightings[name]
        if seen.offset == -2:
            _look(name, seen, order)
        most = EXTRA if _in_words(seen.line) else EXTRA_CODE
        if seen.line_price and seen.line_price <= most * _worth(seen.beside, left, sightings):
            here = [other for other in seen.beside if other in left]
            left.difference_update(here, *map(ends_of, here))
            yield Choice(seen.place, seen.line, seen, True, seen.line_price)
            continue
        left.discard(name)
        left.difference_update(ends_of(name))
        if seen.word is None:
            seen.word = _word(name, seen)
        yield Choice(seen.place, name, seen, False, seen.price + (2 if seen.word else 0))


def _worth(beside: Iterable[str], left: set[str], sightings: dict[str, Sighting]) -> int:
    """Add up what those names of a line cost that are still to be told."""
    total = 0
    for other in beside:
        if other in left:
            total += sightings[other].price or len(other) // 3
    return total


def _look(name: str, seen: Sighting, order: Order) -> None:
    """Find out how a name stands at its place: the line, what else is in it; and what that costs."""
    place = seen.place
    at = seen.offset = place.text.find(name)
    seen.price = seen.price or order.count(name) + 1
    seen.word = None
    seen.line = line = "" if at < 0 or place.at < 0 else _line_around(place.text, at)
    seen.beside = beside = _names_in(line) if line else ()
    seen.line_price = order.count(line) + 3 if name in beside else 0


def _line_around(text: str, at: int) -> str:
    """Return the line around a place, without its number; nothing when it is too long to be quoted."""
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at, start + 2 * LINE + 1)
    if end < 0:
        end = len(text)
        if end - start > 2 * LINE:
            return ""
    numbered = _NUMBERED.match(text, start, end)
    line = text[start if numbered is None else numbered.end() : end].strip()
    return line if len(line) <= LINE else ""


def _word(name: str, seen: Sighting) -> str:
    """Say what a name is where it stands; asked only of those that are told alone."""
    if seen.offset < 0:
        return ""
    if "_" not in name and IDS.fullmatch(name):
        return id_words(name, seen.place.text)
    return "" if seen.line.startswith(name) else definition(seen.place.text, seen.offset)


@lru_cache(maxsize=_REMEMBERED)
def _in_words(line: str) -> bool:
    """Tell whether a line says something in ordinary words, and is not code alone."""
    return len(_ORDINARY.findall(line)) >= _FEWEST_WORDS


_ORDINARY = re.compile(r"(?<![\w./\\-])[a-z]{2,}(?![\w/\\(=]|[.:-]\w)")
_FEWEST_WORDS = 2


@lru_cache(maxsize=_REMEMBERED)
def _names_in(line: str) -> tuple[str, ...]:
    """Find the names of a line; what is read once is often read again."""
    return tuple(found_in(line).all)


def _afforded(
    choices: Iterable[Choice], lined: set[Owner], room: int, order: Order
) -> tuple[dict[Owner, list[Choice]], bool]:
    """Take choices in their order while there is room, each new place of theirs paid for too; say if that was all."""
    taken: dict[Owner, list[Choice]] = {}
    labels: dict[tuple[int, str, str], str] = {}
    misses = 0
    for choice in choices:
        place = choice.place
        owner = (place.kind, place.key)
        if owner not in lined or (place.kind == "file" and "/" in choice.text):  # done to one, said of no other
            spot = (place.at, place.speaker, place.key)
            owner = ("", labels.get(spot) or labels.setdefault(spot, _label(place, order)))
        price = choice.price
        if owner not in taken:
            price += 5 if owner[0] else order.count(owner[1]) + 3
        if price > room:
            misses += 1
            if room < _END or misses > _MISSES:
                break
            continue
        room -= price
        taken.setdefault(owner, []).append(choice)
    return taken, not misses


_END = 12
"""Tokens that are too few for another name."""

_MISSES = 25
"""Choices too dear for what is left that are passed over."""


def _label(place: Place, order: Order) -> str:
    if place.at < 0:
        return f"{place.reference} {lines.SEEN if place.kind else ''}{place.key}"
    where = place.key or {"user": "the user's words", "answer": "the answer"}.get(place.speaker, "a call")
    where = ending(where) if place.kind == "file" else one_line(where, LABEL)
    return f"{order.reference(place.at)} {lines.SEEN}{harmless(where).replace(': ', ' ')}"


LABEL = 28
"""Characters of a command or a call that say where names were seen; the reference says the rest."""


def _lay_out(taken: dict[Owner, list[Choice]]) -> tuple[Told, list[str]]:
    """Write what is told place by place, oldest first."""
    told: Told = {}
    loose: list[str] = []
    for owner, chosen in sorted(taken.items(), key=lambda item: (item[1][0].place.at, item[0])):
        phrase = " ".join(_phrases(chosen))
        if owner[0]:
            told[owner] = f"{lines.THERE}{phrase}"
        else:
            loose.append(f"{owner[1]}: {phrase}")
    return told, loose


def _phrases(chosen: Iterable[Choice]) -> Iterator[str]:
    by_place: dict[int, list[Choice]] = {}
    for choice in chosen:
        by_place.setdefault(id(choice.place), []).append(choice)
    for here in by_place.values():
        listed = [choice for choice in here if not choice.is_line]
        if len(listed) < len(here):
            quotations = sorted({(choice.sighting.offset, choice.text) for choice in here if choice.is_line})
            yield from [quoted(line, LINE) for _, line in quotations]
        if listed:
            yield told_as(listed)


def told_as(listed: Sequence[Choice]) -> str:
    """Put the names of one text into words: what it defines, and what each definition and the rest do with others."""
    defined: list[tuple[int, str]] = []
    others: list[tuple[int, str, str]] = []
    for one in sorted(listed, key=lambda one: (one.sighting.offset, one.text)):
        offset, name, word = one.sighting.offset, one.text, one.sighting.word
        label = f"{word} {name}" if word else name
        if word and not IDS.fullmatch(name):
            defined.append((offset, label))
        else:
            others.append((offset, _role(one.place, offset, name), label))
    starts = [offset for offset, _ in defined]
    used: list[list[tuple[str, str]]] = [[] for _ in range(len(defined) + 1)]
    for offset, role, label in others:
        used[bisect(starts, offset)].append((role, label))
    phrases = [f"{label} {_using(found)}".rstrip() for (_, label), found in zip(defined, used[1:], strict=True)]
    return " and ".join(filter(None, [_using(used[0]), *phrases]))


def _role(place: Place, at: int, name: str) -> str:
    """Say what a text does with a name where it first stands; of what an earlier pass told, what that said."""
    text, end = place.text, at + len(name)
    if place.at < 0:
        said = _ROLES.findall(text, 0, max(0, at))
        return said[-1] if said else "uses"
    if at < 0:
        return "uses"
    if text.startswith("(", end):
        return "calls"
    if _SETS.match(text, end):
        return "sets"
    return "imports" if _IMPORTS.match(text, text.rfind("\n", 0, at) + 1, at) else "uses"


_ROLES = re.compile(r"\b(calls|sets|imports|uses) ")
_SETS = re.compile(r"\"?\s?:?=[^=>]|\"?:\s")
_IMPORTS = re.compile(r"(?:\s*\d+\s*[\u2192|:\t])?\s*(?:from \S+ )?(?:import|#include)\b")


def _using(found: Sequence[tuple[str, str]]) -> str:
    """Say what is done with names, those that go alike in the order in which they stand."""
    by_role = groupby(sorted(found, key=itemgetter(0)), key=itemgetter(0))
    return ", ".join(f"{role} {' and '.join([label for _, label in names])}" for role, names in by_role)
