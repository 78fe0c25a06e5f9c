"""Outputs made of paths: directory listings, and search results as ``path:line:text``.

A directory or path is written once, its names or matches below it. Every path stays. A long listing keeps names and
sizes; the rest of a very large directory is counted by file ending. Matches are limited per file. Lines that report a
failure stay as they are, because compiler output looks like a search result. Cost: one pass over the lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable

from kompakt.engine.admission.failures import Shrunk, cut, essential, failures, keyed
from kompakt.engine.admission.settings import AdmissionSettings
from kompakt.model.phrases import FOLD

_NAME = re.compile(r"[^\s:;,(){}\"'`=<>|]+$")

_LONG_FORM = re.compile(
    r"(?P<mode>[-dlbcps][rwxstST-]{9})[@+.]? +\d+ +(?P<owner>\S+ +\S+) +(?P<size>\d[\d.,]*[KMGT]?) +"
    r"(?P<date>\w{3} +\d+(?: +\d{4}(?!:))?|\d\S+)(?: +[\d:.]+)?(?: [+-]\d+)? +(?P<name>.+)"
)

_MIN_LISTED = 0.85

_MAX_NAMES = 120
"""Names written per directory, for every 8 items that the settings allow; the rest is counted."""


def is_listing(text: str) -> bool:
    """Return whether a text lists files, judged by its first lines."""
    lines = [line for line in text[:8_000].split("\n", 40)[:40] if line]
    if len(lines) < 8:
        return False
    paths = sum(_NAME.match(line) is not None and ("/" in line or "." in line) for line in lines)
    return max(paths, sum(_LONG_FORM.match(line) is not None for line in lines)) >= len(lines) * _MIN_LISTED


def shrink_listing(text: str, settings: AdmissionSettings) -> Shrunk | None:
    """Group a listing by directory."""
    lines = text.split("\n")
    must = essential(text, lines)
    limit = settings.max_items * _MAX_NAMES // 8
    entries = {place: found for place, line in enumerate(lines) if (found := _LONG_FORM.match(line)) is not None}
    usual = _Usual(entries.values())
    groups: dict[str, list[str]] = {}
    out: list[str] = [usual.note] if usual.note else []
    gone = 0
    for place, line in enumerate(lines):
        entry = entries.get(place)
        if place in must or (entry is None and (not _NAME.match(line) or not line)):
            if line and not line.startswith("total "):
                gone += _flush(groups, out, limit)
                out.append(line)
        elif entry is not None:
            gone += 1
            groups.setdefault("", []).append(usual.short(entry))
        else:
            folder, slash, name = line.rpartition("/")
            groups.setdefault(folder + slash, []).append(name)
    gone += _flush(groups, out, limit)
    return Shrunk("\n".join(out), gone, len(lines), ())


class _Usual:
    """The mode, owner and day that most files and most directories of a long listing have, said once."""

    def __init__(self, entries: Iterable[re.Match[str]]) -> None:
        self._usual: dict[tuple[bool, str], str] = {}
        counts: dict[tuple[bool, str], Counter[str]] = {}
        for entry in entries:
            for key in ("mode", "owner", "date"):
                counts.setdefault((entry["mode"][0] == "d", key), Counter())[entry[key]] += 1
        for which, values in counts.items():
            value, count = values.most_common(1)[0]
            if count * 2 > values.total():
                self._usual[which] = value
        said = [
            " ".join(["directories" if folders else "files", *(self._usual.get((folders, key), "") for key in _SAID)])
            for folders in (False, True)
            if (folders, "mode") in self._usual
        ]
        self.note = f"{FOLD}unless noted: {'; '.join(map(str.strip, said))}" if said else ""

    def short(self, entry: re.Match[str]) -> str:
        """Write the name and size of an entry, and what is not usual about it."""
        is_folder = entry["mode"][0] == "d"
        name = f"{entry['name']}/" if is_folder else f"{entry['name']} {entry['size']}"
        return " ".join([name, *(entry[key] for key in _SAID if entry[key] != self._usual.get((is_folder, key)))])


_SAID = ("mode", "owner", "date")


def _flush(groups: dict[str, list[str]], out: list[str], limit: int) -> int:
    """Write the collected names; return how many are left out."""
    gone = _fold_large(groups, limit)
    for folder, names in groups.items():
        if len(names) == 1 or any(" " in name for name in names):
            out += [f"{folder}{name}" for name in names] if not folder or len(names) == 1 else [folder, *names]
        else:
            out.append(f"{folder}: {' '.join(names)}" if folder else "\n".join(names))
    groups.clear()
    return gone


def _fold_large(groups: dict[str, list[str]], limit: int) -> int:
    """Replace the rest of very large directories by counts per ending; return how many names are left out."""
    gone = 0
    for folder, names in groups.items():
        if len(names) <= limit:
            continue
        rest = names[limit:]
        endings = Counter("." + name.rpartition(".")[2] if "." in name else "other" for name in rest)
        counted = ", ".join(f"{count} {ending}" for ending, count in endings.most_common(6))
        groups[folder] = [*names[:limit], f"{FOLD}{len(rest)} more: {counted}"]
        gone += len(rest)
    return gone


_PATH = r"(?P<path>[^\s:,;(){}\"'`=][^\s:,;(){}\"'`=]*)"
_MATCH = re.compile(_PATH + r":(?:(?P<line>\d+):(?:(?P<column>\d+):)?)?(?P<text>.*)", re.DOTALL)
_CONTEXT = re.compile(r"(?P<path>[^\s:,;(){}\"'`=]+?)-(?P<line>\d+)-(?P<text>.*)", re.DOTALL)
_BARE = re.compile(r"(?P<line>\d{1,7})(?P<sign>[:-])(?!\d)(?P<text>.*)", re.DOTALL)

_MIN_LINES = 4

_MIN_MATCHES = 0.7
"""Share of the lines that must be matches."""

_MAX_FAILURES = 0.2
"""Share of failure lines from which the output comes from a compiler."""


def is_search(text: str) -> bool:
    """Return whether a text is search results, judged by its first lines."""
    lines = [line for line in text[:8_000].split("\n", 40)[:40] if line and line != "--"]
    entries = [entry for line in lines if (entry := _entry(line)) is not None]
    if len(lines) < _MIN_LINES or len(entries) < len(lines) * _MIN_MATCHES:
        return False
    bare = [int(entry[1]) for entry in entries if not entry[0]]
    return bare == sorted(set(bare))  # matches of one file have rising line numbers


def _entry(line: str) -> tuple[str, str, str, str] | None:
    """Parse a line into path, line number, sign and text."""
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
    """Distinguish a path from any word before a colon."""
    return "/" in path or "\\" in path or (line is not None and ("." in path or path.isidentifier()))


def shrink_search(text: str, settings: AdmissionSettings) -> Shrunk | None:
    """Group search results by path."""
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
            shown_match = f"{number}{sign}{match.strip()}" if number else match.strip()
            files.setdefault(path, []).append((place, sign, shown_match))
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
    """Map relative paths to the absolute form that occurs too; empty if more than one root is possible."""
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
    matches = [entry[0] for entry in entries if entry[1] == ":"][:limit]
    nearest = [(min((abs(entry[0] - place) for place in matches), default=0), entry[0]) for entry in entries]
    chosen = {place for _, place in sorted(nearest)[:limit]}  # matches first, then the lines around them
    chosen |= {entry[0] for entry in entries if entry[1] == "!"}
    left = len(entries) - len(chosen)
    if path:
        out.append(f"{path} {FOLD}{left} more" if left else path)
    out += [text if sign == "!" else cut(text, width) for place, sign, text in entries if place in chosen]
    if left and not path:
        out.append(f"{FOLD}{left} more")
    return len(chosen)
