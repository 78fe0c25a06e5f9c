"""The inspection: the same numbers as the command line, pages, compactions that recall can restore, nothing written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from tests.view.sessions import REQUEST, SECOND_REQUEST, body, claude_code, stored

import kompakt
from kompakt.engine.ledger.runs import NO_COMMIT, NO_PUSH
from kompakt.session.store import open_store
from kompakt.view.directories import MissingSession
from kompakt.view.growth import Sizes, reconciled
from kompakt.view.inspection import Inspection, open_inspection
from kompakt.view.status import BY_AGENT, session_status
from kompakt.view.values import KINDS, CompactionPreview

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
            assert {row.subject for row in rows if row.kind == "tool_results"} >= {"/w/f0.py", "/w/f1.py"}
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
            named = {item.ref: item.pivot_lines for item in found.removed if item.pivot_lines}
            lines = {line.line: line for line in found.pivot}
            assert all(ref in lines[number].refs for ref, numbers in named.items() for number in numbers)
            (quoted,) = [line for line in found.pivot if SECOND_REQUEST in line.text]
            (request,) = [item for item in found.removed if item.title == SECOND_REQUEST]
            assert request.pivot_lines == (quoted.line,) and quoted.seqs == (request.seq,)

        run(work())

    def test_every_line_of_a_pivot_leads_to_its_originals(self, tmp_path: Path) -> None:
        """Tasks, lists of files and commands too, and what an earlier pivot said.

        Headings have no original, and neither has what was not done.
        """

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
                    nothing = {f"- {said}" for said in (NO_COMMIT, NO_PUSH)}
                    assert [line.text for line in lines if not line.seqs and line.text not in nothing] == []
                    looked = next(n for n, line in enumerate(view.pivot) if line.text.startswith("## What was looked"))
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
                assert {(page.messages, page.notes) for page in pages} == {(126, 4)}
                assert (await inspection.session("work")).messages == 126
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
                assert found.at == "2026-03-01T10:00:15Z"  # of the first message after it that has a time
                (listed,) = detail.compactions
                assert (listed.at, listed.reason) == (found.at, found.reason) == (found.at, BY_AGENT)
                assert {one.why for one in found.removed} == {f"replaced by {BY_AGENT}"}
                answer = await inspection.recall(row.id, found.removed[2].ref)
                assert answer.found and "content of f0" in answer.text

        run(work())

    def test_the_list_says_what_the_session_says(self, tmp_path: Path) -> None:
        """The sizes of an agent's compaction are only known from the requests around it."""

        async def work() -> None:
            async with await open_inspection(claude_code(tmp_path / "cc.jsonl")) as inspection:
                await inspection.sessions()
                assert inspection.cache.filling is not None
                await inspection.cache.filling
                (row,) = (await inspection.sessions()).rows
            async with await open_inspection(tmp_path / "cc.jsonl") as inspection:
                assert (await inspection.session(row.id)).row == row

        run(work())

    def test_a_system_prompt_that_is_not_in_the_file_does_not_shrink(self) -> None:
        """An agent may leave out messages without a note; the provider then reports less than the file has."""
        counted: Sizes = {"system": 3, "user": 100, "tool_results": 900}
        assert reconciled(counted, 1_403, 400) == {**counted, "system": 403}
        assert reconciled(counted, 2_003, 400) == {**counted, "system": 1_003}
        less = reconciled(counted, 1_003, 400)
        assert less["system"] >= 400 and 500 < less["tool_results"] < 600
        for total in (0, 1, 100, 700, 1_403, 5_000):
            assert sum(reconciled(counted, total, 400).values()) == total
        assert reconciled(counted, 500, 400)["tool_results"] > 0  # the hidden part is at most half of what is too small


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
            assert done.report is not None and done.report.notes == previews[1].pivot

        run(work())

    def test_does_not_depend_on_those_before_it(self, tmp_path: Path) -> None:
        """What is read for a preview is used again."""

        async def work() -> None:
            async def preview(inspection: Inspection, id: str, budget: int) -> CompactionPreview:
                return msgspec.structs.replace(await inspection.preview(id, budget), seconds=0)

            url = await stored(tmp_path / "s.db")
            async with await open_store(url) as store:
                await (await store.session("long")).save(body(60))
            for id in ("work", "long"):
                alone: list[CompactionPreview] = []
                for budget in (3_000, 100_000, 2_000, 20, 2_500):
                    async with await open_inspection(url) as inspection:
                        alone.append(await preview(inspection, id, budget))
                async with await open_inspection(url) as inspection:
                    await inspection.session(id)
                    together = [await preview(inspection, id, budget) for budget in (3_000, 100_000, 2_000, 20, 2_500)]
                    assert together == alone
                    async with await open_store(url) as store:
                        await (await store.session(id)).append([{"role": "user", "content": "One more. " * 50}])
                    assert (await preview(inspection, id, 2_500)).tokens_before > alone[-1].tokens_before

        run(work())

    def test_of_a_transcript_says_what_it_starts_from(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with await open_inspection(claude_code(tmp_path / "cc.jsonl")) as inspection:
                assert "all messages of the file" in (await inspection.preview("cc", 1_000)).note

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


def test_who_stops_to_follow_does_not_interrupt_a_query(tmp_path: Path) -> None:
    """A store closes a connection whose query was interrupted, and logs that as an error."""

    async def work() -> None:
        async with await open_inspection(await stored(tmp_path / "s.db")) as inspection:
            began, ended, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
            listed = inspection.directory.listed

            async def slow() -> Any:
                began.set()
                await go_on.wait()
                found = await listed()
                ended.set()
                return found

            inspection.directory.listed = slow  # type: ignore[method-assign]
            following = asyncio.ensure_future(anext(inspection.changes()))
            await began.wait()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            go_on.set()
            await asyncio.wait_for(ended.wait(), 60)

    run(work())
