"""Training windows: stretches of a session within a number of tokens that a provider would accept.

Invariant: a window consists of whole groups, so that every tool call has its result and its reasoning, ends with an
answer of the model or the results of its calls, and passes ``kompakt.check``. A broken session is repaired first.

Windows do not overlap and are as long as they can be. One that starts inside a turn begins with the request of that
turn, and every window has the system messages at the start of the history. The envelope of the request (system prompt,
tools) is part of each payload and of its token count.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec

from kompakt import api
from kompakt.model.groups import is_request, pair, safe_cuts
from kompakt.model.messages import History, Json, Message
from kompakt.wire.registry import WIRES


class Window(msgspec.Struct, frozen=True):
    """A training sample."""

    payload: Json
    tokens: int
    roles: tuple[str, ...]
    """The role of each message in the payload."""
    mask: tuple[bool, ...]
    """Whether the model wrote each message."""


class Unfit(msgspec.Struct, frozen=True):
    """Messages that are in no window."""

    messages: int
    reason: str


def windows(history: History, limit: int, *, model: str | None = None) -> Iterator[Window | Unfit]:
    """Yield the windows of a history in order, and the stretches that do not fit or cannot be made valid."""
    repaired = api.repair(history, resting=True)
    if repaired.changes:
        history = api.parse(repaired.payload, history.format)
    messages = history.messages
    if repaired.remaining:
        yield Unfit(len(messages), f"the session cannot be repaired: {repaired.remaining[0]}")
        return
    start = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    cutter = _Cutter(history, start, limit, model)
    if cutter.fixed >= limit:
        yield Unfit(len(messages), f"system prompt and tools have {cutter.fixed:,} tokens, the window {limit:,}")
        return
    start = cutter.next_start(start)
    while start < len(messages):
        stop, window = cutter.widest(start)
        if window is not None:
            yield window
        elif any(message.role == "assistant" for message in messages[start:stop]):
            yield cutter.unfit(start, stop)
        start = stop


class _Cutter:
    """Finds the longest window at a position."""

    def __init__(self, history: History, lead: int, limit: int, model: str | None) -> None:
        messages = history.messages
        self.history, self.limit, self.model = history, limit, model
        self.lead = messages[:lead]
        cuts = [cut for cut in safe_cuts(messages) if cut >= lead]
        self.ends = [cut for cut in cuts if cut > lead and _may_be_last(messages[cut - 1])]
        inner = [cut for cut in cuts if cut < len(messages)]
        self.starts = [cut for cut in inner if messages[cut].role == "assistant" or is_request(messages[cut])]
        self.fixed = api.count(history.with_messages(self.lead), model=model).total
        self.sums = list(accumulate((self._weight(message) for message in messages), initial=0))
        self.request: list[int | None] = []
        latest: int | None = None
        for index, message in enumerate(messages):
            latest = index if is_request(message) else latest
            self.request.append(latest)

    def _weight(self, message: Message) -> int:
        """Count a message without the envelope."""
        history = self.history
        bare = History((message,), format=history.format, model=history.model, contract=history.contract)
        return api.count(bare, model=self.model).total

    def widest(self, start: int) -> tuple[int, Window | None]:
        """Return where to continue after the longest window from ``start``, and the window if there is one.

        The sizes of messages give an estimate; only the result is counted and checked as a whole.
        """
        messages = self.history.messages
        asked = self.request[start]
        opening = () if asked is None or asked >= start else (messages[asked],)
        extra = 0 if asked is None or asked >= start else self.sums[asked + 1] - self.sums[asked]
        furthest = bisect_right(self.sums, self.limit - self.fixed - extra + self.sums[start]) - 1
        ends = self.ends[bisect_right(self.ends, start) : bisect_right(self.ends, furthest)]
        for stop in _candidates(ends):
            window = self._made((*opening, *messages[start:stop]))
            if window is not None and any(window.mask):
                return self.next_start(stop), window
        return self.next_start(start + 1), None

    def next_start(self, after: int) -> int:
        """Return the first place from ``after`` on where a window may start."""
        at = bisect_left(self.starts, after)
        return self.starts[at] if at < len(self.starts) else len(self.history.messages)

    def _made(self, messages: Sequence[Message]) -> Window | None:
        """Return the window of these messages, if it fits and is valid."""
        history = self.history.with_messages((*self.lead, *messages))
        payload = api.render(history)
        tokens = api.count(payload, model=self.model, format=history.format).total
        if tokens > self.limit or api.check(payload, history.format, resting=True):
            return None
        pairs = pair(history.messages)
        if pairs.open or pairs.orphans:  # valid where the provider has stored the other half
            return None
        wire = WIRES[history.format]
        roles = tuple(message.role for message in history for _ in wire.render(message))
        return Window(payload, tokens, roles, tuple(role == "assistant" for role in roles))

    def unfit(self, start: int, stop: int) -> Unfit:
        """Describe messages that are in no window."""
        size = self.fixed + self.sums[stop] - self.sums[start]
        name = f"messages {start} to {stop - 1}" if stop - start > 1 else f"message {start}"
        if size > self.limit:
            return Unfit(
                stop - start, f"{name}: {size:,} tokens with system prompt and tools, the window {self.limit:,}"
            )
        return Unfit(stop - start, f"{name}: too large together with the request, or not valid without other messages")


def _may_be_last(message: Message) -> bool:
    return message.role == "assistant" or bool(message.results)


def _candidates(ends: Sequence[int]) -> Iterator[int]:
    """Yield ends to try, the last first, and then with doubled steps: nearly always the first one is right."""
    place, step = len(ends) - 1, 1
    while place >= 0:
        yield ends[place]
        place -= step
        step *= 2
