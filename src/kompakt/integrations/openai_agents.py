"""OpenAI Agents: an input filter for ``RunConfig.call_model_input_filter``, and a session in a kompakt store.

The filter changes what one request sends. Run items, results and sessions of the SDK stay whole. Items of the SDK are
items of the Responses API already, so nothing is converted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, Unpack, cast
from uuid import uuid4
from weakref import ref

from kompakt.agent.recall.rounds import query_of
from kompakt.engine.compaction.policies import AnyPolicy
from kompakt.engine.compaction.report import Report
from kompakt.engine.recall.answer import TOOL_DESCRIPTION, TOOL_NAME, TOOL_SCHEMA
from kompakt.integrations.conversation import (
    AdapterArguments,
    AdapterOptions,
    Conversations,
    LiveConversation,
    RequestFrame,
    WireConverter,
    missing,
)
from kompakt.integrations.history import StoredHistory
from kompakt.model.budget import Budget
from kompakt.model.messages import JsonObject, ToolCall
from kompakt.model.phrases import RECALL_DOWN, RECALL_UNREADABLE
from kompakt.session.store import Store

try:
    from agents import FunctionTool, SessionSettings, TResponseInputItem
    from agents.memory import OpenAIResponsesCompactionArgs
    from agents.run import CallModelData, ModelInputData
except ImportError as error:
    raise missing("openai_agents", error) from error

__all__ = ["InputFilter", "KompaktSession", "input_filter"]


class _RunMark(NamedTuple):
    """The current run. Runs have no id of their own, but each has a task, and tools inherit its variables."""

    id: str
    task: ref[asyncio.Task[Any]] | None


_run: ContextVar[_RunMark | None] = ContextVar("kompakt_run", default=None)


class InputFilter:
    """Compacts the input of each model call. Made by ``input_filter``."""

    recall_tool: FunctionTool
    """Give it to the agent (``tools=[…, filter.recall_tool]``). It is offered once something has left the context."""

    def __init__(self, options: AdapterOptions) -> None:
        self._conversations = Conversations(WireConverter("openai-responses"), options)
        self.recall_tool = _recall_tool(self._recall, lambda _, agent: options.recall and self._hides(agent.name))

    def _current(self, agent: str) -> LiveConversation[JsonObject] | None:
        """Return the conversation of an agent in the run that the calling task belongs to."""
        run = _run.get()
        return None if run is None else self._conversations.find(_key(agent, run))

    def _hides(self, agent: str) -> bool:
        known = self._current(agent)
        return known is not None and known.hides

    def _conversation(self, agent: str, items: Sequence[JsonObject]) -> LiveConversation[JsonObject]:
        """Return the conversation of a model call.

        A task that inherited its run from another task has a run of its own, like an agent that is called as a tool;
        unless the input extends that of the inherited run, which has a task for the call only.
        """
        run, task, known = _run.get(), asyncio.current_task(), self._current(agent)
        inherited = run is None or run.task is None or run.task() is not task
        if run is None or (inherited and (known is None or not known.is_extended_by(items))):
            run = _RunMark(uuid4().hex, None if task is None else ref(task))
            _run.set(run)
        return self._conversations.get(_key(agent, run))

    async def __call__(self, data: CallModelData[Any]) -> ModelInputData:
        """Return the compacted input. A conversation that the provider stores is not seen here and stays as it is."""
        given, agent = data.model_data, data.agent
        tools = [_definition(tool) for tool in agent.tools if isinstance(tool, FunctionTool)]
        envelope: JsonObject = {"input": [], "instructions": given.instructions or "", "tools": tools}
        frame = RequestFrame(envelope, model=agent.model if isinstance(agent.model, str) else None)
        items = cast("list[JsonObject]", given.input)
        view = await self._conversation(agent.name, items).aview(items, frame)
        return ModelInputData(input=cast("list[Any]", view), instructions=given.instructions)

    async def _recall(self, context: Any, arguments: str) -> str:
        agent = getattr(context, "agent", None)
        query = query_of(ToolCall("", TOOL_NAME, arguments))
        if query is None:
            return RECALL_UNREADABLE
        known = self._current(getattr(agent, "name", ""))
        return RECALL_DOWN if known is None else (await known.arecall(query)).text


def _key(agent: str, run: _RunMark) -> str:
    return f"openai-agents-{agent}-{run.id}"


def _definition(tool: FunctionTool) -> JsonObject:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.params_json_schema,
    }


def input_filter(
    *,
    store: Store | str | None = None,
    recall: bool = True,
    **options: Unpack[AdapterArguments],
) -> InputFilter:
    """Return a filter for ``RunConfig(call_model_input_filter=…)``.

    ``budget`` is a number of tokens or a ``Budget``; by default it is the window of the agent's model. ``pins`` are
    texts that must be kept verbatim. ``store`` gets the whole conversation at each compaction.
    """
    return InputFilter(AdapterOptions(store=store, recall=recall, **options))


class KompaktSession:
    """A session of the SDK in a kompakt store: ``Runner.run(…, session=KompaktSession("id", store="sqlite:///a.db"))``.

    With ``budget``, the stored history is compacted when it exceeds that many tokens; the store keeps every item. Give
    ``recall_tool`` to the agent (``tools=[…, session.recall_tool]``): the model can then search the whole session. Use
    ``input_filter`` as well for runs that fill a window within one turn.
    """

    session_settings: SessionSettings | None

    def __init__(
        self,
        session_id: str,
        *,
        store: Store | str,
        budget: int | Budget | None = None,
        policy: AnyPolicy = "default",
        pins: Iterable[str] = (),
        recall: bool = True,
        on_compaction: Callable[[Report], None] | None = None,
        model: str | None = None,
        session_settings: SessionSettings | None = None,
    ) -> None:
        options = AdapterOptions(
            budget=budget,
            policy=policy,
            pins=pins,
            store=store,
            recall=recall,
            on_compaction=on_compaction,
        )
        self.session_id, self.session_settings = session_id, session_settings
        self._history = StoredHistory(session_id, "openai-responses", options, model=model)
        self.recall_tool = _recall_tool(self._recall, lambda _, __: recall)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the items of the session; with a limit, the newest that can be sent without the others."""
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        return cast("list[TResponseInputItem]", await self._history.load(limit))

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items, and compact the session if it exceeds its budget."""
        await self._history.append(cast("list[JsonObject]", items))

    async def pop_item(self) -> TResponseInputItem | None:
        """Take back the newest item and return it. The store keeps it."""
        return cast("TResponseInputItem | None", await self._history.pop())

    async def clear_session(self) -> None:
        """Delete the session."""
        await self._history.clear()

    async def run_compaction(self, args: OpenAIResponsesCompactionArgs | None = None) -> None:
        """Compact the session if the runner forces it. Otherwise adding items has done it already."""
        if args is not None and args.get("force"):
            await self._history.compact()

    async def _recall(self, context: Any, arguments: str) -> str:
        query = query_of(ToolCall("", TOOL_NAME, arguments))
        return RECALL_UNREADABLE if query is None else (await self._history.recall(query)).text


def _recall_tool(invoke: Callable[[Any, str], Awaitable[str]], is_enabled: Callable[..., bool]) -> FunctionTool:
    return FunctionTool(
        name=TOOL_NAME,
        description=TOOL_DESCRIPTION,
        params_json_schema=dict(TOOL_SCHEMA),
        on_invoke_tool=invoke,
        strict_json_schema=False,
        is_enabled=is_enabled,
    )
