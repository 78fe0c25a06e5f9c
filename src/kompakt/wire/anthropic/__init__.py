"""Anthropic Messages.

Rules: https://docs.claude.com/en/api/messages
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from kompakt.model.budget import Usage
from kompakt.model.messages import JsonObject
from kompakt.wire.anthropic import messages, repair, rules
from kompakt.wire.fields import enables_thinking, first_count, usage_with_cache_apart
from kompakt.wire.wire import Clues, Wire


def _define_tool(*, name: str, description: str, schema: JsonObject) -> JsonObject:
    return {"name": name, "description": description, "input_schema": schema}


def _read_usage(usage: Mapping[str, object]) -> Usage:
    # BetaUsage.iterations: the last `message` entry is the size of the context. A `compaction` entry is not, and the
    # top level sums all turns of a server-side tool loop.
    steps = [entry for entry in _iterations(usage) if entry.get("type") == "message"]
    return _counts(steps[-1] if steps else usage)


def _read_billed_usage(usage: Mapping[str, object]) -> Usage:
    parts = [_counts(entry) for entry in _iterations(usage)]
    if not parts:
        return _read_usage(usage)
    return Usage(
        input=sum(part.input for part in parts),
        cache_read=sum(part.cache_read for part in parts),
        cache_write=sum(part.cache_write for part in parts),
        output=sum(part.output for part in parts),
        reasoning=sum(part.reasoning for part in parts),
    )


def _counts(usage: Mapping[str, object]) -> Usage:
    by_lifetime = ("cache_creation.ephemeral_5m_input_tokens", "cache_creation.ephemeral_1h_input_tokens")
    written = first_count(usage, "cache_creation_input_tokens") or sum(first_count(usage, key) for key in by_lifetime)
    return usage_with_cache_apart(
        first_count(usage, "input_tokens"),
        cached=first_count(usage, "cache_read_input_tokens"),
        written=written,
        output=first_count(usage, "output_tokens"),
        reasoning=first_count(usage, "output_tokens_details.thinking_tokens"),
    )


def _iterations(usage: Mapping[str, object]) -> list[Mapping[str, object]]:
    entries = usage.get("iterations")
    if not isinstance(entries, Sequence) or isinstance(entries, str | bytes):
        return []
    items = cast("Sequence[object]", entries)
    return [cast("Mapping[str, object]", entry) for entry in items if isinstance(entry, Mapping)]


_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""https://docs.claude.com/en/api/errors"""


def _error_body(status: int, message: str, *, code: str) -> JsonObject:
    del code
    kind = _ERROR_TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


WIRE = Wire(
    format=messages.FORMAT,
    messages_key="messages",
    output_keys=("max_tokens",),
    contract=messages.CONTRACT,
    clues=Clues(
        body_keys=frozenset({"anthropic_version", "system", "stop_sequences", "thinking"}),
        roles=frozenset({"system"}),
        block_types=frozenset(
            {
                *("text", "tool_use", "tool_result", "thinking", "redacted_thinking"),
                *("server_tool_use", "mcp_tool_use", "image", "document"),
            }
        ),
        tool_keys=frozenset({"input_schema"}),
        text_content=True,
        models=("claude", "deepseek"),
        own_models=frozenset({"claude"}),
    ),
    parse=messages.parse,
    render=messages.render,
    problems=rules.problems,
    repair=repair.repair,
    repair_body=repair.repair_body,
    define_tool=_define_tool,
    system_fields=lambda text: {"system": text},
    error_body=_error_body,
    manual_thinking=enables_thinking,
    read_usage=_read_usage,
    read_billed_usage=_read_billed_usage,
)
