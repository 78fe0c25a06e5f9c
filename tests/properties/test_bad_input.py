"""Anything may come in: whatever JSON a caller holds, kompakt works on it or says so with an error of its own."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

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
"""What formats are made of, so that random values come near to being one."""

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(WORDS), st.text(max_size=5), st.just("\ud800")
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(WORDS), inner, max_size=5)),
    max_leaves=25,
)


def _repair_twice(payload: Any, format: str | None) -> None:
    """Repair a payload, and what came out of that."""
    for strict in (False, True):
        mended = kompakt.repair(payload, format, strict=strict)
        kompakt.repair(mended.payload, format, strict=strict)


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
    """Go through every door; only our own errors may come back."""
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
        """One field of a valid body, at any depth, holds a value of any type."""
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
        """One value of a valid body stands in the place of another."""
        body = copy.deepcopy(data.draw(bodies(format, max_turns=2, max_steps=2, max_batch=2)))
        all_places = places(body)
        (one, key), (other, there) = data.draw(st.sampled_from(all_places)), data.draw(st.sampled_from(all_places))
        other[there] = copy.deepcopy(one[key])
        try_all(body, format)


class TestDepth:
    @every_format
    @pytest.mark.parametrize("depth", [100, 900, 5_000, 100_000])
    def test_nested_values_are_taken_or_refused(self, format: str, depth: int) -> None:
        """No depth of nesting ends in anything but an answer or an error of ours."""
        value: Any = "x"
        for _ in range(depth):
            value = [value]
        key = {"openai-responses": "input", "gemini": "contents"}.get(format, "messages")
        inner = "parts" if format == "gemini" else "content"
        try_all({key: [{"role": "user", inner: value}]}, format)
        try_all({key: [{"role": "user", inner: [{"type": "text", "text": "a", "x": value}]}], "tools": value}, format)
