"""Budgets: how often a conversation is compacted, and what is sent when system prompt and tools leave little room."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any

import pytest
from tests.gateway.long_sessions import Played, play
from tests.gateway.payloads import FORMATS

import kompakt

WINDOW = 40_000
MOST = {12: 5, 25: 6, 37: 7, 50: 9}
"""Compactions in 60 steps of about 1,300 tokens, by the share of the window that system prompt and tools take."""


def held(played: Played, window: int = WINDOW) -> None:
    """Check that every request was answered and none exceeded the window."""
    assert set(played.statuses) == {200} and max(played.tokens) <= window


class TestFixedPart:
    @pytest.mark.parametrize("share", MOST)
    @pytest.mark.parametrize("output", [None, 4_096], ids=["open", "stated"])
    def test_compactions_stay_rare_with_a_large_system_prompt(self, share: int, output: int | None) -> None:
        """The target is a share of the variable tokens, so a larger system prompt causes no more compactions."""
        played = play("openai-chat", 60, fixed=WINDOW * share // 100, answer_tokens=output)
        held(played)
        assert 0 < len(played.compacted) <= MOST[share]

    @pytest.mark.parametrize("format", FORMATS)
    def test_eight_steps_fit_between_two_compactions_where_there_is_room(self, format: str) -> None:
        """In every format."""
        played = play(format, 60, fixed=WINDOW * 30 // 100, answer_tokens=None)
        held(played)
        assert min(later - sooner for sooner, later in pairwise(played.compacted)) >= 8

    def test_a_crowded_window_is_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        """One warning per conversation names the settings; the requests fit."""
        with caplog.at_level(logging.WARNING, logger="kompakt.gateway"):
            played = play("openai-chat", 30, fixed=WINDOW * 70 // 100, answer_tokens=None)
        held(played)
        warnings = [
            record.getMessage() for record in caplog.records if "system prompt and tools" in record.getMessage()
        ]
        assert len(warnings) == 1 and len(played.compacted) > 5
        assert all(name in warnings[0] for name in ("--context-window", "--window", "max_tokens"))

    def test_enough_room_is_not_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        """System prompt and tools may use half of the window."""
        with caplog.at_level(logging.WARNING, logger="kompakt.gateway"):
            play("openai-chat", 20, fixed=WINDOW // 2, answer_tokens=None)
        assert not [record for record in caplog.records if "system prompt and tools" in record.getMessage()]


def strict(window: int, output: int) -> Any:
    """Return a provider that counts the requested output against its window."""

    def accepts(body: dict[str, Any], tokens: int) -> dict[str, Any] | None:
        if tokens + output <= window:
            return None
        message = (
            f"This model's maximum context length is {window} tokens. However, you requested {output} output tokens "
            f"and your prompt contains {tokens} input tokens, for a total of {tokens + output}."
        )
        return {"error": {"message": message, "type": "invalid_request_error", "code": "context_length_exceeded"}}

    return accepts


def tolerant(window: int) -> Any:
    """Return a provider that rejects a prompt larger than its window."""

    def accepts(body: dict[str, Any], tokens: int) -> dict[str, Any] | None:
        message = f"prompt is too long: {tokens} tokens > {window} maximum"
        return {"error": {"message": message, "type": "invalid_request_error"}} if tokens > window else None

    return accepts


class TestOutput:
    @pytest.mark.parametrize("format", FORMATS)
    def test_a_large_output_does_not_displace_the_prompt(self, format: str) -> None:
        """A requested output larger than the free window neither causes an overflow nor hides everything."""
        played = play(
            format,
            40,
            fixed=30_000,
            window=60_000,
            answer_tokens=32_000,
            accepts=tolerant(60_000),
            windows={"gemini-3-pro": 60_000},
        )
        held(played, 60_000)
        assert len(played.sent) == 40, "no request is refused"
        assert all("Find out why the queue stalls" in str(body) for body in played.sent)
        assert min(played.tokens[at] for at in played.compacted) > 31_500, "more is left than task and newest step"

    def test_an_overflow_that_counts_the_output_reserves_it(self) -> None:
        """After the first error the output is reserved in full."""
        played = play(
            "openai-chat", 40, fixed=10_000, window=60_000, answer_tokens=32_000, accepts=strict(60_000, 32_000)
        )
        assert set(played.statuses) == {200}
        assert len(played.sent) - 40 <= 1
        assert max(played.tokens[-20:]) <= 28_000

    @pytest.mark.parametrize("format", FORMATS)
    def test_the_smallest_request_is_sent_when_nothing_fits(self, format: str) -> None:
        """System prompt and tools alone exceed the window; everything that can be hidden is hidden."""
        played = play(format, 12, fixed=30_000, window=24_000, answer_tokens=8_000)
        assert set(played.statuses) == {200}
        assert max(played.tokens) - min(played.tokens) < 2_000
        assert max(played.tokens) < 30_000 + 2_500

    def test_gemini_reserves_no_output(self) -> None:
        """Its input and output limits are separate, so 85 % of the window are used before a compaction."""
        played = play("gemini", 40, fixed=2_000, answer_tokens=None)
        held(played)
        assert played.tokens[played.compacted[0] - 1] >= 0.85 * WINDOW


class TestUnread:
    @pytest.mark.parametrize("format", FORMATS)
    def test_the_newest_result_stays_whole_while_the_request_fits(self, format: str) -> None:
        """At any size: the ledger and older steps shrink first."""
        played = play(format, 30, fixed=4_000, step_tokens=1_300, answer_tokens=None, large={22: 24_000})
        held(played)
        body = played.sent[22]
        assert played.large[22] in "\n".join(_texts(body))

    def test_the_output_reserve_shrinks_before_the_newest_result(self) -> None:
        """The result fits the window, but not together with the output reserve."""
        played = play("openai-chat", 12, fixed=4_000, window=40_000, answer_tokens=16_000, large={11: 29_000})
        held(played)
        assert played.large[11] in "\n".join(_texts(played.sent[11]))
        assert kompakt.check(played.sent[11], "openai-chat") == []

    def test_the_newest_result_is_cut_when_it_cannot_fit(self) -> None:
        """At least half of the window is used for it."""
        played = play("openai-chat", 12, fixed=4_000, window=40_000, answer_tokens=None, large={11: 80_000})
        held(played)
        assert played.large[11] not in "\n".join(_texts(played.sent[11]))
        assert played.tokens[11] > 20_000


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for one in inner for text in _texts(one)]
