"""Numbers with their keys, and ids with what they name.

A number counts where somebody writes ``someKey = 12`` or ``some_key: 12`` in prose, or where a command prints a line
``some key: 12``; a line number behind a file is a place, not a value. An id counts once it is used: said by the user or
given to a call, after it came with words for what it names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kompakt.evals.facts.fact import Fact
from kompakt.evals.facts.markup import own_text
from kompakt.evals.facts.shell import command_of
from kompakt.evals.sources.trail import Call, Event, strings

_SAID = re.compile(r"(?<![\w./-])([A-Za-z_][\w-]{3,40})[`*\"]*(?: ?= ?|: ?| is )[`*\"]*(\d[\d.,]*\d%?)(?![\w-])")
_PRINTED = re.compile(r"^[ \t]*([A-Za-z_][\w -]{3,40}?)\s*[:=]\s*(\d[\d.,]*\d%?)(?: [A-Za-z%]{1,10})?$", re.M)
_NAMELIKE = re.compile(r"[a-z0-9][A-Z]|_|[A-Z]{2}|-")
_PLACE = re.compile(r"\blines?$|\btime$|\bdate$", re.IGNORECASE)

_ID = re.compile(
    r"(?<![\w./-])(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}|[A-Z]{2,8}-\d{1,6})(?![\w-])"
)
_WORD = re.compile(r"[A-Za-z]{4,}")


def number_facts(trail: Iterable[Event], pairs: Iterable[Call]) -> Iterator[Fact]:
    """Yield numbers with the key they stand behind."""
    for event in trail:
        if event.kind in ("user", "assistant") and not event.summary:
            said = _numbers(_SAID, own_text(event.text), "")
            yield from (fact for fact in said if _NAMELIKE.search(fact.relation))
    for call in pairs:
        if call.result is not None and command_of(call.event) is not None and len(call.result.text) < 4000:
            yield from _numbers(_PRINTED, call.result.text, call.event.id)


def _numbers(pattern: re.Pattern[str], text: str, origin: str) -> Iterator[Fact]:
    for found in pattern.finditer(text):
        key = found[1].strip()
        if not _PLACE.search(key):
            yield Fact("number", found[2], key, re.escape(key), (origin,) if origin else ())


def id_facts(trail: Iterable[Event]) -> Iterator[Fact]:
    """Yield ids that were used, each with the words it came with."""
    named: dict[str, str] = {}
    used: set[str] = set()
    for event in trail:
        uses = event.kind == "call" or (event.kind == "user" and not event.summary)
        text = "\n".join(strings(event.input)) if event.kind == "call" else event.text
        for found in _ID.finditer(text):
            if found[0] in named and uses:
                used.add(found[0])
            words = _naming(text, found) if event.kind != "call" else ""
            if words:
                named.setdefault(found[0], words)
    for id in sorted(used):
        yield Fact("id", id, named[id], "|".join(rf"\b{word}\b" for word in named[id].split()))


def _naming(text: str, found: re.Match[str]) -> str:
    """Return the words next to an id, on its line."""
    start = text.rfind("\n", 0, found.start()) + 1
    end = text.find("\n", found.end())
    line = (
        text[max(start, found.start() - 60) : found.start()] + " " + text[found.end() : end if end >= 0 else None][:60]
    )
    words = dict.fromkeys(word for word in _WORD.findall(line) if not word.isupper())
    return " ".join(list(words)[:6])
