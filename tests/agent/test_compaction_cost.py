"""A run that still fits is compacted if that makes it cheaper, and not otherwise."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.engine.sessions import rounds
from tests.histories.messages import user

import kompakt
from kompakt.agent.client import Delta, Reply, ToolSpec
from kompakt.agent.compaction import CostTrigger
from kompakt.engine.compaction.cost import Prices
from kompakt.events import Compacted
from kompakt.model.budget import Usage


class Model:
    """Calls for one file after another and counts what a provider with a cache would bill."""

    format, model, context_window, output_limit = "openai-chat", "gpt-5", 400_000, 4_000

    def __init__(self, steps: int) -> None:
        self.steps, self.bill, self.largest = steps, 0.0, 0
        self._before: list[str] = []
        self._made = 0

    def envelope(self, *, system: str | None, tools: Sequence[ToolSpec]) -> dict[str, Any]:
        listed = [{"type": "function", "function": {"name": t.name, "parameters": t.schema}} for t in tools]
        return {"model": self.model, "tools": listed, "messages": []}

    def opening(self, system: str | None) -> list[Any]:
        return [{"role": "system", "content": system}] if system else []

    async def send(
        self, body: dict[str, Any], *, on_delta: Callable[[Delta], None] | None = None, changes: Any = None
    ) -> Reply:
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


def bill(steps: int, **settings: Any) -> tuple[Model, list[str]]:
    """Run an agent; return its model and the reasons of its compactions."""
    model = Model(steps)

    async def work() -> list[str]:
        config = kompakt.CompactionConfig(**settings)
        async with kompakt.Agent(model, tools=[read], compaction=config) as agent:
            events = [event async for event in agent.stream("Read them all. Never write a file.", session="s")]
            session = await agent.session("s")
            assert await session.verify() == []
            return [event.report.reason for event in events if type(event) is Compacted and event.report]

    return model, asyncio.run(work())


class TestOptIn:
    def test_a_long_run_costs_less_with_economic(self) -> None:
        """Far below the window, the run is compacted when that pays, and costs at most half."""
        plain, never = bill(160, economic=False)
        saving, reasons = bill(160, economic=True)
        assert never == [] and plain.largest < Model.context_window * 0.5
        assert reasons and saving.bill < 0.6 * plain.bill
        assert all(reason.startswith("cheaper by ") for reason in reasons)

    def test_nothing_is_compacted_below_half_of_the_window_by_default(self) -> None:
        """Saving money must not cost the task."""
        model, reasons = bill(160)
        assert reasons == [] and 100_000 < model.largest < 272_000 / 2

    @pytest.mark.parametrize("settings", [{"auto": False}, {"economic": False}], ids=str)
    def test_it_can_be_turned_off(self, settings: dict[str, bool]) -> None:
        assert bill(60, **settings)[1] == []

    def test_a_short_run_is_not_compacted(self) -> None:
        """A compaction would not pay off."""
        assert bill(8, economic=True)[1] == []


class TestAboveHalf:
    def test_a_cost_compaction_has_the_same_target_as_an_ordinary_one(self) -> None:
        """By default what is left after saving is what an ordinary compaction leaves."""
        saving, budget = CostTrigger("gpt-5", economic=None), kompakt.Budget.of(20_000)
        context = kompakt.Context([user("Task."), *rounds(18)])
        assert 10_000 < context.projected_tokens < 20_000
        saving.begin(context)
        goals: list[int] = []
        for _ in range(2_000):
            saving.sending(context)
            saving.answered(10)
            goal = saving.goal(context, budget)
            goals += [goal] if goal is not None else []
        assert goals and min(goals) >= budget.goal(context.step_tokens, fixed=context.required_tokens)

    def test_an_unlimited_window_is_never_half_full(self) -> None:
        saving, context = CostTrigger("gpt-5", economic=None), kompakt.Context([user("Task."), *rounds(12)])
        saving.begin(context)
        for _ in range(50):
            saving.sending(context)
            saving.answered(10)
        assert saving.goal(context, kompakt.Budget(window=0, trigger=0, target=0)) is None
