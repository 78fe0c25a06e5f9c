"""The events of a session: who said what, which call got which answer.

Reading a message costs little: events only refer to its parts. They are interpreted when a ledger is written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from kompakt.engine.ledger.extract.tool_calls import Effect, effect_of, fields_of, only_looks
from kompakt.model.messages import ToolCall, ToolResult

RECENT_EVENTS = 400
"""Newest events from which everything is taken; from older ones only what lasts."""

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


_ACTION = re.compile(
    r"(?:```[\w-]{0,20}\n(?P<fenced>[^`]+)```|<(command|execute_bash|bash|action)>(?P<tagged>[^<]+)</\2>)\s*\Z"
)
_PROMPT = re.compile(r"(?:\n\([A-Z][\w ]{1,40}: [^\n]{0,300}\)){0,4}\n?[^\s]{0,80}[$#>]\s*\Z")
_ACTION_ZONE = 4_000
"""Characters at the end of a text in which an action is searched for."""


def with_actions(events: Sequence[Event]) -> Sequence[Event]:
    """Read the actions of agents without tools: a command in a block at the end, answered by the next user message.

    A history is read so if nearly all texts of the assistant end with such a block.
    """
    if any(type(event) is ToolUse for event in events):
        return events
    spoken = [event for event in events if type(event) is Spoken and event.role != THOUGHT]
    said = [event for event in spoken if event.role == "assistant"]
    acts = {id(event): act for event in said if (act := _ACTION.search(event.text[-_ACTION_ZONE:]))}
    if len(acts) < 2 or len(acts) < 0.8 * len(said):
        return events
    answers = {id(one): other for one, other in pairwise(spoken) if id(one) in acts and other.role == "user"}
    outputs = {id(answer) for answer in answers.values()}
    found: list[Event] = []
    for event in events:
        if id(event) in answers and type(event) is Spoken:
            action, answer = acts[id(event)], answers[id(event)]
            call = ToolCall(f"action_{event.at}", "action", {"command": (action["fenced"] or action["tagged"]).strip()})
            result = ToolResult(call.id, _PROMPT.sub("", answer.text))
            found.append(Spoken(event.at, event.role, event.text[: len(event.text) - len(action[0])]))
            found.append(ToolUse(event.at, call, answer.at, result))
        elif id(event) not in outputs:
            found.append(event)
    return found
