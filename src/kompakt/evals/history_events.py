"""A history as a list of events, and the text of a projection.

Both are written by the same code, so text that a projection leaves unchanged is found in it verbatim. This module does
not import the engine: the evaluation must not depend on how a projection was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import msgspec

from kompakt.model.messages import Json, JsonObject, Message, Reasoning, Text, ToolCall, ToolResult

EventKind: TypeAlias = Literal["system", "user", "assistant", "call", "result"]

SEPARATOR = "\n"


class HistoryEvent(msgspec.Struct, frozen=True, gc=False):
    """A text, a tool call or a tool result."""

    kind: EventKind
    text: str
    """Plain text, with JSON escapes decoded."""
    message: int
    id: str = ""
    """The id of the call. A result has the id of its call."""
    name: str = ""
    """The name of the tool. A result has the name of its call."""
    input: JsonObject = {}
    failed: bool = False
    summary: bool = False
    """Whether this user message is a summary written by an agent."""


class CallPair(msgspec.Struct, frozen=True, gc=False):
    """A call and its result, if there is one."""

    event: HistoryEvent
    result: HistoryEvent | None

    @property
    def succeeded(self) -> bool:
        """Whether the call has a result that is not an error."""
        return self.result is not None and not self.result.failed


def events_of(messages: Iterable[Message], summaries: frozenset[int] = frozenset()) -> list[HistoryEvent]:
    """Convert messages to events, in order."""
    found: list[HistoryEvent] = []
    names: dict[str, str] = {}
    for index, message in enumerate(messages):
        found.extend(_message_events(message, index, names, index in summaries))
    return found


def pair_calls(events: Iterable[HistoryEvent]) -> list[CallPair]:
    """Pair calls with their results, in the order of the calls."""
    waiting: dict[str, list[int]] = {}
    pairs: list[CallPair] = []
    for event in events:
        if event.kind == "call":
            waiting.setdefault(event.id, []).append(len(pairs))
            pairs.append(CallPair(event, None))
        elif event.kind == "result" and waiting.get(event.id):
            at = waiting[event.id].pop(0)
            pairs[at] = CallPair(pairs[at].event, event)
    return pairs


def text_of(events: Iterable[HistoryEvent]) -> str:
    """Join the texts of events in the order a model reads them."""
    return SEPARATOR.join(event.text for event in events)


def _message_events(message: Message, index: int, names: dict[str, str], summary: bool) -> Iterator[HistoryEvent]:
    role: EventKind = "user" if message.role == "tool" else message.role
    for part in message.parts:
        match part:
            case Text():
                yield HistoryEvent(role, part.text, index, summary=summary)
            case Reasoning() if part.text:
                yield HistoryEvent("assistant", part.text, index)
            case ToolCall():
                names[part.id] = part.name
                fields = _input_fields(part.input)
                yield HistoryEvent("call", _call_text(part.name, fields, part.input), index, part.id, part.name, fields)
            case ToolResult():
                name = names.get(part.call_id, part.name or "")
                yield HistoryEvent("result", part.output, index, part.call_id, name, failed=part.is_error)
            case _:
                pass


def _input_fields(input: Json) -> JsonObject:
    """Return the input of a call as an object; plain text is stored under an empty key."""
    if isinstance(input, str):
        try:
            input = msgspec.json.decode(input)
        except msgspec.DecodeError:
            return {"": input}
    return input if isinstance(input, dict) else {"": input}


def _call_text(name: str, fields: JsonObject, input: Json) -> str:
    if not fields:
        return f"{name} {input}" if isinstance(input, str) else name
    return f"{name} " + " ".join(f"{key}: {SEPARATOR.join(strings(value))}" for key, value in fields.items())


def strings(value: Json) -> Iterator[str]:
    """Yield the texts and numbers of a JSON value, depth first."""
    match value:
        case str():
            yield value
        case dict():
            for key, item in value.items():
                yield from (text if "\n" in text else f"{key}: {text}" for text in strings(item))
        case list():
            for item in value:
                yield from strings(item)
        case None:
            return
        case _:
            yield str(value).lower() if isinstance(value, bool) else str(value)
