"""The server side of OpenAI Chat Completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from tests.provider.answer import Answer, Body, Call, Refusal, Seen, Usage
from tests.provider.frames import first_text, frame, joined, loaded, pieces, tool_faults, unknown_keys
from tests.provider.token_count import leaves

FORMAT = "openai-chat"
STOPS = {"end": "stop", "length": "length", "refusal": "stop", "window": "length"}
# `thinking` is DeepSeek's. Other fields of compatible servers are rejected.
KEYS = {*CompletionCreateParamsBase.__annotations__, "stream", "thinking"}
CREATED = 1_790_000_000


def faults(body: Body, headers: dict[str, str]) -> Iterator[str]:
    """Yield what the judge of messages does not look at."""
    yield from unknown_keys(body, KEYS)
    tools = body.get("tools")
    if tools is not None and (not isinstance(tools, list) or not tools):
        yield "TOOL tools: expected a list with at least one tool"
        return
    if any(not isinstance(tool, dict) or tool.get("type") != "function" for tool in tools or []):
        yield "TOOL tools: expected tools of type function"
        return
    named = [tool.get("function") or {} for tool in tools or []]
    yield from tool_faults("tools", [(tool.get("name"), tool.get("parameters")) for tool in named])
    for key in ("tool_choice", "parallel_tool_calls"):
        if key in body and not tools:
            yield f"TOOL {key}: is only allowed when tools are specified"
    if "stream_options" in body and not body.get("stream"):
        yield "BODY stream_options: only allowed when stream is true"


def read(body: Body, model: str, stream: bool) -> Seen:
    """Read a request that the judge accepted."""
    messages: list[Body] = body["messages"]
    last = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
    calls = (messages[last].get("tool_calls") or []) if last >= 0 else []
    tools = [tool["function"] for tool in body.get("tools") or []]
    users = (first_text(m["content"]) for m in messages if m["role"] == "user")
    return Seen(
        format=FORMAT,
        model=model,
        stream=stream,
        max_output=body.get("max_completion_tokens", body.get("max_tokens")),
        items=messages,
        system=None,
        tools=[{"name": tool["name"], "schema": tool.get("parameters") or {}} for tool in tools],
        raw_tools=body.get("tools"),
        first_user=next(users, ""),
        results=[m["tool_call_id"] for m in messages[last + 1 :] if m["role"] == "tool"],
        last_calls=[Call(c["id"], c["function"]["name"], loaded(c["function"]["arguments"])) for c in calls],
        leaves=list(leaves(messages)),
        closing=joined(messages[-1].get("content")),
    )


def whole(answer: Answer, seen: Seen, usage: Usage, number: int, body: Body) -> Body:
    """Return an answer in one piece."""
    message: Body = {"role": "assistant", "content": answer.text or None, "refusal": None, "annotations": []}
    if answer.stop == "refusal":
        message |= {"content": None, "refusal": answer.text}
    elif not answer.calls:
        message["content"] = answer.text
    if answer.thinking and _shows_thinking(seen):
        message["reasoning_content"] = answer.thinking
    if answer.calls:
        message["tool_calls"] = [_call(call) for call in answer.calls]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _stop(answer)}
    return {**_head("chat.completion", seen, number), "choices": [choice], "usage": usage_of(usage)}


def events(answer: Answer, seen: Seen, usage: Usage, number: int, body: Body) -> Iterator[bytes]:
    """Yield an answer as chunks; usage comes last, and only to who asked for it."""
    head = _head("chat.completion.chunk", seen, number)
    with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    if with_usage:
        head["usage"] = None

    def chunk(delta: Body, stop: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": stop}
        return frame({**head, "choices": [choice]})

    yield chunk({"role": "assistant", "content": "" if answer.text or not answer.calls else None, "refusal": None})
    if _shows_thinking(seen):
        yield from (chunk({"reasoning_content": piece}) for piece in pieces(answer.thinking))
    key = "refusal" if answer.stop == "refusal" else "content"
    yield from (chunk({key: piece}) for piece in pieces(answer.text))
    for at, call in enumerate(answer.calls):
        opening = {"index": at, **_call(call)}
        opening["function"] = {"name": call.name, "arguments": ""}
        yield chunk({"tool_calls": [opening]})
        for piece in pieces(call.text, 12):
            yield chunk({"tool_calls": [{"index": at, "function": {"arguments": piece}}]})
    yield chunk({}, _stop(answer))
    if with_usage:
        yield frame({**head, "choices": [], "usage": usage_of(usage)})
    yield frame("[DONE]")


def usage_of(usage: Usage) -> Body:
    """Return usage as this interface counts it: cache inside the prompt, reasoning inside the completion."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning, "audio_tokens": 0},
    }


def overflow(prompt: int, output: int, window: int, style: str) -> Refusal:
    """Say that a request is too long, as OpenAI, vLLM or llama.cpp says it."""
    limit = f"This model's maximum context length is {window} tokens. However, "
    if style == "llama.cpp":
        text = f"request ({prompt} tokens) exceeds the available context size ({window} tokens), try increasing it"
        return Refusal(400, "exceed_context_size_error", text, f"{prompt}/{window}")
    if style == "vllm":
        text = (
            f"{limit}you requested {output} output tokens and your prompt contains {prompt} input tokens, for a total "
            f"of {prompt + output} tokens. Please reduce the length of the input prompt or the number of requested "
            "output tokens."
        )
        return Refusal(400, "BadRequestError", text, "input_tokens")
    if prompt > window:
        text = f"{limit}your messages resulted in {prompt} tokens. Please reduce the length of the messages."
    else:
        text = (
            f"{limit}you requested {prompt + output} tokens ({prompt} in the messages, {output} in the completion). "
            "Please reduce the length of the messages or completion."
        )
    return Refusal(400, "context_length_exceeded", text, "messages")


def refuse(refusal: Refusal) -> Body:
    """Return an error as this interface words it."""
    kind, code = _kind(refusal), refusal.code
    if code == "exceed_context_size_error":
        prompt, window = (int(part) for part in str(refusal.param).split("/"))
        counts = {"n_prompt_tokens": prompt, "n_ctx": window}
        return {"error": {"code": refusal.status, "message": refusal.message, "type": code, **counts}}
    named = None if code == kind else code
    return {"error": {"message": refusal.message, "type": kind, "param": refusal.param, "code": named}}


def _kind(refusal: Refusal) -> str:
    kinds = {401: "invalid_request_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error"}
    return (
        "BadRequestError" if refusal.code == "BadRequestError" else kinds.get(refusal.status, "invalid_request_error")
    )


def _shows_thinking(seen: Seen) -> bool:
    return seen.model.rsplit("/", 1)[-1].startswith("deepseek")


def _head(kind: str, seen: Seen, number: int) -> dict[str, Any]:
    named = {"model": seen.model, "service_tier": "default", "system_fingerprint": "fp_local"}
    return {"id": f"chatcmpl-{number:06d}", "object": kind, "created": CREATED, **named}


def _call(call: Call) -> Body:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.text}}


def _stop(answer: Answer) -> str:
    return "tool_calls" if answer.calls else STOPS[answer.stop]
