"""A batch in the making: rows and events behind a head, and the head that follows from them.

Nothing here writes. Whoever made a draft commits it; when somebody else was faster, another draft is made from the
newer head. So a draft must be cheap, and is: it costs what is new.
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
from kompakt.session.timeline import CompactionFailure, CompactionRecord, Pin, Revert, SessionEvent, SummaryEdit, Undo
from kompakt.store.records import Batch, Head, Records, RowKind, StoredEvent, StoredRow

_KINDS: dict[type, str] = {
    CompactionRecord: "compaction",
    CompactionFailure: "failure",
    Undo: "undo",
    Revert: "revert",
    SummaryEdit: "edit",
    Pin: "pin",
}
_SHORT = 6
"""Lengths of a name that are asked for first; nearly always one of them is free."""


class Draft:
    """What is to be written behind a head."""

    def __init__(self, head: Head, codec: RowCodec) -> None:
        self.seen = head
        self.head = head
        self.codec = codec
        self._rows: list[StoredRow] = []
        self._events: list[StoredEvent] = []
        self._blobs: dict[str, bytes] = {}

    def add(self, item: Json, message: Message, *, kind: RowKind = "message") -> int:
        """Append a row; return its number."""
        row, blobs = self.codec.row(self.head, item, message, kind=kind)
        self._rows.append(row)
        self._blobs |= blobs
        self.head = msgspec.structs.replace(
            self.head,
            rows=row.seq,
            tip=row.seq,
            turn=self.head.turn + begins_turn(message, kind),
            chain=row.chain,
            messages=self.head.messages + (kind == "message"),
        )
        return row.seq

    def do(self, deed: SessionEvent) -> int:
        """Append an event; return its number."""
        packed = self.codec.value_codec.pack(msgspec.to_builtins(deed))
        number = self.head.events + 1
        tip = self.head.rows
        event = StoredEvent(number, _KINDS[type(deed)], tip, time.time(), packed.data, tuple(sorted(packed.blobs)))
        self._events.append(event)
        self._blobs |= packed.blobs
        self.head = msgspec.structs.replace(self.head, events=number)
        return number

    def copy(self, rows: Iterable[StoredMessage], blobs: dict[str, bytes]) -> None:
        """Append rows of another session as they are, but for their numbers."""
        for one in rows:
            seq, said = self.head.rows + 1, one.row.kind == "message"
            self._rows.append(
                msgspec.structs.replace(
                    one.row,
                    seq=seq,
                    name=one.row.name if said else f"k{seq}",
                    words=self.codec.words(one.message) if said else "",
                )
            )
            messages = self.head.messages + said
            self.head = msgspec.structs.replace(self.head, rows=seq, tip=seq, chain=one.row.chain, messages=messages)
        self._blobs |= blobs

    def change(self, **changes: object) -> None:
        """Change the head that follows."""
        self.head = msgspec.structs.replace(self.head, **changes)

    async def batch(self, records: Records, id: str | None = None) -> Batch:
        """Give each new message a name that is free and close the draft."""
        rows = await self._named(records)
        self.change(touched=time.time())
        return Batch(id or token_hex(16), self.head, rows, tuple(self._events), self._blobs)

    async def _named(self, records: Records) -> tuple[StoredRow, ...]:
        wanted = {name for row in self._nameless() for name in islice(candidates(row.chain), _SHORT)}
        taken = set(await records.named(self.head.key, wanted)) if wanted else set[str]()
        tried = _SHORT
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
