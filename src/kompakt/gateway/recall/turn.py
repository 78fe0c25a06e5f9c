"""What the model said in one answer, and what is kept of a round that no client sees.

A dialect says all of this in one provider's words; whoever drives the rounds knows only what stands here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from kompakt.gateway.request.body import parse_items
from kompakt.model.messages import Json, JsonObject
from kompakt.store.codec import decode

GAP = "\n\n"
"""What stands between the texts of two rounds where a client sees one text."""


class Call(msgspec.Struct, frozen=True):
    """A tool call."""

    id: str
    name: str
    input: Json
    """A JSON object, or the text of one."""

    @property
    def query(self) -> str | None:
        """What is to be recalled; ``None`` when that cannot be told."""
        value = self.input
        if isinstance(value, str):
            try:
                value = decode(value.encode("utf-8", "surrogatepass"))
            except ValueError:
                return None
        found = value.get("query") if isinstance(value, dict) else None
        return found if isinstance(found, str) else None


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of the model."""

    items: list[Json]
    """The answer as it is sent back to the provider."""
    calls: tuple[Call, ...]
    """The calls that somebody here has to answer."""
    ends: bool
    """Whether the model stopped by itself: a call that was cut off cannot be answered."""
    shown: list[Json]
    """What a client sees of it, in the same words."""


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """An answer with calls that the gateway answered, as it is kept."""

    turn: list[Json]
    results: list[Json]
    shown: list[Json]


class Stream(Protocol):
    """Reads the events of an answer and makes those that the client gets; one for all rounds of a request."""

    is_over: bool
    """Whether the answer of this round is complete."""
    has_failed: bool
    """Whether the provider said that it failed, which the client has been told."""

    def feed(self, data: bytes, raw: bytes) -> list[bytes]:
        """Take an event; return what can be passed on now."""
        ...

    def turn(self) -> Turn:
        """Return what the model said in this round."""
        ...

    def again(self) -> None:
        """Begin the next round: nothing of the end of this one is passed on."""
        ...

    def end(self) -> list[bytes]:
        """Return the end of the stream."""
        ...

    def error(self, body: JsonObject) -> list[bytes]:
        """Say in the stream that the provider refused."""
        ...


class Dialect(Protocol):
    """One provider's words for what is done here."""

    format: str

    def turn(self, response: JsonObject, name: str, body: JsonObject) -> Turn:
        """Read an answer; ``body`` is the request without its messages."""
        ...

    def whole(self, responses: Sequence[JsonObject], name: str) -> JsonObject:
        """Make one answer of the answers of all rounds, without calls of the tool."""
        ...

    def results(self, calls: Sequence[Call], texts: Sequence[str]) -> list[Json]:
        """Write the answers to calls as items of a request."""
        ...

    def rest(self, items: Sequence[Json], shown: Sequence[Json]) -> tuple[int, list[Json]] | None:
        """Take what a client saw of earlier rounds off an answer that it sends back.

        Returns how many items are replaced, and by what; ``None`` when the answer does not begin like that.
        """
        ...

    def merged(self, kept: Round, following: Json) -> list[Json] | None:
        """Put the results of a turn together with those in the client's next item; ``None``: they do not belong."""
        ...

    def usage(self, response: JsonObject) -> Mapping[str, Json]:
        """Return what an answer says that it used."""
        ...

    def raised(self, response: JsonObject, tokens: int) -> JsonObject:
        """Say that the input was larger by so many tokens."""
        ...

    def stream(self, name: str, body: JsonObject, raised: int) -> Stream:
        """Begin to read a stream."""
        ...


def hidden(turn: Turn, name: str) -> tuple[Call, ...]:
    """Return the calls that the gateway answers."""
    return tuple(call for call in turn.calls if call.name == name)


def own(turn: Turn, name: str) -> tuple[Call, ...]:
    """Return the calls that the client answers."""
    return tuple(call for call in turn.calls if call.name != name)


def made_by(items: Sequence[Json], format: str) -> list[Call]:
    """Read the calls of an answer that a client sends back.

    Raises:
        InputError: an item is no message.
    """
    parts = [part for message in parse_items(items, format) for part in message.calls if not part.hosted]
    return [Call(part.id, part.name, part.input) for part in parts]


def named_by(calls: Sequence[Call]) -> str:
    """Name a set of calls: by their ids, or by what they ask for where there are none."""
    told = [call.id if call.id not in ("", call.name) else [call.name, call.input] for call in calls]
    return json.dumps(told, sort_keys=True)


def as_list(value: Json) -> list[Json]:
    """Return a list, empty when it is none."""
    return value if isinstance(value, list) else []


def as_object(value: Json) -> JsonObject:
    """Return an object, empty when it is none."""
    return value if isinstance(value, dict) else {}
