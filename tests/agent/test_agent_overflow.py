"""Requests that are rejected as too long: what is shortened, what is reported, and which round is named."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import Any

import pytest
from tests.agent.agent_runs import FORMATS, Watched
from tests.agent.scripted_client import Scripted, calls

import kompakt
from kompakt.agent.agent import Agent
from kompakt.agent.config import CompactionConfig
from kompakt.errors import Overflowed
from kompakt.events import Recovered
from kompakt.model.messages import Message
from kompakt.session.store import Store, open_store

PLAIN: dict[str, Any] = {"compaction": CompactionConfig(economic=False)}
ESSAY = "\n".join(f"Paragraph {number} says what berth {number} was found to hold." for number in range(1_200))


def look(part: int = 0) -> str:
    """Look."""
    return f"what part {part} holds"


async def grown(store: Store, format: str) -> None:
    """Start a session with several small turns and one very large answer, in a window that is large enough."""
    for turn in range(6):
        step = calls("look", id=f"c{turn}_", part=turn)
        agent = Agent(Scripted(step, f"Answer {turn} is short.", format=format), tools=[look], store=store, **PLAIN)
        await agent.run(f"Question {turn}?", session="s")
    await Agent(Scripted(ESSAY, format=format), tools=[look], store=store, **PLAIN).run("Write an essay.", session="s")


@pytest.mark.parametrize("format", FORMATS)
def test_one_oversized_answer_is_shortened_and_older_rounds_stay(format: str) -> None:
    async def main() -> None:
        store = await open_store("memory:")
        await grown(store, format)
        client = Scripted("Done.", format=format, limit=8_000)
        seen = Watched()
        agent = Agent(client, tools=[look], store=store, **PLAIN)
        async for event in agent.stream("And now?", session="s", budget=200_000):
            seen.events.append(event)
        assert len(client.refused) == 1 and seen.count(Recovered) == 1
        texts = "\n".join(message.text for message in client.shown())
        for turn in range(6):
            assert f"Question {turn}?" in texts and f"Answer {turn} is short." in texts
        assert len([r for message in client.shown() for r in message.results]) == 6
        assert "Paragraph 0 says" in texts and "Paragraph 600 says" not in texts
        session = await store.session("s")
        report = (await session.compactions())[-1]
        recovered = next(event for event in seen.events if type(event) is Recovered)
        assert recovered.round in report.reason and recovered.round.startswith("round ")
        essay = next(m for m in kompakt.parse(await session.export(), format=format) if "Paragraph 600" in m.text)
        assert essay.text == ESSAY  # the store has it whole
        reference = recovered.round.rpartition(" at ")[2]
        assert "Paragraph 0 says" in (await session.recall(reference, None)).text
        await session.undo()
        assert await session.verify() == []

    asyncio.run(main())


def test_a_pivot_summarizes_the_dropped_rounds() -> None:
    """With many small rounds and a smaller window the oldest rounds are dropped, and the model gets a summary."""

    def read_file(path: str) -> str:
        """Read a file."""
        return f"{path}: nothing of interest in this file, it holds a few words only"

    async def main() -> None:
        store = await open_store("memory:")
        steps: list[Message | str] = [calls("read_file", id=f"c{n}_", path=f"src/part_{n}.py") for n in range(80)]
        agent = Agent(Scripted(*steps, "Read."), tools=[read_file], store=store, **PLAIN)
        await agent.run("Read all parts. Never touch the tests.", session="s")
        await (await store.session("s")).pin("berth C14")
        client = Scripted("Done.", limit=3_500)
        await Agent(client, tools=[read_file], store=store, **PLAIN).run("And now?", session="s", budget=100_000)
        shown = "\n".join(message.text for message in client.shown())
        assert "Never touch the tests." in shown and "berth C14" in shown
        summary = next(message.text for message in client.shown() if message.text.startswith("Notes on the earlier"))
        named = {f"src/{name}" for name in re.findall(r"part_\d+\.py", summary)}
        called = {
            call.input["path"] if isinstance(call.input, dict) else json.loads(call.input)["path"]
            for message in client.shown()
            for call in message.calls
        }
        assert named and not named & called  # the ledger names the files whose calls are gone
        assert await (await store.session("s")).verify() == []

    asyncio.run(main())


def test_the_final_error_names_the_round(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        store = await open_store("memory:")
        await grown(store, "openai-chat")
        client = Scripted("Never.", limit=10)
        with pytest.raises(Overflowed) as caught:
            await Agent(client, tools=[look], store=store, **PLAIN).run("And now?", session="s", budget=200_000)
        assert caught.value.round is not None and caught.value.round in str(caught.value)
        assert caught.value.round.startswith("round ") and caught.value.status == 400
        assert caught.value.round in caplog.text
        done = await (await store.session("s")).compactions()
        assert done and all("came with round" in one.reason for one in done)

    with caplog.at_level(logging.WARNING, "kompakt.agent"):
        asyncio.run(main())
