"""Recall rounds that clients never see: stored as notes, and inserted again into every later request.

Notes are found by the key of the prefix that they follow, so every replica finds the same ones and sends the same
bytes. An offer is stored with the first request of a conversation, and a round before anything after it is passed on.
The client can therefore send back only answers whose rounds are already stored, and one lookup per answer is enough.
Rounds made by this process are also cached for the time in which the store is unavailable.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from kompakt.errors import InputError, StoreError
from kompakt.gateway.pivots.budget import RequestSizes
from kompakt.gateway.recall.turn import RecallProtocol, RecallRound, as_list, calls_in, identity_of
from kompakt.gateway.request.history import DigestCache, HashChain, RequestBody, decode_item
from kompakt.gateway.storage.storage import GatewayStorage, Owner, decode_note, encode_note
from kompakt.model.json import as_object, encode
from kompakt.model.lru import Lru
from kompakt.model.messages import Json
from kompakt.model.tokens import Counter, counter_for
from kompakt.wire.registry import WIRES

MAX_ROUNDS = 6
"""Rounds after one prefix: five are answered, and the last one tells the model that the limit is reached."""

MAX_KNOWN = 100_000
"""Answers whose hidden rounds are cached."""

MAX_MADE = 4_000
"""Rounds, and answers with rounds before them, that are cached. About 40 MB."""


class AnswerSlot(NamedTuple):
    """The position of an answer of the model in a request, or of the answer that the request asks for."""

    at: int
    end: int
    prefix: bytes
    cache_key: bytes
    """The prefix and the start of the answer; the prefix alone where there is no answer yet."""


class SlotRounds(NamedTuple):
    """The stored rounds of an answer slot."""

    rounds: tuple[RecallRound, ...] = ()
    mixed: RecallRound | None = None
    """A turn with calls of the recall tool and of the client's tools."""


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
        self, chain: HashChain, name: str, body: RequestBody, protocol: RecallProtocol, digests: DigestCache
    ) -> None:
        self.name, self.body, self.protocol, self.chain = name, body, protocol, chain
        self.rounds: list[RecallRound] = []
        """Rounds after the end of the request."""
        self._digests = digests
        self._counter: Counter = counter_for(body.model)
        self._patches: list[Patch] = []
        self._tool_tokens = 0

    def restore(self, slots: Sequence[AnswerSlot], saved: Mapping[int, SlotRounds], sizes: RequestSizes) -> None:
        """Insert the stored rounds of the request's answer slots."""
        offered = msgspec.structs.replace(self.chain, request=self.body)
        self._tool_tokens = sizes.envelope(offered) - sizes.envelope(self.chain)
        for slot in slots:
            found = saved[slot.at]
            if slot.at == self.chain.length:
                self.rounds = list(found.rounds)
            elif found.rounds or found.mixed is not None:
                self._patches.append(self._patch(slot, found))

    def _patch(self, slot: AnswerSlot, saved: SlotRounds) -> Patch:
        body = self.chain.request
        made: list[Json] = [item for one in saved.rounds for item in (*self._turn(slot, one), *one.results)]
        shown = [item for one in saved.rounds for item in one.shown]
        end = slot.at
        following = None
        if saved.mixed is not None and slot.end < self.chain.length:
            following = self.protocol.with_results(saved.mixed, decode_item(body.item(slot.end)))
        if saved.mixed is not None and following is not None:
            # The stored turn replaces the client's answer, and the results of both replace the client's next item.
            made += [*self._turn(slot, saved.mixed), *following]
            end = slot.end + 1
        elif shown:
            # The client sends the visible content of all rounds as one answer: keep only that of the last round.
            items = [decode_item(body.item(index)) for index in range(slot.at, slot.end)]
            taken, instead = self.protocol.without_shown(items, shown) or (0, [])
            made += instead
            end = slot.at + taken
        raw = list(map(encode, made))
        return Patch(slot.at, end, raw, self._count(raw) - self.chain.cost(slot.at, end), following is not None)

    def _turn(self, slot: AnswerSlot, saved: RecallRound) -> list[Json]:
        """Return the model's turn, without thinking if the client dropped its own thinking blocks of this answer.

        Anthropic signs thinking blocks for their position: after the client removed some, the others are invalid.
        """
        rule = WIRES[self.body.format].contract.prefix_rule
        if rule != "strip-all" or any(slot.at <= index < slot.end for index in self.chain.reasons):
            return saved.turn
        return [{**item, "content": list(filter(_is_no_thinking, as_list(item["content"])))} for item in saved.turn]

    def _count(self, raw: Sequence[bytes]) -> int:
        tokens = 0
        for item in raw:
            try:
                tokens += self._digests.of(item, self.body.format, self._counter).tokens
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
        bound = WIRES[self.body.format].contract.prefix_rule == "strip-all"
        if last is None or not last.is_mixed or last.at <= start or self.chain.answers[-1] >= last.end:
            return self.chain.length
        return self.chain.length if bound and self.chain.reasons and self.chain.reasons[-1] >= last.at else last.at

    def extra_tokens(self, start: int) -> int:
        """Count the tokens that are sent beyond the client's own items from ``start`` on."""
        patches = sum(patch.extra_tokens for patch in self._patches if patch.at >= start)
        return self._tool_tokens + patches + self._count(self._tail())


def _is_no_thinking(block: Json) -> bool:
    return as_object(block).get("type") not in ("thinking", "redacted_thinking")


# --- notes in the store --------------------------------------------------------------------------------------------


def offer_note(key: bytes) -> str:
    """Name the note that holds the name of the offered tool."""
    return f"offer {key.hex()}"


def round_note(key: bytes, number: int) -> str:
    """Name the note that holds a round."""
    return f"round {key.hex()} {number}"


def mixed_note(key: bytes, calls: str) -> str:
    """Name the note that holds a turn with calls of both the recall tool and the client's tools."""
    digest = hashlib.blake2b(calls.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"mixed {key.hex()} {digest}"


class SavedRounds:
    """Stores and finds offers and rounds."""

    def __init__(self, storage: GatewayStorage) -> None:
        self._storage = storage
        self._offers = Lru[bytes, str](MAX_KNOWN)
        self._empty = Lru[bytes, None](MAX_KNOWN)
        self._found = Lru[bytes, SlotRounds](MAX_MADE)
        self._made = Lru[str, RecallRound](MAX_MADE)

    async def find(
        self, owner: Owner, chain: HashChain, key: bytes, slots: Sequence[AnswerSlot]
    ) -> tuple[str, dict[int, SlotRounds]] | None:
        """Return the name of the offered tool and the rounds of each slot, read with one query.

        Returns ``None`` when the tool is not offered, or the store is unavailable.
        """
        name = await self._name(owner, key, has_answer=bool(chain.answers))
        if not name:
            return None
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
        return name, {slot.at: rounds or _rounds_of(missing[slot], read) for slot, rounds in cached.items()}

    async def _name(self, owner: Owner, key: bytes, *, has_answer: bool) -> str | None:
        """Return the name of the offered tool; empty or ``None`` when it is not offered."""
        name = self._offers.get(key)
        if name is not None:
            return name
        try:
            return self._offered(key, await self._storage.read_notes(owner, [offer_note(key)]), has_answer=has_answer)
        except StoreError as error:
            self._storage.store_failed(error)
            return None

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

    def _offered(self, key: bytes, notes: Mapping[str, bytes], *, has_answer: bool) -> str | None:
        """Read an offer. A conversation that started without an offer never gets one."""
        data = notes.get(offer_note(key))
        if data is not None:
            name = str(self._storage.value_codec.unpack(data, where="an offer of the gateway"))
            self._offers.put(key, name)
            return name
        if has_answer:
            self._offers.put(key, "")
        return None

    async def offer(self, owner: Owner, session: str, key: bytes, name: str) -> str | None:
        """Store an offer and return the name that was stored first; ``None`` when the store is unavailable."""
        data = self._storage.value_codec.pack_whole(name)
        try:
            await self._storage.write_notes(owner, session, {offer_note(key): data})
            notes = await self._storage.read_notes(owner, [offer_note(key)])
            return self._offered(key, notes, has_answer=False)
        except StoreError as error:
            self._storage.store_failed(error)
            return None

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
