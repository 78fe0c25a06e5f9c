"""A stored session is compacted only when a trigger of its policy is due."""

from __future__ import annotations

import pytest
from tests.session.builders import fresh, run, turns

from kompakt.engine.context.context import Context
from kompakt.strategies import Strategy, Summarization, Truncation
from kompakt.triggers import Target, every, over_bytes, over_messages

HUGE = 1_000_000


class TestTriggers:
    @pytest.mark.parametrize(
        "strategy, reason",
        [
            (Truncation(when=over_messages(10)), "over 10 messages"),
            (Summarization(when=over_messages(10)), "over 10 messages"),
            (Truncation(when=over_bytes(200)), "over 200 bytes"),
            (Truncation(when=every(5)), "every 5 steps"),
            (Truncation(when=lambda context: context.rounds > 3), "a predicate was true"),
            (Truncation(target=Target(messages=8)), "Truncation was due"),
        ],
    )
    def test_a_trigger_fires_below_the_budget(self, strategy: Strategy, reason: str) -> None:
        """The session is compacted once, the record says why, and a second call changes nothing."""

        async def work() -> None:
            session = await fresh()
            await session.save(turns(10), format="openai-chat")
            whole = len((await session.project()).history)
            done = await session.compact(HUGE, policy=strategy)
            assert done.changed and done.report is not None and done.report.reason == reason
            assert len((await session.project()).history) < whole
            assert [one.reason for one in await session.compactions()] == [reason]
            again = await session.compact(HUGE, policy=Truncation(when=every(5)))
            assert not again.changed and again.id == done.id

        run(work())

    def test_a_trigger_that_is_not_due_changes_nothing(self) -> None:
        """Nothing is written, and no request is left."""

        async def work() -> None:
            session = await fresh()
            await session.save(turns(3), format="openai-chat")
            done = await session.compact(HUGE, policy=Truncation(when=over_messages(500)))
            assert not done.changed and await session.compactions() == [] and await session.pending() == {}

        run(work())

    def test_a_strategy_that_changes_nothing_leaves_no_request(self) -> None:
        """A strategy that may await is called directly, without a durable request."""

        async def idle(context: Context) -> bool:
            return False

        async def work() -> None:
            session = await fresh()
            await session.save(turns(3), format="openai-chat")
            done = await session.compact(HUGE, policy=idle)
            assert not done.changed and await session.compactions() == [] and await session.pending() == {}

        run(work())

    def test_triggers_need_neither_budget_nor_model(self) -> None:
        """A strategy that says when does not need a number of tokens."""

        async def work() -> None:
            session = await fresh()
            await session.save(turns(10), format="openai-chat")
            assert (await session.compact(policy=Truncation(when=over_messages(10)))).changed

        run(work())
