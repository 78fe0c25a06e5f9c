"""Settings of a run, and other writers and providers that take part in it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.agent.agent_runs import SYSTEM, TASK, WINDOW, Desk, clean, client_for, said_in, scripted, watched
from tests.provider import Provider

import kompakt
from kompakt.agent.agent import Agent
from kompakt.agent.client import Reply
from kompakt.agent.config import CompactionConfig, budget_of, config_of, policy_of
from kompakt.errors import UsageError
from kompakt.events import Answered, Compacted, Recovered
from kompakt.model.budget import Budget, Usage
from kompakt.model.messages import JsonObject, Message, Text
from kompakt.session.providers import Run
from kompakt.session.store import open_store


class Echo:
    """A client in this process: a number of calls, then an end."""

    format, model, context_window, output_limit = "openai-chat", "gpt-5", 100_000, 1_000
    compaction: CompactionConfig | None = CompactionConfig(summarizer="off")

    def __init__(self, steps: int = 3, pause: float = 0.0) -> None:
        self.steps, self.pause = steps, pause
        self.sizes: list[int] = []
        self.texts: list[list[str]] = []

    def envelope(self, *, system: str | None, tools: Any) -> JsonObject:
        named = [{"name": tool.name, "parameters": tool.schema} for tool in tools]
        return {"model": self.model, "tools": [{"type": "function", "function": one} for one in named]}

    def opening(self, system: str | None) -> list[Any]:
        return [{"role": "system", "content": system}] if system else []

    async def send(self, body: JsonObject, *, on_delta: Any = None, changes: Any = None) -> Reply:
        await asyncio.sleep(self.pause)
        assert kompakt.check(body, "openai-chat") == []
        messages = body["messages"]
        self.sizes.append(kompakt.count(body, format="openai-chat").total)
        self.texts.append([str(message.get("content")) for message in messages])
        last = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=0)
        done = len(self.sizes)
        if done % (self.steps + 1) == 0:
            said: Any = {"role": "assistant", "content": f"done {last}"}
            return Reply((said,), "end", Usage(), Usage())
        function = {"name": "work", "arguments": "{}"}
        call = {"id": f"call_{done}", "type": "function", "function": function}
        return Reply(({"role": "assistant", "content": None, "tool_calls": [call]},), "tools", Usage(), Usage())

    async def close(self) -> None: ...


def work() -> str:
    """Work."""
    return "\n".join(f"line {number} of what was found" for number in range(100))


def test_settings_of_the_call_precede_the_agents_and_the_clients() -> None:
    client = Echo()
    client.compaction = CompactionConfig(budget=3_000, policy="conservative", instructions="client", auto=False)
    config = config_of(client, CompactionConfig(budget=1_000), CompactionConfig(budget=2_000, instructions="agent"))
    assert (config.budget, config.policy, config.instructions, config.auto) == (1_000, "conservative", "agent", False)
    assert budget_of(client, config) == Budget.of(1_000)
    assert config_of(client).budget == 3_000
    assert budget_of(client, CompactionConfig()).window == 100_000
    assert policy_of(CompactionConfig()).name == "default"


@pytest.mark.parametrize(
    ("at_call", "at_agent", "at_client", "most"),
    [(2_000, 50_000, 50_000, 2_000), (None, 3_000, 50_000, 3_000), (None, None, 4_000, 4_000)],
)
def test_the_most_specific_budget_applies(at_call: Any, at_agent: Any, at_client: Any, most: int) -> None:
    async def main() -> None:
        client = Echo(steps=30)
        client.compaction = CompactionConfig(budget=at_client, summarizer="off")
        async with Agent(client, tools=[work], system=SYSTEM, budget=at_agent) as agent:
            seen = await watched(agent, TASK, session="s", budget=at_call)
            assert seen.count(Compacted) > 0 and most / 2 < max(client.sizes) <= most
            assert all(TASK in texts for texts in client.texts)

    asyncio.run(main())


def test_auto_false_compacts_only_on_request() -> None:
    async def main() -> None:
        client = Echo(steps=20)
        config = CompactionConfig(auto=False)
        async with Agent(client, tools=[work], system=SYSTEM, budget=3_000, compaction=config) as agent:
            seen = await watched(agent, TASK, session="s")
            assert seen.count(Compacted) == 0 and max(client.sizes) > 10_000
            done = await agent.compact("s", instructions="Keep the numbers.")
            assert done.changed and done.tokens_after <= 3_000 < done.tokens_before
            (account,) = await (await agent.session("s")).compactions()
            assert not account.auto
            await agent.run("Go on.", session="s")
            assert max(client.sizes[21:]) > 3_000  # it grows again, from less
            assert client.sizes[21] < 3_500

    asyncio.run(main())


@pytest.mark.parametrize("before", [True, False])
def test_a_request_by_another_writer_is_answered_at_the_next_step(before: bool) -> None:
    async def main() -> None:
        store, client = await open_store("memory:"), Echo(steps=10)
        asked: list[int] = []

        async def work() -> str:
            """Work."""
            if len(client.sizes) == 6 and not before:
                other = await store.session("s")
                asked.append(await other.request_compaction(auto=False, instructions="Be short."))
            return "found " * 200

        agent = Agent(client, tools=[work], system=SYSTEM, store=store)
        if before:
            await agent.run(TASK, session="s")
            asked.append(await (await store.session("s")).request_compaction(auto=False))
            client.sizes.clear()
        seen = await watched(agent, "Go on." if before else TASK, session="s")
        session = await store.session("s")
        assert seen.count(Compacted) == 1 and await session.pending() == {} and asked
        kinds = [type(event).__name__ for event in seen.events]
        assert kinds.index("Compacted") < kinds.index("Stepped") if before else True
        (account,) = await session.compactions()
        assert not account.auto and await session.verify() == []

    asyncio.run(main())


def test_an_undo_by_another_writer_is_seen_at_the_next_step() -> None:
    async def main() -> None:
        store, client = await open_store("memory:"), Echo(steps=12)

        async def work() -> str:
            """Work."""
            if len(client.sizes) == 8:
                await (await store.session("s")).request_compaction(auto=False)
            if len(client.sizes) == 10:
                await (await store.session("s")).undo()
            return "found " * 200

        await Agent(client, tools=[work], system=SYSTEM, store=store).run(TASK, session="s")
        assert client.sizes[8] < client.sizes[7] and client.sizes[10] > client.sizes[7]

    asyncio.run(main())


def test_a_changed_system_prompt_replaces_the_stored_one(caplog: Any) -> None:
    async def main() -> None:
        store = await open_store("memory:")

        async def said(system: str | None, **options: Any) -> list[str]:
            client = Echo(steps=options.pop("steps", 2))
            await Agent(client, tools=[work], system=system, store=store, **options).run("Go on.", session="s")
            return [texts[0] for texts in client.texts]

        assert set(await said("You read.")) == {"You read."}
        assert set(await said("You write.")) == {"You write."}
        session = await store.session("s")
        assert len(await session.compactions()) == 1
        assert set(await said("You write.")) == {"You write."} and len(await session.compactions()) == 1
        assert set(await said(None)) == {"You write."}, "who says nothing changes nothing"
        assert set(await said("You write.", steps=30, budget=4_000)) == {"You write."}  # compacted, it still counts
        assert set(await said("You count.")) == {"You count."}
        assert (await session.export())["messages"][0]["content"] == "You read."  # type: ignore[index, call-overload]
        assert await session.verify() == []
        other = Agent(Echo(), tools=[work], store=store)
        await other.run("Go.", session="bare")
        await Agent(Echo(), tools=[work], system="You read.", store=store).run("Go.", session="bare")
        assert "has no system prompt" in caplog.text

    asyncio.run(main())


class Memory:
    """A provider that adds a message and records the answers."""

    source_id = "memory"

    def __init__(self) -> None:
        self.seen: list[Message] = []

    async def before_run(self, run: Run) -> None:
        run.add(self.source_id, [Message("user", (Text("The user likes brevity."),))])

    async def after_run(self, run: Run) -> None:
        self.seen += run.responses


def test_context_providers_are_called() -> None:
    async def main() -> None:
        client, memory = Echo(steps=2), Memory()
        store = await open_store("memory:")
        agent = Agent(client, tools=[work], system=SYSTEM, store=store, providers=[memory])
        result = await agent.run(TASK, session="s")
        assert client.texts[0] == [SYSTEM, "The user likes brevity.", TASK]
        assert [len(message.calls) for message in memory.seen if message.role == "assistant"] == [1, 1, 0]
        assert memory.seen[-1].text == result.text
        stored = [message async for page in (await store.session("s")).pages() for message in page]
        assert [message.source_id for message in stored[:3]] == [None, "memory", None]

    asyncio.run(main())


def test_runs_of_one_session_are_serialized() -> None:
    async def main() -> None:
        store = await open_store("memory:")
        one, two = Echo(steps=3, pause=0.01), Echo(steps=3, pause=0.01)
        runs = [Agent(one, tools=[work], store=store).run("First.", session="s")]
        runs += [Agent(two, tools=[work], store=store).run("Second.", session="s")]
        results = await asyncio.gather(*runs)
        assert [result.steps for result in results] == [4, 4]
        said = [m for m in await said_in(store, "s") if m.role in ("user", "assistant")]
        roles = "".join(message.role[0] for message in said)
        assert roles == "uaaaauaaaa"

    asyncio.run(main())


def test_calls_of_a_step_run_concurrently() -> None:
    async def main() -> None:
        script = scripted(3, make=lambda step, dice, tools: [("wait", {"n": n}) for n in range(4)])

        together = threading.Barrier(4)

        def wait(n: int) -> str:
            """Wait for the others."""
            together.wait(timeout=120)
            return str(n)

        with Provider(script, window=WINDOW) as provider:
            async with Agent(client_for("anthropic", provider), tools=[wait], system=SYSTEM) as agent:
                seen = await watched(agent, script.task(TASK), session="s")
                assert [event.is_error for event in seen.events if type(event) is Answered] == [False] * 12
                assert seen.count(Recovered) == 0
                clean(provider, breaks=0)

    asyncio.run(main())


def test_closing_the_stream_stops_the_run() -> None:
    async def main() -> None:
        client = Echo(steps=50, pause=0.01)
        async with Agent(client, tools=[work], system=SYSTEM) as agent:
            events = agent.stream(TASK, session="s")
            async for event in events:
                if type(event) is Answered:
                    break
            await events.aclose()
            asked = len(client.sizes)
            await asyncio.sleep(0.05)
            assert len(client.sizes) == asked
            client.steps = len(client.sizes) + 2
            assert (await agent.run(None, session="s")).text.startswith("done")

    asyncio.run(main())


def test_resuming_an_unknown_session_is_an_error() -> None:
    async def main() -> None:
        async with Agent(Echo()) as agent:
            with pytest.raises(UsageError, match="nowhere"):
                await agent.run(None, session="nowhere")

    asyncio.run(main())


def test_the_step_limit_ends_a_run_which_can_be_resumed() -> None:
    async def main() -> None:
        store, desk = await open_store("memory:"), Desk()
        agent = Agent(Echo(steps=7), tools=[work, *desk.tools], store=store, max_steps=4)
        first = await agent.run(TASK, session="s")
        assert (first.stop, first.steps) == ("steps", 4)
        assert (await agent.run(None, session="s")).stop == "end"

    asyncio.run(main())


def test_lone_surrogates_are_escaped() -> None:
    async def main() -> None:
        script = scripted(2)
        with Provider(script, window=WINDOW) as provider:
            async with Agent(client_for("openai-chat", provider), tools=Desk().tools) as agent:
                assert (await agent.run(script.task(TASK) + " \udcff", session="s")).stop == "end"
                clean(provider, breaks=0)

    asyncio.run(main())


@pytest.mark.parametrize("format", ["openai-chat", "anthropic"])
def test_another_writer_compacts_all_the_time(format: str) -> None:
    async def main() -> None:
        script = scripted(20, parallel=0.5)
        with Provider(script, window=WINDOW) as provider:
            async with Agent(client_for(format, provider), tools=Desk().tools, system=SYSTEM) as agent:
                run = asyncio.create_task(agent.run(script.task(TASK), session="s"))
                made = 0
                while not run.done():
                    await asyncio.sleep(0.01)
                    if await (await agent.session("s")).exists():
                        made += (await agent.compact("s", budget=4_000)).changed
                assert run.result().text == "All 20 steps are done." and made > 2
                clean(provider)
                assert await (await agent.session("s")).verify() == []

    asyncio.run(main())


def test_call_ids_may_repeat_in_every_step() -> None:
    class Same(Echo):
        async def send(self, body: JsonObject, *, on_delta: Any = None, changes: Any = None) -> Reply:
            reply = await super().send(body)
            for call in reply.items[0].get("tool_calls", ()):
                call["id"] = "call_0"
            return reply

    async def main() -> None:
        client, store = Same(steps=12), await open_store("memory:")
        result = await Agent(client, tools=[work], system=SYSTEM, store=store, budget=6_000).run(TASK, session="s")
        assert result.stop == "end" and len(client.sizes) == 13
        said = await said_in(store, "s")
        assert sum(len(message.results) for message in said) == 12

    asyncio.run(main())
