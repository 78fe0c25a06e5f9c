"""Dropped facts are found through the gateway with the official SDKs, by a model that recalls them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.agent.recall.seeker import Seeker, dropped, facts, history, questions
from tests.gateway.scripted_model import recalling, said, talking
from tests.provider.sdk_agent import FORMATS

ROUNDS = 80


@pytest.mark.parametrize("format", FORMATS)
def test_thirty_dropped_facts_are_found(format: str, tmp_path: Path) -> None:
    """The client joins with a long history, and never sees the tool."""
    stream = format in ("openai-responses", "anthropic")
    settings = {"window": 24_000, "trigger": 0.4}
    with recalling(Seeker(), tmp_path, **settings) as (provider, gate), talking(gate, format, stream=stream) as talk:
        known, found = facts(format, ROUNDS), 0
        talk.items = history(format, ROUNDS)
        talk.say("Are you there?")
        assert not talk.step()
        for paths, question in questions(dropped(provider.asked[0], format, known)[:30]):
            talk.say(question)
            assert not talk.step()
            found += sum(f"in {path} is {known[path]}." in str(talk.items[-1]) for path in paths)
        assert found == 30
        assert len(provider.asked) == 13
        assert "recall" not in said(talk) and "recall" not in str(talk.last)
        assert [record.refusal for record in provider.refusals] == [] and provider.overflows == []


def test_no_recall_leaves_no_mention(tmp_path: Path) -> None:
    with recalling(Seeker(), tmp_path, recall=False) as (provider, gate), talking(gate, "anthropic") as talk:
        talk.say("What is the marker in old/00001_0.py?")
        assert not talk.step()
        assert talk.answers[0]["x-kompakt-outcome"] == "compacted"
        assert b"recall" not in provider.asked[0].body.lower()
