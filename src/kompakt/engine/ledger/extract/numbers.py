"""Numbers with their keys and ids with what they name: values that were told, and that somebody may ask for again.

A number counts where prose or a short printout gives it a key. An id counts where it comes with words. Cost: prose and
short printouts only; a long output is somebody's file or log, where every line has a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

PRINTOUT = 4_000
"""Longest output, in characters, that is searched for keyed numbers."""

_PRINTED = re.compile(r"^[ \t]*([A-Za-z_][\w .-]{2,40}?)\s*[:=]\s*(\d[\d.,]*\d%?)[ \t]*(\w{0,10})$", re.MULTILINE)
_CLOCK = re.compile(r"\b(?:time|lines?|date)$|\.\w{1,5}$", re.IGNORECASE)
IDS = re.compile(
    r"(?=[0-9a-fA-Z])(?<![\w./-])(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}|[A-Z]{2,8}-\d{1,6})(?![\w-])"
)


def printed_numbers(output: str) -> Iterator[tuple[str, str]]:
    """Find the lines of a short printout that are a key and a number."""
    if len(output) < PRINTOUT:
        for found in _PRINTED.finditer(output):
            if not _CLOCK.search(found[1]):
                yield found[1].strip(), found[2]
