"""What a call says, by its shape alone: no tool and no name of an argument is known here."""

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
"""Characters by which a command is known."""

_LINE = 80
"""Characters of a failure that are said again."""

_REACH = 160
"""Characters of failures that are said again: a summary, the whole of them stands below."""


def heading(call: ToolCall, result: ToolResult) -> str:
    """Say how a command ended; nothing for other calls."""
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
    """Take as many failures as stand within sight of the command."""
    room = _REACH
    for line in lines:
        said = line[:_LINE].rstrip()
        if len(said) > room:
            return
        room -= len(said)
        yield said
