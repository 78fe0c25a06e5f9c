"""Parsing, rendering, checking and repairing are lossless on every format.

The judges are independent of the package. Invariant: a valid history is never changed.
"""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.histories import FORMATS, bodies, plain
from tests.histories.faults import listed
from tests.judges import judge

import kompakt
from kompakt.model.messages import Opaque, Reasoning, ToolCall, ToolResult

Body = dict[str, Any]

few = settings(max_examples=max(10, settings.default.max_examples // 8))
"""For properties over pairs of formats, of which there are twenty-five."""

every_format = pytest.mark.parametrize("format", FORMATS)


def text(value: Any) -> str:
    """Write a value as the exact JSON it is sent as: order of keys included."""
    return json.dumps(value)


def items_of(format: str, payload: Any) -> list[Any]:
    """Return the messages of a payload; a plain string input is one."""
    if isinstance(payload, list):
        return payload
    found = payload[{"openai-responses": "input", "gemini": "contents"}.get(format, "messages")]
    return found if isinstance(found, list) else [found]


class TestRoundTrip:
    """E1: what the engine did not touch is rendered byte-equal."""

    @every_format
    @given(data=st.data())
    def test_a_body_comes_out_as_it_went_in(self, format: str, data: st.DataObject) -> None:
        """Parsing and rendering a request body gives the same JSON text."""
        body = data.draw(bodies(format))
        assert text(kompakt.render(kompakt.parse(body, format))) == text(body)

    @every_format
    @given(data=st.data())
    def test_untouched_messages_are_the_very_objects(self, format: str, data: st.DataObject) -> None:
        """No message is copied on its way through, in a body or in a bare list."""
        body = data.draw(bodies(format))
        items = items_of(format, body)
        for payload in (body, items):
            rendered = items_of(format, kompakt.render(kompakt.parse(payload, format)))
            assert [id(item) for item in rendered] == [id(item) for item in items]

    @every_format
    @given(data=st.data())
    def test_parsing_leaves_the_input_alone(self, format: str, data: st.DataObject) -> None:
        """Nothing that reads a payload writes to it."""
        body = data.draw(bodies(format))
        before = deepcopy(body)
        history = kompakt.parse(body, format)
        kompakt.render(history)
        kompakt.check(body, format)
        kompakt.count(body, format=format)
        kompakt.groups(body, format)
        kompakt.split(body, 1, format)
        assert text(body) == text(before)

    @every_format
    def test_long_sessions_come_out_as_they_went_in(self, format: str) -> None:
        """A scripted session of a thousand messages is valid and survives the round trip."""
        body = plain.build(format, messages=1000, parallel=3, mean_chars=50)
        assert text(kompakt.render(kompakt.parse(body, format))) == text(body)
        assert kompakt.check(body, format) == []


class TestCheck:
    """C11, E1: what the providers accept, kompakt accepts."""

    @every_format
    @given(data=st.data())
    def test_a_valid_body_has_no_problems(self, format: str, data: st.DataObject) -> None:
        """No false alarm on any body that the judge accepts."""
        body = data.draw(bodies(format))
        assert kompakt.check(body, format) == []

    @every_format
    @given(data=st.data())
    def test_a_valid_body_needs_no_repair(self, format: str, data: st.DataObject) -> None:
        """Repairing a valid body changes nothing and reports nothing."""
        body = data.draw(bodies(format))
        repaired = kompakt.repair(body, format)
        assert repaired.changes == ()
        assert repaired.remaining == ()
        assert not repaired.changed
        assert text(repaired.payload) == text(body)


UNKNOWN_PARTS: dict[str, Body] = {
    "openai-chat": {"type": "hologram", "hologram": {"depth": 3}},
    "openai-responses": {"type": "hologram", "id": "hg_1", "depth": 3},
    "anthropic": {"type": "hologram", "depth": 3},
    "gemini": {"hologram": {"depth": 3}},
    "bedrock": {"hologram": {"depth": 3}},
}


def with_unknowns(format: str) -> Body:
    """Return a session with a field and a part that no provider has yet."""
    body = deepcopy(plain.build(format, messages=12))
    items = items_of(format, body)
    said = next(item for item in items if item.get("role") == "user")
    said["x_trace"] = {"span": [1, None, "é"]}
    if format == "openai-responses":
        items.insert(1, UNKNOWN_PARTS[format])
    else:
        key = "parts" if format == "gemini" else "content"
        content = said[key]
        said[key] = [
            *([{"type": "text", "text": content}] if isinstance(content, str) else content),
            UNKNOWN_PARTS[format],
        ]
    return {**body, "x_experiment": {"on": True, "ratio": -0.0}}


class TestUnknown:
    """B1: an opaque part for what a provider adds."""

    @every_format
    def test_unknown_fields_and_parts_survive(self, format: str) -> None:
        """Unknown fields are rendered byte for byte."""
        body = with_unknowns(format)
        history = kompakt.parse(body, format)
        assert text(kompakt.render(history)) == text(body)
        assert any(type(part) is Opaque for message in history for part in message.parts)

    @every_format
    def test_unknown_parts_are_counted(self, format: str) -> None:
        """Unknown content still counts."""
        body = with_unknowns(format)
        assert kompakt.count(body, format=format).by_kind["other"] > 0

    def test_a_repair_elsewhere_leaves_unknown_fields_alone(self) -> None:
        """Repairing one message keeps the extra fields of others and of the body."""
        body = with_unknowns("openai-chat")
        strange = body["messages"][1]
        body["messages"] = [m for m in body["messages"] if m.get("tool_call_id") != "call_000002"]
        repaired = kompakt.repair(body)
        assert repaired.changes
        assert repaired.payload["messages"][1] is strange
        assert repaired.payload["x_experiment"] == {"on": True, "ratio": -0.0}

    def test_an_edited_message_keeps_its_other_fields(self) -> None:
        """Only the parts of an edited message are rendered again."""
        raw = {"role": "user", "x_trace": 7, "content": "go"}
        history = kompakt.parse([raw, {"role": "tool", "tool_call_id": "a", "content": "x"}])
        edited = history[0].with_parts([kompakt.Text("stop")])
        assert kompakt.render(history.with_messages([edited])) == [{"role": "user", "x_trace": 7, "content": "stop"}]
        assert raw["content"] == "go"


MODELS = {
    "openai-chat": "gpt-5.4",
    "openai-responses": "gpt-5.4",
    "anthropic": "claude-opus-5-5",
    "gemini": "gemini-3-pro-preview",
    "bedrock": "anthropic.claude-opus-5-5-v1:0",
}
"""The model of the next request: a history that changes its format changes its model, which decides some rules."""


def losses(history: kompakt.History) -> int:
    """Count the parts that no other format can express."""
    return sum(
        isinstance(part, Reasoning | Opaque) or (isinstance(part, ToolCall | ToolResult) and part.hosted)
        for message in (*history.system, *history)
        for part in message.parts
    )


class TestConversion:
    """A translated history is valid for the target provider."""

    @pytest.mark.parametrize("target", FORMATS)
    @every_format
    @few
    @given(data=st.data())
    def test_the_target_accepts_it_after_repair(self, format: str, target: str, data: st.DataObject) -> None:
        """Everything that one format can express can be translated and repaired in each other one."""
        body = data.draw(bodies(format, max_turns=2, max_steps=2))
        drops: list[kompakt.Drop] = []
        said = kompakt.render(kompakt.parse(body, format), target, dropped=drops)
        said |= {"modelId" if target == "bedrock" else "model": MODELS[target]}
        repaired = kompakt.repair(said, target, strict=True)
        assert repaired.remaining == ()
        assert judge(target, repaired.payload) == []

    @pytest.mark.parametrize("target", FORMATS)
    @every_format
    @few
    @given(data=st.data())
    def test_what_is_left_out_is_listed(self, format: str, target: str, data: st.DataObject) -> None:
        """Each part and each set of tools that does not travel is named; the same format drops nothing."""
        body = data.draw(bodies(format, max_turns=2, max_steps=2))
        history = kompakt.parse(body, format)
        drops: list[kompakt.Drop] = []
        kompakt.render(history, target, dropped=drops)
        expected = 0 if format == target else losses(history) + bool(history.tools)
        assert len(drops) == expected
        assert all(drop.path and drop.what for drop in drops)

    def test_losses_are_logged_without_a_list(self, caplog: pytest.LogCaptureFixture) -> None:
        """A conversion without a list for its losses logs them."""
        kompakt.render(kompakt.parse(plain.build("anthropic", messages=3)), "openai-chat")
        assert "reasoning" in caplog.text
        assert "tool definitions" in caplog.text

    @pytest.mark.parametrize("target", FORMATS)
    @every_format
    def test_text_calls_and_results_are_translated(self, format: str, target: str) -> None:
        """The request, each call's name and each result's text are in the converted body."""
        body = plain.build(format, messages=20)
        history = kompakt.parse(body, format)
        said = kompakt.render(history, target, dropped=[])
        travelled = kompakt.parse(said, target)
        assert plain.TASK in text(said)
        assert [c.name for m in travelled for c in m.calls] == [c.name for m in history for c in m.calls]
        assert [r.output for m in travelled for r in m.results] == [r.output for m in history for r in m.results]

    def test_a_bare_list_of_messages_becomes_a_bare_list(self) -> None:
        """No envelope is invented around messages that had none."""
        said = kompakt.render(kompakt.parse([{"role": "user", "content": "go"}], "openai-chat"), "gemini", dropped=[])
        assert said == [{"role": "user", "parts": [{"text": "go"}]}]


def test_a_plain_string_input_is_one_message() -> None:
    """The Responses API accepts a string; it parses as a user message and renders as a string."""
    body = {"model": "gpt-5.4", "input": "go"}
    history = kompakt.parse(body)
    assert [message.text for message in history] == ["go"]
    assert kompakt.render(history) is body
    assert listed("openai-responses", body) == []
