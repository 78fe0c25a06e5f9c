"""Pivots by content: what is sent instead of a history's beginning, found by the hash of that beginning.

A pivot is made once for a prefix, kept under the key of that prefix and never changed, so every replica sends the same
bytes for the same history, and a client that edits what was said finds the pivot of a shorter prefix or none. What is
remembered here is only remembered: the store has it all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from kompakt.engine.pivot.saved_state import State
from kompakt.gateway.request.hash_chain import HashChain
from kompakt.gateway.storage.records import decode_note
from kompakt.model.messages import Json
from kompakt.store.codec import ValueCodec, encode

TRIES = 4
"""Pivots that one prefix may have: the first, and one for each time the provider found it still too long."""

MAX_BYTES = 64 * 1024 * 1024
"""Bytes of pivots remembered."""

_AS_OBJECTS = 12
"""Bytes that a pivot takes for each byte that is sent: items and view are kept as values beside the bytes."""

MAX_TIPS = 10_000
"""Ends of requests for which it is remembered which pivot they stand on."""

Value = TypeVar("Value")


class VisibleMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message that the model still sees, as it is shown."""

    at: int
    """Which item of the conversation it is, system messages at its head not counted."""
    item: Json
    name: str
    pruned: tuple[int, ...] = ()
    altered: bool = False
    """Whether it is shown otherwise than it came."""


class Pivot(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent instead of a prefix."""

    id: str
    session: str
    """Where the originals are."""
    covers: int
    """How many items it stands for, system messages not counted."""
    items: list[Json]
    """What is sent."""
    tokens: int
    """What that costs."""
    state: State
    view: tuple[VisibleMessage, ...]
    """What the next pivot is made from."""
    policy: str
    reason: str
    tokens_before: int
    tokens_after: int
    told: str = ""
    """What the pivot says, for people."""
    scale: float = 1.0
    """How many tokens the provider counts for one that is counted here, where it has said so."""
    limit: int | None = None
    """What the provider takes, where it has said so."""
    output_counts: bool = False
    """Whether the provider was seen to refuse what exceeds the window together with the output asked for."""
    attempt: int = 0
    due: int = 0
    """How many items the request had for which it was first needed, system messages not counted."""
    strategies: tuple[str, ...] = ()
    """The strategies that changed something, in order."""


class RenderedPivot(msgspec.Struct, frozen=True):
    """A pivot, ready to be sent."""

    pivot: Pivot
    sent: tuple[bytes, ...]
    """Its items as bytes."""
    size: int
    is_stored: bool
    """Whether the store has it; one that was made while the store was down is only remembered."""

    @classmethod
    def of(cls, pivot: Pivot, *, is_stored: bool) -> RenderedPivot:
        """Write a pivot's items."""
        sent = tuple(map(encode, pivot.items))
        return cls(pivot, sent, _AS_OBJECTS * sum(map(len, sent)) + 2 * len(pivot.state.ledger), is_stored)


class PivotMatch(msgspec.Struct, frozen=True):
    """The deepest pivot of a trail, and how many of its items that stands for."""

    at: int
    rendered: RenderedPivot

    @property
    def pivot(self) -> Pivot:
        return self.rendered.pivot


def name_of(key: bytes, attempt: int = 0) -> str:
    """Name the note that holds a pivot."""
    return f"pivot {key.hex()}" if not attempt else f"pivot {key.hex()} {attempt}"


class Undo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is sent where a pivot was undone."""

    before: str = ""
    """The pivot before it; empty when there was none."""
    covers: int = 0
    """How many items that covers, system messages at the head counted."""


def undo_name(id: str) -> str:
    """Name the note that says that a pivot was undone."""
    return f"undone {id}"


def ready_name(key: bytes, trigger: int, target: int) -> str:
    """Name the note that holds a pivot that is not due yet."""
    return f"ready {key.hex()} {trigger} {target}"


class Tip(NamedTuple):
    """The pivot that a request stood on: the key of the prefix that it covers, and of how many items."""

    key: bytes
    covers: int


class PivotCache:
    """Pivots that were used lately, and where requests ended that stood on them."""

    def __init__(self) -> None:
        self._pivots = _Recent[RenderedPivot](MAX_BYTES, lambda known: known.size)
        self._tips = _Recent[Tip | None](MAX_TIPS, lambda _: 1)

    def put(self, key: bytes, known: RenderedPivot) -> None:
        """Remember the pivot of a prefix, unless a later one of the same prefix is."""
        earlier = self._pivots.get(key)
        if earlier is None or earlier.pivot.attempt <= known.pivot.attempt:
            self._pivots.put(key, known)

    def remember(self, chain: HashChain, found: PivotMatch | None) -> None:
        """Remember what a request stands on: prefixes up to its end need not be asked for again."""
        self._tips.put(chain.key, None if found is None else Tip(chain.keys[found.at], found.at - chain.lead))

    def deepest(self, chain: HashChain) -> tuple[PivotMatch | None, int]:
        """Return the deepest pivot that is remembered, and the number of items from which others may know more."""
        keys = chain.keys
        for at in chain.all_ends():
            known = self._pivots.get(keys[at])
            if known is not None and is_for(known.pivot, chain):
                return PivotMatch(at, known), at
            if keys[at] not in self._tips:
                continue
            tip = self._tips.get(keys[at])
            if tip is None:
                return None, at
            known = self._pivots.get(tip.key)
            end = chain.lead + tip.covers
            if known is not None and end <= at and keys[end] == tip.key:
                return PivotMatch(end, known), at
        return None, chain.lead

    def covers(self, chain: HashChain) -> int | None:
        """Return how many items the pivot covers that a request stands on; 0 for none, ``None`` when not known."""
        if chain.key not in self._tips:
            return None
        tip = self._tips.get(chain.key)
        return 0 if tip is None else tip.covers

    def forget(self, session: str) -> None:
        """Forget the pivots whose originals are in a session."""
        for key in [key for key, known in self._pivots.items() if known.pivot.session == session]:
            self._pivots.drop(key)


def deepest(
    chain: HashChain, notes: Mapping[str, bytes], value_codec: ValueCodec, ends: Iterable[int]
) -> PivotMatch | None:
    """Find the deepest pivot among notes that ends with one of these numbers of items."""
    for at in sorted(ends, reverse=True):
        for attempt in range(TRIES - 1, -1, -1):
            data = notes.get(name_of(chain.keys[at], attempt))
            pivot = None if data is None else decode_note(data, value_codec, Pivot)
            if pivot is not None and is_for(pivot, chain):
                return PivotMatch(at, RenderedPivot.of(pivot, is_stored=True))
    return None


def is_for(pivot: Pivot, chain: HashChain) -> bool:
    """Tell whether a request is no shorter than the one that first needed a pivot.

    A client that sends an earlier request again gets what it got then.
    """
    return pivot.due <= chain.length - chain.lead


def names(chain: HashChain, ends: Iterable[int]) -> list[str]:
    """List the notes that may hold a pivot that ends with one of these numbers of items."""
    return [name_of(chain.keys[at], attempt) for at in ends for attempt in range(TRIES)]


class _Recent(OrderedDict[bytes, Value]):
    """What was used lately, up to a size."""

    def __init__(self, limit: int, size: Callable[[Value], int]) -> None:
        super().__init__()
        self._limit, self._size, self._total = limit, size, 0

    def put(self, key: bytes, value: Value) -> None:
        if key in self:
            self._total -= self._size(self.pop(key))
        self[key] = value
        self._total += self._size(value)
        while self._total > self._limit and len(self) > 1:
            self._total -= self._size(self.popitem(last=False)[1])

    def drop(self, key: bytes) -> None:
        self._total -= self._size(self.pop(key))
