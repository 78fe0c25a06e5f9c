"""AutoGen: a model context that keeps the requests of an agent inside the context window.

It returns a view of the messages that the agent collected. The context itself, and its saved state, stay whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack
from uuid import uuid4

import msgspec

from kompakt.engine.recall.answer import TOOL_DESCRIPTION, TOOL_NAME
from kompakt.errors import UsageError
from kompakt.integrations.conversation import (
    AdapterArguments,
    AdapterOptions,
    Converter,
    LiveConversation,
    RequestFrame,
    missing,
)
from kompakt.model.budget import Budget
from kompakt.model.messages import JsonObject
from kompakt.session.store import Store

try:
    from typing import Self

    from autogen_core import Component, FunctionCall
    from autogen_core.model_context import ChatCompletionContext
    from autogen_core.models import (
        AssistantMessage,
        FunctionExecutionResult,
        FunctionExecutionResultMessage,
        LLMMessage,
        SystemMessage,
        UserMessage,
    )
    from autogen_core.tools import FunctionTool
    from pydantic import BaseModel
except ImportError as error:
    raise missing("autogen", error) from error

__all__ = ["KompaktContext", "KompaktContextConfig"]

SOURCE = "kompakt"
"""Author of messages that kompakt writes."""


class _MessageConverter(Converter[LLMMessage]):
    """Messages of AutoGen as messages of OpenAI Chat: one for each function result, else one for a message."""

    format = "openai-chat"

    def to_wire(self, item: LLMMessage) -> Sequence[JsonObject]:
        if isinstance(item, FunctionExecutionResultMessage):
            return [
                {"role": "tool", "tool_call_id": _id(one), "content": one.content or "(empty)"} for one in item.content
            ]
        if isinstance(item, SystemMessage):
            return [{"role": "system", "content": item.content}]
        if isinstance(item, UserMessage):
            given = [item.content] if isinstance(item.content, str) else item.content
            texts = [one if isinstance(one, str) else "(media)" for one in given]
            return [{"role": "user", "content": "\n".join(texts) or "(empty)"}]
        if isinstance(item.content, str):
            return [{"role": "assistant", "content": item.content or item.thought or "(empty)"}]
        calls = [
            {"id": one.id or one.name, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
            for one in item.content
        ]
        return [{"role": "assistant", "content": item.thought, "tool_calls": calls}]

    def rebuild(self, original: LLMMessage, parts: Mapping[int, JsonObject | None]) -> Sequence[LLMMessage]:
        if not isinstance(original, FunctionExecutionResultMessage):
            return super().rebuild(original, parts)
        shown = [
            original.content[at] if one is None else original.content[at].model_copy(update={"content": one["content"]})
            for at, one in parts.items()
        ]
        return [FunctionExecutionResultMessage(content=shown)]

    def from_wire(self, item: JsonObject, original: LLMMessage | None) -> LLMMessage:
        text = item["content"] if isinstance(item["content"], str) else ""
        if item["role"] == "tool":
            result = FunctionExecutionResult(
                content=text, name=item.get("name") or "tool", call_id=item["tool_call_id"]
            )
            return FunctionExecutionResultMessage(content=[result])
        if item["role"] == "system":
            return SystemMessage(content=text)
        if item["role"] == "user":
            return UserMessage(content=text, source=SOURCE)
        source = original.source if isinstance(original, AssistantMessage) else SOURCE
        calls = [
            FunctionCall(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
            for call in item.get("tool_calls") or ()
        ]
        if calls:
            return AssistantMessage(content=calls, thought=text or None, source=source)
        return AssistantMessage(content=text, source=source)


def _id(result: FunctionExecutionResult) -> str:
    return result.call_id or result.name


class KompaktContextConfig(BaseModel):
    """The arguments of a context for AutoGen's component files. ``on_compaction`` is not among them."""

    budget: Any = None
    policy: str = "default"
    pins: list[str] = []
    store: str | None = None
    recall: bool = True
    admission: str | None = None
    initial_messages: list[LLMMessage] | None = None


class KompaktContext(ChatCompletionContext, Component[KompaktContextConfig]):
    """The messages of one agent: ``AssistantAgent(…, model_context=KompaktContext(budget=…))``.

    ``budget`` is a number of tokens or a ``Budget``. AutoGen shows neither system messages nor tools nor the model to a
    context, so subtract room for them. ``pins`` are texts that must be kept verbatim. ``store`` gets the whole
    conversation at each compaction. Give ``recall_tool`` to the agent (``tools=[…, context.recall_tool]``): the model
    can then search what left its context.
    """

    component_config_schema = KompaktContextConfig
    component_provider_override = "kompakt.integrations.autogen.KompaktContext"

    def __init__(
        self,
        *,
        store: Store | str | None = None,
        recall: bool = True,
        initial_messages: list[LLMMessage] | None = None,
        **options: Unpack[AdapterArguments],
    ) -> None:
        super().__init__(initial_messages)
        self._options = AdapterOptions(store=store, recall=recall, **options)
        self._id = f"autogen-{uuid4().hex}"
        self._conversation = LiveConversation(self._id, _MessageConverter(), self._options)

        async def recall_earlier(query: str) -> str:
            return (await self._conversation.arecall(query)).text

        self._recall_tool = FunctionTool(recall_earlier, TOOL_DESCRIPTION, name=TOOL_NAME)

    @property
    def recall_tool(self) -> FunctionTool:
        """Return the tool that searches the conversation.

        Raises:
            UsageError: ``recall=False``.
        """
        return self._options.offered(self._recall_tool)

    async def get_messages(self) -> list[LLMMessage]:
        """Return what the model should see."""
        return await self._conversation.aview(self._messages, RequestFrame())

    async def clear(self) -> None:
        """Remove all messages; what follows is another conversation."""
        await super().clear()
        self._continue(f"autogen-{uuid4().hex}")

    async def save_state(self) -> Mapping[str, Any]:
        """Return all messages, and the name under which the store has the conversation."""
        return {**await super().save_state(), "kompakt_conversation": self._id}

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``save_state`` returned."""
        await super().load_state({name: value for name, value in state.items() if name != "kompakt_conversation"})
        self._continue(str(state.get("kompakt_conversation") or f"autogen-{uuid4().hex}"))

    def _continue(self, id: str) -> None:
        self._id, self._conversation = id, LiveConversation(id, _MessageConverter(), self._options)

    def _to_config(self) -> KompaktContextConfig:
        options = self._options
        given = (options.policy, options.store or "", options.admission or "")
        if not all(isinstance(one, str) for one in given):
            raise UsageError("policy, store and admission can be written to a component file only by name or URL")
        return KompaktContextConfig(
            budget=msgspec.to_builtins(options.budget),
            policy=str(options.policy),
            pins=list(options.pins),
            store=options.store if isinstance(options.store, str) else None,
            recall=options.recall,
            admission=options.admission if isinstance(options.admission, str) else None,
            initial_messages=self._initial_messages,
        )

    @classmethod
    def _from_config(cls, config: KompaktContextConfig) -> Self:
        return cls(
            budget=msgspec.convert(config.budget, int | Budget | None),
            policy=config.policy,
            pins=config.pins,
            store=config.store,
            recall=config.recall,
            admission=config.admission,
            initial_messages=config.initial_messages,
        )
