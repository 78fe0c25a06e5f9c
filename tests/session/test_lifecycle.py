"""The lifecycle of a compaction: requested, prepared, committed; or failed, and then nothing else has changed."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest
from tests.session.builders import answered, asked, called, fresh, run, said, text, turn, turns

import kompakt
from kompakt.engine.compaction.report import on_compaction
from kompakt.engine.pivot.pivot import Material
from kompakt.engine.strategies import Truncation
from kompakt.model.phrases import RESUME_PROMPT
from kompakt.session import compaction
from kompakt.session.session import Session
from kompakt.session.timeline import CompactionFailure
from kompakt.store.memory import MemoryRecords

BUDGET = 900


async def started(count: int = 8, records: MemoryRecords | None = None, **options: Any) -> Session:
    """Return a session of some turns, well over the budget."""
    session = await fresh(records, **options)
    await session.save(turns(count), format="openai-chat")
    return session


async def seen(session: Session) -> str:
    """Return what the model sees, as text."""
    return text(await session.export(view="model"))


class Telling:
    """A summarizer that returns answers from a list and records its input."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)
        self.given: list[Material] = []

    async def __call__(self, material: Material) -> str:
        self.given.append(material)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class TestRequests:
    def test_a_request_survives_and_is_answered(self) -> None:
        """The next object of the session finds the request and answers it once."""

        async def work() -> None:
            records = MemoryRecords()
            seq = await (await started(records=records)).request_compaction(instructions="keep the names")
            again, telling = await fresh(records), Telling("All parts were looked at.")
            assert [marker.instructions for marker in (await again.pending()).values()] == ["keep the names"]
            done = await again.compact(1_000_000, summarizer=telling, instructions="be short")
            assert done.changed
            assert telling.given[0].instructions == "keep the names\nbe short"
            assert await again.pending() == {}
            assert not (await again.compact(1_000_000)).changed
            assert seq == (await again.head()).messages + 1

        run(work())

    def test_only_an_automatic_compaction_adds_a_resume_message(self) -> None:
        """The model sees the message once, and it is not part of the conversation."""

        async def work() -> None:
            session, manual = await started(), await started()
            before = text(await session.export())
            assert (await session.compact(BUDGET)).changed
            assert (await seen(session)).count(RESUME_PROMPT) == 1
            assert text(await session.export()) == before
            assert (await session.head()).turn == 8
            await manual.request_compaction()
            assert (await manual.compact(BUDGET)).changed
            assert RESUME_PROMPT not in await seen(manual)

        run(work())

    def test_no_resume_message_between_a_call_and_its_result(self) -> None:
        """During a step the agent continues by itself: the result follows its call."""

        async def work() -> None:
            session = await started()
            await session.append([called("late")], format="openai-chat")
            assert (await session.compact(BUDGET)).changed
            await session.append([answered("late")], format="openai-chat")
            shown = await session.project()
            assert shown.repairs == ()
            assert RESUME_PROMPT not in text(shown.payload)

        run(work())

    def test_within_budget_nothing_changes(self) -> None:
        """Within budget a compaction writes nothing."""

        async def work() -> None:
            session = await started()
            before = await session.head()
            done = await session.compact(1_000_000)
            assert (done.id, done.changed, done.tokens_before) == (None, False, done.tokens_after)
            assert await session.head() == before

        run(work())

    def test_reports_name_the_session(self) -> None:
        async def work() -> None:
            session, heard = await started(), list[str | None]()
            stop = on_compaction(lambda report: heard.append(report.session))
            try:
                compacted = await session.compact(BUDGET)
                applied = await session.apply(Truncation(target=300))
            finally:
                stop()
            replaced = await session.replace([{"role": "user", "content": "Go on."}], format="openai-chat")
            for done in (compacted, applied, replaced):
                assert done.changed and done.report is not None and done.report.session == session.id
            assert heard == [session.id] * 2

        run(work())


class TestSummarizer:
    @pytest.mark.parametrize(
        "answer", [ValueError("no answer"), "", "too long " * 5000], ids=["raises", "empty", "long"]
    )
    def test_a_failing_summarizer_leaves_the_ledger(self, answer: str | Exception) -> None:
        """Three attempts, each failure is recorded, and the pivot contains the ledger."""

        async def work() -> None:
            session, plain, telling = await started(), await started(), Telling(answer)
            done = await session.compact(2 * BUDGET, summarizer=telling)
            assert done.changed
            assert len(telling.given) == 3
            assert len((await session.compactions())[0].failures) == 3
            assert done.report is not None
            assert "pytest tests/part_7.py -k step_0" in done.report.notes
            await plain.compact(2 * BUDGET)
            assert await seen(session) == await seen(plain)
            assert await session.verify() == []

        run(work())

    def test_a_retried_summary_is_used(self) -> None:
        """The second answer is used, the failure of the first is recorded."""

        async def work() -> None:
            session = await started()
            await session.compact(BUDGET, summarizer=Telling(ValueError("busy"), "Everything was looked at."))
            assert "Everything was looked at." in await seen(session)
            assert [*(await session.compactions())[0].failures] == ["ValueError('busy')"]

        run(work())

    def test_any_error_text_of_a_summarizer_is_stored_safely(self) -> None:
        """A long error is recorded shortened."""

        async def work() -> None:
            session = await started()
            await session.compact(BUDGET, summarizer=Telling(ValueError("x" * 100_000)))
            assert await session.verify() == []
            assert all(len(one) <= 1_000 for one in (await session.compactions())[0].failures)

        run(work())

    def test_the_second_summary_includes_the_first(self) -> None:
        """The summarizer gets its earlier summary; facts of the first part are still in the ledger."""

        async def work() -> None:
            session, telling = await started(), Telling("First words.", "Second words.")
            await session.compact(BUDGET, summarizer=telling)
            for number in range(9, 17):
                await session.append(turn(number), format="openai-chat")
            done = await session.compact(BUDGET, summarizer=telling)
            assert done.changed
            assert "First words." in (telling.given[1].earlier or "")
            shown = await seen(session)
            assert "Second words." in shown
            assert "First words." not in shown
            assert "tests/part_1.py" in (await full_text(session))
            assert not {message.text for message in telling.given[1].messages} & {"Part 1 is done."}

        run(work())


async def full_text(session: Session) -> str:
    """Return the ledger that the newest compaction stores for the next."""
    reader = await session.reader()
    assert reader.timeline.pivot is not None
    return (await reader.frame(reader.timeline.pivot)).state.ledger


class TestFailures:
    def test_a_compaction_that_cannot_fit_records_only_the_failure(self) -> None:
        """The projection is unchanged, and a large enough budget has nothing to do."""

        async def work() -> None:
            session = await started()
            before = await seen(session)
            for _ in range(2):
                with pytest.raises(kompakt.DoesNotFit):
                    await session.compact(20)
            assert await seen(session) == before
            timeline = (await session.reader()).timeline
            assert [type(one.event) for one in timeline.events] == [CompactionFailure, CompactionFailure]
            assert await session.pending() == {}
            assert not (await session.compact(1_000_000)).changed
            assert await session.verify() == []

        run(work())

    def test_a_manual_request_that_cannot_fit_stays_pending(self) -> None:
        """A manual request is not dropped."""

        async def work() -> None:
            session = await started()
            await session.request_compaction()
            with pytest.raises(kompakt.DoesNotFit):
                await session.compact(20)
            assert len(await session.pending()) == 1
            assert (await session.compact(BUDGET)).changed

        run(work())


class Slow:
    """A summarizer that waits for an event."""

    def __init__(self) -> None:
        self.asked, self.speak = asyncio.Event(), asyncio.Event()
        self.times = 0

    async def __call__(self, material: Material) -> str:
        self.times += 1
        self.asked.set()
        await self.speak.wait()
        return "Slowly written."


class TestFailureReports:
    @pytest.mark.parametrize("own", [False, True])
    def test_failures_are_in_the_log_the_report_and_the_list(self, own: bool, caplog: pytest.LogCaptureFixture) -> None:
        """Whether the summarizer is the caller's or the policy's own, it is retried and every failure is reported."""
        telling = Telling("", RuntimeError("no connection"), "All parts were looked at.")
        options: dict[str, Any] = {"summarizer": telling}
        if own:
            options = {"policy": kompakt.Policy("own", (kompakt.strategies.Summarization(telling),))}

        async def work() -> None:
            session = await started()
            done = await session.compact(BUDGET, **options)
            assert "All parts were looked at." in await seen(session)
            assert done.report is not None and len(done.report.failures) == 2
            assert (await session.compactions())[-1].failures == done.report.failures
            assert "no connection" in done.report.failures[1]

        with caplog.at_level(logging.WARNING, "kompakt.compaction"):
            run(work())
        assert caplog.text.count("summarizer failed") == 2

    def test_a_strategy_that_raises_is_listed(self) -> None:
        async def broken(context: Any) -> bool:
            raise RuntimeError("not today")

        async def work() -> None:
            session = await started()
            policy = kompakt.Policy("own", (broken, kompakt.strategies.Summarization()))
            await session.compact(BUDGET, policy=policy)
            assert any("not today" in one for one in (await session.compactions())[-1].failures)

        run(work())


class Counted(MemoryRecords):
    """Counts reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    async def rows(self, *args: Any, **options: Any) -> Any:
        self.calls["rows"] += 1
        return await super().rows(*args, **options)

    async def events(self, *args: Any, **options: Any) -> Any:
        self.calls["events"] += 1
        return await super().events(*args, **options)

    async def commit(self, *args: Any, **options: Any) -> Any:
        self.calls["commit"] += 1
        return await super().commit(*args, **options)


class TestCost:
    @pytest.mark.parametrize("earlier", [0, 1])
    def test_an_automatic_compaction_reads_once_and_commits_once(
        self, earlier: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The shown session is read and parsed once, and marker, summary and record are one batch."""

        async def work() -> None:
            records = Counted()
            session = await started(records=records)
            for number in range(earlier):
                assert (await session.compact(BUDGET)).changed
                for more in range(4):
                    await session.append(turn(20 + 10 * number + more))
            session = await fresh(records)
            made = 0
            resumed = compaction.resume_session

            async def counted(*args: Any, **options: Any) -> Any:
                nonlocal made
                made += 1
                return await resumed(*args, **options)

            monkeypatch.setattr(compaction, "resume_session", counted)
            records.calls.clear()
            done = await session.compact(BUDGET)
            assert done.changed and made == 1
            assert records.calls == {"rows": 1, "commit": 1, **({"events": 1} if earlier else {})}
            assert await session.pending() == {}
            assert [account.auto for account in await session.compactions()] == [True] * (earlier + 1)
            assert await session.verify() == []

        run(work())

    def test_a_compaction_with_a_summarizer_reads_once(self) -> None:
        """Its marker is durable before the wait: two commits, one read."""

        async def work() -> None:
            records = Counted()
            await started(records=records)
            session = await fresh(records)
            records.calls.clear()
            assert (await session.compact(BUDGET, summarizer=Telling("All parts were looked at."))).changed
            assert records.calls == {"rows": 1, "commit": 2}
            assert await session.pending() == {} and await session.verify() == []

        run(work())


class TestConcurrency:
    def test_messages_appended_during_a_compaction_are_shown(self) -> None:
        """Messages appended while the summarizer runs follow its summary."""

        async def work() -> None:
            records, slow = MemoryRecords(), Slow()
            session = await started(records=records)
            working = asyncio.create_task(session.compact(BUDGET, summarizer=slow))
            await slow.asked.wait()
            other = await fresh(records)
            await other.append([asked("One more thing."), called("c"), answered("c"), said("Done too.")])
            slow.speak.set()
            assert (await working).changed
            shown = await seen(other)
            assert shown.index("Slowly written.") < shown.index("One more thing.") < shown.index("Done too.")
            assert shown.count("One more thing.") == 1
            assert await session.verify() == []
            assert text(await session.export()).count("One more thing.") == 1

        run(work())

    def test_a_step_that_started_during_a_compaction_is_not_interrupted(self) -> None:
        """A call that is appended while the summarizer runs keeps its result after it."""

        async def work() -> None:
            records, slow = MemoryRecords(), Slow()
            session = await started(records=records)
            working = asyncio.create_task(session.compact(BUDGET, summarizer=slow))
            await slow.asked.wait()
            await (await fresh(records)).append([asked("One more thing."), called("c")])
            slow.speak.set()
            await working
            await session.append([answered("c")])
            assert (await session.project()).repairs == ()

        run(work())

    def test_a_revert_during_a_compaction_restarts_it(self) -> None:
        """A compaction prepared for reverted messages is not committed."""

        async def work() -> None:
            records, slow = MemoryRecords(), Slow()
            session = await started(records=records)
            await session.request_compaction()
            await session.append(turn(9))
            working = asyncio.create_task(session.compact(BUDGET, summarizer=slow))
            await slow.asked.wait()
            await (await fresh(records)).revert(8)
            slow.speak.set()
            assert (await working).changed
            assert slow.times == 2
            shown = await seen(session)
            assert "Request 9" not in shown
            assert "Slowly written." in shown
            assert await session.verify() == []

        run(work())

    def test_two_concurrent_compactions_make_one(self) -> None:
        """The second waits and uses the result of the first."""

        async def work() -> None:
            records, slow = MemoryRecords(), Slow()
            await started(records=records)
            slow.speak.set()
            sessions = [await fresh(records) for _ in range(5)]
            done = await asyncio.gather(*(one.compact(BUDGET, summarizer=slow) for one in sessions))
            assert len({one.id for one in done}) == 1
            assert [one.changed for one in done].count(True) == 1
            assert slow.times == 1
            assert len(await sessions[0].compactions()) == 1

        run(work())

    def test_a_cancelled_compaction_leaves_the_request(self) -> None:
        """The lock is free at once, and the request can be answered later."""

        async def work() -> None:
            session, slow = await started(), Slow()
            working = asyncio.create_task(session.compact(BUDGET, summarizer=slow))
            await slow.asked.wait()
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert len(await session.pending()) == 1
            assert (await session.compact(BUDGET, patience=1)).changed
            assert await session.verify() == []

        run(work())
