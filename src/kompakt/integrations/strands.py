"""Strands Agents: a conversation manager that compacts before every model call, also inside of a tool loop.

Strands sends the messages that the agent keeps, so the manager rewrites them in place. Give it a ``store`` to keep the
whole conversation: it is saved before each rewrite. Messages of Strands have the format of Bedrock already.
"""

from __future__ import annotations

from typing import Any, Unpack, cast
from uuid import uuid4
from weakref import ref

from kompakt.engine.recall.answer import TOOL_DESCRIPTION, TOOL_NAME
from kompakt.errors import DoesNotFit, Overflowed
from kompakt.integrations.conversation import (
    AdapterArguments,
    AdapterOptions,
    Conversations,
    RequestFrame,
    WireConverter,
    missing,
    overflow_of,
)
from kompakt.model.messages import JsonObject
from kompakt.wire.overflow import Overflow

try:
    from strands import tool
    from strands.agent.conversation_manager import ConversationManager
    from strands.hooks import AfterModelCallEvent, BeforeModelCallEvent, HookRegistry
    from strands.types.exceptions import ContextWindowOverflowException
except ImportError as error:
    raise missing("strands", error) from error

__all__ = ["KompaktConversationManager", "StrandsOverflowed"]

STATE_KEY = "kompakt_conversation"

FIELDS = ("role", "content")
"""What a message of Bedrock has. Strands adds the usage and other metadata."""


class StrandsOverflowed(Overflowed, ContextWindowOverflowException):
    """The request stays too long after it was shortened. Also an error of Strands."""


class KompaktConversationManager(ConversationManager):
    """Keeps the messages of an agent inside the context window. Use one manager for each agent.

    ``budget`` is a number of tokens or a ``Budget``; by default it is the window of the model. ``pins`` are texts that
    must be kept verbatim. ``store`` is the URL of a store that gets the whole conversation before each rewrite. Give
    ``recall_tool`` to the agent (``tools=[…, manager.recall_tool]``): the model can then search what left its context.
    """

    def __init__(
        self,
        *,
        store: str | None = None,
        recall: bool = True,
        **options: Unpack[AdapterArguments],
    ) -> None:
        super().__init__()
        self._options = AdapterOptions(store=store, recall=recall, **options)
        self._conversations = Conversations(WireConverter("bedrock", FIELDS), self._options)
        self._key, self._restored = "", ""
        """Names of the conversation, and of the one that a restored agent continues."""
        self._agent: ref[Any] | None = None
        self._was_refused = False
        self._recall_tool = self._make_recall_tool()

    @property
    def recall_tool(self) -> Any:
        """Return the tool that searches the conversation of the agent.

        Raises:
            UsageError: ``recall=False``.
        """
        return self._options.offered(self._recall_tool)

    def _make_recall_tool(self) -> Any:
        @tool(name=TOOL_NAME, description=TOOL_DESCRIPTION)
        def recall(query: str) -> str:
            return self._conversations.get(self._key or self._restored).recall(query).text

        return recall

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Compact before every model call; Strands itself calls a manager only after a whole invocation."""
        super().register_hooks(registry, **kwargs)
        registry.add_callback(BeforeModelCallEvent, lambda event: self.apply_management(event.agent))
        registry.add_callback(AfterModelCallEvent, self._note_answer)

    def _note_answer(self, event: AfterModelCallEvent) -> None:
        """Shorten the messages after an overflow that the model did not report as Strands' own error."""
        error = event.exception
        if error is None:
            self._was_refused = False
        elif not isinstance(error, ContextWindowOverflowException) and overflow_of(error) is not None:
            self.reduce_context(event.agent, error)
            event.retry = True

    def apply_management(self, agent: Any, **kwargs: Any) -> None:
        """Rewrite the messages of the agent if they exceed the budget."""
        self._rewrite(agent, None)

    def reduce_context(self, agent: Any, e: Exception | None = None, **kwargs: Any) -> None:
        """Shorten the messages after the provider rejected them as too long.

        Raises:
            StrandsOverflowed: they were shortened already, or nothing more can be removed.
        """
        refused = (overflow_of(e) if e is not None else None) or Overflow(source="strands", message=str(e or ""))
        message = f"the request is too long, also after it was shortened: {e}"
        if self._was_refused:
            raise StrandsOverflowed(message, overflow=refused) from e
        self._was_refused = True
        try:
            self._rewrite(agent, refused)
        except DoesNotFit as error:
            raise StrandsOverflowed(f"{message}; {error}", overflow=refused) from e

    def get_state(self) -> dict[str, Any]:
        """Return the state for the session of Strands: also the name under which the store has the conversation."""
        return {**super().get_state(), STATE_KEY: self._key}

    def restore_from_session(self, state: dict[str, Any]) -> Any:
        """Continue the conversation of a restored agent."""
        self._restored = str(state.get(STATE_KEY) or "")
        return super().restore_from_session(state)

    def _rewrite(self, agent: Any, refused: Overflow | None) -> None:
        if self._agent is None or self._agent() is not agent:
            self._key = self._restored or f"strands-{agent.agent_id}-{uuid4().hex}"
            self._agent, self._restored = ref(agent), ""
        messages = cast("list[JsonObject]", agent.messages)
        view = self._conversations.get(self._key).view(messages, _frame(agent), refused=refused)
        if len(view) != len(messages) or any(one is not other for one, other in zip(view, messages, strict=True)):
            self.removed_message_count += max(0, len(messages) - len(view))
            messages[:] = view


def _frame(agent: Any) -> RequestFrame:
    specs = agent.tool_registry.get_all_tool_specs()
    envelope: JsonObject = {"messages": []}
    if agent.system_prompt:
        envelope["system"] = [{"text": agent.system_prompt}]
    if specs:
        envelope["toolConfig"] = {"tools": [{"toolSpec": dict(spec)} for spec in specs]}
    name = (agent.model.get_config() or {}).get("model_id")
    return RequestFrame(envelope, model=name if isinstance(name, str) else None)
