"""What stands above a command's output that is written shorter: how it ended, and what it reports to have failed.

Whoever reads on may not get to the line that says so, or finds it folded. A tool that only looked something up needs no
such line. What is quoted, as by a search, reports nothing. Cost: that of the ledger's look at the same output.
"""

from __future__ import annotations

from collections.abc import Iterator

from kompakt.engine.ledger.extract.outcomes import failure_lines, outcome
from kompakt.engine.ledger.extract.shell import quotes
from kompakt.engine.ledger.extract.tool_calls import deed_of
from kompakt.model.messages import ToolCall, ToolResult
from kompakt.model.phrases import FOLD

_COMMAND = 60
"""Characters by which a command is known."""

_LINE = 80
"""Characters of a failure that are said again."""

_REACH = 160
"""Characters of failures that are said again: a summary, the whole of them stands below."""


def heading(call: ToolCall, result: ToolResult) -> str:
    """Say how a command ended; nothing for other calls."""
    command = deed_of(call).command
    if command is None or not command.strip():
        return ""
    name = command.strip().split("\n", 1)[0][:_COMMAND].rstrip()
    name = name if name == command.strip() else f"{name} {FOLD.strip()}"
    how = outcome(result)
    failed = [] if quotes(command) else list(_told(failure_lines(result.output)))
    if failed:
        ended = "success, yet its output reports" if how == "success" else how
        return f"[kompakt] {name}: {ended}: {f' {FOLD}'.join(failed)}\n"
    return f"[kompakt] {name}: {how}\n"


def _told(lines: list[str]) -> Iterator[str]:
    """Take as many failures as stand within sight of the command."""
    room = _REACH
    for line in lines:
        said = line[:_LINE].rstrip()
        if len(said) > room:
            return
        room -= len(said)
        yield said
