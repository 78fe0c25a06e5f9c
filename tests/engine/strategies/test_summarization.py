"""Summaries: when they are taken, when not, and how they fold; strategies of the caller's own beside them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from tests.engine.sessions import LONG, chat, rounds, run, session
from tests.histories import plain
from tests.histories.messages import assistant, user
from tests.judges import FORMATS, judge

import kompakt
from kompakt import Message
from kompakt.engine.context.context import Context
from kompakt.engine.ledger.items import HEADING
from kompakt.engine.pivot import pivot
from kompakt.engine.pivot.pivot import Material
from kompakt.engine.strategies import Shortening, Summarization, Truncation
from kompakt.model.phrases import PIVOT_QUESTION

KEYS = {"openai-responses": "input", "gemini": "contents"}


class TestSummarization:
    def test_an_async_summarizer_equals_a_sync_one(self) -> None:
        """Both get the same material and appear in the same place."""
        seen: list[Material] = []

        def write(material: Material) -> str:
            seen.append(material)
            return f"{len(material.messages)} messages"

        async def write_later(material: Material) -> str:
            await asyncio.sleep(0)
            return write(material)

        shown = []
        for summarizer in (write, write_later):
            context = Context(session(1, 12))
            assert run(Summarization(summarizer, target=3000), context)
            shown.append(list(context.project()))
        assert shown[0] == shown[1]
        assert seen[0].messages == seen[1].messages and seen[0].references == seen[1].references
        assert seen[0].messages[0] == session(1, 12)[1]

    @pytest.mark.parametrize("text", ["", "  \n ", "word " * 5000], ids=["empty", "blank", "inflated"])
    def test_a_bad_summary_leaves_the_ledger_to_speak(self, text: str) -> None:
        """An empty or inflated summary counts as none: the text is the same as without a summarizer."""
        asked: list[list[Message]] = []
        for summarizer in (None, lambda _: text):
            context = Context(session(1, 12))
            assert run(Summarization(summarizer, target=3000), context)
            asked.append(list(context.project()))
        assert asked[0] == asked[1]

    def test_material_is_the_originals(self) -> None:
        """A summariser sees names, arguments and results, never placeholders, and what the caller asks of it."""
        seen: list[Material] = []
        context = Context(session(2, 8))
        context.instructions = "Keep the numbers."
        for index in range(2, 14, 2):
            context.prune(index, 0)
        assert run(Summarization(lambda m: seen.append(m) or "done", target=3000), context)
        assert seen[0].messages[1] == context.messages[2] and LONG in seen[0].messages[1].results[0].output
        assert seen[0].instructions == "Keep the numbers."
        places = [context.messages.index(message) for message in seen[0].messages]
        assert seen[0].references == tuple(map(context.reference, places))

    def test_second_summary_folds_the_first_in(self) -> None:
        """A later summary gets the earlier text and only what is new, so its input stays bounded; it covers both."""
        seen: list[Material] = []
        context = Context(session(1, 12))
        strategy = Summarization(lambda m: seen.append(m) or f"summary {len(seen)}", target=3000)
        assert run(strategy, context)
        first = set(context.summary_text.covers) if context.summary_text else set()
        context.extend(rounds(12, start=50))
        assert run(strategy, context)
        assert seen[1].earlier == "summary 1"
        assert not set(seen[1].references) & set(seen[0].references)
        assert context.summary_text is not None and first < set(context.summary_text.covers)
        assert [m.text for m in context.project()].count(PIVOT_QUESTION) == 1


@pytest.mark.parametrize("format", FORMATS)
class TestFolding:
    def test_three_passes_over_the_compacted_payload(self, format: str) -> None:
        """Each pass takes the pivot before it over: one pivot, the earlier facts in it, valid, and the tail kept."""
        calls: list[str | None] = []

        def write(material: Material) -> str:
            calls.append(material.earlier)
            return f"{material.earlier or ''} fact{len(calls)}".strip()

        policy = kompakt.Policy("test", (Summarization(write),))
        key = KEYS.get(format, "messages")
        whole = plain.build(format, messages=400, seed=7, mean_chars=900)
        cuts = [n for n in range(1, len(whole[key])) if kompakt.check({**whole, key: whole[key][:n]}, format) == []]
        body: dict[str, Any] = {**whole, key: []}
        done, facts = 0, ""
        for turn, goal in enumerate((100, 240, 380), 1):
            cut = next(n for n in cuts if n >= goal)
            body = {**body, key: body[key] + whole[key][done:cut]}
            newest = body[key][-1]
            body, done = kompakt.compact(body, 9000, format=format, policy=policy).payload, cut
            assert judge(format, body) == []
            assert body[key][-1] == newest
            parts = [part for message in kompakt.parse(body, format) for part in message.parts]
            words = [part.text for part in parts if isinstance(part, kompakt.Text)]
            assert words.count(PIVOT_QUESTION) == 1
            sealed = [text for text in map(pivot.unseal, words) if text is not None]
            narrative = sealed[0].partition(f"\n\n{HEADING}")[0]
            assert len(sealed) == 1 and narrative.startswith(facts) and narrative.count("fact") >= turn
            facts = narrative

    def test_the_ledger_keeps_the_first_facts(self, format: str) -> None:
        """Also without a model: the user's words in the first part are in the third summary."""
        key = KEYS.get(format, "messages")
        whole = plain.build(format, messages=300, seed=8, mean_chars=700)
        cuts = [n for n in range(1, len(whole[key])) if kompakt.check({**whole, key: whole[key][:n]}, format) == []]
        body: dict[str, Any] = {**whole, key: []}
        done = 0
        for goal in (70, 140, 210):
            cut = next(n for n in cuts if n >= goal)
            result = kompakt.compact({**body, key: body[key] + whole[key][done:cut]}, 9000, format=format)
            body, done = result.payload, cut
        first = next(text for text in plain.REQUESTS if text in str(whole[key][:70]))
        assert first in str(body[key])


class TestOwnStrategies:
    def test_functions_and_objects_serve(self) -> None:
        """Any async callable on a context is a step of a policy and is named in the report."""

        async def newest_only(context: Context) -> bool:
            return context.exclude_all(context.droppable(), reason="newest only")

        class Patient:
            async def __call__(self, context: Context) -> bool:
                return False

        payload = chat(*session(2, 8))
        result = kompakt.compact(payload, 3000, policy=kompakt.Policy("mine", (Patient(), newest_only)))
        assert {step.strategy for step in result.report.steps} - {"fitting"} == {"newest_only"}
        assert result.report.policy == "mine" and result.tokens_after <= 3000
        assert {action.why for action in result.report.actions} == {"newest only"}

    def test_one_that_raises_leaves_the_last_valid_state(self, caplog: pytest.LogCaptureFixture) -> None:
        """Its changes are undone, the next step runs, and report and log name the failure."""

        async def broken(context: Context) -> bool:
            context.exclude_all(context.droppable(), reason="half done")
            context.replace([], "half a summary", reason="half done")
            raise ValueError("no such luck")

        payload = chat(*session(2, 8))
        with caplog.at_level(logging.WARNING, "kompakt.compaction"):
            result = kompakt.compact(payload, 3000, policy=kompakt.Policy("mine", (broken, Truncation())))
        failed = [step for step in result.report.steps if step.failed]
        assert failed and all(
            step.failed == "ValueError('no such luck')" and step.strategy == "broken" for step in failed
        )
        assert all(step.tokens_before == step.tokens_after for step in failed)
        assert "half done" not in {action.why for action in result.report.actions}
        assert "half a summary" not in str(result.payload)
        assert result.payload == kompakt.compact(payload, 3000, policy=kompakt.Policy("t", (Truncation(),))).payload
        assert any("broken failed and was undone" in record.getMessage() for record in caplog.records)

    def test_only_broken_strategies_still_give_a_valid_fit(self) -> None:
        """With nothing left but errors the payload still fits and is valid."""

        async def broken(context: Context) -> bool:
            raise KeyError(len(context.messages))

        payload = chat(*session(2, 8))
        result = kompakt.compact(payload, 3000, policy=kompakt.Policy("mine", (broken,)))
        assert result.tokens_after <= 3000 and judge("openai-chat", result.payload) == []

    def test_shortening_before_summarizing_keeps_small_results(self) -> None:
        """Results that fit stay, and the report lists the shortened ones."""
        history = [
            user("Task."),
            assistant("Plan.", id="p"),
            *rounds(2, output="short"),
            *rounds(1, output=LONG * 12, start=5),
        ]
        policy = kompakt.Policy("mine", (Shortening(max_tokens=500), Summarization()))
        result = kompakt.compact(chat(*history), 3000, policy=policy)
        assert {action.what for action in result.report.actions} == {"shortened"}
