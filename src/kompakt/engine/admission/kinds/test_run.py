"""Test runs: what failed stays as it is; what passed is listed by name, several per line.

A name stays near its result, so that the two can be read together. Cost: one pass over the lines, then that of a log.
"""

from __future__ import annotations

import re

from kompakt.engine.admission.failures import Shrunk, essential
from kompakt.engine.admission.kinds import log
from kompakt.engine.admission.settings import AdmissionSettings

_PASSED = re.compile(
    r"\s*(?P<go>--- (?:PASS|SKIP):) (?P<go_name>\S+)"
    r"|(?P<ok>ok|\?)\s+\t?(?P<package>[\w@-]*+[./][\w./@-]*+)\s+(?:\S+s\b|\(cached\)|\[no test files\]).*"
    r"|(?P<node>(?=\S+?::\S)(?:[^\s\[]++\[.*\]|\S++))\s+(?P<verdict>PASSED|SKIPPED|XFAIL)\b(?P<reason> \([^)]+\))?"
    r"|test (?P<cargo>\S+) \.\.\. (?P<fine>ok|ignored)$"
    r"|\s*(?P<tick>[✓✔√]) (?P<title>.+?)(?: \(?\d+ ?m?s\)?)?$"
    r"|(?P<unit>test\w* \([\w.]+\)(?: \[.*\])?) \.\.\. (?P<unit_fine>ok|skipped.*)$"
)

_IDLE = re.compile(r"=== (?:RUN|PAUSE|CONT|NAME)\b|PASS$")

_HINTS = ("--- PASS", "--- FAIL", "\nok  ", "ok  \t", " PASSED", " FAILED", " ... ok", "✓ ", "✔ ", "√ ")

_WIDTH = 150
"""Characters of a line of names, so that each is near its result."""

_MIN_SHARE = 0.3


def is_test_run(text: str) -> bool:
    """Return whether a text is the output of a test run: judged by lines that report single results."""
    if not any(hint in text for hint in _HINTS):
        return False
    lines = [line for line in text[:16_000].split("\n", 120)[:120] if line.strip()]
    matching = sum(_PASSED.match(line) is not None or _IDLE.match(line) is not None for line in lines)
    return matching >= 4 and matching >= len(lines) * _MIN_SHARE


def shrink(text: str, settings: AdmissionSettings) -> Shrunk:
    """Write a test run shorter."""
    lines = text.split("\n")
    out: list[str] = []
    names: list[str] = []
    label = ""
    gone = 0
    places: set[int] = set()
    failed = essential(text, lines)
    for place, line in enumerate(lines):
        result = None if place in failed else _result(line)
        if result is None and (place in failed or _IDLE.match(line) is None):
            gone -= _flush(out, places, label, names)
            label = ""
            out.append(line)
            continue
        gone += 1
        if result is not None:
            if result[0] != label:
                gone -= _flush(out, places, label, names)
                label = result[0]
            names.append(result[1])
    gone -= _flush(out, places, label, names)
    inner = log.shrink("\n".join(out), settings, extra=frozenset(places))
    return Shrunk(inner.text, inner.folded + max(0, gone), len(lines), ())


def _result(line: str) -> tuple[str, str] | None:
    """Return the wording and the name in a line that reports one success."""
    found = _PASSED.match(line)
    if found is None:
        return None
    if found["go"]:
        return found["go"], found["go_name"]
    if found["ok"]:
        return ("ok", found["package"]) if found["ok"] == "ok" else ("no test files", found["package"])
    if found["node"]:
        return found["verdict"], f"{found['node']}{found['reason'] or ''}"
    if found["cargo"]:
        return f"{found['fine']}: test", found["cargo"]
    if found["tick"]:
        return found["tick"], f"{found['title']};"
    return f"{found['unit_fine']}:", found["unit"]


def _flush(out: list[str], places: set[int], label: str, names: list[str]) -> int:
    """Write the collected names of one result; return the number of lines."""
    before = len(out)
    line = label
    for name in names:
        if len(line) > len(label) and len(line) + len(name) >= _WIDTH:
            out.append(line)
            line = label
        line = f"{line} {name}"
    if names:
        out.append(line)
    places.update(range(before, len(out)))
    names.clear()
    return len(out) - before
