"""A compaction in the background: published if it fits, dropped if not, never in the way of the run."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.agent.agent_runs import SYSTEM, TASK, Watched, watched
from tests.agent.summarizer.summarizer_client import Client as Scripted
from tests.agent.test_agent_interruption import Trap
from tests.agent.test_agent_settings import Echo

import kompakt
from kompakt.agent.agent import Agent
from kompakt.agent.client import Reply
from kompakt.agent.compaction import is_async
from kompakt.agent.config import CompactionConfig, prepares_at
from kompakt.agent.summarizer.llm import LISTED
from kompakt.engine.pivot.pivot import Material
from kompakt.errors import UsageError
from kompakt.events import Compacted
from kompakt.model.budget import Usage
from kompakt.session import lock
from kompakt.session.store import Store, open_store

BUDGET = 6_000


def work() -> str:
    """Work."""
    return "\n".join(f"line {number} of what was found" for number in range(60))


class Writer:
    """A slow summarizer."""

    def __init__(self, seconds: float = 0.0, error: Exception | None = None) -> None:
        self.seconds, self.error = seconds, error
        self.asked, self.at_work, self.cancelled = 0, 0, 0
        self.saw_steps: list[int] = []
        self.client: Echo | None = None

    async def __call__(self, material: Material) -> str:
        self.asked += 1
        self.at_work += 1
        before = len(self.client.sizes) if self.client else 0
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.at_work -= 1
            self.saw_steps.append((len(self.client.sizes) if self.client else 0) - before)
        if self.error is not None:
            raise self.error
        return f"{len(material.messages)} messages summarized by the writer [{material.references[0]}]."


async def ran(writer: Any, *, steps: int = 30, pause: float = 0.003, **config: Any) -> tuple[Watched, Echo, Store]:
    store, client = await open_store("memory:"), Echo(steps=steps, pause=pause)
    if isinstance(writer, Writer):
        writer.client = client
    settings = CompactionConfig(**{"economic": False, "budget": BUDGET, "summarizer": writer, **config})
    seen = await watched(
        Agent(client, tools=[work], system=SYSTEM, store=store, compaction=settings), TASK, session="s"
    )
    assert max(client.sizes) <= BUDGET and await (await store.session("s")).verify() == []
    assert all(TASK in texts for texts in client.texts)
    return seen, client, store


def reasons(seen: Watched) -> list[str]:
    return [event.report.reason for event in seen.events if type(event) is Compacted and event.report]


def test_the_agent_works_while_the_summary_is_written() -> None:
    async def main() -> None:
        writer = Writer(seconds=0.005)
        seen, client, store = await ran(writer)
        assert seen.count(Compacted) > 1 and writer.at_work == 0
        assert all(reason.startswith("prepared ahead of") for reason in reasons(seen))
        assert sum(writer.saw_steps) > 0, "no step was made while a summary was written"
        shown = (await (await store.session("s")).project()).payload
        assert "summarized by the writer" in str(shown)
        breaks = sum(after < before for before, after in zip(client.sizes, client.sizes[1:], strict=False))
        assert breaks == seen.count(Compacted), "a request was rewritten although nothing was published"
        asks = [text for text in client.texts[-1] if text.startswith("[kompakt] Earlier steps were summarized")]
        assert asks  # after an automatic compaction the agent is asked to continue

    asyncio.run(main())


def test_messages_added_meanwhile_follow_the_summary() -> None:
    async def main() -> None:
        _, client, store = await ran(Writer(seconds=0.006), steps=14)
        session = await store.session("s")
        (account, *_) = await session.compactions()
        rows = [row async for page in (await session.reader()).rows() for row in page]
        marker = next(row.seq for row in rows if row.kind == "marker")
        (record, *_) = [record for _, record in (await session.reader()).timeline.compactions]
        assert account.auto and record.markers == (marker,) and record.tip < marker - 1
        await session.undo()
        assert await session.count() > client.sizes[-1] / 2 and await session.verify() == []

    asyncio.run(main())


def test_a_full_window_waits_for_the_preparation() -> None:
    async def main() -> None:
        writer = Writer(seconds=0.05)
        seen, _, _ = await ran(writer, pause=0.0)
        assert writer.asked == seen.count(Compacted) + writer.cancelled, "a summary was asked for twice"
        assert seen.count(Compacted) > 0 and writer.cancelled <= 1  # the run may end while one is written

    asyncio.run(main())


def test_a_failing_summarizer_leaves_the_ledger() -> None:
    async def main() -> None:
        seen, client, _ = await ran(Writer(error=ValueError("no words")))
        assert seen.count(Compacted) > 0 and seen.result.stop == "end"
        assert "summarized by the writer" not in str(client.texts)

    asyncio.run(main())


def test_a_failed_preparation_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    async def broken(*_: Any) -> None:
        raise RuntimeError("no plan")

    async def main() -> None:
        monkeypatch.setattr("kompakt.session.compaction.CompactionPlan.prepare", broken)
        seen, client, _ = await ran(Writer())
        assert seen.count(Compacted) > 0 and "summarized by the writer" in str(client.texts)
        assert "no plan" in caplog.text and not any(map(str.startswith, reasons(seen), ["prepared"] * 9))

    asyncio.run(main())


@pytest.mark.parametrize("deed", ["pin", "compact", "undo"])
def test_it_is_dropped_if_the_session_changed_meanwhile(deed: str) -> None:
    async def main() -> None:
        store, client = await open_store("memory:"), Echo(steps=30, pause=0.002)
        writer = Writer(seconds=0.003)
        done: list[int] = []

        async def work() -> str:
            """Work."""
            if writer.asked and not done:
                done.append(len(client.sizes))
                session = await store.session("s")
                if deed == "pin":
                    await session.pin("The tide turns at noon.")
                else:
                    await session.compact(1_500)
                    if deed == "undo":
                        await session.undo()
            return "\n".join(f"line {number} of what was found" for number in range(60))

        config = CompactionConfig(economic=False, budget=BUDGET, summarizer=writer)
        await Agent(client, tools=[work], system=SYSTEM, store=store, compaction=config).run(TASK, session="s")
        session = await store.session("s")
        assert done and max(client.sizes) <= BUDGET and await session.verify() == []
        if deed == "pin":
            assert "The tide turns at noon." in str((await session.project()).payload)

    asyncio.run(main())


def test_a_manual_request_gets_its_own_compaction() -> None:
    async def main() -> None:
        store, client = await open_store("memory:"), Echo(steps=30, pause=0.002)
        wanted: list[str | None] = []

        async def writer(material: Material) -> str:
            wanted.append(material.instructions)
            await asyncio.sleep(0.004)
            return f"Summary [{material.references[0]}]."

        async def work() -> str:
            """Work."""
            if len(wanted) == 1:
                await (await store.session("s")).request_compaction(auto=False, instructions="Keep the names of ships.")
            return "\n".join(f"line {number} of what was found" for number in range(60))

        config = CompactionConfig(economic=False, budget=BUDGET, summarizer=writer)
        await Agent(client, tools=[work], system=SYSTEM, store=store, compaction=config).run(TASK, session="s")
        assert wanted[0] is None and "Keep the names of ships." in wanted

    asyncio.run(main())


@pytest.mark.parametrize("how", ["cancelled", "stopped", "ended", "failed"])
def test_nothing_is_left_running(how: str) -> None:
    async def main() -> None:
        writer, client = Writer(seconds=30), Echo(steps=9 if how == "ended" else 100)
        config = CompactionConfig(economic=False, budget=BUDGET, summarizer=writer, prepare=0.5)
        agent = Agent(client, tools=[work], system=SYSTEM, compaction=config)
        if how == "ended":
            client.steps = 7
            await agent.run(TASK, session="s")
        elif how == "stopped":
            async for _ in agent.stream(TASK, session="s"):
                if writer.at_work:
                    break
        else:
            if how == "failed":
                client.send = _failing_when(client, writer)  # type: ignore[method-assign]
            task = asyncio.create_task(agent.run(TASK, session="s"))
            while not writer.at_work and not task.done():
                await asyncio.sleep(0.001)
            if how == "cancelled":
                task.cancel()
            with pytest.raises((asyncio.CancelledError, kompakt.ProviderError)):
                await task
        await asyncio.sleep(0)
        for _ in range(20):  # a generator that was left is closed by the loop
            await asyncio.sleep(0.005)
        assert writer.asked == 1 and writer.cancelled == 1 and writer.at_work == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def _failing_when(client: Echo, writer: Writer) -> Any:
    send = client.send

    async def failing(body: Any, **options: Any) -> Reply:
        if writer.at_work:
            raise kompakt.ProviderUnavailable("the line is dead")
        return await send(body, **options)

    return failing


def test_an_economic_compaction_is_prepared_too() -> None:
    async def main() -> None:
        writer, client = Writer(), Echo(steps=120)
        client.context_window = 400_000
        writer.client = client
        saving = CompactionConfig(economic=True)
        agent = Agent(client, tools=[work], system=SYSTEM, summarizer=writer, compaction=saving)
        seen = await watched(agent, TASK, session="s")
        assert seen.count(Compacted) > 0
        assert all("cheaper" in reason for reason in reasons(seen)), reasons(seen)

    asyncio.run(main())


def test_only_asynchronous_summarizers_run_in_the_background() -> None:
    async def function(material: Material) -> str:
        return ""

    assert (
        is_async(function)
        and is_async(Writer())
        and is_async(partial(function))
        and is_async(kompakt.LLMSummarizer(Echo()))
    )
    assert not is_async(lambda material: "") and not is_async(None)
    assert prepares_at(CompactionConfig(summarizer=lambda material: "")) == 0
    assert prepares_at(CompactionConfig(summarizer=function)) == 0.8
    assert prepares_at(CompactionConfig(summarizer=function, prepare=0.6)) == 0.6
    assert prepares_at(CompactionConfig(summarizer=function, prepare=False)) == 0
    assert prepares_at(CompactionConfig(summarizer=function, auto=False)) == 0
    assert prepares_at(CompactionConfig(summarizer=function, native="demand")) == 0
    with pytest.raises(UsageError, match="not a share"):
        CompactionConfig(prepare=1.5)

    async def main() -> None:
        seen, _, _ = await ran(Writer(), prepare=False)
        assert seen.count(Compacted) > 0 and all(reason.startswith("over ") for reason in reasons(seen))

    asyncio.run(main())


def test_usage_includes_the_cost_of_the_summary() -> None:
    class Billed(Scripted):
        async def send(self, body: Any, **options: Any) -> Reply:
            reply = await super().send(body, **options)
            return Reply(reply.items, reply.stop, reply.usage, Usage(input=1_000, output=10))

    async def main() -> None:
        scribe = Billed("- done")
        seen, _, _ = await ran(kompakt.LLMSummarizer(scribe))
        assert len(scribe.bodies) > 0
        assert seen.result.usage == Usage(input=1_000 * len(scribe.bodies), output=10 * len(scribe.bodies))

    asyncio.run(main())


def test_a_summary_may_reuse_the_prompt_cache_of_the_run() -> None:
    class Both(Echo):
        def __init__(self) -> None:
            super().__init__(steps=24)
            self.summaries: list[Any] = []
            self.last: list[Any] = []

        async def send(self, body: Any, **options: Any) -> Reply:
            if LISTED in str(body["messages"][-1]["content"]):
                self.summaries.append((body["messages"], list(self.last)))
                return Reply(({"role": "assistant", "content": "- read pages"},), "end", Usage(), Usage(input=7))
            self.last = list(body["messages"])
            return await super().send(body, **options)

    async def main() -> None:
        client = Both()
        writer = kompakt.LLMSummarizer(client, reuse_prefix=True)
        config = CompactionConfig(economic=False, budget=BUDGET, summarizer=writer)
        agent = Agent(client, tools=[work], system=SYSTEM, compaction=config)
        result = await agent.run(TASK, session="s")
        assert client.summaries and result.usage.input == 7 * len(client.summaries)
        for sent, last in client.summaries:
            assert sent[: len(last)] == last, "what the provider has cached was not used"

    asyncio.run(main())


def test_cancelled_at_any_await_no_task_and_no_message_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store and the summarizer are trapped: the run is cancelled at its nth await, for every fifth n."""
    monkeypatch.setitem(lock.hold.__wrapped__.__kwdefaults__, "lease", 0.3)  # type: ignore[attr-defined]

    async def cut(at: int) -> bool:
        store, client, left = await open_store("memory:"), Echo(steps=12), [at]
        running: list[asyncio.Task[Any]] = []

        def due() -> bool:
            left[0] -= 1
            if left[0] == 0:
                running[0].cancel()
            return left[0] == 0

        async def writer(material: Material) -> str:
            await asyncio.sleep(0)
            if due():
                await asyncio.sleep(0)
            return f"Summary [{material.references[0]}]."

        config = CompactionConfig(economic=False, budget=4_000, summarizer=writer)
        trapped = Agent(client, tools=[work], system=SYSTEM, store=Store(Trap(store.records, due)), compaction=config)
        running.append(asyncio.create_task(trapped.run(TASK, session="s")))
        done = not isinstance((await asyncio.gather(*running, return_exceptions=True))[0], asyncio.CancelledError)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        session = await store.session("s")
        if await session.exists():
            assert await session.verify() == []
            result = await Agent(client, tools=[work], system=SYSTEM, store=store, compaction=config).run(
                None, session="s"
            )
            assert result.text.startswith("done") and max(client.sizes) <= 4_000
        return done

    async def main() -> None:
        at = 1
        while not await cut(at):
            at += 5
        assert at > 60

    asyncio.run(main())
