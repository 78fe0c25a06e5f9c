"""What an agent learns from reported usage, and why it compacts."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.agent.agent_runs import watched
from tests.agent.scripted_client import Scripted, calls

import kompakt
from kompakt.agent.agent import Agent
from kompakt.agent.config import CompactionConfig
from kompakt.agent.loop import Loop
from kompakt.events import Compacted
from kompakt.model.budget import Budget, Usage
from kompakt.model.messages import Message, Text, ToolCall

OUTPUT = "\n".join(f"line {number} of what was found there" for number in range(120))


def look() -> str:
    """Look."""
    return OUTPUT


def test_a_reply_of_several_items_does_not_change_the_token_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Responses reply of several items must not make the provider's count look smaller than it is."""
    long = " ".join(f"thought {number}" for number in range(2_000))
    step = [
        Message("assistant", (Text(long),)),
        Message("assistant", (Text("I look."),)),
        Message("assistant", (ToolCall("c1", "look", "{}"),)),
    ]
    loops: list[Loop] = []
    run = Loop.run

    async def kept(loop: Loop) -> object:
        loops.append(loop)
        return await run(loop)

    monkeypatch.setattr(Loop, "run", kept)
    client = Scripted(step, "Done.", format="openai-responses", factor=1.0)
    asyncio.run(Agent(client, tools=[look]).run("Look."))
    assert loops[0]._ratio == pytest.approx(1.0, abs=0.01)


def steps(count: int) -> list[Message | str]:
    return [*(calls("look", id=f"c{number}_") for number in range(count)), "Done."]


def reasons(client: Scripted, **options: object) -> list[str]:
    """Run to the end and return the reasons of all compactions."""

    async def main() -> list[str]:
        async with Agent(client, tools=[look], compaction=CompactionConfig(economic=False)) as agent:
            seen = await watched(agent, "Look at everything.", session="s", **options)
            assert seen.count(Compacted)
            reported = [event.report.reason for event in seen.events if type(event) is Compacted]
            assert reported == [one.reason for one in await (await agent.session("s")).compactions()]
            return reported

    return asyncio.run(main())


def test_the_reason_names_the_budget() -> None:
    found = reasons(Scripted(*steps(12)), budget=Budget(window=9_000, trigger=8_000, target=4_000))
    assert set(found) == {"over 8000 tokens"}


def test_the_reason_names_the_reported_usage() -> None:
    """The window is full in the provider's count, although our count is below the trigger."""
    outputs = [10, 10, 8_000, 10]
    client = Scripted(*steps(3), window=10_000, usage=lambda counted: Usage(input=counted, output=outputs.pop(0)))
    found = reasons(client)
    assert len(found) == 1 and found[0].startswith("over 9000 tokens")


@pytest.mark.parametrize("reported", [9_000, 30_000])
def test_constant_usage_above_the_sent_tokens_is_no_truncation(reported: int, caplog: pytest.LogCaptureFixture) -> None:
    """A server that reports the same number at each step, and never less than was sent, reads everything."""
    client = Scripted(*steps(5), usage=lambda counted: Usage(input=max(reported, counted)))
    with caplog.at_level(logging.WARNING, "kompakt.agent"):
        result = asyncio.run(Agent(client, tools=[look]).run("Look at everything."))
    assert result.text == "Done." and "truncated the prompt" not in caplog.text
    assert kompakt.count(client.bodies[-1], format="openai-chat").total < 9_000


def test_constant_usage_below_the_sent_tokens_is_a_truncation(caplog: pytest.LogCaptureFixture) -> None:
    client = Scripted(*steps(6), usage=lambda counted: Usage(input=min(4_000, counted)))
    with caplog.at_level(logging.WARNING, "kompakt.agent"):
        asyncio.run(Agent(client, tools=[look]).run("Look at everything."))
    assert "truncated the prompt" in caplog.text
