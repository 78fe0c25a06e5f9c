"""Chat messages in the making, for recordings that are not in any provider's format.

One invariant: results stand directly behind the message with their calls; what else came in between waits until the
last result is there, or until the model speaks again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kompakt.model.messages import JsonObject


class Chat:
    """Gathers Chat Completions messages in the order the format demands."""

    def __init__(self) -> None:
        self.messages: list[JsonObject] = []
        self.usages: list[tuple[int, JsonObject]] = []
        self._open: list[str] = []
        self._waiting: list[JsonObject] = []

    def say(self, role: str, content: str) -> None:
        """Add a text message."""
        message: JsonObject = {"role": role, "content": content}
        if role == "assistant":
            self._settle()
        (self._waiting if self._open else self.messages).append(message)

    def call(self, message: JsonObject, *, usage: JsonObject | None = None) -> None:
        """Add an assistant message with calls."""
        self._settle()
        self.messages.append(message)
        self._open = [call["id"] for call in message["tool_calls"]]
        if usage is not None:
            self.usages.append((len(self.messages) - 1, usage))

    def result(self, call_id: str, content: str) -> None:
        """Add what a tool answered."""
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
        if call_id in self._open:
            self._open.remove(call_id)
        if not self._open:
            self._settle()

    def finish(self) -> list[JsonObject]:
        """Return all messages."""
        self._settle()
        return self.messages

    def _settle(self) -> None:
        """Let what waited for the last result follow now."""
        self.messages.extend(self._waiting)
        self._waiting = []
        self._open = []


def open_calls(messages: Iterable[JsonObject]) -> list[str]:
    """Name the calls of Chat messages that nothing answers."""
    messages = list(messages)
    called = [(call["id"], index) for index, message in enumerate(messages) for call in message.get("tool_calls") or ()]
    answered = Counter(message.get("tool_call_id") for message in messages if message["role"] == "tool")
    missing: list[str] = []
    for call_id, index in called:
        if answered[call_id]:
            answered[call_id] -= 1
        else:
            missing.append(f"call {call_id} in message {index} has no result")
    return missing
