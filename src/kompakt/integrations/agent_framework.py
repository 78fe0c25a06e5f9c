"""Microsoft Agent Framework: a compaction strategy that keeps model calls inside the window, and a stored history.

The function loop of the framework works on a list of its own. The strategy replaces messages in that list, so the
messages of the response and of the session stay whole, and nothing in them is marked as excluded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, Unpack
from uuid import uuid4

import msgspec

from kompakt.engine.compaction.policies import AnyPolicy
from kompakt.engine.compaction.report import Report
from kompakt.engine.recall.answer import TOOL_DESCRIPTION, TOOL_NAME
from kompakt.integrations.conversation import (
    AdapterArguments,
    AdapterOptions,
    Conversations,
    Converter,
    RequestFrame,
    missing,
)
from kompakt.integrations.history import StoredHistory
from kompakt.model.budget import Budget
from kompakt.model.messages import JsonObject
from kompakt.session.store import Store

try:
    from agent_framework import Content, FunctionTool, HistoryProvider, Message
except ImportError as error:
    raise missing("agent_framework", error) from error

__all__ = ["KompaktHistory", "KompaktStrategy"]

ORIGINAL_KEY = "agent_framework"
"""Where a stored item has the message that it was made from."""

RUN_KEY = "_kompakt_run"
"""Additional property of the first message of a run: the id of its conversation. It is never sent to a provider."""


class _ContentConverter(Converter[Message]):
    """Messages of Agent Framework as messages of OpenAI Chat: one for each function result, else one for a message."""

    format = "openai-chat"

    def to_wire(self, item: Message) -> Sequence[JsonObject]:
        results = list(_results(item))
        if results:
            return results
        text = "\n".join(_texts(item))
        calls = [
            {
                "id": one.call_id,
                "type": "function",
                "function": {"name": one.name, "arguments": _arguments(one)},
            }
            for one in item.contents
            if one.type == "function_call"
        ]
        if calls:
            return [{"role": "assistant", "content": text or None, "tool_calls": calls}]
        return [{"role": item.role if item.role in ("system", "assistant") else "user", "content": text or "(empty)"}]

    def rebuild(self, original: Message, parts: Mapping[int, JsonObject | None]) -> Sequence[Message]:
        """Shorten or leave out function results; other contents stay."""
        contents: list[Content] = []
        at = -1
        for one in original.contents:
            at += one.type == "function_result"
            if one.type != "function_result":
                contents.append(one)
            elif at in parts:
                new = parts[at]
                contents.append(
                    one if new is None else Content.from_function_result(one.call_id, result=new["content"])
                )
        if at < 0:
            return super().rebuild(original, parts)
        return [Message(original.role, contents, author_name=original.author_name)]

    def from_wire(self, item: JsonObject, original: Message | None) -> Message:
        text = item["content"] if isinstance(item["content"], str) else ""
        if item["role"] == "tool":
            contents = [Content.from_function_result(item["tool_call_id"], result=text)]
        else:
            contents = [Content.from_text(text)] if text else []
            contents += [
                Content.from_function_call(
                    call["id"], call["function"]["name"], arguments=call["function"]["arguments"]
                )
                for call in item.get("tool_calls") or ()
            ]
        author = original.author_name if original is not None else None
        return Message(item["role"], contents, author_name=author)


def _results(item: Message) -> Iterator[JsonObject]:
    for one in item.contents:
        if one.type == "function_result":
            result: Any = one.result
            text = result if isinstance(result, str) else "" if result is None else str(result)
            yield {"role": "tool", "tool_call_id": one.call_id, "content": text or one.exception or "(empty)"}


def _texts(item: Message) -> Iterator[str]:
    """Yield the texts of a message; the type of a content that is no text. Reasoning stays with its message."""
    for one in item.contents:
        if one.type == "text":
            yield one.text or ""
        elif one.type not in ("function_call", "function_result", "text_reasoning"):
            yield f"({one.type})"


def _arguments(call: Content) -> str:
    arguments: Any = call.arguments
    if arguments is None or isinstance(arguments, str):
        return arguments or "{}"
    return msgspec.json.encode(dict(arguments)).decode()


_CONVERTER = _ContentConverter()


class KompaktStrategy:
    """Keeps the model calls of an agent inside the window: ``Agent(…, compaction_strategy=KompaktStrategy(budget=…))``.

    ``budget`` is a number of tokens or a ``Budget``. The framework does not show instructions, tools and the model to
    a strategy, so subtract room for them; without ``budget``, ``policy`` needs triggers. ``pins`` are texts that must
    be kept verbatim. ``store`` gets the whole conversation at each compaction. Give ``recall_tool`` to the agent
    (``tools=[…, strategy.recall_tool]``): the model can then search what left its context.
    """

    def __init__(
        self,
        *,
        store: Store | str | None = None,
        recall: bool = True,
        **options: Unpack[AdapterArguments],
    ) -> None:
        self._options = AdapterOptions(store=store, recall=recall, **options)
        self._conversations = Conversations(_CONVERTER, self._options)
        self._current: ContextVar[str] = ContextVar("kompakt_run", default="")
        """The run whose tools are called: tools run in the task, or in a child, of the model call before them."""
        self._recall_tool = FunctionTool(name=TOOL_NAME, description=TOOL_DESCRIPTION, func=self._recall)

    @property
    def recall_tool(self) -> FunctionTool:
        """Return the tool that searches the conversation of the agent that calls it.

        Raises:
            UsageError: ``recall=False``.
        """
        return self._options.offered(self._recall_tool)

    async def _recall(self, query: str) -> str:
        return (await self._conversations.get(self._current.get()).arecall(query)).text

    async def __call__(self, messages: list[Message]) -> bool:
        """Replace messages in the list of the function loop if they exceed the budget."""
        if not messages:
            return False
        run = messages[0].additional_properties.get(RUN_KEY) or f"agent-framework-{uuid4().hex}"
        self._current.set(run)
        view = await self._conversations.get(run).aview(messages, RequestFrame())
        for first in (messages[0], view[0]):  # after a chat middleware the list is a copy and is not shortened
            first.additional_properties[RUN_KEY] = run
        if len(view) == len(messages) and all(one is other for one, other in zip(view, messages, strict=True)):
            return False
        messages[:] = view
        return True


class KompaktHistory(HistoryProvider):
    """The messages of sessions in a kompakt store: ``Agent(…, context_providers=[KompaktHistory(store=…)])``.

    With ``budget``, a stored session is compacted when it exceeds that many tokens; the store keeps every message.
    ``recall_tool`` searches the session of the current run. The options of the framework's ``HistoryProvider``, such as
    ``store_context_messages``, are passed on.
    """

    DEFAULT_SOURCE_ID: ClassVar[str] = "kompakt"

    def __init__(
        self,
        source_id: str | None = None,
        *,
        store: Store | str,
        budget: int | Budget | None = None,
        policy: AnyPolicy = "default",
        pins: Iterable[str] = (),
        recall: bool = True,
        on_compaction: Callable[[Report], None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(source_id or self.DEFAULT_SOURCE_ID, **options)
        self._options = AdapterOptions(
            budget=budget,
            policy=policy,
            pins=pins,
            store=store,
            recall=recall,
            on_compaction=on_compaction,
        )
        self._current: ContextVar[str] = ContextVar("kompakt_session", default="")
        """The session whose run calls tools: tools run in the task that loaded the history, or in a child of it."""
        self._recall_tool = FunctionTool(name=TOOL_NAME, description=TOOL_DESCRIPTION, func=self._recall)

    @property
    def recall_tool(self) -> FunctionTool:
        """Return the tool that searches the session of the current run.

        Raises:
            UsageError: ``recall=False``.
        """
        return self._options.offered(self._recall_tool)

    def _history(self, session_id: str | None) -> StoredHistory:
        return StoredHistory(session_id or "agent-framework", "openai-chat", self._options)

    async def _recall(self, query: str) -> str:
        return (await self._history(self._current.get()).recall(query)).text

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]:
        """Return the messages of a session, compacted if they exceeded the budget."""
        self._current.set(session_id or "")
        return _restored(await self._history(session_id).load())

    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Append messages to a session."""
        await self._history(session_id).append([item for one in messages for item in _with_original(one)])


def _with_original(message: Message) -> list[JsonObject]:
    """Return the items of a message. The first has the whole message, with what the format does not express."""
    first, *others = _CONVERTER.to_wire(message)
    return [{**first, ORIGINAL_KEY: message.to_dict()}, *others]


def _restored(items: Sequence[JsonObject]) -> list[Message]:
    """Return the messages that items were made from. An item that a compaction changed is converted."""
    found: list[Message] = []
    at = 0
    while at < len(items):
        original: Any = items[at].get(ORIGINAL_KEY)
        if original is not None:
            message = Message.from_dict(original)
            wires = list(_CONVERTER.to_wire(message))
            given = [
                {key: value for key, value in one.items() if key != ORIGINAL_KEY} for one in items[at : at + len(wires)]
            ]
            if given == wires:
                found.append(message)
                at += len(wires)
                continue
        found.append(_CONVERTER.from_wire(items[at], None))
        at += 1
    return found
