"""Objects of the official SDKs are accepted, and unchanged objects are returned."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import Message as AnthropicMessage
from anthropic.types import TextBlock, ToolUseBlock
from google.genai import types as gemini
from openai.types.chat import ChatCompletionMessage
from openai.types.responses import Response

import kompakt

ASKED: dict[str, Any] = {"role": "user", "content": "Read the file a.txt, please."}
OUTPUT = "line of the file\n" * 300


def chat_message() -> ChatCompletionMessage:
    """Parse an API response like the SDK."""
    call = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a.txt"}'}}
    return ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": None, "refusal": None, "annotations": [], "tool_calls": [call]}
    )


def chat() -> list[Any]:
    """A chat with the SDK's answer appended."""
    return [ASKED, chat_message(), {"role": "tool", "tool_call_id": "call_1", "content": OUTPUT}]


def anthropic_message() -> AnthropicMessage:
    """Parse an API response like the SDK."""
    return AnthropicMessage.model_validate(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-opus-5-5",
            "content": [
                {"type": "text", "text": "I will.", "citations": None},
                {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a.txt"}},
            ],
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
    )


def claude() -> list[Any]:
    """Messages with the content blocks of the SDK."""
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": OUTPUT}
    return [
        ASKED,
        {"role": "assistant", "content": anthropic_message().content},
        {"role": "user", "content": [result]},
    ]


def responses() -> list[Any]:
    """Items of a response."""
    response = Response.model_validate(
        {
            "id": "resp_1",
            "created_at": 1,
            "model": "gpt-5.4",
            "object": "response",
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "output": [
                {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
                {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "read", "arguments": "{}"},
            ],
        }
    )
    return [ASKED, *response.output, {"type": "function_call_output", "call_id": "c1", "output": OUTPUT}]


def contents() -> list[Any]:
    """Contents of the SDK for Gemini."""
    call = gemini.FunctionCall(name="read", args={"path": "a.txt"})
    response = gemini.FunctionResponse(name="read", response={"output": OUTPUT})
    return [
        gemini.Content(role="user", parts=[gemini.Part(text="Read the file a.txt, please.")]),
        gemini.Content(role="model", parts=[gemini.Part(function_call=call, thought_signature=b"signed")]),
        gemini.Content(role="user", parts=[gemini.Part(function_response=response)]),
    ]


HISTORIES = {"openai-chat": chat, "anthropic": claude, "openai-responses": responses, "gemini": contents}
every_sdk = pytest.mark.parametrize("format", HISTORIES)


class TestTaken:
    @every_sdk
    def test_every_function_treats_objects_like_json(self, format: str) -> None:
        history = HISTORIES[format]()
        sent = kompakt.render(kompakt.parse(history, format))
        assert kompakt.check(history, format) == kompakt.check(sent, format) == []
        assert kompakt.count(history, format=format) == kompakt.count(sent, format=format)
        assert kompakt.recall(history, "path", format=format) == kompakt.recall(sent, "path", format=format)
        assert len(kompakt.groups(history, format)) == len(kompakt.groups(sent, format))

    @every_sdk
    def test_the_format_is_detected(self, format: str) -> None:
        assert kompakt.parse(HISTORIES[format]()).format == format

    def test_unset_fields_are_not_sent(self) -> None:
        (_, message, _) = kompakt.render(kompakt.parse(chat()))
        assert message.keys() == {"role", "content", "refusal", "annotations", "tool_calls"}

    def test_objects_in_bodies_and_tuples_are_accepted(self) -> None:
        body = {"model": "gpt-5.4", "messages": tuple(chat())}
        assert kompakt.count(body).total == kompakt.count({**body, "messages": chat()}).total
        assert kompakt.check(body) == []

    def test_a_whole_answer_object_is_reported_and_stripped(self) -> None:
        messages = [ASKED, anthropic_message()]
        assert {problem.code for problem in kompakt.check(messages)} == {"AN-1", "AN-25"}
        assert kompakt.check(kompakt.repair(messages).payload) == []

    def test_any_object_with_model_dump_is_accepted(self) -> None:

        class Message:
            def model_dump(self) -> dict[str, str]:
                return {"role": "user", "content": "hello"}

        assert kompakt.parse([Message()], "openai-chat")[0].text == "hello"

    def test_other_objects_are_rejected_with_their_path(self) -> None:
        with pytest.raises(kompakt.InputError, match=r"payload\[1\]"):
            kompakt.check([ASKED, object()], "openai-chat")


class TestReturned:
    @every_sdk
    def test_a_valid_payload_is_returned_itself(self, format: str) -> None:
        history = HISTORIES[format]()
        assert kompakt.repair(history, format).payload is history
        assert kompakt.compact(history, 100_000, format=format).payload is history

    def test_a_tuple_is_returned_as_a_tuple(self) -> None:
        history = tuple(chat())
        assert kompakt.compact(history, 100_000).payload is history
        repaired = kompakt.repair(history[:2]).payload
        assert isinstance(repaired, tuple)
        assert repaired[1] is history[1]

    @every_sdk
    def test_unchanged_objects_survive_a_repair(self, format: str) -> None:
        history = HISTORIES[format]()[:-1]
        repaired = kompakt.repair(history, format)
        assert repaired.changes
        assert [one for one in repaired.payload if any(one is other for other in history)] == history

    def test_unchanged_blocks_survive_in_a_changed_message(self) -> None:
        text, call = anthropic_message().content
        assert isinstance(text, TextBlock)
        assert isinstance(call, ToolUseBlock)
        empty = TextBlock.model_validate({"type": "text", "text": ""})
        history = [ASKED, {"role": "assistant", "content": [empty, text, call]}, claude()[-1]]
        content = kompakt.repair(history).payload[1]["content"]
        assert content == [text, call]
        assert content[0] is text
        assert content[1] is call

    def test_unchanged_messages_survive_a_compaction(self) -> None:
        old = [ASKED, *[message for _ in range(30) for message in chat()[1:]]]
        newest = chat_message()
        history = [*old, newest, {"role": "tool", "tool_call_id": "call_1", "content": "done"}]
        done = kompakt.compact(history, 3_000)
        assert done.changed
        assert any(message is newest for message in done.payload)
        assert kompakt.check(done.payload) == []

    def test_split_copies_nothing(self) -> None:
        history = [*chat(), ASKED, chat_message()]
        head, tail = kompakt.split(history, 2)
        assert head + tail == history
        assert all(one is other for one, other in zip(head + tail, history, strict=True))
