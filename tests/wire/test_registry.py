"""Every wire has all provider-specific functions, each with the provider's own shapes."""

from __future__ import annotations

import pytest

from kompakt.errors import UnknownFormat
from kompakt.wire.overflow import overflow
from kompakt.wire.registry import WIRES, detect, wire_for

TOOL = {"name": "read", "description": "Read a file.", "schema": {"type": "object"}}


class TestWires:
    @pytest.mark.parametrize(
        ("format", "body", "output"),
        [
            ("openai-chat", {"max_completion_tokens": 5, "max_tokens": 9}, 5),
            ("openai-responses", {"max_output_tokens": 7}, 7),
            ("anthropic", {"max_tokens": 9}, 9),
            ("gemini", {"generationConfig": {"maxOutputTokens": 3}}, 3),
            ("bedrock", {"inferenceConfig": {"maxTokens": 4}}, 4),
        ],
    )
    def test_the_output_limit_is_read_from_the_fields_of_the_format(
        self, format: str, body: dict[str, object], output: int
    ) -> None:
        """Other fields, and values that are not a positive number, state nothing."""
        assert WIRES[format].stated_output(body.get) == output
        assert WIRES[format].stated_output({"maxTokens": 1}.get) is None
        for value in (0, -1, True, "5", None, {"maxTokens": True}):
            assert WIRES[format].stated_output(dict.fromkeys(body, value).get) is None

    @pytest.mark.parametrize(
        ("format", "body"),
        [
            ("openai-chat", {"thinking": {"type": "enabled"}}),
            ("anthropic", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
            ("bedrock", {"additionalModelRequestFields": {"thinking": {"type": "enabled"}}}),
        ],
    )
    def test_manual_thinking_is_recognised(self, format: str, body: dict[str, object]) -> None:
        """Only thinking of type enabled counts; adaptive thinking needs no block in an open turn."""
        assert WIRES[format].manual_thinking(body)
        assert not WIRES[format].manual_thinking({"thinking": {"type": "adaptive"}})
        assert not WIRES[format].manual_thinking(None)

    @pytest.mark.parametrize("format", WIRES)
    def test_a_defined_tool_is_detected_as_its_format(self, format: str) -> None:
        """The definition has the shape of the provider's own tools."""
        wire = WIRES[format]
        tools = [wire.define_tool(**TOOL)]  # type: ignore[arg-type]
        body = {"toolConfig": {"tools": tools}} if format == "bedrock" else {"tools": tools}
        assert detect({**body, "inferenceConfig": {}} if format == "bedrock" else body) == format

    @pytest.mark.parametrize("format", WIRES)
    def test_the_message_of_an_error_body_is_found(self, format: str) -> None:
        """An error that the gateway builds is read like one of the provider."""
        body = WIRES[format].error_body(400, "prompt is too long: 9 tokens > 5 maximum", code="x")
        found = overflow(body)
        assert found is not None and (found.actual, found.limit) == (9, 5)

    def test_an_unknown_format_names_the_known_ones(self) -> None:
        """The error lists what to use instead."""
        with pytest.raises(UnknownFormat, match="'chat' is not known; use one of 'openai-chat'"):
            wire_for("chat")


class TestDetection:
    def test_thinking_occurs_in_chat_bodies_too(self) -> None:
        """DeepSeek, GLM and Kimi accept the field in Chat Completions, so it does not contradict tool calls."""
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        body = {"thinking": {"type": "enabled"}, "messages": [{"role": "assistant", "tool_calls": [call]}]}
        assert detect(body) == "openai-chat"
