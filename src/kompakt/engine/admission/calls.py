"""The texts of a call, and the line above a compressed command output that says how the command ended.

Calls are read by their shape: no tool name and no argument name is special.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from kompakt.engine.ledger.extract.outcomes import failure_lines, outcome
from kompakt.engine.ledger.extract.shell import quotes
from kompakt.engine.ledger.extract.tool_calls import effect_of
from kompakt.model.json import decode_text
from kompakt.model.messages import Json, ToolCall, ToolResult
from kompakt.model.phrases import FOLD


def arguments(call_input: Json) -> list[Json]:
    """List the arguments of a call, whether they come as JSON or as JSON text."""
    if isinstance(call_input, str):
        try:
            call_input = decode_text(call_input)
        except ValueError:
            return [call_input]
    return list(cast("dict[str, Any]", call_input).values()) if isinstance(call_input, dict) else [call_input]


def texts_of(call_input: Json) -> list[str]:
    """List the texts of a call: its arguments, and those of the objects in its lists."""
    found: list[str] = []
    for value in arguments(call_input):
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, list):
            objects = [item for item in cast("list[Any]", value) if isinstance(item, dict)]
            found += [
                text for item in objects for text in cast("dict[str, Any]", item).values() if isinstance(text, str)
            ]
    return found


_COMMAND = 60
"""Characters of a command that are printed."""

_LINE = 80
"""Characters of a failure line that are repeated."""

_REACH = 160
"""Characters of all repeated failure lines; the full lines follow below."""


def heading(call: ToolCall, result: ToolResult) -> str:
    """Describe how a command ended; empty for other calls."""
    command = effect_of(call).command
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
    """Yield failure lines up to the limit."""
    room = _REACH
    for line in lines:
        said = line[:_LINE].rstrip()
        if len(said) > room:
            return
        room -= len(said)
        yield said
