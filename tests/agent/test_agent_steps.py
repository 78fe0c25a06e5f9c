"""Many tool steps with a small window, in every format: no request is rejected and nothing is forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.agent.agent_runs import (
    FORMATS,
    STEPS,
    SYSTEM,
    TASK,
    WINDOW,
    Desk,
    Watched,
    clean,
    client_for,
    ids,
    made_calls,
    said_in,
    scripted,
    watched,
)
from tests.provider import Provider

from kompakt.agent.agent import Agent
from kompakt.events import Answered, Called, Compacted, Recovered, Spoke, Stepped, Thought
from kompakt.session.store import open_store

CASES = [(format, False) for format in FORMATS] + [("anthropic", True)]


async def long_run(format: str, steps: int, *, thinking: bool, **options: Any) -> tuple[Watched, Provider]:
    """Stream the first half of a run, resume the second half without streaming, and check the result."""
    script = scripted(steps, thinking=thinking, **options)
    with Provider(script, window=WINDOW) as provider:
        task, desk = script.task(TASK), Desk()
        store = await open_store("memory:")
        client = client_for(format, provider)
        first = Agent(client, tools=desk.tools, system=SYSTEM, store=store, max_steps=steps // 2)
        seen = await watched(first, task, session="s")
        assert seen.result.stop == "steps"
        second = Agent(client, tools=desk.tools, system=SYSTEM, store=store)
        rest = await second.run(None, session="s")
        assert (rest.text, rest.stop) == (f"All {steps} steps are done.", "end")
        sent = [record for record in provider.requests if record.kind == "step"]
        assert rest.steps + seen.result.steps == steps + 1 == len(sent)
        assert seen.count(Recovered) == 0 and not provider.overflows
        made = len(await (await store.session("s")).compactions())
        clean(provider, breaks=made)
        assert made >= seen.count(Compacted) and (made > 0 or steps < 60)
        said = await said_in(store, "s")
        calls, results = ids(said)
        assert calls == results == made_calls(script)
        assert sum(desk.calls.values()) == len(calls)
        assert sum(message.text == task for message in said) == 1
        assert max(record.prompt for record in provider.requests) <= WINDOW - 1000
        await client.close()
        await store.close()
        return seen, provider


@pytest.mark.parametrize(("format", "thinking"), CASES)
def test_a_short_run(format: str, thinking: bool) -> None:
    seen, _ = asyncio.run(long_run(format, 8, thinking=thinking, parallel=0.5))
    assert seen.count(Stepped) == 4 and seen.count(Called) == seen.count(Answered) >= 4
    assert seen.count(Spoke) > 4 and (seen.count(Thought) > 0) >= (thinking and format == "anthropic")
    assert seen.result.usage.prompt > 0 and seen.result.usage.output > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("format", "thinking"), CASES)
def test_many_steps_under_a_small_window(format: str, thinking: bool) -> None:
    asyncio.run(long_run(format, STEPS, thinking=thinking))


def test_turns_of_one_session() -> None:
    async def main() -> None:
        script = scripted(9, turn=3)
        with Provider(script, window=WINDOW) as provider:
            async with Agent(client_for("anthropic", provider), tools=Desk().tools, system=SYSTEM) as agent:
                first = await agent.run(script.task(TASK), session="s")
                assert first.text.startswith("Step 3") and first.steps == 3
                for text in ("Go on.", "And on."):
                    assert (await agent.run(text, session="s")).steps == 3
                clean(provider, breaks=0)

    asyncio.run(main())


@pytest.mark.parametrize("format", FORMATS)
def test_resuming_a_completed_run_returns_its_result(format: str) -> None:
    async def main() -> None:
        script = scripted(2)
        with Provider(script, window=WINDOW) as provider:
            async with Agent(client_for(format, provider), tools=Desk().tools, system=SYSTEM) as agent:
                first = await agent.run(script.task(TASK), session="s")
                asked = len(provider.requests)
                again = await agent.run(None, session="s")
                assert again.text == first.text and again.steps == 0 and len(provider.requests) == asked

    asyncio.run(main())
