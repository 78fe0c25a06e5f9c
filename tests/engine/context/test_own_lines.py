"""Lines that kompakt added to a history are never treated as requests of the user."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.sessions import LONG, rounds, texts
from tests.histories.messages import assistant, user

import kompakt
from kompakt.engine.context.context import Context
from kompakt.model.messages import History
from kompakt.model.phrases import CONTINUE_LINE, OWN_LINES, RESUME_LINE

TASK = "Rewrite the parser so that it keeps comments. Never touch the vendored grammar."
NEWEST = "Now do the same for the printer, and leave its options alone."
FORMATS = ["anthropic", "gemini", "bedrock"]


def beginning_with_the_assistant(format: str) -> Any:
    """Return a history without its start: the assistant comes first, then the user gives the task."""
    messages = [assistant("Where were we?"), user(TASK), *rounds(15), user(NEWEST), *rounds(2, start=20)]
    return kompakt.render(History(messages, format="openai-chat"), format)


class TestTask:
    @pytest.mark.parametrize("format", FORMATS)
    def test_a_history_repaired_at_its_start_keeps_the_task(self, format: str) -> None:
        """The line that repair puts before the assistant's is not the first request; the task is."""
        repaired = kompakt.repair(beginning_with_the_assistant(format), format).payload
        assert RESUME_LINE in list(texts(repaired))
        kept = list(texts(kompakt.compact(repaired, 2500, format=format).payload))
        assert TASK in kept and NEWEST in kept

    @pytest.mark.parametrize("format", FORMATS)
    def test_compacting_the_broken_history_at_once_keeps_the_task(self, format: str) -> None:
        """The same without a repair of the caller's own."""
        kept = list(texts(kompakt.compact(beginning_with_the_assistant(format), 2500, format=format).payload))
        assert TASK in kept and NEWEST in kept

    @pytest.mark.parametrize("line", OWN_LINES)
    def test_an_own_line_is_neither_first_nor_newest_request(self, line: str) -> None:
        """Wherever such a line is, the kept groups are those of the user's own requests."""
        context = Context([user(line), assistant("hi"), user(TASK), *rounds(2), user(NEWEST), *rounds(1, start=3)])
        context.extend([user(line), *rounds(1, start=5)])
        first, newest = context.archive.requests()
        assert first is not None and newest is not None
        assert context.messages[first.indices[0]].text == TASK
        assert context.messages[newest.indices[0]].text == NEWEST

    def test_a_line_added_at_the_end_does_not_replace_the_newest_request(self) -> None:
        """A history that ended with the assistant was given a line to end with the user; the request stays."""
        messages = [user(TASK), *rounds(10), user(NEWEST), *rounds(6, start=20), assistant(f"So far: {LONG}")]
        messages += [user(CONTINUE_LINE), *rounds(6, start=40)]
        payload = kompakt.render(History(messages, format="openai-chat"), "openai-chat")
        kept = list(texts(kompakt.compact(payload, 2500).payload))
        assert TASK in kept and NEWEST in kept
