"""The budget of a run: the caller's, else the model's with its prompt limit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import kompakt
from kompakt.agent.client import Delta, Reply, ToolSpec, limits_of
from kompakt.agent.config import budget_of
from kompakt.events import Compacted
from kompakt.model.budget import Usage


class Reader:
    """A model that reads one file after another and reports the size of each prompt."""

    format = "openai-chat"

    def __init__(self, steps: int, *, model: str, context_window: int, output_limit: int = 4_096) -> None:
        self.steps, self.model, self.context_window, self.output_limit = steps, model, context_window, output_limit
        self.prompts: list[int] = []

    def envelope(self, *, system: str | None, tools: Sequence[ToolSpec]) -> dict[str, Any]:
        listed = [{"type": "function", "function": {"name": t.name, "parameters": t.schema}} for t in tools]
        return {"model": self.model, "tools": listed, "messages": []}

    def opening(self, system: str | None) -> list[Any]:
        return [{"role": "system", "content": system}] if system else []

    async def send(
        self, body: dict[str, Any], *, on_delta: Callable[[Delta], None] | None = None, changes: Any = None
    ) -> Reply:
        self.prompts.append(kompakt.count(body).total)
        usage = Usage(input=self.prompts[-1], output=20)
        if len(self.prompts) > self.steps:
            return Reply(({"role": "assistant", "content": "Done."},), "end", usage, usage)
        arguments = json.dumps({"number": len(self.prompts)})
        call = {
            "id": f"call_{len(self.prompts)}",
            "type": "function",
            "function": {"name": "read", "arguments": arguments},
        }
        return Reply(({"role": "assistant", "content": None, "tool_calls": [call]},), "tools", usage, usage)

    async def close(self) -> None:
        """Nothing is open."""


def compactions(client: Reader, *, lines: int, system: str | None = None, **settings: Any) -> int:
    """Run an agent to its end and return the number of compactions."""

    def read(number: int) -> str:
        """Read a file."""
        return "\n".join(f"{at}: value_{at} = compute({number}, {at})" for at in range(lines))

    async def work() -> int:
        config = kompakt.CompactionConfig(**settings)
        async with kompakt.Agent(client, tools=[read], system=system, compaction=config) as agent:
            events = [event async for event in agent.stream("Read them all.", session="s")]
            return sum(type(event) is Compacted for event in events)

    return asyncio.run(work())


class TestLimits:
    def test_the_prompt_limit_of_the_model_applies(self) -> None:
        """A window of 400,000 tokens of which a prompt may take 272,000."""
        client = Reader(14, model="gpt-5", context_window=400_000, output_limit=32_000)
        assert compactions(client, lines=1_700, economic=False) > 0
        assert max(client.prompts) <= 272_000
        assert budget_of(client, kompakt.CompactionConfig()).ceiling == 272_000

    def test_a_smaller_window_of_the_client_applies(self) -> None:
        """The window that the server was started with counts, and leaves room for the answer."""
        client = kompakt.OpenAIChat(model="gpt-5", api_key="x", context_window=60_000)
        budget = budget_of(client, kompakt.CompactionConfig())
        assert (limits_of(client).input, budget.window) == (None, 60_000) and budget.reserve > 0

    @pytest.mark.parametrize("model", ["gemini-3-pro", "tuned-model-of-mine"])
    def test_gemini_needs_no_output_reserve(self, model: str) -> None:
        """Its limits of prompt and output are separate."""
        client = kompakt.Gemini(model=model, api_key="x", context_window=100_000)
        budget = budget_of(client, kompakt.CompactionConfig())
        assert budget.reserve == 0 and budget.trigger >= 85_000


class TestGiven:
    def test_a_budget_above_the_assumed_window_holds_after_a_step(self) -> None:
        """The caller's budget is better than the assumption of 32,000 tokens."""
        client = Reader(12, model="unknown-model-one", context_window=32_000)
        assert compactions(client, lines=250, economic=False, budget=500_000) == 0
        assert max(client.prompts) > 39_000

    def test_the_output_cap_holds_after_a_step(self) -> None:
        """A smaller output reserve leaves more of the window for the prompt."""
        settings = {"model": "unknown-model-one", "context_window": 60_000, "output_limit": 30_000}
        assert compactions(Reader(13, **settings), lines=250, economic=False, output_cap=2_000) == 0
        assert compactions(Reader(13, **settings), lines=250, economic=False) > 0


class TestFixedPart:
    @pytest.mark.parametrize(("share", "most"), [(12, 5), (25, 6), (37, 7), (50, 9)])
    def test_compactions_stay_rare_when_the_system_prompt_grows(self, share: int, most: int) -> None:
        """The target is a share of what can change: 60 steps of about 1,300 tokens in a window of 40,000."""
        client = Reader(60, model="unknown-model-one", context_window=40_000)
        system = "Follow the rules of the house. " * (400 * share // 7)
        assert 0 < compactions(client, lines=73, system=system, economic=False) <= most
        assert max(client.prompts) <= 40_000 - 4_096


def pinned_run(client: Reader, text: str, *, budget: int) -> int:
    """Run an agent that pins a text at its eighth step; return the number of compactions."""

    async def run() -> int:
        store = await kompakt.open_store("memory:")

        async def read(number: int) -> str:
            """Read a file."""
            if number == 8:
                await (await store.session("s")).pin(text)
            return "\n".join(f"{at}: value_{at} = compute({number}, {at})" for at in range(30))

        agent = kompakt.Agent(client, tools=[read], store=store, budget=budget, summarizer="off")
        events = [event async for event in agent.stream("Read all files.", session="s")]
        return sum(type(event) is Compacted for event in events)

    return asyncio.run(run())


@pytest.mark.parametrize("budget", range(5_800, 6_200, 40))
def test_a_text_that_is_pinned_during_a_run_counts(budget: int) -> None:
    """The pinned text is sent beside the notes; a request that is near the budget must not exceed it by the text."""
    client = Reader(30, model="gpt-5", context_window=100_000)
    assert pinned_run(client, "The tide turns at noon, and the gate of berth C14 stays closed.", budget=budget) > 0
    assert len(client.prompts) == 31 and max(client.prompts) <= budget


def test_a_large_pin_does_not_compact_at_every_step() -> None:
    """The goal leaves room for the next steps beside it."""
    client = Reader(68, model="gpt-5", context_window=100_000)
    text = " ".join(f"Rule {number}: gate {number} stays closed." for number in range(200))
    assert 1_500 < kompakt.count([{"role": "user", "content": text}], format="openai-chat").total < 2_500
    assert pinned_run(client, text, budget=6_000) <= 16
    assert max(client.prompts) <= 6_000
