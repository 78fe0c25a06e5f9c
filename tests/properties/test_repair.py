"""Broken histories are reported and repaired with as few changes as possible.

The judges are at least as strict as any server, so ``strict`` is used. Invariant: a repair never changes valid
messages.
"""

from __future__ import annotations

import json
import re
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.histories import FORMATS, bodies, plain
from tests.histories.broken import BROKEN, FORMAT_OF, HALF_CHARACTERS, broken
from tests.histories.faults import listed
from tests.judges import judge
from tests.judges.openai_chat import judge_mistral

import kompakt

Body = dict[str, Any]

every_format = pytest.mark.parametrize("format", FORMATS)
CASES = [
    pytest.param(code, FORMAT_OF[code[:2]], body, id=f"{code}: {said}")
    for code, cases in BROKEN.items()
    for said, body in cases
] + [
    pytest.param("TX-1", format, body, id=f"TX-1: {format}, {said}")
    for format, cases in HALF_CHARACTERS.items()
    for said, body in cases
]

ALIASES = {
    # An id that names two calls of one message: the judge misses an answer (OC-1), kompakt names the id (OC-3).
    "OC-1": {"OC-3"},
    # Mistral counts results against calls; OpenAI's own rules say which is missing (OC-1) and which is double (OC-3).
    "MI-4": {"OC-1", "OC-3"},
    # A system message between call and result: kompakt names the results it keeps apart (AN-4).
    "AN-1": {"AN-4"},
}
"""Codes that name the same fault as the one a case was written for."""


def text(value: Any) -> str:
    """Write a value as the exact JSON it is sent as."""
    return json.dumps(value)


def faults(format: str, payload: Any) -> list[str]:
    """Return the faults that the judge finds."""
    return judge(format, payload)


def index_of(path: str) -> int | None:
    """Read the index of the message that a path names."""
    found = re.match(r"(?:messages|input|contents)[\[.](\d+)", path)
    return int(found[1]) if found else None


class TestBrokenCases:
    """One hand-written body for each rule of each provider."""

    @pytest.mark.parametrize(("code", "format", "body"), CASES)
    def test_each_is_flagged_with_its_code(self, code: str, format: str, body: Body) -> None:
        """The rule that the body was written to break is named."""
        found = {problem.code for problem in kompakt.check(body, format, strict=True)}
        assert found & ({code} | ALIASES.get(code, set()))

    @pytest.mark.parametrize(("code", "format", "body"), CASES)
    def test_each_is_repaired_or_reported(self, code: str, format: str, body: Body) -> None:
        """After a repair only unrepairable problems remain, and the judge agrees."""
        before = deepcopy(body)
        repaired = kompakt.repair(body, format, strict=True)
        assert body == before
        assert repaired.changed or repaired.remaining
        assert [problem for problem in repaired.remaining if problem.repairable] == []
        assert repaired.remaining or faults(format, repaired.payload) == []

    @pytest.mark.parametrize(("code", "format", "body"), [c for c in CASES if c.values[1] == "openai-chat"])
    def test_repaired_chats_are_valid_for_mistral(self, code: str, format: str, body: Body) -> None:
        """An independent judge accepts the result of a strict repair."""
        repaired = kompakt.repair(body, format, strict=True)
        assert repaired.remaining or judge_mistral(repaired.payload) == []

    def test_unrepairable_problems_are_reported(self) -> None:
        """An empty history is reported, not filled with invented text."""
        repaired = kompakt.repair({"model": "gpt-5.4", "messages": []}, "openai-chat")
        assert [problem.repairable for problem in repaired.remaining] == [False]
        assert repaired.payload == {"model": "gpt-5.4", "messages": []}


class TestDrawnFaults:
    """Valid bodies with one fault made in them."""

    @every_format
    @given(data=st.data())
    def test_they_are_found(self, format: str, data: st.DataObject) -> None:
        """What a provider rejects is never reported as valid."""
        _, body = data.draw(broken(format))
        assert kompakt.check(body, format, strict=True)

    @every_format
    @given(data=st.data())
    def test_they_are_repaired(self, format: str, data: st.DataObject) -> None:
        """Nothing repairable is left, unless a message with an unknown role prevents it; the judge agrees."""
        fault, body = data.draw(broken(format))
        repaired = kompakt.repair(body, format, strict=True)
        if fault != "misname a role":
            assert [problem for problem in repaired.remaining if problem.repairable] == []
        assert not repaired.remaining or any(not problem.repairable for problem in repaired.remaining)
        assert repaired.remaining or faults(format, repaired.payload) == []

    @every_format
    @given(data=st.data(), strict=st.booleans())
    def test_once_is_enough(self, format: str, data: st.DataObject, strict: bool) -> None:
        """Repairing a repaired history changes nothing."""
        _, body = data.draw(broken(format))
        first = kompakt.repair(body, format, strict=strict)
        second = kompakt.repair(first.payload, format, strict=strict)
        assert second.changes == ()
        assert text(second.payload) == text(first.payload)
        assert second.remaining == first.remaining

    @every_format
    @given(data=st.data(), strict=st.booleans())
    def test_the_input_is_left_alone(self, format: str, data: st.DataObject, strict: bool) -> None:
        """A repair writes a new payload and never into the one it was given."""
        _, body = data.draw(broken(format))
        before = text(body)
        kompakt.repair(body, format, strict=strict)
        assert text(body) == before

    @every_format
    @given(data=st.data())
    def test_check_and_repair_agree(self, format: str, data: st.DataObject) -> None:
        """Changes are made when there are problems and only then; what remains is what a new check finds."""
        _, body = data.draw(broken(format))
        problems = kompakt.check(body, format)
        repaired = kompakt.repair(body, format)
        assert bool(problems) == bool(repaired.changes or repaired.remaining)
        assert tuple(kompakt.check(repaired.payload, format)) == repaired.remaining


class TestLittleChange:
    """Unchanged messages are byte-equal."""

    @every_format
    @given(data=st.data())
    def test_messages_that_were_fine_stay_the_same_objects(self, format: str, data: st.DataObject) -> None:
        """A message is rebuilt only when a change names it, its neighbour, or one that shares an id with these."""
        _, body = data.draw(broken(format))
        items = listed(format, body)
        repaired = kompakt.repair(body, format)
        assume(listed(format, repaired.payload))
        kept = {id(item) for item in listed(format, repaired.payload)}
        for index in untouched(items, repaired.changes):
            assert id(items[index]) in kept

    @pytest.mark.parametrize("format", FORMATS)
    def test_one_lost_result_costs_one_message(self, format: str) -> None:
        """In a session of 200 messages with one result lost, all others are the very objects they were."""
        body = plain.build(format, messages=200)
        items = listed(format, body)
        lost = _result_from(format, items, 60)
        given_body = {**body, _key(format): [item for i, item in enumerate(items) if i != lost]}
        repaired = kompakt.repair(given_body, format)
        before = {id(item) for item in items}
        rebuilt = [item for item in listed(format, repaired.payload) if id(item) not in before]
        assert len(repaired.changes) >= 1
        assert len(rebuilt) <= 2
        assert "Interrupted" in text(rebuilt)


def _key(format: str) -> str:
    return {"openai-responses": "input", "gemini": "contents"}.get(format, "messages")


def _result_from(format: str, items: list[Any], start: int) -> int:
    """Return the first message from ``start`` on that contains only a result."""
    marks = ('"role": "tool"', "function_call_output", '"tool_result"', "functionResponse", "toolResult")
    return next(
        i
        for i in range(start, len(items))
        if any(mark in text(items[i]) for mark in marks) and not any(said in text(items[i]) for said in plain.REQUESTS)
    )


def untouched(items: list[Any], changes: tuple[kompakt.Change, ...]) -> list[int]:
    """List the messages that no change has any business with."""
    if any(index_of(change.path) is None for change in changes):
        return []
    named = {index_of(change.path) for change in changes}
    near = {index + step for index in named if index is not None for step in (-1, 0, 1)}
    ids = {id_ for index in near if 0 <= index < len(items) for id_ in ids_in(items[index])}
    related = {i for i, item in enumerate(items) if ids & set(ids_in(item))}
    near |= {index + step for index in related for step in (-1, 0, 1)}
    return [i for i in range(len(items)) if i not in near]


def ids_in(value: Any) -> list[str]:
    """List the ids by which calls and results find one another."""
    if isinstance(value, list):
        return [found for inner in value for found in ids_in(inner)]
    if not isinstance(value, dict):
        return []
    keys = ("id", "call_id", "tool_call_id", "tool_use_id", "toolUseId", "approval_request_id")
    here = [value[key] for key in keys if isinstance(value.get(key), str)]
    names = [value["name"]] if isinstance(value.get("name"), str) and ("args" in value or "response" in value) else []
    inner = [found for key, child in value.items() if key not in ("input", "args") for found in ids_in(child)]
    return here + names + inner


class TestMistral:
    """C11: compliance is tested with independent judges where they exist."""

    @given(body=bodies("openai-chat"))
    def test_strictly_repaired_bodies_pass(self, body: Body) -> None:
        """Any valid chat that Mistral can express passes its own validator after a strict repair."""
        assume(mistral_has_words_for(body))
        repaired = kompakt.repair(body, strict=True, format="openai-chat")
        assert repaired.remaining == ()
        assert judge_mistral(repaired.payload) == []

    @given(case=broken("openai-chat"))
    def test_strictly_repaired_broken_bodies_pass(self, case: tuple[str, Body]) -> None:
        """Any broken one, too."""
        _, body = case
        assume(mistral_has_words_for(body))
        repaired = kompakt.repair(body, strict=True, format="openai-chat")
        assert repaired.remaining or judge_mistral(repaired.payload) == []


def mistral_has_words_for(body: Body) -> bool:
    """Return whether a body has only the roles, content types and calls that Mistral supports."""
    messages = body["messages"]
    parts = [part for m in messages if isinstance(m.get("content"), list) for part in m["content"]]
    calls = [call for m in messages for call in m.get("tool_calls") or []]
    return (
        {message["role"] for message in messages} <= {"system", "user", "assistant", "tool"}
        and not any("function_call" in message for message in messages)
        and all(part["type"] in ("text", "image_url") for part in parts)
        and all(call["type"] == "function" for call in calls)
    )


class TestRegressions:
    """Rows of failures.md and faults that these properties once found."""

    def test_trailing_open_calls_are_closed(self) -> None:
        """pi: the repair covers the end of the list."""
        call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        history = [{"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
        repaired = kompakt.repair(history)
        assert repaired.payload[-1]["tool_call_id"] == "a"
        assert judge("openai-chat", repaired.payload) == []

    def test_the_context_never_ends_in_an_assistant_message_where_prefill_is_rejected(self) -> None:
        """DCP#463: the list ends in user or tool content."""
        body = {
            "model": "claude-opus-5-5",
            "max_tokens": 100,
            "messages": [{"role": "user", "content": "go"}, {"role": "assistant", "content": "hm"}],
        }
        assert [problem.code for problem in kompakt.check(body)] == ["AN-19"]
        assert kompakt.repair(body).payload["messages"][-1]["role"] == "user"

    def test_thinking_stays_byte_identical_or_is_removed(self) -> None:
        """claude-code#12362: a repair elsewhere does not edit, split or re-order signed thinking."""
        body = plain.build("anthropic", messages=21)
        del body["messages"][20]["content"][0]
        body["messages"][20]["content"].append({"type": "text", "text": "and?"})
        repaired = kompakt.repair(body)
        signed = {text(b) for m in body["messages"] for b in m["content"] if b["type"] == "thinking"}
        kept = [text(b) for m in repaired.payload["messages"] for b in m["content"] if b["type"] == "thinking"]
        assert repaired.changes
        assert set(kept) <= signed

    def test_a_renamed_id_does_not_cost_a_result_its_parts(self) -> None:
        """A shorter id of a call does not change the content of its result."""
        call = {"id": "c" * 46, "type": "function", "function": {"name": "f", "arguments": "{}"}}
        content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]
        repaired = kompakt.repair(
            [
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c" * 46, "content": content},
            ]
        )
        assert repaired.payload[2]["content"] == content
        assert repaired.payload[2]["tool_call_id"] == repaired.payload[1]["tool_calls"][0]["id"]

    def test_a_function_message_of_the_older_api_finds_its_call(self) -> None:
        """A function message apart from its call is moved back; one with another name is removed."""
        said = {"role": "user", "content": "go"}
        call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
        answer = {"role": "function", "name": "f", "content": "1"}
        stranger = {"role": "function", "name": "g", "content": "2"}
        repaired = kompakt.repair([said, call, stranger, said, answer], "openai-chat")
        assert repaired.payload == [said, call, answer, said]
        assert repaired.remaining == ()


def said(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    """Append messages to a request."""
    return [{"role": "user", "content": "go"}, *messages]


FUNCTION_CALL = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
TOOL_CALL = {"id": "f", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USE = {"type": "tool_use", "id": "a", "name": "read", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "done"}
TEXT = {"type": "text", "text": "hm"}
THINKING = {"type": "thinking", "thinking": "hm", "signature": "EqQB"}

ONE_PASS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "a function message that answers no function call": (
        "openai-chat",
        said({"role": "function", "name": "f", "content": "1"}),
    ),
    "a function message named like the id of a call": (
        "openai-chat",
        said(
            {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]},
            {"role": "function", "name": "f", "content": "1"},
        ),
    ),
    "a function message after another": (
        "openai-chat",
        said(FUNCTION_CALL, *[{"role": "function", "name": "f", "content": "1"}] * 2),
    ),
    "both kinds of call in one message": (
        "openai-chat",
        said({**FUNCTION_CALL, "tool_calls": [TOOL_CALL]}, {"role": "function", "name": "f", "content": "1"}),
    ),
    "an assistant message without content": ("openai-chat", said({"role": "assistant"})),
    "an empty object where calls should be": ("openai-chat", said({"role": "assistant", "tool_calls": {}})),
    "a call without an id and a type": (
        "openai-chat",
        said({"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}),
    ),
    "a call of a type that there is not": (
        "openai-chat",
        said({"role": "assistant", "content": None, "tool_calls": [{**TOOL_CALL, "type": "tool"}]}),
    ),
    "calls of the user": ("openai-chat", said({"role": "user", "content": "x", "tool_calls": [TOOL_CALL]})),
    "an assistant message without content, in Anthropic's words": (
        "anthropic",
        said({"role": "assistant"}, {"role": "user", "content": "on"}),
    ),
    "a tool_use in a user message": ("anthropic", [{"role": "user", "content": [TEXT, USE, TEXT]}]),
    "a tool_use in a user message, answered": (
        "anthropic",
        [{"role": "user", "content": [TEXT, USE]}, {"role": "user", "content": [RESULT]}],
    ),
    "a tool_result in an assistant message": (
        "anthropic",
        said({"role": "assistant", "content": [USE, RESULT, TEXT]}, {"role": "user", "content": "on"}),
    ),
    "thinking in a user message": ("anthropic", [{"role": "user", "content": [THINKING, TEXT]}]),
    "an input that is a list, with an unknown field": (
        "anthropic",
        said(
            {"role": "assistant", "content": [{**USE, "input": [1], "note": 1}]},
            {"role": "user", "content": [RESULT]},
        ),
    ),
    "white space at the end of several last texts": (
        "anthropic",
        said({"role": "assistant", "content": [{**TEXT, "text": "ok "}, {**TEXT, "text": " "}]}),
    ),
    "a server call with the id of another call": (
        "anthropic",
        said(
            {
                "role": "assistant",
                "content": [
                    USE,
                    {"type": "server_tool_use", "id": "a", "name": "web_search", "input": {}},
                    {"type": "web_search_tool_result", "tool_use_id": "a", "content": []},
                ],
            },
            {"role": "user", "content": [RESULT]},
        ),
    ),
    "an item of the type text": ("openai-responses", said({"type": "text", "text": "x"})),
}


class TestOnePass:
    """A second repair changes nothing."""

    @pytest.mark.parametrize("case", ONE_PASS)
    @pytest.mark.parametrize("strict", [False, True])
    def test_one_pass_is_enough(self, case: str, strict: bool) -> None:
        """The problem is reported, solved at once, and nothing that could be solved is left."""
        format, messages = ONE_PASS[case]
        assert kompakt.check(messages, format, strict=strict)
        once = kompakt.repair(messages, format, strict=strict)
        assert [problem for problem in kompakt.check(once.payload, format, strict=strict) if problem.repairable] == []
        twice = kompakt.repair(once.payload, format, strict=strict)
        assert twice.changes == ()
        assert text(twice.payload) == text(once.payload)

    def test_no_text_is_lost_when_a_call_changes_sides(self) -> None:
        """Each block moves to a message of its role, in the same order."""
        messages: list[Any] = [{"role": "user", "content": [TEXT, USE, {**TEXT, "text": "and"}]}]
        repaired = kompakt.repair(messages, "anthropic").payload
        assert [message["role"] for message in repaired] == ["user", "assistant", "user", "user"]
        assert [repaired[0]["content"], repaired[1]["content"]] == [[TEXT], [USE]]
        assert repaired[3]["content"] == [{**TEXT, "text": "and"}]

    def test_system_text_before_an_empty_first_message_is_not_lost(self) -> None:
        """A message that becomes the first one by the repair is not used as the system prompt."""
        body: dict[str, Any] = {
            "model": "claude-opus-4-1",
            "max_tokens": 64,
            "messages": [{"role": "user", "content": ""}, {"role": "system", "content": "be brief"}],
        }
        assert "be brief" in text(kompakt.repair(body).payload)
