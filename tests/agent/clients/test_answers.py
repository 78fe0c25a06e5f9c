"""Why a model stopped, and answers that deviate from the documentation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.agent.clients.client_servers import Plan, asked_of, stream, whole
from tests.agent.clients.test_clients import (
    CALL,
    CALLED,
    MESSAGE,
    REASONED,
    RESPONSE,
    block,
    candidate,
    chat_answer,
    chunk,
)

import kompakt

TEXT = {"role": "assistant", "content": "Hi."}
WITH_CALL = {"role": "assistant", "content": None, "tool_calls": [CALL]}
BROKEN = {"id": "call_9", "type": "function", "function": {"name": "look", "arguments": '{"at": "'}}
HI = [{"type": "text", "text": "Hi."}]


def ask(format: str, plan: Plan, **options: Any) -> Any:
    reply, _ = asyncio.run(asked_of(format, plan, **options))
    return reply


def response(status: str, reason: str | None = None, output: list[Any] | None = None) -> dict[str, Any]:
    details = {"incomplete_details": {"reason": reason}} if reason else {}
    said = [
        {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]}
    ]
    return {**RESPONSE, "status": status, "output": said if output is None else output, **details}


@pytest.mark.parametrize(
    "format, answer, stop",
    [
        ("openai-chat", chat_answer(TEXT, "stop"), "end"),
        ("openai-chat", chat_answer(TEXT, "length"), "length"),
        ("openai-chat", chat_answer(TEXT, "content_filter"), "refused"),
        ("openai-chat", chat_answer({**TEXT, "content": None, "refusal": "No."}, "stop"), "refused"),
        ("openai-chat", chat_answer(WITH_CALL, "tool_calls"), "tools"),
        ("openai-chat", chat_answer(WITH_CALL, "stop"), "tools"),
        ("openai-chat", chat_answer(TEXT, "model_context_window_exceeded"), "overflow"),
        ("openai-responses", response("completed"), "end"),
        ("openai-responses", response("completed", output=[CALLED]), "tools"),
        ("openai-responses", response("incomplete", "max_output_tokens"), "length"),
        ("openai-responses", response("incomplete", "content_filter"), "refused"),
        ("anthropic", {**MESSAGE, "content": HI, "stop_reason": "end_turn"}, "end"),
        ("anthropic", {**MESSAGE, "content": HI, "stop_reason": "stop_sequence"}, "end"),
        ("anthropic", {**MESSAGE, "content": HI, "stop_reason": "max_tokens"}, "length"),
        ("anthropic", {**MESSAGE, "content": HI, "stop_reason": "refusal"}, "refused"),
        ("gemini", candidate([{"text": "Hi."}], "STOP"), "end"),
        ("gemini", candidate([{"text": "Hi."}], "MAX_TOKENS"), "length"),
        ("gemini", candidate([{"text": "Hi."}], "SAFETY"), "refused"),
    ],
)
def test_stop_reasons(format: str, answer: Any, stop: str) -> None:
    reply = ask(format, whole(answer))
    assert reply.stop == stop
    assert len(reply.items) == 1


class TestTruncatedCalls:
    """A call with truncated arguments cannot be run and is dropped."""

    def test_chat(self) -> None:
        reply = ask("openai-chat", whole(chat_answer({**TEXT, "tool_calls": [CALL, BROKEN]}, "length")))
        assert reply.items[0]["tool_calls"] == [CALL]
        reply = ask("openai-chat", whole(chat_answer({**TEXT, "tool_calls": [BROKEN]}, "length")))
        assert reply.items == (TEXT,)

    def test_responses(self) -> None:
        broken = {**CALLED, "arguments": '{"at', "status": "incomplete"}
        reply = ask("openai-responses", whole(response("incomplete", "max_output_tokens", [REASONED, broken])))
        assert [item["type"] for item in reply.items] == ["reasoning"]

    def test_anthropic(self) -> None:
        call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
        events = [
            {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
            *block(0, {"type": "text", "text": "Hi."}),
            *block(1, call, {"type": "input_json_delta", "partial_json": '{"at": "'}),
        ]
        ends = [{"type": "message_delta", "delta": {"stop_reason": "max_tokens"}}, {"type": "message_stop"}]
        reply = ask("anthropic", stream(*events, *ends), on_delta=lambda delta: None)
        assert reply.stop == "length" and reply.items[0]["content"] == HI
        ends[0] = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}
        reply = ask("anthropic", stream(*events, *ends), on_delta=lambda delta: None)
        assert reply.items[0]["content"][1]["input"] == {"INVALID_JSON": '{"at": "'}


class TestChatServers:
    """Servers that deviate from OpenAI's Chat Completions."""

    def message(self, message: dict[str, Any]) -> Any:
        return ask("openai-chat", whole(chat_answer({"role": "assistant", **message}, "stop"))).items[0]

    def test_calls_without_ids_get_one_each(self) -> None:
        bare = {"index": 0, "function": {"name": "look", "arguments": {"at": "a"}}, "id": ""}
        item = self.message({"content": "", "tool_calls": [bare, bare, {**CALL, "function": {"name": "look"}}]})
        ids = [call["id"] for call in item["tool_calls"]]
        assert len(set(ids)) == 3 and ids[2] == "call_1"
        assert [call["function"]["arguments"] for call in item["tool_calls"]] == ['{"at": "a"}', '{"at": "a"}', "{}"]
        assert all(call["type"] == "function" and "index" not in call for call in item["tool_calls"])
        results = [{"role": "tool", "tool_call_id": id, "content": "seen"} for id in ids]
        assert kompakt.check([{"role": "user", "content": "Look!"}, item, *results], format="openai-chat") == []

    def test_content_is_null_only_with_calls(self) -> None:
        assert self.message({"content": None, "tool_calls": [CALL]}) == WITH_CALL
        assert self.message({"content": None, "refusal": "No."})["content"] == ""

    def test_unknown_fields_are_sent_back(self) -> None:
        details = [{"type": "reasoning.text", "text": "Hm. Look.", "index": 0, "signature": "x"}]
        extra = {**CALL, "extra_content": {"google": {"thought_signature": "s"}}}
        spoken = {"content": "Hi.", "reasoning_details": details, "tool_calls": [extra]}
        assert self.message(spoken) == {"role": "assistant", **spoken}
        pieces = [
            chunk({"role": "assistant", "reasoning_details": [{"type": "reasoning.text", "text": "Hm. ", "index": 0}]}),
            chunk({"reasoning_details": [{"type": "reasoning.text", "text": "Look.", "index": 0, "signature": "x"}]}),
            chunk({"content": "Hi."}),
            chunk({"tool_calls": [{**extra, "index": 0}]}, "tool_calls"),
        ]
        reply = ask("openai-chat", stream(*pieces), on_delta=lambda delta: None)
        assert reply.items == ({"role": "assistant", **spoken},)

    def test_names_repeated_in_every_chunk_and_calls_of_one_index(self) -> None:
        """All calls have the same index and differ by id; every piece repeats the name."""
        first = {"index": 0, "id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        pieces = [
            chunk({"tool_calls": [{**first, "function": {"name": "look", "arguments": '{"at"'}}]}),
            chunk({"tool_calls": [{**first, "function": {"name": "look", "arguments": ": 1}"}}]}),
            chunk({"tool_calls": [{**first, "id": "b"}]}, "tool_calls"),
        ]
        reply = ask("openai-chat", stream(*pieces), on_delta=lambda delta: None)
        calls = reply.items[0]["tool_calls"]
        assert [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls] == [
            ("a", "look", '{"at": 1}'),
            ("b", "look", "{}"),
        ]


class TestOtherServers:
    def test_responses_whose_last_event_is_empty(self) -> None:
        plan = stream(
            {"type": "response.output_item.done", "item": CALLED},
            {"type": "response.completed", "response": {**RESPONSE, "output": []}},
        )
        assert ask("openai-responses", plan, on_delta=lambda delta: None).items == (CALLED,)

    def test_unstored_reasoning_without_content_is_dropped(self) -> None:
        sealed = {**REASONED, "id": "rs_2", "encrypted_content": "blob"}
        reply = ask("openai-responses", whole({**RESPONSE, "store": False, "output": [REASONED, sealed, CALLED]}))
        assert [item["id"] for item in reply.items] == ["rs_2", "fc_1"]

    def test_gemini_signature_after_streamed_text(self) -> None:
        """The signature of streamed text belongs to the assembled part."""
        pieces = [
            candidate([{"text": "Hi "}]),
            candidate([{"text": "you."}]),
            candidate([{"text": "", "thoughtSignature": "c2ln"}], "STOP"),
        ]
        reply = ask("gemini", stream(*pieces, done=False), on_delta=lambda delta: None)
        assert reply.items == ({"role": "model", "parts": [{"text": "Hi you.", "thoughtSignature": "c2ln"}]},)

    def test_gemini_keeps_two_signed_parts_apart(self) -> None:
        parts = [{"text": "a", "thoughtSignature": "MQ=="}, {"text": "b", "thoughtSignature": "Mg=="}]
        plan = stream(candidate(parts[:1]), candidate(parts[1:], "STOP"), done=False)
        assert ask("gemini", plan, on_delta=lambda delta: None).items[0]["parts"] == parts

    def test_anthropic_drops_empty_text_and_reads_citations(self) -> None:
        cited = {"type": "char_location", "cited_text": "x"}
        events = [
            {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
            *block(0, {"type": "text", "text": ""}),
            *block(1, {"type": "text", "text": "Hi."}, {"type": "citations_delta", "citation": cited}),
            *block(2, {"type": "compaction"}, {"type": "compaction_delta", "content": "summary"}),
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
            {"type": "message_stop"},
        ]
        reply = ask("anthropic", stream(*events), on_delta=lambda delta: None)
        assert reply.items[0]["content"] == [
            {"type": "text", "text": "Hi.", "citations": [cited]},
            {"type": "compaction", "content": "summary"},
        ]
        assert (reply.usage.output, reply.usage.prompt) == (3, 50)

    def test_a_body_with_the_stream_field_is_streamed(self) -> None:
        """Even without ``on_delta``."""
        plan = stream(chunk({"content": "Hi."}), chunk({}, "stop"))
        assert ask("openai-chat", plan, body={"model": "m", "stream": True}).items == (TEXT,)
