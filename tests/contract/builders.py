"""Sessions for the contract suite: reproducible values, and the calls that write them."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Collection, Mapping, Sequence

import msgspec

from kompakt.store.records import Batch, Head, Records, StoredEvent, StoredRow, key_of

_batches = itertools.count(1)


def digest(text: str) -> str:
    """Name a blob."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def noise(size: int, seed: object = 0) -> bytes:
    """Make bytes that nothing can compress."""
    return random.Random(str(seed)).randbytes(size)


def new_head(id: str = "session", tenant: str = "tenant") -> Head:
    """Return the head of a session without messages."""
    raw = id.encode("utf-8", "surrogatepass")
    return Head(key_of(tenant, id), tenant, raw, "openai-chat", b'\x00\xff{"model": "x"}', 1700000000.123456)


def row(seq: int, *, turn: int = 0, words: str = "", blobs: Sequence[str] = (), item: bytes | None = None) -> StoredRow:
    """Make a row; its name comes from its number."""
    item = item if item is not None else b"\x00\xffitem %d\n" % seq
    content = hashlib.blake2b(item, digest_size=16).digest()
    chain = hashlib.blake2b(content + bytes([seq % 256]), digest_size=16).digest()
    return StoredRow(seq, turn, "message", f"m{seq:05x}", chain, content, item, b"\x00note", tuple(blobs), words)


def event(number: int, *, tip: int = 0, blobs: Sequence[str] = ()) -> StoredEvent:
    """Make an event."""
    return StoredEvent(number, "compacted", tip, 1700000000.1 + number, b"\x00\xff%d" % number, tuple(blobs))


def batch(
    head: Head,
    rows: Sequence[StoredRow] = (),
    events: Sequence[StoredEvent] = (),
    *,
    blobs: Mapping[str, bytes] | None = None,
    id: str = "",
) -> Batch:
    """Return a batch to append after a head; without an id it gets a new one."""
    tip = rows[-1] if rows else None
    after = msgspec.structs.replace(
        head,
        rows=rows[-1].seq if rows else head.rows,
        events=events[-1].number if events else head.events,
        tip=tip.seq if tip else head.tip,
        turn=tip.turn if tip else head.turn,
        chain=tip.chain if tip else head.chain,
        messages=head.messages + len(rows),
    )
    return Batch(id or f"batch {next(_batches)}", after, tuple(rows), tuple(events), dict(blobs or {}))


def plain(head: Head, count: int, *, turn: int = 0) -> list[StoredRow]:
    """Make the rows that follow a head."""
    return [row(head.rows + number, turn=turn) for number in range(1, count + 1)]


async def start(records: Records, id: str = "session", tenant: str = "tenant", *, rows: int = 2) -> Head:
    """Begin a session with some rows; return its head."""
    head = new_head(id, tenant)
    written = batch(head, plain(head, rows))
    await records.commit(written, seen=None)
    return written.head


async def extend(
    records: Records,
    head: Head,
    rows: Sequence[StoredRow] = (),
    events: Sequence[StoredEvent] = (),
    *,
    blobs: Mapping[str, bytes] | None = None,
) -> Head:
    """Append after a head and return the next head."""
    written = batch(head, rows, events, blobs=blobs)
    await records.commit(written, seen=head)
    return written.head


async def everything(records: Records, key: str, hashes: Collection[str] = ()) -> tuple[object, ...]:
    """Read all that can be read of a session, to compare it with another time or place."""
    head = await records.head(key)
    rows = await records.rows(key, upto=1 << 40, limit=1 << 20)
    return (
        head,
        rows,
        await records.rows_at(key, [row.seq for row in rows]),
        [await records.turn_seqs(key, turn) for turn in range(5)],
        await records.named(key, [row.name for row in rows]),
        await records.events(key),
        await records.blobs(head.tenant, hashes) if head else {},
    )
