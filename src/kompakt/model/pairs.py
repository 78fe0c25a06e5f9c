"""Which result answers which call.

The only rule: a result answers the call with its id in the model's run directly before it; otherwise the oldest
unanswered call with that id, at any distance. So repeated ids pair by occurrence, and a late result still finds its
call. Every step takes constant time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from kompakt.model.messages import Message, ToolCall, ToolResult

Owner = TypeVar("Owner")


class Pairing(Generic[Owner]):
    """Finds the owner of the call that a result answers, in one pass over calls and results."""

    __slots__ = ("_latest", "_run", "_waiting")

    def __init__(self) -> None:
        self._run: dict[str, list[Owner]] = {}
        self._waiting: dict[str, deque[Owner]] = {}
        self._latest: dict[str, Owner] = {}

    def begin_run(self) -> None:
        """Start another answer of the model; open calls keep waiting."""
        run = self._run
        if run:
            for call_id, owners in run.items():
                if owners:
                    self._waiting.setdefault(call_id, deque()).extend(owners)
            self._run = {}

    def expect(self, call_id: str, owner: Owner) -> None:
        """Register a call."""
        owners = self._run.get(call_id)
        if owners is None:
            self._run[call_id] = [owner]
        else:
            owners.append(owner)
        self._latest[call_id] = owner

    def answer(self, call_id: str) -> Owner | None:
        """Return the owner of the call that this result answers, and mark it as answered."""
        owners = self._run.get(call_id)
        if owners:
            return owners.pop(0)
        waiting = self._waiting.get(call_id)
        return waiting.popleft() if waiting else None

    def latest(self, call_id: str) -> Owner | None:
        """Return the owner of the newest call with this id, answered or not."""
        return self._latest.get(call_id)


class RunWatch:
    """Detects where another answer of the model starts: not between messages with the same id, nor next to one without
    an id.
    """

    __slots__ = ("adjacent", "id")

    def __init__(self) -> None:
        self.id: str | None = None
        self.adjacent = False

    def begins(self, message: Message) -> bool:
        """Add the next message and return whether an answer starts with it."""
        if message.role != "assistant":
            self.adjacent = False
            return False
        same_id = message.id is not None and message.id == self.id
        begins = not same_id and not (self.adjacent and (message.id is None or self.id is None))
        self.adjacent = True
        if begins or message.id is not None:
            self.id = message.id
        return begins


class PartPlace(NamedTuple):
    """The position of a part: message index, part index."""

    message: int
    part: int


class Pairs(msgspec.Struct, frozen=True):
    """All calls and results of a history, matched."""

    answers: dict[PartPlace, PartPlace]
    """Call to result; of several results the last one counts."""
    open: list[PartPlace]
    orphans: list[PartPlace]
    duplicates: list[PartPlace]
    """Results that a later result of the same call replaces."""


def pair(messages: Sequence[Message]) -> Pairs:
    """Match every call of a history with its result."""
    pairing: Pairing[PartPlace] = Pairing()
    answers: dict[PartPlace, PartPlace] = {}
    calls: list[PartPlace] = []
    orphans: list[PartPlace] = []
    duplicates: list[PartPlace] = []
    watch = RunWatch()
    for i, message in enumerate(messages):
        if watch.begins(message):
            pairing.begin_run()
        for j, part in enumerate(message.parts):
            if type(part) is ToolCall:
                calls.append(PartPlace(i, j))
                pairing.expect(part.id, PartPlace(i, j))
            elif type(part) is ToolResult:
                call = pairing.answer(part.call_id) or pairing.latest(part.call_id)
                if call is None:
                    orphans.append(PartPlace(i, j))
                    continue
                if call in answers:
                    duplicates.append(answers[call])
                answers[call] = PartPlace(i, j)
    unanswered = [call for call in calls if call not in answers]
    if orphans and unanswered:
        _match_early(messages, answers, unanswered, orphans)
    return Pairs(answers, unanswered, orphans, duplicates)


def _match_early(
    messages: Sequence[Message],
    answers: dict[PartPlace, PartPlace],
    unanswered: list[PartPlace],
    orphans: list[PartPlace],
) -> None:
    """Match results that precede their call, if there is exactly one of each; otherwise it would be a guess."""
    waiting: dict[str, list[PartPlace]] = {}
    early: dict[str, list[PartPlace]] = {}
    for places, table in ((unanswered, waiting), (orphans, early)):
        for place in places:
            part = messages[place.message].parts[place.part]
            table.setdefault(part.id if type(part) is ToolCall else getattr(part, "call_id", ""), []).append(place)
    for call_id, results in early.items():
        calls = waiting.get(call_id, [])
        if len(results) == len(calls) == 1 and results[0].message < calls[0].message:
            answers[calls[0]] = results[0]
            unanswered.remove(calls[0])
            orphans.remove(results[0])
