"""CrewAI: hooks that keep the messages of agents inside the context window.

CrewAI sends the messages that an agent's executor keeps, so they are rewritten in place, before a model call. Give the
hooks a ``store`` to keep the whole conversation: it is saved before each rewrite. Messages of CrewAI are those of
OpenAI Chat.

CrewAI ignores what a hook raises, except ``HookAborted``, so every error here is one.
"""

from __future__ import annotations

from contextvars import ContextVar
from functools import partial
from typing import Any, Unpack, cast
from weakref import ref

from kompakt.engine.recall.answer import TOOL_DESCRIPTION, TOOL_NAME
from kompakt.errors import DoesNotFit, Overflowed
from kompakt.integrations.conversation import (
    MAX_CONVERSATIONS,
    AdapterArguments,
    AdapterOptions,
    Conversations,
    LiveConversation,
    RequestFrame,
    WireConverter,
    missing,
    overflow_of,
)
from kompakt.model.lru import Lru
from kompakt.model.messages import JsonObject
from kompakt.wire.overflow import Overflow

try:
    from crewai.hooks import (
        LLMCallHookContext,
        ToolCallHookContext,
        register_before_llm_call_hook,
        register_before_tool_call_hook,
        unregister_before_llm_call_hook,
        unregister_before_tool_call_hook,
    )
    from crewai.hooks.dispatch import HookAborted
    from crewai.tools import tool
except ImportError as error:
    raise missing("crewai", error) from error

__all__ = ["CrewDoesNotFit", "CrewOverflowed", "KompaktHooks"]

FIELDS = ("role", "content", "tool_calls", "tool_call_id", "name")
"""What a message of OpenAI Chat has. CrewAI adds objects of its own, like files."""

_AgentKey = tuple[str, str]
"""An agent, and the task that it works on."""

_calling: ContextVar[_AgentKey | None] = ContextVar("kompakt_crewai_calling", default=None)
"""The agent whose tool runs."""


class CrewOverflowed(Overflowed, HookAborted):
    """The request stays too long after it was shortened. Stops the crew."""


class CrewDoesNotFit(DoesNotFit, HookAborted):
    """What must stay is larger than the budget. Stops the crew."""


class _ExecutorRun:
    """The conversation of one executor, and whether the provider rejected the last view of it."""

    def __init__(self, executor: Any, conversation: LiveConversation[JsonObject]) -> None:
        self.executor, self.conversation = ref(executor), conversation
        self.shown = 0
        """Messages of the last view."""
        self.is_refused = False
        self.error: object = None
        """The last rejection that was handled."""


class KompaktHooks:
    """Keeps the messages of agents inside the context window: ``KompaktHooks(budget=…).register()``.

    ``budget`` is a number of tokens or a ``Budget``; by default it is the window of the model. ``pins`` are texts that
    must be kept verbatim. ``store`` is the URL of a store that gets the whole conversation before each rewrite. Give
    ``recall_tool`` to the agents (``tools=[…, hooks.recall_tool]``): the model can then search what left its context.
    """

    def __init__(
        self,
        *,
        store: str | None = None,
        recall: bool = True,
        **options: Unpack[AdapterArguments],
    ) -> None:
        self._options = AdapterOptions(store=store, recall=recall, **options)
        self._conversations = Conversations(WireConverter("openai-chat", FIELDS), self._options)
        self._runs: Lru[str, _ExecutorRun] = Lru(MAX_CONVERSATIONS)
        self._newest: Lru[_AgentKey, str] = Lru(MAX_CONVERSATIONS)
        """The newest conversation of each agent."""
        self._recall_tool = self._make_recall_tool()

    @property
    def recall_tool(self) -> Any:
        """Return the tool that searches the conversation of the agent that calls it.

        Raises:
            UsageError: ``recall=False``.
        """
        return self._options.offered(self._recall_tool)

    def _make_recall_tool(self) -> Any:
        def recall(query: str) -> str:
            key = _calling.get()
            id = self._newest.get(key) if key is not None else None
            return self._conversations.get(id or "crewai").recall(query).text

        recall.__doc__ = TOOL_DESCRIPTION
        made = tool(TOOL_NAME)(recall)
        made.cache_function = _never_cached
        return made

    def register(self) -> KompaktHooks:
        """Use the hooks for all agents of this process that are executed from now on."""
        register_before_llm_call_hook(self.before_llm_call)
        register_before_tool_call_hook(self.before_tool_call)
        return self

    def unregister(self) -> None:
        """Stop using the hooks."""
        unregister_before_llm_call_hook(self.before_llm_call)
        unregister_before_tool_call_hook(self.before_tool_call)

    def before_llm_call(self, context: LLMCallHookContext) -> None:
        """Rewrite the messages of an agent if they exceed the budget. Calls without an agent are left alone.

        Raises:
            CrewDoesNotFit: what must stay is larger than the budget.
        """
        executor: Any = context.executor
        if executor is None:
            return
        run = self._run_of(executor)
        self._newest.put(_agent_key(context), run.conversation.id)
        messages = cast("list[JsonObject]", context.messages)
        if len(messages) > run.shown:
            run.is_refused = False  # the model answered
        _rewrite(run, messages, None)
        # CrewAI has the model summarize an overlong conversation. It must not: messages would be lost.
        # Other hooks may have used the same model before.
        llm: Any = context.llm
        if getattr(vars(llm).get("summarize_messages"), "func", None) != self._shorten:
            object.__setattr__(llm, "summarize_messages", partial(self._shorten, llm))

    def before_tool_call(self, context: ToolCallHookContext) -> None:
        """Note whose tool runs, for ``recall_tool``."""
        _calling.set(_agent_key(context))

    def _run_of(self, executor: Any) -> _ExecutorRun:
        id = f"crewai-{executor.flow_id}"
        run = self._runs.get(id)
        if run is None or run.executor() is not executor:
            run = _ExecutorRun(executor, self._conversations.get(id))
            self._runs.put(id, run)
        return run

    def _shorten(self, llm: Any, messages: list[JsonObject], callbacks: list[Any], verbose: bool = True) -> None:
        """Replace ``summarize_messages`` of a model. CrewAI calls it after the provider rejected a request as too long.

        It also calls it before a request that it takes to be too long. The hook has then compacted already.

        Raises:
            CrewOverflowed: the messages were shortened already, or nothing more can be removed.
        """
        run = next((one for _, one in self._runs.items() if _messages_of(one.executor()) is messages), None)
        if run is None:  # not the messages of an agent with these hooks
            type(llm).summarize_messages(llm, messages, callbacks, verbose)
            return
        error: Exception | None = getattr(run.executor(), "_last_context_error", None)
        if error is None or error is run.error:
            return
        run.error = error
        refused = overflow_of(error) or Overflow(source="crewai", message=str(error))
        message = f"the request is too long, also after it was shortened: {error}"
        if run.is_refused:
            raise CrewOverflowed(message, overflow=refused) from error
        run.is_refused = True
        try:
            _rewrite(run, messages, refused)
        except CrewDoesNotFit as does_not_fit:
            raise CrewOverflowed(f"{message}; {does_not_fit}", overflow=refused) from error

    def __deepcopy__(self, memo: object) -> KompaktHooks:
        """Return the hooks themselves: copies of an agent share them."""
        return self


def _rewrite(run: _ExecutorRun, messages: list[JsonObject], refused: Overflow | None) -> None:
    try:
        messages[:] = run.conversation.view(messages, _frame(run.executor()), refused=refused)
    except DoesNotFit as error:
        raise CrewDoesNotFit(
            floor=error.floor, budget=error.budget, largest=error.largest, places=error.places
        ) from error
    except Exception as error:  # CrewAI ignores all others, also those of a callback, and sends the whole messages
        raise HookAborted(str(error), source="kompakt") from error
    run.shown = len(messages)


def _frame(executor: Any) -> RequestFrame:
    tools = getattr(executor, "_openai_tools", None)  # without native calls, the system prompt lists the tools
    name = getattr(executor.llm, "model", None)
    return RequestFrame(
        {"messages": [], "tools": tools} if tools else {}, model=name if isinstance(name, str) else None
    )


def _messages_of(executor: Any) -> object:
    return executor.messages if executor is not None else None


def _agent_key(context: Any) -> _AgentKey:
    return str(getattr(context.agent, "id", "")), str(getattr(context.task, "id", ""))


def _never_cached(_arguments: Any = None, _result: Any = None) -> bool:
    return False
