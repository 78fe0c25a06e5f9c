"""Sessions of sub-agents are linked to the session that they work for, and recalled from it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.agent.agent_runs import client_for
from tests.gateway.scripted_model import Model
from tests.gateway.upstreams import Recorded

import kompakt


def said(*texts: str) -> list[Any]:
    return [{"role": "assistant" if at % 2 else "user", "content": text} for at, text in enumerate(texts)]


async def linked(store: kompakt.Store) -> tuple[Any, Any]:
    parent, child = await store.session("main"), await store.session("reader")
    await parent.append(said("Fix the tide table.", "I sent a helper to read it."), format="openai-chat")
    await child.append(said("Read the tide table.", "The gauge at Hull is off by 17 cm."), format="openai-chat")
    await child.link("main")
    return parent, child


def test_recall_on_the_parent_names_the_child() -> None:
    async def run() -> None:
        async with await kompakt.open_store("memory:") as store:
            parent, child = await linked(store)
            found = await parent.recall("gauge at Hull")
            assert "[kompakt] In the session 'reader' of a sub-agent:" in found.text and "17 cm" in found.text
            reference = (await child.recall("Read the tide table")).references[0]
            assert (await parent.recall(reference, None)).text.endswith(":\nRead the tide table.")
            assert "helper" in (await parent.recall("helper table", 200)).text
            assert "sent a helper" not in (await child.recall("sent helper")).text
            small = await parent.recall("tide table", 120)
            assert small.tokens <= 120
            assert await parent.verify() == [] and await child.verify() == []

    asyncio.run(run())


def test_links_survive_the_store_and_repeated_calls(tmp_path: Any) -> None:
    async def run() -> None:
        url = f"sqlite:///{tmp_path / 'k.db'}"
        async with await kompakt.open_store(url) as store:
            _, child = await linked(store)
            await child.link("main")
        async with await kompakt.open_store(url) as store:
            parent = await store.session("main")
            timeline = (await parent.reader()).timeline
            assert timeline.children == ("reader",) and timeline.parent is None
            assert (await (await store.session("reader")).reader()).timeline.parent == "main"
            await store.delete("reader")
            assert not await parent.recall("gauge at Hull")

    asyncio.run(run())


def test_links_form_a_tree() -> None:
    async def run() -> None:
        async with await kompakt.open_store("memory:") as store:
            parent, child = await linked(store)
            with pytest.raises(kompakt.UsageError, match="belongs to it"):
                await parent.link("reader")
            with pytest.raises(kompakt.UsageError, match="belongs to it"):
                await parent.link("main")
            with pytest.raises(kompakt.UsageError, match="no session"):
                await parent.link("unknown")
            await (await store.session("other")).append(said("Hi."), format="openai-chat")
            with pytest.raises(kompakt.UsageError, match="already belongs"):
                await child.link("other")

    asyncio.run(run())


def test_an_agent_run_can_name_its_parent() -> None:
    async def run(provider: Recorded) -> str:
        async with await kompakt.open_store("memory:") as store:
            for session, parent in (("main", None), ("helper", "main")):
                async with kompakt.Agent(client_for("openai-chat", provider), store=store) as agent:
                    await agent.run("How deep is the harbour?", session=session, parent=parent)
            return (await (await store.session("main")).recall("zanzibar depth")).text

    with Recorded(Model(("I will ask.", []), ("The zanzibar depth is 12 m.", [])), window=16_000) as provider:
        found = asyncio.run(run(provider))
        assert "'helper'" in found and "12 m" in found
