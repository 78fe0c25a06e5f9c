"""A chat client in this process that answers from a list, in any wire format, and checks every request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import kompakt
from kompakt.agent.client import Reply, ToolSpec
from kompakt.agent.config import CompactionConfig
from kompakt.errors import Overflowed
from kompakt.model.budget import Usage
from kompakt.model.messages import JsonObject, Message, Text, ToolCall
from kompakt.wire.overflow import Overflow
from kompakt.wire.registry import WIRES

Answer = str | Message | Sequence[Message] | Exception

SYSTEMS: dict[str, Callable[[str], JsonObject]] = {
    "anthropic": lambda text: {"system": text},
    "bedrock": lambda text: {"system": [{"text": text}]},
    "gemini": lambda text: {"systemInstruction": {"parts": [{"text": text}]}},
    "openai-responses": lambda text: {"instructions": text},
    "openai-chat": lambda text: {},
}


def calls(*names: str, id: str = "c", **input: Any) -> Message:
    """Return an answer that calls tools; ids are numbered."""
    return Message("assistant", tuple(ToolCall(f"{id}{n}", name, input) for n, name in enumerate(names)))


class Scripted:
    """Gives one answer after another and repeats the last one.

    It does not expect to be asked for summaries, so its configuration leaves them to code.

    ``limit`` rejects requests with more tokens. ``factor`` is the number of tokens that the provider counts for each of
    ours.
    """

    def __init__(
        self,
        *answers: Answer,
        format: str = "openai-chat",
        model: str = "gpt-5",
        window: int = 100_000,
        limit: int | None = None,
        factor: float = 1.0,
        usage: Callable[[int], Usage] | None = None,
    ) -> None:
        self.format, self.model = format, model
        self.context_window, self.output_limit = window, 1_000
        self.compaction: CompactionConfig | None = CompactionConfig(summarizer="off")
        self.answers = list(answers) or ["Done."]
        self.limit, self.factor, self.usage = limit, factor, usage
        self.bodies: list[JsonObject] = []
        self.refused: list[JsonObject] = []

    def envelope(self, *, system: str | None, tools: Sequence[ToolSpec]) -> JsonObject:
        body: JsonObject = {"model": self.model, **(SYSTEMS[self.format](system) if system else {})}
        made = [WIRES[self.format].define_tool(name=t.name, description=t.description, schema=t.schema) for t in tools]
        return {**body, "tools": made} if made else body

    def opening(self, system: str | None) -> list[Any]:
        return [{"role": "system", "content": system}] if system and self.format == "openai-chat" else []

    async def send(self, body: JsonObject, *, on_delta: Any = None, changes: Any = None) -> Reply:
        body = {**body, WIRES[self.format].messages_key: list(body[WIRES[self.format].messages_key])}
        problems = kompakt.check(body, self.format)
        assert problems == [], problems
        counted = kompakt.count(body, self.model, self.format).total
        if self.limit is not None and counted * self.factor > self.limit:
            self.refused.append(body)
            stated = Overflow(limit=self.limit, actual=int(counted * self.factor), source="test", message="too long")
            raise Overflowed("too long", status=400, overflow=stated)
        self.bodies.append(body)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            answer = Message("assistant", (Text(answer),))
        said = [answer] if isinstance(answer, Message) else list(answer)
        items = tuple(item for message in said for item in WIRES[self.format].render(message))
        usage = self.usage(counted) if self.usage else Usage(input=int(counted * self.factor))
        return Reply(items, "tools" if any(m.calls for m in said) else "end", usage, usage)

    async def close(self) -> None: ...

    def shown(self, at: int = -1) -> list[Message]:
        """Return the messages of a request."""
        return list(kompakt.parse(self.bodies[at], format=self.format))
