"""A request with what no client sees put back at its place: the same bytes in every request from then on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from kompakt.errors import InputError
from kompakt.gateway.pivots.budget import RequestSizes
from kompakt.gateway.recall.saved_rounds import Kept, Place
from kompakt.gateway.recall.turn import Dialect, Round, as_list, as_object
from kompakt.gateway.request.body import RequestBody, decode_item
from kompakt.gateway.request.digests import DigestCache
from kompakt.gateway.request.hash_chain import HashChain
from kompakt.model.messages import Json
from kompakt.model.tokens import Counter, counter_for
from kompakt.store.codec import encode
from kompakt.wire.registry import WIRES


class Patch(NamedTuple):
    """What is sent in the place of some items."""

    at: int
    end: int
    items: list[bytes]
    tokens: int
    """What it costs more than they do."""
    is_mixed: bool
    """Whether it holds answers to calls of the tool that the model has yet to see, as long as nothing follows."""


class Aside:
    """What stands beside a client's request: the tool, and the rounds that were made."""

    def __init__(self, trail: HashChain, name: str, asked: RequestBody, dialect: Dialect, looks: DigestCache) -> None:
        self.name, self.asked, self.dialect, self.trail = name, asked, dialect, trail
        self.rounds: list[Round] = []
        """Those that follow the end of the request."""
        self._looks = looks
        self._counter: Counter = counter_for(asked.model)
        self._patches: list[Patch] = []
        self._tool = 0

    def put_back(self, found: Sequence[Place], kept: Mapping[int, Kept], sizes: RequestSizes) -> None:
        """Take what is kept for the places of the request."""
        offered = msgspec.structs.replace(self.trail, request=self.asked)
        self._tool = sizes.beside(offered) - sizes.beside(self.trail)
        for place in found:
            one = kept[place.at]
            if place.at == self.trail.length:
                self.rounds = list(one.rounds)
            elif one.rounds or one.mixed is not None:
                self._patches.append(self._patch(place, one))

    def _patch(self, place: Place, kept: Kept) -> Patch:
        asked = self.trail.request
        made: list[Json] = [item for one in kept.rounds for item in (*self._turn(place, one), *one.results)]
        shown = [item for one in kept.rounds for item in one.shown]
        end = place.at
        merged = None
        if kept.mixed is not None and place.end < self.trail.length:
            merged = self.dialect.merged(kept.mixed, decode_item(asked.item(place.end)))
        if kept.mixed is not None and merged is not None:
            made += [*self._turn(place, kept.mixed), *merged]
            end = place.end + 1
        elif shown:
            items = [decode_item(asked.item(index)) for index in range(place.at, place.end)]
            taken, instead = self.dialect.rest(items, shown) or (0, [])
            made += instead
            end = place.at + taken
        raw = list(map(encode, made))
        return Patch(place.at, end, raw, self._count(raw) - self.trail.cost(place.at, end), merged is not None)

    def _turn(self, place: Place, kept: Round) -> list[Json]:
        """Return the model's turn; without thoughts where these are bound to their place and the client's are gone."""
        rule = WIRES[self.asked.format].contract.prefix_rule
        if rule != "strip-all" or any(place.at <= index < place.end for index in self.trail.reasons):
            return kept.turn
        return [{**item, "content": list(filter(_is_no_thought, as_list(item["content"])))} for item in kept.turn]

    def _count(self, raw: Sequence[bytes]) -> int:
        tokens = 0
        for item in raw:
            try:
                tokens += self._looks.of(item, self.asked.format, self._counter).tokens
            except InputError:
                tokens += len(item) // 4
        return tokens

    def _tail(self) -> list[bytes]:
        return [encode(item) for one in self.rounds for item in (*one.turn, *one.results)]

    def items(self, start: int) -> list[bytes]:
        """Return the items from one on, with all that belongs between them."""
        asked, made, at = self.trail.request, list[bytes](), start
        for patch in self._patches:
            if patch.at >= start:
                made += [asked.item(index) for index in range(at, patch.at)]
                made += patch.items
                at = patch.end
        return [*made, *asked.items(at), *self._tail()]

    def unseen(self, start: int) -> int:
        """Say how many items a pivot may cover without what the model recalled and has not seen yet."""
        last = self._patches[-1] if self._patches else None
        bound = WIRES[self.asked.format].contract.prefix_rule == "strip-all"
        if last is None or not last.is_mixed or last.at <= start or self.trail.answers[-1] >= last.end:
            return self.trail.length
        return self.trail.length if bound and self.trail.reasons and self.trail.reasons[-1] >= last.at else last.at

    def cost(self, start: int) -> int:
        """Count what is sent more than the client's own items from one on."""
        patches = sum(patch.tokens for patch in self._patches if patch.at >= start)
        return self._tool + patches + self._count(self._tail())


def _is_no_thought(block: Json) -> bool:
    return as_object(block).get("type") not in ("thinking", "redacted_thinking")
