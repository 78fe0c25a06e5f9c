"""Google Gemini ``generateContent``, of the Gemini API and of Vertex AI.

Rules: https://ai.google.dev/api/generate-content and https://ai.google.dev/gemini-api/docs/thought-signatures
"""

from __future__ import annotations

from collections.abc import Mapping

from kompakt.model.budget import Usage
from kompakt.model.messages import JsonObject
from kompakt.wire.fields import first_count, usage_with_cache_inside
from kompakt.wire.gemini import contents, rules
from kompakt.wire.wire import Clues, Wire


def _define_tool(*, name: str, description: str, schema: JsonObject) -> JsonObject:
    return {"functionDeclarations": [{"name": name, "description": description, "parameters": schema}]}


def _read_usage(usage: Mapping[str, object]) -> Usage:
    thoughts = first_count(usage, "thoughtsTokenCount", "thoughts_token_count")
    prompt = first_count(usage, "promptTokenCount", "prompt_token_count")
    return usage_with_cache_inside(
        prompt + first_count(usage, "toolUsePromptTokenCount", "tool_use_prompt_token_count"),
        cached=first_count(usage, "cachedContentTokenCount", "cached_content_token_count"),
        written=0,
        output=first_count(usage, "candidatesTokenCount", "candidates_token_count") + thoughts,
        reasoning=thoughts,
    )


_ERROR_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    413: "INVALID_ARGUMENT",
    415: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    431: "INVALID_ARGUMENT",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""https://ai.google.dev/gemini-api/docs/troubleshooting"""


def _error_body(status: int, message: str, *, code: str) -> JsonObject:
    del code
    state = _ERROR_STATUSES.get(status) or ("INTERNAL" if status >= 500 else "FAILED_PRECONDITION")
    return {"error": {"code": status, "message": message, "status": state}}


WIRE = Wire(
    format=contents.FORMAT,
    messages_key="contents",
    output_keys=("generationConfig.maxOutputTokens", "generation_config.max_output_tokens"),
    contract=contents.CONTRACT,
    clues=Clues(
        body_keys=frozenset({"systemInstruction", "system_instruction", "generationConfig", "toolConfig"}),
        item_keys=frozenset({"parts"}),
        roles=frozenset({"model", "function"}),
        tool_keys=frozenset({"functionDeclarations", "function_declarations"}),
        models=("gemini",),
        own_models=frozenset({"gemini"}),
    ),
    parse=contents.parse,
    render=contents.render,
    problems=rules.problems,
    repair=rules.repair,
    define_tool=_define_tool,
    system_fields=lambda text: {"systemInstruction": {"parts": [{"text": text}]}},
    error_body=_error_body,
    read_usage=_read_usage,
)
