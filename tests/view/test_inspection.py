"""The inspection: the same numbers as the command line, pages, compactions that recall can restore, nothing written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.view.sessions import REQUEST, SECOND_REQUEST, claude_code, stored

import kompakt
from kompakt.session.store import open_store
from kompakt.view.directories import MissingSession
from kompakt.view.inspection import open_inspection
from kompakt.view.status import session_status
from kompakt.view.values import KINDS

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run(stored(tmp_path_factory.mktemp("store") / "s.db"))


class TestNumbers:
    def test_agree_with_the_status_of_the_session(self, store: str) -> None:
        async def work() -> None:
            async with await open_store(store) as opened:
                status = await session_status(await opened.session("work"))
            async with await open_inspection(store) as inspection:
                listed = {row.id: row for row in (await inspection.sessions()).rows}
                detail, growth, context = (
                    await inspection.session("work"),
                    await inspection.growth("work"),
                    await inspection.context("work"),
                )
            assert listed["work"].tokens == detail.row.tokens == growth.points[-1].total == context.total
            assert context.total == status.tokens
            assert detail.compactions == status.compactions
            assert (detail.messages, detail.turns, detail.recallable) == (
                status.messages,
                status.turns,
                status.recallable,
            )
            assert listed["work"].tokens_saved == detail.row.tokens_saved > 0

        run(work())

    def test_of_every_step_add_up(self, store: str) -> None:
        async def work() -> None:
            async with await open_inspection(store) as inspection:
                growth = await inspection.growth("work")
                context = await inspection.context("work")
            assert growth.steps == 62
            assert [point.step for point in growth.points] == list(range(1, 64))
            assert all(
                point.total == sum(point.tokens.values()) and point.cached <= point.total for point in growth.points
            )
            assert set(growth.points[0].tokens) == set(KINDS)
            assert context.tree.tokens == sum(child.tokens for child in context.tree.children) == context.total
            for mark in growth.compactions:
                assert mark.before is not None and mark.after is not None and mark.after < mark.before
                # The request after a compaction has the compacted history, and a message that asks to continue.
                assert mark.after <= growth.points[mark.step - 1].total < mark.after + 100

        run(work())

    def test_of_a_step_are_those_of_the_request_that_was_sent(self, store: str) -> None:
        async def work() -> None:
            async with await open_inspection(store) as inspection:
                growth = await inspection.growth("work")
                for number in (1, 20, growth.compactions[0].step, 45, 63):
                    step = await inspection.step("work", number)
                    assert step.total == growth.points[number - 1].total
                    assert '"messages"' in step.body
                first = await inspection.step("work", 1)
                assert [row.title for row in first.rows] == ["You are a coding agent.", REQUEST]
                assert [row.seq for row in first.answer] == [3]
                with pytest.raises(MissingSession, match="no step 64"):
                    await inspection.step("work", 64)

        run(work())

    def test_exist_before_the_first_answer(self, tmp_path: Path) -> None:
        async def work() -> None:
            file = tmp_path / "new.json"
            for content in ('{"model": "gpt-4o", "messages": []}', '[{"role": "user", "content": "Hello."}]'):
                file.write_text(content)
                async with await open_inspection(file) as inspection:
                    detail, growth = await inspection.session("new"), await inspection.growth("new")
                    assert detail.row.steps == growth.steps == 0 and len(growth.points) == 1
                    assert (await inspection.step("new", 1)).total == (await inspection.context("new")).total
                    assert not (await inspection.preview("new", 1_000)).due

        run(work())


def test_tool_results_are_named_by_what_they_are_about(tmp_path: Path) -> None:
    """The beginning of a file says less than its name, above all in a small box."""

    async def work() -> None:
        file = claude_code(tmp_path / "s.jsonl", summary=False)
        async with await open_inspection(file) as inspection:
            (session,) = (await inspection.sessions()).rows
            rows = (await inspection.messages(session.id)).rows
            assert any(row.title.startswith("/w/f1.py → ") for row in rows if row.kind == "tool_results")
            tree = (await inspection.context(session.id)).tree
            (results,) = [node for node in tree.children if node.kind == "tool_results"]
            assert "f1.py" in {leaf.name for tool in results.children for leaf in tool.children}

    run(work())


class TestCompaction:
    def test_every_removed_item_is_restored_by_recall(self, store: str) -> None:
        async def work() -> None:
            async with await open_inspection(store) as inspection, await open_store(store) as opened:
                session = await opened.session("work")
                for one in (await inspection.session("work")).compactions:
                    found = await inspection.compaction("work", one.id)
                    assert found.removed_count == len(found.removed) > 0
                    assert found.unrecoverable == ()
                    assert found.tokens_before == one.tokens_before and found.tokens_after == one.tokens_after
                    assert sum(found.by_kind_after.values()) == found.tokens_after
                    for item in found.removed:
                        assert item.recallable and item.why and item.strategy
                        assert await session.recall(item.ref)

        run(work())

    def test_lines_of_the_pivot_and_removed_items_refer_to_each_other(self, store: str) -> None:
        async def work() -> None:
            async with await open_inspection(store) as inspection:
                newest = (await inspection.session("work")).compactions[0]
                found = await inspection.compaction("work", newest.id)
            told = {item.ref: item.told for item in found.removed if item.told}
            lines = {line.line: line for line in found.pivot}
            assert all(ref in lines[number].refs for ref, numbers in told.items() for number in numbers)
            (quoted,) = [line for line in found.pivot if SECOND_REQUEST in line.text]
            (request,) = [item for item in found.removed if item.title == SECOND_REQUEST]
            assert request.told == (quoted.line,) and quoted.seqs == (request.seq,)

        run(work())

    def test_every_line_of_a_pivot_leads_to_its_originals(self, tmp_path: Path) -> None:
        """Tasks, lists of files and commands too, and what an earlier pivot said; headings have no original."""

        async def work() -> None:
            body = json.loads((Path(kompakt.__file__).parent / "data" / "long-session.json").read_text())
            messages = body.pop("messages")
            url = f"sqlite:///{tmp_path / 's.db'}"
            async with await open_store(url) as opened:
                session = await opened.session("long")
                for start, end in ((0, 190), (190, 330)):
                    await session.save({**body, "messages": messages[:end]} if not start else messages[:end])
                    await session.compact(24_000)
            async with await open_inspection(url) as inspection:
                for one in (await inspection.session("long")).compactions:
                    view = await inspection.compaction("long", one.id)
                    lines = [line for line in view.pivot[1:] if line.text and not line.text.startswith("#")]
                    assert len(lines) > 20
                    assert [line.text for line in lines if not line.seqs] == []
                    looked = next(at for at, line in enumerate(view.pivot) if line.text == "## What was looked at")
                    listed = next(line for line in view.pivot[looked:] if line.text.startswith("- tidewatch/"))
                    folder, _, names = listed.text.removeprefix("- ").partition(": ")
                    original = (await inspection.message("long", listed.seqs[0])).text
                    assert f"{folder}/{names.split(', ')[0]}" in original

        run(work())

    def test_a_damaged_original_is_unrecoverable(self, tmp_path: Path) -> None:
        async def work() -> None:
            url = await stored(tmp_path / "s.db")
            import sqlite3

            with sqlite3.connect(tmp_path / "s.db") as connection:
                connection.execute("UPDATE kompakt_rows SET content = x'00' WHERE seq = 5")
            async with await open_inspection(url) as inspection:
                first = (await inspection.session("work")).compactions[0]
                found = await inspection.compaction("work", first.id)
            assert len(found.unrecoverable) == 1

        run(work())


class TestMessages:
    def test_pages_cover_every_message_once(self, store: str) -> None:
        async def work() -> None:
            async with await open_inspection(store) as inspection:
                pages = [await inspection.messages("work", start, 50) for start in range(0, 150, 50)]
                rows = [row for page in pages for row in page.rows]
                assert len(rows) == pages[-1].total == 126 + 4  # two summaries, two requests to continue
                assert [row.seq for row in rows] == sorted({row.seq for row in rows})
                results = await inspection.messages("work", 0, 500, kind="tool_results")
                assert results.total == 60 and {row.kind for row in results.rows} == {"tool_results"}
                assert {row.tool for row in results.rows} == {"bash", "read_file"}
                assert {row.state for row in rows} == {"sent", "replaced"}
                text = await inspection.message("work", rows[3].seq)
                assert text.text.startswith("line 0 failed with E000") and text.next is None

        run(work())

    def test_a_long_text_is_read_in_pages(self, tmp_path: Path) -> None:
        async def work() -> None:
            file = tmp_path / "long.json"
            file.write_text('[{"role": "user", "content": "%s"}]' % ("é" * 200_000))
            async with await open_inspection(file) as inspection:
                text, offset = "", 0
                while offset is not None:
                    page = await inspection.message("long", 1, offset)
                    text, offset = text + page.text, page.next
                assert text == "é" * 200_000

        run(work())


class TestTranscripts:
    def test_an_agents_summaries_are_its_compactions(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with await open_inspection(claude_code(tmp_path / "cc.jsonl")) as inspection:
                (row,) = (await inspection.sessions()).rows
                assert (row.client, row.title, row.compactions) == ("claude-code", REQUEST, 1)
                detail = await inspection.session(row.id)
                assert not detail.writable and "session import" in detail.read_only_reason
                assert detail.cache.reported and detail.cache.money is not None
                growth = await inspection.growth(row.id)
                assert growth.reported and growth.window == 200_000 and growth.steps == 12
                (mark,) = growth.compactions
                assert mark.step == 7
                found = await inspection.compaction(row.id, mark.id)
                assert found.removed_count == 13 and found.unrecoverable == ()
                assert [line.text for line in found.pivot] == ["Summary: the parser was read."]
                answer = await inspection.recall(row.id, found.removed[2].ref)
                assert answer.found and "content of f0" in answer.text

        run(work())

    def test_a_file_that_grows_is_read_again(self, tmp_path: Path) -> None:
        async def work() -> None:
            file = claude_code(tmp_path / "cc.jsonl", steps=2)
            async with await open_inspection(file) as inspection:
                before = await inspection.session("cc")
                claude_code(file, steps=3)
                after = await inspection.session("cc")
            assert (before.row.steps, after.row.steps) == (4, 6)

        run(work())


class TestPreview:
    def test_writes_nothing_and_is_what_the_compaction_then_does(self, tmp_path: Path) -> None:
        async def work() -> None:
            url = await stored(tmp_path / "s.db")
            before = (tmp_path / "s.db").read_bytes()
            async with await open_inspection(url) as inspection:
                version = await inspection.version("work")
                previews = [await inspection.preview("work", budget) for budget in (2_000, 3_000, 100_000)]
                assert await inspection.version("work") == version
            assert (tmp_path / "s.db").read_bytes() == before
            assert [one.due for one in previews] == [True, True, False]
            assert previews[2].removed == () and previews[2].tokens_after == previews[2].tokens_before
            async with await open_store(url) as store:
                done = await (await store.session("work")).compact(3_000)
            assert (done.tokens_before, done.tokens_after) == (previews[1].tokens_before, previews[1].tokens_after)
            assert done.report is not None and done.report.told == previews[1].pivot

        run(work())

    def test_of_a_budget_that_is_too_small_says_so(self, store: str) -> None:
        async def work() -> None:
            async with await open_inspection(store) as inspection:
                found = await inspection.preview("work", 20)
            assert not found.fits and "must stay" in found.problems[0]

        run(work())


class TestList:
    def test_has_the_costs_of_sessions_that_nobody_opened(self, store: str) -> None:
        async def work() -> None:
            async with await open_inspection(store) as inspection:
                assert all(row.steps is None for row in (await inspection.sessions()).rows)
                assert inspection.cache.filling is not None
                await inspection.cache.filling
                listed = {row.id: row for row in (await inspection.sessions()).rows}
            async with await open_inspection(store) as inspection:
                for id, row in listed.items():
                    assert (await inspection.session(id)).row == row
            assert listed["work"].money_saved and 0 < (listed["work"].cached or 0) < 1

        run(work())

    def test_is_sorted_searched_and_paged(self, store: str) -> None:
        async def work() -> None:
            async with await open_inspection(store) as inspection:
                first = await inspection.sessions(limit=1)
                second = await inspection.sessions(limit=1, cursor=first.next)
                assert [row.id for page in (first, second) for row in page.rows] == ["small", "work"]
                assert first.total == 2 and second.next is None
                assert [row.id for row in (await inspection.sessions("WORK")).rows] == ["work"]
                assert [row.id for row in (await inspection.sessions("fix parser")).rows] == ["small", "work"]
                assert (await inspection.sessions("nothing")).rows == ()
                with pytest.raises(MissingSession):
                    await inspection.session("missing")

        run(work())
