"""The agent with a real model: a chat that outgrows the window, in three protocols, with a real prompt cache.

The model is small and its answers are poor. The tests check that every request is accepted, that the history is
compacted when due, that the server's cache counts show stable prefixes, and that a request that is too long is
recovered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.agent.clients.client_servers import client_of
from tests.agent.local_model import model_served

import kompakt
from kompakt.events import Compacted, Recovered, RunEvent, Spoke, Stepped

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WINDOW = 1_024
TURNS = 13
RULE = "Never mention the colour blue."
PASSAGE = (
    "The ferry leaves the northern quay at seven and again at nine; tickets are sold on the boat, and dogs ride free."
)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Start the server."""
    with model_served(WINDOW) as found:
        yield found


def said(number: int) -> str:
    return f"{RULE} Read this, note {number}: {PASSAGE} {PASSAGE} When does ferry {number} leave?"


@pytest.mark.parametrize("format", ["openai-chat", "openai-responses", "anthropic"])
def test_a_chat_that_outgrows_the_window(format: str, address: str) -> None:
    """No request is rejected, the first request and its rule stay, and the cache is used between compactions."""

    async def work() -> tuple[list[RunEvent], object, list[str]]:
        client = client_of(format, address, context_window=WINDOW, output_limit=24, api_key=None)
        events: list[RunEvent] = []
        async with kompakt.Agent(client, system="You answer in one short sentence.") as agent:
            for number in range(TURNS):
                events += [event async for event in agent.stream(said(number), session="chat")]
            session = await agent.session("chat")
            return events, await session.export(view="model"), await session.verify()

    events, shown, faults = asyncio.run(work())
    assert faults == []
    assert any(type(event) is Spoke for event in events)
    steps = [event.usage for event in events if type(event) is Stepped]
    compactions = [at for at, event in enumerate(events) if type(event) is Compacted]
    assert len(steps) == TURNS and compactions
    assert all(usage.prompt < WINDOW for usage in steps)
    assert said(0) in str(shown)
    read = [usage.cache_read / max(1, usage.prompt) for usage in steps]
    assert sum(share > 0.4 for share in read) >= TURNS // 2, read


def test_a_request_that_is_too_long_is_recovered(address: str) -> None:
    """The client assumes a larger window than the server has; the round that grew is shortened."""

    def read_notes(number: int) -> str:
        """Read a note."""
        return f"Note {number}: {PASSAGE} " * 12

    async def work() -> tuple[list[RunEvent], str]:
        client = client_of("openai-chat", address, context_window=8_000, output_limit=24, api_key=None)
        async with kompakt.Agent(client, tools=[read_notes]) as agent:
            session = await agent.session("long")
            call = {
                "id": "call_1",
                "type": "function",
                "function": {"name": "read_notes", "arguments": '{"number": 1}'},
            }
            compacted = [
                {"role": "user", "content": "What do the notes say?"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": read_notes(1) * 3},
                {"role": "assistant", "content": "They tell of a ferry."},
            ]
            await session.append(compacted, format="openai-chat")
            events = [event async for event in agent.stream("Say it in one word.", session="long")]
            return events, str(await session.export(view="model"))

    events, shown = asyncio.run(work())
    recovered = [event for event in events if type(event) is Recovered]
    assert recovered and recovered[-1].tokens < WINDOW
    assert "What do the notes say?" in shown and "Say it in one word." in shown
