"""The model's turns and the hidden recall rounds, independent of the provider.

A recall round is a turn in which the model called the recall tool, together with the results of the gateway. Clients
never see these rounds. ``openai_chat``, ``openai_responses``, ``anthropic`` and ``gemini`` implement ``RecallProtocol``
for the format of one provider each.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, cast

import msgspec

from kompakt.model.json import as_object
from kompakt.model.messages import Json, JsonObject, ToolCall
from kompakt.wire.registry import WIRES

GAP = "\n\n"
"""Separates the texts of two rounds where a client sees one text."""


class ModelTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of the model."""

    items: list[Json]
    """The answer as it is sent back to the provider."""
    calls: tuple[ToolCall, ...]
    """Calls that the gateway or the client must answer; calls that the provider runs itself are not included."""
    is_complete: bool
    """Whether the model stopped by itself. A call that was cut off cannot be answered."""
    shown: list[Json]
    """The part of ``items`` that the client sees."""
    id: str = ""
    """The id of the answer, where a later request can continue it by its id (OpenAI Responses)."""


class RecallRound(msgspec.Struct, frozen=True, kw_only=True):
    """A turn with recall calls and their results, as stored in a note."""

    turn: list[Json]
    results: list[Json]
    shown: list[Json]


class RoundStream(Protocol):
    """Reads the streamed answers of all rounds of a request and writes the one stream that the client gets."""

    is_over: bool
    """Whether the answer of this round is complete."""
    has_failed: bool
    """Whether the provider reported an error in the stream; it was passed on to the client."""

    def feed(self, data: bytes, raw: bytes) -> list[bytes]:
        """Read an event; return the bytes that can be sent to the client now."""
        ...

    def turn(self) -> ModelTurn:
        """Return the turn of this round, once it is over."""
        ...

    def next_round(self) -> None:
        """Start the next round and drop the closing events of this one."""
        ...

    def end(self) -> list[bytes]:
        """Return the closing events."""
        ...

    def error(self, body: JsonObject) -> list[bytes]:
        """Return an error of the provider as events of the stream."""
        ...


class RecallProtocol(Protocol):
    """What recall needs to know about the format of one provider."""

    format: str

    def turn(self, response: JsonObject, name: str, body: JsonObject) -> ModelTurn:
        """Read an answer. ``name`` is the name of the recall tool, ``body`` the request without its messages."""
        ...

    def merge(self, responses: Sequence[JsonObject], name: str) -> JsonObject:
        """Merge the answers of all rounds into one, without calls of the recall tool."""
        ...

    def results(self, calls: Sequence[ToolCall], texts: Sequence[str]) -> list[Json]:
        """Write the results of calls as items of a request."""
        ...

    def without_shown(self, items: Sequence[Json], shown: Sequence[Json]) -> tuple[int, list[Json]] | None:
        """Remove what the client saw of earlier rounds from the answer that it sends back.

        Returns how many items are replaced, and the replacement. Returns ``None`` when the answer does not start with
        ``shown``.
        """
        ...

    def with_results(self, kept: RecallRound, following: Json) -> list[Json] | None:
        """Combine the results of a round with those in the client's next item; ``None`` when it holds no results."""
        ...

    def usage(self, response: JsonObject) -> Mapping[str, Json]:
        """Return the usage object of an answer, empty when it has none."""
        ...

    def with_more_input(self, response: JsonObject, tokens: int) -> JsonObject:
        """Add tokens to the input size that an answer reports."""
        ...

    def stream(self, name: str, body: JsonObject, extra_input: int) -> RoundStream:
        """Return a reader for a streamed answer; it adds ``extra_input`` tokens to the reported input size."""
        ...


def calls_in(items: Sequence[Json], format: str) -> list[ToolCall]:
    """Return the tool calls of an answer that a client sends back.

    Raises:
        InputError: an item is not a message.
    """
    return [part for message in WIRES[format].parse(items, None) for part in message.calls if not part.hosted]


def identity_of(calls: Sequence[ToolCall]) -> str:
    """Identify a set of calls by their ids, or by name and input where the provider gives no ids (Gemini)."""
    ids = [call.id if call.id not in ("", call.name) else [call.name, call.input] for call in calls]
    return json.dumps(ids, sort_keys=True)


def as_list(value: Json) -> list[Json]:
    """Return a list; any other value becomes an empty one."""
    return value if isinstance(value, list) else []


class DeltaBuffer:
    """A JSON object that is streamed in deltas.

    Texts are collected in lists and joined once by ``value``. Joining them on every delta would copy the whole text
    each time, which is quadratic in the length of the answer.
    """

    def __init__(self, fields: JsonObject) -> None:
        self._fields = dict(fields)
        self._texts: dict[str, list[str]] = {}

    def add(self, name: str, value: Json) -> None:
        """Append a text or a list to a field; replace any other value."""
        known = self._fields.get(name)
        if isinstance(value, str):
            if name not in self._texts:
                self._texts[name] = [known] if isinstance(known, str) else []
                self._fields[name] = ""
            if value:
                self._texts[name].append(value)
        elif isinstance(known, list) and isinstance(value, list):
            as_list(known).extend(as_list(value))
        else:
            self._texts.pop(name, None)
            self._fields[name] = list(as_list(value)) if isinstance(value, list) else value

    def value(self) -> JsonObject:
        """Return the object so far."""
        return {**self._fields, **{name: "".join(pieces) for name, pieces in self._texts.items()}}


# --- usage ---------------------------------------------------------------------------------------------------------


def sum_usages(usages: Iterable[Mapping[str, Json]]) -> JsonObject:
    """Add up the usage objects of several rounds, whatever counts the provider reports."""
    total: JsonObject = {}
    for usage in usages:
        total = cast("JsonObject", _sum(total, dict(usage)))
    return total


def _sum(one: Json, two: Json) -> Json:
    """Add numbers at the same path. For other values the later one wins."""
    if isinstance(one, dict) and isinstance(two, dict):
        first, second = as_object(one), as_object(two)
        added = {name: _sum(first.get(name), value) for name, value in second.items()}
        return {**first, **added}
    if isinstance(one, list) and isinstance(two, list):
        return _sum_lists(as_list(one), as_list(two))
    if _is_number(one) and _is_number(two):
        return one + two
    return one if two is None else two


def _sum_lists(one: list[Json], two: list[Json]) -> list[Json]:
    """Add up Gemini's counts by modality; concatenate other lists."""
    found: dict[Json, Json] = {}
    for entry in (*one, *two):
        kind = as_object(entry).get("modality")
        if not isinstance(kind, str):
            return [*one, *two]
        found[kind] = _sum(found.get(kind), entry)
    return list(found.values())


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def add_tokens(usage: JsonObject, tokens: int, *names: str) -> JsonObject:
    """Add tokens to those of the named counts that are present."""
    more = {name: usage[name] + tokens for name in names if _is_number(usage.get(name))}
    return {**usage, **more}
