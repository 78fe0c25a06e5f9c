"""Haystack: a compactor and a token counter for the ``CompactionHook`` of its agents, and a hook for large results.

The ``CompactionHook`` decides when to compact and to which size. It replaces the messages of the agent's state. Give
the compactor a ``store`` to keep the whole conversation: it is saved before each replacement.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Unpack
from uuid import uuid4
from weakref import WeakKeyDictionary

import msgspec

from kompakt import api
from kompakt.engine.admission import AdmissionSettings
from kompakt.engine.recall.answer import TOOL_DESCRIPTION, TOOL_NAME
from kompakt.errors import DoesNotFit, UsageError
from kompakt.integrations.conversation import (
    MAX_CONVERSATIONS,
    AdapterArguments,
    AdapterOptions,
    Conversations,
    Converter,
    RequestFrame,
    extends,
    missing,
)
from kompakt.model.budget import Budget
from kompakt.model.lru import Lru
from kompakt.model.messages import JsonObject
from kompakt.model.tokens import counter_for
from kompakt.wire.registry import WIRES

try:
    from haystack.components.agents.state import State, replace_values
    from haystack.core.serialization import component_to_dict, default_from_dict, default_to_dict
    from haystack.dataclasses import ChatMessage, TextContent, ToolCall
    from haystack.hooks.compaction.types import Compactor
    from haystack.token_counters import TokenCounter
    from haystack.tools import ToolsType, flatten_tools_or_toolsets
    from haystack.tools.tool import Tool
    from haystack.utils import deserialize_component_inplace
except ImportError as error:
    raise missing("haystack", error) from error

__all__ = ["KompaktAdmissionHook", "KompaktCompactor", "KompaktTokenCounter"]

META_KEY = "context_compaction"
"""Where Haystack's own compactors mark a message that they wrote."""

UNLIMITED = Budget.of(10**9)
"""The budget of a view in which results are shortened and nothing is removed."""


class _ChatConverter(Converter[ChatMessage]):
    """Messages of Haystack as messages of OpenAI Chat: one for each result, else one for a message."""

    format = "openai-chat"

    def to_wire(self, item: ChatMessage) -> Sequence[JsonObject]:
        if item.tool_call_results:
            return [
                {"role": "tool", "tool_call_id": _call_id(one.origin), "content": _result_text(one.result)}
                for one in item.tool_call_results
            ]
        text = "\n".join(_texts(item))
        calls = [
            {
                "id": _call_id(one),
                "type": "function",
                "function": {"name": one.tool_name, "arguments": msgspec.json.encode(one.arguments).decode()},
            }
            for one in item.tool_calls
        ]
        if calls:
            return [{"role": "assistant", "content": text or None, "tool_calls": calls}]
        return [{"role": item.role.value, "content": text or "(empty)"}]

    def rebuild(self, original: ChatMessage, parts: Mapping[int, JsonObject | None]) -> Sequence[ChatMessage]:
        results = original.tool_call_results
        if len(results) < 2:
            return super().rebuild(original, parts)
        shown = [
            results[at] if one is None else dataclasses.replace(results[at], result=str(one["content"]))
            for at, one in parts.items()
        ]
        return [dataclasses.replace(original, _content=shown, _meta=dict(original.meta))]

    def from_wire(self, item: JsonObject, original: ChatMessage | None) -> ChatMessage:
        text = item["content"] if isinstance(item["content"], str) else ""
        if item["role"] == "tool":
            for one in original.tool_call_results if original is not None else ():
                if _call_id(one.origin) == item["tool_call_id"]:
                    return ChatMessage.from_tool(text, one.origin, one.error, meta=dict(original.meta))
            return ChatMessage.from_tool(text, ToolCall("tool", {}, item["tool_call_id"]))
        if item["role"] == "assistant":
            calls = [
                ToolCall(one["function"]["name"], msgspec.json.decode(one["function"]["arguments"] or "{}"), one["id"])
                for one in item.get("tool_calls") or ()
            ]
            return ChatMessage.from_assistant(text or None, tool_calls=calls or None)
        return ChatMessage.from_system(text) if item["role"] == "system" else ChatMessage.from_user(text)


def _call_id(call: ToolCall) -> str:
    return call.id or call.tool_name


def _result_text(result: Any) -> str:
    if isinstance(result, str):
        return result or "(empty)"
    return "\n".join(one.text if isinstance(one, TextContent) else "(media)" for one in result) or "(empty)"


def _texts(item: ChatMessage) -> Iterator[str]:
    yield from item.texts
    if item.images or item.files:
        yield "(media)"


_CONVERTER = _ChatConverter()


class _CountedMessages(NamedTuple):
    messages: tuple[ChatMessage, ...]
    tokens: int


class KompaktTokenCounter(TokenCounter):
    """Counts tokens as kompakt does: ``CompactionHook(…, token_counter=KompaktTokenCounter(model=…))``."""

    def __init__(self, model: str | None = None) -> None:
        self._model = model
        self._counted: Lru[int, _CountedMessages] = Lru(MAX_CONVERSATIONS)
        """What was counted, by the ``id`` of the first message: the hook counts everything before every request."""

    def count(self, messages: list[ChatMessage], tools: ToolsType | None = None) -> int:
        """Return the tokens of messages, and of tools if they are given."""
        body: JsonObject = {"messages": []}
        if tools:
            body["tools"] = [
                {"type": "function", "function": one.tool_spec} for one in flatten_tools_or_toolsets(tools)
            ]
        return api.count(body, format="openai-chat", model=self._model).total + self._messages_tokens(messages)

    def _messages_tokens(self, messages: list[ChatMessage]) -> int:
        if not messages:
            return 0
        known = self._counted.get(id(messages[0]))
        if known is None or not extends(messages, known.messages):
            known = _CountedMessages((), 0)
        counter, wire = counter_for(self._model), WIRES[_CONVERTER.format]
        new = [item for one in messages[len(known.messages) :] for item in _CONVERTER.to_wire(one)]
        tokens = known.tokens + sum(map(counter.message, wire.parse(new, None)))
        self._counted.put(id(messages[0]), _CountedMessages(tuple(messages), tokens))
        return tokens

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments for serialization."""
        return default_to_dict(self, model=self._model)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> KompaktTokenCounter:
        """Create a counter from what ``to_dict`` returned."""
        return default_from_dict(cls, data)


class KompaktCompactor(Compactor):
    """Compacts the messages of agents: ``CompactionHook(KompaktCompactor(), context_window=…)``.

    The hook gives the size. ``budget``, a number of tokens or a ``Budget`` for the messages, replaces it. ``pins`` are
    texts that must be kept verbatim. ``store`` is the URL of a store that gets the whole conversation before each
    compaction. Give ``recall_tool`` to the agent (``tools=[…, compactor.recall_tool]``): the model can then search what
    left its context. With ``admission``, run ``admission_hook`` before the ``CompactionHook``.
    """

    def __init__(
        self,
        *,
        store: str | None = None,
        recall: bool = True,
        **options: Unpack[AdapterArguments],
    ) -> None:
        self._options = AdapterOptions(store=store, recall=recall, **options)
        self._conversations = Conversations(_CONVERTER, self._options)
        self._states: WeakKeyDictionary[State, str] = WeakKeyDictionary()
        """The conversations of running agents."""
        self._unmarked: Lru[int, str] = Lru(MAX_CONVERSATIONS)
        """Conversations that did not get shorter yet, by the ``id`` of their first message."""
        self._recall_tool = self._make_recall_tool()
        self.admission_hook = KompaktAdmissionHook(self)

    @property
    def recall_tool(self) -> Tool:
        """Return the tool that searches the conversation of the agent that calls it.

        Raises:
            UsageError: ``recall=False``.
        """
        return self._options.offered(self._recall_tool)

    def _make_recall_tool(self) -> Tool:
        def recall(query: str, state: State) -> str:
            return self._conversations.get(self._id_of(state.data.get("messages", ())) or "").recall(query).text

        parameters: JsonObject = {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What to look for, or a reference."}},
            "required": ["query"],
        }
        return Tool(name=TOOL_NAME, description=TOOL_DESCRIPTION, parameters=parameters, function=recall)

    def compact(
        self, messages: list[ChatMessage], target_tokens: int, token_counter: TokenCounter
    ) -> list[ChatMessage] | None:
        """Return shorter messages; ``None`` if they would not be shorter."""
        id = self._id_of(messages) or self._unmarked_id(messages)
        conversation = self._conversations.get(id)
        try:
            view = conversation.view(messages, self._frame(target_tokens))
        except DoesNotFit as error:
            view = conversation.view(messages, self._frame(error.floor))
        return self._marked(id, messages, view, token_counter)

    async def compact_async(
        self, messages: list[ChatMessage], target_tokens: int, token_counter: TokenCounter
    ) -> list[ChatMessage] | None:
        """Like ``compact``, also for policies that have to be awaited."""
        id = self._id_of(messages) or self._unmarked_id(messages)
        conversation = self._conversations.get(id)
        try:
            view = await conversation.aview(messages, self._frame(target_tokens))
        except DoesNotFit as error:
            view = await conversation.aview(messages, self._frame(error.floor))
        return self._marked(id, messages, view, token_counter)

    def admit(self, state: State) -> None:
        """Shorten large results in the state of an agent, as ``admission`` says."""
        if self._options.admission_settings is not None:
            id, messages = self._admitted_id(state), state.data.get("messages", [])
            view = self._conversations.get(id).view(messages, RequestFrame(budget=UNLIMITED))
            self._replace(state, id, messages, view)

    async def admit_async(self, state: State) -> None:
        """Like ``admit``, also for policies that have to be awaited."""
        if self._options.admission_settings is not None:
            id, messages = self._admitted_id(state), state.data.get("messages", [])
            view = await self._conversations.get(id).aview(messages, RequestFrame(budget=UNLIMITED))
            self._replace(state, id, messages, view)

    def _unmarked_id(self, messages: Sequence[ChatMessage]) -> str:
        """Return the conversation that these messages continue; the hook asks again until they are shorter."""
        first = id(messages[0]) if messages else 0
        found = self._unmarked.get(first)
        known = self._conversations.find(found) if found is not None else None
        if found is None or known is None or not known.is_extended_by(messages):
            found = _new_id()
            self._unmarked.put(first, found)
        return found

    def _admitted_id(self, state: State) -> str:
        id = self._id_of(state.data.get("messages", ())) or self._states.get(state) or _new_id()
        self._states[state] = id
        return id

    def _replace(self, state: State, id: str, messages: list[ChatMessage], view: list[ChatMessage]) -> None:
        if len(view) != len(messages) or any(one is not other for one, other in zip(view, messages, strict=True)):
            _mark(id, messages, view)
            state.set("messages", view, handler_override=replace_values)

    def _frame(self, target: int) -> RequestFrame:
        if self._options.budget is not None:
            return RequestFrame()
        target = max(target, 1)
        limit = target + target // 4 + 1
        return RequestFrame(budget=Budget(window=limit, trigger=limit, target=target))

    def _marked(
        self, id: str, messages: list[ChatMessage], view: list[ChatMessage], counter: TokenCounter
    ) -> list[ChatMessage] | None:
        """Mark what kompakt wrote with its conversation; ``None`` if nothing was saved."""
        if counter.count(view) >= counter.count(messages):
            return None
        _mark(id, messages, view)
        return view

    def _id_of(self, messages: Iterable[ChatMessage]) -> str | None:
        """Return the conversation that was compacted before. It may be one of another process: the store has it."""
        for one in messages:
            mark: Any = one.meta.get(META_KEY)
            if isinstance(mark, dict) and mark.get("conversation"):
                return str(mark.get("conversation"))
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments for serialization, without ``on_compaction``.

        Raises:
            UsageError: the policy is not given by its name.
        """
        options = self._options
        if not isinstance(options.policy, str):
            raise UsageError("a policy object cannot be serialized; pass the name of a policy")
        budget = msgspec.to_builtins(options.budget)
        return default_to_dict(
            self,
            budget=budget,
            policy=options.policy,
            pins=list(options.pins),
            store=options.store,
            recall=options.recall,
            admission=msgspec.to_builtins(options.admission),
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> KompaktCompactor:
        """Create a compactor from what ``to_dict`` returned."""
        given = dict(data.get("init_parameters", {}))
        given["budget"] = msgspec.convert(given.get("budget"), int | Budget | None)
        given["admission"] = msgspec.convert(given.get("admission"), AdmissionSettings | str | None)
        return default_from_dict(cls, {**data, "init_parameters": given})


class KompaktAdmissionHook:
    """Shortens large results before the model first sees them: ``hooks={"before_llm": [compactor.admission_hook, …]}``.

    It does nothing if the compactor has no ``admission``.
    """

    allowed_hook_points = ("before_llm",)

    def __init__(self, compactor: KompaktCompactor) -> None:
        self.compactor = compactor

    def run(self, state: State) -> None:
        """Shorten the results in the state."""
        self.compactor.admit(state)

    async def run_async(self, state: State) -> None:
        """Shorten the results in the state."""
        await self.compactor.admit_async(state)

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments for serialization."""
        return default_to_dict(self, compactor=component_to_dict(obj=self.compactor, name="compactor"))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> KompaktAdmissionHook:
        """Create a hook from what ``to_dict`` returned."""
        deserialize_component_inplace(data=data["init_parameters"], key="compactor")
        return default_from_dict(cls, data)


def _mark(conversation: str, messages: list[ChatMessage], view: list[ChatMessage]) -> None:
    """Mark what kompakt wrote with its conversation."""
    own = set(map(id, messages))
    for one in view:
        if id(one) not in own:
            one.meta[META_KEY] = {"strategy": "kompakt", "conversation": conversation}


def _new_id() -> str:
    return f"haystack-{uuid4().hex}"
