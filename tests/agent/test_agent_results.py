"""Tool results have name, status and times, and keep them when reloaded; hidden results have the time of hiding."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from tests.agent.agent_runs import FORMATS
from tests.agent.scripted_client import Scripted, calls

from kompakt.agent.agent import Agent
from kompakt.agent.config import CompactionConfig
from kompakt.model.messages import ToolResult
from kompakt.session.providers import HistoryProvider, Run
from kompakt.session.store import Store, open_store
from kompakt.strategies import OutputCollapsing, OutputPruning

OUTPUT = "\n".join(f"line {number} of what was found there" for number in range(60))


def look() -> str:
    """Look."""
    return OUTPUT


async def breaks() -> str:
    """Break."""
    raise RuntimeError("broken")


async def loaded(store: Store, id: str = "s") -> list[ToolResult]:
    shown = (await (await store.session(id)).project()).history
    return [result for message in shown for result in message.results]


@pytest.mark.parametrize("format", FORMATS)
def test_name_status_and_times_survive_a_reload(format: str, tmp_path: Path) -> None:
    async def main() -> None:
        url, started = f"sqlite:///{tmp_path}/s.db", time.time()
        client = Scripted(calls("look", "breaks"), calls("look", id="d"), "Done.", format=format)
        async with Agent(client, tools=[look, breaks], store=url) as agent:
            await agent.run("Look.", session="s")
        ended = time.time()
        store = await open_store(url)
        results = await loaded(store)
        assert [(result.name, result.status) for result in results] == [
            ("look", "completed"), ("breaks", "failed"), ("look", "completed"),
        ]  # fmt: skip
        for result in results:
            assert result.started_at is not None and result.finished_at is not None
            assert started <= result.started_at <= result.finished_at <= ended
        await store.close()

    asyncio.run(main())


def test_providers_see_them_and_a_history_provider_stores_them() -> None:
    class Seen:
        source_id = "seen"
        results: tuple[ToolResult, ...] = ()

        async def before_run(self, run: Run) -> None: ...

        async def after_run(self, run: Run) -> None:
            self.results = tuple(result for message in run.responses for result in message.results)

    async def main() -> None:
        store, seen = await open_store("memory:"), Seen()
        agent = Agent(Scripted(calls("look"), "Done."), tools=[look], providers=[HistoryProvider(store), seen])
        await agent.run("Look.", session="s")
        for found in (seen.results, await loaded(store)):
            assert [result.status for result in found] == ["completed"] and found[0].finished_at is not None

    asyncio.run(main())


@pytest.mark.parametrize(
    "strategy",
    [OutputPruning(keep_tokens=0, min_tokens=0, keep_turns=0, when=lambda _: True),
     OutputCollapsing(min_keep_groups=0, when=lambda _: True)],
)  # fmt: skip
def test_hidden_outputs_have_the_time_of_hiding(strategy: Any) -> None:
    """Later compactions and reloads do not change it, nor the name and times of the result."""

    async def main() -> None:
        store = await open_store("memory:")
        steps = [calls("look", id=f"c{number}_") for number in range(4)]
        config = CompactionConfig(economic=False)
        await Agent(Scripted(*steps, "Done."), tools=[look], store=store, compaction=config).run("Look.", session="s")
        session, started = await store.session("s"), time.time()
        assert (await session.apply(strategy)).changed
        ended, first = time.time(), await loaded(store)
        hidden = [result for result in first if result.pruned_at is not None]
        assert hidden and all(started <= (result.pruned_at or 0) <= ended for result in hidden)
        assert all(result.name == "look" and result.finished_at for result in hidden)

        async def nothing_else(context: Any) -> bool:
            context.visibility.touch()
            return True

        await session.apply(nothing_else)
        assert [result.pruned_at for result in await loaded(store)] == [result.pruned_at for result in first]
        fork = await session.fork("other")
        assert [result.pruned_at for result in await loaded(store, fork.id)] == [one.pruned_at for one in first]
        assert await session.verify() == []

    asyncio.run(main())
