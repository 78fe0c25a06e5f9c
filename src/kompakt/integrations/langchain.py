"""LangChain and LangGraph: a middleware for ``create_agent`` and a ``pre_model_hook`` for graphs of your own.

Both change the request and not the state: the checkpointer keeps every message, and removing the middleware undoes all.
System prompt and tools are counted. If the provider still rejects a request as too long, it is shortened and sent once
more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Unpack, cast

from kompakt.engine.recall.answer import TOOL_DESCRIPTION, TOOL_NAME
from kompakt.errors import UsageError
from kompakt.integrations.conversation import (
    AdapterArguments,
    AdapterOptions,
    Conversations,
    Converter,
    LiveConversation,
    RequestFrame,
    missing,
)
from kompakt.integrations.stores import NEEDS_URL
from kompakt.model.messages import JsonObject
from kompakt.session.store import Store

try:
    from langchain.agents.middleware import AgentMiddleware
    from langchain.tools import ToolRuntime
    from langchain_core.messages import AnyMessage, SystemMessage, ToolMessage, convert_to_messages
    from langchain_core.messages.utils import convert_to_openai_messages
    from langchain_core.tools import StructuredTool
    from langchain_core.utils.function_calling import convert_to_openai_tool
    from langgraph.config import get_config
except ImportError as error:
    raise missing("langchain", error) from error

__all__ = ["KompaktMiddleware", "pre_model_hook"]


class _ChatConverter(Converter[AnyMessage]):
    """Messages of LangChain as messages of OpenAI Chat. LangChain has the converters."""

    format = "openai-chat"

    def to_wire(self, item: AnyMessage) -> Sequence[JsonObject]:
        return convert_to_openai_messages([item], text_format="string", pass_through_unknown_blocks=True)

    def from_wire(self, item: JsonObject, original: AnyMessage | None) -> AnyMessage:
        if isinstance(original, ToolMessage):
            return original.model_copy(update={"content": item["content"]})
        made = convert_to_messages([item])[0]
        return cast("AnyMessage", made)


class KompaktMiddleware(AgentMiddleware[Any, Any]):
    """Keeps the requests of an agent inside the context window.

    ``budget`` is a number of tokens or a ``Budget``; by default it is the window of the model. ``pins`` are texts that
    must be kept verbatim. ``store`` is the URL of a store in which conversations are saved at each compaction. The
    model gets a ``recall`` tool once something has left its context, unless ``recall=False``.
    """

    def __init__(
        self,
        *,
        store: Store | str | None = None,
        recall: bool = True,
        **options: Unpack[AdapterArguments],
    ) -> None:
        super().__init__()
        chosen = AdapterOptions(store=store, recall=recall, **options)
        self._conversations = Conversations(_ChatConverter(), chosen)
        self.tools = [self._recall_tool()] if recall else []

    def _recall_tool(self) -> Any:
        conversations = self._conversations

        def recall(query: str, runtime: ToolRuntime[Any, Any]) -> str:
            return _conversation(conversations, runtime.state.get("messages", ())).recall(query).text

        async def arecall(query: str, runtime: ToolRuntime[Any, Any]) -> str:
            known = _conversation(conversations, runtime.state.get("messages", ()))
            return (await known.arecall(query)).text

        return StructuredTool.from_function(recall, arecall, name=TOOL_NAME, description=TOOL_DESCRIPTION)

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Send the compacted view of a request."""
        known = _conversation(self._conversations, request.messages)
        return known.send(request.messages, _frame(request), lambda view: handler(self._fitted(request, known, view)))

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Send the compacted view of a request."""
        known = _conversation(self._conversations, request.messages)
        return await known.asend(
            request.messages, _frame(request), lambda view: handler(self._fitted(request, known, view))
        )

    def _fitted(self, request: Any, conversation: LiveConversation[AnyMessage], view: Sequence[AnyMessage]) -> Any:
        """Return the request with the view; the recall tool is offered once there is something to recall."""
        tools = request.tools
        if not conversation.hides:
            tools = [one for one in tools if not any(one is own for own in self.tools)]
        return request.override(messages=list(view), tools=tools)


def pre_model_hook(
    *,
    store: str | None = None,
    **options: Unpack[AdapterArguments],
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return a function for ``create_react_agent(pre_model_hook=…)`` or for a node before the model.

    It returns ``llm_input_messages`` and leaves ``messages`` as they are. ``budget`` must leave room for system prompt
    and tools: the hook does not see them.

    Raises:
        UsageError: ``store`` is not a URL. The hook is synchronous.
    """
    if not isinstance(store, str | None):  # type: ignore[reportUnnecessaryIsInstance] — callers without a type checker
        raise UsageError(NEEDS_URL)
    chosen = AdapterOptions(store=store, recall=False, **options)
    conversations = Conversations(_ChatConverter(), chosen)

    def compacted(state: Mapping[str, Any]) -> dict[str, Any]:
        messages: Sequence[AnyMessage] = state["messages"]
        view = _conversation(conversations, messages).view(messages, RequestFrame())
        return {"llm_input_messages": view}

    return compacted


def _conversation(
    conversations: Conversations[AnyMessage], messages: Sequence[AnyMessage]
) -> LiveConversation[AnyMessage]:
    """Return the conversation of a thread, or of a task of it that runs a nested graph.

    Without a thread, the id of the first message names the conversation.
    """
    try:
        given: dict[str, Any] = get_config().get("configurable", {})
    except RuntimeError:  # outside of a graph
        given = {}
    thread = given.get("thread_id")
    if thread is not None:
        around = str(given.get("checkpoint_ns") or "").rpartition("|")[0]  # the last part is the node that calls us
        return conversations.get(f"langchain-{thread}-{around}" if around else f"langchain-{thread}")
    first = next((one for one in messages if not isinstance(one, SystemMessage)), None)
    return conversations.get(f"langchain-{getattr(first, 'id', None) or id(first)}", id_is_unique=False)


def _frame(request: Any) -> RequestFrame:
    name = getattr(request.model, "model_name", None) or getattr(request.model, "model", None)
    model = name if isinstance(name, str) else None
    tools = [one if isinstance(one, dict) else convert_to_openai_tool(one) for one in request.tools]
    system = request.system_message.text if request.system_message is not None else ""
    return RequestFrame({"messages": [], "tools": tools} if tools else {}, system, model)
