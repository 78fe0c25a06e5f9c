"""The gateway with a real model: every request is accepted, and its prompt cache works between compactions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.agent.local_model import model_served
from tests.gateway.gateway_server import gateway

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WINDOW = 1_024
TURNS = 13
PASSAGE = (
    "The ferry leaves the northern quay at seven and again at nine; tickets are sold on the boat, and dogs ride free."
)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Start the model."""
    with model_served(WINDOW) as found:
        yield found


def asked(number: int) -> dict[str, str]:
    return {"role": "user", "content": f"Note {number}: {PASSAGE} {PASSAGE} When does ferry {number} leave?"}


PROTOCOLS: dict[str, Any] = {
    "/v1/chat/completions": lambda said: (
        {"messages": [{"role": "system", "content": "Answer briefly."}, *said], "max_tokens": 24},
        lambda got: got["choices"][0]["message"]["content"],
        lambda got: (got["usage"]["prompt_tokens"], got["usage"]["prompt_tokens_details"]["cached_tokens"]),
    ),
    "/v1/messages": lambda said: (
        {"messages": said, "system": "Answer briefly.", "max_tokens": 24},
        lambda got: "".join(block.get("text", "") for block in got["content"]),
        lambda got: (
            got["usage"]["input_tokens"] + got["usage"].get("cache_read_input_tokens", 0),
            got["usage"].get("cache_read_input_tokens", 0),
        ),
    ),
}


@pytest.mark.parametrize("path", PROTOCOLS)
def test_a_chat_that_outgrows_the_window(path: str, address: str, tmp_path: Path) -> None:
    """The client sends everything each time, but the model processes few new tokens, except after compactions."""
    said: list[Any] = []
    shares, compacted = list[float](), list[bool]()
    with gateway(address, store=f"sqlite:///{tmp_path / 'k.db'}", context_window=WINDOW) as gate:
        for number in range(TURNS):
            said.append(asked(number))
            body, text_of, usage_of = PROTOCOLS[path](said)
            answer = httpx.post(gate.url + path, json={"model": "smollm2", **body}, timeout=120)
            assert answer.status_code == 200, answer.text
            prompt, cached = usage_of(answer.json())
            assert prompt < WINDOW
            shares.append(cached / prompt)
            compacted.append("x-kompakt-compaction" in answer.headers)
            said.append({"role": "assistant", "content": text_of(answer.json()) or "I do not know."})
    assert any(compacted)
    between = [share for at, share in enumerate(shares) if at and not compacted[at]]
    assert min(between) > 0.4, (shares, compacted)
    through = [share for at, share in enumerate(shares) if compacted[at]]
    assert max(through) < min(between), "a rewriting that kept the cache proves nothing about the others"
