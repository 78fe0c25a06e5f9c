"""The line above the shortened output of a command."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.admission.test_gate import admit_all
from tests.engine.sessions import outputs
from tests.histories.messages import assistant, result, tool, user

from kompakt.engine.admission.admit import heading
from kompakt.engine.context.context import Context
from kompakt.model.messages import ToolCall

WAITING = "\n".join(["waiting for it"] * 90)


def run(command: str) -> ToolCall:
    """Make a call of a shell."""
    return ToolCall("a", "shell", {"command": command})


class TestHeading:
    @pytest.mark.parametrize(
        ("command", "output", "expected"),
        [
            ("make all", WAITING, "[kompakt] make all: success\n"),
            ("make all", f"{WAITING}\nExit code 2", "[kompakt] make all: failed, exit code 2: Exit code 2\n"),
            (
                "make all | tail",
                f"{WAITING}\n--- FAIL: TestOne\nFAIL\tone",
                "[kompakt] make all | tail: success, yet its output reports: --- FAIL: TestOne ⋯ FAIL\tone\n",
            ),
            ("grep -rn FAIL src", f"{WAITING}\nFAIL", "[kompakt] grep -rn FAIL src: success\n"),
            ("cd here\nmake all", WAITING, "[kompakt] cd here ⋯: success\n"),
            ("x" * 90, WAITING, f"[kompakt] {'x' * 60} ⋯: success\n"),
        ],
        ids=["success", "exit code", "reports failures", "quotes", "lines", "long"],
    )
    def test_it_states_how_a_command_ended(self, command: str, output: str, expected: str) -> None:
        """By what the result says itself; what is quoted reports nothing."""
        assert heading(run(command), result("a", output)) == expected

    def test_only_some_failures_are_repeated(self) -> None:
        """All of them are in the output below; this line is an overview."""
        failed = [f"--- FAIL: TestNumber{number} that goes on and on" for number in range(30)]
        found = heading(run("make"), result("a", "\n".join(failed)))
        assert failed[0] in found
        assert len(found) < 300

    def test_other_calls_have_none(self) -> None:
        """A file that was read is shown unchanged."""
        assert heading(ToolCall("a", "read", {"path": "a.py"}), result("a", WAITING)) == ""

    def test_it_is_the_first_line(self) -> None:
        """Above what is shown of the output, and the reference still below."""
        context = admit_all([user("go"), assistant(run("make all")), tool(result("a", WAITING))])
        shown = outputs(context.project())[0].split("\n")
        assert shown[0] == "[kompakt] make all: success"
        assert shown[1] == "waiting for it ⋯ 88 alike"
        assert f"Original: {context.reference(2, 0)}" in shown[-1]

    def test_an_output_is_left_alone_where_it_eats_the_gain(self) -> None:
        """A shortened output is shorter than the original, including its notes."""
        lines = [f"step {word * 3} of the whole is done now" for word in "abcdefghi"]
        text = "\n".join([*lines, *["and so it went on"] * 12])
        read, ran = ToolCall("a", "tool", {"place": 1}), run(f"make {' '.join('abcdefghijklmnopqrstuvwxyz')} all")
        found = [admit_all([user("go"), assistant(call), tool(result("a", text))]) for call in (read, ran)]
        assert [outputs(context.project())[0] == text for context in found] == [False, True]

    @given(
        command=st.text(min_size=1, max_size=90),
        lines=st.lists(st.sampled_from(["fine", "error: it broke", "Exit code 1", "12 of 13", ""]), max_size=12),
        copies=st.integers(1, 30),
    )
    def test_output_of_any_command(self, command: str, lines: list[str], copies: int) -> None:
        """One line, shorter than the input, deterministic; the message itself is unchanged."""
        messages = [user("go"), assistant(run(command)), tool(result("a", "\n".join(lines * copies)))]
        context = admit_all(messages)
        shown = list(context.project())
        assert shown == list(admit_all(messages).project())
        assert context.tokens <= Context(messages).tokens
        assert context.messages[2] == messages[2]
        if shown != messages and command.strip():
            first = outputs(shown)[0].split("\n")[0]
            assert first.startswith(f"[kompakt] {command.strip().split(chr(10))[0][:60].rstrip()}")
            assert msgspec.structs.asdict(context.messages[2]) == msgspec.structs.asdict(messages[2])
