"""``compact`` and ``acompact``: pins, reports, events, errors."""

from __future__ import annotations

import asyncio
import copy
import logging

import msgspec
import pytest
from tests.engine.sessions import LONG, REFERENCE, chat, resolve, rounds, session, texts
from tests.histories import plain
from tests.histories.messages import assistant, call, result, tool, user
from tests.judges import FORMATS, judge
from tests.judges.prefix import judge_rewrite

import kompakt
from kompakt.engine.context.context import Context
from kompakt.engine.pivot.pivot import Material
from kompakt.engine.strategies import Summarization, Truncation
from kompakt.model.limits import limits
from kompakt.model.phrases import PINNED_NOTE


async def waiting(material: Material) -> str:
    """Summarise after a real wait."""
    await asyncio.sleep(0.001)
    return f"{len(material.messages)} messages, {material.instructions}"


WAITING = kompakt.Policy("waiting", (Summarization(waiting),))


class TestDoors:
    @pytest.mark.parametrize("format", FORMATS)
    def test_give_the_same(self, format: str) -> None:
        """Sync, async, and sync inside a running loop: the same payload, steps and actions."""
        body = plain.build(format, messages=80, seed=1)
        budget = kompakt.count(body, format=format).total // 3

        async def both() -> tuple[kompakt.Compaction, kompakt.Compaction]:
            return await kompakt.acompact(body, budget), kompakt.compact(body, budget)

        alone = kompakt.compact(body, budget)
        awaited, inside = asyncio.run(both())
        assert alone.payload == awaited.payload == inside.payload
        assert alone.report.steps == awaited.report.steps == inside.report.steps
        assert alone.report.actions == awaited.report.actions == inside.report.actions
        assert alone.changed and alone.tokens_after <= budget

    def test_inside_a_loop_the_error_for_an_awaiting_policy_names_acompact(self) -> None:
        """Sync work inside a loop cannot wait, and says what to do instead."""

        async def inside() -> None:
            kompakt.compact(chat(*session(1, 12)), 3000, policy=WAITING)

        with pytest.raises(kompakt.UsageError, match="acompact"):
            asyncio.run(inside())

    def test_a_policy_that_waits_works_everywhere_else(self) -> None:
        """Awaited, or sync with no loop running, a real wait is a wait and no failure."""
        payload = chat(*session(1, 12))
        awaited = asyncio.run(kompakt.acompact(payload, 3000, policy=WAITING, instructions="briefly"))
        alone = kompakt.compact(payload, 3000, policy=WAITING, instructions="briefly")
        assert awaited.payload == alone.payload
        assert not any(step.failed for step in alone.report.steps)
        assert "messages, briefly" in str(alone.payload)


class TestBudget:
    def test_comes_from_the_model(self) -> None:
        """Without a budget it is the model's own: due above nine tenths of what the model leaves for the prompt."""
        body = {"model": "gpt-4", "messages": chat(*session(6, 8))}
        own = kompakt.Budget.for_model(limits("gpt-4"))
        result = kompakt.compact(body)
        assert kompakt.count(body).total > own.trigger >= result.tokens_after
        assert result.report.budget == own.trigger == kompakt.compact(body["messages"], model="gpt-4").report.budget
        assert not kompakt.compact(body["messages"], model="gpt-4.1").changed

    def test_without_budget_and_model_is_a_usage_error(self) -> None:
        """There is nothing to take a budget from."""
        with pytest.raises(kompakt.UsageError, match="budget="):
            kompakt.compact(chat(user("hi")), format="openai-chat")

    def test_a_budget_object_sets_trigger_and_target(self) -> None:
        """Below the trigger nothing happens; above it the history comes down to the target."""
        payload = chat(*session(1, 20))
        total = kompakt.count(payload).total
        idle = kompakt.Budget(window=total * 2, trigger=total, target=total // 10)
        assert not kompakt.compact(payload, idle).changed
        result = kompakt.compact(payload, kompakt.Budget(window=total * 2, trigger=total - 1, target=total // 4))
        assert result.tokens_after <= total // 4

    def test_unlimited_never_fires(self) -> None:
        """A window of 0 is unlimited."""
        assert not kompakt.compact(chat(*session(1, 20)), kompakt.Budget(window=0, trigger=0, target=0)).changed

    def test_what_does_not_fit_is_named(self) -> None:
        """The error has floor, budget and the largest parts, and its text says what to do."""
        payload = chat(user("first"), *rounds(2), user("word " * 3000))
        with pytest.raises(kompakt.DoesNotFit) as caught:
            kompakt.compact(payload, 1000)
        error = caught.value
        assert error.budget == 1000 < 3000 < error.floor < 3200
        reference, tokens = error.largest[0]
        assert tokens > 2900 and resolve(kompakt.parse(payload), reference).startswith("word word")
        assert f"{error.floor - 1000:,} more than the budget of 1,000" in str(error) and reference in str(error)
        assert f"budget={error.floor} in Python, --budget {error.floor} on" in str(error)
        parts = str(error).rpartition("Its largest parts in tokens: ")[2]
        assert parts.startswith(f"{reference} (message {len(payload)} of {len(payload)}, user) ")
        assert " 0" not in parts
        assert kompakt.compact(payload, error.floor).tokens_after <= error.floor


class TestPins:
    def test_by_index_from_either_end(self) -> None:
        """A pinned message stays unchanged with its group, even if others are summarized."""
        payload = chat(*session(1, 20))
        for pin in (3, 3 - len(payload)):
            kept = kompakt.compact(payload, 4000, pins=[pin]).payload
            assert payload[3] in kept and payload[4] in kept and payload[5] not in kept
        assert payload[3] not in kompakt.compact(payload, 4000).payload

    @pytest.mark.parametrize("policy", ["default", "window", "aggressive"])
    @pytest.mark.parametrize("format", FORMATS)
    def test_by_index_in_every_format(self, format: str, policy: str) -> None:
        """The parts of a pinned message but signed reasoning are in what is sent, and it is valid."""
        body = plain.build(format, messages=120, seed=5, mean_chars=500)
        history = kompakt.parse(body, format)
        index = next(i for i in range(8, 30) if history[i].results)
        result = kompakt.compact(body, kompakt.count(body).total // 3, policy=policy, pins=[index])
        assert judge(format, result.payload) == []
        assert judge_rewrite(body, result.payload, format) == []
        assert all(part.output in list(texts(result.payload)) for part in history[index].results)

    def test_an_index_beyond_the_history_is_a_usage_error(self) -> None:
        """The error names the pin and how many messages there are."""
        with pytest.raises(kompakt.UsageError, match="pin 7 is not the index of a message; the history has 1"):
            kompakt.compact(chat(user("hi")), 100, format="openai-chat", pins=[7])

    def test_by_text_anywhere_in_the_history(self) -> None:
        """In a message of people, in a tool output only, or nowhere: a pinned text is sent as it is, once."""
        history = [
            user("task"),
            *rounds(3),
            assistant("We never push.", id="x"),
            *rounds(1, output=f"{LONG} the code is 4711", start=5),
            *rounds(20, start=9),
        ]
        pins = ["We never push.", "the code is 4711", "is nowhere"]
        result = kompakt.compact(chat(*history), 3000, pins=pins)
        found = [text for text in texts(result.payload) if any(pin in text for pin in pins)]
        assert len([text for text in found if text.startswith(PINNED_NOTE)]) == 1
        assert all(any(pin in text for text in found) for pin in pins)
        assert judge("openai-chat", result.payload) == [] and result.tokens_after <= 3000

    def test_a_text_that_stays_is_not_repeated(self) -> None:
        """No note for what a kept message says anyway."""
        payload = chat(user("Never push."), *session(1, 20))
        result = kompakt.compact(payload, 3000, pins=["Never push."])
        assert not any(text.startswith(PINNED_NOTE) for text in texts(result.payload))

    def test_a_pin_alone_rewrites_nothing(self) -> None:
        """A history that just fits is untouched, also when a pinned text is not in it."""
        payload = chat(*session(1, 4))
        result = kompakt.compact(payload, kompakt.count(payload).total, pins=["is nowhere", 2])
        assert result.payload is payload and not result.changed

    def test_pins_belong_to_the_floor(self) -> None:
        """Pins that alone exceed the budget do not fit, and are not cut."""
        payload = chat(*session(1, 12))
        with pytest.raises(kompakt.DoesNotFit):
            kompakt.compact(payload, 1500, pins=[2, 4, 6, 8])


class TestReport:
    def test_accounts_for_everything(self) -> None:
        """Tokens, messages, steps and actions add up, and every reference resolves in what was given."""
        payload = chat(*session(3, 8))
        before = copy.deepcopy(payload)
        result = kompakt.compact(payload, 4000)
        report = result.report
        assert payload == before
        assert (report.tokens_before, report.tokens_after) == (result.tokens_before, result.tokens_after)
        assert (
            report.tokens_before == kompakt.count(payload).total
            and report.tokens_after == kompakt.count(result.payload).total
        )
        assert report.saved == report.tokens_before - report.tokens_after > 0
        assert (report.messages_before, report.messages_after) == (len(payload), len(result.payload))
        assert report.budget == 4000 and "4000" in report.reason and report.policy == "default"
        assert report.steps and all(step.tokens_after < step.tokens_before for step in report.steps)
        assert [step.at_message for step in report.steps] == sorted(step.at_message for step in report.steps)
        assert {action.what for action in report.actions} <= {"excluded", "shortened", "pruned"}
        assert all(action.why and action.tokens > 0 for action in report.actions)
        history = kompakt.parse(payload)
        named = [action.reference for action in report.actions] + REFERENCE.findall(str(result.payload))
        assert named and all(resolve(history, reference) is not None for reference in named)

    def test_nothing_due(self) -> None:
        """The report of an untouched history says so."""
        report = kompakt.compact(chat(*session(1, 2)), 100_000).report
        assert report.reason == "nothing due" and report.steps == report.actions == () and report.saved == 0

    def test_broken_input_is_repaired_first_and_reported(self) -> None:
        """An orphan call is closed before anything else; the outcome is valid and the report names the repair."""
        payload = chat(*session(1, 20), assistant(call("open")), user("go on"))
        assert judge("openai-chat", payload) != []
        for budget in (3000, 10**6):
            result = kompakt.compact(payload, budget)
            assert judge("openai-chat", result.payload) == [] and result.changed and result.report.repairs


class TestEvents:
    def test_listener_log_record_and_span(self, caplog: pytest.LogCaptureFixture) -> None:
        """Each compaction is announced once in each way, with counts and without texts; an idle one is not."""
        exporter = _exporter()
        heard: list[kompakt.Report] = []
        stop = kompakt.on_compaction(heard.append)
        payload = chat(*session(1, 20, output="secret-word " * 300))
        with caplog.at_level(logging.INFO, "kompakt.compaction"):
            result = kompakt.compact(payload, 3000)
            kompakt.compact(result.payload, 3000)
        stop()
        kompakt.compact(payload, 3000)
        assert heard == [result.report]
        records = [record for record in caplog.records if hasattr(record, "kompakt")]
        facts = records[0].kompakt
        assert len(records) == 1 and str(result.tokens_after) in records[0].getMessage()
        span = next(one for one in exporter.get_finished_spans() if one.attributes["kompakt.policy"] == "default")
        assert span.name == "kompakt.compact"
        for name in (
            "policy",
            "reason",
            "strategies",
            "tokens_before",
            "tokens_after",
            "messages_before",
            "messages_after",
            "seconds",
        ):
            assert span.attributes[f"kompakt.{name}"] == facts[name]
        assert facts["tokens_before"] == result.tokens_before and facts["messages_after"] == len(result.payload)
        assert "secret-word" not in caplog.text + str(span.attributes)


def _exporter():
    """Collect spans in memory; a provider can be set only once in a process, so it is reused."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        trace.set_tracer_provider(TracerProvider())
    trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


class TestThreePoints:
    def test_one_strategy_serves_context_policy_and_payload(self) -> None:
        """The same object works on a context, as a step, and on a payload."""
        strategy = Truncation(target=2000)
        context = Context(session(1, 10))
        assert asyncio.run(strategy(context))
        assert kompakt.compact(chat(*session(1, 10)), 3000, policy=kompakt.Policy("t", (strategy,))).changed
        assert [tool(result("c9", "9 " + LONG))] == list(context.project()[-1:])


class TestIdempotence:
    """A compacted payload is unchanged under the same budget and policy."""

    @pytest.mark.parametrize(
        ("seed", "chars", "parallel", "format", "share"),
        [
            (92, 1000, 2, "bedrock", 0.9),
            (135, 200, 1, "openai-chat", 0.6),
            (345, 1000, 3, "gemini", 0.7),
            (521, 1000, 1, "openai-chat", 0.5),
            (752, 2000, 4, "gemini", 0.4),
        ],
    )
    def test_outputs_are_admitted_once(self, seed: int, chars: int, parallel: int, format: str, share: float) -> None:
        """Neither what a later step cut nor an output that gains hardly enough is compressed in the next pass."""
        for number in range(12):
            body = plain.build(format, messages=8 + 3 * number, seed=seed + number, mean_chars=chars, parallel=parallel)
            budget = int(kompakt.count(body, format=format).total * share)
            once = kompakt.compact(body, budget, format=format, policy="admission")
            assert kompakt.compact(once.payload, budget, format=format, policy="admission").payload is once.payload


def test_a_printed_report_is_short() -> None:
    """Listeners often print it at every compaction: sizes, saving and reason, without the notes."""
    done = kompakt.compact(chat(*session(1, 12)), 3_000)
    saved = f"({done.report.saved:,} saved)"
    assert str(done.report).startswith(f"compacted: {done.tokens_before:,} -> {done.tokens_after:,} tokens {saved}, ")
    assert "\n" not in str(done.report) and done.report.notes
    failed = msgspec.structs.replace(done.report, problems=("a", "b\nc"), failures=("d",))
    assert str(failed).split("\n")[1:] == ["problems: a; b c", "failures: d"]
