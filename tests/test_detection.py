"""Formats are told from evidence, never from a guess: detected, or refused with the true one among the candidates."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.histories import FORMATS, bodies, plain

import kompakt
from kompakt.errors import AmbiguousFormat, InputError, KompaktError, MalformedPayload, UnknownFormat
from kompakt.wire.registry import WIRES, detect

Body = dict[str, Any]

every_format = pytest.mark.parametrize("format", FORMATS)


def is_told(payload: Any, format: str, **fields: str) -> bool:
    """Tell whether a payload is detected, or left open with its format among the candidates."""
    try:
        return detect(payload, **fields) == format
    except AmbiguousFormat as error:
        return format in error.candidates


class TestBodies:
    @every_format
    def test_sessions_are_detected(self, format: str) -> None:
        """A whole request of an agent at work leaves no doubt."""
        assert detect(plain.build(format, messages=12)) == format

    @every_format
    @given(data=st.data())
    def test_any_body_is_told(self, format: str, data: st.DataObject) -> None:
        """No body is taken for another provider's."""
        assert is_told(data.draw(bodies(format)), format)

    @every_format
    @given(data=st.data())
    def test_any_bare_list_is_told(self, format: str, data: st.DataObject) -> None:
        """Nor is a list of messages without its envelope; plain ones that both of OpenAI's formats take are Chat's."""
        items = data.draw(bodies(format))[WIRES[format].messages_key]
        if isinstance(items, list):
            plain_words = format == "openai-responses" and not any("type" in item for item in items)
            assert is_told(items, format) or (plain_words and detect(items) == "openai-chat")

    @every_format
    def test_lists_with_tool_rounds_are_detected(self, format: str) -> None:
        """Calls and results look different everywhere."""
        assert detect(plain.build(format, messages=6)[WIRES[format].messages_key]) == format

    @every_format
    def test_a_clue_far_down_is_found(self, format: str) -> None:
        """A long history that begins with plain talk is told by its end."""
        call = plain.build(format, messages=6)[WIRES[format].messages_key]
        said = {"role": "user", "parts" if format == "gemini" else "content": [{"text": "hi"}]}
        if format in ("openai-chat", "openai-responses", "anthropic"):
            said = {"role": "user", "content": "hi"}
        assert detect([said] * 2000 + call) == format


class TestDoubt:
    def test_plain_talk_is_ambiguous(self) -> None:
        """Two strings say nothing about who is meant."""
        with pytest.raises(AmbiguousFormat, match="say which with format=") as caught:
            detect([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}])
        assert set(caught.value.candidates) == {"openai-chat", "openai-responses", "anthropic"}

    @pytest.mark.parametrize(
        ("model", "format"),
        [
            ("claude-opus-5-5", "anthropic"),
            ("gpt-5.4", "openai-chat"),
            ("deepseek-v4", "openai-chat"),
            ("mistral-large-latest", "openai-chat"),
        ],
    )
    def test_the_model_decides(self, model: str, format: str) -> None:
        """Where the messages leave it open, the model's own provider is meant."""
        said = [{"role": "user", "content": "hi"}]
        assert detect({"model": model, "messages": said}) == format
        assert detect(said, model=model) == format

    @pytest.mark.parametrize("model", ["claude-opus-5-5", "gemini-3-pro-preview", "gpt-5.4"])
    def test_the_model_does_not_overrule_the_messages(self, model: str) -> None:
        """A router serves Claude over OpenAI's protocol: what stands in the list counts more."""
        body = {**plain.build("openai-chat", messages=6), "model": model}
        assert detect(body) == "openai-chat"

    @pytest.mark.parametrize(("one", "other"), list(permutations(FORMATS, 2)))
    def test_mixed_lists_are_refused(self, one: str, other: str) -> None:
        """Messages of two providers in one list are named, not repaired by accident."""
        items = [
            item for format in (one, other) for item in plain.build(format, messages=6)[WIRES[format].messages_key]
        ]
        with pytest.raises(AmbiguousFormat, match="mixes formats") as caught:
            detect(items)
        assert one in caught.value.candidates

    @pytest.mark.parametrize("payload", [{}, [], {"foo": 1}, [[]], [1, "a", None]])
    def test_nothing_to_go_by_is_said(self, payload: Any) -> None:
        """An empty or foreign value is no history."""
        with pytest.raises(UnknownFormat):
            detect(payload)

    @pytest.mark.parametrize("payload", [None, 1, "text", True, 2.5, (), {1}])
    def test_other_types_are_refused(self, payload: Any) -> None:
        """A payload is a list or an object."""
        with pytest.raises(MalformedPayload, match="payload: expected a request body or a list of messages"):
            detect(payload)


class TestNames:
    @pytest.mark.parametrize("format", ["openai", "", "Anthropic", "gpt"])
    def test_an_unknown_name_is_refused_with_the_known_ones(self, format: str) -> None:
        """A typing error is answered with the way out."""
        with pytest.raises(UnknownFormat, match="'openai-chat', 'openai-responses', 'anthropic', 'gemini', 'bedrock'"):
            kompakt.check([{"role": "user", "content": "hi"}], format=format)

    @every_format
    def test_a_given_name_is_taken_at_its_word(self, format: str) -> None:
        """The caller knows best."""
        assert detect([], format=format) == format

    def test_every_error_is_caught_by_the_root(self) -> None:
        """One handler is enough for callers."""
        for error in (AmbiguousFormat, UnknownFormat, MalformedPayload):
            assert issubclass(error, InputError)
            assert issubclass(error, KompaktError)

    def test_the_five_formats_are_the_ones_promised(self) -> None:
        """Names, keys of bodies and modules agree."""
        assert tuple(WIRES) == FORMATS
        assert all(wire.format == format for format, wire in WIRES.items())
