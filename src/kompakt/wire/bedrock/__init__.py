"""AWS Bedrock Converse.

Rules: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html
"""

from __future__ import annotations

from collections.abc import Mapping

from kompakt.model.budget import Usage
from kompakt.model.messages import JsonObject
from kompakt.wire.bedrock import messages, rules
from kompakt.wire.fields import first_count, usage_with_cache_apart
from kompakt.wire.wire import Clues, Wire


def _define_tool(*, name: str, description: str, schema: JsonObject) -> JsonObject:
    return {"toolSpec": {"name": name, "description": description, "inputSchema": {"json": schema}}}


def _read_usage(usage: Mapping[str, object]) -> Usage:
    return usage_with_cache_apart(
        first_count(usage, "inputTokens"),
        cached=first_count(usage, "cacheReadInputTokens"),
        written=first_count(usage, "cacheWriteInputTokens"),
        output=first_count(usage, "outputTokens"),
        reasoning=0,
    )


def _error_body(status: int, message: str, *, code: str) -> JsonObject:
    del status, code  # AWS names the error type in a header
    return {"message": message}


WIRE = Wire(
    format=messages.FORMAT,
    messages_key="messages",
    model_key="modelId",
    output_keys=("inferenceConfig.maxTokens",),
    contract=messages.CONTRACT,
    clues=Clues(
        body_keys=frozenset({"toolConfig", "inferenceConfig", "modelId", "system"}),
        roles=frozenset({"system"}),
        untyped_blocks=frozenset(
            {"text", "toolUse", "toolResult", "reasoningContent", "cachePoint", "image", "document", "video"}
        ),
        models=("claude",),
    ),
    parse=messages.parse,
    render=messages.render,
    problems=rules.problems,
    repair=rules.repair,
    repair_body=rules.repair_body,
    define_tool=_define_tool,
    system_fields=lambda text: {"system": [{"text": text}]},
    error_body=_error_body,
    manual_thinking=rules.manual_thinking,
    read_usage=_read_usage,
)
