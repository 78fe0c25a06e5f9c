"""Recall rounds that clients never see: stored as notes, and inserted again into every later request.

Notes are found by the key of the prefix that they follow, so every replica finds the same ones and sends the same
bytes. A round is stored before anything after it is passed on. The client can therefore send back only answers whose
rounds are already stored, and one lookup per answer is enough. Rounds made by this process are also cached for the time
in which the store is unavailable.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from kompakt.agent.recall.rounds import MAX_ROUNDS, SlotRounds, replacement
from kompakt.agent.recall.turn import RecallProtocol, RecallRound, calls_in, identity_of
from kompakt.errors import InputError, StoreError
from kompakt.gateway.pivots.budget import RequestSizes
from kompakt.gateway.request.history import DigestCache, HashChain, RequestBody, decode_item
from kompakt.gateway.storage.recorder import encode_note
from kompakt.gateway.storage.storage import GatewayStorage, Owner, decode_note
from kompakt.model.json import encode, prepare
from kompakt.model.lru import Lru
from kompakt.model.tokens import Counter, counter_for
from kompakt.wire.registry import WIRES

MAX_KNOWN = 100_000
"""Answers without hidden rounds that are cached."""

MAX_MADE = 4_000
"""Rounds, and answers with rounds before them, that are cached. About 40 MB."""


class AnswerSlot(NamedTuple):
    """The position of an answer of the model in a request, or of the answer that the request asks for."""

    at: int
    end: int
    prefix: bytes
    cache_key: bytes
    """The prefix and the start of the answer; the prefix alone where there is no answer yet."""


def answer_slots(chain: HashChain, start: int) -> list[AnswerSlot]:
    """List the answers from item ``start`` on, and the answer that the request asks for."""
    answers, found = chain.answers, list[AnswerSlot]()
    index = bisect_left(answers, start)
    while index < len(answers):
        first = index
        while index + 1 < len(answers) and answers[index + 1] == answers[index] + 1:
            index += 1
        at, end = answers[first], answers[index] + 1
        if first == 0 or answers[first - 1] != at - 1:  # else the answer begins before the start
            key = chain.keys[at]
            found.append(AnswerSlot(at, end, key, key + chain.keys[at + 1]))
        index += 1
    last = chain.key
    return [*found, AnswerSlot(chain.length, chain.length, last, last)]


# --- insertion into requests ---------------------------------------------------------------------------------------


class Patch(NamedTuple):
    """Replaces some items of a request."""

    at: int
    end: int
    items: list[bytes]
    extra_tokens: int
    """Tokens of ``items`` beyond those of the replaced items."""
    is_mixed: bool
    """Whether it holds recall results in a mixed turn, which the model sees only after the next request."""


class HiddenRounds:
    """A client's request with the recall tool and the hidden rounds added."""

    def __init__(
        self,
        chain: HashChain,
        name: str,
        offered: RequestBody,
        protocol: RecallProtocol,
        *,
        digests: DigestCache,
        sizes: RequestSizes,
    ) -> None:
        self.name, self.protocol, self.chain = name, protocol, chain
        self.rounds: list[RecallRound] = []
        """Rounds after the end of the request."""
        self._offered = offered
        self._digests, self._sizes = digests, sizes
        self._counter: Counter = counter_for(offered.model)
        self._patches: list[Patch] = []

    @property
    def body(self) -> RequestBody:
        """The request with the tool; without it when the limit of rounds is reached, so that the model answers."""
        return self._offered if len(self.rounds) < MAX_ROUNDS else self.chain.request

    def restore(self, slots: Sequence[AnswerSlot], saved: Mapping[int, SlotRounds]) -> None:
        """Insert the stored rounds of the request's answer slots."""
        for slot in slots:
            found = saved[slot.at]
            if slot.at == self.chain.length:
                self.rounds = list(found.rounds)
            elif found.rounds or found.mixed is not None:
                self._patches.append(self._patch(slot, found))

    def _patch(self, slot: AnswerSlot, saved: SlotRounds) -> Patch:
        body, chain = self.chain.request, self.chain
        made = replacement(
            self.protocol,
            [decode_item(body.item(index)) for index in range(slot.at, slot.end)],
            decode_item(body.item(slot.end)) if slot.end < chain.length else None,
            saved,
            has_reasoning=any(slot.at <= index < slot.end for index in chain.reasons),
        )
        raw, end = list(map(encode, made.items)), slot.at + made.taken
        return Patch(slot.at, end, raw, self._count(raw) - chain.cost(slot.at, end), made.is_mixed)

    def _count(self, raw: Sequence[bytes]) -> int:
        tokens = 0
        for item in raw:
            try:
                tokens += self._digests.of(item, self.protocol.format, self._counter).tokens
            except InputError:
                tokens += len(item) // 4
        return tokens

    def _tail(self) -> list[bytes]:
        return [encode(item) for one in self.rounds for item in (*one.turn, *one.results)]

    def items(self, start: int) -> list[bytes]:
        """Return the items from ``start`` on, with the hidden rounds between and after them."""
        body, made, at = self.chain.request, list[bytes](), start
        for patch in self._patches:
            if patch.at >= start:
                made += [body.item(index) for index in range(at, patch.at)]
                made += patch.items
                at = patch.end
        return [*made, *body.items(at), *self._tail()]

    def pivot_end(self, start: int) -> int:
        """Return how many items a pivot may cover without hiding recall results that the model has not seen yet."""
        last = self._patches[-1] if self._patches else None
        bound = WIRES[self.protocol.format].contract.prefix_rule == "strip-all"
        if last is None or not last.is_mixed or last.at <= start or self.chain.answers[-1] >= last.end:
            return self.chain.length
        return self.chain.length if bound and self.chain.reasons and self.chain.reasons[-1] >= last.at else last.at

    def extra_tokens(self, start: int) -> int:
        """Count the tokens that are sent beyond the client's own items from ``start`` on."""
        patches = sum(patch.extra_tokens for patch in self._patches if patch.at >= start)
        return self._tool_tokens + patches + self._count(self._tail())

    @cached_property
    def _tool_tokens(self) -> int:
        offered = msgspec.structs.replace(self.chain, request=self._offered)
        return self._sizes.envelope(offered) - self._sizes.envelope(self.chain)


# --- notes in the store --------------------------------------------------------------------------------------------


def round_note(key: bytes, number: int) -> str:
    """Name the note that holds a round."""
    return f"round {key.hex()} {number}"


def mixed_note(key: bytes, calls: str) -> str:
    """Name the note that holds a turn with calls of both the recall tool and the client's tools."""
    digest = hashlib.blake2b(calls.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"mixed {key.hex()} {digest}"


class SavedRounds:
    """Stores and finds rounds."""

    def __init__(self, storage: GatewayStorage) -> None:
        self._storage = storage
        self._empty = Lru[bytes, None](MAX_KNOWN)
        self._found = Lru[bytes, SlotRounds](MAX_MADE)
        self._made = Lru[str, RecallRound](MAX_MADE)

    async def find(self, owner: Owner, chain: HashChain, slots: Sequence[AnswerSlot]) -> dict[int, SlotRounds]:
        """Return the rounds of each slot, read with one query; those of this process while the store is unavailable."""
        cached = {slot: self._cached(slot) for slot in slots}
        missing = {slot: _notes_of(chain, slot) for slot, rounds in cached.items() if rounds is None}
        wanted = [one for notes in missing.values() for one in notes]
        read: Callable[[str], RecallRound | None] = self._made.get
        try:
            notes = await self._storage.read_notes(owner, wanted) if wanted else {}
            stored = {one: decode_note(data, self._storage.value_codec, RecallRound) for one, data in notes.items()}
            read = stored.get
            for slot, names in missing.items():
                self._cache(slot, _rounds_of(names, read))
        except StoreError as error:
            self._storage.store_failed(error)
        return {slot.at: rounds or _rounds_of(missing[slot], read) for slot, rounds in cached.items()}

    def _cached(self, slot: AnswerSlot) -> SlotRounds | None:
        return SlotRounds() if slot.cache_key in self._empty else self._found.get(slot.cache_key)

    def _cache(self, slot: AnswerSlot, rounds: SlotRounds) -> None:
        """Cache the rounds before an answer. Before an answer that is still to come, more rounds may follow."""
        if slot.end == slot.at:
            return
        if rounds == SlotRounds():
            self._empty.put(slot.cache_key, None)
        else:
            self._found.put(slot.cache_key, rounds)

    async def save(self, owner: Owner, session: str, name: str, made: RecallRound) -> None:
        """Store a round. While the store is unavailable it is only cached."""
        self._made.put(name, made)
        try:
            await self._storage.write_notes(owner, session, {name: encode_note(made, self._storage.value_codec)})
        except StoreError as error:
            self._storage.store_failed(error)


def _notes_of(chain: HashChain, slot: AnswerSlot) -> list[str]:
    """List the notes of a slot: its rounds, then the mixed turn, if the client's answer has calls."""
    rounds = [round_note(slot.prefix, number) for number in range(MAX_ROUNDS)]
    if slot.end >= chain.length:
        return rounds
    items = [decode_item(chain.request.item(index)) for index in range(slot.at, slot.end)]
    try:
        calls = calls_in(items, chain.request.format)
    except InputError:
        return rounds
    return [*rounds, mixed_note(slot.prefix, identity_of(calls))] if calls else rounds


def _rounds_of(names: Sequence[str], read: Callable[[str], RecallRound | None]) -> SlotRounds:
    rounds: list[RecallRound] = []
    for name in names[:MAX_ROUNDS]:
        found = read(name)
        if found is None:
            break
        rounds.append(found)
    return SlotRounds(tuple(rounds), read(names[-1]) if len(names) > MAX_ROUNDS else None)


prepare(RecallRound)
