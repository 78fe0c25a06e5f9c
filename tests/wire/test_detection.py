"""Format detection: a payload is detected, or rejected with its format among the candidates."""

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


def is_detected(payload: Any, format: str, **fields: str) -> bool:
    """Return whether a payload is detected, or ambiguous with its format among the candidates."""
    try:
        return detect(payload, **fields) == format
    except AmbiguousFormat as error:
        return format in error.candidates


class TestBodies:
    @every_format
    def test_sessions_are_detected(self, format: str) -> None:
        assert detect(plain.build(format, messages=12)) == format

    @every_format
    @given(data=st.data())
    def test_a_body_is_never_detected_as_another_format(self, format: str, data: st.DataObject) -> None:
        assert is_detected(data.draw(bodies(format)), format)

    @every_format
    @given(data=st.data())
    def test_a_list_is_never_detected_as_another_format(self, format: str, data: st.DataObject) -> None:
        """Plain messages that both OpenAI formats accept are Chat."""
        items = data.draw(bodies(format))[WIRES[format].messages_key]
        if isinstance(items, list):
            plain_words = format == "openai-responses" and not any("type" in item for item in items)
            assert is_detected(items, format) or (plain_words and detect(items) == "openai-chat")

    @every_format
    def test_lists_with_tool_rounds_are_detected(self, format: str) -> None:
        assert detect(plain.build(format, messages=6)[WIRES[format].messages_key]) == format

    @every_format
    def test_a_clue_at_the_end_of_a_long_history_is_found(self, format: str) -> None:
        call = plain.build(format, messages=6)[WIRES[format].messages_key]
        said = {"role": "user", "parts" if format == "gemini" else "content": [{"text": "hi"}]}
        if format in ("openai-chat", "openai-responses", "anthropic"):
            said = {"role": "user", "content": "hi"}
        assert detect([said] * 2000 + call) == format


class TestDoubt:
    def test_plain_text_messages_are_ambiguous(self) -> None:
        with pytest.raises(AmbiguousFormat, match="say which with format=") as caught:
            detect([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}])
        assert set(caught.value.candidates) == {"openai-chat", "openai-responses", "anthropic"}

    @given(
        st.lists(
            st.tuples(st.sampled_from(["user", "assistant"]), st.text("ab \n", max_size=200)), min_size=1, max_size=40
        )
    )
    def test_plain_text_needs_no_format_where_the_choice_does_not_matter(self, said: list[tuple[str, str]]) -> None:
        """All candidates find the same problems in it, and accept what was made from it."""
        messages = [{"role": role, "content": text * 5} for role, text in said]
        formats = ("openai-chat", "openai-responses", "anthropic")
        found = [kompakt.check(messages, format=format) for format in formats]
        try:
            done = kompakt.compact(messages, budget=400)
        except AmbiguousFormat:
            assert any(one != found[0] for one in found)
            return
        except kompakt.DoesNotFit:
            return
        assert kompakt.check(messages) == found[0]
        assert kompakt.count(messages).total == kompakt.count(messages, format="anthropic").total
        assert [kompakt.check(done.payload, format=format) for format in formats if not found[0]] in ([[], [], []], [])

    @pytest.mark.parametrize(
        "messages",
        [
            [{"role": "assistant", "content": "hi"}, {"role": "user", "content": "hello"}],
            [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        ],
        ids=["anthropic begins with the user", "blocks"],
    )
    def test_where_it_may_matter_the_format_has_to_be_named(self, messages: list[Any]) -> None:
        for function in (kompakt.check, kompakt.count, kompakt.turns, kompakt.repair):
            with pytest.raises(AmbiguousFormat):
                function(messages)

    def test_what_is_appended_to_needs_a_format(self) -> None:
        """The next message may be one that only another format has."""
        with pytest.raises(AmbiguousFormat):
            kompakt.parse([{"role": "user", "content": "hi"}])

    @pytest.mark.parametrize(
        ("model", "format"),
        [
            ("claude-opus-5-5", "anthropic"),
            ("gpt-5.4", "openai-chat"),
            ("deepseek-v4", "openai-chat"),
            ("mistral-large-latest", "openai-chat"),
        ],
    )
    def test_the_model_name_decides_between_candidates(self, model: str, format: str) -> None:
        said = [{"role": "user", "content": "hi"}]
        assert detect({"model": model, "messages": said}) == format
        assert detect(said, model=model) == format

    @pytest.mark.parametrize("model", ["claude-opus-5-5", "gemini-3-pro-preview", "gpt-5.4"])
    def test_the_model_name_does_not_override_the_messages(self, model: str) -> None:
        """A router can serve Claude over the OpenAI protocol."""
        body = {**plain.build("openai-chat", messages=6), "model": model}
        assert detect(body) == "openai-chat"

    @pytest.mark.parametrize(("one", "other"), list(permutations(FORMATS, 2)))
    def test_mixed_lists_are_rejected_with_both_candidates(self, one: str, other: str) -> None:
        items = [
            item for format in (one, other) for item in plain.build(format, messages=6)[WIRES[format].messages_key]
        ]
        with pytest.raises(AmbiguousFormat, match="mixes formats") as caught:
            detect(items)
        assert one in caught.value.candidates

    @pytest.mark.parametrize("payload", [{}, [], {"foo": 1}, [[]], [1, "a", None]])
    def test_payloads_without_clues_are_rejected(self, payload: Any) -> None:
        with pytest.raises(UnknownFormat):
            detect(payload)

    @pytest.mark.parametrize("payload", [None, 1, "text", True, 2.5, (), {1}])
    def test_other_types_are_rejected(self, payload: Any) -> None:
        with pytest.raises(MalformedPayload, match="payload: expected a request body or a list of messages"):
            detect(payload)


LANGCHAIN: list[Any] = [
    [{"type": "human", "data": {"content": "hello", "type": "human"}}],
    [{"type": "system", "content": "x"}, {"type": "ai", "content": "hello", "tool_calls": []}],
    [{"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "HumanMessage"], "kwargs": {}}],
]
"""Messages as ``messages_to_dict``, ``model_dump`` and ``dumpd`` of LangChain write them."""


class TestLangChain:
    @pytest.mark.parametrize("messages", LANGCHAIN, ids=["messages_to_dict", "model_dump", "dumpd"])
    def test_its_own_format_is_refused_with_the_function_that_writes_ours(self, messages: Any) -> None:
        for payload in (messages, {"messages": messages}):
            with pytest.raises(UnknownFormat, match=r"convert_to_openai_messages\(messages\)"):
                detect(payload)


class TestNames:
    @pytest.mark.parametrize("format", ["openai", "", "Anthropic", "gpt"])
    def test_an_unknown_format_name_is_rejected_with_the_known_ones(self, format: str) -> None:
        with pytest.raises(UnknownFormat, match="'openai-chat', 'openai-responses', 'anthropic', 'gemini', 'bedrock'"):
            kompakt.check([{"role": "user", "content": "hi"}], format=format)

    @every_format
    def test_a_given_format_is_used_without_detection(self, format: str) -> None:
        assert detect([], format=format) == format

    @pytest.mark.parametrize(
        ("body", "format", "said"),
        [
            (
                {"model": "claude-x", "messages": []},
                "gemini",
                "'messages', not 'contents'.* detected format: 'anthropic'",
            ),
            ({"contents": []}, "openai-chat", "'contents', not 'messages'.* detected format: 'gemini'"),
            ({"input": "hi", "model": "gpt-5"}, "bedrock", "detected format: 'openai-responses'$"),
            ({"messages": [{"role": "user", "content": "hi"}]}, "gemini", "a request in the format 'gemini'$"),
        ],
    )
    def test_a_body_without_the_messages_of_a_given_format_is_refused(self, body: Any, format: str, said: str) -> None:
        """It would be read as a request without messages."""
        for function in (kompakt.check, kompakt.repair, kompakt.count, kompakt.parse):
            with pytest.raises(UnknownFormat, match=said):
                function(body, format=format)

    def test_every_error_is_a_kompakt_error(self) -> None:
        for error in (AmbiguousFormat, UnknownFormat, MalformedPayload):
            assert issubclass(error, InputError)
            assert issubclass(error, KompaktError)

    def test_there_are_five_formats(self) -> None:
        assert tuple(WIRES) == FORMATS
        assert all(wire.format == format for format, wire in WIRES.items())
