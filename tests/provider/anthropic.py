"""The server side of Anthropic Messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.judges.anthropic_shapes import blocks_of
from tests.provider.answer import Answer, Body, Call, Refusal, Seen, Usage
from tests.provider.frames import first_text, frame, joined, pieces, tool_faults
from tests.provider.token_count import leaves

FORMAT = "anthropic"
STOPS = {"end": "end_turn", "length": "max_tokens", "refusal": "refusal", "window": "model_context_window_exceeded"}
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


def faults(body: Body, headers: dict[str, str]) -> Iterator[str]:
    """Yield what the judge of messages does not look at."""
    if "anthropic-version" not in headers:
        yield "BODY anthropic-version: header is required"
    if "betas" in body:
        yield "AN-25 body.betas: goes into the header anthropic-beta"
    limit = body.get("max_tokens")
    if not isinstance(limit, int) or limit < 1:
        yield "BODY max_tokens: Field required"
    tools = [tool for tool in body.get("tools") or [] if isinstance(tool, dict)]
    client = [tool for tool in tools if tool.get("type", "custom") == "custom"]
    yield from tool_faults("tools", [(tool.get("name"), tool.get("input_schema") or "none") for tool in client])
    if body.get("tool_choice") and not tools:
        yield "TOOL tool_choice: may only be specified while providing tools"
    yield from _thinking_faults(body, limit if isinstance(limit, int) else 0)


def _thinking_faults(body: Body, limit: int) -> Iterator[str]:
    thinking = body.get("thinking") or {}
    if thinking.get("type") == "enabled":
        budget = thinking.get("budget_tokens")
        if not isinstance(budget, int) or budget < 1024:
            yield "BODY thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
        elif limit <= budget:
            yield "BODY max_tokens: must be greater than thinking.budget_tokens"


def read(body: Body, model: str, stream: bool) -> Seen:
    """Read a request that the judge accepted."""
    messages: list[Body] = body["messages"]
    last = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
    calls = [block for block in blocks_of(messages[last]) if block["type"] == "tool_use"] if last >= 0 else []
    after = [block for message in messages[last + 1 :] for block in blocks_of(message)]
    users = (first_text(m["content"]) for m in messages if m["role"] == "user" and first_text(m["content"]))
    return Seen(
        format=FORMAT,
        model=model,
        stream=stream,
        max_output=body["max_tokens"],
        items=messages,
        system=body.get("system"),
        tools=[
            {"name": t["name"], "schema": t["input_schema"]} for t in body.get("tools") or [] if "input_schema" in t
        ],
        raw_tools=body.get("tools"),
        first_user=next(users, ""),
        results=[block["tool_use_id"] for block in after if block["type"] == "tool_result"],
        last_calls=[Call(block["id"], block["name"], block["input"]) for block in calls],
        leaves=list(leaves([body.get("system"), messages])),
        closing=joined(messages[-1]["content"]),
        thinks=(body.get("thinking") or {}).get("type") == "enabled",
        caches=bool(body.get("cache_control")),
    )


def _blocks(answer: Answer) -> list[Body]:
    blocks: list[Body] = []
    if answer.compaction:
        text, mark = answer.compaction
        blocks.append({"type": "compaction", "content": text, "encrypted_content": mark})
    if answer.thinking:
        blocks.append({"type": "thinking", "thinking": answer.thinking, "signature": answer.signature})
    if answer.text:
        blocks.append({"type": "text", "text": answer.text})
    return blocks + [{"type": "tool_use", "id": c.id, "name": c.name, "input": c.arguments} for c in answer.calls]


def whole(answer: Answer, seen: Seen, usage: Usage, number: int, body: Body) -> Body:
    """Return an answer in one piece."""
    return {
        "id": f"msg_{number:06d}",
        "type": "message",
        "role": "assistant",
        "model": seen.model,
        "content": _blocks(answer),
        "stop_reason": "tool_use" if answer.calls else STOPS[answer.stop],
        "stop_sequence": None,
        "usage": usage_of(usage),
    }


def events(answer: Answer, seen: Seen, usage: Usage, number: int, body: Body) -> Iterator[bytes]:
    """Yield an answer as events."""
    for event in _events(answer, seen, usage, number, body):
        yield frame(event, event["type"])


def _events(answer: Answer, seen: Seen, usage: Usage, number: int, body: Body) -> Iterator[Body]:
    message = whole(answer, seen, usage, number, body)
    opening = {**message, "content": [], "stop_reason": None, "usage": {**message["usage"], "output_tokens": 1}}
    opening["usage"].pop("output_tokens_details")
    yield {"type": "message_start", "message": opening}
    for at, block in enumerate(message["content"]):
        empty: Body = {
            "thinking": {"thinking": "", "signature": ""},
            "text": {"text": ""},
            "tool_use": {"input": {}},
            "compaction": {"content": None, "encrypted_content": None},
        }
        yield {"type": "content_block_start", "index": at, "content_block": {**block, **empty[block["type"]]}}
        if not at:
            yield {"type": "ping"}
        for delta in _deltas(block, answer):
            yield {"type": "content_block_delta", "index": at, "delta": delta}
        yield {"type": "content_block_stop", "index": at}
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": usage_of(usage)}
    yield {"type": "message_stop"}


def _deltas(block: Body, answer: Answer) -> Iterator[Body]:
    if block["type"] == "thinking":
        yield from ({"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"]))
        yield {"type": "signature_delta", "signature": block["signature"]}
    elif block["type"] == "compaction":
        yield {"type": "compaction_delta", "content": block["content"], "encrypted_content": block["encrypted_content"]}
    elif block["type"] == "text":
        yield from ({"type": "text_delta", "text": piece} for piece in pieces(block["text"]))
    else:
        text = next(call.text for call in answer.calls if call.id == block["id"])
        yield {"type": "input_json_delta", "partial_json": ""}
        yield from ({"type": "input_json_delta", "partial_json": piece} for piece in pieces(text, 12))


def usage_of(usage: Usage) -> Body:
    """Return usage as this interface counts it: cache reads and writes are not part of the input."""
    return {
        "input_tokens": usage.prompt - usage.cached - usage.written,
        "cache_creation_input_tokens": usage.written,
        "cache_read_input_tokens": usage.cached,
        "cache_creation": {"ephemeral_5m_input_tokens": usage.written, "ephemeral_1h_input_tokens": 0},
        "output_tokens": usage.output,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }


def overflow(prompt: int, output: int, window: int, style: str) -> Refusal:
    """Return the error for a request that is too long, alone or with its output reserve."""
    if prompt > window:
        return Refusal(400, KINDS[400], f"prompt is too long: {prompt} tokens > {window} maximum")
    text = (
        f"input length and `max_tokens` exceed context limit: {prompt} + {output} > {window}, "
        "decrease input length or `max_tokens` and try again"
    )
    return Refusal(400, KINDS[400], text)


def refuse(refusal: Refusal) -> Body:
    """Return an error as this interface words it."""
    error = {"type": KINDS.get(refusal.status, "api_error"), "message": refusal.message}
    return {"type": "error", "error": error, "request_id": "req_local"}


def breakpoints(items: list[Any]) -> list[int]:
    """Return the indices of the messages that carry a cache mark."""
    marked = ((at, block) for at, message in enumerate(items) for block in blocks_of(message))
    return [at for at, block in marked if block.get("cache_control")]
