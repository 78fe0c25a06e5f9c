"""Search results, ``path:line:text``: each path once, its matches below it, so many of each file.

Every path stays. Lines that report a failure stay as they are: what a compiler prints looks like a search result.
Cost: one look at each line.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from kompakt.engine.admission.failures import Shrunk, cut, failures, keyed
from kompakt.engine.admission.settings import AdmissionSettings
from kompakt.model.phrases import FOLD

_PATH = r"(?P<path>[^\s:,;(){}\"'`=][^\s:,;(){}\"'`=]*)"
_MATCH = re.compile(_PATH + r":(?:(?P<line>\d+):(?:(?P<column>\d+):)?)?(?P<text>.*)", re.DOTALL)
_CONTEXT = re.compile(r"(?P<path>[^\s:,;(){}\"'`=]+?)-(?P<line>\d+)-(?P<text>.*)", re.DOTALL)
_BARE = re.compile(r"(?P<line>\d{1,7})(?P<sign>[:-])(?!\d)(?P<text>.*)", re.DOTALL)

_MIN_LINES = 4

_MIN_SHARE = 0.7
"""Share of the lines that must be matches."""

_MAX_FAILURES = 0.2
"""Share of failures from which this is a compiler speaking."""


def is_search(text: str) -> bool:
    """Return whether a text is search results: judged by its first lines."""
    lines = [line for line in text[:8_000].split("\n", 40)[:40] if line and line != "--"]
    entries = [entry for line in lines if (entry := _entry(line)) is not None]
    if len(lines) < _MIN_LINES or len(entries) < len(lines) * _MIN_SHARE:
        return False
    bare = [int(entry[1]) for entry in entries if not entry[0]]
    return bare == sorted(set(bare))  # the lines of one file come in order; other numbers do not


def _entry(line: str) -> tuple[str, str, str, str] | None:
    """Read a line: its path, the number with its sign, its text."""
    found = _BARE.match(line)
    if found is not None:
        return "", found["line"], found["sign"], found["text"]
    found = _MATCH.match(line)
    is_address = found is not None and not found["line"] and found["text"].startswith("//")
    if found is not None and _is_path(found["path"], found["line"]) and not is_address:
        return found["path"], found["line"] or "", ":", found["text"]
    found = _CONTEXT.match(line)
    if found is not None and _is_path(found["path"], found["line"]):
        return found["path"], found["line"], "-", found["text"]
    return None


def _is_path(path: str, line: str | None) -> bool:
    """Tell a path from any word before a colon."""
    return "/" in path or "\\" in path or (line is not None and ("." in path or path.isidentifier()))


def shrink(text: str, settings: AdmissionSettings) -> Shrunk | None:
    """Write search results by path."""
    lines = text.split("\n")
    failed = failures(text, lines)
    if len(failed) > len(lines) * _MAX_FAILURES:
        return None
    must = failed | keyed(text, lines)
    entries = [None if place in must else _entry(line) for place, line in enumerate(lines)]
    names = _full_names(dict.fromkeys(entry[0] for entry in entries if entry is not None))
    files: dict[str, list[tuple[int, str, str]]] = {}
    path = ""
    for place, (line, entry) in enumerate(zip(lines, entries, strict=True)):
        if entry is not None:
            path, number, sign, match = entry
            path = names.get(path, path)
            told = f"{number}{sign}{match.strip()}" if number else match.strip()
            files.setdefault(path, []).append((place, sign, told))
        elif line.strip() and line != "--":
            files.setdefault(path, []).append((place, "!", line))
    out: list[str] = []
    shown = 0
    for number, (path, entries) in enumerate(files.items()):
        limit = settings.max_matches if number < settings.max_matching_files else 0
        shown += _write(out, path, entries, limit, settings.max_line)
    gone = sum(bool(line.strip()) and line != "--" for line in lines) - shown
    return Shrunk("\n".join(out), gone, len(lines), tuple(lines) if not gone else ())


def _full_names(paths: Collection[str]) -> dict[str, str]:
    """Find the paths that are also written with their root; none when more than one root would do."""
    full = {path.rpartition("/")[2]: path for path in paths if path.startswith("/")}
    roots = {
        longer.removesuffix(path)
        for path in paths
        if path and (longer := full.get(path.rpartition("/")[2], "")).endswith(f"/{path}")
    }
    if len(roots) != 1:
        return {}
    (root,) = roots
    return {path: f"{root}{path}" for path in paths if f"{root}{path}" in paths}


def _write(out: list[str], path: str, entries: list[tuple[int, str, str]], limit: int, width: int) -> int:
    """Write the matches of one file; return how many lines are shown."""
    matches = [entry for entry in entries if entry[1] == ":"]
    chosen = {entry[0] for entry in matches[:limit]}
    if len(entries) <= limit:
        chosen = {entry[0] for entry in entries}
    chosen |= {entry[0] for entry in entries if entry[1] == "!"}
    left = len(entries) - len(chosen)
    if path:
        out.append(f"{path} {FOLD}{left} more" if left else path)
    out += [text if sign == "!" else cut(text, width) for place, sign, text in entries if place in chosen]
    if left and not path:
        out.append(f"{FOLD}{left} more")
    return len(chosen)
