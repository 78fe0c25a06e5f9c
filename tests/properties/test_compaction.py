"""What `compact` promises, on any valid history of any format, under any budget.

Judged by validators that know nothing of kompakt, among them one that sees signed reasoning behind a changed prefix.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

import kompakt
from tests.histories import bodies, plain
from tests.judges import FORMATS, judge
from tests.judges.prefix import judge_rewrite

POLICIES = ("default", "conservative", "aggressive", "window")

KEYS = {"openai-responses": "input", "gemini": "contents"}


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, dict[str, Any], int, str]:
    """Draw a format, a history that a run could end with, a budget and a policy."""
    format = draw(st.sampled_from(FORMATS))
    if draw(st.booleans()):
        body = draw(bodies(format, max_turns=5, max_steps=4))
    else:
        size, seed = draw(st.integers(4, 60)), draw(st.integers(0, 50))
        body = plain.build(format, messages=size, seed=seed, mean_chars=draw(st.integers(10, 2000)), parallel=draw(st.integers(1, 5)))
    total = kompakt.count(body, format=format).total
    budget = max(1, int(total * draw(st.floats(0.02, 1.1))))
    return format, body, budget, draw(st.sampled_from(POLICIES))


def texts(value: Any) -> Iterator[str]:
    """Go through every string of a payload."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)


def requests(format: str, body: dict[str, Any]) -> list[list[str]]:
    """List the texts of the user's own messages, oldest first."""
    history = kompakt.parse(body, format)
    spoken = [message for message in history if message.role == "user" and not message.results]
    return [[part.text for part in message.parts if isinstance(part, kompakt.Text)] for message in spoken]


class TestCompact:
    @given(cases())
    def test_keeps_every_promise_or_names_the_floor(self, case: tuple[str, dict[str, Any], int, str]) -> None:
        """Valid, within budget, task and newest request as they were, input untouched, counted right, stable."""
        format, body, budget, policy = case
        given_body = copy.deepcopy(body)
        try:
            result = kompakt.compact(body, budget, format=format, policy=policy)
        except kompakt.DoesNotFit as error:
            assert body == given_body
            assert error.floor > error.budget == budget
            fitting = kompakt.compact(body, error.floor, format=format, policy=policy)
            assert fitting.tokens_after <= error.floor
            return
        note(f"{format} {policy} budget {budget}: {result.report.steps}")
        assert body == given_body
        assert result.tokens_after <= budget
        assert judge(format, result.payload) == []
        assert kompakt.check(result.payload, format) == []
        assert judge_rewrite(body, result.payload, format) == []
        assert kompakt.count(result.payload, format=format).total == result.tokens_after
        kept = list(texts(result.payload))
        asked = requests(format, body)
        if asked:
            assert all(text in kept for text in asked[-1])
            cut = any(action.what == "shortened" for action in result.report.actions)
            assert cut or all(text in kept for text in asked[0])
        assert {key: value for key, value in result.payload.items() if key != KEYS.get(format, "messages")} == {
            key: value for key, value in body.items() if key != KEYS.get(format, "messages")
        }
        again = kompakt.compact(result.payload, budget, format=format, policy=policy)
        assert again.payload is result.payload
        once_more = kompakt.compact(copy.deepcopy(body), budget, format=format, policy=policy)
        assert json.dumps(once_more.payload) == json.dumps(result.payload)

    @given(cases())
    def test_nothing_due_nothing_changed(self, case: tuple[str, dict[str, Any], int, str]) -> None:
        """A history within its budget comes back as the very object it was."""
        format, body, _, policy = case
        total = kompakt.count(body, format=format).total
        result = kompakt.compact(body, total, format=format, policy=policy)
        assert result.payload is body
        assert not result.changed

    @given(cases(), st.data())
    def test_pinned_texts_survive(self, case: tuple[str, dict[str, Any], int, str], data: st.DataObject) -> None:
        """A pinned text is in the output as it is, wherever it stood."""
        format, body, budget, policy = case
        history = kompakt.parse(body, format)
        spoken = [part.text for message in history for part in message.parts if isinstance(part, kompakt.Text) and part.text.strip()]
        pin = data.draw(st.sampled_from(spoken)) if spoken else "keep this"
        try:
            result = kompakt.compact(body, budget, format=format, policy=policy, pins=[pin])
        except kompakt.DoesNotFit:
            return
        assert any(pin in text for text in texts(result.payload))
        assert result.tokens_after <= budget
        assert judge(format, result.payload) == []


@pytest.mark.parametrize("format", FORMATS)
class TestGrowth:
    def test_a_growing_history_is_rewritten_rarely(self, format: str) -> None:
        """Between rewritings every request extends the one before, byte for byte, with or without state."""
        body = plain.build(format, messages=240, seed=3, mean_chars=600)
        key = KEYS.get(format, "messages")
        items = body[key]
        sizes = [n for n in range(3, len(items)) if kompakt.check({**body, key: items[:n]}, format) == []]
        budget = kompakt.count(body, format=format).total // 5
        previous: list[Any] = []
        extended = 0
        for n in sizes:
            now = kompakt.compact({**body, key: items[:n]}, budget, format=format).payload[key]
            extended += now[: len(previous)] == previous
            previous = now
        assert extended >= 0.9 * len(sizes)
