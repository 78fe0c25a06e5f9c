"""The events of a session: who said what, which call got which answer.

Reading a message costs little: events only refer to its parts. They are interpreted when a ledger is written.
"""

from __future__ import annotations

import msgspec

from kompakt.engine.ledger.extract.tool_calls import Effect, effect_of, fields_of, only_looks
from kompakt.model.messages import ToolCall, ToolResult

THOUGHT = "thought"
"""The role of the assistant's reasoning."""


class Spoken(msgspec.Struct, eq=False, gc=False):
    """Words of the user or the assistant."""

    at: int
    role: str
    text: str


class ToolUse(msgspec.Struct, eq=False, gc=False):
    """A tool call and its answer. The input of the call is decoded at most once, and not kept if it only looks."""

    at: int
    call: ToolCall
    answered_at: int = -1
    result: ToolResult | None = None
    _only_looks: bool | None = None
    _effect: Effect | None = None

    @property
    def only_looks(self) -> bool:
        """Whether the call plainly changes no file and keeps no list of tasks."""
        if self._only_looks is None:
            fields = fields_of(self.call)
            self._only_looks = only_looks(self.call.name, fields)
            if not self._only_looks:
                self._effect = effect_of(self.call, fields)
        return self._only_looks

    @property
    def effect(self) -> Effect:
        """What the call does, by the shape of its input."""
        if self._effect is None:
            self._effect = effect_of(self.call, fields_of(self.call))
        return self._effect


Event = Spoken | ToolUse
