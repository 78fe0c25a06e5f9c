"""The common part of the framework adapters, with a framework that keeps plain dictionaries."""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.integrations import matrix
from tests.integrations.contract import (
    LARGE,
    PIN,
    TASK,
    TESTS,
    AdapterContract,
    TooLong,
    judge,
    page,
    sessions,
    stored,
    texts,
)

import kompakt
from kompakt.engine.compaction.report import Report
from kompakt.errors import Overflowed
from kompakt.integrations.conversation import (
    AdapterOptions,
    Conversations,
    Converter,
    LiveConversation,
    RequestFrame,
)
from kompakt.integrations.stores import close_stores
from kompakt.model.budget import Budget
from kompakt.session.store import MAX_BRANCHES
from kompakt.session.timeline import CompactionFailure, PinEvent
from kompakt.view.directories import StoreDirectory
from kompakt.view.inspection import Inspection
from kompakt.wire.overflow import Overflow

BUDGET = 4_000


class Plain(Converter[Any]):
    """Messages are wire items; counts the conversions."""

    format = "openai-chat"

    def __init__(self) -> None:
        self.converted = 0

    def to_wire(self, item: Any) -> Sequence[Any]:
        self.converted += 1
        return (item,)

    def from_wire(self, item: Any, original: Any) -> Any:
        return item


def step(number: int) -> list[Any]:
    """Return one call and its result."""
    call = {"id": f"c{number}", "type": "function", "function": {"name": "read_page", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": page(number)},
    ]


def history(steps: int) -> list[Any]:
    return [{"role": "user", "content": TASK}, *(one for number in range(1, steps + 1) for one in step(number))]


def conversation(**options: Any) -> LiveConversation[Any]:
    return LiveConversation("c", Plain(), AdapterOptions(**{"budget": BUDGET, **options}))


def _wrapped(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def _with_status(error: Exception, status: int) -> Exception:
    vars(error)["status_code"] = status
    return error


class TestView:
    def test_a_history_that_fits_comes_back_as_it_is(self) -> None:
        given = history(3)
        view = conversation().view(given, RequestFrame())
        assert [id(one) for one in view] == [id(one) for one in given]

    def test_messages_that_stay_are_the_same_objects(self) -> None:
        given = history(30)
        view = conversation().view(given, RequestFrame())
        assert judge(view) == []
        assert kompakt.count(view, format="openai-chat").total <= BUDGET
        own = {id(one) for one in given}
        assert [one for one in view if one in given and id(one) not in own] == []
        assert view[-1] is given[-1]

    def test_a_step_converts_only_what_is_new(self) -> None:
        made = conversation()
        given = history(30)
        made.view(given, RequestFrame())
        before = made._converter.converted  # type: ignore[attr-defined]
        given += step(31)
        made.view(given, RequestFrame())
        assert made._converter.converted == before + 2  # type: ignore[attr-defined]

    def test_requests_extend_the_one_before_until_the_next_compaction(self) -> None:
        made, given = conversation(), history(20)
        before = made.view(given, RequestFrame())
        given += step(21)
        after = made.view(given, RequestFrame())
        assert after[: len(before)] == before

    def test_equal_messages_in_new_objects_are_recognized(self) -> None:
        """Frameworks such as OpenAI Agents rebuild their input for every call."""
        made = conversation()
        before = made.view(history(20), RequestFrame())
        rebuilt = history(21)
        after = made.view(rebuilt, RequestFrame())
        assert after[: len(before)] == before
        assert after[-1] is rebuilt[-1]

    def test_equal_messages_in_new_objects_are_not_converted_again(self) -> None:
        converter = Plain()
        made = LiveConversation("c", converter, AdapterOptions(budget=BUDGET))
        made.view(history(20), RequestFrame())
        converter.converted = 0
        made.view(history(21), RequestFrame())
        assert converter.converted == 2

    def test_a_framework_may_keep_the_view_as_its_history(self) -> None:
        made, kept = conversation(), history(20)
        for number in range(21, 60):
            kept = [*made.view(kept, RequestFrame()), *step(number)]
            assert judge(kept) == []
        assert "D15838" in made.recall("depot number of fact-2").text

    @pytest.mark.parametrize("removed", [1, 2, 3])
    def test_a_framework_may_change_the_end_of_a_kept_view(self, removed: int) -> None:
        """For example to repeat a step. What the view hides is still there."""
        made = conversation()
        kept = made.view(history(30), RequestFrame())[:-removed]
        kept = kept if kept[-1]["role"] == "tool" else [*kept, *step(30)[1:]]
        after = made.view([*kept, *step(31)], RequestFrame())
        assert judge(after) == [] and after[-1]["content"] == page(31)
        assert "D15838" in made.recall("depot number of fact-2").text

    def test_the_end_of_a_view_without_notes_may_change(self) -> None:
        """Some policies hide messages and write nothing in their place."""
        made = conversation(policy=kompakt.strategies.SlidingWindow(min_keep_groups=3))
        kept = made.view(history(30), RequestFrame())[:-2]
        assert all("[kompakt]" not in str(one) for one in kept)
        made.view([*kept, *step(31)], RequestFrame())
        assert "D15838" in made.recall("depot number of fact-2").text

    def test_an_edited_history_starts_over(self) -> None:
        made = conversation()
        made.view(history(30), RequestFrame())
        other = [{"role": "user", "content": "Another task."}, *step(1)]
        assert made.view(other, RequestFrame()) == other

    def test_system_prompt_and_tools_count(self) -> None:
        reports: list[Report] = []
        made = conversation(on_compaction=reports.append)
        given = history(5)
        assert made.view(given, RequestFrame()) == given
        made.view(given, RequestFrame(system="Follow the rules. " * 700))
        assert len(reports) == 1
        assert reports[0].tokens_before > BUDGET

    def test_a_request_may_have_a_budget_of_its_own(self) -> None:
        smaller = Budget(window=2_500, trigger=2_500, target=2_000)
        view = conversation().view(history(8), RequestFrame(budget=smaller))
        assert kompakt.count(view, format="openai-chat").total <= 2_500

    def test_pins_stay(self) -> None:
        assert PIN in texts(conversation(pins=(PIN,)).view(history(30), RequestFrame()))

    @pytest.mark.parametrize("budget", range(3_600, 4_400, 80))
    def test_pins_count(self, budget: int) -> None:
        """A growing history never exceeds the budget by the text of a pin."""
        talk, items = conversation(pins=(PIN,), budget=budget), history(1)
        for number in range(2, 40):
            items = [*items, *step(number)]
            assert kompakt.count(talk.view(items, RequestFrame()), format="openai-chat").total <= budget

    @pytest.mark.parametrize("budget", [0, -5, "big"])
    def test_a_budget_that_cannot_be_meant_is_refused_at_once(self, budget: Any) -> None:
        with pytest.raises(kompakt.UsageError, match="budget="):
            AdapterOptions(budget=budget)

    def test_pins_must_be_a_list(self) -> None:
        with pytest.raises(kompakt.UsageError, match="not a list"):
            AdapterOptions(pins="one")
        assert AdapterOptions(pins=iter(["one"])).pins == ("one",)

    def test_an_invalid_history_is_repaired_when_it_is_compacted(self) -> None:
        given = history(30)
        del given[4]  # the result of the second call
        assert judge(conversation().view(given, RequestFrame())) == []

    def test_a_store_object_in_a_synchronous_framework_is_a_usage_error(self) -> None:
        store: Any = object.__new__(kompakt.Store)
        with pytest.raises(kompakt.UsageError, match="URL"):
            conversation(store=store).view(history(30), RequestFrame())

    def test_a_message_that_cannot_be_read_is_an_error_every_time(self) -> None:
        made, given = conversation(), [*history(2), {"role": "tool", "content": 3}]
        for _ in range(2):
            with pytest.raises(kompakt.InputError):
                made.view(given, RequestFrame())

    def test_another_model_has_its_own_limit(self) -> None:
        made, given = conversation(), history(8)
        made.view(given, RequestFrame(model="gpt-4o"))
        made.view(given, RequestFrame(model="gpt-4o"), refused=Overflow(source="test", limit=2_000))
        view = made.view(given, RequestFrame(model="gpt-4.1"))
        assert kompakt.count(view, format="openai-chat").total > 2_000

    def test_event_loops_in_two_threads_share_a_conversation(self, tmp_path: Path) -> None:
        made = conversation(store=f"sqlite:///{tmp_path / 'agent.db'}")
        given = history(30)
        with ThreadPoolExecutor(2) as threads:
            runs = [threads.submit(lambda: asyncio.run(made.aview(given, RequestFrame()))) for _ in range(4)]
            views = [run.result(60) for run in runs]
        close_stores()
        assert all(view == views[0] for view in views)


class Copied(Plain):
    """For a framework that copies its messages at every step; counts what is compared and what is written."""

    compared = 8

    def __init__(self) -> None:
        super().__init__()
        self.seen = self.written = 0

    def same(self, items: Sequence[Any], known: Sequence[Any]) -> bool:
        self.seen += len(items)
        return super().same(items, known)

    def from_wire(self, item: Any, original: Any) -> Any:
        self.written += 1
        return super().from_wire(item, original)


class TestCopies:
    """Frameworks such as Google ADK and LiteLLM copy their messages for every request."""

    def make(self, budget: int = BUDGET, **options: Any) -> tuple[LiveConversation[Any], Copied]:
        converter = Copied()
        return LiveConversation("c", converter, AdapterOptions(budget=budget, **options)), converter

    @pytest.mark.parametrize("budget", [BUDGET, 100_000])
    @pytest.mark.parametrize("at", [0, 2, 14, 36, 40])
    def test_a_message_changed_in_the_middle_is_sent_with_the_next_request(self, budget: int, at: int) -> None:
        made, _ = self.make(budget)
        made.view(history(20), RequestFrame())
        given = history(21)
        given[at]["content"] = f"{given[at]['content']}\nfact-new: the harbour is closed"
        view = made.view(given, RequestFrame())
        assert judge(view) == []
        assert view == given if budget > BUDGET else view != given
        assert made.hides == (budget == BUDGET)
        made.view([*given, *step(22)], RequestFrame(budget=Budget.of(BUDGET)))
        assert "harbour" in texts(made.view(given, RequestFrame())) + made.recall("fact-new harbour").text

    def test_a_long_change_is_counted_when_its_turn_comes(self) -> None:
        made, _ = self.make(20_000)
        made.view(history(30), RequestFrame())
        sizes: list[int] = []
        for number in range(31, 41):
            given = history(number)
            given[40]["content"] = page(LARGE)
            given[42]["content"] = page(LARGE + 1)
            sizes.append(kompakt.count(made.view(given, RequestFrame()), format="openai-chat").total)
        assert sizes[0] > 20_000 > sizes[-1]

    def test_a_step_compares_a_part_while_nothing_is_hidden(self) -> None:
        made, converter = self.make(100_000)
        made.view(history(20), RequestFrame())
        for number in range(21, 31):
            converter.seen = converter.converted = 0
            made.view(history(number), RequestFrame())
            assert 0 < converter.seen <= converter.compared
            assert converter.converted == 2

    @pytest.mark.parametrize("removed", [1, 5, 39])
    def test_a_removed_message_is_noticed_at_once(self, removed: int) -> None:
        made, converter = self.make(100_000)
        made.view(history(20), RequestFrame())
        given = history(21)
        del given[removed]
        converter.converted = 0
        assert made.view(given, RequestFrame()) == given
        assert converter.converted >= len(given)

    def test_what_is_saved_and_compacted_is_what_came_in(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'c.db'}"
        made, _ = self.make(20_000, store=url)
        made.view(history(30), RequestFrame())
        given = history(31)
        given[14]["content"] = "fact-new: the harbour is closed"
        made.view(given, RequestFrame())
        made.view([*given, *step(32)], RequestFrame(budget=Budget.of(BUDGET)))
        assert "harbour" in stored(url)
        assert made.hides

    def test_a_rejected_copy_is_shortened_from_what_came_in(self) -> None:
        made, _ = self.make(100_000)
        made.view(history(20), RequestFrame())
        given = history(21)
        given[14]["content"] = "fact-new: the harbour is closed"
        made.view(given, RequestFrame())
        view = made.view(given, RequestFrame(), refused=Overflow(source="test", message="too long", limit=BUDGET))
        assert kompakt.count(view, format="openai-chat").total <= BUDGET
        assert "harbour" in texts(view) + made.recall("fact-new harbour").text

    def test_notes_are_written_once_and_messages_that_stay_are_the_new_copies(self) -> None:
        made, converter = self.make()
        made.view(history(30), RequestFrame())
        made.view(history(30), RequestFrame())
        written = converter.written
        given = history(30)
        view = made.view(given, RequestFrame())
        assert converter.written == written
        own = set(map(id, given))
        assert [id(one) in own for one in view] == ["[kompakt" not in str(one) for one in view]

    def test_results_that_were_shortened_are_compared_at_every_step(self) -> None:
        made, converter = self.make(100_000, admission="firm")
        given = [*history(20), *step(LARGE)]
        made.view(given, RequestFrame())
        assert made.hides
        converter.seen = 0
        again = [*history(20), *step(LARGE)]
        again[-1]["content"] = page(LARGE + 1)
        assert f"fact-{LARGE + 1}" in texts(made.view(again, RequestFrame()))
        assert converter.seen >= len(again)


class TestAdmission:
    def test_a_large_result_is_shortened_once_and_can_be_recalled(self) -> None:
        made = conversation(admission="firm")
        given = [{"role": "user", "content": TASK}, *step(LARGE + 1)]
        view = made.view(given, RequestFrame())
        assert view[:2] == given[:2]
        assert len(view[2]["content"]) < len(given[2]["content"]) // 2
        reference = view[2]["content"].rpartition("Original: ")[2]
        assert "row 1001-200: " in made.recall(f'{reference} "row 1001-200"').text
        later = made.view([*given, *step(LARGE + 2)], RequestFrame())
        assert later[:3] == view

    @pytest.mark.parametrize("recall", [True, False])
    def test_answers_of_recall_are_not_shortened(self, recall: bool) -> None:
        """Also of a tool that is not from the adapter: a history may come from an agent that had it."""
        made = LiveConversation("c", Plain(), AdapterOptions(budget=100_000, admission="firm", recall=recall))
        given = [*history(0), *step(LARGE)]
        given[1]["tool_calls"][0]["function"]["name"] = "recall"
        view = made.view(given, RequestFrame())
        assert view[-1]["content"] == page(LARGE)

    def test_admission_and_compaction_together_stay_within_the_budget(self) -> None:
        made = conversation(admission="gentle")
        given = [{"role": "user", "content": TASK}]
        for number in range(30):
            given += step(LARGE + number if number % 3 == 0 else number)
            view = made.view(given, RequestFrame())
            assert judge(view) == []
            assert kompakt.count(view, format="openai-chat").total <= BUDGET

    def test_another_model_is_shown_the_same_short_result(self) -> None:
        made = conversation(admission="firm")
        given = [{"role": "user", "content": TASK}, *step(LARGE + 1)]
        before = made.view(given, RequestFrame(model="gpt-4o"))
        assert made.view(given, RequestFrame(model="gpt-4.1")) == before

    def test_a_policy_that_always_admits_is_enough(self) -> None:
        given = [{"role": "user", "content": TASK}, *step(LARGE + 1)]
        policy = kompakt.Policy("mine", (), admission=kompakt.admission.FIRM, admits_always=True)
        made = LiveConversation("c", Plain(), AdapterOptions(budget=100_000, policy=policy))
        assert len(made.view(given, RequestFrame())[2]["content"]) < len(given[2]["content"])

    def test_an_unknown_level_is_refused_at_once(self) -> None:
        with pytest.raises(kompakt.UsageError, match="'gentle' or 'firm'"):
            AdapterOptions(admission="hard")


class Pairs(Converter[Any]):
    """A framework that keeps all results of a step in one message, with a note that is not sent."""

    format = "openai-chat"

    def to_wire(self, item: Any) -> Sequence[Any]:
        return item["wires"]

    def from_wire(self, item: Any, original: Any) -> Any:
        return {"wires": [item]}

    def rebuild(self, original: Any, parts: Any) -> Sequence[Any]:
        shown = [original["wires"][at] if one is None else one for at, one in parts.items()]
        return [{"wires": shown, "note": original["note"]}]


class TestParts:
    def test_a_message_with_one_shortened_part_is_rebuilt_from_its_original(self) -> None:
        calls = [
            {"id": f"c{number}", "type": "function", "function": {"name": "read_page", "arguments": "{}"}}
            for number in (1, 2)
        ]
        results = [
            {"role": "tool", "tool_call_id": "c1", "content": "\n".join(map(page, range(20)))},
            {"role": "tool", "tool_call_id": "c2", "content": "short"},
        ]
        given = [
            {"wires": [{"role": "user", "content": TASK}]},
            {"wires": [{"role": "assistant", "content": None, "tool_calls": calls}]},
            {"wires": results, "note": "kept"},
        ]
        view = LiveConversation("c", Pairs(), AdapterOptions(budget=BUDGET)).view(given, RequestFrame())
        assert len(view) == 3
        assert view[1] is given[1]
        assert view[2]["note"] == "kept"
        assert view[2]["wires"][1] is results[1]
        assert len(view[2]["wires"][0]["content"]) < len(results[0]["content"])


FORK = """
import asyncio, os, sys
import kompakt
from tests.integrations.test_conversation import conversation, history
from kompakt.integrations.conversation import RequestFrame
from kompakt.integrations.stores import close_stores

url = sys.argv[1]
conversation(store=url).view(history(30), RequestFrame())
child = os.fork()
if not child:
    made = conversation(store=url)
    made.id = "child"
    made.view(history(30), RequestFrame())
    close_stores()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
close_stores()

async def names():
    store = await kompakt.open_store(url)
    print(sorted([session.id async for session in store.sessions()]))
    await store.close()

asyncio.run(names())
"""


class TestStores:
    def test_concurrent_conversations_open_a_store_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        opened: list[str] = []

        async def slowly(url: str) -> kompakt.Store:
            opened.append(url)
            await asyncio.sleep(0)
            return await kompakt.open_store(url)

        monkeypatch.setattr("kompakt.integrations.stores.open_store", slowly)
        url = f"sqlite:///{tmp_path / 'agent.db'}"
        known = Conversations(Plain(), AdapterOptions(budget=BUDGET, store=url))

        async def both() -> None:
            await asyncio.gather(*(known.get(name).aview(history(30), RequestFrame()) for name in ("a", "b", "c")))

        asyncio.run(both())
        close_stores()
        assert opened == [url]

    def test_a_store_that_could_not_be_opened_is_opened_by_the_next_call(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url = f"sqlite:///{tmp_path / 'agent.db'}"

        async def fails(url: str) -> kompakt.Store:
            raise kompakt.StoreUnavailable("down")

        made = conversation(store=url)
        with monkeypatch.context() as patch:
            patch.setattr("kompakt.integrations.stores.open_store", fails)
            with pytest.raises(kompakt.StoreUnavailable):
                made.view(history(30), RequestFrame())
        assert judge(made.view(history(30), RequestFrame())) == []
        close_stores()

    @pytest.mark.parametrize("mode", ["sync", "async", "object"])
    def test_the_store_records_each_compaction(self, tmp_path: Path, mode: str) -> None:
        """The inspector shows what was compacted, and the stored session shows what the model saw."""
        url = f"sqlite:///{tmp_path / 'agent.db'}"
        reports: list[Report] = []

        async def run() -> list[Any]:
            store = await kompakt.open_store(url) if mode == "object" else None
            made, view = conversation(store=store or url, on_compaction=reports.append, pins=(PIN,)), []
            given = history(1)
            for number in range(2, 40):
                given += step(number)
                view = await made.aview(given, RequestFrame()) if mode != "sync" else made.view(given, RequestFrame())
            if store is not None:
                await store.close()
            return view

        view = asyncio.run(run())
        close_stores()

        async def inspect() -> None:
            async with await kompakt.open_store(url) as store:
                async with Inspection(StoreDirectory(store)) as inspection:
                    (row,) = (await inspection.sessions()).rows
                    detail, growth = await inspection.session("c"), await inspection.growth("c")
                assert row.compactions == len(reports) > 2
                made = [(one.reason, one.tokens_before, one.tokens_after) for one in reports]
                assert [(one.reason, one.tokens_before, one.tokens_after) for one in detail.compactions] == made
                assert [(mark.before, mark.after) for mark in growth.compactions] == [one[1:] for one in made]
                session = await store.session("c")
                assert await session.verify() == []
                shown = await session.export(view="model")
                assert shown == view[: len(shown)] and len(shown) > 3
                kept = [one["content"] for one in await session.export() if one["role"] == "tool"]
                assert kept == [page(number) for number in range(1, len(kept) + 1)] and len(kept) > 30

        asyncio.run(inspect())

    @pytest.mark.parametrize("missing", [4, 38, 40], ids=["hidden", "shown", "last"])
    def test_a_history_that_was_repaired_is_stored_once_as_it_came(self, missing: int) -> None:
        async def run() -> None:
            store = await kompakt.open_store("memory:")
            made, given = conversation(store=store), history(20)
            del given[missing]  # the result of a call
            for number in range(21, 40):
                view = await made.aview(given, RequestFrame())
                assert judge(view) == []
                given += step(number)
            (session,) = [one async for one in store.sessions()]
            kept = await session.export()
            assert kept == given[: len(kept)] and len(kept) > 45
            assert len(await session.compactions()) > 2
            assert await session.verify() == []
            shown = await session.export(view="model")
            assert shown == view[: len(shown)] and len(shown) > 3

        asyncio.run(run())

    def test_pins_are_recorded_once(self) -> None:
        async def run() -> None:
            store = await kompakt.open_store("memory:")
            made, given = conversation(store=store, pins=[PIN]), history(20)
            for number in range(21, 40):
                await made.aview(given, RequestFrame())
                given += step(number)
            restarted = conversation(store=store, pins=[PIN])
            await restarted.aview(given, RequestFrame())
            session = await store.session("c")
            timeline = (await session.reader()).timeline
            assert list(timeline.pins) == [PIN]
            assert len([one for one in timeline.events if isinstance(one.event, PinEvent)]) == 1

        asyncio.run(run())

    def test_what_does_not_fit_is_recorded_once(self) -> None:
        async def run() -> None:
            store = await kompakt.open_store("memory:")
            made = LiveConversation("c", Plain(), AdapterOptions(budget=300, store=store))
            for _ in range(2):
                with pytest.raises(kompakt.DoesNotFit) as caught:
                    await made.aview([{"role": "user", "content": page(LARGE)}], RequestFrame())
            session = await store.session("c")
            (recorded,) = (await session.reader()).timeline.events
            failure = recorded.event
            assert isinstance(failure, CompactionFailure)
            assert failure.reason == str(caught.value)
            assert len(await session.export()) == 1

        asyncio.run(run())

    def test_a_recorded_compaction_is_redacted_like_the_messages(self) -> None:
        async def run() -> None:
            store = await kompakt.open_store("memory:", redact=lambda text: text.replace("depot", "[hidden]"))
            view = await conversation(store=store).aview(history(20), RequestFrame())
            assert "depot" in texts(view[:3])
            session = await store.session("c")
            (made,) = (await session.reader()).timeline.compactions
            frame = await (await session.reader()).frame(made[1])
            assert "depot" not in repr(frame)
            assert "[hidden]" in frame.state.summary

        asyncio.run(run())

    def test_a_compaction_that_cannot_be_recorded_is_made_all_the_same(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def fails(*_: object, **__: object) -> bool:
            raise kompakt.StoreUnavailable("the disk is full")

        monkeypatch.setattr("kompakt.integrations.conversation.record_compaction", fails)
        reports: list[Report] = []

        async def run() -> None:
            store = await kompakt.open_store("memory:")
            view = await conversation(store=store, on_compaction=reports.append).aview(history(20), RequestFrame())
            assert kompakt.count(view, format="openai-chat").total <= BUDGET
            assert await (await store.session("c")).export() == history(20)

        asyncio.run(run())
        assert len(reports) == 1
        assert "not recorded: the disk is full" in caplog.text

    def test_a_session_that_was_compacted_by_hand_is_continued(self) -> None:
        """A compaction by a person adds rows of its own between the messages."""

        async def run() -> None:
            store = await kompakt.open_store("memory:")
            made, given = conversation(store=store), history(20)
            await made.aview(given, RequestFrame())
            session = await store.session("c")
            assert (await session.compact(3_000, reason="by hand")).changed
            for number in range(21, 40):
                given += step(number)
                view = await made.aview(given, RequestFrame())
            reasons = [one.reason for one in await session.compactions()]
            assert reasons[1] == "by hand" and len(reasons) > 3
            assert await session.verify() == []
            shown = await session.export(view="model")
            assert shown == view[: len(shown)]

        asyncio.run(run())

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
    def test_a_forked_process_opens_stores_of_its_own(self, tmp_path: Path) -> None:
        root = Path(__file__).parents[2]
        done = subprocess.run(
            [sys.executable, "-c", FORK, f"sqlite:///{tmp_path / 'agent.db'}"],
            cwd=root,
            env={**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout.strip() == "['c', 'child']", done.stderr

    def test_recall_reads_a_conversation_of_another_process_from_the_store(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'agent.db'}"
        conversation(store=url).view(history(30), RequestFrame())
        restarted = conversation(store=url)
        assert "D15838" in restarted.recall("depot number of fact-2").text
        assert "D15838" in asyncio.run(restarted.arecall("depot number of fact-2")).text
        close_stores()

    def test_recall_never_reads_a_conversation_with_a_similar_name(self, tmp_path: Path) -> None:
        """A history that diverges is saved under another name, which must not be that of another conversation."""
        url = f"sqlite:///{tmp_path / 'agent.db'}"
        known = Conversations(Plain(), AdapterOptions(budget=BUDGET, store=url))
        for start in (0, 100):
            known.get("user-7").view([*history(0), *history(start + 30)[2 * start + 1 :]], RequestFrame())
        close_stores()
        others = [name for name in sessions(url) if name != "user-7"]
        assert len(others) == 1
        for name in ("user-7-2", *others):
            similar = known.get(name)
            similar.view(history(0), RequestFrame())
            assert not similar.recall("D807738")
        close_stores()

    def test_recall_of_a_name_that_is_not_unique_reads_only_its_own_session(self, tmp_path: Path) -> None:
        """Other people's conversations may start with the same message, also in another process."""
        url = f"sqlite:///{tmp_path / 'agent.db'}"
        options = AdapterOptions(budget=BUDGET, store=url)
        mine = Conversations(Plain(), options).get("hi", id_is_unique=False)
        mine.view(history(30), RequestFrame())
        other = Conversations(Plain(), options).get("hi", id_is_unique=False)
        other.view(history(2), RequestFrame())
        assert not other.recall("D158380")
        assert not asyncio.run(other.arecall("D158380"))
        other.view([*history(0), *history(130)[201:]], RequestFrame())
        assert sorted(sessions(url)) == ["hi", "hi~2"]
        assert not other.recall("D158380")
        assert mine.recall("D158380") and other.recall("D871090")
        other.view([*history(0), *step(500)], RequestFrame())
        assert not other.recall("D871090"), "the name continues with other messages"
        close_stores()

    def test_recall_reads_a_session_that_got_a_name_of_its_own(self, tmp_path: Path) -> None:
        """Too many conversations have the same name."""
        url = f"sqlite:///{tmp_path / 'agent.db'}"
        for number in range(MAX_BRANCHES):
            first = {"role": "user", "content": f"Conversation {number}: {TASK}"}
            conversation(store=url).view([first, *history(12)[1:]], RequestFrame())
        last = LiveConversation("c", Plain(), AdapterOptions(budget=BUDGET, store=url), id_is_unique=False)
        last.view(history(30), RequestFrame())
        last._memory, last._context = None, None  # as after a cut of the memory
        assert "D15838" in last.recall("depot number of fact-2").text
        close_stores()

    def test_any_number_of_conversations_of_one_name_is_saved(self, tmp_path: Path) -> None:
        """Names that are made from the first messages are not unique."""
        url = f"sqlite:///{tmp_path / 'agent.db'}"
        for number in range(MAX_BRANCHES + 2):
            first = {"role": "user", "content": f"Conversation {number}: {TASK}"}
            conversation(store=url).view([first, *history(12)[1:]], RequestFrame())
        assert len(sessions(url)) == MAX_BRANCHES + 2

    def test_recall_reads_a_store_that_is_given_as_an_object(self, tmp_path: Path) -> None:
        async def run() -> str:
            store = await kompakt.open_store(f"sqlite:///{tmp_path / 'agent.db'}")
            await conversation(store=store).aview(history(30), RequestFrame())
            found = await conversation(store=store).arecall("depot number of fact-2")
            await store.close()
            return found.text

        assert "D15838" in asyncio.run(run())


class TestSend:
    def test_a_rejected_view_is_shortened_once(self) -> None:
        sent: list[list[Any]] = []

        def call(view: list[Any]) -> str:
            sent.append(view)
            if len(sent) == 1:
                raise TooLong(BUDGET // 2)
            return "done"

        made, given = conversation(), history(8)
        assert made.send(given, RequestFrame(), call) == "done"
        sizes = [kompakt.count(view, format="openai-chat").total for view in sent]
        assert sizes[1] < sizes[0]
        assert judge(sent[1]) == []

    def test_what_the_provider_accepts_is_remembered(self) -> None:
        made, given = conversation(), history(8)
        first = made.view(given, RequestFrame())
        made.view(given, RequestFrame(), refused=Overflow(source="test", limit=2_000))
        given += step(9)
        later = made.view(given, RequestFrame())
        assert (
            kompakt.count(later, format="openai-chat").total <= 2_000 < kompakt.count(first, format="openai-chat").total
        )

    def test_a_second_rejection_is_a_typed_error(self) -> None:
        def call(view: list[Any]) -> str:
            raise TooLong(BUDGET)

        with pytest.raises(Overflowed) as caught:
            conversation().send(history(8), RequestFrame(), call)
        assert isinstance(caught.value.__cause__, TooLong)

    def test_a_rejection_of_what_the_framework_sent_itself_is_the_first(self) -> None:
        made, sent = conversation(), list[Any]()
        given = history(8)
        first = made.view(given, RequestFrame())

        async def call(view: list[Any]) -> str:
            sent.append(view)
            raise TooLong(BUDGET)

        with pytest.raises(Overflowed):
            asyncio.run(made.asend(given, RequestFrame(), call, refused=Overflow(source="test", message="too long")))
        assert len(sent) == 1
        assert kompakt.count(sent[0], format="openai-chat").total < kompakt.count(first, format="openai-chat").total

    def test_an_error_that_hides_an_overflow_is_not_one(self) -> None:
        def call(view: list[Any]) -> str:
            try:
                raise TooLong(BUDGET)
            except TooLong:
                raise KeyError("mine") from None

        with pytest.raises(KeyError, match="mine"):
            conversation().send(history(8), RequestFrame(), call)

    @pytest.mark.parametrize(
        "error",
        [
            ValueError("Error: context_length_exceeded"),
            ValueError("prompt is too long: 4,100 tokens > 4,000 maximum"),
            RuntimeError("Input is too long for requested model."),
            _wrapped(RuntimeError("the model could not be called"), ValueError("prompt is too long")),
            _wrapped(KeyError("text"), _wrapped(RuntimeError("no answer"), TooLong(BUDGET))),
            _with_status(Exception("This model's maximum context length is 4000 tokens."), 400),
            _with_status(Exception("Error code: 400"), 400),
        ],
        ids=repr,
    )
    def test_an_overflow_is_recognized_by_its_text_and_in_causes(self, error: Exception) -> None:
        made, sizes = conversation(), list[int]()

        def call(view: list[Any]) -> str:
            sizes.append(kompakt.count(view, format="openai-chat").total)
            if len(sizes) == 1:
                raise error
            return "done"

        assert made.send(history(30), RequestFrame(), call) == "done"
        assert sizes[1] < sizes[0]

    @pytest.mark.parametrize(
        "error",
        [
            ValueError("too many tokens, please wait: rate limit"),
            _with_status(Exception("temperature must be below 2"), 400),
            _with_status(Exception("prompt is too long"), 429),
        ],
        ids=repr,
    )
    def test_other_errors_of_a_provider_pass(self, error: Exception) -> None:
        def call(view: list[Any]) -> str:
            raise error

        with pytest.raises(type(error)) as caught:
            conversation().send(history(3), RequestFrame(), call)
        assert caught.value is error

    def test_other_errors_pass(self) -> None:
        def call(view: list[Any]) -> str:
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            conversation().send(history(8), RequestFrame(), call)


class TestConversations:
    def test_ids_keep_conversations_apart(self) -> None:
        known = Conversations(Plain(), AdapterOptions(budget=BUDGET))
        one, other = known.get("one"), known.get("other")
        assert one is known.get("one")
        one.view(history(30), RequestFrame())
        other.view([{"role": "user", "content": "Hello"}], RequestFrame())
        assert one.recall("depot number of fact-2")
        assert not other.recall("depot number of fact-2")

    def test_the_messages_of_all_conversations_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Runs end, but most frameworks do not say so."""
        monkeypatch.setattr("kompakt.integrations.conversation.MAX_MESSAGES", 100)
        made = Conversations(Plain(), AdapterOptions(budget=BUDGET))
        for number in range(6):
            made.get(str(number)).view(history(20), RequestFrame())
        assert [made.find(str(number)) is not None for number in range(6)] == [False, False, False, True, True, True]

    def test_a_conversation_is_known_after_its_first_use(self) -> None:
        made = Conversations(Plain(), AdapterOptions(budget=BUDGET))
        assert made.find("a") is None
        assert made.get("a") is made.find("a")


PACKAGES = {
    "adk": "google.adk",
    "agent_framework": "agent_framework",
    "autogen": "autogen_core",
    "claude_agent_sdk": "claude_agent_sdk",
    "crewai": "crewai.hooks",
    "haystack": "haystack",
    "langchain": "langchain",
    "litellm": "litellm",
    "llama_index": "llama_index",
    "openai_agents": "agents",
    "pydantic_ai": "pydantic_ai",
    "smolagents": "smolagents",
    "strands": "strands",
}


class TestMatrix:
    def test_every_framework_runs_the_contract(self) -> None:
        assert set(matrix.FRAMEWORKS) | {"claude_agent_sdk"} == set(PACKAGES)
        for name in matrix.FRAMEWORKS:
            suite = Path(__file__).parent / f"suite_{name}.py"
            assert f'(AdapterContract, framework="{name}")' in suite.read_text()

    def test_every_part_that_is_left_out_is_known(self) -> None:
        for framework in matrix.FRAMEWORKS.values():
            assert set(framework.without) <= set(matrix.CHECKS)
        assert set(TESTS) | set(matrix.MODES) == set(matrix.CHECKS)
        names = {name for names in TESTS.values() for name in names}
        assert [name for name in names if not callable(getattr(AdapterContract, name, None))] == []

    def test_the_guide_shows_the_table(self) -> None:
        assert matrix.PAGE.read_text() == matrix.page(), "run python -m tests.integrations.matrix"


class TestMissingFrameworks:
    def test_every_adapter_has_an_extra_requirements_and_a_page(self) -> None:
        root = Path(__file__).parents[2]
        extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert {name.replace("_", "-") for name in PACKAGES} <= set(extras)
        for name in PACKAGES:
            assert (root / "src" / "kompakt" / "integrations" / f"{name}.py").exists()
            assert (root / "tests" / "integrations" / "requirements" / f"{name}.txt").exists()
            assert (root / "docs" / "integrations" / f"{name}.md").exists()

    @pytest.mark.parametrize("name", sorted(PACKAGES))
    def test_an_adapter_without_its_framework_names_the_extra(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, PACKAGES[name], None)
        monkeypatch.delitem(sys.modules, f"kompakt.integrations.{name}", raising=False)
        with pytest.raises(ImportError, match=rf"install -e '\S+\[{name.replace('_', '-')}\]'"):
            importlib.import_module(f"kompakt.integrations.{name}")
