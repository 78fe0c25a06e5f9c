"""Pivots: what is sent in place of the start of a history, found by the hash of that start.

A pivot is built once per prefix, stored under the prefix's key and never changed, so every replica sends the same bytes
for the same history. A client that edits its history matches the pivot of a shorter prefix, or none. ``PivotCache``
only saves store reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

import msgspec

from kompakt.engine.compaction.report import Report
from kompakt.engine.pivot.pivot import NarrativeAccount
from kompakt.engine.pivot.saved_state import SavedContext
from kompakt.gateway.request.history import HashChain, decode_item
from kompakt.model.json import encode, prepare
from kompakt.model.lru import Lru
from kompakt.model.messages import Json, JsonObject

TRIES = 4
"""Pivots per prefix: the first one, and one for each overflow error that the provider returns for it."""

MAX_BYTES = 64 * 1024 * 1024
"""Bytes of pivots in the cache."""

MAX_TIPS = 10_000
"""Requests whose matching pivot is cached."""

_HEAD_BYTES, _ITEM_BYTES = 1_000, 50
"""Memory of a cached pivot and of each of its items, besides their bytes."""


class VisibleMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message that the model still sees."""

    at: int
    """Index of the item in the conversation, not counting leading system messages."""
    item: Json
    name: str
    pruned: tuple[int, ...] = ()
    altered: bool = False
    """Whether it differs from the original."""


class PivotHead(msgspec.Struct, frozen=True, kw_only=True):
    """What a request needs to know of a pivot besides the bytes to send. The field names are stored."""

    id: str
    session: str
    """The session that holds the originals."""
    covers: int
    """Items that it replaces, not counting leading system messages."""
    tokens: int
    """Tokens of the items to send."""
    policy: str
    reason: str
    tokens_before: int
    tokens_after: int
    scale: float = 1.0
    """Provider tokens per token counted here, from an overflow error."""
    limit: int | None = None
    """The provider's limit, from an overflow error."""
    output_counts: bool = False
    """Whether the requested output counts against the window, from an overflow error."""
    attempt: int = 0
    due: int = 0
    """Items of the request that first needed it, not counting leading system messages."""
    strategies: tuple[str, ...] = ()
    """The strategies that changed something, in order."""
    narrative: NarrativeAccount | None = None
    """The cost of a model's narrative, if a model was asked."""


class Pivot(PivotHead, frozen=True, kw_only=True):
    """The replacement of a prefix. The field names are stored."""

    items: list[Json]
    """The items to send."""
    state: SavedContext
    view: tuple[VisibleMessage, ...]
    """The messages from which the next pivot is built."""
    notes: str = msgspec.field(name="told", default="")
    """The text of the summary, for people."""

    @property
    def head(self) -> PivotHead:
        return PivotHead(**{name: getattr(self, name) for name in PivotHead.__struct_fields__})

    @property
    def size(self) -> int:
        """Estimated bytes when encoded, to decide whether it is encoded in a thread."""
        return 4 * self.tokens + 100 * len(self.view) + len(self.state.ledger)

    def report(self, messages: int) -> Report:
        """Return the report of the compaction of a history with this number of messages."""
        return Report(
            policy=self.policy,
            reason=self.reason,
            tokens_before=self.tokens_before,
            tokens_after=self.tokens_after,
            messages_before=messages,
            messages_after=len(self.items),
            budget=0,
            notes=self.notes,
        )


class RenderedPivot(msgspec.Struct, frozen=True):
    """A pivot as it is cached: the bytes to send, and the rest packed, because only the next pivot needs it."""

    pivot: PivotHead
    sent: tuple[bytes, ...]
    packed: bytes
    """The whole ``Pivot``, as it is stored."""
    is_stored: bool
    """Whether the store has it. A pivot built while the store is unavailable is only cached."""

    @classmethod
    def of(cls, pivot: Pivot, packed: bytes, *, is_stored: bool) -> RenderedPivot:
        return cls(pivot.head, tuple(map(encode, pivot.items)), packed, is_stored)

    @property
    def size(self) -> int:
        """Estimated bytes of memory."""
        return _HEAD_BYTES + sum(map(len, self.sent)) + _ITEM_BYTES * len(self.sent) + len(self.packed)


class PivotMatch(msgspec.Struct, frozen=True):
    """The deepest pivot of a request."""

    at: int
    """Items of the request that it replaces, counting leading system messages."""
    rendered: RenderedPivot

    @property
    def pivot(self) -> PivotHead:
        return self.rendered.pivot


def covered_items(chain: HashChain, found: PivotMatch | None) -> int:
    """Return the number of items before the first one that is sent unchanged, leading system messages included."""
    return chain.lead if found is None else found.at


# Note names are stored; do not change them.


def pivot_name(key: bytes, attempt: int = 0) -> str:
    return f"pivot {key.hex()}" if not attempt else f"pivot {key.hex()} {attempt}"


def recorded_name(id: str, edit: int = 0) -> str:
    """Return the name of the note that holds the pivot of a recorded compaction, with the text of an edit."""
    return f"pivot {id}" if not edit else f"pivot {id} {edit}"


def prepared_name(key: bytes, trigger: int, target: int) -> str:
    """Return the name of the note that holds a pivot prepared before it is due."""
    return f"ready {key.hex()} {trigger} {target}"


class Tip(NamedTuple):
    """The pivot that an earlier request matched: the key of the prefix that it replaces, and its number of items."""

    key: bytes
    covers: int


class PivotCache:
    """Recently used pivots, and which pivot each recent request matched."""

    def __init__(self) -> None:
        self._pivots = Lru[bytes, RenderedPivot](MAX_BYTES, lambda rendered: rendered.size)
        self._tips = Lru[bytes, Tip | None](MAX_TIPS)

    def put(self, key: bytes, rendered: RenderedPivot) -> None:
        """Cache the pivot of a prefix, unless a later attempt for the same prefix is cached."""
        earlier = self._pivots.get(key)
        if earlier is None or earlier.pivot.attempt <= rendered.pivot.attempt:
            self._pivots.put(key, rendered)

    def put_match(self, chain: HashChain, found: PivotMatch | None) -> None:
        """Cache which pivot a request matches, so that its prefixes need no store reads."""
        self._tips.put(chain.key, None if found is None else Tip(chain.keys[found.at], found.at - chain.lead))

    def deepest(self, chain: HashChain) -> tuple[PivotMatch | None, int]:
        """Return the deepest cached pivot, and the number of items up to which the cache knows all pivots."""
        keys = chain.keys
        for at in chain.all_ends():
            rendered = self._pivots.get(keys[at])
            if rendered is not None and applies(rendered.pivot, chain):
                return PivotMatch(at, rendered), at
            if keys[at] not in self._tips:
                continue
            tip = self._tips.get(keys[at])
            if tip is None:
                return None, at
            rendered = self._pivots.get(tip.key)
            end = chain.lead + tip.covers
            if rendered is not None and end <= at and keys[end] == tip.key:
                return PivotMatch(end, rendered), at
        return None, chain.lead

    def covers(self, chain: HashChain) -> int | None:
        """Return the items that a request's pivot replaces; 0 without a pivot, ``None`` when it is not cached."""
        if chain.key not in self._tips:
            return None
        tip = self._tips.get(chain.key)
        return 0 if tip is None else tip.covers

    def forget(self, session: str) -> None:
        """Remove the pivots whose originals are in a session."""
        for key, rendered in self._pivots.items():
            if rendered.pivot.session == session:
                self._pivots.remove(key)


def applies(pivot: PivotHead, chain: HashChain) -> bool:
    """Whether a request is at least as long as the one that first needed the pivot.

    A client that repeats an earlier request gets the response that it got then.
    """
    return pivot.due <= chain.length - chain.lead


def pivot_names(chain: HashChain, ends: Iterable[int]) -> list[str]:
    """List the notes that may hold a pivot that replaces one of these numbers of items."""
    return [pivot_name(chain.keys[at], attempt) for at in ends for attempt in range(TRIES)]


# --- Cache marks of Anthropic ---

_MARK = b'"cache_control"'


def move_cache_mark(chain: HashChain, at: int, sent: Sequence[bytes]) -> Sequence[bytes]:
    """Move the newest cache mark of the first ``at`` items to the last of the items ``sent`` in their place.

    Anthropic accepts at most four marks, so the gateway never adds one. A mark is not part of the cached content, so
    moving it does not change the prefix.
    """
    request = chain.request
    start, end = request.spans[chain.lead][0], request.spans[at - 1][1]
    if request.format != "anthropic" or not sent or request.body.find(_MARK, start, end) < 0:
        return sent
    for index in range(at - 1, chain.lead - 1, -1):
        if _MARK in request.item(index):
            mark = _mark_of(decode_item(request.item(index)))
            if mark is not None:
                return [*sent[:-1], encode(_with_mark(decode_item(sent[-1]), mark))]
    return sent


def without_cache_marks(item: Json) -> Json:
    """Copy an item without its cache marks."""
    if not isinstance(item, dict):
        return item
    copy = {name: value for name, value in item.items() if name != "cache_control"}
    if isinstance(copy.get("content"), list):
        copy["content"] = [without_cache_marks(block) for block in copy["content"]]
    return copy


def _blocks(item: Json) -> list[Json]:
    content = cast("JsonObject", item).get("content") if isinstance(item, dict) else None
    return cast("list[Json]", content) if isinstance(content, list) else []


def _mark_of(item: Json) -> Json:
    """Return the newest mark on an item's blocks."""
    for block in reversed(_blocks(item)):
        if isinstance(block, dict) and block.get("cache_control"):
            return block["cache_control"]
    return None


def _with_mark(item: JsonObject, mark: Json) -> JsonObject:
    content = item.get("content")
    if isinstance(content, str):
        return {**item, "content": [{"type": "text", "text": content, "cache_control": mark}]} if content else item
    blocks = _blocks(item)
    if not blocks or not isinstance(blocks[-1], dict) or blocks[-1].get("type") in ("thinking", "redacted_thinking"):
        return item
    return {**item, "content": [*blocks[:-1], {**blocks[-1], "cache_control": mark}]}


prepare(Pivot)
