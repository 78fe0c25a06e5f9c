"""Failures during a run: the provider, its token count, its stream, the summarizer, the tools."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.agent.agent_runs import (
    FORMATS,
    SYSTEM,
    TASK,
    WINDOW,
    Desk,
    clean,
    client_for,
    ids,
    made_calls,
    said_in,
    scripted,
    watched,
)
from tests.agent.clients.client_servers import Plan, serving
from tests.agent.scripted_client import Scripted, calls
from tests.provider import Provider, empty, garbage, huge, refusing
from tests.provider.answer import Answer, Call, Seen

from kompakt.agent.agent import Agent
from kompakt.agent.clients import base as calling
from kompakt.agent.live_session import LiveSession
from kompakt.agent.loop import TRIES
from kompakt.agent.summarizer.llm import LLMSummarizer
from kompakt.errors import Overflowed, ProviderRefused, ProviderUnavailable, StoreUnavailable
from kompakt.events import Answered, Compacted, Recovered, Result
from kompakt.session.store import open_store

each_format = pytest.mark.parametrize("format", FORMATS)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "FIRST_PAUSE", 0.001)


EVERY = int(os.environ.get("KOMPAKT_EVERY", "16"))
"""Bytes from one break of a run's stream to the next."""


def ran(format: str, provider: Provider, text: str, *, options: Any = None, **given: Any) -> tuple[list[Any], Any]:
    """Stream a run on a new store; return its events and all messages."""

    async def main() -> tuple[list[Any], Any]:
        store = await open_store("memory:")
        client = client_for(format, provider, **(options or {}))
        agent = Agent(client, store=store, **{"tools": Desk().tools, "system": SYSTEM, **given})
        try:
            seen = await watched(agent, text, session="s")
            return seen.events, await said_in(store, "s")
        finally:
            await client.close()
            await store.close()

    return asyncio.run(asyncio.wait_for(main(), 120))


@each_format
def test_temporary_faults_are_retried(format: str) -> None:
    script = scripted(12)
    with Provider(script, window=WINDOW) as provider:
        for nth, kind in enumerate(("429", "500", "503", "closed", "garbage", "cut")):
            provider.fault(2 * nth + 1, kind, at=60)
        events, said = ran(format, provider, script.task(TASK))
        assert events[-1].text == "All 12 steps are done."
        clean(provider, breaks=0)
        assert ids(said)[0] == ids(said)[1] == made_calls(script)


@each_format
def test_an_unavailable_provider_ends_the_run_which_can_be_resumed(format: str) -> None:
    async def main() -> None:
        script = scripted(5)
        with Provider(script, window=WINDOW) as provider:
            provider.fault(range(3, 8), "503")
            desk = Desk()
            async with Agent(client_for(format, provider), tools=desk.tools, system=SYSTEM) as agent:
                with pytest.raises(ProviderUnavailable):
                    await agent.run(script.task(TASK), session="s")
                result = await agent.run(None, session="s")
                assert result.text == "All 5 steps are done."
                assert sum(desk.calls.values()) == len(made_calls(script))
                clean(provider, breaks=0)

    asyncio.run(main())


@each_format
def test_broken_streams_are_retried(format: str) -> None:
    """The run continues as if nothing had happened."""

    async def main() -> None:
        with Provider(answers, window=WINDOW) as provider:
            client, calls = client_for(format, provider), 0

            def read_file(path: str) -> str:
                nonlocal calls
                calls += 1
                return path

            async with Agent(client, tools=[read_file]) as agent:
                await watched(agent, "Do it.")
                positions = places(provider.requests[0].frames, every=EVERY)
                for at in positions:
                    provider.fault_next("cut", at=at)
                    seen = await watched(agent, "Do it.")
                    assert seen.result.text == "Done." and seen.result.steps == 2
                assert calls == len(positions) + 1 and not provider.refusals
                assert sum(record.fault is not None for record in provider.requests) == len(positions)

    asyncio.run(main())


@each_format
def test_a_stream_broken_at_any_byte_gives_no_partial_answer(format: str) -> None:
    """A broken stream is never accepted as a whole answer, so no incomplete call runs."""

    async def main() -> None:
        with Provider(answers, window=WINDOW) as provider:
            async with Agent(client_for(format, provider), tools=Desk().tools) as agent:
                await watched(agent, "Do it.")
            first = provider.requests[0]
        kind, sent = {"content-type": "text/event-stream"}, b"".join(first.frames)
        positions = places(first.frames, every=1)
        broken = [Plan(sent[:at], 200, kind, cut=True) for at in positions]
        async with serving(*broken, Plan(sent, 200, kind)) as server:
            client = client_for(format, server, max_retries=0)
            for at in positions:
                with pytest.raises(ProviderUnavailable):
                    assert await client.send(first.body, on_delta=lambda _: None) is None, f"taken for whole at {at}"
            reply = await client.send(first.body, on_delta=lambda _: None)
            await client.close()
        assert reply.stop == "tools" and reply.billed.output

    asyncio.run(main())


def answers(seen: Seen) -> Answer:
    """Call a tool, then finish."""
    return Answer(text="Done.") if seen.results else Answer(calls=(Call("fc_1", "read_file", {"path": "a"}),))


def places(frames: Sequence[bytes], *, every: int) -> list[int]:
    """Return where to break a stream: everywhere in the smallest event with arguments, at a few places elsewhere."""
    size = sum(map(len, frames))
    with_path = [at for at, frame in enumerate(frames) if b"path" in frame]
    chosen = min(with_path, key=lambda at: len(frames[at]))
    start = sum(map(len, frames[:chosen]))
    return sorted({*range(start, start + len(frames[chosen]), every), *range(0, size, size // 12)})


@pytest.mark.parametrize(("format", "factor"), [*((format, 1.3) for format in FORMATS), ("openai-chat", 2.0)])
def test_a_provider_that_counts_more_tokens(format: str, factor: float) -> None:
    script = scripted(40)
    with Provider(script, window=WINDOW, estimate_factor=factor) as provider:
        events, said = ran(format, provider, script.task(TASK))
        assert events[-1].text == "All 40 steps are done."
        shortened = sum(type(event) in (Recovered, Compacted) for event in events)
        clean(provider, breaks=shortened)
        assert shortened and len(provider.overflows) <= 3
        assert ids(said)[0] == ids(said)[1] == made_calls(script)


@each_format
def test_one_result_that_is_too_long_is_shortened(format: str) -> None:
    script = scripted(4, parallel=0.0, tools=["dump"])

    def dump() -> str:
        """Say too much."""
        return "\n".join(f"line {number}: nothing of interest" for number in range(6_000))

    with Provider(script, window=WINDOW) as provider:
        budget = 200_000  # too large to notice in advance: the provider rejects the request
        events, said = ran(format, provider, script.task(TASK), tools=[dump], budget=budget)
        assert events[-1].text == "All 4 steps are done."
        assert any(type(event) is Recovered for event in events) and provider.overflows
        clean(provider)
        assert all(len(result.output) > 100_000 for message in said for result in message.results)


def test_a_stop_with_a_full_window_is_recovered() -> None:
    script = scripted(40)
    with Provider(script, window=WINDOW, stop_at_window=True, estimate_factor=1.5) as provider:
        events, said = ran("anthropic", provider, script.task(TASK), budget=200_000)
        assert events[-1].text == "All 40 steps are done."
        assert any(type(event) is Recovered for event in events)
        clean(provider)
        assert ids(said)[0] == ids(said)[1] == made_calls(script)


@pytest.mark.parametrize("stops", [True, False])
def test_a_window_that_is_always_full_ends_the_run(stops: bool) -> None:
    """Three attempts, then the minimum, then an error."""
    script = scripted(5)
    with Provider(script, window=1_001, stop_at_window=stops) as provider:
        with pytest.raises(Overflowed):
            ran("anthropic", provider, script.task(TASK * 20), budget=100_000)
        assert len(provider.requests) == TRIES + 2


@each_format
def test_a_silently_truncated_prompt_is_noticed(format: str) -> None:
    script = scripted(40)
    with Provider(script, window=8_000, truncates=True) as provider:
        events, _ = ran(format, provider, script.task(TASK))
        assert isinstance(events[-1], Result) and any(type(event) is Compacted for event in events)
        clean(provider)


@pytest.mark.parametrize(
    ("format", "summary"),
    [
        ("openai-chat", empty),
        ("openai-responses", garbage),
        ("anthropic", huge),
        ("gemini", refusing),
        ("gemini", huge),
    ],
)
def test_a_useless_summarizer_does_not_end_the_run(format: str, summary: Callable[[Seen], Answer]) -> None:
    async def main() -> None:
        script = scripted(34)
        with Provider(script, window=WINDOW, summary=summary) as provider:
            client = client_for(format, provider)
            summarizer = LLMSummarizer(client)
            async with Agent(client, tools=Desk().tools, system=SYSTEM, summarizer=summarizer) as agent:
                seen = await watched(agent, script.task(TASK), session="s")
                assert seen.result.text == "All 34 steps are done."
                assert seen.count(Compacted) >= 1 and seen.count(Recovered) == 0
                assert await (await agent.session("s")).verify() == []
                clean(provider, breaks=seen.count(Compacted))
                assert any(record.kind == "summary" for record in provider.requests)

    asyncio.run(main())


@pytest.mark.parametrize("format", ["openai-chat", "anthropic"])
def test_a_working_summarizer(format: str) -> None:
    async def main() -> None:
        script = scripted(34)
        with Provider(script, window=WINDOW) as provider:
            client = client_for(format, provider)
            async with Agent(client, tools=Desk().tools, system=SYSTEM, summarizer=LLMSummarizer(client)) as agent:
                seen = await watched(agent, script.task(TASK), session="s")
                assert seen.result.text == "All 34 steps are done." and seen.count(Compacted) >= 1
                clean(provider, breaks=seen.count(Compacted))

    asyncio.run(main())


@each_format
def test_tools_that_fail_do_not_end_the_run(format: str) -> None:
    def breaks(path: str) -> str:
        """Break."""
        raise RuntimeError(f"no {path}\x00\ud800")

    def slow(lines: int = 1) -> str:
        """Take a while."""
        time.sleep(0.02)
        return str(lines)

    def leaves() -> str:
        """Leave the program."""
        raise SystemExit(3)

    plan = {
        1: [("breaks", {"path": "a"}), ("slow", {})],
        2: [("nowhere", {"x": 1})],
        3: [("slow", {"lines": "many"}), ("slow", {"unknown": 1})],
        4: [("slow", {"lines": 2}), ("breaks", {})],
        5: [("leaves", {})],
    }
    script = scripted(5, make=lambda step, dice, tools: plan[step])
    with Provider(script, window=WINDOW) as provider:
        events, said = ran(format, provider, script.task(TASK), tools=[breaks, slow, leaves])
        assert events[-1].text == "All 5 steps are done."
        clean(provider, breaks=0)
        errors = [event.is_error for event in events if type(event) is Answered]
        assert sorted(errors[:2]) == [False, True] and errors[2:5] == [True] * 3
        outputs = [result.output for message in said for result in message.results]
        assert "RuntimeError" in outputs[0] and "unknown tool 'nowhere'" in outputs[2] and "lines" in outputs[3]


@each_format
def test_a_refused_answer_and_an_empty_one_end_the_turn(format: str) -> None:
    async def main() -> None:
        script = scripted(4)
        with Provider(script, window=WINDOW) as provider:
            provider.fault(3, "refusal")
            provider.fault(4, "empty")
            async with Agent(client_for(format, provider), tools=Desk().tools, system=SYSTEM) as agent:
                declined = await agent.run(script.task(TASK), session="s")
                assert declined.stop == "refused" or "can't help" in declined.text
                nothing = await agent.run("Go on.", session="s")
                assert nothing.text == ""
                last = await agent.run("Go on, please.", session="s")
                assert last.text == "All 4 steps are done."
                assert [record.refusal for record in provider.refusals] == []

    asyncio.run(main())


def test_a_rejected_request_is_not_sent_again() -> None:
    script = scripted(4)
    with Provider(script, window=WINDOW) as provider:
        with pytest.raises(ProviderRefused):
            ran("openai-chat", provider, script.task(TASK), tools=[bad_name()])
        assert len(provider.requests) == 1


def bad_name() -> Any:
    def tool(x: int) -> int:
        return x

    tool.__name__ = "not a name"
    return tool


def test_tools_end_with_a_run_that_cannot_save_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn lock is free after the run, so no tool of it may go on and write."""
    started, finished = asyncio.Event(), list[str]()

    async def quick() -> str:
        """Answer at once."""
        await started.wait()
        return "x"

    async def slow() -> str:
        """Answer later."""
        started.set()
        await asyncio.sleep(0.1)
        finished.append("slow")
        return "y"

    async def unsaved(*_: Any) -> None:
        raise StoreUnavailable("the disk is full")

    async def main() -> None:
        monkeypatch.setattr(LiveSession, "save_result", unsaved)
        async with Agent(Scripted(calls("quick", "slow"), "Done."), tools=[quick, slow]) as agent:
            before = asyncio.all_tasks()
            with pytest.raises(StoreUnavailable):
                await agent.run("Work.", session="s")
            assert asyncio.all_tasks() == before
            await asyncio.sleep(0.2)
        assert finished == []

    asyncio.run(main())
