"""Offers and rounds in the store, found by the key of the prefix that they follow, and the same for every replica.

An offer is put down with the first request of a conversation, a round before anything behind it is passed on. What a
client sends back behind a prefix is therefore behind all its rounds: an answer that was looked up once need not be
again. What was made here is remembered, for the time in which the store cannot be reached.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from kompakt.errors import InputError, StoreError
from kompakt.gateway.recall.turn import Round, made_by, named_by
from kompakt.gateway.request.body import decode_item
from kompakt.gateway.request.hash_chain import HashChain
from kompakt.gateway.storage.records import decode_note, encode_note
from kompakt.gateway.storage.storage import GatewayStorage, Owner

MAX_ROUNDS = 6
"""Rounds that a prefix may have: five that are answered, and one that is told to go on."""

MAX_KNOWN = 100_000
"""Answers for which it is remembered what stands before them."""

MAX_MADE = 4_000
"""Rounds, and answers with rounds before them, that are remembered. About 40 MB."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Place(NamedTuple):
    """An answer of the model in a request, or the one that it asks for."""

    at: int
    end: int
    prefix: bytes
    known_as: bytes
    """The prefix and how the answer begins; the prefix alone where there is none yet."""


class Kept(NamedTuple):
    """What is kept for a place."""

    rounds: tuple[Round, ...] = ()
    mixed: Round | None = None


class Recent(OrderedDict[Key, Value]):
    """What was used lately, up to a number."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def put(self, key: Key, value: Value) -> None:
        """Remember a value."""
        self[key] = value
        self.move_to_end(key)
        while len(self) > self._limit:
            self.popitem(last=False)


def places(trail: HashChain, start: int) -> list[Place]:
    """List the answers after so many items, and the one that is asked for."""
    answers, found = trail.answers, list[Place]()
    index = bisect_left(answers, start)
    while index < len(answers):
        first = index
        while index + 1 < len(answers) and answers[index + 1] == answers[index] + 1:
            index += 1
        at, end = answers[first], answers[index] + 1
        if first == 0 or answers[first - 1] != at - 1:  # else the answer begins before the start
            key = trail.keys[at]
            found.append(Place(at, end, key, key + trail.keys[at + 1]))
        index += 1
    last = trail.key
    return [*found, Place(trail.length, trail.length, last, last)]


def _mixed_name(trail: HashChain, place: Place) -> str | None:
    """Name the note with an answer as the model gave it, where a client was shown some of its calls."""
    if place.end >= trail.length:
        return None
    items = [decode_item(trail.request.item(index)) for index in range(place.at, place.end)]
    try:
        calls = made_by(items, trail.request.format)
    except InputError:
        return None
    return mixed_name(place.prefix, named_by(calls)) if calls else None


def offer_name(key: bytes) -> str:
    """Name the note that says under which name the tool is offered."""
    return f"offer {key.hex()}"


def round_name(key: bytes, number: int) -> str:
    """Name the note that holds a round."""
    return f"round {key.hex()} {number}"


def mixed_name(key: bytes, calls: str) -> str:
    """Name the note that holds a turn of which the client saw a part."""
    said = hashlib.blake2b(calls.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"mixed {key.hex()} {said}"


class Notes:
    """Finds and keeps them."""

    def __init__(self, keeping: GatewayStorage) -> None:
        self._keeping = keeping
        self._offers = Recent[bytes, str](MAX_KNOWN)
        self._empty = Recent[bytes, None](MAX_KNOWN)
        self._known = Recent[bytes, Kept](MAX_MADE)
        self._made = Recent[str, Round](MAX_MADE)

    async def find(
        self, owner: Owner, trail: HashChain, key: bytes, found: Sequence[Place]
    ) -> tuple[str, dict[int, Kept]] | None:
        """Return the name under which the tool is offered, and what is kept for places, asked for all at once.

        ``None`` when it is not offered, as far as can be told. That is asked first: where it is not offered, nothing
        else needs to be.
        """
        name = await self._name(owner, key, has_answer=bool(trail.answers))
        if not name:
            return None
        known = {place: self._remembered(place) for place in found}
        unknown = {place: _names(trail, place) for place, kept in known.items() if kept is None}
        wanted = [one for names in unknown.values() for one in names]
        read: Mapping[str, Round] = self._made
        try:
            notes = await self._keeping.read_notes(owner, wanted) if wanted else {}
            read = {one: decode_note(data, self._keeping.value_codec, Round) for one, data in notes.items()}
            for place, names in unknown.items():
                self._remember(place, _kept(names, read))
        except StoreError as error:
            self._keeping.store_failed(error)
        return name, {place.at: kept or _kept(unknown[place], read) for place, kept in known.items()}

    async def _name(self, owner: Owner, key: bytes, *, has_answer: bool) -> str | None:
        """Return the name under which the tool is offered; empty or ``None`` when it is not."""
        name = self._offers.get(key)
        if name is not None:
            return name
        try:
            return self._offered(key, await self._keeping.read_notes(owner, [offer_name(key)]), has_answer=has_answer)
        except StoreError as error:
            self._keeping.store_failed(error)
            return None

    def _remembered(self, place: Place) -> Kept | None:
        return Kept() if place.known_as in self._empty else self._known.get(place.known_as)

    def _remember(self, place: Place, kept: Kept) -> None:
        """Remember what stands before an answer; before one that is asked for, more may come."""
        if place.end == place.at:
            return
        if kept == Kept():
            self._empty.put(place.known_as, None)
        else:
            self._known.put(place.known_as, kept)

    def _offered(self, key: bytes, notes: Mapping[str, bytes], *, has_answer: bool) -> str | None:
        """Read an offer; a conversation that goes on without one is never made one."""
        data = notes.get(offer_name(key))
        if data is not None:
            name = str(self._keeping.value_codec.unpack(data, where="an offer of the gateway"))
            self._offers.put(key, name)
            return name
        if has_answer:
            self._offers.put(key, "")
        return None

    async def offer(self, owner: Owner, session: str, key: bytes, name: str) -> str | None:
        """Put an offer down; return the name that stands, ``None`` when it cannot be put down."""
        data = self._keeping.value_codec.pack_whole(name)
        try:
            await self._keeping.write_notes(owner, session, {offer_name(key): data})
            notes = await self._keeping.read_notes(owner, [offer_name(key)])
            return self._offered(key, notes, has_answer=False)
        except StoreError as error:
            self._keeping.store_failed(error)
            return None

    async def keep(self, owner: Owner, session: str, name: str, made: Round) -> None:
        """Put a round down; where the store cannot be reached it is only remembered."""
        self._made.put(name, made)
        try:
            await self._keeping.write_notes(owner, session, {name: encode_note(made, self._keeping.value_codec)})
        except StoreError as error:
            self._keeping.store_failed(error)


def _names(trail: HashChain, place: Place) -> list[str]:
    """List the notes of a place: its rounds, then the answer itself."""
    rounds = [round_name(place.prefix, number) for number in range(MAX_ROUNDS)]
    mixed = _mixed_name(trail, place)
    return rounds if mixed is None else [*rounds, mixed]


def _kept(names: Sequence[str], read: Mapping[str, Round]) -> Kept:
    rounds: list[Round] = []
    for name in names[:MAX_ROUNDS]:
        if name not in read:
            break
        rounds.append(read[name])
    return Kept(tuple(rounds), read.get(names[-1]) if len(names) > MAX_ROUNDS else None)
