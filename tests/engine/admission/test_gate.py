"""The gate: messages are admitted one by one, and decisions are final."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.sessions import outputs
from tests.histories.messages import assistant, result, tool, user

from kompakt.engine.admission import FIRM, GENTLE, Seen, admit_message
from kompakt.engine.context.context import Context
from kompakt.model.messages import Media, Message, ToolCall

LOW = msgspec.structs.replace(GENTLE, min_tokens=20)
WORDS = ("apple", "bread", "cloud", "dress", "eagle", "flame", "grape", "house")
LINES = [f"    {WORDS[n % 8]}.{WORDS[n // 8]} = total" for n in range(60)]
PAGE = "\n".join(f"{number:6}\t{line}" for number, line in enumerate(LINES, 1))


def ask(id: str, **given: object) -> Message:
    """Make a message with one call."""
    return assistant(ToolCall(id, "tool", given))


def admit_all(messages: Sequence[Message]) -> Context:
    """Append messages through the gate."""
    context, seen = Context(), Seen()
    for index, message in enumerate(messages):
        context.append(message)
        admit_message(context, index, seen, LOW)
    return context


class TestGate:
    def test_a_large_result_is_shown_shorter(self) -> None:
        """The message itself stays what it is; its reference is printed; totals follow."""
        messages = [user("go"), ask("a", path="a.py"), tool(result("a", PAGE))]
        whole = Context(messages)
        context = admit_all(messages)
        assert context.messages[2] == messages[2]
        assert outputs(context.project())[0].endswith(f"Original: {context.reference(2, 0)}")
        assert context.tokens < whole.tokens
        assert context.tokens == Context(context.project()).tokens

    def test_what_must_stay_is_left_alone(self) -> None:
        """Failed, hosted and fixed results, and small ones."""
        first, *rest = [result(id, PAGE) for id in "abc"]
        results = [
            msgspec.structs.replace(first, is_error=True),
            msgspec.structs.replace(rest[0], hosted=True),
            msgspec.structs.replace(rest[1], fixed=True),
            result("d", "done"),
        ]
        messages = [user("go"), assistant(*(ToolCall(id, "tool", {}) for id in "abcd")), tool(*results)]
        context = admit_all(messages)
        assert list(context.project()) == messages

    def test_a_picture_beside_the_text_is_not_lost(self) -> None:
        """A result with a picture stays whole: written shorter, it would be sent without it."""
        picture = Media("image", "image/png", "iVBORw0KGgo=")
        seen = msgspec.structs.replace(result("a", PAGE), media=(picture,))
        messages = [user("go"), ask("a", path="a.py"), tool(seen)]
        assert list(admit_all(messages).project()) == messages

    def test_what_the_agent_wrote_is_not_shown_to_it_again(self) -> None:
        """The lines are pointed to where the call has them."""
        messages = [user("go"), ask("a", path="a.py", text="\n".join(LINES)), tool(result("a", f"Written:\n{PAGE}"))]
        context = admit_all(messages)
        shown = outputs(context.project())[0]
        assert shown.startswith(f"Written:\n⋯ 1-60 as in {context.reference(1, 0)}\n")

    def test_a_failed_result_can_be_pointed_to(self) -> None:
        """It is in the context, too."""
        failed = msgspec.structs.replace(result("a", PAGE), is_error=True)
        messages = [user("go"), ask("a"), tool(failed), ask("b"), tool(result("b", PAGE))]
        context = admit_all(messages)
        assert f"Original: {context.reference(2, 0)}" in outputs(context.project())[1]

    def test_arguments_may_come_as_text(self) -> None:
        """Some wires carry them so."""
        call = ToolCall("a", "tool", msgspec.json.encode({"path": "a.py", "text": "\n".join(LINES)}).decode())
        context = admit_all([user("go"), assistant(call), tool(result("a", PAGE))])
        assert f"as in {context.reference(1, 0)}" in outputs(context.project())[0]

    def test_the_levels_differ(self) -> None:
        """Firm folds what gentle shows."""
        source = "\n".join(f"{n:6}\t{line}" for n, line in enumerate(["def work():", *LINES, "def rest():", *LINES], 1))
        shown: list[int] = []
        for level in (GENTLE, FIRM):
            context, seen = Context([user("go"), ask("a"), tool(result("a", source))]), Seen()
            assert admit_message(context, 2, seen, level)
            shown.append(len(outputs(context.project())[0]))
        assert shown[1] < shown[0] / 5

    @given(kinds=st.lists(st.integers(0, 3), min_size=1, max_size=8), more=st.integers(0, 3))
    def test_what_was_sent_is_sent_again(self, kinds: list[int], more: int) -> None:
        """A history that grew shows its beginning as before, byte for byte."""
        samples = (
            PAGE,
            PAGE[:900],
            "\n".join(["waiting for it"] * 90),
            '{\n    "a": [\n' + '        "b",\n' * 60 + '"c"]}',
        )
        messages = [user("go")]
        for place, kind in enumerate(kinds):
            messages += [ask(f"c{place}", path="a.py"), tool(result(f"c{place}", samples[kind]))]
        before = list(admit_all(messages).project())
        for place in range(more):
            messages += [ask(f"d{place}"), tool(result(f"d{place}", samples[place]))]
        assert list(admit_all(messages).project())[: len(before)] == before
