"""A history as a trail of events, and a projection as the text a model would read.

One invariant: the same writing serves both, so what stands unchanged in a projection is found in its text. Written
apart from the engine: nothing here knows how a projection was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import msgspec

from kompakt.model.messages import Json, JsonObject, Message, Reasoning, Text, ToolCall, ToolResult

Kind: TypeAlias = Literal["system", "user", "assistant", "call", "result"]

SEPARATOR = "\n"


class Event(msgspec.Struct, frozen=True, gc=False):
    """One thing that happened: words, a call or its result."""

    kind: Kind
    text: str
    """Unescaped: what stands in the payload once JSON is read."""
    message: int
    id: str = ""
    """Of the call, and the same for its result."""
    name: str = ""
    """Of the tool; a result has the name of its call."""
    input: JsonObject = {}
    failed: bool = False
    summary: bool = False
    """Whether an agent's own summary stands here in the user's place."""


class Call(msgspec.Struct, frozen=True, gc=False):
    """A call with its result, where there is one."""

    event: Event
    result: Event | None

    @property
    def worked(self) -> bool:
        """Tell whether a result is there and reports no error."""
        return self.result is not None and not self.result.failed


def events(messages: Iterable[Message], summaries: frozenset[int] = frozenset()) -> list[Event]:
    """Write messages as events, in order."""
    found: list[Event] = []
    names: dict[str, str] = {}
    for index, message in enumerate(messages):
        found.extend(_events(message, index, names, index in summaries))
    return found


def calls(trail: Iterable[Event]) -> list[Call]:
    """Pair calls with their results, in the order of the calls."""
    waiting: dict[str, list[int]] = {}
    pairs: list[Call] = []
    for event in trail:
        if event.kind == "call":
            waiting.setdefault(event.id, []).append(len(pairs))
            pairs.append(Call(event, None))
        elif event.kind == "result" and waiting.get(event.id):
            at = waiting[event.id].pop(0)
            pairs[at] = Call(pairs[at].event, event)
    return pairs


def text_of(trail: Iterable[Event]) -> str:
    """Join the texts of events the way a model reads them."""
    return SEPARATOR.join(event.text for event in trail)


def _events(message: Message, index: int, names: dict[str, str], summary: bool) -> Iterator[Event]:
    role: Kind = "user" if message.role == "tool" else message.role
    for part in message.parts:
        match part:
            case Text():
                yield Event(role, part.text, index, summary=summary)
            case Reasoning() if part.text:
                yield Event("assistant", part.text, index)
            case ToolCall():
                names[part.id] = part.name
                given = _given(part.input)
                yield Event("call", _written(part.name, given, part.input), index, part.id, part.name, given)
            case ToolResult():
                name = names.get(part.call_id, part.name or "")
                yield Event("result", part.output, index, part.call_id, name, failed=part.is_error)
            case _:
                pass


def _given(input: Json) -> JsonObject:
    """Read the input of a call as an object; plain text stands under an empty key."""
    if isinstance(input, str):
        try:
            input = msgspec.json.decode(input)
        except msgspec.DecodeError:
            return {"": input}
    return input if isinstance(input, dict) else {"": input}


def _written(name: str, given: JsonObject, input: Json) -> str:
    """Write a call as its name and the strings of its input under their keys."""
    if not given:
        return f"{name} {input}" if isinstance(input, str) else name
    return f"{name} " + " ".join(f"{key}: {SEPARATOR.join(strings(value))}" for key, value in given.items())


def strings(value: Json) -> Iterator[str]:
    """Yield the texts and numbers of a JSON value, depth first."""
    match value:
        case str():
            yield value
        case dict():
            for key, item in value.items():
                yield from (f"{key}: {text}" if _short(text) else text for text in strings(item))
        case list():
            for item in value:
                yield from strings(item)
        case None:
            return
        case _:
            yield str(value).lower() if isinstance(value, bool) else str(value)


def _short(text: str) -> bool:
    return "\n" not in text
