"""LlamaIndex: a language model around yours that keeps its requests inside the context window.

Agents of LlamaIndex send their memory and the tool calls of the running turn, so a memory alone cannot keep a long turn
inside the window. The wrapper sees every request. Memory and turn stay whole.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from hashlib import sha256
from itertools import chain, takewhile
from typing import Any, Unpack

import msgspec

from kompakt.engine.recall.answer import TOOL_DESCRIPTION, TOOL_NAME
from kompakt.integrations.conversation import (
    AdapterArguments,
    AdapterOptions,
    Conversations,
    Converter,
    LiveConversation,
    RequestFrame,
    missing,
)
from kompakt.model.json import encode
from kompakt.model.messages import JsonObject
from kompakt.model.phrases import RECALL_DOWN

try:
    from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata, MessageRole, ToolCallBlock
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.llms.function_calling import FunctionCallingLLM
    from llama_index.core.tools import FunctionTool
    from llama_index.core.workflow import Context
except ImportError as error:
    raise missing("llama_index", error) from error

__all__ = ["KompaktLLM"]

SCRATCHPAD = "scratchpad"
"""Where the state of a ``FunctionAgent`` has the tool calls of the running turn."""

MAX_ALIKE = 20
"""Conversations in memory that start with the same message."""


class _BlockConverter(Converter[ChatMessage]):
    """Messages of LlamaIndex as messages of OpenAI Chat."""

    format = "openai-chat"

    def to_wire(self, item: ChatMessage) -> Sequence[JsonObject]:
        text = item.content or ""
        if any(one.block_type not in ("text", "tool_call", "thinking") for one in item.blocks):
            text = f"{text}\n(media)".strip()
        if item.role in (MessageRole.TOOL, MessageRole.FUNCTION):
            id = item.additional_kwargs.get("tool_call_id") or item.additional_kwargs.get("name") or "tool"
            return [{"role": "tool", "tool_call_id": id, "content": text or "(empty)"}]
        calls = _calls(item)
        if calls:
            return [{"role": "assistant", "content": text or None, "tool_calls": calls}]
        if _is_system(item):
            return [{"role": "system", "content": text or "(empty)"}]
        spoken = item.role in (MessageRole.ASSISTANT, MessageRole.MODEL, MessageRole.CHATBOT)
        return [{"role": "assistant" if spoken else "user", "content": text or "(empty)"}]

    def from_wire(self, item: JsonObject, original: ChatMessage | None) -> ChatMessage:
        text = item["content"] if isinstance(item["content"], str) else ""
        if item["role"] == "tool":
            given = original.additional_kwargs if original is not None else {"tool_call_id": item["tool_call_id"]}
            media = [one for one in original.blocks if one.block_type != "text"] if original is not None else []
            made = ChatMessage(role=MessageRole.TOOL, content=text, additional_kwargs=dict(given))
            made.blocks.extend(media)
            return made
        made = ChatMessage(role=MessageRole(item["role"]), content=text or None)
        made.blocks.extend(
            ToolCallBlock(
                tool_call_id=call["id"],
                tool_name=call["function"]["name"],
                tool_kwargs=call["function"]["arguments"],
            )
            for call in item.get("tool_calls") or ()
        )
        return made


def _calls(item: ChatMessage) -> list[JsonObject]:
    """Return the calls of a message: its blocks, or what older integrations put beside them."""
    found: list[JsonObject] = []
    for one in item.blocks:
        if isinstance(one, ToolCallBlock):
            given: Any = one.tool_kwargs
            arguments = given if isinstance(given, str) else msgspec.json.encode(given, enc_hook=str).decode()
            found.append(_call(one.tool_call_id or one.tool_name, one.tool_name, arguments))
    if found:
        return found
    for call in item.additional_kwargs.get("tool_calls") or ():
        function: Any = call.get("function") if isinstance(call, dict) else getattr(call, "function", None)
        if function is not None:
            read = function.get if isinstance(function, dict) else lambda name, of=function: getattr(of, name, None)
            id: Any = call.get("id") if isinstance(call, dict) else getattr(call, "id", None)
            found.append(_call(str(id), str(read("name")), str(read("arguments") or "{}")))
    return found


def _call(id: str, name: str, arguments: str) -> JsonObject:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _is_system(item: ChatMessage) -> bool:
    return item.role in (MessageRole.SYSTEM, MessageRole.DEVELOPER)


def _name(messages: Sequence[ChatMessage]) -> str:
    """Return the name of all conversations that start with the same request."""
    first = next((one for one in messages if not _is_system(one)), None)
    wire = [] if first is None else list(_BlockConverter().to_wire(first))
    return f"llama-index-{sha256(encode(wire)).hexdigest()[:24]}"


class KompaktLLM(FunctionCallingLLM):
    """Keeps the requests of a language model inside the window: ``FunctionAgent(llm=KompaktLLM(llm, budget=…))``.

    ``budget`` is a number of tokens or a ``Budget``; by default it is the window of the model. ``pins`` are texts that
    must be kept verbatim. ``store`` is the URL of a store that gets the whole conversation at each compaction. Give
    ``recall_tool`` to the agent (``tools=[…, llm.recall_tool]``): the model can then search what left its context.
    """

    _llm: Any = PrivateAttr()
    _options: AdapterOptions = PrivateAttr()
    _conversations: Conversations[ChatMessage] = PrivateAttr()

    def __init__(
        self,
        llm: FunctionCallingLLM,
        *,
        store: str | None = None,
        recall: bool = True,
        **options: Unpack[AdapterArguments],
    ) -> None:
        super().__init__(callback_manager=llm.callback_manager, system_prompt=llm.system_prompt)
        self._options = AdapterOptions(store=store, recall=recall, **options)
        self._llm, self._conversations = llm, Conversations(_BlockConverter(), self._options)

    @property
    def recall_tool(self) -> FunctionTool:
        """Return the tool that searches the conversation of the agent that calls it.

        Raises:
            UsageError: ``recall=False``.
        """

        async def recall(ctx: Any, query: str) -> str:
            messages = [*await (await ctx.store.get("memory")).aget(), *await ctx.store.get(SCRATCHPAD, default=[])]
            known = self._begun(messages)
            return RECALL_DOWN if known is None else (await known.arecall(query)).text

        recall.__annotations__ = {"ctx": Context, "query": str, "return": str}  # LlamaIndex reads them as types
        made = FunctionTool.from_defaults(async_fn=recall, name=TOOL_NAME, description=TOOL_DESCRIPTION)
        return self._options.offered(made)

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the class."""
        return "KompaktLLM"

    @property
    def metadata(self) -> LLMMetadata:
        """Return what the model says of itself."""
        return self._llm.metadata

    def _conversation(self, messages: Sequence[ChatMessage]) -> LiveConversation[ChatMessage]:
        """Return the conversation that these messages continue. A model has no ids of conversations."""
        name = _name(messages)
        for number in range(1, MAX_ALIKE + 1):
            known = self._conversations.find(f"{name}-{number}")
            if known is None or known.is_extended_by(messages):
                return self._conversations.get(f"{name}-{number}", id_is_unique=False)
        return self._conversations.get(name, id_is_unique=False)

    def _begun(self, messages: Sequence[ChatMessage]) -> LiveConversation[ChatMessage] | None:
        """Return the conversation that these messages continue, without system prompt; ``None`` if there is none."""
        name = _name(messages)
        for number in range(1, MAX_ALIKE + 1):
            known = self._conversations.find(f"{name}-{number}")
            if known is not None and known.is_extended_by([*takewhile(_is_system, known.items), *messages]):
                return known
        return None

    def _frame(self, options: dict[str, Any]) -> RequestFrame:
        tools: Any = options.get("tools") or ()
        texts = [one if isinstance(one, dict) else getattr(one, "metadata", None) for one in tools]
        name: Any = self._llm.metadata.model_name
        system = "\n".join(str(one) for one in texts)
        return RequestFrame(system=system, model=name if isinstance(name, str) and name != "unknown" else None)

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Send the compacted view of the messages."""
        return self._conversation(messages).send(
            messages, self._frame(kwargs), lambda view: self._llm.chat(view, **kwargs)
        )

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Send the compacted view of the messages."""
        return await self._conversation(messages).asend(
            messages, self._frame(kwargs), lambda view: self._llm.achat(view, **kwargs)
        )

    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        """Send the compacted view of the messages; an overflow shows before the first part of the answer."""

        def begin(view: list[ChatMessage]) -> Generator[ChatResponse]:
            parts = iter(self._llm.stream_chat(view, **kwargs))
            first = next(parts, None)
            return (one for one in (chain((first,), parts) if first is not None else parts))

        return self._conversation(messages).send(messages, self._frame(kwargs), begin)

    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        """Send the compacted view of the messages; an overflow shows before the first part of the answer."""

        async def begin(view: list[ChatMessage]) -> AsyncGenerator[ChatResponse]:
            parts = aiter(await self._llm.astream_chat(view, **kwargs))
            first = await anext(parts, None)

            async def rest() -> AsyncGenerator[ChatResponse]:
                if first is not None:
                    yield first
                async for one in parts:
                    yield one

            return rest()

        return await self._conversation(messages).asend(messages, self._frame(kwargs), begin)

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        """Pass a prompt on."""
        return self._llm.complete(prompt, formatted=formatted, **kwargs)

    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        """Pass a prompt on."""
        return await self._llm.acomplete(prompt, formatted=formatted, **kwargs)

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        """Pass a prompt on."""
        return self._llm.stream_complete(prompt, formatted=formatted, **kwargs)

    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        """Pass a prompt on."""
        return await self._llm.astream_complete(prompt, formatted=formatted, **kwargs)

    def _prepare_chat_with_tools(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return self._llm._prepare_chat_with_tools_compat(*args, **kwargs)

    def _validate_chat_with_tools_response(self, *args: Any, **kwargs: Any) -> ChatResponse:
        return self._llm._validate_chat_with_tools_response(*args, **kwargs)

    def get_tool_calls_from_response(self, *args: Any, **kwargs: Any) -> Any:
        """Return the calls in an answer of the model."""
        return self._llm.get_tool_calls_from_response(*args, **kwargs)
