"""The server side of OpenAI Responses. Nothing is stored: every request must contain all its items."""

from __future__ import annotations

from collections.abc import Iterator

from openai.types.responses.response_create_params import ResponseCreateParamsBase
from tests.judges.openai_responses import is_model_item, type_of
from tests.provider.answer import Answer, Body, Call, Refusal, Seen, Usage
from tests.provider.chat import CREATED, refuse
from tests.provider.frames import first_text, frame, joined, loaded, pieces, tool_faults, unknown_keys
from tests.provider.token_count import leaves

__all__ = ["events", "faults", "overflow", "read", "refuse", "whole"]

FORMAT = "openai-responses"
KEYS = {*ResponseCreateParamsBase.__annotations__, "stream", "client_metadata"}
"""What the SDK declares; `client_metadata` is sent by Codex and accepted by the real server."""
HOSTED = {
    "web_search",
    "file_search",
    "code_interpreter",
    "image_generation",
    "local_shell",
    "mcp",
    "namespace",
    "custom",
}
"""Tools that the server runs or that have no JSON schema; Codex declares several of them."""
NAMESPACE = "::"
"""Between a namespace and a function in names of tools."""
ENCRYPTED = "reasoning.encrypted_content"


def faults(body: Body, headers: dict[str, str]) -> Iterator[str]:
    """Yield what the judge of items does not look at."""
    yield from unknown_keys(body, KEYS)
    if body.get("previous_response_id") or body.get("conversation"):
        yield "OR-12 previous_response_id: previous response not found"
    declared = body.get("tools") or []
    tools = [tool for tool in declared if not isinstance(tool, dict) or tool.get("type") not in HOSTED]
    if any(not isinstance(tool, dict) or tool.get("type") != "function" or "function" in tool for tool in tools):
        yield "TOOL tools: expected flat tools of type function"
        return
    yield from tool_faults("tools", [(tool.get("name"), tool.get("parameters")) for tool in tools])


def read(body: Body, model: str, stream: bool) -> Seen:
    """Read a request that the judge accepted."""
    given = body["input"]
    items: list[Body] = [{"role": "user", "content": given}] if isinstance(given, str) else given
    last = max((i for i, item in enumerate(items) if is_model_item(item)), default=-1)
    tail = [item["call_id"] for item in items[last + 1 :] if type_of(item) == "function_call_output"]
    # Calls of one answer share the stem of their ids; a client may put each output directly after its call.
    stem = tail[-1].rsplit("_", 1)[0] if tail else None
    outputs = [item["call_id"] for item in items if type_of(item) == "function_call_output"]
    users = (first_text(i["content"]) for i in items if type_of(i) == "message" and i["role"] == "user")
    return Seen(
        format=FORMAT,
        model=model,
        stream=stream,
        max_output=body.get("max_output_tokens"),
        items=items,
        system=body.get("instructions"),
        tools=[{"name": name, "schema": t.get("parameters") or {}} for name, t in _functions(body)],
        raw_tools=body.get("tools"),
        first_user=next(users, ""),
        results=[id_ for id_ in outputs if id_ in tail or id_.rsplit("_", 1)[0] == stem],
        last_calls=[
            Call(item["call_id"], _joined(item.get("namespace"), item["name"]), loaded(item["arguments"]))
            for item in items
            if type_of(item) == "function_call" and item["call_id"].rsplit("_", 1)[0] == stem
        ],
        leaves=list(leaves([body.get("instructions"), items])),
        closing=joined(items[-1].get("content")),
    )


def _functions(body: Body) -> Iterator[tuple[str, Body]]:
    """Yield the declared functions; those of a namespace under the names of both."""
    for tool in body.get("tools") or []:
        if tool.get("type") == "function":
            yield tool["name"], tool
        elif tool.get("type") == "namespace":
            yield from ((_joined(tool["name"], inner["name"]), inner) for inner in tool["tools"])


def _joined(namespace: str | None, name: str) -> str:
    return f"{namespace}{NAMESPACE}{name}" if namespace else name


def whole(answer: Answer, seen: Seen, usage: Usage, number: int, body: Body) -> Body:
    """Return an answer in one piece."""
    return _response(answer, seen, number, body, output=_items(answer, number, body), usage=usage)


def events(answer: Answer, seen: Seen, usage: Usage, number: int, body: Body) -> Iterator[bytes]:
    """Yield an answer as events, each with its number."""
    for at, (kind, data) in enumerate(_events(answer, seen, usage, number, body)):
        yield frame({"type": kind, "sequence_number": at, **data}, kind)


def failed(refusal: Refusal, seen: Seen, number: int, body: Body) -> Iterator[bytes]:
    """Yield a stream that fails. An overflow is reported this way, with status 200."""
    start = _response(None, seen, number, body, output=[], usage=None)
    error = {"code": refusal.code, "message": refusal.message}
    failure = {**start, "status": "failed", "error": error}
    for at, (kind, data) in enumerate((("response.created", start), ("response.failed", failure))):
        yield frame({"type": kind, "sequence_number": at, "response": data}, kind)


def overflow(prompt: int, output: int, window: int, style: str) -> Refusal:
    """Say that a request is too long; this interface states no numbers."""
    text = "Your input exceeds the context window of this model. Please adjust your input and try again."
    return Refusal(400, "context_length_exceeded", text, "input")


def _events(answer: Answer, seen: Seen, usage: Usage, number: int, body: Body) -> Iterator[tuple[str, Body]]:
    start = _response(None, seen, number, body, output=[], usage=None)
    yield "response.created", {"response": start}
    yield "response.in_progress", {"response": start}
    items = _items(answer, number, body)
    for at, item in enumerate(items):
        empty = {"reasoning": {"summary": []}, "message": {"content": []}, "function_call": {"arguments": ""}}
        stated = item["type"] not in ("reasoning", "compaction")
        opening = {**item, **empty.get(item["type"], {}), **({"status": "in_progress"} if stated else {})}
        opening.pop("encrypted_content", None)
        yield "response.output_item.added", {"output_index": at, "item": opening}
        yield from _inner(item, {"item_id": item["id"], "output_index": at})
        yield "response.output_item.done", {"output_index": at, "item": item}
    final = _response(answer, seen, number, body, output=items, usage=usage)
    yield f"response.{final['status']}", {"response": final}


def _inner(item: Body, place: Body) -> Iterator[tuple[str, Body]]:
    if item["type"] == "compaction":
        return
    if item["type"] == "function_call":
        for piece in pieces(item["arguments"], 12):
            yield "response.function_call_arguments.delta", {**place, "delta": piece}
        done = {**place, "name": item["name"], "arguments": item["arguments"]}
        yield "response.function_call_arguments.done", done
    elif item["type"] == "reasoning":
        inside, name = {**place, "summary_index": 0}, "response.reasoning_summary"
        text = item["summary"][0]["text"]
        yield f"{name}_part.added", {**inside, "part": {"type": "summary_text", "text": ""}}
        yield from ((f"{name}_text.delta", {**inside, "delta": piece}) for piece in pieces(text))
        yield f"{name}_text.done", {**inside, "text": text}
        yield f"{name}_part.done", {**inside, "part": item["summary"][0]}
    else:
        (part,) = item["content"]
        key = "refusal" if part["type"] == "refusal" else "text"
        name, extra = ("refusal", {}) if key == "refusal" else ("output_text", {"logprobs": []})
        inside = {**place, "content_index": 0}
        yield "response.content_part.added", {**inside, "part": {**part, key: ""}}
        yield from ((f"response.{name}.delta", {**inside, "delta": p, **extra}) for p in pieces(part[key]))
        yield f"response.{name}.done", {**inside, key: part[key], **extra}
        yield "response.content_part.done", {**inside, "part": part}


def _items(answer: Answer, number: int, body: Body) -> list[Body]:
    items: list[Body] = []
    if answer.compaction:
        items.append({"id": f"cmp_{number:06d}", "type": "compaction", "encrypted_content": answer.compaction[1]})
    if answer.thinking:
        summary = [{"type": "summary_text", "text": answer.thinking}]
        item: Body = {"id": f"rs_{number:06d}", "type": "reasoning", "summary": summary}
        items.append(
            {**item, "encrypted_content": answer.signature} if ENCRYPTED in (body.get("include") or []) else item
        )
    part: Body = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
    if answer.stop == "refusal":
        part = {"type": "refusal", "refusal": answer.text}
    if answer.text:
        said: Body = {"id": f"msg_{number:06d}", "type": "message", "status": "completed", "role": "assistant"}
        items.append({**said, "content": [part]})
    for at, call in enumerate(answer.calls):
        namespace, _, name = call.name.rpartition(NAMESPACE)
        named = {"call_id": call.id, "name": name, "arguments": call.text}
        if namespace:
            named["namespace"] = namespace
        items.append({"id": f"fc_{number:06d}_{at}", "type": "function_call", "status": "completed", **named})
    return items


def _response(
    answer: Answer | None, seen: Seen, number: int, body: Body, *, output: list[Body], usage: Usage | None
) -> Body:
    cut = answer is not None and answer.stop in ("length", "window")
    status = "in_progress" if answer is None else "incomplete" if cut else "completed"
    return {
        "id": f"resp_{number:06d}",
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "model": seen.model,
        "output": output,
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": body.get("store", True),
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": body.get("tools") or [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": usage and usage_of(usage),
        "user": None,
        "metadata": {},
    }


def usage_of(usage: Usage) -> Body:
    """Return usage as this interface counts it: cache inside the input, reasoning inside the output."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.output,
    }
