"""Any JSON input is processed or rejected with an error of kompakt."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.histories import FORMATS, bodies

import kompakt
from kompakt.errors import KompaktError

every_format = pytest.mark.parametrize("format", FORMATS)

# fmt: off
WORDS = (
    "role", "user", "assistant", "model", "system", "tool", "developer", "content", "parts", "text", "type",
    "messages", "input", "contents", "tool_calls", "tool_call_id", "function", "name", "arguments", "id", "call_id",
    "function_call", "function_call_output", "output", "tool_use", "tool_result", "tool_use_id", "thinking",
    "signature", "toolUse", "toolResult", "toolUseId", "functionCall", "functionResponse", "args", "response",
    "status", "reasoning", "summary", "encrypted_content", "cache_control", "source", "data", "media_type", "url",
    "image", "image_url", "mcp_call", "system", "approval_request_id", "thoughtSignature", "cachePoint",
    "toolConfig", "tools", "instructions", "reasoningContent", "reasoningText",
)
# fmt: on
"""Field names and values of the formats, so that random values resemble payloads."""

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(WORDS), st.text(max_size=5), st.just("\ud800")
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(WORDS), inner, max_size=5)),
    max_leaves=25,
)


def _repair_twice(payload: Any, format: str | None) -> None:
    """Repair a payload, and the result again."""
    for strict in (False, True):
        repaired = kompakt.repair(payload, format, strict=strict)
        kompakt.repair(repaired.payload, format, strict=strict)


DOORS: dict[str, Callable[[Any, str | None], Any]] = {
    "check": kompakt.check,
    "check strictly": lambda payload, name: kompakt.check(payload, name, strict=True),
    "check at rest": lambda payload, name: kompakt.check(payload, name, resting=True),
    "repair": _repair_twice,
    "repair at rest": lambda payload, name: kompakt.repair(payload, name, resting=True),
    "count": lambda payload, name: kompakt.count(payload, format=name),
    "groups": kompakt.groups,
    "rounds": kompakt.rounds,
    "turns": kompakt.turns,
    "split": lambda payload, name: kompakt.split(payload, 2, name),
    "render": lambda payload, name: kompakt.render(kompakt.parse(payload, name)),
    "compact": lambda payload, name: kompakt.compact(payload, 60, format=name),
    "recall": lambda payload, name: kompakt.recall(payload, "read_file ok", format=name),
}


def try_all(payload: Any, format: str | None) -> None:
    """Call every public function; only errors of kompakt may be raised."""
    for door in DOORS.values():
        with contextlib.suppress(KompaktError):
            door(payload, format)


def places(value: Any) -> list[tuple[Any, Any]]:
    """List every place in a value as its holder and key."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in pairs for place in [(value, key), *places(inner)]]


class TestAnything:
    @given(values)
    def test_any_value_in_an_unknown_format(self, payload: Any) -> None:
        """A value that may or may not be a history."""
        try_all(payload, None)

    @every_format
    @given(payload=values)
    def test_any_value_under_a_given_format(self, format: str, payload: Any) -> None:
        """The same, where the caller insists on a format."""
        try_all(payload, format)

    @every_format
    @given(items=st.lists(values, max_size=4), body=st.dictionaries(st.sampled_from(WORDS), values, max_size=3))
    def test_any_messages_in_any_envelope(self, format: str, items: list[Any], body: dict[str, Any]) -> None:
        """Values where messages should be, among values where settings should be."""
        key = {"openai-responses": "input", "gemini": "contents"}.get(format, "messages")
        try_all({**body, key: items}, format)


class TestMutated:
    @every_format
    @given(data=st.data())
    def test_a_body_with_something_else_in_one_place(self, format: str, data: st.DataObject) -> None:
        """One field of a valid body, at any depth, has a value of any type."""
        body = copy.deepcopy(data.draw(bodies(format, max_turns=2, max_steps=2, max_batch=2)))
        holder, key = data.draw(st.sampled_from(places(body)))
        holder[key] = data.draw(values)
        try_all(body, format)
        try_all(body, None)

    @every_format
    @given(data=st.data())
    def test_a_body_with_something_missing(self, format: str, data: st.DataObject) -> None:
        """One field of a valid body, at any depth, is not there."""
        body = copy.deepcopy(data.draw(bodies(format, max_turns=2, max_steps=2, max_batch=2)))
        holder, key = data.draw(st.sampled_from(places(body)))
        del holder[key]
        try_all(body, format)

    @every_format
    @given(data=st.data())
    def test_a_body_with_something_moved(self, format: str, data: st.DataObject) -> None:
        """One value of a valid body replaces another."""
        body = copy.deepcopy(data.draw(bodies(format, max_turns=2, max_steps=2, max_batch=2)))
        all_places = places(body)
        (one, key), (other, there) = data.draw(st.sampled_from(all_places)), data.draw(st.sampled_from(all_places))
        other[there] = copy.deepcopy(one[key])
        try_all(body, format)


class TestDepth:
    @every_format
    @pytest.mark.parametrize("depth", [100, 150, 900, 10_000, 100_000])
    def test_nested_values_are_accepted_or_rejected(self, format: str, depth: int) -> None:
        """No depth of nesting ends in anything but an answer or an error of ours."""
        value: Any = "x"
        for _ in range(depth):
            value = [value]
        key = {"openai-responses": "input", "gemini": "contents"}.get(format, "messages")
        inner = "parts" if format == "gemini" else "content"
        try_all({key: [{"role": "user", inner: value}]}, format)
        try_all({key: [{"role": "user", inner: [{"type": "text", "text": "a", "x": value}]}], "tools": value}, format)

    @every_format
    @pytest.mark.parametrize("depth", [150, 900, 10_000])
    def test_nested_inputs_and_outputs_of_tools(self, format: str, depth: int) -> None:
        """A tool may be given, and may answer, what is nested deeply: as a value, or as JSON text."""
        value: Any = "word " * 400
        for _ in range(depth):
            value = {"a": value}
        deep_text = '{"a":' * depth + '"' + "word " * 400 + '"' + "}" * depth
        for given_input in (value, deep_text):
            try_all(tool_round(format, given_input, deep_text), format)
            with contextlib.suppress(KompaktError):
                kompakt.compact(tool_round(format, given_input, deep_text), 300, format=format)


def tool_round(format: str, given: Any, output: str) -> dict[str, Any]:
    """Write a request whose newest call was given this and answered that."""
    text = given if isinstance(given, str) else "{}"
    match format:
        case "openai-chat":
            call: Any = {"id": "a", "type": "function", "function": {"name": "f", "arguments": text}}
            return {
                "messages": [
                    {"role": "user", "content": "go"},
                    {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "a", "content": output},
                ]
            }
        case "openai-responses":
            return {
                "input": [
                    {"role": "user", "content": "go"},
                    {"type": "function_call", "call_id": "a", "name": "f", "arguments": text},
                    {"type": "function_call_output", "call_id": "a", "output": output},
                ]
            }
        case "anthropic":
            use = {"type": "tool_use", "id": "a", "name": "f", "input": given}
            result = {"type": "tool_result", "tool_use_id": "a", "content": output}
            answered = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
            return {"messages": [{"role": "user", "content": "go"}, *answered]}
        case "gemini":
            call = {"functionCall": {"name": "f", "args": given}}
            response = {"functionResponse": {"name": "f", "response": {"output": output}}}
            answered = [{"role": "model", "parts": [call]}, {"role": "user", "parts": [response]}]
            return {"contents": [{"role": "user", "parts": [{"text": "go"}]}, *answered]}
        case _:
            use = {"toolUse": {"toolUseId": "a", "name": "f", "input": given}}
            result = {"toolResult": {"toolUseId": "a", "content": [{"json": given}, {"text": output}]}}
            answered = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
            return {"messages": [{"role": "user", "content": [{"text": "go"}]}, *answered]}


class TestNumbers:
    @every_format
    @pytest.mark.parametrize("digits", [4_400, 10_000])
    def test_integers_that_python_cannot_write_are_rejected(self, format: str, digits: int) -> None:
        """In any place: in a message, in the input of a tool, in the body."""
        number = 10**digits
        for body in (
            {**tool_round(format, {"n": number}, "ok"), "tools": [{"n": number}]},
            {**tool_round(format, "{}", "ok"), "seed": number},
        ):
            for door in DOORS.values():
                with pytest.raises(kompakt.InputError, match="digits"):
                    door(body, format)

    @every_format
    def test_long_numbers_in_texts_are_taken(self, format: str) -> None:
        """Text is text."""
        try_all(tool_round(format, '{"n": ' + "9" * 10_000 + "}", "9" * 10_000), format)


class TestShapes:
    @every_format
    @pytest.mark.parametrize("content", [True, False, 5, 1.5, [1], [True], ["x"], [None], [[]], {"a": 1}])
    def test_content_of_a_wrong_type_is_rejected_or_accepted(self, format: str, content: Any) -> None:
        """Also in a message with an unknown role."""
        key, inner = ("contents", "parts") if format == "gemini" else ("messages", "content")
        key = "input" if format == "openai-responses" else key
        for role in ("user", "assistant", "system", "tool", "narrator"):
            try_all({key: [{"role": "user", inner: content}, {"role": role, inner: content}]}, format)


class TestArguments:
    BODY: ClassVar[dict[str, Any]] = {"model": "gpt-5.4", "messages": [{"role": "user", "content": "hello there"}]}

    @pytest.mark.parametrize("pins", [5, None, True, "text", [None], [[]], [""], [{}], [1.5], [99], object()])
    def test_pins_that_cannot_be_meant(self, pins: Any) -> None:
        """The error names what to pass instead."""
        with pytest.raises(kompakt.UsageError):
            kompakt.compact(self.BODY, 1_000, pins=pins)

    @pytest.mark.parametrize(
        "options",
        [
            {"budget": "many"},
            {"budget": 0},
            {"budget": -5},
            {"budget": True},
            {"budget": 1.5},
            {"budget": float("nan")},
            {"budget": []},
            {"budget": 1_000, "policy": 5},
            {"budget": 1_000, "policy": "no such"},
            {"budget": 1_000, "policy": []},
            {"budget": 1_000, "model": 5},
            {"budget": 1_000, "instructions": 5},
            {"budget": 1_000, "progress": 5},
        ],
    )
    def test_options_that_cannot_be_meant(self, options: dict[str, Any]) -> None:
        """Every one is named."""
        with pytest.raises(kompakt.UsageError):
            kompakt.compact(self.BODY, **options)

    @pytest.mark.parametrize("format", ["claude", 5, [], {}, b"anthropic"])
    def test_formats_that_there_are_not(self, format: Any) -> None:
        """At every door."""
        for name, door in DOORS.items():
            with pytest.raises(kompakt.UnknownFormat):
                door(self.BODY, format)
            assert name

    @pytest.mark.parametrize(
        "ask",
        [
            lambda body: kompakt.recall(body, 5),
            lambda body: kompakt.recall(body, None),
            lambda body: kompakt.recall(body, "x", tokens=0),
            lambda body: kompakt.recall(body, "x", tokens="many"),
            lambda body: kompakt.recall(body, "x", tokens=True),
            lambda body: kompakt.recall(body, "x", tokens=1.5),
            lambda body: kompakt.count(body, model=5),
            lambda body: kompakt.split(body, -1),
            lambda body: kompakt.split(body, "x"),
            lambda body: kompakt.split(body, None),
        ],
    )
    def test_questions_that_cannot_be_meant(self, ask: Callable[[Any], Any]) -> None:
        """It is rejected as wrong usage."""
        with pytest.raises(kompakt.UsageError):
            ask(self.BODY)
