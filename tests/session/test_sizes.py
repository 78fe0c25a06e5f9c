"""A session is compacted to the size that the same history has without a store."""

from __future__ import annotations

import pytest
from tests.histories import plain
from tests.judges import FORMATS
from tests.session.builders import fresh, run, total

import kompakt


@pytest.mark.parametrize("policy", ["default", "conservative", "window"])
@pytest.mark.parametrize("format", FORMATS)
def test_the_same_history_and_budget_give_the_same_size(format: str, policy: str) -> None:
    """With and without a store, and wherever the last compaction was due."""

    async def stored(body: object, budget: int) -> int:
        session = await fresh()
        await session.append(body, format=format)
        return (await session.compact(budget, policy=policy)).tokens_after

    for messages in (60, 90, 120):
        body = plain.build(format, messages=messages, seed=messages, mean_chars=600)
        budget = total(format, body) // 3
        once = kompakt.compact(body, budget, format=format, policy=policy)
        assert once.changed and run(stored(body, budget)) == once.tokens_after


def test_a_manual_request_compacts_the_current_messages() -> None:
    """A manual request does not wait for the next trigger."""

    async def work() -> tuple[int, int]:
        session = await fresh()
        body = plain.build("openai-chat", messages=60, seed=3, mean_chars=600)
        await session.append(body, format="openai-chat")
        before = total("openai-chat", body)
        await session.request_compaction()
        return before, (await session.compact(2 * before)).tokens_after

    before, after = run(work())
    assert after <= 0.6 * before
