"""Tool definitions in each provider's words."""

from __future__ import annotations

from kompakt.model.messages import JsonObject
from kompakt.wire.detect import detect


def define_tool(format: str, *, name: str, description: str, schema: JsonObject) -> JsonObject:
    """Write a tool definition as one entry of a request's tools.

    Raises:
        UnknownFormat: there is no such format.
    """
    known = detect((), format=format)
    function = {"name": name, "description": description, "parameters": schema}
    shapes: dict[str, JsonObject] = {
        "openai-chat": {"type": "function", "function": function},
        "openai-responses": {"type": "function", **function},
        "anthropic": {"name": name, "description": description, "input_schema": schema},
        "gemini": {"functionDeclarations": [function]},
        "bedrock": {"toolSpec": {"name": name, "description": description, "inputSchema": {"json": schema}}},
    }
    return shapes[known]
