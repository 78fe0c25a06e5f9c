"""History providers outside of agents: what is stored, in which form, and their failures."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.session.builders import FORMATS, run, text

import kompakt
from kompakt.engine.context.context import Context
from kompakt.engine.pivot.pivot import Material
from kompakt.model.messages import Message, Text, ToolCall, ToolResult
from kompakt.session.providers import HistoryProvider, Run
from kompakt.session.session import Session
from kompakt.session.store import Store
from kompakt.store.memory import MemoryRecords
from kompakt.strategies import SlidingWindow, Summarization, Truncation

WORDS = "We looked at the parser and fixed the lexer."


def talk(steps: int = 8, start: int = 0) -> Run:
    """Make a run: a request, steps with a call and a result, an answer."""
    responses: list[Message] = []
    for step in range(start, start + steps):
        responses.append(Message("assistant", (ToolCall(f"c{step}", "read_file", {"path": f"src/part_{step}.py"}),)))
        output = "\n".join(f"line {n} of part {step}" for n in range(60))
        responses.append(Message("tool", (ToolResult(f"c{step}", output),)))
    responses.append(Message("assistant", (Text(f"Done with {start + steps} parts."),)))
    return Run("s", [Message("user", (Text(f"Read the parts from {start} on."),))], responses=responses)


def provider(**options: Any) -> tuple[HistoryProvider, Store]:
    store = Store(MemoryRecords())
    return HistoryProvider(store, **options), store


async def said(store: Store) -> list[Message]:
    session = await store.session("s")
    assert await session.verify() == []
    return list(kompakt.parse(await session.export(view="full"), (await session.head()).format))


async def shown(store: Store) -> str:
    return text((await (await store.session("s")).project()).payload)


async def narrate(material: Material) -> str:
    return f"{WORDS} It started with {material.messages[0].calls[0].input}."


class TestBeforeWrite:
    @pytest.mark.parametrize("summarizer", [None, narrate])
    def test_a_summary_is_stored_with_the_remaining_messages(self, summarizer: Any) -> None:
        """Excluded messages are not stored, but the summary that replaces them is; their references are listed."""

        async def work() -> None:
            made, store = provider(before_write=Summarization(summarizer, target=600), store_excluded=False)
            one = talk()
            await made.after_run(one)
            stored = list((await (await store.session("s")).project()).history)
            texts = [message.text for message in stored]
            assert texts[0] == "Read the parts from 0 on." and texts[-1] == "Done with 8 parts."
            summary = next(message for message in stored if message.is_summary)
            assert "part_0.py" in summary.text
            assert (WORDS in summary.text) == (summarizer is not None)
            gone = len(one.inputs) + len(one.responses) - sum(not m.is_summary for m in stored) + 1
            assert len(one.unrecoverable) >= gone > 2

        run(work())

    def test_the_next_summary_includes_the_earlier_one(self) -> None:
        """Several runs: each stored summary is there, and so is every request."""

        async def work() -> None:
            made, store = provider(before_write=Summarization(target=600), store_excluded=False)
            for start in (0, 8, 16):
                await made.after_run(talk(start=start))
            seen = await shown(store)
            for start in (0, 8, 16):
                assert f"Read the parts from {start} on." in seen and f"part_{start}.py" in seen

        run(work())

    @pytest.mark.parametrize("format", FORMATS)
    def test_stored_messages_are_valid_in_every_format(self, format: str) -> None:
        async def work() -> None:
            made, store = provider(before_write=Summarization(target=600), store_excluded=False)
            for start in (0, 8):
                one = talk(start=start)
                responses = kompakt.parse(kompakt.render(one.responses, format), format)
                await made.after_run(Run("s", one.inputs, format=format, responses=list(responses)))
            session = await store.session("s")
            payload = (await session.project()).payload
            assert kompakt.check(payload, format, resting=True) == []
            assert "part_0.py" in text(payload) and "part_8.py" in text(payload)

        run(work())

    @pytest.mark.parametrize("summarizer", [None, narrate])
    def test_with_store_excluded_the_model_still_sees_the_summary(self, summarizer: Any) -> None:
        """All messages are stored; a summary replaces what the strategy excluded, and undo shows it again."""

        async def work() -> None:
            made, store = provider(before_write=Summarization(summarizer, target=600))
            runs = [talk(start=start) for start in (0, 8)]
            for one in runs:
                await made.after_run(one)
                assert one.unrecoverable == []
            assert len(await said(store)) == sum(len(one.inputs) + len(one.responses) for one in runs)
            seen = await shown(store)
            assert "part_0.py" in seen and "part_9.py" in seen and "line 30 of part 1" not in seen
            assert seen.count(WORDS) == (2 if summarizer is not None else 0)
            session = await store.session("s")
            await session.undo()
            assert "line 30 of part 9" in await shown(store)

        run(work())

    def test_a_strategy_that_raises_changes_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        async def broken(context: Context) -> bool:
            context.exclude(context.droppable()[0], reason="half done")
            raise RuntimeError("no such thing")

        async def work() -> None:
            made, store = provider(before_write=broken, store_excluded=False)
            one = talk()
            await made.after_run(one)
            assert len(await said(store)) == len(one.inputs) + len(one.responses)
            assert one.unrecoverable == []

        with caplog.at_level(logging.WARNING):
            run(work())
        assert "no such thing" in caplog.text


class TestCompaction:
    def test_a_budget_that_is_too_tight_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        async def work() -> None:
            made, store = provider(budget=10)
            await made.after_run(talk())
            assert len(await said(store)) == 18
            with pytest.raises(kompakt.DoesNotFit):
                await made.compact("s")

        with caplog.at_level(logging.WARNING):
            run(work())
        assert "not compacted" in caplog.text

    def test_a_run_without_messages_is_not_an_error(self) -> None:
        async def work() -> None:
            made, store = provider(budget=1_000, store_inputs=False, store_responses=False)
            await made.after_run(talk())
            assert not await (await store.session("s")).exists()

        run(work())

    @pytest.mark.parametrize("tokenizer", [len, kompakt.Counter(count=len)])
    def test_the_given_tokenizer_is_used(self, tokenizer: Any) -> None:
        """A session of about 4,000 tokens, or 14,000 characters, under a budget of 8,000."""

        async def work() -> None:
            plain, store = provider(budget=8_000)
            await plain.after_run(talk())
            session = await store.session("s")
            assert await session.compactions() == []
            counted = HistoryProvider(store, budget=8_000, tokenizer=tokenizer)
            done = await counted.compact("s")
            assert done.changed and done.tokens_before > 8_000 >= done.tokens_after
            await session.undo()
            assert not (await plain.compact("s")).changed
            assert (await plain.compact("s", tokenizer=tokenizer)).changed

        run(work())

    def test_a_strategy_instead_of_a_policy(self) -> None:
        """For the provider or for one call; with a budget or with its own target."""

        async def work() -> None:
            window = SlidingWindow(min_keep_groups=2, when=lambda context: True)
            made, store = provider(compaction=window)
            await made.after_run(talk())
            session = await store.session("s")
            assert [one.policy for one in await session.compactions()] == ["SlidingWindow"]
            other, store = provider()
            await other.after_run(talk())
            done = await other.compact("s", strategy=Truncation(), budget=1_000)
            assert done.changed and done.tokens_after <= 1_000
            assert done.report is not None and done.report.policy == "Truncation"

        run(work())


class TestFormats:
    @pytest.mark.parametrize("format", FORMATS)
    def test_a_session_in_another_format_is_translated(self, format: str) -> None:
        """A run in one format is stored in a session of another format and read in its own."""

        async def work() -> None:
            made, store = provider(store_added=("time",))
            session = await store.session("s")
            await session.append(
                [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi."}], format="openai-chat"
            )
            one = Run("s", [Message("user", (Text("What time is it?"),))], format=format)
            await made.before_run(one)
            assert [message.text for message in one.history] == ["Hello.", "Hi."]
            assert kompakt.check(kompakt.render(one.history, format), format, resting=True) == []
            one.add("time", [Message("user", (Text("It is noon."),))])
            steps = [ToolCall("c1", "clock", {}), ToolResult("c1", "12:00", name="clock")]
            said = [Message("assistant", steps[:1]), Message("tool", steps[1:]), Message("assistant", (Text("Noon."),))]
            one.responses = list(kompakt.parse(kompakt.render(said, format), format))
            await made.after_run(one)
            await self.checked(session)

        run(work())

    @staticmethod
    async def checked(session: Session) -> None:
        assert (await session.head()).format == "openai-chat"
        exported = await session.export(view="full")
        assert kompakt.check(exported, "openai-chat", resting=True) == []
        shown = (await session.project()).history
        assert [one.text for one in shown if one.source_id == "time"] == ["It is noon."]
        assert [result.output for one in shown for result in one.results] == ["12:00"]
