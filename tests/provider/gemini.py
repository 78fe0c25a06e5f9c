"""The server side of Gemini generateContent."""

from __future__ import annotations

from collections.abc import Iterator

from tests.judges.gemini import parts_of
from tests.provider.answer import Answer, Body, Call, Refusal, Seen, Usage
from tests.provider.frames import first_text, frame, joined, pieces, tool_faults
from tests.provider.token_count import leaves

FORMAT = "gemini"
STOPS = {"end": "STOP", "length": "MAX_TOKENS", "refusal": "SAFETY", "window": "MAX_TOKENS"}
STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
KEYS = frozenset(
    [
        "contents",
        "tools",
        "toolConfig",
        "safetySettings",
        "systemInstruction",
        "generationConfig",
        "cachedContent",
        "labels",
        "store",
        "serviceTier",
    ]
)


def faults(body: Body, headers: dict[str, str]) -> Iterator[str]:
    """Yield what the judge of contents does not look at."""
    for key in sorted(body.keys() - KEYS):
        yield f'BODY {key}: Invalid JSON payload received. Unknown name "{key}": Cannot find field.'
    declared = [function for tool in body.get("tools") or [] for function in tool.get("functionDeclarations") or []]
    pairs = [(tool.get("name"), tool.get("parametersJsonSchema", tool.get("parameters"))) for tool in declared]
    yield from tool_faults("tools.functionDeclarations", pairs)
    if any("parametersJsonSchema" in tool and "parameters" in tool for tool in declared):
        yield "TOOL tools.functionDeclarations: parameters and parametersJsonSchema exclude each other"


def read(body: Body, model: str, stream: bool) -> Seen:
    """Read a request that the judge accepted."""
    contents: list[Body] = body["contents"]
    last = max((i for i, content in enumerate(contents) if content["role"] == "model"), default=-1)
    calls = parts_of(contents[last], "functionCall") if last >= 0 else []
    responses = [response for content in contents[last + 1 :] for response in parts_of(content, "functionResponse")]
    declared = [function for tool in body.get("tools") or [] for function in tool.get("functionDeclarations") or []]
    users = (first_text(c["parts"]) for c in contents if c["role"] == "user" and first_text(c["parts"]))
    return Seen(
        format=FORMAT,
        model=model,
        stream=stream,
        max_output=(body.get("generationConfig") or {}).get("maxOutputTokens"),
        items=contents,
        system=body.get("systemInstruction"),
        tools=[
            {"name": t["name"], "schema": t.get("parametersJsonSchema") or t.get("parameters") or {}} for t in declared
        ],
        raw_tools=body.get("tools"),
        first_user=next(users, ""),
        results=[str(response.get("id")) for response in responses],
        last_calls=[Call(str(call.get("id")), call["name"], call.get("args") or {}) for call in calls],
        leaves=list(leaves([body.get("systemInstruction"), contents])),
        closing=joined(contents[-1]["parts"]),
    )


def whole(answer: Answer, seen: Seen, usage: Usage, number: int, body: Body) -> Body:
    """Return an answer in one piece."""
    return _chunk(_parts(answer), answer, seen, usage, number)


def events(answer: Answer, seen: Seen, usage: Usage, number: int, body: Body) -> Iterator[bytes]:
    """Yield an answer as chunks, each a complete response; calls are not split, the end comes last."""
    for part in _parts(answer):
        if "text" in part:
            for piece in pieces(part["text"]):
                yield frame(_chunk([{**part, "text": piece}], None, seen, usage, number))
        else:
            yield frame(_chunk([part], None, seen, usage, number))
    yield frame(_chunk([], answer, seen, usage, number))


def _parts(answer: Answer) -> list[Body]:
    if answer.stop == "refusal":
        return []
    parts: list[Body] = [{"text": answer.thinking, "thought": True}] if answer.thinking else []
    if answer.text:
        parts.append({"text": answer.text})
    calls: list[Body] = [{"functionCall": {"id": c.id, "name": c.name, "args": c.arguments}} for c in answer.calls]
    if calls and answer.signature:
        calls[0]["thoughtSignature"] = answer.signature
    return parts + calls


def _chunk(parts: list[Body], answer: Answer | None, seen: Seen, usage: Usage, number: int) -> Body:
    """Return one response; with an answer it is the last one and says why the model stopped."""
    candidate: Body = {"index": 0, "content": {"role": "model", **({"parts": parts} if parts else {})}}
    if answer is not None:
        candidate["finishReason"] = STOPS[answer.stop]
    counted = usage if answer is not None else Usage(usage.prompt, 0, usage.cached)
    named = {"modelVersion": seen.model, "responseId": f"resp-{number:06d}"}
    return {"candidates": [candidate], "usageMetadata": usage_of(counted), **named}


def usage_of(usage: Usage) -> Body:
    """Return usage as this interface counts it: candidates without thoughts, the prompt with its cached part."""
    reply: Body = {
        "promptTokenCount": usage.prompt,
        "candidatesTokenCount": usage.output - usage.reasoning,
        "totalTokenCount": usage.prompt + usage.output,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": usage.prompt}],
    }
    if usage.reasoning:
        reply["thoughtsTokenCount"] = usage.reasoning
    if usage.cached:
        reply["cachedContentTokenCount"] = usage.cached
    return reply


def overflow(prompt: int, output: int, window: int, style: str) -> Refusal:
    """Say that the input is too long. The stated limit does not include the output reserve."""
    limit = window if prompt > window else max(0, window - output)
    text = f"The input token count ({prompt}) exceeds the maximum number of tokens allowed ({limit})."
    return Refusal(400, STATUSES[400], text)


def refuse(refusal: Refusal) -> Body:
    """Return an error as this interface words it."""
    status = STATUSES.get(refusal.status, "UNKNOWN")
    return {"error": {"code": refusal.status, "message": refusal.message, "status": status}}
