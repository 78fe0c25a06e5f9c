"""Redo: what was undone counts again, byte for byte, unless the session changed in another way."""

from __future__ import annotations

import pytest
from tests.session.builders import fresh, run, text, turns

from kompakt.errors import UsageError
from kompakt.session.session import Session


async def compacted(count: int = 2) -> Session:
    session = await fresh()
    await session.append(turns(20))
    for _ in range(count):
        await session.compact(10_000, reason="test")
    return session


class TestRedo:
    def test_restores_what_undo_took_back(self) -> None:
        async def work() -> None:
            session = await compacted()
            views = [text((await session.project()).payload)]
            for _ in range(2):
                await session.undo()
                views.append(text((await session.project()).payload))
            assert len(set(views)) == 3
            for expected in (views[1], views[0]):
                assert (await session.redo()).startswith("compaction ")
                assert text((await session.project()).payload) == expected
                assert await session.verify() == []
            with pytest.raises(UsageError, match="nothing to redo"):
                await session.redo()
            await session.undo()  # what was redone can be undone
            assert text((await session.project()).payload) == views[1]

        run(work())

    def test_an_older_compaction_is_undone_with_those_after_it_and_each_is_redone(self) -> None:
        async def work() -> None:
            session = await compacted(0)
            views = [text((await session.project()).payload)]
            for _ in range(3):
                await session.compact(10_000, reason="test")
                views.append(text((await session.project()).payload))
            made = [one.id for one in await session.compactions()]
            assert await session.undo(made[1]) == f"compaction {made[1]} and 1 newer"
            assert [one.undone for one in await session.compactions()] == [False, True, True]
            assert text((await session.project()).payload) == views[1]
            for expected in views[2:]:
                await session.redo()
                assert text((await session.project()).payload) == expected
            await session.undo(made[0])
            assert text((await session.project()).payload) == views[0]
            assert await session.verify() == []

        run(work())

    def test_restores_an_edit(self) -> None:
        async def work() -> None:
            session = await compacted(1)
            await session.edit_summary("Edited by a person.")
            edited = text((await session.project()).payload)
            await session.undo()
            assert "Edited by a person." not in text((await session.project()).payload)
            await session.redo()
            assert text((await session.project()).payload) == edited

        run(work())

    def test_new_messages_follow_what_was_redone(self) -> None:
        async def work() -> None:
            session = await compacted(1)
            await session.undo()
            await session.append([{"role": "user", "content": "a later question"}])
            await session.redo()
            shown = text((await session.project()).payload)
            assert "a later question" in shown
            assert sum(not one.undone for one in await session.compactions()) == 1

        run(work())

    def test_is_refused_after_another_change(self) -> None:
        async def work() -> None:
            session = await compacted(1)
            await session.undo()
            await session.compact(10_000, reason="again")
            with pytest.raises(UsageError, match="nothing to redo"):
                await session.redo()
            fresh_one = await compacted(0)
            with pytest.raises(UsageError, match="nothing to redo"):
                await fresh_one.redo()
            await fresh_one.revert(10)
            await fresh_one.undo()
            with pytest.raises(UsageError, match="nothing to redo"):  # a revert is made again with `revert`
                await fresh_one.redo()

        run(work())
