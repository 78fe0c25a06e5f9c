"""Shared helpers of summarizer tests: a scripted client, and something to summarize."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.histories.messages import assistant, tool, user

from kompakt import api
from kompakt.agent.client import Delta, Reply, Stop, ToolSpec
from kompakt.agent.summarizer.llm import LLMSummarizer, SummaryFault
from kompakt.engine.pivot.pivot import Material
from kompakt.model.budget import Usage
from kompakt.model.messages import JsonObject, Message, Reasoning, ToolCall, ToolResult
from kompakt.model.references import References
from kompakt.model.tokens import counter_for
from kompakt.wire.registry import WIRES

FORMATS = sorted(WIRES)
SYSTEMS: dict[str, Callable[[str], JsonObject]] = {
    "anthropic": lambda text: {"system": text},
    "bedrock": lambda text: {"system": [{"text": text}]},
    "gemini": lambda text: {"systemInstruction": {"parts": [{"text": text}]}},
    "openai-responses": lambda text: {"instructions": text},
    "openai-chat": lambda text: {},
}
Script = str | Message | Exception | Callable[[str], str]


class Client:
    """Gives planned answers in order and repeats the last one; records every request."""

    def __init__(
        self,
        *script: Script,
        format: str = "openai-chat",
        window: int = 100_000,
        output: int = 2_000,
        stop: Stop = "end",
    ) -> None:
        self.format, self.model = format, "gpt-5"
        self.context_window, self.output_limit = window, output
        self.script, self.stop = list(script) or ["- done"], stop
        self.bodies: list[JsonObject] = []
        self.changes: list[JsonObject | None] = []

    def envelope(self, *, system: str | None, tools: Sequence[ToolSpec]) -> JsonObject:
        assert not tools
        return {"model": self.model, **(SYSTEMS[self.format](system) if system else {})}

    def opening(self, system: str | None) -> list[Any]:
        return [{"role": "system", "content": system}] if system and self.format == "openai-chat" else []

    async def send(
        self,
        body: JsonObject,
        *,
        on_delta: Callable[[Delta], None] | None = None,
        changes: JsonObject | None = None,
    ) -> Reply:
        self.bodies.append(body)
        self.changes.append(changes)
        said = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(said, Exception):
            raise said
        if not isinstance(said, Message):
            said = assistant(said if isinstance(said, str) else said(self.asked[-1]))
        return Reply(tuple(WIRES[self.format].render(said)), self.stop, Usage(), Usage())

    async def close(self) -> None: ...

    @property
    def asked(self) -> list[str]:
        """The text of the last message of each request."""
        return [api.parse(body, self.format)[-1].text for body in self.bodies]


def count(text: str) -> int:
    return counter_for("gpt-5").text(text)


def material(*messages: Message, earlier: str | None = None, most: int = 2_000, wish: str | None = None) -> Material:
    return Material(messages, tuple(References(messages).names), earlier, most, count, wish)


def summarize(client: Client, given: Material, **options: Any) -> str:
    return asyncio.run(LLMSummarizer(client, **options)(given))


def fault_of(client: Client, given: Material) -> str:
    with pytest.raises(SummaryFault) as raised:
        summarize(client, given)
    return raised.value.fault


WORK = (
    user("Fix the parser. Never touch the migrations."),
    assistant(Reasoning("SECRET plan", "SECRET blob"), "I look.", ToolCall("a", "read", {"path": "src/parser.py"})),
    tool(ToolResult("a", "def parse(): ...")),
    assistant("The bug is in line 3.", ToolCall("b", "edit", '{"path": "src/parser.py"}')),
    tool(ToolResult("b", "no such line", is_error=True)),
)
RULE = "Fix the parser. Never touch the migrations."
