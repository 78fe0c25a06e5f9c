"""Chat messages in the making, for recordings that are not in any provider's format.

One invariant: results directly follow the message with their calls; what else came in between waits until the last
result is there, or until the model speaks again.
"""

from __future__ import annotations

from kompakt.model.messages import Json, JsonObject
from kompakt.wire.transcripts.transcript import objects


class Chat:
    """Gathers Chat Completions messages in the order the format demands."""

    def __init__(self) -> None:
        self.messages: list[JsonObject] = []
        self.usages: list[tuple[int, JsonObject]] = []
        self.times: list[tuple[int, float]] = []
        self.summaries: set[int] = set()
        self._open: list[str] = []
        self._waiting: list[JsonObject] = []

    def say(self, role: str, content: Json) -> None:
        """Add a message without calls."""
        message: JsonObject = {"role": role, "content": content}
        if role == "assistant":
            self._settle()
        (self._waiting if self._open else self.messages).append(message)

    def summarize(self, role: str, content: str) -> None:
        """Add a summary that the agent made of what precedes it."""
        self._settle()
        self.summaries.add(len(self.messages))
        self.messages.append({"role": role, "content": content})

    def call(self, message: JsonObject, *, usage: JsonObject | None = None, time: float | None = None) -> None:
        """Add an assistant message with calls."""
        self._settle()
        self.messages.append(message)
        self._open = [str(call.get("id")) for call in objects(message.get("tool_calls"))]
        if usage is not None:
            self.usages.append((len(self.messages) - 1, usage))
        if time is not None:
            self.times.append((len(self.messages) - 1, time))

    def is_waiting(self, message: JsonObject) -> bool:
        """Tell whether a message is the newest one and no result has come yet, so that a call may join it."""
        return bool(self.messages) and self.messages[-1] is message

    def expect(self, call_id: str) -> None:
        """Wait for the result of a call that joined the newest message."""
        self._open.append(call_id)

    def result(self, call_id: str, content: Json) -> None:
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
        """Append what waited for the last result."""
        self.messages.extend(self._waiting)
        self._waiting = []
        self._open = []
