"""Dates in a history: a message may begin with one, and it then holds for what follows.

Recorded conversations are stamped where a sitting begins, not at every message. So that "in May 2023" finds what was
said that day, the stamp is carried along.
"""

from __future__ import annotations

import re

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(?P<month>Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\b\.?"
)
_YEAR = r"(?P<year>(?:19|20)\d\d)\b"
_WRITTEN = (
    re.compile(rf"\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? {_MONTH},? ?(?:{_YEAR})?"),
    re.compile(rf"\b{_MONTH} (?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b(?:,? {_YEAR})?"),
    re.compile(rf"\b{_MONTH},? (?:of )?{_YEAR}"),
    re.compile(r"\b(?P<year>(?:19|20)\d\d)-(?P<month>\d\d)-(?P<day>\d\d)"),
)
_ALONE = (
    re.compile(rf"\b(?:in|of|since|until|by|during|last|this|early|late|mid) {_MONTH}"),
    re.compile(rf"\b{_YEAR}"),
)

_MAX_STAMP = 80
"""Longest first line that is a stamp and not a sentence with a date in it."""

_WHEN = re.compile(r"\b(?:when|how long|(?:what|which) (?:year|month|date|day|time|week))\b", re.IGNORECASE)

_TIME_TERMS = (
    "yesterday todai tonight tomorrow ago last next since week weekend month year dai mondai tuesdai wednesdai "
    "thursdai fridai saturdai sundai januari februari march april june juli august septemb octob novemb decemb "
    "recent soon night morn"
)

TIME_TERMS = frozenset(_TIME_TERMS.split(" ")).union(map(str, range(1900, 2100)))
"""Stems that say when something was."""


def stamp(text: str) -> frozenset[str]:
    """Read the full date in a short first line: year, month and day as terms; empty when there is none."""
    line = text[: _MAX_STAMP + 1].partition("\n")[0]
    if len(line) > _MAX_STAMP:
        return frozenset()
    for pattern in _WRITTEN:
        found = pattern.search(line)
        if found is not None and found["year"]:
            return _parts(found)
    return frozenset()


def asked(query: str) -> frozenset[str]:
    """Read the dates that a query names, whole or in part."""
    found: set[str] = set()
    for pattern in (*_WRITTEN, *_ALONE):
        for one in pattern.finditer(query):
            found |= _parts(one)
    return frozenset(found)


def asks_when(query: str) -> bool:
    """Tell whether a query asks for a time."""
    return _WHEN.search(query) is not None


def _parts(found: re.Match[str]) -> frozenset[str]:
    groups = found.groupdict()
    month, day, year = groups.get("month"), groups.get("day"), groups.get("year")
    parts: set[str] = {year} if year else set()
    if month:
        parts.add(_MONTHS[int(month) - 1] if month.isdigit() and 1 <= int(month) <= 12 else month[:3].lower())
    if day:
        parts.add(f"day {int(day)}")
    return frozenset(parts)
