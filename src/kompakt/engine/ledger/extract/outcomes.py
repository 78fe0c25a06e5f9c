"""How a call went: succeeded, failed or refused by the user, with the lines that say why, and what tests it ran.

A result has an error flag, or an exit code alone on a line of its text. Lines are quoted unchanged. Cost: linear; the
output is searched for a few literal words, and only the lines that contain one are examined.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kompakt.engine.ledger.extract.shell import quotes
from kompakt.engine.ledger.extract.tool_calls import Effect
from kompakt.model.messages import ToolResult

MAX_LINES = 12
"""Failure lines kept of one output, the first and the last ones."""

MAX_LINE = 2_000
"""Characters of a line that are examined."""

_EXIT = re.compile(
    r"^[^\w\n]{0,12}(?:[A-Za-z]+:? ){0,6}(?:exit(?:ed)?[ _-]?(?:with )?(?:code|status)?"
    r"|return(?:ed)?[ _-]?(?:with )?(?:code|status))\W{0,4}(\d{1,3})"
    r"(?:[^\w\n]{0,8}$|: |,? \(?(?:in|after) |</)|^<(?:exit_?code|return_?code)>(\d{1,3})<"
    r"|\"(?:exit_?code|return_?code)\"\s{0,2}:\s{0,2}(\d{1,3})\b",
    re.IGNORECASE | re.MULTILINE,
)
_EXIT_ZONE = 400
"""Characters at either end of an output that are searched for an exit code."""

_COMMON = "zqjxkvbywgpfmucdlhr:sinaote "
"""Common characters, the rarest first. Characters that are not listed are rarer."""


def _with_rarest(*words: str) -> tuple[tuple[str, str], ...]:
    """Pair each word with its rarest character: searching for one character first is much faster."""
    return tuple((min(word, key=_COMMON.find), word) for word in words)


_EXIT_WORDS = _with_rarest("exit", "return")
"""Words of which every statement of an exit code contains one."""

_SIGNS = _with_rarest(
    "rror", "ERROR", "ERR!", "FAIL", "ailed", "panic", "atal", "FATAL", "xception", "nterrupt", "xit code",
    "xit status", "xited with", "command not found", "No such file", "ermission denied", "annot find", "ndefined:",
)  # fmt: skip
"""Pieces of lines that report a failure; searching for them one by one is much faster than with one pattern."""

_SHOUTS = re.compile(r"E(?<!\w.)RROR\b|F(?<!\w.)(?:AIL|AILED|ATAL)\b")
"""Whole words in capitals; a pattern with a fixed first letter is fast."""

_REPORTS = re.compile(
    r"(?i:\berror(?:\[\w+\])?:|\berror [A-Z]{1,4}\d+|\berror -"
    r"|\bfatal:|\bpanic:|\bfailed:|\bfatal error\b|^\s*failed\b)"
    r"|ERR!|^FAIL|--- FAIL"
    r"|^\s*[\w.]*(?:Error|Exception|Interrupt|Exit)\b(?::|$)"
    r"|(?i:exit(?:ed with)? (?:code|status):? [1-9])|command not found|No such file or directory|[Pp]ermission denied"
    r"|[Cc]annot find|[Uu]ndefined:",
)
_CLEAN = re.compile(r"\b0 (?:errors?|failed|failures?|failing)\b|\bno errors?\b", re.IGNORECASE)
_TOTALS = re.compile(
    r"\b\d+ (?:passed|failed|passing|failing|tests? (?:passed|failed|run))\b|^test result: |\bTests?:[ \t]{1,20}\d"
    r"|^Ran \d+ tests?",
    re.MULTILINE,
)
_TEST_WORDS = _with_rarest(
    "passed", "failed", "PASS", "FAIL", "passing", "test ", "Ran ", "ok  \t", "ok \t", "ok\t",
    "\u2713", "\u2714", "\u2717", "\u2718", "\u2715", "\u00d7",
)  # fmt: skip


def exit_code(output: str) -> int | None:
    """Return the exit code on one of the first or last lines of an output."""
    zone = output if len(output) <= 2 * _EXIT_ZONE else f"{output[:_EXIT_ZONE]}\n{output[-_EXIT_ZONE:]}"
    if zone.isascii() and not _has(_EXIT_WORDS, zone.lower()):
        return None
    start, end = output[:_EXIT_ZONE], output[-_EXIT_ZONE:]
    for line in [*start.split("\n")[:6], *reversed(end.split("\n")[-4:])]:
        if found := _EXIT.search(line[:_EXIT_ZONE]):
            return int(next(group for group in found.groups() if group))
    return None


def outcome(result: ToolResult, *, is_data: bool = False) -> str:
    """Describe the outcome of a call in words; the text of a file is ignored."""
    code = None if is_data else exit_code(result.output)
    if code:
        return f"failed, exit code {code}"
    if result.is_error:
        return "failed"
    return "success"


_BROKEN = re.compile(
    r"^(?:--- FAIL|FAIL\b|FAILED |=+ .*\b[1-9]\d* (?:failed|errors?)\b|Tests:.*\b[1-9]\d* failed"
    r"|panic: |fatal: |npm ERR!"
    r"|make(?:\[\d+\])?: \*\*\*|Traceback \(most recent call last\)|error(?:\[\w+\])?: |\S+:\d+:\d+: (?:fatal )?error: "
    r"|exit status [1-9]|test result: FAILED|BUILD FAILED)",
    re.MULTILINE,
)
"""Lines with which test runners, compilers and build tools end a run that failed."""

_BROKEN_WORDS = _with_rarest(
    "FAIL", "failed", "error", "panic: ", "fatal: ", "npm ERR!", ": ***", "Traceback", "exit status",
)  # fmt: skip
"""Words of which each such line contains one."""


_REFUSES = re.compile(
    r"\s*(?:error|failed|failure|invalid|exception|no replacement|could not|cannot|unable to|not found)\b",
    re.IGNORECASE,
)
"""Beginnings of answers of tools that have no error flag and did nothing."""


def has_failed(result: ToolResult, effect: Effect) -> bool:
    """Return whether a call failed, by its error flag or exit code, or because its output ends a failed run.

    Behind a pipe the exit code is that of the filter, so a test run cut by ``tail`` counts as failed when it says so.
    What a command only quotes, as a search does, says nothing about the command.
    """
    output = result.output
    if result.is_error or output.startswith("<tool_use_error>"):  # Claude Code marks errors so, also without the flag
        return not _found_nothing(output, effect)
    if effect.command is None:
        return not effect.reads and (bool(exit_code(output)) or _REFUSES.match(output) is not None)
    if exit_code(output):
        return not _found_nothing(output, effect)
    zone = output if len(output) <= 4 * LAST else f"{output[: 2 * LAST]}\n{output[-2 * LAST :]}"
    return _has(_BROKEN_WORDS, zone) and _BROKEN.search(zone) is not None and not quotes(effect.command)


def _found_nothing(output: str, effect: Effect) -> bool:
    """Return whether a search ended with exit code 1 and says nothing else: it had no match."""
    if effect.command is None or exit_code(output) != 1 or not quotes(effect.command):
        return False
    return all(map(_EXIT.search, failure_lines(output)))


REFUSAL_ZONE = 1_500
"""Characters at the beginning of an answer in which a refusal is searched for."""

_REFUSED = re.compile(
    r"doesn't want to (?:proceed|take|run)"
    r"|(?:rejected|denied|declined|refused|cancell?ed|aborted) by (?:the )?user"
    r"|user (?:has )?(?:rejected|denied|declined|refused)|tool use was rejected|not approved by (?:the )?user",
    re.IGNORECASE,
)
_REFUSED_WORDS = _with_rarest("user", "doesn't want to", "tool use was rejected")
"""Words of which each refusal contains one."""
_REASON = re.compile(
    r"(?:the user said|user feedback|user's reason|reason|feedback|instructions?)\s*:\s*(.*)", re.DOTALL | re.IGNORECASE
)


def refusal(result: ToolResult) -> str | None:
    """Return the user's reason, empty when none was given; ``None`` when the call was not refused.

    An answer that is not marked as an error must be nothing but the refusal: a file may mention one.
    """
    output = result.output
    if not result.is_error and len(output) > REFUSAL_ZONE:
        return None
    zone = output[: REFUSAL_ZONE if result.is_error else 200]
    found = _REFUSED.search(zone) if _has(_REFUSED_WORDS, zone.lower()) else None
    if found is None:
        return None
    reason = _REASON.search(output, found.end())
    return " ".join(reason[1].split()) if reason else ""


def failure_lines(output: str) -> list[str]:
    """Return the lines that report a failure, stripped and without repetitions."""
    lines = list(dict.fromkeys(_reporting(output)))
    half = MAX_LINES // 2
    return lines if len(lines) <= MAX_LINES else [*lines[:half], *lines[-half:]]


def _reporting(output: str) -> Iterator[str]:
    if len(output) > 4 * LAST:
        output = f"{output[: 2 * LAST]}\n{output[-2 * LAST :]}"
    starts: dict[int, str] = {}
    for rarest, sign in _SIGNS:
        if rarest in output and sign in output:
            starts.update(_lines_with(sign, output))
    for start in sorted(starts):
        line = starts[start]
        if (_SHOUTS.search(line) or _REPORTS.search(line)) and not _is_clean(line):
            yield line


def _is_clean(line: str) -> bool:
    """Return whether a line says that there was no failure."""
    return ("0 " in line or "no error" in line.lower()) and _CLEAN.search(line) is not None


def _lines_with(sign: str, output: str) -> Iterator[tuple[int, str]]:
    """Return the lines that contain a sign, with their positions; of very many, the first and the last ones."""
    at, found = output.find(sign), 0
    while at >= 0:
        start, line, end = _line_at(output, at)
        yield start, line
        found += 1
        if found == MAX_SIGNS:
            end = max(end, len(output) - LAST)
        at = output.find(sign, end) if found < 2 * MAX_SIGNS else -1


MAX_SIGNS = 12
"""Lines with one sign that are examined at the beginning, and again near the end."""

LAST = 8_000
"""Characters at the end of an output that are always examined; the middle of a very long one is not."""


def speaks_of_tests(output: str) -> bool:
    """Return whether an output may contain the names or results of tests."""
    return _has(_TEST_WORDS, output)


def test_totals(output: str) -> list[str]:
    """Return the lines with the totals of a test run."""
    lines: dict[str, None] = {}
    end = -1
    for found in _TOTALS.finditer(output):
        if found.start() >= end:
            _, line, end = _line_at(output, found.start())
            lines[line] = None
    return list(lines)[-MAX_LINES:]


def _has(words: Iterable[tuple[str, str]], text: str) -> bool:
    """Return whether a text contains one of the words; searching one by one is faster than with one pattern."""
    for rarest, word in words:  # noqa: SIM110 — a generator for each text costs more than the search
        if rarest in text and word in text:
            return True
    return False


def _line_at(text: str, at: int) -> tuple[int, str, int]:
    """Return the line at a position, with its start and end."""
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    end = len(text) if end < 0 else end
    return start, text[start : min(end, start + MAX_LINE)].strip(), end
