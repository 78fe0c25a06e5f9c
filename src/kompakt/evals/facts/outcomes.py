"""Shell commands with their outcome, error lines, and tests with their results.

The outcome comes from the result: its error flag, or an exit code in its text. A pipeline that succeeded although its
text reports a failure accepts either outcome. Error lines and test results count where something ran or failed, not in
a file that was read or in the output of a search. A command that only prints what exists is not a fact, and a line that
reports the result of a test counts as a test and not as an error. A test that passed is also stated by its run, if that
passed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kompakt.evals.facts.constraints import is_refused
from kompakt.evals.facts.fact import OperationalFact, plain, words
from kompakt.evals.facts.paths import named_file
from kompakt.evals.facts.shell import command_of, first_line, only_prints, quotes
from kompakt.evals.history_events import CallPair

_EXIT = r"\bexit(?:ed)?(?: code| status)?[ :=]*"

SUCCESS = (
    rf"{words('ran', 'ok', 'succe', 'pass', 'done', 'complet', 'worked', 'fine', 'green', 'clean')}|{_EXIT}0\b|✓|✔|✅|→"
)
_BAD = ("fail", "error", "timed", "timeout", "interrupt", "reject", "denied", "abort", "panic", "cancel", "killed")
FAILURE = rf"{words(*_BAD)}|{_EXIT}-?[1-9]\d*|non-?zero|not found|✗|✘|❌"

_CODE = re.compile(
    r"\bexit(?:ed)?(?: with)?(?: code| status)[ \"']*+(?:[:=] *+)?(-?\d{1,9})|\"exit_code\": ?(-?\d{1,9})", re.I
)
_PENDING = re.compile(r"running in (?:the )?background|still running", re.I)


def command_facts(pairs: Iterable[CallPair]) -> Iterator[OperationalFact]:
    """Yield each finished command with its outcome."""
    for call in pairs:
        command = command_of(call.event)
        if command is None or call.result is None or is_refused(call.result) or only_prints(command):
            continue
        outcome = outcome_of(call)
        if outcome is not None:
            pattern = {"success": SUCCESS, "failure": FAILURE, "either": f"{SUCCESS}|{FAILURE}"}[outcome]
            yield OperationalFact("command", first_line(command), outcome, pattern, (call.event.id,))


def outcome_of(call: CallPair) -> str | None:
    """Return ``success``, ``failure``, ``either`` if the result is ambiguous, or ``None`` while the command runs."""
    assert call.result is not None
    text = call.result.text
    if call.result.failed:
        return "failure"
    if _PENDING.search(text[:400]):
        return None
    codes = [int(found[1] or found[2]) for found in _CODE.finditer(text)]
    if not codes:
        return "success"
    ends = _CODE.search(text[:40]) or _CODE.search(text[-120:])
    if ends is not None:
        return "failure" if int(ends[1] or ends[2]) else "success"
    return "either" if any(codes) else "success"


ERROR_LIMIT = 80
"""Characters of an error line that must be present verbatim."""

_ERROR = re.compile(
    r"""\s*(?:
        (?:[\w./\\-]+:(?:\d+:)*\s*)?(?:fatal\ )?error(?:\[\w+\])?:\s      # error: …, file.c:3:1: error: …
      | panic:\s | fatal:\s
      | (?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception):\s                 # the last line of a traceback
    )""",
    re.X | re.I,
)

_TESTS = (
    (re.compile(r"^[ \t]*--- (PASS|FAIL|SKIP): (\S+)", re.M), 2, 1),
    (re.compile(r"^(ok|FAIL)\s*\t(\S+)", re.M), 2, 1),
    (re.compile(r"^((?=\S+?::\S)\S++) (PASSED|FAILED|ERROR)\b", re.M), 1, 2),
    (re.compile(r"^(FAILED|ERROR) (\S+::\S+)", re.M), 2, 1),
    (re.compile(r"^test (\S+) \.\.\. (ok|FAILED)", re.M), 1, 2),
    (re.compile(r"^[ \t]*(✓|✔|✗|✘|✕|×) (.{6,80}?)(?: \(?\d+ ?m?s\)?)?$", re.M), 2, 1),
)
_PASSED = frozenset(["pass", "ok", "passed", "✓", "✔"])


def error_facts(pairs: Iterable[CallPair]) -> Iterator[OperationalFact]:
    """Yield each error line with its source."""
    for call in pairs:
        if call.result is None or is_refused(call.result) or not _reports(call):
            continue
        source = _source(call)
        for line in call.result.text.splitlines():
            if _ERROR.match(line):
                yield OperationalFact(
                    "error", line.strip()[:ERROR_LIMIT].rstrip(), source[0], "|".join(source), (call.event.id,)
                )


def test_facts(pairs: Iterable[CallPair]) -> Iterator[OperationalFact]:
    """Yield each test with its latest result."""
    newest: dict[str, OperationalFact] = {}
    for call in pairs:
        if call.result is None or command_of(call.event) is None or not _reports(call):
            continue
        for pattern, name, result in _TESTS:
            for found in pattern.finditer(call.result.text):
                passed = found[result].lower() in _PASSED
                if found[result].lower() == "skip":
                    continue
                pattern_of_result = SUCCESS if passed else FAILURE
                command = first_line(command_of(call.event) or "") if passed and not call.result.failed else ""
                state = "passed" if passed else "failed"
                fact = OperationalFact("test", found[name], state, pattern_of_result, (call.event.id,), command)
                newest[found[name]] = fact
    yield from newest.values()


def _reports(call: CallPair) -> bool:
    """Return whether the result reports an outcome instead of quoting a file or a search."""
    assert call.result is not None
    command = command_of(call.event)
    if command is None:
        return call.result.failed
    if call.result.failed:
        return True
    return not quotes(command)


def _source(call: CallPair) -> list[str]:
    """Return patterns for the source of a line: command, file, tool. Reports show the first."""
    command = command_of(call.event)
    path = named_file(call.event)
    found: list[str] = []
    if command is not None:
        found.append(re.escape(plain(first_line(command, 24))))
    if path is not None:
        found.append(re.escape(path.rsplit("/", 1)[-1]))
    if call.event.name:
        found.append(rf"\b{re.escape(call.event.name)}\b")
    return found or [r"\btool\b"]
