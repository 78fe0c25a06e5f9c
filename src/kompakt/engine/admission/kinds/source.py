"""Source files and parts of them: pointers replace lines shown before; bodies are folded to signatures and members.

No language is parsed: a definition is a line without indentation, or one that starts with a declaring keyword of a
common language. Cost: one pass over the lines.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TypeAlias

from kompakt.engine.admission.failures import Shrunk, essential, failures
from kompakt.engine.admission.lines import NumberedText, Seen, SeenRun, write, written_lines
from kompakt.engine.admission.settings import AdmissionSettings
from kompakt.model.phrases import seen_mark

Outline: TypeAlias = Callable[[NumberedText, Sequence[int]], set[int]]
"""Chooses the lines to keep, among those of a page that were not shown before."""

_DECLARES = re.compile(
    r"[ \t]{1,8}(?:@?(?:export|default|pub(?:\([^)]*\))?|public|private|protected|internal|static|async|abstract|final"
    r"|override|virtual|inline|extern|unsafe|declare|sealed|partial|open|suspend|data|readonly|get|set)\s+)*"
    r"(?:def|class|func|fun|fn|function|interface|struct|enum|impl|trait|module|mod|namespace|object|record|protocol"
    r"|extension|constructor|describe|it|test|macro_rules!|template|typedef|union|actor|primitive|new|be)\b[ \t(<]"
)

_METHOD = re.compile(
    r"(?:\t|  |    )(?!if\b|for\b|while\b|switch\b|return\b|else\b|catch\b|do\b|throw\b|await\b|yield\b|case\b|with\b"
    r"|match\b|defer\b|go\b|select\b|try\b|elif\b|except\b|unless\b|until\b)[\w<>\[\],.*&:?@~ ]{1,120}\([^;=]*\{\s*$"
)
"""A method without a declaring keyword: a name, parameters and an open brace, one level in."""

_DULL = re.compile(r"[\s})\];,]*$|(?://|#(?!include|define|if|\[)|/\*|\*|--|;|\"\"\"|''').*")
"""A line without content of its own: closing brackets and comments."""

_IMPORT = re.compile(r"(?:import|from|use|using|require|#include|package|open)\b")

_OPENING = re.compile(r"[(,\[]\s*$")
"""A signature that continues on the next line."""

_MAX_SIGNATURE = 8
"""Lines of one signature that are shown."""

_HOLDS = re.compile(r"[^)]*\b(?:struct|interface|enum|type|const|var|trait|record|union|protocol)\b[^)]*$")
"""The first line of a type with members, not of a function with parameters in parentheses."""

_MAX_HEAD, _MAX_MEMBERS, _MAX_SCANNED = 200, 20, 80
"""Limits: characters of such a line, members shown, and lines searched for members."""

_MIN_CODE = 0.5
"""Minimum share of indented or closing lines of code without line numbers."""

_CODE = re.compile(r"[ \t]+\S|[})\]]|.*[{;(,:]\s*$|\s*$|\s*(?://|#|/\*|\*)")


def is_code(text: str) -> bool:
    """Return whether a text is source code, judged by its first lines."""
    lines = text[:8_000].split("\n", 60)[:60]
    if len(lines) < 12 or sum(_CODE.match(line) is not None for line in lines) < len(lines) * _MIN_CODE:
        return False
    declared = sum(is_signature(line) and not _IMPORT.match(line) and line[-1] in "{:(;,)=" for line in lines)
    return declared >= 2


def shrink_echo(page: NumberedText, settings: AdmissionSettings) -> Shrunk:
    """Compress the page that an editing tool prints after a change: only the text around it stays."""
    must = failures("\n".join(page.lines), page.lines)
    keep = sorted(_around(page) | must)
    written, folded = write(page, keep, {}, every=settings.number_every, exact=must)
    return Shrunk(written, folded, len(page.lines), written_lines(page, keep))


def _around(page: NumberedText) -> set[int]:
    """Find the lines around a numbered page."""
    return {place for place, number in enumerate(page.numbers) if not number}


def shrink(
    page: NumberedText, settings: AdmissionSettings, *, seen: Seen, is_range: bool, outline: Outline | None
) -> Shrunk | None:
    """Compress a page; ``outline`` chooses what stays of a large one. ``None`` if there is nothing to do."""
    must = (failures if page.is_numbered else essential)("\n".join(page.lines), page.lines)
    marks = {run.start: (run.end, _mark(page, run)) for run in split_runs(seen.runs(page.lines), must)}
    covered = {place for start, (end, _) in marks.items() for place in range(start, end)}
    left = [place for place in range(len(page.lines)) if place not in covered]
    limit = settings.max_range_tokens if is_range else settings.max_body_tokens
    keep = left
    if outline is not None and sum(len(page.lines[place]) + 1 for place in left) > limit * 4:
        outlined = outline(page, left) | must
        gone = [page.lines[place] for place in left if place not in outlined]
        if gone and not seen.was_folded(gone):
            seen.add_folded(gone)
            keep = [place for place in left if place in outlined]
    if not page.is_numbered and not marks and keep is left:
        return None
    written, folded = write(page, keep, marks, every=settings.number_every, exact=must)
    return Shrunk(written, folded, len(page.lines), written_lines(page, keep))


def _mark(page: NumberedText, run: SeenRun) -> str:
    first, last = page.numbers[run.start], page.numbers[run.end - 1]
    return seen_mark(run.reference, f"{first}-{last}" if first and last else f"{run.end - run.start} lines")


def split_runs(runs: list[SeenRun], must: set[int]) -> list[SeenRun]:
    """Split runs at the lines that must be shown."""
    places = sorted(must)
    found: list[SeenRun] = []
    for run in runs:
        start = run.start
        for place in places[bisect_left(places, run.start) : bisect_left(places, run.end)]:
            if place > start:
                found.append(SeenRun(start, place, run.reference))
            start = place + 1
        if start < run.end:
            found.append(SeenRun(start, run.end, run.reference))
    return found


def signatures(page: NumberedText, left: Sequence[int]) -> set[int]:
    """Choose the lines of signatures, and the first of each run of imports."""
    keep: set[int] = set()
    after_import = False
    for place in left:
        line = page.lines[place]
        if place in keep:
            continue
        if not page.numbers[place]:
            keep.add(place)  # what a tool says around the page
        elif is_signature(line):
            is_import = _IMPORT.match(line) is not None
            if not is_import:
                keep.update(_signature(page.lines, place))
                keep.update(_members(page.lines, place))
            elif not after_import:
                keep.add(place)
            after_import = is_import
    return keep


def _signature(lines: list[str], place: int) -> range:
    """Find all lines of a signature."""
    end = place + 1
    while end < len(lines) and end - place < _MAX_SIGNATURE and _OPENING.search(lines[end - 1]):
        end += 1
    return range(place, end)


def _members(lines: list[str], place: int) -> list[int]:
    """Find the members of a type or of a group of constants, because other code uses their names."""
    line = lines[place].rstrip()
    if line[-1:] not in ("{", "(") or len(line) > _MAX_HEAD or not _HOLDS.match(line):
        return []
    found: list[int] = []
    for inner in range(place + 1, min(len(lines), place + 1 + _MAX_SCANNED)):
        bare = lines[inner].lstrip()
        if bare and len(lines[inner]) - len(bare) <= len(line) - len(line.lstrip()):
            break
        if bare and _DULL.match(bare) is None:
            found.append(inner)
    return found[:_MAX_MEMBERS]


def is_signature(line: str) -> bool:
    """Return whether a line begins a definition."""
    if line[:1] in " \t":
        return _DECLARES.match(line) is not None or (line[-1:] == "{" and _METHOD.match(line) is not None)
    return bool(line) and _DULL.match(line) is None
