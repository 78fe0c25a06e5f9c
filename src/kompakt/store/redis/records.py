"""Sessions in Redis.

A session has these keys, each named ``kompakt:{KEY}:…``. Reading a range costs only what is read.

    head      hash    the packed head, its newest row and event, and the prefix of its tenant's keys
    rows      hash    packed rows by number         turns    sorted set   row numbers by turn
    names     hash    row numbers by reference      events   hash         packed events by number
    batches   set     ids of committed batches      blobs    set          hashes of the blobs it uses
    fences    hash    newest fence number by lock   lock:…   string       fence number of the holder; expires
    notes     set     the keys of its notes

A tenant has ``kompakt:{TENANT}:sessions`` (a sorted set of keys, all with score 0, so ordered by their bytes),
``blob:HASH`` and ``uses:HASH`` (the sessions that use the blob), ``note:NAME`` and ``noted`` (the set of sessions with
notes). TENANT is a hash of its name.

A commit is one script over keys of the session and of its tenant, in one round trip. In a cluster these can be on
different servers, and no transaction spans servers. Therefore a cluster is refused; use one server, with replicas if
needed.

An acknowledged commit survives if the client dies at any moment. With ``appendfsync always`` it also survives a server
crash and a power failure. With ``everysec``, the default of Redis, the operating system usually has the entry before
the answer is sent, but a slow disk can delay it for up to two seconds, and a power failure loses the last second. A
replica that is promoted may lack what it had not received.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TypeVar

import msgspec

from kompakt.errors import Conflict, StoreDamaged, StoreVersion
from kompakt.store.records import Batch, Fence, Head, StoredEvent, StoredRow, check_names, is_sound, used_blobs
from kompakt.store.redis.scripts import ACQUIRE, COMMIT, DELETE, FORGET, HEADS, NOTE, RELEASE, RENEW
from kompakt.store.redis.server import RedisServer, read_url

_log = logging.getLogger("kompakt.store")

SCHEMA = 2
"""Version of the layout, stored with the data. Version 2 has notes, which version 1 would not delete."""

PAGE = 500
"""Rows per command; the server is blocked while it runs one."""

LARGE_PAGE = 50
"""Blobs per command; each may have megabytes."""

PARTS = ("head", "rows", "names", "turns", "events", "batches", "blobs", "fences")

_Record = TypeVar("_Record", StoredRow, StoredEvent)


async def open_redis(url: str) -> RedisRecords:
    """Open the store at ``redis://[user:password@]host[:port]/[database][?prefix=…][&persistence=none]``.

    Raises:
        UsageError: the URL is not valid.
        StoreUnavailable: the server cannot be reached, or would lose acknowledged data.
        StoreVersion: a newer kompakt wrote the store.
    """
    address = read_url(url)
    server = RedisServer(address)
    records = RedisRecords(server, prefix=address.prefix)
    async with AsyncExitStack() as unfinished:
        unfinished.push_async_callback(server.close)
        await server.check()
        await records.check()
        unfinished.pop_all()
    return records


class RedisRecords:
    """Rows and events in Redis, for one event loop; created by ``open_redis``."""

    def __init__(self, server: RedisServer, *, prefix: str) -> None:
        self._server = server
        self._run = server.run
        self._script = server.script
        self._prefix = f"{prefix}:"

    async def check(self) -> None:
        """Write the layout version, or compare it; refuse a newer one."""
        place = f"{self._prefix}schema"
        schema = await self._run("GET", place)
        if schema is None:
            await self._run("SET", place, SCHEMA, "NX")
        elif not schema.isdigit():
            raise StoreDamaged(f"{self._server.place}: {place} is not a number; restore the store from a backup")
        elif int(schema) < SCHEMA:
            await self._run("SET", place, SCHEMA)
        elif int(schema) > SCHEMA:
            raise StoreVersion(
                f"{self._server.place} has schema {int(schema)} and this kompakt knows {SCHEMA}; install a newer one"
            )

    async def close(self) -> None:
        await self._server.close()

    async def head(self, key: str) -> Head | None:
        value, name = await self._run("HMGET", self._own(key, "head"), "value", "name")
        return self._head(key, value, name) if value is not None else None

    async def heads(self, tenant: str, *, after: str = "", limit: int = 100, strict: bool = False) -> list[Head]:
        if limit < 1:
            return []
        sessions = f"{self._tenant(tenant)}sessions"
        while True:
            found = await self._script(HEADS, [sessions], [f"({after}" if after else "-", limit, self._prefix])
            heads: list[Head] = []
            for key, value, name in found:
                after = key.decode()
                try:
                    heads.append(self._head(after, value, name))
                except StoreDamaged as error:
                    if strict:
                        raise
                    _log.warning("damaged session skipped in a list: %s", error)
            if heads or len(found) < limit:
                return heads

    async def commit(self, batch: Batch, *, seen: Head | None, fence: Fence | None = None) -> bool:
        check_names(batch.notes)
        key = batch.head.key
        tenant = self._tenant(batch.head.tenant)
        args: list[str | bytes | int] = [batch.id, key, tenant]
        args += [seen.rows, seen.events] if seen else ["", ""]
        args += [fence.name, fence.number] if fence else ["", ""]
        args += [_pack(msgspec.structs.replace(batch.head, tenant="")), batch.head.tenant]
        args += [batch.head.rows, batch.head.events, len(batch.rows)]
        for row in batch.rows:
            args += [row.seq, _pack(msgspec.structs.replace(row, words="")), row.name, row.turn]
        args.append(len(batch.events))
        for event in batch.events:
            args += [event.number, _pack(event)]
        args.append(len(batch.blobs))
        for pair in batch.blobs.items():
            args += pair
        uses = used_blobs(batch)
        args += [len(uses), *uses, len(batch.notes), *_note_pairs(tenant, batch.notes)]
        keys = [*(self._own(key, part) for part in PARTS), f"{tenant}sessions", self._own(key, "notes")]
        answer = await self._script(COMMIT, [*keys, f"{tenant}noted"], args)
        if answer == b"changed":
            raise Conflict(f"session {key}: another writer committed first; read it again and retry")
        if answer == b"fenced":
            raise Conflict(f"session {key}: its lock has a new holder; acquire it again and retry")
        return answer == b"done"

    async def rows(self, key: str, *, after: int = 0, upto: int, limit: int) -> list[StoredRow]:
        return await self._range(key, "rows", StoredRow, after=after, upto=upto, limit=limit)

    async def rows_at(self, key: str, seqs: Collection[int]) -> list[StoredRow]:
        wanted = sorted(set(seqs))
        found: list[StoredRow] = []
        for start in range(0, len(wanted), PAGE):
            page = wanted[start : start + PAGE]
            values = await self._run("HMGET", self._own(key, "rows"), *page)
            found += self._entries(key, StoredRow, page, values)
        return found

    async def turn_seqs(self, key: str, turn: int) -> list[int]:
        found = await self._run("ZRANGE", self._own(key, "turns"), turn, turn, "BYSCORE")
        # Redis orders equal scores by the bytes of their members, not as numbers.
        return sorted(self._number(key, value) for value in found)

    async def named(self, key: str, names: Collection[str]) -> dict[str, int]:
        wanted = list(dict.fromkeys(names))
        if not wanted:
            return {}
        found = await self._run("HMGET", self._own(key, "names"), *wanted)
        pairs = zip(wanted, found, strict=True)
        return {name: self._number(key, value) for name, value in pairs if value is not None}

    async def events(self, key: str, *, after: int = 0) -> list[StoredEvent]:
        return await self._range(key, "events", StoredEvent, after=after)

    async def _range(
        self, key: str, part: str, kind: type[_Record], *, after: int, upto: int | None = None, limit: int | None = None
    ) -> list[_Record]:
        """Read rows or events by number, up to the newest that the head counts."""
        counted = await self._run("HGET", self._own(key, "head"), part)
        newest = self._number(key, counted or b"0")
        last = newest if upto is None else min(upto, newest)
        found: list[_Record] = []
        start = max(after, 0) + 1
        while start <= last and (limit is None or len(found) < limit):
            room = PAGE if limit is None else min(PAGE, limit - len(found))
            page = range(start, min(last, start + room - 1) + 1)
            found += self._entries(key, kind, page, await self._run("HMGET", self._own(key, part), *page))
            start = page.stop
        return found

    async def blobs(self, tenant: str, hashes: Collection[str]) -> dict[str, bytes]:
        prefix, wanted = self._tenant(tenant), list(dict.fromkeys(hashes))
        found: dict[str, bytes] = {}
        for start in range(0, len(wanted), LARGE_PAGE):
            page = wanted[start : start + LARGE_PAGE]
            blobs = await self._run("MGET", *(f"{prefix}blob:{hash}" for hash in page))
            found |= {hash: blob for hash, blob in zip(page, blobs, strict=True) if blob is not None}
        return found

    async def search(self, key: str, words: Sequence[str], *, limit: int) -> list[int] | None:
        """Return ``None``: Redis has a search index only with a module."""
        return None

    async def note(self, tenant: str, key: str, notes: Mapping[str, bytes], *, synced: bool = True) -> None:
        check_names(notes)
        if not notes:
            return
        prefix = self._tenant(tenant)
        await self._script(NOTE, [self._own(key, "notes"), f"{prefix}noted"], [key, *_note_pairs(prefix, notes)])

    async def notes(self, tenant: str, names: Collection[str]) -> dict[str, bytes]:
        prefix, wanted = self._tenant(tenant), list(dict.fromkeys(names))
        found: dict[str, bytes] = {}
        for start in range(0, len(wanted), PAGE):
            page = wanted[start : start + PAGE]
            values = await self._run("MGET", *(f"{prefix}note:{name}" for name in page))
            found |= {name: value for name, value in zip(page, values, strict=True) if value is not None}
        return found

    async def forget(self, tenant: str) -> None:
        prefix = self._tenant(tenant)
        for key in await self._run("SMEMBERS", f"{prefix}noted"):
            await self._script(FORGET, [self._own(key.decode(), "notes"), f"{prefix}noted"], [key, prefix])

    async def delete(self, keys: Iterable[str]) -> int:
        gone = 0
        for key in list(keys):
            own = [self._own(key, part) for part in (*PARTS, "notes")]
            gone += await self._script(DELETE, own, [self._own(key), key])
        return gone

    async def scrub(self) -> None:
        await self._server.scrub()

    async def acquire(self, key: str, name: str, *, lease: float) -> Fence | None:
        keys = [self._own(key, f"lock:{name}"), self._own(key, "fences")]
        number = await self._script(ACQUIRE, keys, [name, _milliseconds(lease)])
        return Fence(name, int(number)) if number is not None else None

    async def renew(self, key: str, fence: Fence, *, lease: float) -> bool:
        keys = [self._own(key, f"lock:{fence.name}")]
        return bool(await self._script(RENEW, keys, [fence.number, _milliseconds(lease)]))

    async def release(self, key: str, fence: Fence) -> None:
        await self._script(RELEASE, [self._own(key, f"lock:{fence.name}")], [fence.number])

    def _own(self, key: str, part: str = "") -> str:
        """Return the name of a session's key."""
        return f"{self._prefix}{{{key}}}:{part}"

    def _tenant(self, tenant: str) -> str:
        """Return the prefix of a tenant's keys. It is a hash, so that no tenant name can produce another's keys."""
        raw = tenant.encode("utf-8", "surrogatepass")
        return f"{self._prefix}{{{hashlib.blake2b(raw, digest_size=16, person=b'kompakt tenant').hexdigest()}}}:"

    def _head(self, key: str, value: bytes | None, name: bytes | None) -> Head:
        """Decode a head. Its tenant is stored apart, because MessagePack cannot hold lone surrogates."""
        try:
            head = msgspec.msgpack.decode(value or b"", type=Head)
            head = msgspec.structs.replace(head, tenant=(name or b"").decode("utf-8", "surrogatepass"))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._damaged(key, "its head") from error
        if not is_sound(head):
            raise self._damaged(key, "its head")
        return head

    def _entries(
        self, key: str, kind: type[_Record], numbers: Iterable[int], values: Iterable[bytes | None]
    ) -> Iterator[_Record]:
        """Decode the values that exist."""
        decoder = msgspec.msgpack.Decoder(kind)
        for number, value in zip(numbers, values, strict=True):
            if value is None:
                continue
            try:
                yield decoder.decode(value)
            except msgspec.DecodeError as error:
                what = "row" if kind is StoredRow else "event"
                raise self._damaged(key, f"{what} {number}") from error

    def _number(self, key: str, value: bytes) -> int:
        if not value.isdigit():
            raise self._damaged(key, "a number")
        return int(value)

    def _damaged(self, key: str, what: str) -> StoreDamaged:
        return StoreDamaged(f"{self._server.place}: session {key}: {what} is damaged; restore the store from a backup")


def _pack(value: Head | StoredRow | StoredEvent) -> bytes:
    return msgspec.msgpack.encode(value)


def _note_pairs(prefix: str, notes: Mapping[str, bytes]) -> list[str | bytes]:
    """Return the key and the value of each note."""
    return [part for name, value in notes.items() for part in (f"{prefix}note:{name}", value)]


def _milliseconds(lease: float) -> int:
    """Convert a lease to milliseconds; Redis requires at least one."""
    return max(1, round(lease * 1000))
