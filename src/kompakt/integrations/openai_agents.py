"""OpenAI Agents: an input filter for ``RunConfig.call_model_input_filter``.

The filter changes what one request sends. Run items, results and sessions of the SDK stay whole. Items of the SDK are
items of the Responses API already, so nothing is converted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, cast
from uuid import uuid4

from kompakt.agent.recall.rounds import query_of
from kompakt.engine.compaction.policies import AnyPolicy
from kompakt.engine.compaction.report import Report
from kompakt.engine.recall.answer import TOOL_DESCRIPTION, TOOL_NAME, TOOL_SCHEMA
from kompakt.integrations.conversation import AdapterOptions, Conversations, LiveConversation, RequestFrame, missing
from kompakt.model.budget import Budget
from kompakt.model.messages import JsonObject, ToolCall
from kompakt.model.phrases import RECALL_UNREADABLE
from kompakt.session.store import Store

try:
    from agents import FunctionTool
    from agents.run import CallModelData, ModelInputData
except ImportError as error:
    raise missing("openai_agents", error) from error

__all__ = ["InputFilter", "input_filter"]

_run: ContextVar[str | None] = ContextVar("kompakt_run", default=None)
"""Name of the current run. Runs have no id of their own, but each has a task, and tools inherit its variables."""


class _ItemConverter:
    """Items are wire items already."""

    format = "openai-responses"

    def to_wire(self, item: JsonObject) -> Sequence[JsonObject]:
        return (item,)

    def from_wire(self, item: JsonObject, original: JsonObject | None) -> JsonObject:
        return item


class InputFilter:
    """Compacts the input of each model call. Made by ``input_filter``."""

    recall_tool: FunctionTool
    """Give it to the agent (``tools=[…, filter.recall_tool]``). It is offered once something has left the context."""

    def __init__(self, options: AdapterOptions) -> None:
        self._conversations = Conversations(_ItemConverter(), options)
        self.recall_tool = FunctionTool(
            name=TOOL_NAME,
            description=TOOL_DESCRIPTION,
            params_json_schema=dict(TOOL_SCHEMA),
            on_invoke_tool=self._recall,
            strict_json_schema=False,
            is_enabled=lambda _, agent: options.recall and self._current(agent.name).hides,
        )

    def _current(self, agent: str) -> LiveConversation[JsonObject]:
        run = _run.get()
        if run is None:
            run = uuid4().hex
            _run.set(run)
        return self._conversations.get(f"openai-agents-{agent}-{run}")

    async def __call__(self, data: CallModelData[Any]) -> ModelInputData:
        """Return the compacted input. A conversation that the provider stores is not seen here and stays as it is."""
        given, agent = data.model_data, data.agent
        tools = [_definition(tool) for tool in agent.tools if isinstance(tool, FunctionTool)]
        envelope: JsonObject = {"input": [], "instructions": given.instructions or "", "tools": tools}
        frame = RequestFrame(envelope, model=agent.model if isinstance(agent.model, str) else None)
        view = await self._current(agent.name).aview(cast("list[JsonObject]", given.input), frame)
        return ModelInputData(input=cast("list[Any]", view), instructions=given.instructions)

    async def _recall(self, context: Any, arguments: str) -> str:
        agent = getattr(context, "agent", None)
        query = query_of(ToolCall("", TOOL_NAME, arguments))
        if query is None:
            return RECALL_UNREADABLE
        return self._current(getattr(agent, "name", "")).recall(query).text


def _definition(tool: FunctionTool) -> JsonObject:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.params_json_schema,
    }


def input_filter(
    *,
    budget: int | Budget | None = None,
    policy: AnyPolicy = "default",
    pins: Iterable[str] = (),
    store: Store | str | None = None,
    recall: bool = True,
    on_compaction: Callable[[Report], None] | None = None,
) -> InputFilter:
    """Return a filter for ``RunConfig(call_model_input_filter=…)``.

    ``budget`` is a number of tokens or a ``Budget``; by default it is the window of the agent's model. ``pins`` are
    texts that must be kept verbatim. ``store`` gets the whole conversation at each compaction.
    """
    return InputFilter(
        AdapterOptions(
            budget=budget, policy=policy, pins=tuple(pins), store=store, recall=recall, on_compaction=on_compaction
        )
    )
