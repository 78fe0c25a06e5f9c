"""The clients with a real model on a real server: three protocols, streams, and a prompt that is too long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.agent.clients.client_servers import client_of
from tests.agent.local_model import model_served

import kompakt
from kompakt.agent.client import Delta
from kompakt.errors import Overflowed
from kompakt.wire.registry import WIRES

pytestmark = pytest.mark.slow

WINDOW = 512
PROTOCOLS = ("openai-chat", "openai-responses", "anthropic")
each_protocol = pytest.mark.parametrize("format", PROTOCOLS)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Start the server."""
    with model_served(WINDOW) as found:
        yield found


def ask(format: str, address: str, question: str, **options: Any) -> tuple[Any, Any]:
    async def run() -> tuple[Any, Any]:
        client = client_of(format, address, context_window=WINDOW, output_limit=12, api_key=None)
        body = client.envelope(system="You answer in one short sentence.", tools=[])
        asked = [*client.opening("You answer in one short sentence."), {"role": "user", "content": question}]
        try:
            reply = await client.send({**body, WIRES[format].messages_key: asked, "temperature": 0}, **options)
        finally:
            await client.close()
        return reply, asked

    return asyncio.run(run())


@each_protocol
def test_streamed_and_unstreamed_answers_are_equal(format: str, address: str) -> None:
    deltas: list[Delta] = []
    whole, asked = ask(format, address, "Name a fruit.")
    streamed, _ = ask(format, address, "Name a fruit.", on_delta=deltas.append)
    spoken = kompakt.parse(list(whole.items), format=format)[0].text
    assert spoken and spoken == kompakt.parse(list(streamed.items), format=format)[0].text
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == spoken
    assert whole.stop == streamed.stop
    assert whole.stop in ("end", "length")
    assert 10 < whole.usage.prompt == streamed.usage.prompt < WINDOW
    assert 0 < whole.usage.output == streamed.usage.output <= 12
    assert kompakt.check([*asked, *whole.items], format=format) == []
    assert kompakt.check([*asked, *streamed.items], format=format) == []


@each_protocol
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
def test_an_overflow_states_its_numbers(format: str, streams: bool, address: str) -> None:
    options = {"on_delta": lambda delta: None} if streams else {}
    with pytest.raises(Overflowed) as caught:
        ask(format, address, "word " * 900, **options)
    overflow = caught.value.overflow
    assert isinstance(overflow, kompakt.Overflow)
    assert overflow.limit == WINDOW
    assert overflow.actual is not None and overflow.actual > 900
