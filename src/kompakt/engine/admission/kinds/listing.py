"""Directory listings: names below their directory, so that a shared beginning is written once.

Nothing is left out of a list of paths. Of a long listing, names and sizes stay; very large directories are told by
what ends how. Cost: one look at each line.
"""

from __future__ import annotations

import re
from collections import Counter

from kompakt.engine.admission.failures import Shrunk, telling
from kompakt.engine.admission.settings import AdmissionSettings
from kompakt.model.phrases import FOLD

_PATH = re.compile(r"[^\s:;,(){}\"'`=<>|]+$")

_LONG = re.compile(
    r"([-dlbcps])[rwxstST-]{9}[@+.]? +\d+ +\S+ +\S+ +(\d[\d.,]*[KMGT]?) +"
    r"(?:\w{3} +\d+ +[\d:]+|\S+ [\d:.]+(?: [+-]\d+)?) +(.+)"
)

_MIN_SHARE = 0.85

_MAX_NAMES = 120
"""Names of one directory that are written out, times the items that settings allow; the rest is counted."""


def is_listing(text: str) -> bool:
    """Return whether a text lists files: judged by its first lines."""
    lines = [line for line in text[:8_000].split("\n", 40)[:40] if line]
    if len(lines) < 8:
        return False
    paths = sum(_PATH.match(line) is not None and ("/" in line or "." in line) for line in lines)
    return max(paths, sum(_LONG.match(line) is not None for line in lines)) >= len(lines) * _MIN_SHARE


def shrink(text: str, settings: AdmissionSettings) -> Shrunk | None:
    """Write a listing by directory."""
    lines = text.split("\n")
    must = telling(text, lines)
    limit = settings.max_items * _MAX_NAMES // 8
    groups: dict[str, list[str]] = {}
    out: list[str] = []
    gone = 0
    for place, line in enumerate(lines):
        long = _LONG.match(line)
        if place in must or (long is None and (not _PATH.match(line) or not line)):
            if line and not line.startswith("total "):
                gone += _flush(groups, out, limit)
                out.append(line)
        elif long is not None:
            gone += 1
            groups.setdefault("", []).append(f"{long[3]}/" if long[1] == "d" else f"{long[3]} {long[2]}")
        else:
            folder, slash, name = line.rpartition("/")
            groups.setdefault(folder + slash, []).append(name)
    gone += _flush(groups, out, limit)
    return Shrunk("\n".join(out), gone, len(lines), ())


def _flush(groups: dict[str, list[str]], out: list[str], limit: int) -> int:
    """Write what was gathered; return how many names are not written."""
    gone = _fold_large(groups, limit)
    for folder, names in groups.items():
        if len(names) == 1 or any(" " in name for name in names):
            out += [f"{folder}{name}" for name in names] if not folder or len(names) == 1 else [folder, *names]
        else:
            out.append(f"{folder}: {' '.join(names)}" if folder else "\n".join(names))
    groups.clear()
    return gone


def _fold_large(groups: dict[str, list[str]], limit: int) -> int:
    """Count the names of very large directories by their endings; return how many are not written."""
    gone = 0
    for folder, names in groups.items():
        if len(names) <= limit:
            continue
        rest = names[limit:]
        endings = Counter("." + name.rpartition(".")[2] if "." in name else "other" for name in rest)
        told = ", ".join(f"{count} {ending}" for ending, count in endings.most_common(6))
        groups[folder] = [*names[:limit], f"{FOLD}{len(rest)} more: {told}"]
        gone += len(rest)
    return gone
