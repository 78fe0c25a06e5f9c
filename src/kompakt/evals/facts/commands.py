"""Command and outcome: the first line of each shell command, and whether it worked.

The outcome is what the result says of itself: its error flag, an exit code in its words. A pipeline that ended well
although its words report a failure may be told either way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kompakt.evals.facts.fact import Fact, words
from kompakt.evals.facts.shell import command_of, first_line
from kompakt.evals.sources.trail import Call

_EXIT = r"\bexit(?:ed)?(?: code| status)?[ :=]*"

SUCCESS = rf"{words('ok', 'succe', 'pass', 'done', 'complet', 'worked', 'fine', 'green', 'clean')}|{_EXIT}0\b|✓|✔|✅"
_BAD = ("fail", "error", "timed", "timeout", "interrupt", "reject", "denied", "abort", "panic", "cancel", "killed")
FAILURE = rf"{words(*_BAD)}|{_EXIT}-?[1-9]\d*|non-?zero|not found|✗|✘|❌"

_CODE = re.compile(r"\bexit(?:ed)?(?: with)?(?: code| status)[ \"']*+(?:[:=] *+)?(-?\d+)|\"exit_code\": ?(-?\d+)", re.I)
_PENDING = re.compile(r"running in (?:the )?background|still running", re.I)


def command_facts(pairs: Iterable[Call]) -> Iterator[Fact]:
    """Yield each command with how it ended; one that is still running has not."""
    for call in pairs:
        command = command_of(call.event)
        if command is None or call.result is None:
            continue
        outcome = outcome_of(call)
        if outcome is not None:
            said = {"success": SUCCESS, "failure": FAILURE, "either": f"{SUCCESS}|{FAILURE}"}[outcome]
            yield Fact("command", first_line(command), outcome, said, (call.event.id,))


def outcome_of(call: Call) -> str | None:
    """Return ``success``, ``failure``, ``either`` when the result can be read both ways, or nothing while it runs."""
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
