"""Recall in ``Agent``: the model finds what left the context, and no event shows the tool."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.agent.agent_runs import FORMATS, client_for, watched
from tests.agent.recall.seeker import Seeker, dropped, facts, history, questions
from tests.gateway.scripted_model import Model, read, recall
from tests.gateway.upstreams import Recorded

import kompakt
from kompakt.events import Answered, Called

ROUNDS = 80
BUDGET = kompakt.Budget(window=20_000, trigger=9_000, target=4_000)
each_format = pytest.mark.parametrize("format", FORMATS)


def read_file(path: str) -> str:
    """Read a file."""
    return f"content of {path}"


async def agent_with_history(provider: Recorded, format: str, **options: Any) -> kompakt.Agent:
    """Return an agent whose session is too long for its budget."""
    store = await kompakt.open_store("memory:")
    await (await store.session("long")).append(history(format, ROUNDS), format=format)
    given = {"tools": [read_file], "budget": BUDGET, "summarizer": "off", **options}
    return kompakt.Agent(client_for(format, provider), store=store, **given)


@each_format
def test_thirty_dropped_facts_are_found(format: str) -> None:
    async def run(provider: Recorded) -> tuple[int, list[Any]]:
        known, found, events = facts(format, ROUNDS), 0, list[Any]()
        async with await agent_with_history(provider, format) as agent:
            await agent.run("Are you there?", session="long")
            for paths, question in questions(dropped(provider.asked[0], format, known)[:30]):
                seen = await watched(agent, question, session="long")
                events += seen.events
                found += sum(f"in {path} is {known[path]}." in seen.result.text for path in paths)
        return found, events

    with Recorded(Seeker(), window=40_000) as provider:
        found, events = asyncio.run(run(provider))
        assert found == 30
        assert not any(isinstance(event, Called | Answered) for event in events)
        assert [record.refusal for record in provider.refusals] == [] and provider.overflows == []


@each_format
def test_a_turn_may_call_recall_and_other_tools(format: str) -> None:
    async def run(provider: Recorded) -> Any:
        async with await agent_with_history(provider, format) as agent:
            return await watched(agent, "Look at both.", session="long")

    model = Model(("Both.", [recall("marker in old/00001_0.py"), ("read_file", {"path": "a.py"})]), ("Done.", []))
    with Recorded(model, window=40_000) as provider:
        seen = asyncio.run(run(provider))
        assert [event.name for event in seen.events if isinstance(event, Called | Answered)] == ["read_file"] * 2
        assert seen.result.text == "Done."
        assert facts(format, ROUNDS)["old/00001_0.py"].encode() in provider.asked[1].body
        assert provider.refusals == []


def test_a_model_that_always_recalls_ends_the_run() -> None:
    async def run(provider: Recorded) -> Any:
        async with await agent_with_history(provider, "openai-chat") as agent:
            result = await agent.run("Go.", session="long")
            again = await agent.run("And now?", session="long")
            return result, again

    with Recorded(Model(("Again.", [recall("marker")])), window=40_000) as provider:
        result, again = asyncio.run(run(provider))
        assert (result.stop, result.steps, result.text) == ("recalls", 7, "Again.")
        assert again.stop == "recalls"
        assert b"Search or restore earlier" in provider.asked[5].body
        assert b"Search or restore earlier" not in provider.asked[6].body
        assert b"Search or restore earlier" in provider.asked[7].body
        assert provider.refusals == []


@pytest.mark.parametrize("options", [{"recall": False}, {"tools": []}], ids=["off", "no tools"])
def test_recall_that_is_not_offered_is_not_mentioned(options: dict[str, Any]) -> None:
    async def run(provider: Recorded) -> None:
        async with await agent_with_history(provider, "anthropic", **options) as agent:
            await agent.run("What is the marker in old/00001_0.py?", session="long")

    with Recorded(Seeker(), window=40_000) as provider:
        asyncio.run(run(provider))
        assert len(provider.asked) == 1 and b"Earlier steps were summarized" in provider.asked[0].body
        assert b"recall" not in b"".join(raw.body for raw in provider.asked).lower()


def test_a_session_that_fits_has_no_recall_tool() -> None:
    async def run(provider: Recorded) -> str:
        async with kompakt.Agent(client_for("openai-chat", provider), tools=[read_file]) as agent:
            return (await agent.run("Go.")).text

    with Recorded(Model(("Look.", [read("a.py")]), ("Done.", [])), window=40_000) as provider:
        assert asyncio.run(run(provider)) == "Done."
        assert b"recall" not in b"".join(raw.body for raw in provider.asked)


def test_a_tool_named_recall_keeps_its_name() -> None:
    def recall_order(number: int) -> str:
        return f"order {number}"

    recall_order.__name__ = "recall"

    async def run(provider: Recorded) -> str:
        async with await agent_with_history(provider, "openai-chat", tools=[recall_order]) as agent:
            await agent.run("Are you there?", session="long")
            return (await agent.run("What is the marker in old/00001_0.py?", session="long")).text

    class Careful(Seeker):
        def __call__(self, seen: Any) -> Any:
            assert [tool["name"] for tool in seen.tools][:1] == ["recall"]
            object.__setattr__(seen, "tools", [tool for tool in seen.tools if tool["name"] != "recall"])
            return super().__call__(seen)

    with Recorded(Careful(), window=40_000) as provider:
        assert facts("openai-chat", ROUNDS)["old/00001_0.py"] in asyncio.run(run(provider))
