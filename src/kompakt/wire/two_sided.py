"""Two sides that take turns: what mending a history needs where calls are the model's and results the user's.

Gemini and Bedrock both carry calls and results as parts of such messages. Invariant: a part is moved whole and keeps
its raw form; only the message around it is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, cast

from kompakt.model.messages import Json, Message, Part, Role, ToolCall, ToolResult
from kompakt.model.pairs import pair
from kompakt.wire.problems import Change


class SideCodes(NamedTuple):
    """The rules a provider has for calls and results that stand wrong or alone."""

    call: str
    """A call on the user's side."""
    result: str
    """A result on the model's side."""
    open_call: str
    stray_result: str


def raw_of(part: Part) -> Json:
    """Return the wire form of a part; ``None`` for one that kompakt made."""
    return getattr(part, "raw", None)


def paths(history: Sequence[Message], *, messages: str, parts: str) -> Callable[[Part], str]:
    """Return a function that says where a part stood in the payload, however far it was moved since."""
    places = {
        id(raw_of(part)): (i, j)
        for i, message in enumerate(history)
        for j, part in enumerate(message.parts)
        if raw_of(part) is not None
    }

    def path(part: Part) -> str:
        place = places.get(id(raw_of(part)))
        return f"{messages}[{place[0]}].{parts}[{place[1]}]" if place else messages

    return path


def split_by_side(
    message: Message, path: str, changes: list[Change], *, codes: SideCodes, names: Mapping[Role, str]
) -> Iterator[Message]:
    """Yield a message whole when all of it is its speaker's, else in pieces."""
    if all(_side(part, message.role) == message.role for part in message.parts):
        yield message
        return
    code = codes.result if message.role == "assistant" else codes.call
    changes.append(Change(code, "moved", path, "calls are now the model's, results the user's"))
    sides = groupby(message.parts, key=lambda part: _side(part, message.role))
    for role, parts in cast("Iterator[tuple[Role, Iterator[Part]]]", sides):
        yield Message(role, tuple(parts), raw={**(message.raw or {}), "role": names[role]}, edited=True)


def _side(part: Part, role: Role) -> Role:
    if type(part) is ToolCall or (type(part) is ToolResult and part.hosted):
        return "assistant"
    return "user" if type(part) is ToolResult else role


def drop_unpaired_hosted(
    message: Message, path: Callable[[Part], str], changes: list[Change], *, codes: SideCodes
) -> Message:
    """Drop calls that the provider ran itself without their result, and such results without their call."""
    if not any(getattr(part, "hosted", False) for part in message.parts):
        return message
    pairs = pair([message])
    stray = {
        place.part: codes.open_call if place in pairs.open else codes.stray_result
        for place in (*pairs.open, *pairs.orphans, *pairs.duplicates)
        if getattr(message.parts[place.part], "hosted", False)
    }
    for j, code in sorted(stray.items()):
        changes.append(Change(code, "dropped", path(message.parts[j]), "a call or a result without its other half"))
    return message.with_parts(p for j, p in enumerate(message.parts) if j not in stray) if stray else message
