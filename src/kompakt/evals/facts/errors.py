"""Error lines, and tests with their results: what shell commands and failed calls reported.

A line counts where something ran or went wrong. The same words in a file that was read, or in what a search printed,
report nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kompakt.evals.facts.commands import FAILURE, SUCCESS
from kompakt.evals.facts.fact import Fact
from kompakt.evals.facts.paths import named_file
from kompakt.evals.facts.shell import command_of, first_line, programs
from kompakt.evals.sources.trail import Call

LIMIT = 80
"""Characters of an error line that must stand verbatim."""

_ERROR = re.compile(
    r"""\s*(?:
        (?:[\w./\\-]+:(?:\d+:)*\s*)?(?:fatal\ )?error(?:\[\w+\])?:\s      # error: …, file.c:3:1: error: …
      | (?:---\s)?FAIL(?:ED)?\b
      | panic:\s | fatal:\s
      | exit\ (?:code|status):?\ [1-9]
      | (?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception):\s                 # the last line of a traceback
    )""",
    re.X | re.I,
)
_QUOTING = frozenset(["cat", "head", "less", "more", "grep", "rg", "sed", "awk", "bat", "nl", "find", "ls", "jq"])
_GIT_QUOTING = re.compile(r"\bgit\b[^|;&]*\b(?:diff|show|log|blame|grep)\b")

_TESTS = (
    (re.compile(r"^[ \t]*--- (PASS|FAIL|SKIP): (\S+)", re.M), 2, 1),
    (re.compile(r"^(ok|FAIL)\s*\t(\S+)", re.M), 2, 1),
    (re.compile(r"^((?=\S+?::\S)\S++) (PASSED|FAILED|ERROR)\b", re.M), 1, 2),
    (re.compile(r"^(FAILED|ERROR) (\S+::\S+)", re.M), 2, 1),
    (re.compile(r"^test (\S+) \.\.\. (ok|FAILED)", re.M), 1, 2),
    (re.compile(r"^[ \t]*(✓|✔|✗|✘|✕|×) (.{6,80}?)(?: \(?\d+ ?m?s\)?)?$", re.M), 2, 1),
)
_PASSED = frozenset(["pass", "ok", "passed", "✓", "✔"])


def error_facts(pairs: Iterable[Call]) -> Iterator[Fact]:
    """Yield each error line with where it came from."""
    for call in pairs:
        if call.result is None or not _reports(call):
            continue
        source = _source(call)
        for line in call.result.text.splitlines():
            if _ERROR.match(line):
                yield Fact("error", line.strip()[:LIMIT].rstrip(), source[0], "|".join(source), (call.event.id,))


def test_facts(pairs: Iterable[Call]) -> Iterator[Fact]:
    """Yield each test with its newest result."""
    newest: dict[str, Fact] = {}
    for call in pairs:
        if call.result is None or command_of(call.event) is None or not _reports(call):
            continue
        for pattern, name, result in _TESTS:
            for found in pattern.finditer(call.result.text):
                passed = found[result].lower() in _PASSED
                if found[result].lower() == "skip":
                    continue
                said = SUCCESS if passed else FAILURE
                fact = Fact("test", found[name], "passed" if passed else "failed", said, (call.event.id,))
                newest[found[name]] = fact
    yield from newest.values()


def _reports(call: Call) -> bool:
    """Tell whether the result says how something went, rather than quoting what somebody wrote."""
    assert call.result is not None
    command = command_of(call.event)
    if command is None:
        return call.result.failed
    if call.result.failed:
        return True
    ran = programs(command)
    return not (ran and ran[0] in _QUOTING) and not _GIT_QUOTING.search(command)


def _source(call: Call) -> list[str]:
    """Return patterns for where a line came from: its command, its tool, its file; the first is for reports."""
    command = command_of(call.event)
    path = named_file(call.event)
    found: list[str] = []
    if command is not None:
        found.append(re.escape(first_line(command, 24)))
    if path is not None:
        found.append(re.escape(path.rsplit("/", 1)[-1]))
    if call.event.name:
        found.append(rf"\b{re.escape(call.event.name)}\b")
    return found or [r"\btool\b"]
