"""OpenAI Chat Completions, and the servers that are compatible with it.

Rules: https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

from collections.abc import Mapping

from kompakt.model.budget import Usage
from kompakt.model.messages import JsonObject
from kompakt.wire.fields import enables_thinking, first_count, usage_with_cache_inside
from kompakt.wire.openai_chat import messages, rules
from kompakt.wire.wire import Clues, Wire


def _define_tool(*, name: str, description: str, schema: JsonObject) -> JsonObject:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _read_usage(usage: Mapping[str, object]) -> Usage:
    # DeepSeek: prompt_cache_hit_tokens; Moonshot: cached_tokens at the top level; Ollama's own API: *eval_count.
    prompt = first_count(usage, "prompt_tokens", "prompt_eval_count")
    output = first_count(usage, "completion_tokens", "eval_count")
    reasoning = first_count(usage, "completion_tokens_details.reasoning_tokens")
    # xAI counts reasoning beside the completion, which its total shows.
    if reasoning and first_count(usage, "total_tokens") == prompt + output + reasoning:
        output += reasoning
    return usage_with_cache_inside(
        prompt,
        cached=first_count(usage, "prompt_tokens_details.cached_tokens", "prompt_cache_hit_tokens", "cached_tokens"),
        written=first_count(usage, "prompt_tokens_details.cache_write_tokens"),
        output=output,
        reasoning=reasoning,
    )


_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def error_body(status: int, message: str, *, code: str) -> JsonObject:
    """Build an error response of OpenAI."""
    kind = _ERROR_TYPES.get(status) or ("server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


WIRE = Wire(
    format=messages.FORMAT,
    messages_key="messages",
    output_keys=("max_completion_tokens", "max_tokens"),
    contract=messages.CONTRACT,
    clues=Clues(
        body_keys=frozenset(
            {"max_completion_tokens", "response_format", "frequency_penalty", "stream_options", "n", "stop", "thinking"}
        ),
        item_keys=frozenset({"tool_calls", "tool_call_id", "function_call", "refusal"}),
        roles=frozenset({"tool", "function", "developer", "system"}),
        block_types=frozenset({"text", "image_url", "input_audio", "file", "refusal", "thinking"}),
        tool_keys=frozenset({"function"}),
        text_content=True,
        models=("claude", "gemini", "gpt", "o1", "o3", "o4", "deepseek", "mistral"),
        own_models=frozenset({"gpt", "o1", "o3", "o4", "deepseek", "mistral"}),
    ),
    parse=messages.parse,
    render=messages.render,
    problems=rules.problems,
    repair=rules.repair,
    define_tool=_define_tool,
    system_fields=lambda text: {},
    manual_thinking=enables_thinking,  # LiteLLM and others pass it on to Claude
    error_body=error_body,
    read_usage=_read_usage,
)
