"""A context rebuilt from its messages and annotations has the same projection."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.engine.sessions import chat, rounds, run, session
from tests.histories.messages import assistant, user

import kompakt
from kompakt.engine.context.context import Context
from kompakt.strategies import Summarization, Truncation


def stored(context: Context) -> list[kompakt.Annotation]:
    """Write annotations as JSON and read them again, as a store does."""
    return msgspec.json.decode(msgspec.json.encode(context.annotations()), type=list[kompakt.Annotation])


def summarized() -> Context:
    """Make a context whose oldest groups are summarised, twice."""
    context = Context(session(2, 8))
    assert run(Summarization(target=4_000), context)
    context.extend([user("And then?"), *rounds(8, start=30)])
    assert run(Summarization(target=4_000), context)
    return context


class TestSummaries:
    def test_what_was_summarised_is_summarised_again(self) -> None:
        """The same bytes, the same tokens; groups are linked to their summary."""
        first = summarized()
        again = Context(first.messages, annotations=stored(first))
        assert [message.text for message in again.project()] == [message.text for message in first.project()]
        assert again.projected_tokens == first.projected_tokens
        hidden = [group for group in again.groups if group.excluded]
        assert hidden and all(group.summarized_by is not None for group in hidden)
        assert [group.number for group in again.covered_groups()] == [group.number for group in hidden]
        assert stored(Context(again.messages, annotations=stored(again))) == stored(again)

    def test_a_run_continues_from_there(self) -> None:
        """Appended messages extend the projection, and the next summary covers the earlier one."""
        first = summarized()
        again = Context(first.messages, annotations=stored(first))
        before = list(again.project())
        again.extend([user("More."), *rounds(9, start=60)])
        assert again.project()[: len(before)] == before
        assert run(Summarization(target=4_000), again)
        assert again.tokens <= 4_000 and again.messages[0] in again.project()

    def test_undone_it_is_shown(self) -> None:
        """Without the summary the groups can be included again."""
        first = summarized()
        again = Context(first.messages, annotations=stored(first))
        again.drop_summary()
        assert all(again.include(group) for group in list(again.groups) if group.excluded)
        assert list(again.project()) == list(first.messages)

    @pytest.mark.parametrize("at", [3, 8])
    def test_a_changed_message_shows_all_again(self, at: int) -> None:
        """A summary of missing messages is ignored."""
        first = summarized()
        messages = list(first.messages)
        messages[at] = user("Something else.") if messages[at].role != "assistant" else assistant("Other.", id="o")
        again = Context(messages, annotations=stored(first))
        assert again.summary_text is None and not any(group.excluded for group in again.groups)

    def test_pivots_of_earlier_passes_stay_folded_in(self) -> None:
        """Facts that came with the payload are not lost when the context is made again."""
        task = user("Port the importer. Never touch the migration files.")
        started: Any = kompakt.compact(chat(task, *rounds(12)), 2_500, format="openai-chat").payload
        first = Context(kompakt.parse(json.loads(json.dumps(started)), "openai-chat"))
        first.extend(rounds(12, start=40))
        assert run(Summarization(target=2_500), first)
        again = Context(first.messages, annotations=stored(first))
        assert again.inherited == first.inherited and again.inherited
        assert [message.text for message in again.project()] == [message.text for message in first.project()]


class TestExclusions:
    def test_they_are_unchanged(self) -> None:
        """Excluded without a summary, as before."""
        first = Context(session(2, 8))
        assert run(Truncation(target=3_000), first)
        again = Context(first.messages, annotations=stored(first))
        assert list(again.project()) == list(first.project())
