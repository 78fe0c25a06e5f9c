"""Prompt caches stay valid: over a long run each request extends the previous one, with and without state."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.histories import plain
from tests.judges import FORMATS, judge

import kompakt
from kompakt.engine.compaction.compact import rewrite
from kompakt.engine.compaction.policies import policy_named
from kompakt.engine.compaction.report import Step
from kompakt.engine.context.context import Context

KEYS = {"openai-responses": "input", "gemini": "contents"}

STEPS = 300


def steps(format: str) -> tuple[dict[str, Any], list[int]]:
    """Make a session of 300 model calls and say where each of them was made."""
    body = plain.build(format, messages=STEPS * 5, seed=12, mean_chars=1000)
    history = kompakt.parse(body, format)
    places = [
        i for i in range(1, len(history)) if history[i].role == "assistant" and history[i - 1].role != "assistant"
    ]
    return body, places[: STEPS + 1]


@pytest.mark.parametrize("format", FORMATS)
class TestPreviousRequestIsAPrefix:
    def test_with_a_context_and_a_policy_before_each_call(self, format: str) -> None:
        """95 of 100 requests extend the one before, all fit, and the number of rewritings is bounded."""
        body, places = steps(format)
        history = kompakt.parse(body, format)
        budget, policy = kompakt.Budget.of(20_000), policy_named("default")
        context = Context(history.with_messages(()))
        done: list[Step] = []
        extended = rewritings = at = 0
        previous: list[Any] = []
        for place in places:
            context.extend(history[at:place])
            at = place
            if budget.due(context.tokens):
                asyncio.run(rewrite(context, policy, budget, done))
                rewritings += 1
            now = list(context.project())
            assert context.projected_tokens <= 20_000
            extended += now[: len(previous)] == previous
            previous = now
        assert len(places) == STEPS + 1 and extended >= 0.95 * len(places)
        added = sum(map(context.counter.message, history[: places[-1]]))
        assert 2 <= rewritings <= added / (budget.trigger - budget.target) + 1
        assert not any(step.failed for step in done)

    def test_with_the_growing_full_history_and_no_state(self, format: str) -> None:
        """The same for a caller that sends the whole history each time, byte for byte in the payload.

        A budget for a single call is used to a larger share, so 92 of 100 requests extend the one before.
        """
        body, places = steps(format)
        every = 1 if format == "openai-chat" else 6
        key = KEYS.get(format, "messages")
        history = kompakt.parse(body, format)
        extended = tried = 0
        previous: list[str] = []
        for place in places[::every]:
            part = kompakt.render(history.with_messages(history[:place]))
            result = kompakt.compact(part, 20_000, format=format)
            now = [json.dumps(item) for item in result.payload[key]]
            assert result.tokens_after <= 20_000
            extended += now[: len(previous)] == previous
            tried += 1
            previous = now
        assert tried >= STEPS // every and tried - extended <= 0.08 * STEPS
        assert judge(format, result.payload) == []
