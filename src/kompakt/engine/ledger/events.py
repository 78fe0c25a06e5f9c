"""The events of a session: who said what, which call got which answer.

Reading a message costs little: events only point at its parts. What they mean is worked out when a ledger is written.
"""

from __future__ import annotations

from functools import cached_property

from kompakt.engine.ledger.extract.tool_calls import Effect, effect_of
from kompakt.model.messages import ToolCall, ToolResult

THOUGHT = "thought"
"""The role of what the assistant thought and did not say."""


class Spoken:
    """Words of the user or the assistant."""

    __slots__ = ("at", "role", "text")

    def __init__(self, at: int, role: str, text: str) -> None:
        self.at, self.role, self.text = at, role, text


class ToolUse:
    """A tool call and its answer."""

    def __init__(self, at: int, call: ToolCall) -> None:
        self.at, self.call = at, call
        self.answered_at = -1
        self.result: ToolResult | None = None

    @cached_property
    def effect(self) -> Effect:
        """What the call does, by the shape of its input."""
        return effect_of(self.call)


Event = Spoken | ToolUse
