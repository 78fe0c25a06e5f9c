"""smolagents: a function that keeps the requests of an agent inside the context window.

smolagents writes its memory to messages before every request. The messages are compacted there; the memory stays whole.
Calls and observations are texts in smolagents. They are read as calls and results, so that an observation is treated as
the result of a tool and not as words of the user.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, Unpack
from uuid import uuid4

import msgspec

from kompakt.engine.recall.answer import TOOL_DESCRIPTION, TOOL_NAME
from kompakt.errors import UsageError
from kompakt.integrations.conversation import (
    AdapterArguments,
    AdapterOptions,
    Conversations,
    Converter,
    RequestFrame,
    missing,
)
from kompakt.model.messages import JsonObject

try:
    from smolagents import ActionStep, ChatMessage, MessageRole, MultiStepAgent, Tool, ToolCallingAgent
    from smolagents.memory import MemoryStep
    from smolagents.models import get_tool_json_schema
except ImportError as error:
    raise missing("smolagents", error) from error

__all__ = ["keep_inside_window"]

Agent = TypeVar("Agent", bound=MultiStepAgent)

CALLS, OBSERVATION = "Calling tools:\n", "Observation:\n"
"""How smolagents begins the text of a call and of its result."""


@dataclass(eq=False)
class _Entry:
    """Messages of smolagents that are one message of OpenAI Chat."""

    wire: JsonObject
    messages: list[ChatMessage]


class _EntryConverter(Converter[_Entry]):
    format = "openai-chat"

    def to_wire(self, item: _Entry) -> Sequence[JsonObject]:
        return (item.wire,)

    def from_wire(self, item: JsonObject, original: _Entry | None) -> _Entry:
        text = item["content"] if isinstance(item["content"], str) else ""
        if item["role"] == "tool":
            return _Entry(item, [_message(MessageRole.TOOL_RESPONSE, OBSERVATION + text)])
        messages = [_message(MessageRole(item["role"]), text)] if text else []
        if calls := item.get("tool_calls"):
            messages.append(_message(MessageRole.TOOL_CALL, CALLS + str(calls)))
        return _Entry(item, messages)


def _message(role: MessageRole, text: str) -> ChatMessage:
    return ChatMessage(role=role, content=[{"type": "text", "text": text}])


def _text(message: ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    return "\n".join(str(one.get("text", f"({one['type']})")) for one in message.content or ())


class _WrittenStep(NamedTuple):
    """The entries of a step, and what they were made from."""

    step: MemoryStep
    source: tuple[object, ...]
    entries: list[_Entry]


class _MemoryWriter:
    """Writes the steps of a memory to entries. A step that did not change keeps its entries."""

    def __init__(self, *, summary_mode: bool) -> None:
        self._summary_mode = summary_mode
        self._written: list[_WrittenStep] = []
        self._system: _Entry | None = None

    def entries(self, agent: MultiStepAgent) -> list[_Entry]:
        """Return the entries of the system prompt and of all steps."""
        found = self._system_entries(agent)
        steps = agent.memory.steps
        del self._written[len(steps) :]
        for number, step in enumerate(steps):
            source = _source(step)
            if number < len(self._written):
                known = self._written[number]
                if known.step is step and _is_same(known.source, source):
                    found += known.entries
                    continue
                del self._written[number:]
            made = _WrittenStep(step, source, self._step_entries(number, step))
            self._written.append(made)
            found += made.entries
        return found

    def _system_entries(self, agent: MultiStepAgent) -> list[_Entry]:
        made = [
            _Entry({"role": "system", "content": _text(message)}, [message])
            for message in agent.memory.system_prompt.to_messages(summary_mode=self._summary_mode)
        ]
        if len(made) == 1:
            if self._system is None or self._system.wire != made[0].wire:
                self._system = made[0]
            return [self._system]
        return made

    def _step_entries(self, number: int, step: MemoryStep) -> list[_Entry]:
        messages = step.to_messages(summary_mode=self._summary_mode)
        if isinstance(step, ActionStep):
            return list(_action_entries(f"step-{number}", step, messages))
        return list(map(_plain_entry, messages))


def _is_same(known: tuple[object, ...], source: tuple[object, ...]) -> bool:
    return len(known) == len(source) and all(map(operator.is_, known, source))


def _source(step: MemoryStep) -> tuple[object, ...]:
    """Return what the messages of a step are made from. Callbacks may replace it, for example to drop old images."""
    if not isinstance(step, ActionStep):
        return tuple(vars(step).values())
    lists = (*(step.tool_calls or ()), *(step.observations_images or ()))
    return (step.model_output, step.observations, step.error, *lists)


def _action_entries(id: str, step: ActionStep, messages: list[ChatMessage]) -> Iterator[_Entry]:
    """Yield a call and its result; plain messages if the step has none of both.

    Several calls of a step are one here: smolagents joins their results into one text.
    """
    at = next((at for at, one in enumerate(messages) if one.role == MessageRole.TOOL_CALL), None)
    if at is None or at + 1 == len(messages) or not step.tool_calls:
        yield from map(_plain_entry, messages)
        return
    calls = step.tool_calls
    arguments: Any = calls[0].arguments if len(calls) == 1 else {"calls": [one.dict()["function"] for one in calls]}
    if not isinstance(arguments, dict):
        arguments = {"input": arguments}
    call = {
        "id": id,
        "type": "function",
        "function": {"name": calls[0].name, "arguments": msgspec.json.encode(arguments, enc_hook=str).decode()},
    }
    said = "\n".join(map(_text, messages[:at])) or None
    yield _Entry({"role": "assistant", "content": said, "tool_calls": [call]}, messages[: at + 1])
    result = "\n".join(_text(one).removeprefix(OBSERVATION) for one in messages[at + 1 :])
    yield _Entry({"role": "tool", "tool_call_id": id, "content": result}, messages[at + 1 :])


def _plain_entry(message: ChatMessage) -> _Entry:
    spoken = message.role in (MessageRole.ASSISTANT, MessageRole.TOOL_CALL)
    role = "assistant" if spoken else "system" if message.role == MessageRole.SYSTEM else "user"
    return _Entry({"role": role, "content": _text(message) or "(empty)"}, [message])


class _RecallTool(Tool):
    name = TOOL_NAME
    description = TOOL_DESCRIPTION
    output_type = "string"
    skip_forward_signature_validation = True

    def __init__(self, recall: Callable[[str], str]) -> None:
        self.inputs = {"query": {"type": "string", "description": "What to look for, or a reference."}}
        super().__init__()
        self._recall = recall

    def forward(self, query: str) -> str:
        return self._recall(query)


class _MemoryView:
    """Writes the memory of one agent to messages."""

    def __init__(self, agent: MultiStepAgent, options: AdapterOptions) -> None:
        self._agent, self._conversations = agent, Conversations(_EntryConverter(), options)
        self._writers = {mode: _MemoryWriter(summary_mode=mode) for mode in (False, True)}
        self._first_step: object = None
        self._id = ""

    def write(self, summary_mode: bool = False) -> list[ChatMessage]:
        """Return what the model should see of the memory. Planning (``summary_mode``) has a view of its own."""
        steps = self._agent.memory.steps
        first = steps[0] if steps else None
        if first is not self._first_step or not self._id:
            self._first_step, self._id = first, f"smolagents-{uuid4().hex}"
        id = f"{self._id}-plan" if summary_mode else self._id
        entries = self._writers[summary_mode].entries(self._agent)
        view = self._conversations.get(id).view(entries, _frame(self._agent))
        return [message for entry in view for message in entry.messages]

    def recall(self, query: str) -> str:
        return self._conversations.get(self._id).recall(query).text


def _frame(agent: MultiStepAgent) -> RequestFrame:
    given: Iterable[Any] = agent.tools_and_managed_agents if isinstance(agent, ToolCallingAgent) else ()
    tools: list[Any] = [get_tool_json_schema(one) for one in given]
    return RequestFrame({"messages": [], "tools": tools} if tools else {}, model=agent.model.model_id)


def keep_inside_window(
    agent: Agent,
    *,
    store: str | None = None,
    recall: bool = True,
    **options: Unpack[AdapterArguments],
) -> Agent:
    """Keep the requests of an agent inside the context window; return the agent.

    ``budget`` is a number of tokens or a ``Budget``; by default it is the window of the model. ``pins`` are texts that
    must be kept verbatim. ``store`` is the URL of a store that gets the whole conversation at each compaction. The
    agent gets a ``recall`` tool, which searches what left the context, unless ``recall=False``.
    """
    chosen = AdapterOptions(store=store, recall=recall, **options)
    if recall and TOOL_NAME in agent.tools:
        raise UsageError(f"the agent has a tool {TOOL_NAME!r} of its own; pass recall=False")
    view = _MemoryView(agent, chosen)
    agent.write_memory_to_messages = view.write
    if recall:
        agent.tools[TOOL_NAME] = _RecallTool(view.recall)
    return agent
