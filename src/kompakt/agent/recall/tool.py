"""The recall tool in a request: whether it may be offered, under which name, and where it is added.

The tool is offered only after something has left the context. Until then a request is not changed. The compaction
changes the prompt anyway, so the provider's prompt cache is lost once and not twice. From then on the tool is in every
request of the conversation, after the caller's own tools, so the prompt stays stable.

A request must keep its meaning. So the tool is not offered if the caller declares no tools (the model or server may not
support them), forbids or forces calls, asks for structured output or for several answers. If the provider stores the
answer (OpenAI Responses without ``store=False``), the next request may continue it by its id, without the results of
hidden calls: then the tool is only offered where those can be added, which is in ``wrap`` and not in the gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from kompakt.agent.recall.anthropic import AnthropicRecall
from kompakt.agent.recall.gemini import GeminiRecall
from kompakt.agent.recall.openai_chat import ChatRecall
from kompakt.agent.recall.openai_responses import ResponsesRecall
from kompakt.agent.recall.turn import RecallProtocol, as_list
from kompakt.engine.recall.answer import TOOL_DESCRIPTION, TOOL_NAME, TOOL_SCHEMA
from kompakt.model.json import as_object
from kompakt.model.messages import Json, JsonObject
from kompakt.wire.registry import WIRES

_IMPLEMENTED = (ChatRecall(), ResponsesRecall(), AnthropicRecall(), GeminiRecall())
PROTOCOLS: dict[str, RecallProtocol] = {protocol.format: protocol for protocol in _IMPLEMENTED}

DECLARATIONS = ("functionDeclarations", "function_declarations")
"""Names of the field that holds Gemini's functions."""

Fields = Callable[[str], Json]
"""Returns a field of a request; ``None`` when it is missing."""


def can_offer(format: str, field: Fields, *, may_store: bool = False) -> bool:
    """Return whether a request allows one answer of free text with calls of any tool.

    ``may_store`` says whether the caller can continue an answer that the provider stores.
    """
    if format == "gemini":
        return _gemini_allows(field)
    choice = field("tool_choice")
    is_free = choice in (None, "auto") or as_object(choice).get("type") == "auto"
    if format == "openai-responses":
        shape = as_object(as_object(field("text")).get("format")).get("type")
        is_kept = field("store") is not False
        return is_free and shape in (None, "text") and (may_store or not is_kept) and not field("background")
    if format == "anthropic":
        return is_free and not field("output_format") and not as_object(field("output_config")).get("format")
    shape = as_object(field("response_format")).get("type")
    return is_free and shape in (None, "text") and field("n") in (None, 1)


def _gemini_allows(field: Fields) -> bool:
    config = as_object(field("toolConfig") or field("tool_config"))
    calling = as_object(config.get("functionCallingConfig") or config.get("function_calling_config"))
    if calling.get("mode") not in (None, "AUTO", "MODE_UNSPECIFIED") or calling.get("allowedFunctionNames"):
        return False
    if calling.get("streamFunctionCallArguments"):  # a streamed call has its name only in its first part
        return False
    output = as_object(field("generationConfig") or field("generation_config"))
    kind = output.get("responseMimeType", output.get("response_mime_type"))
    shapes = ("responseSchema", "response_schema", "responseJsonSchema", "response_json_schema", "responseFormat")
    several = output.get("candidateCount", output.get("candidate_count"))
    return kind in (None, "text/plain") and several in (None, 1) and not any(output.get(name) for name in shapes)


def tool_names(format: str, tools: Json) -> frozenset[str] | None:
    """Return the names of declared tools; ``None`` when there are none, or when kompakt's MCP server is among them."""
    listed = as_list(tools)
    if format == "gemini":
        listed = [one for entry in listed for key in DECLARATIONS for one in as_list(as_object(entry).get(key))]
    named = [as_object(entry) for entry in listed]
    found = [entry.get("name") or as_object(entry.get("function")).get("name") for entry in named]
    names = frozenset(str(name) for name in found)
    has_server = any("kompakt__" in name and name.endswith("recall") for name in names)
    return names if listed and not has_server else None


def free_name(taken: frozenset[str]) -> str:
    """Choose a name that none of the caller's tools has."""
    names = (TOOL_NAME, f"kompakt_{TOOL_NAME}")
    for name in names:
        if name not in taken:
            return name
    return next(name for number in count(2) if (name := f"{names[-1]}_{number}") not in taken)


def definition(format: str, name: str) -> JsonObject:
    """Return the definition of the tool as an entry of ``tools``."""
    return WIRES[format].define_tool(name=name, description=TOOL_DESCRIPTION, schema=TOOL_SCHEMA)


def with_tool(format: str, tools: Sequence[Json], name: str) -> list[Json]:
    """Append the tool to declared tools. Gemini accepts several functions only in one entry."""
    made = definition(format, name)
    entries = list(tools)
    if format != "gemini":
        return [*entries, made]
    at, key = max((at, key) for at, entry in enumerate(entries) for key in DECLARATIONS if as_object(entry).get(key))
    functions = [*entries[at][key], *made["functionDeclarations"]]
    return [*entries[:at], {**entries[at], key: functions}, *entries[at + 1 :]]
