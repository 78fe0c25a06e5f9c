"""Lines of thousands of characters: records, minified code, blobs. Their beginning and end stay, and every failure."""

from __future__ import annotations

from collections.abc import Iterator

from kompakt.model.phrases import FOLD

MAX_LINE = 1_200
"""Characters from which a line is no line a person would read."""

_HEAD, _TAIL = 0.4, 0.15
"""Shares of the limit that stay at the beginning and at the end."""

_WORDS = ("rror:", "atal:", "anic:", "xception:", "ailed:", "FAIL")

_MAX_WINDOWS = 8
"""Failures shown of one such line."""


def cut(line: str, limit: int = MAX_LINE) -> str:
    """Keep beginning and end of a very long line, and the words around each failure in it."""
    if len(line) <= limit:
        return line
    at, end = int(limit * _HEAD), len(line) - int(limit * _TAIL)
    out = [line[:at]]
    for found in sorted(set(_failures(line, at, end)))[:_MAX_WINDOWS]:
        if found >= at:
            start, stop = max(at, found - 40), min(end, found + 120)
            out += [_gap(start - at), line[start:stop]]
            at = stop
    out += [_gap(end - at), line[end:]]
    return "".join(out)


def _failures(line: str, start: int, end: int) -> Iterator[int]:
    """Find the first failures of each kind."""
    for word in _WORDS:
        at = line.find(word, start, end)
        for _ in range(_MAX_WINDOWS):
            if at < 0:
                break
            yield at
            at = line.find(word, at + 120, end)


def _gap(characters: int) -> str:
    return f" {FOLD}{characters} characters {FOLD}" if characters else ""
