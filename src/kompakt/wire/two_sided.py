"""Repair of formats in which the user and the model take turns: calls belong to the model, results to the user.

Gemini and Bedrock use all of it. Invariant: a part is moved as a whole and keeps its raw form; only the message around
it is new.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, cast

import msgspec

from kompakt.model.groups import PartPlace, pair
from kompakt.model.messages import Json, Message, Part, Role, Text, ToolCall, ToolResult
from kompakt.model.phrases import BRIDGE, CONTINUE_LINE, RESUME_LINE
from kompakt.wire.pair_repair import PairRules, repair_pairs
from kompakt.wire.wire import Action, Change


class SideCodes(NamedTuple):
    """The provider's rules for calls and results on the wrong side or without their counterpart."""

    call: str
    """A call in a user message."""
    result: str
    """A result in a message of the model."""
    open_call: str
    stray_result: str


class Sides(msgspec.Struct, frozen=True, kw_only=True):
    """What the repair needs to know about a provider."""

    items: str
    """The body field of the messages."""
    parts: str
    """The message field of the parts."""
    roles: Mapping[str, Role]
    """Known role names."""
    names: Mapping[Role, str]
    """The role name to write for each role."""
    codes: SideCodes
    order_code: Callable[[Message], str]
    """Returns the rule that a message breaks when it is in the wrong order."""
    pairs: PairRules
    is_filler: Callable[[Part], bool] = lambda part: False
    """Whether a part alone is no content."""


def raw_of(part: Part) -> Json:
    """Return the wire form of a part; ``None`` for a part that kompakt made."""
    return getattr(part, "raw", None)


def with_repaired_parts(message: Message, parts: Sequence[Part]) -> Message:
    """Return a message with these parts; the same object if all of them are its own."""
    is_same = len(parts) == len(message.parts) and all(map(operator.is_, parts, message.parts))
    return message if is_same else message.with_parts(parts)


def split_by_side(
    message: Message, path: str, changes: list[Change], *, codes: SideCodes, names: Mapping[Role, str]
) -> Iterator[Message]:
    """Yield a message unchanged, or in pieces where some parts belong to the other side."""
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


class TwoSidedRepair:
    """One repair: its changes, and the steps that Gemini and Bedrock share."""

    def __init__(self, history: Sequence[Message], sides: Sides) -> None:
        self.sides = sides
        self.changes: list[Change] = []
        self._places = {
            id(raw_of(part)): PartPlace(i, j)
            for i, message in enumerate(history)
            for j, part in enumerate(message.parts)
            if raw_of(part) is not None
        }

    def report(self, code: str, action: Action, where: Part | str, message: str) -> None:
        """Record a change at a path, or at the path that a part had in the given payload."""
        self.changes.append(Change(code, action, where if isinstance(where, str) else self._path(where), message))

    def _path(self, part: Part) -> str:
        place = self._places.get(id(raw_of(part)))
        return f"{self.sides.items}[{place.message}].{self.sides.parts}[{place.part}]" if place else self.sides.items

    def is_foreign(self, message: Message) -> bool:
        """Return whether the role of a message is unknown: such a message is passed on and belongs to no side."""
        if type(message.raw) is not dict:
            return False
        role: Json = message.raw.get("role")
        return role is not None and role not in self.sides.roles

    def repaired(
        self, message: Message, path: str, repair_part: Callable[[Part, str], Part | None], *, empty_code: str
    ) -> Iterator[Message]:
        """Repair the parts of one message; yield it, its pieces where parts belong to the other side, or nothing.

        ``repair_part`` takes a part and its path, and returns ``None`` for a part to drop. A message without content is
        dropped under ``empty_code``.
        """
        found = [repair_part(part, f"{path}.{self.sides.parts}[{j}]") for j, part in enumerate(message.parts)]
        parts = [part for part in found if part is not None]
        if all(map(self.sides.is_filler, parts)):
            self.report(empty_code, "dropped", path, "a message without content")
            return
        message = with_repaired_parts(message, parts)
        yield from split_by_side(message, path, self.changes, codes=self.sides.codes, names=self.sides.names)

    def without_unpaired_hosted(self, message: Message) -> Message:
        """Drop calls that the provider ran itself and that have no result, and such results without their call.

        Only these parts are paired: a result of the provider never answers a call of the client.
        """
        hosted = [(j, part) for j, part in enumerate(message.parts) if getattr(part, "hosted", False)]
        if not hosted:
            return message
        pairs = pair([Message("assistant", tuple(part for _, part in hosted))])
        unpaired = {
            hosted[place.part][0]: self.sides.codes.open_call if place in pairs.open else self.sides.codes.stray_result
            for place in (*pairs.open, *pairs.orphans, *pairs.duplicates)
        }
        for j, code in sorted(unpaired.items()):
            self.report(code, "dropped", message.parts[j], "a call or a result without its counterpart")
        return message.with_parts(p for j, p in enumerate(message.parts) if j not in unpaired) if unpaired else message

    def paired(self, messages: Iterable[Message]) -> list[Message]:
        """Give every call of the client exactly one result; messages without parts are left out."""
        kept = [message for message in messages if message.parts]
        repaired, changes = repair_pairs(
            kept, self.sides.pairs, lambda place, message: self._path(message.parts[place.part])
        )
        self.changes += changes
        return repaired

    def merged(self, messages: Iterable[Message], roles: Iterable[Role], *, results_apart: bool) -> list[Message]:
        """Merge adjacent messages of one role.

        With ``results_apart`` a user message is not merged into one with results before it. A short message of the
        model goes between the two, so that roles alternate.
        """
        out: list[Message] = []
        for message in messages:
            last = out[-1] if out else None
            if last is None or not self._is_mergeable(last, message, roles):
                out.append(message)
            elif results_apart and message.role == "user" and last.results:
                code = self.sides.order_code(message)
                self.report(code, "added", message.parts[0], "a message of the model before this one")
                out += [Message("assistant", (Text(BRIDGE),)), message]
            else:
                code = self.sides.order_code(message)
                self.report(code, "merged", message.parts[0], "this message is now part of the one before it")
                out[-1] = last.with_parts((*last.parts, *message.parts))
        return out

    def _is_mergeable(self, earlier: Message, later: Message, roles: Iterable[Role]) -> bool:
        if earlier.role != later.role or later.role not in roles:
            return False
        return not (self.is_foreign(earlier) or self.is_foreign(later))

    def with_user_ends(self, messages: Sequence[Message], *, last: bool) -> list[Message]:
        """Make the first message the user's, and with ``last`` also the last one."""
        out = list(messages)
        if out and out[0].role == "assistant":
            self.report(self.sides.order_code(out[0]), "added", self.sides.items, "a user message at the start")
            out.insert(0, Message("user", (Text(RESUME_LINE),)))
        if not out or (last and out[-1].role == "assistant"):
            added = Message("user", (Text(CONTINUE_LINE),))
            self.report(self.sides.order_code(added), "added", self.sides.items, "a user message at the end")
            out.append(added)
        return out
