"""Sessions with many messages: pages come from the part that is read, and the rest is read in the background."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
from tests.view.sessions import body

from kompakt.view.growth import MAX_POINTS, selected
from kompakt.view.index import SessionIndex
from kompakt.view.inspection import LONG, open_inspection
from kompakt.view.values import CompactionMark, GrowthPoint


def test_a_page_does_not_wait_for_the_whole_session(tmp_path: Path) -> None:
    async def work() -> None:
        file = tmp_path / "long.json"
        file.write_bytes(msgspec.json.encode(body(LONG, words=3)))
        async with await open_inspection(file) as inspection:
            source = await inspection.directory.find("long")
            moment = await source.moment()
            index = SessionIndex(source)
            await index.until(moment, lambda: len(index) >= 100)
            assert len(index) >= 100
            quick = await inspection.session("long", patience=0.0)
            assert not quick.complete and quick.row.tokens is None and quick.row.title
            changes = inspection.changes("long", pause=0.01)
            while not (changed := await anext(changes)):  # reported when all numbers are known
                pass
            assert changed[0][0] == "long"
            done = await inspection.session("long", patience=0.0)
            assert done.complete and done.row.steps == LONG + 2 and (done.row.tokens or 0) > 0
            growth = await inspection.growth("long")
            assert len(growth.points) <= MAX_POINTS and growth.points[-1].total == done.row.tokens
            page = await inspection.messages("long", 2 * LONG, 500)
            assert len(page.rows) == page.total - 2 * LONG and page.complete
            await index.close()

    asyncio.run(work())


def test_selected_points_contain_every_compaction() -> None:
    points = [GrowthPoint(step=step, seq=step, tokens={}, total=step, cached=0) for step in range(1, 20_002)]
    marks = [CompactionMark(id=f"c{step}", step=step) for step in range(50, 20_000, 61)]
    chosen = selected(points, marks)
    assert len(chosen) <= MAX_POINTS
    steps = [point.step for point in chosen]
    assert steps == sorted(set(steps)) and steps[0] == 1 and steps[-1] == 20_001
    assert {mark.step for mark in marks} | {mark.step - 1 for mark in marks} <= set(steps)
