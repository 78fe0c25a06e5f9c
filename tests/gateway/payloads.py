"""Request bodies and answers of the four APIs, as bytes: short ones, and ones too long for the window."""

from __future__ import annotations

import json
from typing import Any

from tests.gateway.upstreams import Raw, Reply, said

TASK = "Find out why the queue stalls. Never touch the migrations folder."
FILLER = "the writer waits for the index and the index waits for the queue\n"
PATHS = {
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/gemini-3-pro:generateContent",
}
STREAMED = {**PATHS, "gemini": "/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse"}
CREDENTIAL = "sk-credential-of-the-client-0123456789"
HEADERS: dict[str, dict[str, str]] = {
    "openai-chat": {"authorization": f"Bearer {CREDENTIAL}"},
    "openai-responses": {"authorization": f"Bearer {CREDENTIAL}", "openai-organization": "org-1"},
    "anthropic": {"x-api-key": CREDENTIAL, "anthropic-version": "2023-06-01", "anthropic-beta": "a,b"},
    "gemini": {"x-goog-api-key": CREDENTIAL},
}
FORMATS = tuple(PATHS)


def history(format: str, rounds: int, *, size: int = 40, tag: str = "") -> list[Any]:
    """Return a task and rounds of one call and one result each; every result has a unique word."""
    items: list[Any] = [_user(format, f"{TASK} {tag}".strip())]
    for at in range(rounds):
        items += one_round(format, at, FILLER * size + f"marker{at:05d}{tag}")
    return items


def _user(format: str, text: str) -> Any:
    return {"role": "user", "parts": [{"text": text}]} if format == "gemini" else {"role": "user", "content": text}


def one_round(format: str, at: int, result: str) -> list[Any]:
    """Return a call and its result."""
    id, given, said_ = f"call_{at:05d}", {"path": f"src/part_{at}.py"}, f"Looking at part {at}."
    if format == "openai-chat":
        call = {"id": id, "type": "function", "function": {"name": "read", "arguments": json.dumps(given)}}
        return [
            {"role": "assistant", "content": said_, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": id, "content": result},
        ]
    if format == "openai-responses":
        return [
            {"type": "function_call", "call_id": id, "name": "read", "arguments": json.dumps(given)},
            {"type": "function_call_output", "call_id": id, "output": result},
        ]
    if format == "anthropic":
        call = {"type": "tool_use", "id": id, "name": "read", "input": given}
        return [
            {"role": "assistant", "content": [{"type": "text", "text": said_}, call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": result}]},
        ]
    response = {"functionResponse": {"id": id, "name": "read", "response": {"output": result}}}
    call = {"functionCall": {"id": id, "name": "read", "args": given}, "thoughtSignature": SENTINEL}
    return [{"role": "model", "parts": [{"text": said_}, call]}, {"role": "user", "parts": [response]}]


SENTINEL = "skip_thought_signature_validator"
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def request(format: str, items: list[Any], **more: Any) -> dict[str, Any]:
    """Make a request body around messages."""
    tool = {"name": "read", "description": "Reads a file."}
    if format == "openai-chat":
        declared: list[Any] = [{"type": "function", "function": {**tool, "parameters": SCHEMA}}]
        return {"model": "test-model", "messages": items, "max_completion_tokens": 500, "tools": declared, **more}
    if format == "openai-responses":
        declared = [{"type": "function", "strict": False, **tool, "parameters": SCHEMA}]
        return {"model": "test-model", "input": items, "store": False, "tools": declared, **more}
    if format == "anthropic":
        declared = [{**tool, "input_schema": SCHEMA}]
        return {"model": "claude-test", "max_tokens": 500, "messages": items, "tools": declared, **more}
    declared = [{"functionDeclarations": [{**tool, "parametersJsonSchema": SCHEMA}]}]
    return {"contents": items, "tools": declared, "generationConfig": {"maxOutputTokens": 500}, **more}


def odd(body: dict[str, Any]) -> bytes:
    """Return a body with unusual whitespace and escapes, so that encoding it again is detected."""
    text = json.dumps(body, indent=1, ensure_ascii=True, separators=(" ,", " : "))
    return text.replace('"model"', '"mod\\u0065l"', 1).encode()


ANSWERS: dict[str, Any] = {
    "openai-chat": {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "test-model",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Done."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 321, "completion_tokens": 4, "total_tokens": 325},
    },
    "openai-responses": {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "test-model",
        "output": [
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Done.", "annotations": []}],
            }
        ],
        "usage": {"input_tokens": 321, "output_tokens": 4, "total_tokens": 325},
    },
    "anthropic": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-test",
        "content": [{"type": "text", "text": "Done."}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 321, "output_tokens": 4},
    },
    "gemini": {
        "candidates": [
            {"index": 0, "content": {"role": "model", "parts": [{"text": "Done."}]}, "finishReason": "STOP"}
        ],
        "usageMetadata": {"promptTokenCount": 321, "candidatesTokenCount": 4, "totalTokenCount": 325},
    },
}


def format_of(raw: Raw) -> str:
    """Tell the interface that a request was sent to."""
    if raw.path.endswith("/chat/completions"):
        return "openai-chat"
    if raw.path.endswith("/responses"):
        return "openai-responses"
    return "anthropic" if raw.path.endswith("/messages") else "gemini"


def answering(raw: Raw) -> Reply:
    """Answer any request with a few words."""
    return said(ANSWERS[format_of(raw)])


def events(format: str, pieces: int = 3) -> list[bytes]:
    """Make the chunks of a stream; what is in them is the client's affair."""
    pings = [{"type": "ping", "at": at, "text": "x" * 20} for at in range(pieces)]
    return [b"event: ping\ndata: " + json.dumps(one).encode() + b"\n\n" for one in pings]
