"""Agents whose history comes from a provider, and providers that fail after a run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.agent.agent_runs import FORMATS, ids, said_in, watched
from tests.agent.scripted_client import Scripted, calls

import kompakt
from kompakt.agent.agent import Agent
from kompakt.agent.config import CompactionConfig
from kompakt.engine.context.context import Context
from kompakt.errors import ProviderUnavailable
from kompakt.events import Answered, Compacted
from kompakt.model.budget import Usage
from kompakt.model.messages import Message, Text
from kompakt.model.phrases import NOT_FINISHED
from kompakt.session.providers import HistoryProvider, Run
from kompakt.session.store import open_store
from kompakt.store.records import Fence

OUTPUT = "\n".join(f"line {number} of what was found there" for number in range(120))


def look() -> str:
    """Look."""
    return OUTPUT


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


class Notes:
    """A provider that adds a note and records the runs it saw."""

    source_id = "notes"

    def __init__(self) -> None:
        self.runs: list[Run] = []

    async def before_run(self, run: Run) -> None:
        run.add(self.source_id, [Message("user", (Text("A note."),))])

    async def after_run(self, run: Run) -> None:
        self.runs.append(run)


@pytest.mark.parametrize("format", FORMATS)
def test_calls_are_stored_with_their_results(format: str) -> None:
    async def work() -> None:
        store, notes = await open_store("memory:"), Notes()
        client = Scripted(calls("look", "look"), calls("look", id="d"), "Done.", format=format)
        agent = Agent(client, tools=[look], system="You look.", providers=[HistoryProvider(store), notes])
        await agent.run("Look.", session="s")
        said = await said_in(store, "s")
        called, answered = ids(said)
        assert called == answered and len(called) == 3
        assert [message.text for message in said if message.text] == ["Look.", "Done."]
        produced = notes.runs[0].responses
        assert ids(produced) == (called, answered)
        assert all(result.output == OUTPUT for message in produced for result in message.results)

    run(work())


@pytest.mark.parametrize("format", FORMATS)
def test_another_agent_continues_from_the_providers_store(format: str) -> None:
    """Only the store of the provider connects the two agents."""

    async def work() -> None:
        store = await open_store("memory:")
        for number, text in enumerate(("Look.", "Again.", "And now?")):
            client = Scripted(calls("look", id=f"c{number}_"), f"Answer {number}.", format=format)
            await Agent(client, tools=[look], providers=[HistoryProvider(store)]).run(text, session="s")
            shown = [message.text for message in client.shown(0) if message.text and not message.results]
            before = [one for n in range(number) for one in (["Look.", "Again."][n], f"Answer {n}.")]
            assert shown == [*before, text]
        assert len(ids(await said_in(store, "s"))[1]) == 3

    run(work())


def test_messages_excluded_before_the_write_stay_excluded() -> None:
    """Groups that a strategy excluded before the write are also hidden in the next run."""

    async def forget(context: Context) -> bool:
        return context.exclude_all([group for group in context.groups if group.kind == "tool"], reason="forget")

    async def work() -> None:
        store = await open_store("memory:")
        client = Scripted(calls("look"), "Seen.", "Done.")
        history = HistoryProvider(store, before_write=forget, store_excluded=False)
        agent = Agent(client, tools=[look], providers=[history])
        await agent.run("Look.", session="s")
        await agent.run("And now?", session="s")
        assert [message.text for message in client.shown()] == ["Look.", "Seen.", "And now?"]
        assert [message.text for message in await said_in(await same(agent, store), "s")][-1] == "Done."

    async def same(agent: Agent, store: Any) -> Any:
        assert (await agent.session("s")).records is store.records
        return store

    run(work())


def test_a_compaction_holds_in_the_next_run() -> None:
    """The next run starts from the model's last view, and all messages are still stored."""

    async def work() -> None:
        store = await open_store("memory:")
        steps = [calls("look", id=f"c{number}_") for number in range(10)]
        config = CompactionConfig(budget=6_000, economic=False)
        client = Scripted(*steps, "Seen.")
        agent = Agent(client, tools=[look], compaction=config, providers=[HistoryProvider(store)])
        seen = await watched(agent, "Look at everything.", session="s")
        assert seen.count(Compacted)
        assert len(ids(await said_in(store, "s"))[0]) == 10
        client = Scripted("Done.")
        agent = Agent(client, tools=[look], compaction=config, providers=[HistoryProvider(store)])
        seen = await watched(agent, "And now?", session="s")
        assert not seen.count(Compacted)
        assert kompakt.count(client.bodies[0], format="openai-chat").total <= 6_000
        assert client.shown(0)[0].text == "Look at everything."

    run(work())


def test_an_interrupted_run_is_stored_and_resumed() -> None:
    """Completed calls are stored with their results, the others are closed, and another agent continues."""

    async def work() -> None:
        store = await open_store("memory:")
        client = Scripted(calls("look"), ProviderUnavailable("gone"))
        with pytest.raises(ProviderUnavailable):
            await Agent(client, tools=[look], providers=[HistoryProvider(store)]).run("Look.", session="s")
        client = Scripted("Done.")
        result = await Agent(client, tools=[look], providers=[HistoryProvider(store)]).run(None, session="s")
        assert result.text == "Done."
        said = await said_in(store, "s")
        assert [message.role for message in said] == ["user", "assistant", "tool", "assistant"]

    run(work())


def test_a_run_stopped_during_tool_calls_closes_them() -> None:
    """Available results are stored; the other call is closed."""

    async def work() -> None:
        store = await open_store("memory:")

        async def hang() -> str:
            """Hang."""
            await asyncio.sleep(3_600)
            return "never"

        agent = Agent(Scripted(calls("look", "hang")), tools=[look, hang], providers=[HistoryProvider(store)])
        events = agent.stream("Look.", session="s")
        async for event in events:
            if type(event) is Answered:
                break
        await events.aclose()
        results = [result for message in await said_in(store, "s") for result in message.results]
        assert [result.output for result in results] == [OUTPUT, NOT_FINISHED]

    run(work())


def test_the_agents_own_store_has_precedence() -> None:
    """A provider next to it gets a copy, and supplies the start of a session that the store does not have."""

    async def work() -> None:
        own, other = await open_store("memory:"), await open_store("memory:")
        earlier = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Ho."}]
        await (await other.session("s")).append(earlier, format="openai-chat")
        client = Scripted(calls("look"), "Done.")
        agent = Agent(client, tools=[look], store=own, providers=[HistoryProvider(other)])
        await agent.run("Look.", session="s")
        await agent.run("And now?", session="s")
        assert [message.text for message in client.shown() if not message.results and not message.calls] == [
            "Hi.", "Ho.", "Look.", "Done.", "And now?",
        ]  # fmt: skip
        assert len(await said_in(own, "s")) == len(await said_in(other, "s")) == 8

    run(work())


def test_failures_after_a_run_do_not_fail_the_run(caplog: pytest.LogCaptureFixture) -> None:
    """A raising strategy, a tight budget, a raising provider, a closed store: the caller gets the result."""

    class Broken(Notes):
        async def after_run(self, run: Run) -> None:
            raise RuntimeError("the notes are lost")

    async def raises(context: Context) -> bool:
        raise RuntimeError("the strategy broke")

    async def work() -> None:
        store, tight, broken = [await open_store("memory:") for _ in range(3)]

        async def gone(*args: Any, **options: Any) -> bool:
            raise kompakt.KompaktError("the disk is full")

        broken.records.commit = gone  # type: ignore[method-assign]
        notes = Notes()
        providers = [
            HistoryProvider(store, before_write=raises),
            HistoryProvider(tight, budget=10, load=False),
            HistoryProvider(broken, load=False),
            Broken(),
            notes,
        ]
        agent = Agent(Scripted(calls("look"), "Done."), tools=[look], providers=providers)
        assert (await agent.run("Look.", session="s")).text == "Done."
        assert len(notes.runs) == 1
        for one in (store, tight):
            assert len(await said_in(one, "s")) == 4

    with caplog.at_level(logging.WARNING):
        run(work())
    for expected in ("the strategy broke", "not compacted", "the disk is full", "the notes are lost"):
        assert expected in caplog.text


def test_a_listener_that_raises_does_not_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[kompakt.Report] = []

    def breaks(report: kompakt.Report) -> None:
        raise RuntimeError("not listening")

    async def work() -> None:
        steps = [calls("look", id=f"c{number}_") for number in range(10)]
        config = CompactionConfig(budget=6_000, economic=False)
        agent = Agent(Scripted(*steps, "Done."), tools=[look], compaction=config)
        assert (await agent.run("Look.", session="s")).text == "Done."

    stops = [kompakt.on_compaction(breaks), kompakt.on_compaction(heard.append)]
    try:
        with caplog.at_level(logging.WARNING):
            run(work())
    finally:
        for stop in stops:
            stop()
    assert heard and "not listening" in caplog.text


@pytest.mark.parametrize("at", ["agent", "call", "client"])
def test_a_tokenizer_replaces_the_counter(at: str) -> None:
    """6,000 characters are reached long before 6,000 tokens."""

    async def work() -> None:
        steps = [calls("look", id=f"c{number}_") for number in range(3)]
        client = Scripted(*steps, "Done.", usage=lambda _: Usage())  # a reported usage would correct the counts
        config = CompactionConfig(tokenizer=len)
        client.compaction = config if at == "client" else None
        given_tokenizer = len if at == "agent" else None
        agent = Agent(client, tools=[look], budget=8_000, tokenizer=given_tokenizer, summarizer="off")
        given = {"compaction": config} if at == "call" else {}
        seen = await watched(agent, "Look.", session="s", **given)
        assert seen.count(Compacted)
        assert all(sum(len(message.text) for message in client.shown(n)) <= 8_000 for n in range(len(client.bodies)))

    run(work())


def test_runs_of_one_provider_session_are_serialized() -> None:
    """Two agents in one session of a provider run one after the other."""

    async def work() -> None:
        store = await open_store("memory:")
        key = (await store.session("s")).key
        fence = await store.records.acquire(key, "turn", lease=60)
        assert isinstance(fence, Fence)
        agent = Agent(Scripted("Done."), providers=[HistoryProvider(store)])
        task = asyncio.create_task(agent.run("Look.", session="s"))
        await asyncio.sleep(0.05)
        assert not task.done()
        await store.records.release(key, fence)
        assert (await task).text == "Done."

    run(work())
