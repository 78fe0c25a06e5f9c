"""Summarizers that fail without a session: asked again a bounded number of times, and every failure is reported."""

from __future__ import annotations

import asyncio
import logging

import pytest

import kompakt
from kompakt.engine.compaction.policies import Policy
from kompakt.engine.pivot.pivot import TRIES, Material
from kompakt.strategies import Summarization

HISTORY = [
    {"role": role, "content": f"{role} says {number}: " + "word " * 200}
    for number in range(20)
    for role in ("user", "assistant")
] + [{"role": "user", "content": "And now?"}]
WORDS = "The two of them went through twenty rounds."


def compacted(*answers: str | Exception) -> tuple[kompakt.Compaction, int]:
    """Compact with a summarizer that gives these answers and then repeats the last one; count the attempts."""
    left, asked = list(answers), 0

    async def summarizer(material: Material) -> str:
        nonlocal asked
        asked += 1
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    policy = Policy("summary", (Summarization(summarizer),))
    done = asyncio.run(kompakt.acompact(HISTORY, 3_000, format="openai-chat", policy=policy))
    return done, asked


@pytest.mark.parametrize("fault", ["", "   ", "word " * 20_000, RuntimeError("no connection")])
class TestFailures:
    def test_it_is_asked_again(self, fault: str | Exception, caplog: pytest.LogCaptureFixture) -> None:
        """A second try that can be used is used; the first is in the report and in the log."""
        with caplog.at_level(logging.WARNING, "kompakt.compaction"):
            done, asked = compacted(fault, WORDS)
        assert asked == 2 and WORDS in done.report.notes
        assert len(done.report.failures) == 1 and "summarizer failed, try 1" in caplog.text

    def test_attempts_are_limited_and_the_ledger_is_the_fallback(self, fault: str | Exception) -> None:
        done, asked = compacted(fault)
        assert asked == TRIES == len(done.report.failures)
        assert done.changed and done.tokens_after <= 3_000 and WORDS not in done.report.notes


def test_a_summary_that_serves_leaves_no_failure() -> None:
    done, asked = compacted(WORDS)
    assert asked == 1 and done.report.failures == () and WORDS in done.report.notes
