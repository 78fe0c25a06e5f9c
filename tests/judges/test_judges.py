"""The judges and the histories check each other.

Valid histories must be accepted and broken ones rejected. Invariant: a judge that becomes too strict or too lax fails
here before it misleads any other test.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.histories import FORMATS, bodies, plain
from tests.histories.broken import BROKEN, FORMAT_OF, HALF_CHARACTERS, broken
from tests.judges import judge
from tests.judges.anthropic import judge_alternation
from tests.judges.openai_chat import judge_mistral
from tests.judges.prefix import judge_rewrite

Body = dict[str, Any]

quick = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
CASES = [pytest.param(code, body, id=f"{code}: {said}") for code, cases in BROKEN.items() for said, body in cases]
PAIRING_FAULTS = ("drop a call", "drop a result", "duplicate a result", "mangle the id of a call")


def mistral_speaks(body: Body) -> bool:
    """Return whether a body stays within what Mistral can say at all.

    It knows four roles, plain text, image URLs and function calls; system messages never follow an assistant or a tool
    (MI-6), the last message is not the assistant's (MI-3), and the first one starts a conversation.
    """
    messages = body["messages"]
    roles = [message["role"] for message in messages]
    parts = [part for m in messages if isinstance(m.get("content"), list) for part in m["content"]]
    calls = [call for m in messages for call in m.get("tool_calls") or []]
    late_system = any(b == "system" and a in ("assistant", "tool") for a, b in pairwise(roles))
    return (
        set(roles) <= {"system", "user", "assistant", "tool"}
        and not any("function_call" in message for message in messages)
        and all(part["type"] in ("text", "image_url") for part in parts)
        and all(call["type"] == "function" for call in calls)
        and roles[0] in ("system", "user")
        and roles[-1] in ("user", "tool")
        and not late_system
    )


class TestValid:
    @pytest.mark.parametrize("format", FORMATS)
    def test_generated_bodies_are_accepted(self, format: str) -> None:
        """The judge of the format accepts everything that the strategies draw."""

        @quick
        @given(bodies(format))
        def check(body: Body) -> None:
            assert judge(format, body) == []

        check()

    @pytest.mark.parametrize("format", FORMATS)
    @pytest.mark.parametrize("parallel", [1, 4])
    def test_plain_sessions_are_accepted(self, format: str, parallel: int) -> None:
        """Scripted sessions of any length are valid, long enough, and the same each time."""
        for messages in (1, 2, 30, 301):
            body = plain.build(format, messages=messages, parallel=parallel)
            assert judge(format, body) == []
            assert body == plain.build(format, messages=messages, parallel=parallel)

    def test_unknown_format_is_named(self) -> None:
        """A typing error in a format does not pass for an accepted body."""
        with pytest.raises(ValueError, match="'openai'"):
            judge("openai", [])


class TestBroken:
    @pytest.mark.parametrize(("code", "body"), CASES)
    def test_each_case_is_rejected_for_its_code(self, code: str, body: Body) -> None:
        """A hand-written case is rejected for the rule it was written for."""
        if code.startswith("MI-"):
            assert judge_mistral(body)
        else:
            assert code in {fault.split()[0] for fault in judge(FORMAT_OF[code[:2]], body)}

    @pytest.mark.parametrize("format", FORMATS)
    def test_lone_surrogates_are_rejected_in_every_format(self, format: str) -> None:
        """No provider reads half of a surrogate pair."""
        for _, body in HALF_CHARACTERS[format]:
            assert [fault.split()[0] for fault in judge(format, body)] == ["TX-1"]

    @pytest.mark.parametrize("format", FORMATS)
    def test_drawn_faults_are_rejected(self, format: str) -> None:
        """The strategy of broken bodies yields only broken ones, each with the name of its fault."""

        @quick
        @given(broken(format))
        def check(case: tuple[str, Body]) -> None:
            name, body = case
            assert name
            assert judge(format, body)

        check()

    def test_adjacent_messages_of_one_role_are_distinguished(self) -> None:
        """Two user messages in a row pass the Anthropic judge but not the stricter one."""
        messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
        assert judge("anthropic", messages) == []
        assert len(judge_alternation(messages)) == 1


class TestMistral:
    @quick
    @given(bodies("openai-chat"))
    def test_it_accepts_every_valid_body_within_its_limits(self, body: Body) -> None:
        """Within its own limits, the validator of Mistral accepts every valid body."""
        assume(mistral_speaks(body))
        assert judge_mistral(body) == []

    @quick
    @given(broken("openai-chat"))
    def test_it_rejects_lost_pairs(self, case: tuple[str, Body]) -> None:
        """When a call and its result no longer match, both judges report it."""
        name, body = case
        assume(name in PAIRING_FAULTS and mistral_speaks(body))
        assert judge_mistral(body)


class TestRewrite:
    @pytest.mark.parametrize("format", FORMATS)
    def test_an_unchanged_body_is_no_rewrite(self, format: str) -> None:
        """Every blob of a body is where it was when nothing changed."""

        @quick
        @given(bodies(format))
        def check(body: Body) -> None:
            assert judge_rewrite(body, body, format) == []

        check()

    @pytest.mark.parametrize("format", ["anthropic", "bedrock"])
    def test_a_lost_head_unbinds_thinking(self, format: str) -> None:
        """Dropping the first round while later thinking stays is reported for every later block."""
        before = plain.build(format, messages=9)
        after = {**before, "messages": before["messages"][:1] + before["messages"][3:]}
        assert judge(format, after) == []
        assert {fault.split()[0] for fault in judge_rewrite(before, after, format)} == {"AN-14"}

    @given(st.integers(0, 3), st.integers(0, 3))
    @settings(deadline=None)
    def test_thinking_may_go_from_either_end(self, start: int, end: int) -> None:
        """The remaining thinking is contiguous, so it stays valid; with a gap it would not."""
        before = plain.build("anthropic", messages=9)
        after = {**before, "messages": [dict(message) for message in before["messages"]]}
        for place, at in enumerate((1, 3, 5, 7)):
            if place < start or place > end:
                after["messages"][at]["content"] = after["messages"][at]["content"][1:]
        assert judge_rewrite(before, after, "anthropic") == []

    def test_a_gap_in_the_thinking_is_reported(self) -> None:
        """Thinking taken from the middle invalidates what follows."""
        before = plain.build("anthropic", messages=9)
        after = {**before, "messages": [dict(message) for message in before["messages"]]}
        after["messages"][3]["content"] = after["messages"][3]["content"][1:]
        assert any(fault.startswith("AN-15") for fault in judge_rewrite(before, after, "anthropic"))

    @pytest.mark.parametrize("format", ["openai-responses", "anthropic", "gemini", "bedrock"])
    def test_an_edited_blob_is_reported(self, format: str) -> None:
        """A signature that is not in the original is always a fault."""
        before, other = plain.build(format, messages=6), plain.build(format, messages=6, seed=1)
        assert judge_rewrite(before, other, format)

    def test_a_call_that_lost_its_reasoning_is_reported(self) -> None:
        """The original shows that a message had reasoning, even if the rewrite has none."""
        before = plain.build("openai-responses", messages=6)
        after = {**before, "input": [item for item in before["input"] if item.get("type") != "reasoning"]}
        assert judge("openai-responses", after) == []
        assert any(fault.startswith("OR-3") for fault in judge_rewrite(before, after, "openai-responses"))
