"""Training windows are valid, within their size, and lose no answer of the model silently."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.histories import bodies
from tests.histories.broken import broken
from tests.histories.plain import build

import kompakt
from kompakt.fleet.samples import Unfit, Window, windows
from kompakt.model.groups import pair

FORMATS = ("openai-chat", "openai-responses", "anthropic", "gemini", "bedrock")


def check_window(window: Window, format: str, limit: int) -> None:
    """Check what every window promises."""
    assert kompakt.check(window.payload, format, resting=True) == []
    assert kompakt.count(window.payload, format=format).total == window.tokens <= limit
    history = kompakt.parse(window.payload, format)
    pairs = pair(history.messages)
    assert not pairs.open and not pairs.orphans
    assert any(window.mask)
    assert window.mask == tuple(role == "assistant" for role in window.roles)
    items: Any = window.payload if isinstance(window.payload, list) else window.payload[_key(format)]
    assert len(window.mask) == len(items)


def _key(format: str) -> str:
    return {"openai-responses": "input", "gemini": "contents"}.get(format, "messages")


class TestWindows:
    @pytest.mark.parametrize("format", FORMATS)
    @pytest.mark.parametrize("limit", [1_500, 4_000, 100_000])
    def test_long_sessions_are_cut_into_windows(self, format: str, limit: int) -> None:
        """All answers are in exactly one window, and a window inside a turn starts with the request of the turn."""
        history = kompakt.parse(build(format, messages=120, seed=3), format)
        found = [one for one in windows(history, limit) if isinstance(one, Window)]
        for window in found:
            check_window(window, format, limit)
            first = next(one for one in kompakt.parse(window.payload, format) if one.role != "system")
            assert first.role == "user"
        answers = [one for one in history if one.role == "assistant"]
        shown = [one for window in found for one in kompakt.parse(window.payload, format) if one.role == "assistant"]
        lost = [one for one in windows(history, limit) if isinstance(one, Unfit)]
        assert len(shown) + sum(one.messages for one in lost) >= len(answers)
        if not lost:
            assert shown == answers

    def test_what_does_not_fit_is_reported(self) -> None:
        history = kompakt.parse(build("openai-chat", messages=24))
        (only,) = windows(history, 20)
        assert isinstance(only, Unfit)
        assert "system prompt and tools" in only.reason
        body = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "word " * 500}]}
        (only,) = windows(kompakt.parse(body, "openai-chat"), 100)
        assert isinstance(only, Unfit)
        assert "message 1: 510 tokens" in only.reason

    def test_a_session_without_an_answer_has_no_window(self) -> None:
        body = {"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}]}
        assert list(windows(kompakt.parse(body), 1_000)) == []


class TestProperties:
    @given(st.data())
    def test_windows_of_any_history_are_valid(self, data: st.DataObject) -> None:
        """Also of broken histories, which are repaired first."""
        format = data.draw(st.sampled_from(FORMATS))
        valid = bodies(format, max_turns=4, max_steps=3)
        body = data.draw(st.one_of(valid, broken(format).map(lambda found: found[1])))
        limit = data.draw(st.integers(50, 3_000))
        for window in windows(kompakt.parse(body, format), limit):
            if isinstance(window, Window):
                check_window(window, format, limit)
