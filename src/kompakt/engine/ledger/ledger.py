"""The ledger of one history: what is no longer shown, written by code within a number of tokens.

Messages are read once, in order. A ledger is written from the events themselves, so it is as good after the tenth
compaction as after the first. The same history with the same messages hidden gives the same text. Writing costs time
linear in the hidden events, with a small factor for old ones that only looked at something.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from kompakt.engine.ledger.events import THOUGHT, Event, Spoken, ToolUse
from kompakt.engine.ledger.extract.tool_calls import only_reads_files
from kompakt.engine.ledger.items import FINDINGS, parse
from kompakt.engine.ledger.selection import choose
from kompakt.engine.ledger.statements import Statements
from kompakt.model.messages import Message, Reasoning, Text, ToolCall, ToolResult
from kompakt.model.phrases import is_own, unseal

OPEN_CALLS = 50
"""Messages after which a call without an answer is no longer waited for."""


class LedgerRequest(msgspec.Struct, frozen=True):
    """What a ledger is written for."""

    room: int
    """Tokens it may take."""
    count: Callable[[str], int]
    is_hidden: Callable[[int], bool]
    """Whether the model no longer sees a message as it was."""
    reference: Callable[[int], str]
    upto: int
    """Number of messages that this ledger knows of."""
    earlier: str | None = None
    """What an earlier pass wrote."""
    strips: bool = False
    """Whether reasoning is removed from every message, also from those that are shown."""
    prose: bool = True
    """Whether the assistant's own words are included. A model's narrative replaces them."""


class Ledger:
    """Reads a history as it grows and writes down what left the view."""

    __slots__ = ("_open", "_seal_key", "_weights", "events", "read_to")

    def __init__(self, seal_key: bytes = b"") -> None:
        self._seal_key = seal_key
        self.events: list[Event] = []
        self.read_to = 0
        self._open: dict[str, ToolUse] = {}
        self._weights: dict[int, int] = {}

    def read(self, messages: Sequence[Message], upto: int) -> None:
        """Read the messages that are new, up to a number of them."""
        for index in range(self.read_to, upto):
            self._read_one(index, messages[index])
        self.read_to = max(self.read_to, upto)

    def _read_one(self, at: int, message: Message) -> None:
        speaks = message.role == "assistant" or (message.role == "user" and message.source_id is None)
        for part in message.parts:
            if type(part) is Text and speaks and part.text.strip() and not self._is_own(message, part.text):
                self.events.append(Spoken(at, message.role, part.text))
            elif type(part) is Reasoning and part.text.strip():
                self.events.append(Spoken(at, THOUGHT, part.text))
            elif type(part) is ToolCall:
                called = ToolUse(at, part)
                self._open[part.id] = called
                self.events.append(called)
            elif type(part) is ToolResult:
                answered = self._open.pop(part.call_id, None)
                if answered is not None:
                    answered.answered_at, answered.result = at, part

    def _is_own(self, message: Message, text: str) -> bool:
        """Return whether kompakt itself wrote a text: one of its lines, or the answer of a pivot."""
        return is_own(text) or (message.role != "user" and unseal(text, self._seal_key) is not None)

    def write(self, request: LedgerRequest) -> str:
        """Write down what is hidden; empty when nothing is, or when there is no room."""
        upto, is_hidden = request.upto, request.is_hidden
        events = [event for event in self.events if event.at < upto]

        def hidden(event: Event) -> bool:
            if type(event) is ToolUse:
                if event.result is None or event.answered_at >= upto:
                    return is_hidden(event.at) and upto - event.at >= OPEN_CALLS
                return is_hidden(event.at) or is_hidden(event.answered_at)
            is_stripped = type(event) is Spoken and event.role == THOUGHT and request.strips
            return is_stripped or is_hidden(event.at)

        statements = Statements(parse(request.earlier or ""), request.reference, upto)
        items = statements.read(events, hidden)
        if not request.prose:
            items = [item for item in items if item.section != FINDINGS]
        return choose(items, request.room, request.count)

    def weight(self, index: int, message: Message) -> int:
        """Estimate the tokens that a ledger would use for a message; worked out once."""
        found = self._weights.get(index)
        if found is None:
            found = self._weights[index] = sum(map(_part_weight, message.parts))
        return found


MAX_TEXT = 2_000
"""Characters of a text that a ledger is expected to quote at most."""

CALL_TOKENS = 45
"""Tokens of a statement about a call, about."""


def _part_weight(part: object) -> int:
    if type(part) is Text:
        return 8 + min(len(part.text), MAX_TEXT) // 4
    if type(part) is not ToolCall or only_reads_files(part):  # files that were only read share a line
        return 0
    return CALL_TOKENS
