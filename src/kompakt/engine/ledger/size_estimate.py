"""How much a ledger will have to say about a message, roughly and cheaply: room is set aside before it is written.

A call is a line; the names in a text are guessed from the signs in it. The same message always weighs the same.
"""

from __future__ import annotations

from kompakt.engine.ledger.extract.tool_calls import input_text
from kompakt.model.messages import Message, Text, ToolCall, ToolResult

LINE = 30
"""Tokens of a line about a call or a sentence."""


def weight(message: Message) -> int:
    """Estimate the tokens that a ledger would take to tell what is in a message."""
    total = 0
    for part in message.parts:
        if type(part) is Text:
            total += LINE + _names(part.text)
        elif type(part) is ToolCall:
            given = part.input
            total += LINE + _names(given if type(given) is str else input_text(part))
        elif type(part) is ToolResult:
            total += _names(part.output)
    return total


def _names(text: str) -> int:
    """Guess the tokens of the names in a text by the signs that names are joined with."""
    return PER_NAME * (text.count("_") + text.count(".") + text.count("/")) // 2


PER_NAME = 5
"""Tokens of a name."""
