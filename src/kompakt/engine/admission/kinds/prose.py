"""Written words: documents and reports. Every sentence stays; of code quoted at length, signatures and ids.

Quoted code stands in a file as well, most of the time, and the sentences around it say what it is about. Cost: one look
at each line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kompakt.engine.admission.kinds.source import is_signature
from kompakt.engine.admission.page import Page
from kompakt.engine.ledger.extract.numbers import IDS

_FENCES = ("```", "~~~")

_MIN_BLOCK = 8
"""Lines of a quotation from which its bodies go."""

_HEAD = 2
"""Lines of a quotation that stay whatever they say."""


def sentences(page: Page, left: Sequence[int]) -> set[int]:
    """Choose the lines that stay of a text in which code is quoted."""
    keep = set(left)
    for start, end in _blocks(page.lines):
        if end - start >= _MIN_BLOCK and _is_code(page.lines[start:end]):
            keep.difference_update(place for place in range(start + _HEAD, end) if not _stays(page.lines[place]))
    return keep


def _is_code(lines: Sequence[str]) -> bool:
    """Tell code from data, which defines nothing: its first and last lines are brackets."""
    return any(line.strip(" \t{}[]") and is_signature(line) for line in lines)


def _stays(line: str) -> bool:
    """Tell whether a quoted line says something that the words around it refer to: a definition, an id."""
    return is_signature(line) or IDS.search(line) is not None


def _blocks(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Go through the quotations that are closed: their first line, and the one behind their last."""
    start, fence = -1, ""
    for place, line in enumerate(lines):
        bare = line.strip()
        if start < 0 and bare.startswith(_FENCES):
            start, fence = place + 1, bare[:3]
        elif start >= 0 and bare == fence:
            yield start, place
            start = -1
