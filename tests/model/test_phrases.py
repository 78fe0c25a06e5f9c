"""kompakt's own sentences: all in one module, recognised everywhere, never a person's request."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.histories.messages import assistant, user

import kompakt
from kompakt.model import phrases
from kompakt.model.groups import is_request, turns
from kompakt.model.messages import Text

SOURCE = Path(kompakt.__file__).parent
OWN = [
    *phrases.OWN_LINES,
    phrases.seal(f"{phrases.PINNED_NOTE}\nNever push."),
    phrases.resume_note("Carry on."),
    phrases.pivot_question("And now?"),
]


class TestRecognition:
    @pytest.mark.parametrize("text", OWN)
    def test_own_lines_are_recognised_only_as_a_whole(self, text: str) -> None:
        """A line is recognised only verbatim; with anything added it is not."""
        assert phrases.is_own(text)
        assert not phrases.is_own(f"{text} And run the tests.")
        assert not phrases.is_own(f"Please: {text}")

    def test_a_note_needs_its_seal(self) -> None:
        """A text that only starts like a note is not a note."""
        assert not phrases.is_own(f"{phrases.PINNED_NOTE}\nNever push.")
        assert not phrases.is_own(f"{phrases.OPEN_ROUND_NOTE}\nx\n[kompakt summary {'0' * 16}]")

    def test_every_fixed_line_is_listed(self) -> None:
        """A new line that is not recognised would count as a user message."""
        notes = {"PINNED_NOTE", "OPEN_ROUND_NOTE", "SUMMARY_NOTE", "RESUME_NOTE", "QUESTION_NOTE", "FOLD"}
        fixed = {name for name, value in vars(phrases).items() if name.isupper() and isinstance(value, str)}
        assert {getattr(phrases, name) for name in fixed - notes} == set(phrases.OWN_LINES)

    def test_marked_lines_are_defined_only_here(self) -> None:
        """Every whole sentence that starts with kompakt's mark is written in one module."""
        found: list[str] = []
        for path in SOURCE.rglob("*.py"):
            if path.name == "phrases.py":
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                    value = node.value.value
                    if isinstance(value, str) and value.startswith("[kompakt"):
                        found.append(f"{path.name}: {value}")
        assert found == []


class TestRequests:
    def test_a_marked_line_opens_no_turn(self) -> None:
        """A history that kompakt opened for a provider has only the turns of the user."""
        history = [user(phrases.RESUME_LINE), assistant("hi"), user("Task."), assistant("done"), user("Next.")]
        assert [turn.request for turn in turns(history)] == [history[2], history[4]]
        assert not is_request(history[0])

    def test_text_next_to_a_marked_line_is_a_request(self) -> None:
        """A provider may merge user text with a line of kompakt."""
        assert is_request(user(phrases.RUNTIME_LINE, Text("Run the tests.")))
