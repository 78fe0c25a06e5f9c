"""OpenAI Responses.

Rules: https://platform.openai.com/docs/api-reference/responses/create
"""

from __future__ import annotations

from collections.abc import Mapping

from kompakt.model.budget import Usage
from kompakt.model.messages import JsonObject
from kompakt.wire.fields import first_count, usage_with_cache_inside
from kompakt.wire.openai_chat import error_body
from kompakt.wire.openai_responses import items, repair, rules
from kompakt.wire.wire import Clues, Wire


def _define_tool(*, name: str, description: str, schema: JsonObject) -> JsonObject:
    return {"type": "function", "name": name, "description": description, "parameters": schema}


def _read_usage(usage: Mapping[str, object]) -> Usage:
    return usage_with_cache_inside(
        first_count(usage, "input_tokens"),
        cached=first_count(usage, "input_tokens_details.cached_tokens"),
        written=first_count(usage, "input_tokens_details.cache_write_tokens"),
        output=first_count(usage, "output_tokens"),
        reasoning=first_count(usage, "output_tokens_details.reasoning_tokens"),
    )


WIRE = Wire(
    format=items.FORMAT,
    messages_key="input",
    output_keys=("max_output_tokens",),
    contract=items.CONTRACT,
    clues=Clues(
        body_keys=frozenset({"instructions", "previous_response_id", "max_output_tokens", "stream_options"}),
        item_keys=frozenset({"call_id", "encrypted_content"}),
        roles=frozenset({"developer", "system"}),
        block_types=frozenset({"input_audio", "refusal", "input_text", "output_text", "input_image", "input_file"}),
        flat_tools=True,
        text_content=True,
        typed_items=True,
        models=("gpt", "o1", "o3", "o4"),
    ),
    parse=items.parse,
    render=items.render,
    problems=rules.problems,
    repair=repair.repair,
    define_tool=_define_tool,
    system_fields=lambda text: {"instructions": text},
    error_body=error_body,
    read_usage=_read_usage,
)
