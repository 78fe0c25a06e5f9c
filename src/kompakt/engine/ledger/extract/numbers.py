"""Numbers with their keys and ids with what they name: values that were told, and that somebody may ask for again.

A number counts where prose or a short printout gives it a key. An id counts where it comes with words. Cost: prose and
short printouts only; a long output is somebody's file or log, where every line has a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

PRINTOUT = 4_000
"""Longest output, in characters, that is searched for keyed numbers."""

AROUND = 48
"""Characters kept on either side of an id: the words that say what it is."""

_SAID = re.compile(r"(?<![\w./-])([A-Za-z_][\w.-]{3,40})([`*\"]*(?: ?[=:] ?| is )[`*\"]*)(\d[\d.,]*\d%?)(?![\w-])")
_PRINTED = re.compile(r"^[ \t]*([A-Za-z_][\w .-]{2,40}?)\s*[:=]\s*(\d[\d.,]*\d%?)[ \t]*(\w{0,10})$", re.MULTILINE)
_FENCED = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_CLOCK = re.compile(r"\b(?:time|lines?|date)$|\.\w{1,5}$", re.IGNORECASE)
IDS = re.compile(
    r"(?=[0-9a-fA-Z])(?<![\w./-])(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}|[A-Z]{2,8}-\d{1,6})(?![\w-])"
)
_WORDS = re.compile(r"[A-Za-z]{4,}")


def told_numbers(text: str) -> Iterator[tuple[str, str]]:
    """Find the numbers that prose gives a key, as (key, number)."""
    bare = _FENCED.sub("\n", text) if "```" in text else text
    for found in _SAID.finditer(bare):
        if not _CLOCK.search(found[1]):
            yield found[1], found[3]


def printed_numbers(output: str) -> Iterator[tuple[str, str]]:
    """Find the lines of a short printout that are a key and a number."""
    if len(output) < PRINTOUT:
        for found in _PRINTED.finditer(output):
            if not _CLOCK.search(found[1]):
                yield found[1].strip(), found[2]


def id_words(id: str, text: str) -> str:
    """Say in a few words of its own line what an id names."""
    at = text.find(id)
    if at < 0:
        return ""
    start = max(text.rfind("\n", 0, at) + 1, at - AROUND)
    end = text.find("\n", at, at + len(id) + AROUND)
    before = _WORDS.findall(text[start:at])
    after = _WORDS.findall(text[at + len(id) : at + len(id) + AROUND if end < 0 else end])
    return " ".join(before[-3:] or after[:3])
