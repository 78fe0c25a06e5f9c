"""A real model on a real server: requests are accepted and overflow is detected. Its answers are not judged."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.agent.local_model import model_served
from tests.agent.summarizer.summarizer_client import RULE, WORK, material
from tests.histories.messages import user

from kompakt.agent.clients import OpenAIChat
from kompakt.agent.summarizer.llm import MAX_DIVISIONS, LLMSummarizer, SummaryFault
from kompakt.errors import Overflowed

pytestmark = pytest.mark.slow

SERVED = 2_048


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Start a server with a small model and a small window."""
    with model_served(SERVED) as found:
        yield f"{found}/v1"


class Watched(OpenAIChat):
    """Records the outcome of each request."""

    outcomes: list[str]

    async def send(self, body: Any, **options: Any) -> Any:
        try:
            reply = await super().send(body, **options)
        except Overflowed:
            self.outcomes.append("overflow")
            raise
        self.outcomes.append("answer")
        return reply


def test_requests_are_accepted_and_overflow_divides_them(address: str) -> None:
    """A window configured too large costs one rejection; the result has the user's words or names the failure."""

    async def ask() -> tuple[list[str], str | None]:
        client = Watched("smollm2", base_url=address, api_key="none", context_window=8_000, output_limit=120)
        client.outcomes = []
        long = [user(f"Look at part {n}. " + "some words here " * 120) for n in range(5)]
        try:
            text = await LLMSummarizer(client)(material(*WORK, *long, most=300))
        except SummaryFault:  # so small a model often breaks off, or makes up references
            text = None
        finally:
            await client.close()
        return client.outcomes, text

    outcomes, text = asyncio.run(ask())
    assert outcomes[0] == "overflow" and "answer" in outcomes and outcomes.count("overflow") < MAX_DIVISIONS
    assert text is None or RULE in text
