"""What the tests of the ledger share: calls with their answers, and the ledger of a history that is hidden."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tests.histories.messages import assistant, tool

from kompakt.engine.context.values import speaks
from kompakt.engine.ledger.events import Order
from kompakt.engine.ledger.facts import Fact
from kompakt.engine.ledger.ledger import Ledger
from kompakt.engine.ledger.parse import read
from kompakt.engine.ledger.selection import Facts
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


def tell(
    messages: Sequence[Message], room: int = ROOMY, *, earlier: str | None = None, hidden: int | None = None
) -> str:
    """Write the ledger of a history of which the first messages, or all, are hidden."""
    ledger = Ledger()
    ledger.read(messages, len(messages), speaks)
    references = References(messages)
    end = len(messages) if hidden is None else hidden
    return ledger.write(
        Order(
            room=room,
            count=counter_for(None).text,
            is_hidden=lambda index: index < end,
            reference=lambda index: references.names[index],
            upto=len(messages),
            shown=lambda: "",
            earlier=earlier,
        )
    )


def facts(messages: Sequence[Message], kind: str | None = None, *, earlier: str | None = None) -> list[Fact]:
    """List what the ledger of a history asserts, read back from its text."""
    found = read(tell(messages, earlier=earlier)).facts
    return [fact for fact in found if kind in (None, fact.kind)]


def files(messages: Sequence[Message], *, earlier: str | None = None) -> dict[str, str]:
    """Say what the ledger tells about files."""
    return {fact.key: fact.relation for fact in facts(messages, "file", earlier=earlier)}


def keys(messages: Sequence[Message], kind: str, *, earlier: str | None = None) -> list[str]:
    """List what the facts of one kind are about."""
    return [fact.key for fact in facts(messages, kind, earlier=earlier)]


def merge(found: Iterable[Fact]) -> list[Fact]:
    """Join facts about the same thing, in the order of their last news."""
    known = Facts()
    known.add(found)
    return known.chosen(ROOMY, ROOMY * 100, "", lambda text: 0, lambda fact: True)[0]
