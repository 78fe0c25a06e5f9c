"""Clients on the real SDKs over HTTP: bodies are sent unchanged, and replies are ready to be sent back."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from tests.agent.clients.client_servers import CLIENTS, KEY, Plan, asked_of, client_of, serving, stream, whole

import kompakt
from kompakt.agent.client import ChatClient, Delta, ToolSpec
from kompakt.wire.registry import WIRES

FORMATS = list(CLIENTS)
each_format = pytest.mark.parametrize("format", FORMATS)

CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "a"}'}}
OTHER = {"id": "call_2", "type": "function", "function": {"name": "look", "arguments": '{"at": "b"}'}}
CHAT_USAGE = {"prompt_tokens": 50, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 40}}
REASONED = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}], "content": None}
SPOKEN = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Let me look.", "annotations": []}],
}
CALLED = {
    "id": "fc_1",
    "type": "function_call",
    "call_id": "call_1",
    "name": "look",
    "arguments": '{"at": "a"}',
    "status": "completed",
}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "error": None,
    "output": [REASONED, SPOKEN, CALLED],
    "usage": {"input_tokens": 50, "output_tokens": 9, "input_tokens_details": {"cached_tokens": 40}},
}
BLOCKS = [
    {"type": "thinking", "thinking": "Hm. Look.", "signature": "c2lnbmVk"},
    {"type": "text", "text": "Let me look."},
    {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "a"}},
]
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "some-model",
    "content": [BLOCKS[0], {**BLOCKS[1], "citations": None}, BLOCKS[2]],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 10, "cache_read_input_tokens": 40, "output_tokens": 9},
}
PARTS = [
    {"text": "Hm. Look.", "thought": True},
    {"text": "Let me look."},
    {"functionCall": {"name": "look", "args": {"at": "a"}}, "thoughtSignature": "c2lnbmVk"},
]
GEMINI_USAGE = {
    "promptTokenCount": 50,
    "cachedContentTokenCount": 40,
    "candidatesTokenCount": 5,
    "thoughtsTokenCount": 4,
}


def chat_answer(message: dict[str, Any], reason: str, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
    return {"id": "c1", "object": "chat.completion", "choices": [choice], "usage": CHAT_USAGE, **more}


def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def piece(index: int, arguments: str, **more: Any) -> dict[str, Any]:
    name = {"name": "look"} if more else {}
    return {"tool_calls": [{"index": index, **more, "function": {**name, "arguments": arguments}}]}


def block(index: int, begin: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": begin},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def candidate(parts: list[Any], reason: str | None = None, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
    return {"candidates": [{**found, **({"finishReason": reason} if reason else {})}], **more}


CHAT_MESSAGE = {
    "role": "assistant",
    "content": "Let me look.",
    "reasoning_content": "Hm. Look.",
    "refusal": None,
    "annotations": [],
    "audio": None,
    "function_call": None,
    "tool_calls": [CALL, OTHER],
}

WHOLE: dict[str, Plan] = {
    "openai-chat": whole(chat_answer(CHAT_MESSAGE, "tool_calls")),
    "openai-responses": whole(RESPONSE),
    "anthropic": whole(MESSAGE),
    "gemini": whole(candidate(PARTS, "STOP", usageMetadata=GEMINI_USAGE)),
}

STREAMED: dict[str, Plan] = {
    "openai-chat": stream(
        chunk({"role": "assistant", "content": None, "refusal": None, "reasoning_content": "Hm. "}),
        chunk({"reasoning_content": "Look."}),
        chunk({"content": "Let me "}),
        chunk({"content": "look."}),
        chunk(piece(0, "", id="call_1", type="function")),
        chunk(piece(0, '{"at": ')),
        chunk(piece(1, '{"at": "b"}', id="call_2", type="function")),
        chunk(piece(0, '"a"}')),
        chunk({}, "tool_calls"),
        {"object": "chat.completion.chunk", "choices": [], "usage": CHAT_USAGE},
    ),
    "openai-responses": stream(
        {"type": "response.created", "response": {**RESPONSE, "output": [], "status": "in_progress"}},
        {"type": "response.reasoning_summary_text.delta", "delta": "Hm. Look."},
        {"type": "response.output_text.delta", "delta": "Let me look."},
        {"type": "response.function_call_arguments.delta", "delta": '{"at": "a"}'},
        {"type": "response.completed", "response": RESPONSE},
    ),
    "anthropic": stream(
        {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
        {"type": "ping"},
        *block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "Hm. "},
            {"type": "thinking_delta", "thinking": "Look."},
            {"type": "signature_delta", "signature": "c2lnbmVk"},
        ),
        *block(
            1,
            {"type": "text", "text": ""},
            {"type": "text_delta", "text": "Let me "},
            {"type": "text_delta", "text": "look."},
        ),
        *block(
            2,
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"at"'},
            {"type": "input_json_delta", "partial_json": ': "a"}'},
        ),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ),
    "gemini": stream(
        candidate([{"text": "Hm. ", "thought": True}]),
        candidate([{"text": "Look.", "thought": True}]),
        candidate([{"text": "Let me "}], usageMetadata={"promptTokenCount": 50}),
        candidate([{"text": "look."}]),
        candidate([PARTS[2]]),
        candidate([{"text": ""}], "STOP", usageMetadata=GEMINI_USAGE),
        done=False,
    ),
}

ITEMS: dict[str, list[Any]] = {
    "openai-chat": [
        {
            "role": "assistant",
            "content": "Let me look.",
            "reasoning_content": "Hm. Look.",
            "tool_calls": [CALL, OTHER],
        }
    ],
    "openai-responses": [{key: REASONED[key] for key in ("id", "type", "summary")}, SPOKEN, CALLED],
    "anthropic": [{"role": "assistant", "content": BLOCKS}],
    "gemini": [{"role": "model", "parts": PARTS}],
}

QUESTION: dict[str, Any] = {
    "openai-chat": {"role": "user", "content": "Look!"},
    "openai-responses": {"role": "user", "content": "Look!"},
    "anthropic": {"role": "user", "content": "Look!"},
    "gemini": {"role": "user", "parts": [{"text": "Look!"}]},
}
RESULTS: dict[str, list[Any]] = {
    "openai-chat": [{"role": "tool", "tool_call_id": f"call_{n}", "content": "seen"} for n in (1, 2)],
    "openai-responses": [{"type": "function_call_output", "call_id": "call_1", "output": "seen"}],
    "anthropic": [
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "seen"}]},
    ],
    "gemini": [{"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {"output": "seen"}}}]}],
}


@each_format
class TestReplies:
    @pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
    def test_an_answer_is_ready_to_be_sent_back(self, format: str, streams: bool) -> None:
        """Streamed or not, the items are the same, and usage and stop are read."""
        deltas: list[Delta] = []
        plan = STREAMED[format] if streams else WHOLE[format]
        reply, _ = asyncio.run(asked_of(format, plan, **({"on_delta": deltas.append} if streams else {})))
        assert list(reply.items) == ITEMS[format]
        assert (reply.stop, reply.usage.prompt, reply.usage.cache_read, reply.usage.output) == ("tools", 50, 40, 9)
        assert reply.billed == reply.usage
        if streams:
            said = {
                kind: "".join(delta.text for delta in deltas if delta.kind == kind) for kind in ("text", "reasoning")
            }
            assert said == {"text": "Let me look.", "reasoning": "Hm. Look."}
            assert [delta for delta in deltas if delta.kind == "call"]

    def test_a_request_with_the_reply_is_valid(self, format: str) -> None:
        reply, _ = asyncio.run(asked_of(format, WHOLE[format]))
        client = client_of(format, "http://127.0.0.1:9")
        body = client.envelope(system="Be brief.", tools=[ToolSpec("look", "Looks.", {"type": "object"})])
        items = [*client.opening("Be brief."), QUESTION[format], *reply.items, *RESULTS[format]]
        asyncio.run(client.close())
        assert kompakt.check({**body, WIRES[format].messages_key: items}, format=format) == []

    def test_bodies_are_sent_unchanged(self, format: str) -> None:
        """Unknown fields, nulls and the order of keys arrive as given."""
        key = WIRES[format].messages_key
        body = {"zeta": {"b": None, "a": [1, 2.5, "é"]}, key: [{"role": "user", "odd": True}], "alpha": None}
        changes = {"headers": {"x-beta": "compact-1"}, "parameters": {"context_management": {"edits": []}}}
        for plan, more in ((WHOLE[format], {}), (STREAMED[format], {"on_delta": lambda delta: None})):
            _, server = asyncio.run(asked_of(format, plan, body={"model": "m", **body}, changes=changes, **more))
            asked = server.asked[0]
            received = {name: value for name, value in asked.json.items() if name not in ("model", "stream")}
            received.pop("stream_options", None)
            assert json.dumps(received) == json.dumps({**body, **changes["parameters"]})
            assert asked.headers["x-beta"] == "compact-1"
            assert asked.json.get("model", asked.path.split("/")[-1].split(":")[0]) == "m"

    def test_an_empty_answer_has_no_items(self, format: str) -> None:
        """An empty answer with stop reason ``length`` is a full window; one that simply ended is not."""
        empty = {
            "openai-chat": chat_answer({"role": "assistant", "content": ""}, "length", usage=None),
            "openai-responses": {**RESPONSE, "output": [], "status": "incomplete", "usage": None},
            "anthropic": {**MESSAGE, "content": [], "stop_reason": "max_tokens", "usage": None},
            "gemini": candidate([], "MAX_TOKENS"),
        }[format]
        reply, _ = asyncio.run(asked_of(format, whole(empty)))
        assert (reply.items, reply.stop) == ((), "overflow")


class TestEnvelopes:
    TOOL = ToolSpec("look", "Looks.", {"type": "object", "properties": {}})

    @each_format
    def test_the_envelope_has_everything_but_messages(self, format: str) -> None:
        client: ChatClient = client_of(format, "http://127.0.0.1:9")
        body = client.envelope(system="Be brief.", tools=[self.TOOL, self.TOOL])
        asyncio.run(client.close())
        assert body["model"] == "some-model"
        assert list(body)[-1] == WIRES[format].messages_key
        assert body[list(body)[-1]] == []
        assert "look" in json.dumps(body["tools"])
        said = json.dumps([body, client.opening("Be brief.")])
        assert said.count("Be brief.") == 1
        assert said.count("100") == 1

    @each_format
    def test_system_prompt_and_tools_are_optional(self, format: str) -> None:
        client = client_of(format, "http://127.0.0.1:9")
        body = client.envelope(system=None, tools=[])
        asyncio.run(client.close())
        assert "tools" not in body
        assert len(body) == 3
        assert client.opening(None) == []

    def test_only_chat_has_the_system_prompt_as_a_message(self) -> None:
        for format in FORMATS:
            client = client_of(format, "http://127.0.0.1:9")
            expected = [{"role": "system", "content": "Be brief."}] if format == "openai-chat" else []
            assert client.opening("Be brief.") == expected
            asyncio.run(client.close())

    def test_openai_gets_max_completion_tokens(self) -> None:
        client = client_of("openai-chat", "", base_url=None)
        assert client.envelope(system=None, tools=[])["max_completion_tokens"] == 100
        asyncio.run(client.close())

    def test_gemini_gets_its_functions_in_one_entry(self) -> None:
        client = client_of("gemini", "http://127.0.0.1:9")
        body = client.envelope(system=None, tools=[self.TOOL, self.TOOL])
        asyncio.run(client.close())
        assert [len(entry["functionDeclarations"]) for entry in body["tools"]] == [2]


class TestMaking:
    def test_no_sdk_is_loaded_before_a_client_is_made(self) -> None:
        """Importing the clients works without any SDK."""
        code = (
            "import sys; from kompakt.agent.clients import anthropic, gemini, openai_chat;"
            "print([name for name in ('openai', 'anthropic', 'google.genai') if name in sys.modules])"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert run.stdout.strip() == "[]"

    @pytest.mark.parametrize("package", ["openai", "anthropic", "google.genai"])
    def test_a_missing_sdk_is_named(self, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
        format = {"openai": "openai-chat", "anthropic": "anthropic", "google.genai": "gemini"}[package]
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(kompakt.UsageError, match=r"install -e .*\[agent\]"):
            client_of(format, "http://127.0.0.1:9")

    @each_format
    def test_sizes_come_from_the_model(self, format: str) -> None:
        """The window of a known model is looked up; the output limit stays within the reserve of budgets."""
        client = client_of(format, "http://127.0.0.1:9", model="gpt-4o", context_window=None, output_limit=None)
        asyncio.run(client.close())
        assert (client.context_window, client.output_limit) == (128_000, 16_384)

    def test_an_unknown_model_warns_unless_its_window_is_given(self) -> None:
        with pytest.warns(kompakt.UnknownModelWarning):
            client = client_of(
                "openai-chat", "http://127.0.0.1:9", model="never-heard-of-1", context_window=None, output_limit=None
            )
        assert client.context_window == kompakt.limits("never-heard-of-1").context
        stated = client_of("openai-chat", "http://127.0.0.1:9", model="never-heard-of-2", output_limit=None)
        assert (stated.context_window, stated.output_limit) == (8_000, 4_000)
        asyncio.run(client.close())
        asyncio.run(stated.close())

    @each_format
    def test_a_base_url_needs_no_key_and_gets_none(self, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A key from the environment is not sent to another server."""
        for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
            monkeypatch.setenv(name, KEY)
        _, server = asyncio.run(asked_of(format, WHOLE[format], api_key=None))
        assert KEY not in json.dumps(server.asked[0].headers)

    @each_format
    def test_a_missing_key_is_reported(self, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", "/nonexistent")
        with pytest.raises(kompakt.UsageError, match="api_key"):
            CLIENTS[format]("gpt-4o")

    @pytest.mark.parametrize("wrong", [{"model": ""}, {"max_retries": -1}, {"context_window": 0}])
    def test_invalid_arguments_are_rejected(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(kompakt.UsageError):
            client_of("openai-chat", "http://127.0.0.1:9", **wrong)

    def test_the_sdk_client_of_the_caller_is_used_and_not_closed(self) -> None:
        from openai import AsyncAzureOpenAI

        async def run() -> None:
            async with serving(WHOLE["openai-chat"]) as server:
                azure = AsyncAzureOpenAI(azure_endpoint=server.address, api_key=KEY, api_version="2024-10-21")
                client = client_of("openai-chat", "", base_url=None, api_key=None, client=azure)
                await client.send({"model": "deployed", "messages": []})
                await client.close()
                await client.send({"model": "deployed", "messages": []})
                assert azure.max_retries == 2, "the caller's own is not changed"
                await azure.close()
                assert len(server.asked) == 2
                assert server.asked[0].path.startswith("/openai/deployments/deployed/chat/completions")

        asyncio.run(run())
