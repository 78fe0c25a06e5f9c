"""A batch under construction: rows and events after a head, and the new head that follows from them.

A draft writes nothing. If another writer commits first, the draft is discarded and a new one is made from the newer
head. Making one costs only what is new.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from itertools import islice
from secrets import token_hex

import msgspec

from kompakt.model.messages import Json, Message
from kompakt.model.references import candidates
from kompakt.session.row_codec import RowCodec, StoredMessage, begins_turn
from kompakt.session.timeline import (
    CompactionFailure,
    CompactionRecord,
    EditEvent,
    PinEvent,
    RevertEvent,
    SessionEvent,
    UndoEvent,
)
from kompakt.store.records import Batch, Head, Records, RowKind, StoredEvent, StoredRow

_KINDS: dict[type, str] = {
    CompactionRecord: "compaction",
    CompactionFailure: "failure",
    UndoEvent: "undo",
    RevertEvent: "revert",
    EditEvent: "edit",
    PinEvent: "pin",
}
_FIRST_LENGTHS = 6
"""Lengths of a reference that are looked up first; one of them is nearly always free."""


class Draft:
    """What is to be written after a head."""

    def __init__(self, head: Head, codec: RowCodec) -> None:
        self.seen = head
        self.head = head
        self.codec = codec
        self._rows: list[StoredRow] = []
        self._events: list[StoredEvent] = []
        self._blobs: dict[str, bytes] = {}

    def add(self, item: Json, message: Message, *, kind: RowKind = "message") -> int:
        """Append a row; return its sequence number."""
        row, blobs = self.codec.row(self.head, item, message, kind=kind)
        self._rows.append(row)
        self._blobs |= blobs
        self.change(
            rows=row.seq,
            tip=row.seq,
            turn=self.head.turn + begins_turn(message, kind),
            chain=row.chain,
            messages=self.head.messages + (kind == "message"),
        )
        return row.seq

    def add_event(self, event: SessionEvent) -> int:
        """Append an event; return its number."""
        packed = self.codec.value_codec.pack(msgspec.to_builtins(event))
        number, tip, blobs = self.head.events + 1, self.head.rows, tuple(sorted(packed.blobs))
        self._events.append(StoredEvent(number, _KINDS[type(event)], tip, time.time(), packed.data, blobs))
        self._blobs |= packed.blobs
        self.change(events=number)
        return number

    def copy(self, rows: Iterable[StoredMessage], blobs: dict[str, bytes]) -> None:
        """Append rows of another session, unchanged except for their sequence numbers."""
        for one in rows:
            seq, is_message = self.head.rows + 1, one.row.kind == "message"
            name = one.row.name if is_message else f"k{seq}"
            words = self.codec.words(one.message) if is_message else ""
            self._rows.append(msgspec.structs.replace(one.row, seq=seq, name=name, words=words))
            self.change(rows=seq, tip=seq, chain=one.row.chain, messages=self.head.messages + is_message)
        self._blobs |= blobs

    def change(self, **changes: object) -> None:
        self.head = msgspec.structs.replace(self.head, **changes)

    async def batch(self, records: Records, id: str | None = None) -> Batch:
        """Give each new message a free reference and return the batch."""
        rows = await self._named(records)
        self.change(touched=time.time())
        return Batch(id or token_hex(16), self.head, rows, tuple(self._events), self._blobs)

    async def _named(self, records: Records) -> tuple[StoredRow, ...]:
        wanted = {name for row in self._nameless() for name in islice(candidates(row.chain), _FIRST_LENGTHS)}
        taken = set(await records.named(self.head.key, wanted)) if wanted else set[str]()
        tried = _FIRST_LENGTHS
        while any(set(islice(candidates(row.chain), tried)) <= taken for row in self._nameless()):
            tried *= 8
            rest = {name for row in self._nameless() for name in islice(candidates(row.chain), tried)}
            taken = set(await records.named(self.head.key, rest))
        named: list[StoredRow] = []
        for row in self._rows:
            name = row.name or _free(row, taken)
            taken.add(name)
            named.append(row if row.name else msgspec.structs.replace(row, name=name))
        return tuple(named)

    def _nameless(self) -> Iterable[StoredRow]:
        return (row for row in self._rows if not row.name)


def _free(row: StoredRow, taken: Collection[str]) -> str:
    return next(name for name in candidates(row.chain) if name not in taken)
