"""What an agent learns from the provider's counts, and the reasons that its compactions state."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.agent.agent_runs import watched
from tests.agent.scripted_client import Scripted, calls

import kompakt
from kompakt.agent.agent import Agent
from kompakt.agent.config import CompactionConfig
from kompakt.agent.events import Compacted
from kompakt.agent.loop import Loop
from kompakt.model.budget import Budget, Usage
from kompakt.model.messages import Message, Text, ToolCall

OUTPUT = "\n".join(f"line {number} of what was found there" for number in range(120))


def look() -> str:
    """Look."""
    return OUTPUT


def test_all_messages_of_a_reply_are_left_out_of_what_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply of several items on Responses does not make the provider seem to count less than it does."""
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
    """Run to the end and list why the session was compacted."""

    async def main() -> list[str]:
        async with Agent(client, tools=[look], compaction=CompactionConfig(economic=False)) as agent:
            seen = await watched(agent, "Look at everything.", session="s", **options)
            assert seen.count(Compacted)
            told = [event.report.reason for event in seen.events if type(event) is Compacted]
            assert told == [one.reason for one in await (await agent.session("s")).compactions()]
            return told

    return asyncio.run(main())


def test_a_compaction_that_the_budget_calls_for_says_so() -> None:
    found = reasons(Scripted(*steps(12)), budget=Budget(window=9_000, trigger=8_000, target=4_000))
    assert set(found) == {"over 8000 tokens"}


def test_a_compaction_that_the_reported_usage_calls_for_says_so() -> None:
    """An answer that filled the window in the provider's count, although our count is below the trigger."""
    outputs = [10, 10, 8_000, 10]
    client = Scripted(*steps(3), window=10_000, usage=lambda counted: Usage(input=counted, output=outputs.pop(0)))
    found = reasons(client)
    assert len(found) == 1 and found[0].startswith("over 9000 tokens")


@pytest.mark.parametrize("reported", [9_000, 30_000])
def test_equal_reports_of_at_least_what_was_sent_are_no_cut(reported: int, caplog: pytest.LogCaptureFixture) -> None:
    """A server that reports the same number at each step, and never less than was sent, reads everything."""
    client = Scripted(*steps(5), usage=lambda counted: Usage(input=max(reported, counted)))
    with caplog.at_level(logging.WARNING, "kompakt.agent"):
        result = asyncio.run(Agent(client, tools=[look]).run("Look at everything."))
    assert result.text == "Done." and "truncated the prompt" not in caplog.text
    assert kompakt.count(client.bodies[-1], format="openai-chat").total < 9_000


def test_equal_reports_of_less_than_was_sent_are_a_cut(caplog: pytest.LogCaptureFixture) -> None:
    client = Scripted(*steps(6), usage=lambda counted: Usage(input=min(4_000, counted)))
    with caplog.at_level(logging.WARNING, "kompakt.agent"):
        asyncio.run(Agent(client, tools=[look]).run("Look at everything."))
    assert "truncated the prompt" in caplog.text
