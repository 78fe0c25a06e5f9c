"""Pydantic AI: a capability that keeps the requests of an agent inside the context window.

It changes what one request sends. The message history of the run stays whole. A request that the provider rejects as
too long is shortened and attempted once more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from kompakt.engine.recall.answer import TOOL_DESCRIPTION, TOOL_NAME
from kompakt.errors import Overflowed
from kompakt.integrations.conversation import (
    AdapterArguments,
    AdapterOptions,
    Conversations,
    Converter,
    LiveConversation,
    RequestFrame,
    missing,
    overflow_of,
)
from kompakt.model.lru import Lru
from kompakt.model.messages import JsonObject
from kompakt.session.store import Store
from kompakt.wire.overflow import Overflow

try:
    from pydantic_ai import RunContext
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.exceptions import RetryModelRequest
    from pydantic_ai.messages import (
        CapabilityLoadDeltaPart,
        FilePart,
        ModelMessage,
        ModelRequest,
        ModelRequestPart,
        ModelResponse,
        SystemPromptPart,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )
    from pydantic_ai.models import ModelRequestContext
    from pydantic_ai.tools import ToolDefinition
    from pydantic_ai.toolsets import FunctionToolset
except ImportError as error:
    raise missing("pydantic_ai", error) from error

__all__ = ["Kompakt"]

MAX_PENDING = 1_000
"""Requests in flight whose messages are kept for a second attempt."""


class _PartConverter(Converter[ModelMessage]):
    """Messages of Pydantic AI as messages of OpenAI Chat: one for each part of a request, one for a response.

    Parts that a provider does not show to the model as text stay with their message and are not converted.
    """

    format = "openai-chat"

    def to_wire(self, item: ModelMessage) -> Sequence[JsonObject]:
        if isinstance(item, ModelResponse):
            return [_response(item)]
        return [wire for part in item.parts if (wire := _request_part(part)) is not None] or [_EMPTY]

    def stays(self, item: ModelMessage) -> bool:
        """Keep searches for tools and loaded capabilities: Pydantic AI offers the tools that it finds in a request."""
        return any(getattr(part, "tool_kind", None) or isinstance(part, CapabilityLoadDeltaPart) for part in item.parts)

    def rebuild(self, original: ModelMessage, parts: Mapping[int, JsonObject | None]) -> Sequence[ModelMessage]:
        """Shorten or leave out parts of a request; other parts, like media, stay."""
        if isinstance(original, ModelResponse):
            return super().rebuild(original, parts)
        shown: list[ModelRequestPart] = []
        at = -1
        for part in original.parts:
            if _request_part(part) is None:
                shown.append(part)
                continue
            at += 1
            if at in parts:
                new = parts[at]
                shown.append(part if new is None else _shortened(part, new["content"]))
        return [dataclasses.replace(original, parts=shown)]

    def from_wire(self, item: JsonObject, original: ModelMessage | None) -> ModelMessage:
        text = item["content"] if isinstance(item["content"], str) else ""
        if item["role"] == "assistant":
            calls = [
                ToolCallPart(call["function"]["name"], call["function"]["arguments"], call["id"])
                for call in item.get("tool_calls") or ()
            ]
            parts = [*([TextPart(text)] if text else []), *calls]
            if isinstance(original, ModelResponse):
                files = [part for part in original.parts if isinstance(part, FilePart)]
                return dataclasses.replace(original, parts=[*parts[:-1], *files, *parts[-1:]])
            return ModelResponse(parts=parts)
        if item["role"] == "tool":
            return ModelRequest(parts=[ToolReturnPart(item.get("name") or "tool", text, item["tool_call_id"])])
        if item["role"] == "system":
            return ModelRequest(parts=[SystemPromptPart(text)])
        return ModelRequest(parts=[UserPromptPart(text or item["content"])])


_EMPTY: JsonObject = {"role": "user", "content": ""}


def _response(item: ModelResponse) -> JsonObject:
    calls = [
        {
            "id": part.tool_call_id,
            "type": "function",
            "function": {"name": part.tool_name, "arguments": part.args_as_json_str()},
        }
        for part in item.parts
        if isinstance(part, ToolCallPart)
    ]
    text = "".join(part.content for part in item.parts if isinstance(part, TextPart))
    return {"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}


def _request_part(part: ModelRequestPart) -> JsonObject | None:
    if isinstance(part, ToolReturnPart):
        return {"role": "tool", "tool_call_id": part.tool_call_id, "content": part.model_response_str()}
    if part.part_kind in ("retry-prompt", "retry-feedback"):
        retry: Any = part  # the first kind is deprecated, but old histories contain it
        text = retry.model_response()
        if getattr(retry, "tool_name", None) is None:
            return {"role": "user", "content": text}
        return {"role": "tool", "tool_call_id": retry.tool_call_id, "content": text}
    if isinstance(part, SystemPromptPart):
        return {"role": "system", "content": part.content}
    if isinstance(part, UserPromptPart):
        content = part.content
        texts = [content] if isinstance(content, str) else [one for one in content if isinstance(one, str)]
        return {"role": "user", "content": "\n".join(texts) or "(media)"}
    return None


def _shortened(part: ModelRequestPart, content: Any) -> ModelRequestPart:
    """Return a part with a shorter text. Its media stay."""
    if isinstance(part, ToolReturnPart):
        return dataclasses.replace(part, content=[content, *part.files] if part.files else content)
    if isinstance(part, UserPromptPart) and not isinstance(part.content, str):
        return dataclasses.replace(part, content=[content, *(one for one in part.content if not isinstance(one, str))])
    if isinstance(part, UserPromptPart | SystemPromptPart):
        return dataclasses.replace(part, content=content)
    retry: Any = part
    if getattr(retry, "tool_name", None) is None:
        return UserPromptPart(content)
    return ToolReturnPart(retry.tool_name, content, retry.tool_call_id)


class Kompakt(AbstractCapability[Any]):
    """Keeps the requests of an agent inside the context window: ``Agent(…, capabilities=[Kompakt(budget=…)])``.

    ``budget`` is a number of tokens or a ``Budget``; by default it is the window of the model. ``pins`` are texts that
    must be kept verbatim. ``store`` gets the whole conversation at each compaction. The model gets a ``recall`` tool
    once something has left its context, unless ``recall=False``.
    """

    def __init__(
        self,
        *,
        store: Store | str | None = None,
        recall: bool = True,
        **options: Unpack[AdapterArguments],
    ) -> None:
        self._options = AdapterOptions(store=store, recall=recall, **options)
        self._conversations = Conversations(_PartConverter(), self._options)
        self._given: Lru[str, list[ModelMessage]] = Lru(MAX_PENDING)
        """The whole messages of the request in flight, by run: a second attempt starts from them."""
        self._refused: Lru[str, Overflow] = Lru(MAX_PENDING)

    def _conversation(self, ctx: RunContext[Any]) -> LiveConversation[ModelMessage]:
        return self._conversations.get(_key(ctx), id_is_unique=bool(ctx.conversation_id or ctx.run_id))

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Send the compacted view of the messages."""
        self._given.put(_run_key(ctx), list(request_context.messages))
        self._refused.remove(_run_key(ctx))
        view = await self._conversation(ctx).aview(request_context.messages, _frame(request_context))
        return dataclasses.replace(request_context, messages=view)

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Shorten the request for its second attempt."""
        refused, given = self._refused.get(_run_key(ctx)), self._given.get(_run_key(ctx))
        if refused is None or given is None:
            return request_context
        view = await self._conversation(ctx).aview(given, _frame(request_context), refused=refused)
        return dataclasses.replace(request_context, messages=view)

    async def on_model_request_error(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, error: Exception
    ) -> ModelResponse:
        """Attempt a request once more that was too long.

        Raises:
            Overflowed: the shorter request is too long as well.
        """
        refused = overflow_of(error)
        if refused is None:
            raise error
        if self._refused.get(_run_key(ctx)) is not None:
            self._refused.remove(_run_key(ctx))
            message = f"the request is too long, also after it was shortened: {error}"
            raise Overflowed(message, overflow=refused) from error
        self._refused.put(_run_key(ctx), refused)
        raise RetryModelRequest from error

    def get_toolset(self) -> FunctionToolset[Any] | None:
        """Return the recall tool."""
        if not self._options.recall:
            return None
        tools: FunctionToolset[Any] = FunctionToolset()

        async def recall(ctx: RunContext[Any], query: str) -> str:
            return (await self._conversation(ctx).arecall(query)).text

        tools.add_function(recall, name=TOOL_NAME, description=TOOL_DESCRIPTION)
        return tools

    async def prepare_tools(self, ctx: RunContext[Any], tool_defs: list[ToolDefinition]) -> list[ToolDefinition]:
        """Offer the recall tool once there is something to recall."""
        if not self._options.recall or self._conversation(ctx).hides:
            return tool_defs
        return [tool for tool in tool_defs if tool.name != TOOL_NAME]


def _key(ctx: RunContext[Any]) -> str:
    return f"pydantic-ai-{ctx.conversation_id or ctx.run_id or id(ctx.usage)}"


def _run_key(ctx: RunContext[Any]) -> str:
    """Return the name of a run. Several runs may continue one conversation at the same time."""
    return ctx.run_id or _key(ctx)


def _frame(request: ModelRequestContext) -> RequestFrame:
    parameters = request.model_request_parameters
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description or "",
                "parameters": tool.parameters_json_schema,
            },
        }
        for tool in (*parameters.function_tools, *parameters.output_tools)
    ]
    system = "\n".join(part.content for part in parameters.instruction_parts or ())
    return RequestFrame({"messages": [], "tools": tools} if tools else {}, system, request.model.model_name)
