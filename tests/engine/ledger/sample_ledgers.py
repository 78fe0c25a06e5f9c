"""Helpers of the ledger tests: calls with their answers, and the ledger of a hidden history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.histories.messages import assistant, tool

from kompakt.engine.ledger.items import HEADING, SECTIONS, parse
from kompakt.engine.ledger.ledger import Ledger, LedgerRequest
from kompakt.model.messages import Message, ToolCall, ToolResult
from kompakt.model.references import References
from kompakt.model.tokens import counter_for

ROOMY = 1_000_000


def did(input: Any, output: str = "done", *, name: str = "do", failed: bool = False, id: str = "c1") -> list[Message]:
    """Make a call and its answer."""
    return [assistant(ToolCall(id, name, input)), tool(ToolResult(id, output, is_error=failed))]


def ran(command: str, output: str = "", *, failed: bool = False) -> list[Message]:
    """Make a shell command and its answer."""
    return did({"command": command}, output, name="bash", failed=failed)


def edited(path: str, old: str = "x = 1", new: str = "x = 2") -> list[Message]:
    """Make an edit of a file."""
    return did({"file_path": path, "old_string": old, "new_string": new}, name="Edit")


def write(
    messages: Sequence[Message], room: int = ROOMY, *, earlier: str | None = None, hidden: int | None = None
) -> str:
    """Write the ledger of a history of which the first messages, or all, are hidden."""
    ledger = Ledger()
    ledger.read(messages, len(messages))
    references = References(messages)
    end = len(messages) if hidden is None else hidden
    request = LedgerRequest(
        room=room,
        count=counter_for(None).text,
        is_hidden=lambda index: index < end,
        reference=lambda index: references.names[index],
        upto=len(messages),
        earlier=earlier,
    )
    return ledger.write(request)


def room_for(messages: Sequence[Message], words: str) -> int:
    """Return the least room in which the ledger has some words: what is worth more needs less."""
    return next(room for room in range(60, 3_000, 2) if words in write(messages, room))


def section(text: str, name: str) -> list[str]:
    """List the bullets of one section, without their references."""
    return [body for found, body, _, _ in parse(text).items if found == name]


def written(messages: Sequence[Message], name: str, **options: Any) -> list[str]:
    """Write a ledger and list the bullets of one section."""
    text = write(messages, **options)
    assert not text or text.startswith(HEADING)
    assert name in SECTIONS
    return section(text, name)
