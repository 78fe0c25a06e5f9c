"""A run that would fit is compacted all the same where that makes it cheaper, and never where it does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import kompakt
from kompakt.agent.events import Compacted
from kompakt.agent.protocol import Delta, Reply, ToolSpec
from kompakt.agent.saving import down_to
from kompakt.engine.cost import Prices
from kompakt.model.budget import Budget, Usage


class Model:
    """Asks for one file after the other; counts what a provider with a cache would bill."""

    format, model, context_window, output_limit = "openai-chat", "gpt-5", 400_000, 4_000

    def __init__(self, steps: int) -> None:
        self.steps, self.bill, self.largest = steps, 0.0, 0
        self._before: list[str] = []
        self._made = 0

    def envelope(self, *, system: str | None, tools: Sequence[ToolSpec]) -> dict[str, Any]:
        """Make a body."""
        listed = [{"type": "function", "function": {"name": t.name, "parameters": t.schema}} for t in tools]
        return {"model": self.model, "tools": listed, "messages": []}

    def opening(self, system: str | None) -> list[Any]:
        """Begin with the system text."""
        return [{"role": "system", "content": system}] if system else []

    async def send(
        self, body: dict[str, Any], *, on_delta: Callable[[Delta], None] | None = None, changes: Any = None
    ) -> Reply:
        """Answer with the next call."""
        assert kompakt.check(body) == []
        items = [json.dumps(message) for message in body["messages"]]
        same = next((n for n, (a, b) in enumerate(zip(items, self._before, strict=False)) if a != b), len(self._before))
        prompt = kompakt.count(body).total
        cached = kompakt.count({**body, "messages": body["messages"][:same]}).total if same else 0
        self.bill += Prices().request(prompt, cached=min(cached, prompt), output=20)
        self._before, self.largest = items, max(self.largest, prompt)
        self._made += 1
        usage = Usage(input=prompt - min(cached, prompt), cache_read=min(cached, prompt), output=20)
        if self._made > self.steps:
            return Reply(({"role": "assistant", "content": "Done."},), "end", usage, usage)
        function = {"name": "read", "arguments": json.dumps({"path": f"src/module_{self._made}.py"})}
        call = {"id": f"call_{self._made}", "type": "function", "function": function}
        return Reply(({"role": "assistant", "content": None, "tool_calls": [call]},), "tools", usage, usage)

    async def close(self) -> None:
        """Nothing is open."""


def read(path: str) -> str:
    """Read a file."""
    return "\n".join(f"{n}: value_{n} = compute({path!r}, {n})" for n in range(40))


def bill(steps: int, **settings: Any) -> tuple[Model, int]:
    """Run an agent; return its model, and how often its history was compacted."""
    model = Model(steps)

    async def work() -> int:
        config = kompakt.CompactionConfig(**settings)
        async with kompakt.Agent(model, tools=[read], compaction=config) as agent:
            events = [event async for event in agent.stream("Read them all. Never write a file.", session="s")]
            session = await agent.session("s")
            assert await session.verify() == []
            return sum(type(event) is Compacted for event in events)

    return model, asyncio.run(work())


class TestSaving:
    def test_a_long_run_costs_less(self) -> None:
        """Far below the window, a long run is compacted when that pays, and pays half of it at most."""
        plain, never = bill(160, economic=False)
        saving, times = bill(160)
        assert never == 0 and plain.largest < Model.context_window * 0.5
        assert times > 0 and saving.bill < 0.6 * plain.bill

    @pytest.mark.parametrize("settings", [{"auto": False}, {"economic": False}], ids=str)
    def test_it_can_be_turned_off(self, settings: dict[str, bool]) -> None:
        """Who wants nothing rewritten before it must be has that."""
        assert bill(60, **settings)[1] == 0

    def test_a_short_run_is_left_alone(self) -> None:
        """What a rewriting would not pay back is not rewritten."""
        assert bill(8)[1] == 0


class TestBudget:
    def test_comes_down_to_the_goal(self) -> None:
        """The prompt exceeds it, it aims for the goal, and the window stays what it is."""
        budget = down_to(Budget.of(50_000), 6_000, 20_000)
        assert budget.due(20_000) and budget.target == 6_000 and budget.window == 50_000
        assert not budget.due(budget.trigger)
