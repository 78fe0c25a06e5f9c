"""Diffs: files, hunks and changed lines stay; unchanged lines and added lines that were shown before are removed.

An agent that views its own change has just written it, so a pointer replaces those lines. In a very large diff, added
bodies are folded as in a source file. Cost: one pass over the lines.
"""

from __future__ import annotations

import re

from kompakt.engine.admission.failures import Shrunk, around, essential
from kompakt.engine.admission.kinds.source import is_signature, split_runs
from kompakt.engine.admission.lines import Seen, plain, written_lines
from kompakt.engine.admission.settings import AdmissionSettings
from kompakt.model.phrases import FOLD, seen_mark

_HUNK = re.compile(r"^@@+ -\d", re.MULTILINE)

_FILE = re.compile(r"^(?:diff |--- \S)", re.MULTILINE)

_IDLE = ("index ", "--- ", "+++ ", "similarity ")
"""Lines of a git header that repeat its first line."""

_FACTOR = 6
"""A diff may be this many times larger than a part of a file before bodies are folded, because it shows changes."""

_MIN_RUN = 12
"""Minimum run of added or removed lines in which bodies are folded."""


def is_diff(text: str) -> bool:
    """Return whether a text is a diff."""
    hunk = _HUNK.search(text) if "@@ -" in text else None
    return hunk is not None and _FILE.search(text, 0, hunk.start()) is not None


def shrink(text: str, settings: AdmissionSettings, *, seen: Seen) -> Shrunk | None:
    """Compress a diff."""
    lines = text.split("\n")
    keep, bare = _read(lines, settings.diff_context)
    must = essential(text, lines)
    runs = [run for run in split_runs(seen.runs(bare), must) if run.end - run.start > 1]
    marks = {run.start: (run.end, seen_mark(run.reference, f"{run.end - run.start} lines")) for run in runs}
    covered = {place for run in runs for place in range(run.start, run.end)}
    left = sorted((keep | must) - covered)
    if sum(len(lines[place]) for place in left) > settings.max_range_tokens * 4 * _FACTOR:
        gone = _bodies(lines, left) - must
        if not seen.was_folded(bare[place] for place in gone):
            seen.add_folded(bare[place] for place in gone)
            left = [place for place in left if place not in gone]
    return Shrunk(_written(lines, left, marks), len(lines) - len(left), len(lines), written_lines(plain(bare), left))


def _written(lines: list[str], left: list[int], marks: dict[int, tuple[int, str]]) -> str:
    """Write the remaining lines; folded lines are counted, unchanged ones are not mentioned."""
    out: list[str] = []
    last = -1
    for place in [*sorted({*left, *marks}), len(lines)]:
        gone = sum(line[:1] in ("+", "-") for line in lines[last + 1 : place] if not line.startswith(_IDLE))
        if gone and out:
            out[-1] += f" {FOLD}{gone} lines"
        if place == len(lines):
            break
        out.append(marks[place][1] if place in marks else lines[place])
        last = marks[place][0] - 1 if place in marks else place
    return "\n".join(out)


def _read(lines: list[str], context: int) -> tuple[set[int], list[str]]:
    """Choose the lines to keep; return them, and the lines of the file inside hunks."""
    keep: set[int] = set()
    changed: list[int] = []
    bare = list(lines)
    in_hunk = has_header = False
    for place, line in enumerate(lines):
        if line.startswith("diff "):
            in_hunk, has_header = False, True
            keep.add(place)
        elif line.startswith("@@"):
            in_hunk = True
            keep.add(place)
        elif in_hunk and line[:1] in "+-":
            if line.startswith("--- ") and lines[place + 1 : place + 2] and lines[place + 1].startswith("+++ "):
                in_hunk = has_header = False
                keep.add(place)
                continue
            if line:
                changed.append(place)
            bare[place] = line[1:] if line[:1] == "+" else "\n"
        elif in_hunk and line[:1] == " ":
            bare[place] = line[1:]
        elif not in_hunk and not (has_header and line.startswith(_IDLE)):
            keep.add(place)
    near = around(changed, context, len(lines)) if context else set(changed)
    return keep | near, bare


def _bodies(lines: list[str], left: list[int]) -> set[int]:
    """Find the bodies inside long runs of added or of removed lines."""
    gone: set[int] = set()
    run: list[int] = []
    for place in [*left, -1]:
        sign = lines[place][:1] if place >= 0 else ""
        if run and place == run[-1] + 1 and sign == lines[run[0]][:1]:
            run.append(place)
            continue
        if len(run) >= _MIN_RUN:
            gone.update(inner for inner in run[1:] if not is_signature(lines[inner][1:]))
        run = [place] if sign and sign in "+-" else []
    return gone
