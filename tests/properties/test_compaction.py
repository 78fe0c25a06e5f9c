"""What `compact` promises, on any valid history of any format, under any budget.

The judges are independent of kompakt. One of them detects signed reasoning after a changed prefix.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from typing import Any, TypeAlias

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from tests.histories import bodies, plain
from tests.judges import FORMATS, judge
from tests.judges.anthropic import judge_alternation
from tests.judges.prefix import judge_rewrite

import kompakt

POLICIES = ("default", "conservative", "aggressive", "window")

KEYS = {"openai-responses": "input", "gemini": "contents"}


EXAMPLES = int(os.environ.get("KOMPAKT_EXAMPLES", "500"))
"""Examples of each promise for each format; a soak runs thousands."""

Case: TypeAlias = tuple[str, dict[str, Any], int, str]


@st.composite
def cases(draw: st.DrawFn, format: str | None = None) -> Case:
    """Draw a format, a history that a run could end with, a budget and a policy."""
    format = format or draw(st.sampled_from(FORMATS))
    if draw(st.booleans()):
        body = draw(bodies(format, max_turns=5, max_steps=4))
    else:
        size, seed, chars = draw(st.integers(4, 60)), draw(st.integers(0, 50)), draw(st.integers(10, 2000))
        body = plain.build(format, messages=size, seed=seed, mean_chars=chars, parallel=draw(st.integers(1, 5)))
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
    """Return the texts of the user's own messages, oldest first."""
    history = kompakt.parse(body, format)
    spoken = [message for message in history if message.role == "user" and not message.results]
    return [[part.text for part in message.parts if isinstance(part, kompakt.Text)] for message in spoken]


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
class TestCompact:
    @settings(max_examples=EXAMPLES)
    @given(data=st.data())
    def test_keeps_every_promise_or_names_the_floor(self, format: str, data: st.DataObject) -> None:
        """Valid, within budget, requests and pins unchanged, input not modified, counts correct, deterministic."""
        case = data.draw(cases(format))
        pins = draw_pins(case, data)
        format, body, budget, policy = case
        given_body = copy.deepcopy(body)
        try:
            result = kompakt.compact(body, budget, format=format, policy=policy, pins=pins)
        except kompakt.DoesNotFit as error:
            floor = error.floor
        else:
            floor = None
        assert body == given_body
        if floor is not None:
            assert floor > budget
            result = kompakt.compact(body, floor, format=format, policy=policy, pins=pins)
            budget = floor
        note(f"{format} {policy} budget {budget}: {result.report.steps}")
        self.assert_valid(case, result)
        self.assert_kept(case, result, pins)
        assert result.tokens_after <= budget
        assert kompakt.count(result.payload, format=format).total == result.tokens_after
        again = kompakt.compact(result.payload, budget, format=format, policy=policy)
        assert again.payload is result.payload
        once_more = kompakt.compact(given_body, budget, format=format, policy=policy, pins=pins)
        assert json.dumps(once_more.payload) == json.dumps(result.payload)

    @staticmethod
    def assert_valid(case: Case, result: kompakt.Compaction) -> None:
        format, body, _, _ = case
        assert judge(format, result.payload) == []
        assert kompakt.check(result.payload, format) == []
        assert judge_rewrite(body, result.payload, format) == []
        if format == "anthropic" and result.changed:
            assert judge_alternation(result.payload) == []

    @staticmethod
    def assert_kept(case: Case, result: kompakt.Compaction, pins: list[str]) -> None:
        format, body, _, _ = case
        key = KEYS.get(format, "messages")
        rest = {name: value for name, value in body.items() if name != key}
        assert {name: value for name, value in result.payload.items() if name != key} == rest
        kept = list(texts(result.payload))
        unchanged = list(texts(body)) if not result.changed else []
        expected = [pin for pin in pins if result.changed or any(pin in text for text in unchanged)]
        assert all(any(pin in text for text in kept) for pin in expected)
        asked = requests(format, body)
        if asked:
            cut = any(action.what == "shortened" for action in result.report.actions)
            assert all(text in kept for text in asked[-1])
            assert cut or all(text in kept for text in asked[0])

    @settings(max_examples=EXAMPLES)
    @given(data=st.data())
    def test_nothing_due_nothing_changed(self, format: str, data: st.DataObject) -> None:
        """A history within its budget is returned as the same object."""
        _, body, _, policy = data.draw(cases(format))
        total = kompakt.count(body, format=format).total
        result = kompakt.compact(body, total, format=format, policy=policy)
        assert result.payload is body
        assert not result.changed


def draw_pins(case: Case, data: st.DataObject) -> list[str]:
    """Draw texts to pin: some of the history, sometimes one that is not in it."""
    format, body, _, _ = case
    parts = [part for message in kompakt.parse(body, format) for part in message.parts]
    spoken = sorted({part.text for part in parts if isinstance(part, kompakt.Text) and part.text.strip()})
    chosen = data.draw(st.lists(st.sampled_from([*spoken, "keep this, wherever it was"]), max_size=2, unique=True))
    return chosen


@pytest.mark.parametrize("format", FORMATS)
class TestGrowth:
    def test_a_growing_history_is_rewritten_rarely(self, format: str) -> None:
        """Between rewritings every request extends the one before, byte for byte, without state.

        The budget is one for a running agent: a plain number is for a single call, which uses more of it.
        """
        body = plain.build(format, messages=240, seed=3, mean_chars=600)
        key = KEYS.get(format, "messages")
        items = body[key]
        sizes = [n for n in range(3, len(items)) if kompakt.check({**body, key: items[:n]}, format) == []]
        budget = kompakt.Budget.of(kompakt.count(body, format=format).total // 5)
        previous: list[Any] = []
        extended = 0
        for n in sizes:
            now = kompakt.compact({**body, key: items[:n]}, budget, format=format).payload[key]
            extended += now[: len(previous)] == previous
            previous = now
        assert extended >= 0.9 * len(sizes)
