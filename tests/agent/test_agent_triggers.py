"""Triggers and bare strategies compact before every model call, far below the budget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.agent.scripted_client import Scripted, calls

import kompakt
from kompakt.agent.agent import Agent
from kompakt.agent.config import CompactionConfig
from kompakt.engine.context.context import Context
from kompakt.events import Compacted
from kompakt.strategies import SlidingWindow, Strategy, Summarization, Truncation
from kompakt.triggers import Target, Trigger, every, over_bytes, over_groups, over_messages

STEPS = 30

TRIGGERS: dict[str, Callable[[], Trigger]] = {
    "over 12 messages": lambda: over_messages(12),
    "over 8 groups": lambda: over_groups(8),
    "over 600 bytes": lambda: over_bytes(600),
    "every 6 steps": lambda: every(6),
    "a predicate was true": lambda: lambda context: context.shown_messages > 12,
}


def work(step: int = 0) -> str:
    """Do some work."""
    return f"result of step {step}: " + "ok " * 20


def worked(
    *, format: str = "openai-chat", policy: kompakt.Policy | Strategy | str | None = None, **config: object
) -> tuple[Scripted, list[Compacted]]:
    """Run an agent for some steps; return its client and its compactions."""
    client = Scripted(*[calls("work", id=f"c{n}x", step=n) for n in range(STEPS)], "Done.", format=format)

    async def run() -> list[Compacted]:
        compaction = CompactionConfig(economic=False, **config)  # type: ignore[arg-type]
        agent = Agent(client, tools=[work], policy=policy, compaction=compaction)
        async with agent:
            return [event async for event in agent.stream("Do it.", session="s") if isinstance(event, Compacted)]

    return client, asyncio.run(run())


class TestTriggers:
    @pytest.mark.parametrize("reason", TRIGGERS)
    @pytest.mark.parametrize("make", [Truncation, Summarization])
    def test_every_trigger_fires_in_a_run(self, make: Callable[..., Strategy], reason: str) -> None:
        """The model never sees more than the trigger allows, and each compaction has its reason."""
        client, compactions = worked(policy=make(when=TRIGGERS[reason]()))
        assert len(client.bodies) == STEPS + 1
        assert compactions and {event.report.reason for event in compactions if event.report} == {reason}
        assert max(len(client.shown(at)) for at in range(STEPS + 1)) <= 20

    @pytest.mark.parametrize("format", ["anthropic", "gemini", "openai-responses"])
    def test_in_every_format(self, format: str) -> None:
        """Requests stay short and valid, which the client checks."""
        client, compactions = worked(format=format, policy=Truncation(when=over_messages(12)))
        assert compactions and max(len(client.shown(at)) for at in range(STEPS + 1)) <= 16

    def test_steps_are_counted_across_compactions(self) -> None:
        """Every six steps means every six steps, also when what was answered before is no longer shown."""
        client, compactions = worked(policy=Truncation(when=every(6)))
        assert len(compactions) == STEPS // 6
        sizes = [len(client.shown(at)) for at in range(STEPS + 1)]
        assert [at for at in range(1, STEPS + 1) if sizes[at] < sizes[at - 1]] == [6, 12, 18, 24, 30]

    def test_a_target_in_messages(self) -> None:
        client, _ = worked(policy=Truncation(when=over_messages(20), target=Target(messages=6)))
        sizes = [len(client.shown(at)) for at in range(STEPS + 1)]
        assert min(sizes[12:]) <= 8 and max(sizes) <= 22

    def test_auto_false_disables_triggers(self) -> None:
        client, compactions = worked(policy=Truncation(when=over_messages(12)), auto=False)
        assert compactions == [] and len(client.shown(-1)) == 2 * STEPS + 1

    def test_a_trigger_that_changes_nothing_leaves_no_record(self) -> None:
        """A strategy may be due and have nothing to do."""
        client, compactions = worked(policy=Truncation(when=over_messages(0), target=10**6))
        assert compactions == [] and len(client.shown(-1)) == 2 * STEPS + 1

    def test_no_resume_message_without_a_summary(self) -> None:
        """If old steps are only dropped, no message mentions a summary."""
        client, _ = worked(policy=Truncation(when=over_messages(12)))
        assert not any("were summarized" in message.text for message in client.shown(-1))


class TestBareStrategies:
    def test_a_bare_strategy_is_a_policy(self) -> None:
        client, compactions = worked(policy=SlidingWindow(min_keep_groups=3))
        assert max(len(client.shown(at)) for at in range(STEPS + 1)) <= 16
        assert {event.report.policy for event in compactions if event.report} == {"SlidingWindow"}

    def test_a_bare_strategy_at_the_call_and_in_the_config(self) -> None:
        """The call has precedence over the agent, and the agent over the client."""
        client = Scripted(*[calls("work", id=f"c{n}x", step=n) for n in range(STEPS)], "Done.")
        client.compaction = CompactionConfig(policy=SlidingWindow(min_keep_groups=2), economic=False)

        async def run() -> None:
            async with Agent(client, tools=[work]) as agent:
                await agent.run("Do it.", session="s")
                client.answers[:] = [*(calls("work", id=f"d{n}x", step=n) for n in range(STEPS)), "Done."]
                await agent.run("Again.", session="t", policy=Truncation(when=over_messages(30)))

        asyncio.run(run())
        assert max(len(client.shown(at)) for at in range(STEPS + 1)) <= 12
        assert 24 < max(len(client.shown(at)) for at in range(STEPS + 1, 2 * STEPS + 2)) <= 32

    def test_a_function_is_called_before_every_model_call(self) -> None:
        """A user's async function decides for itself; what it hid stays hidden."""
        seen: list[int] = []

        async def mine(context: Context) -> bool:
            seen.append(context.shown_messages)
            return len(seen) % 5 == 0 and context.exclude_all(context.droppable(), reason="mine")

        client, compactions = worked(policy=mine)
        assert len(seen) == STEPS + 1
        assert len(compactions) == 6 and len(client.shown(-1)) < 15
