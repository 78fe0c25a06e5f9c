"""Where sessions are cut, and how much room the rest gets.

A cut lies at a share of a session's tokens, moved to the nearest round boundary. The budget is a share of the prefix's
tokens, plus the first and the newest request. Counting is one pass over the messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from kompakt import api
from kompakt.model.messages import History, Message

SHARES = (0.40, 0.55, 0.70, 0.85)
"""Of a session's tokens: where it is cut."""

BUDGET_SHARE = 0.10


class Cut(msgspec.Struct, frozen=True):
    """A place in a session: what is before it is the prefix."""

    at: int
    """The message behind the prefix."""
    share: float
    """The share of the session's tokens that was asked for."""
    tokens: int
    """Of the prefix."""
    requests: int
    """Tokens of the first and the newest request."""
    start: int = 0
    """The first message of the prefix: later than 0 only where a real summary stands for what was before."""

    def budget(self, share: float = BUDGET_SHARE) -> int:
        """Return the room that the prefix gets."""
        return int(share * self.tokens) + self.requests


def weights(history: History) -> list[int]:
    """Count each message by itself."""
    return [tokens_of(history, (message,)) for message in history]


def tokens_of(history: History, messages: Sequence[Message]) -> int:
    """Count messages without the envelope they came in."""
    bare = History(messages, format=history.format, model=history.model, contract=history.contract)
    return api.count(bare, model=history.model).total


def cuts(history: History, weight: Sequence[int], shares: Sequence[float] = SHARES) -> Iterator[Cut]:
    """Yield the cuts of a session; two shares that meet at one boundary are one cut."""
    starts = [one.start for one in api.rounds(history) if one.start > 0]
    reached = _running(weight)
    total = reached[-1]
    seen: set[int] = set()
    for share in shares:
        if not starts:
            return
        at = min(starts, key=lambda start: abs(reached[start] - share * total))
        if at not in seen:
            seen.add(at)
            yield cut_at(history, weight, at, share)


def cut_at(history: History, weight: Sequence[int], at: int, share: float = 0.0, *, start: int = 0) -> Cut:
    """Return the cut before one message."""
    prefix = history.with_messages(history[start:at])
    requests = [message for turn in api.turns(prefix) if (message := turn.request) is not None]
    ends = {id(message) for message in (requests[:1] + requests[-1:])}
    tokens = sum(weight[index] for index in range(start, at) if id(history[index]) in ends)
    return Cut(at, share, api.count(prefix).total, tokens, start)


def _running(weight: Sequence[int]) -> list[int]:
    total = 0
    reached = [0]
    for one in weight:
        total += one
        reached.append(total)
    return reached
