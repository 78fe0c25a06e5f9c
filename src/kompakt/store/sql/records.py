"""Records in a SQL database. ``sqlite`` and ``postgres`` add what differs between the two.

A batch is one transaction of five to nine statements. None of them reads more than the batch writes, so the cost does
not grow with the session. The head is updated by compare-and-swap: it must still count the rows and events that the
writer read. Driver errors become kompakt errors without the driver's text, because drivers quote the values of a
statement.

Database locks are taken in the order batch, lock row, head, blobs of the tenant, notes by name. Deleting uses the same
order, so commits and deletions cannot deadlock.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Executable, Table, bindparam, delete, exists, insert, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert as insert_or_ignore
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from kompakt.errors import Conflict, StoreDamaged, StoreError, StoreUnavailable
from kompakt.store.records import Batch, Fence, Head, StoredEvent, StoredRow, check_names, is_sound, used_blobs
from kompakt.store.sql.schema import (
    BATCHES,
    BLOBS,
    EVENTS,
    HEADS,
    LARGEST,
    LOCKS,
    NOTES,
    ROWS,
    USES,
    WORDS,
    as_bytes,
    chunks,
    cleaned,
    storable,
)

_log = logging.getLogger("kompakt.store")

_Record = TypeVar("_Record", Head, StoredRow, StoredEvent)

_Value = TypeVar("_Value")

_HASHES = msgspec.json.Decoder(tuple[str, ...])

_INSERT = {table: insert(table) for table in (ROWS, EVENTS)}
_ADD = {table: insert_or_ignore(table).on_conflict_do_nothing() for table in (BATCHES, HEADS, BLOBS, USES, NOTES)}
"""Statements that insert what does not exist yet."""
_FENCE = (
    select(LOCKS.c.fence)
    .where(LOCKS.c.key == bindparam("of"), LOCKS.c.name == bindparam("named"))
    .with_for_update(read=True)
)
_SWAP = (
    update(HEADS)
    .where(HEADS.c.key == bindparam("of"), HEADS.c.rows == bindparam("seen_rows"))
    .where(HEADS.c.events == bindparam("seen_events"))
)


class SqlRecords(ABC):
    """``Records`` on an engine of SQLAlchemy."""

    _errors: tuple[type[Exception], ...] = (SQLAlchemyError, OSError)
    """Exceptions of the driver."""

    def __init__(self, engine: AsyncEngine, place: str) -> None:
        self.engine = engine
        self.place = place
        """The URL without user and password, for error messages."""

    # --- implemented by each database -----------------------------------------------------------------------------

    @abstractmethod
    def _connection(self, *, write: bool) -> AbstractAsyncContextManager[AsyncConnection]:
        """Open a connection, with a transaction if ``write``."""

    @abstractmethod
    def _translate_error(self, error: BaseException) -> StoreError:
        """Translate an error of the driver."""

    @abstractmethod
    async def _write_words(self, connection: AsyncConnection, key: str, rows: list[StoredRow]) -> None:
        """Index the words of rows."""

    @abstractmethod
    async def _forget_words(self, connection: AsyncConnection, keys: list[str]) -> None:
        """Remove sessions from the index; called before their words are deleted."""

    @abstractmethod
    async def _found(self, connection: AsyncConnection, key: str, words: str, limit: int) -> list[int]:
        """Search the index of a session."""

    @abstractmethod
    async def _keep_blobs(self, connection: AsyncConnection, tenants: list[bytes], *, alone: bool) -> None:
        """Keep others from deleting blobs of tenants until the transaction ends; ``alone``: also from using them."""

    @abstractmethod
    async def _lock_heads(self, connection: AsyncConnection, keys: list[str]) -> list[bytes]:
        """Lock sessions against writers until the transaction ends; return their tenants."""

    @abstractmethod
    async def _quick_notes(self, tenant: bytes, names: list[bytes]) -> Sequence[tuple[bytes, Any]] | None:
        """Read notes without the engine's pool; ``None`` if that is not possible now."""

    @abstractmethod
    async def scrub(self) -> None:
        """See ``Records.scrub``."""

    @abstractmethod
    async def acquire(self, key: str, name: str, *, lease: float) -> Fence | None:
        """See ``Records.acquire``."""

    @abstractmethod
    async def renew(self, key: str, fence: Fence, *, lease: float) -> bool:
        """See ``Records.renew``."""

    @abstractmethod
    async def release(self, key: str, fence: Fence) -> None:
        """See ``Records.release``."""

    # --- shared ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def translate_errors(self) -> AsyncGenerator[None]:
        try:
            yield
        except self._errors as error:
            cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
            raise self._translate_error(cause) from None

    @asynccontextmanager
    async def _using(self, *, write: bool = False) -> AsyncGenerator[AsyncConnection]:
        """Open a connection whose errors are translated."""
        async with self.translate_errors(), self._connection(write=write) as connection:
            yield connection

    @abstractmethod
    async def _write(
        self, work: Callable[[AsyncConnection], Coroutine[Any, Any, _Value]], *, synced: bool = True
    ) -> _Value:
        """Run ``work`` in a transaction; it awaits nothing but calls of the connection.

        For ``synced`` see ``Batch``.
        """

    async def close(self) -> None:
        await self.engine.dispose()

    async def head(self, key: str) -> Head | None:
        found = await self._all(select(HEADS).where(HEADS.c.key.in_(storable([key]))))
        return self._head(found[0]) if found else None

    async def heads(self, tenant: str, *, after: str = "", limit: int = 100, strict: bool = False) -> list[Head]:
        start = cleaned(after.partition("\0")[0])
        while True:
            of = select(HEADS).where(HEADS.c.tenant == as_bytes(tenant), HEADS.c.key > start)
            page = await self._all(of.order_by(HEADS.c.key).limit(limit))
            heads = [head for found in page if (head := self._listed(found, start, strict)) is not None]
            if heads or not page or len(page) < limit:
                return heads
            last = max((found["key"] for found in page if isinstance(found["key"], str)), default="")
            if last <= start:
                raise StoreDamaged(f"{self.place}: the sessions cannot be listed; restore the store from a backup")
            start = last

    def _listed(self, found: dict[str, Any], start: str, strict: bool) -> Head | None:
        """Decode a head of a page; ``None`` if it is damaged."""
        try:
            head = self._head(found)
            if head.key <= start:
                raise self._damaged(found, "the key")
        except StoreDamaged as error:
            if strict:
                raise
            _log.warning("damaged session skipped in a list: %s", error)
            return None
        return head

    async def rows(self, key: str, *, after: int = 0, upto: int, limit: int) -> list[StoredRow]:
        of = select(ROWS).where(ROWS.c.key == key, ROWS.c.seq > after, ROWS.c.seq <= min(upto, LARGEST))
        return [self._row(found) for found in await self._all(of.order_by(ROWS.c.seq).limit(limit))]

    async def rows_at(self, key: str, seqs: Collection[int]) -> list[StoredRow]:
        some = sorted({seq for seq in seqs if 0 < seq <= LARGEST})
        of = select(ROWS).where(ROWS.c.key == key).order_by(ROWS.c.seq)
        pages = [await self._all(of.where(ROWS.c.seq.in_(part))) for part in chunks(some)]
        return [self._row(found) for page in pages for found in page]

    async def turn_seqs(self, key: str, turn: int) -> list[int]:
        of = select(ROWS.c.seq).where(ROWS.c.key == key, ROWS.c.turn == turn).order_by(ROWS.c.seq)
        return [found["seq"] for found in await self._all(of)]

    async def named(self, key: str, names: Collection[str]) -> dict[str, int]:
        of = select(ROWS.c.name, ROWS.c.seq).where(ROWS.c.key == key)
        pages = [await self._all(of.where(ROWS.c.name.in_(part))) for part in chunks(storable(names))]
        return {found["name"]: found["seq"] for page in pages for found in page}

    async def events(self, key: str, *, after: int = 0) -> list[StoredEvent]:
        of = select(EVENTS).where(EVENTS.c.key == key, EVENTS.c.number > after).order_by(EVENTS.c.number)
        return [self._event(found) for found in await self._all(of)]

    async def blobs(self, tenant: str, hashes: Collection[str]) -> dict[str, bytes]:
        of = select(BLOBS.c.hash, BLOBS.c.data).where(BLOBS.c.tenant == as_bytes(tenant))
        pages = [await self._all(of.where(BLOBS.c.hash.in_(part))) for part in chunks(storable(hashes))]
        return {found["hash"]: self._blob(found) for page in pages for found in page}

    async def search(self, key: str, words: Sequence[str], *, limit: int) -> list[int] | None:
        async with self._using() as connection:
            return await self._found(connection, key, " ".join(words), limit)

    async def commit(self, batch: Batch, *, seen: Head | None, fence: Fence | None = None) -> bool:
        check_names(batch.notes)
        return await self._write(
            lambda connection: self._write_batch(connection, batch, seen, fence), synced=batch.synced
        )

    async def _write_batch(
        self, connection: AsyncConnection, batch: Batch, seen: Head | None, fence: Fence | None
    ) -> bool:
        head = batch.head
        if not await self._add(connection, BATCHES, [{"key": head.key, "id": batch.id}]):
            return False
        if fence is not None:
            await self._check(connection, head.key, fence)
        await self._swap(connection, head, seen)
        rows = [_values(row, "words") | {"key": head.key} for row in batch.rows]
        events = [_values(event) | {"key": head.key} for event in batch.events]
        for table, values in ((ROWS, rows), (EVENTS, events)):
            if values:
                await connection.execute(_INSERT[table], values)
        if worded := [row for row in batch.rows if row.words]:
            await self._write_words(connection, head.key, worded)
        await self._write_blobs(connection, batch)
        if batch.notes:
            await self._add(connection, NOTES, _note_values(head.tenant, head.key, batch.notes))
        return True

    async def note(self, tenant: str, key: str, notes: Mapping[str, bytes], *, synced: bool = True) -> None:
        check_names(notes)
        if notes:
            values = _note_values(tenant, key, notes)
            await self._write(lambda connection: self._add(connection, NOTES, values), synced=synced)

    async def notes(self, tenant: str, names: Collection[str]) -> dict[str, bytes]:
        asked, of = {as_bytes(name): name for name in names}, as_bytes(tenant)
        found: dict[str, bytes] = {}
        for part in chunks(asked):
            pairs = await self._quick_notes(of, part)
            if pairs is None:
                where = select(NOTES.c.name, NOTES.c.data).where(NOTES.c.tenant == of, NOTES.c.name.in_(part))
                pairs = [(row["name"], row["data"]) for row in await self._all(where)]
            for name, data in pairs:
                if not isinstance(data, bytes):
                    raise StoreDamaged(
                        f"{self.place}: note {asked[name]!r} is damaged; restore the store from a backup"
                    )
                found[asked[name]] = data
        return found

    async def forget(self, tenant: str) -> None:
        async with self._using(write=True) as connection:
            await self._drop_notes(connection, NOTES.c.tenant == as_bytes(tenant))

    async def _drop_notes(self, connection: AsyncConnection, which: ColumnElement[bool]) -> None:
        """Delete notes in the order of their names, so that two deletions of the same notes cannot deadlock."""
        names = (NOTES.c.tenant, NOTES.c.name)
        gone = select(*names).where(which).order_by(*names).with_for_update()
        await connection.execute(delete(NOTES).where(tuple_(*names).in_(gone)))

    async def delete(self, keys: Iterable[str]) -> int:
        count = 0
        for part in chunks(storable(list(keys))):
            async with self._using(write=True) as connection:
                await connection.execute(delete(LOCKS).where(LOCKS.c.key.in_(part)))
                tenants = await self._lock_heads(connection, part)
                await self._keep_blobs(connection, sorted(set(tenants)), alone=True)
                await self._forget_words(connection, part)
                theirs = select(USES.c.tenant, USES.c.hash).where(USES.c.key.in_(part))
                others = exists().where(USES.c.tenant == BLOBS.c.tenant, USES.c.hash == BLOBS.c.hash)
                unused = delete(BLOBS).where(tuple_(BLOBS.c.tenant, BLOBS.c.hash).in_(theirs))
                await connection.execute(unused.where(~others.where(USES.c.key.not_in(part))))
                for table in (USES, WORDS, ROWS, EVENTS, BATCHES, HEADS):
                    await connection.execute(delete(table).where(table.c.key.in_(part)))
                await self._drop_notes(connection, NOTES.c.key.in_(part))
                count += len(tenants)
        return count

    async def _all(self, query: Executable) -> list[dict[str, Any]]:
        async with self._using() as connection:
            result = await connection.execute(query)
        names = [f"{name}" for name in result.keys()]  # noqa: SIM118 - a result is not a dict
        return [dict(zip(names, found, strict=True)) for found in result]

    async def _add(self, connection: AsyncConnection, table: Table, values: list[dict[str, Any]]) -> bool:
        """Insert what does not exist yet; true if there was one row and it was inserted."""
        result = await connection.execute(_ADD[table], values)
        return result.rowcount == 1

    async def _check(self, connection: AsyncConnection, key: str, fence: Fence) -> None:
        if (await connection.execute(_FENCE, {"of": key, "named": fence.name})).scalar() != fence.number:
            raise Conflict(f"session {key}: the lock {fence.name!r} has a new holder; nothing was written")

    async def _swap(self, connection: AsyncConnection, head: Head, seen: Head | None) -> None:
        values = _values(head) | {"tenant": as_bytes(head.tenant)}
        if seen is None:
            if not await self._add(connection, HEADS, [values]):
                raise Conflict(f"session {head.key}: another writer created it; read it and retry")
            return
        compared = {"of": head.key, "seen_rows": seen.rows, "seen_events": seen.events}
        if (await connection.execute(_SWAP, values | compared)).rowcount != 1:
            raise Conflict(
                f"session {head.key} no longer has {seen.rows} rows and {seen.events} events: "
                "another writer changed or deleted it; read it and retry"
            )

    async def _write_blobs(self, connection: AsyncConnection, batch: Batch) -> None:
        used = used_blobs(batch)
        if not used:
            return
        tenant = as_bytes(batch.head.tenant)
        await self._keep_blobs(connection, [tenant], alone=False)
        if batch.blobs:
            blobs = [{"tenant": tenant, "hash": name, "data": batch.blobs[name]} for name in sorted(batch.blobs)]
            await self._add(connection, BLOBS, blobs)
        uses = [{"key": batch.head.key, "hash": name, "tenant": tenant} for name in sorted(used)]
        await self._add(connection, USES, uses)

    def _head(self, found: dict[str, Any]) -> Head:
        tenant = found["tenant"]
        try:
            text = tenant.decode("utf-8", "surrogatepass") if isinstance(tenant, bytes) else tenant
        except UnicodeDecodeError:
            raise self._damaged(found, "the tenant") from None
        head = self._checked(found | {"tenant": text}, Head, "the head")
        if not is_sound(head):
            raise self._damaged(found, "the head")
        return head

    def _row(self, found: dict[str, Any]) -> StoredRow:
        return self._checked(self._unpacked(found), StoredRow, f"row {found['seq']}")

    def _event(self, found: dict[str, Any]) -> StoredEvent:
        return self._checked(self._unpacked(found), StoredEvent, f"event {found['number']}")

    def _blob(self, found: dict[str, Any]) -> bytes:
        if not isinstance(found["data"], bytes):
            raise StoreDamaged(f"{self.place}: blob {found['hash']} is damaged; restore the store from a backup")
        return found["data"]

    def _unpacked(self, found: dict[str, Any]) -> dict[str, Any]:
        try:
            return found | {"blobs": _HASHES.decode(found["blobs"])}
        except (msgspec.DecodeError, TypeError):
            raise self._damaged(found, "the list of blobs") from None

    def _checked(self, values: dict[str, Any], kind: type[_Record], what: str) -> _Record:
        try:
            return msgspec.convert(values, kind, builtin_types=(bytes,))
        except msgspec.ValidationError:
            raise self._damaged(values, what) from None

    def _damaged(self, found: dict[str, Any], what: str) -> StoreDamaged:
        return StoreDamaged(f"{self.place}: session {found['key']}: {what} is damaged; restore the store from a backup")


def refused(place: str, why: str) -> StoreUnavailable:
    """Return the error of a store that cannot be used."""
    return StoreUnavailable(f"{place}: {why}")


def _note_values(tenant: str, key: str, notes: Mapping[str, bytes]) -> list[dict[str, Any]]:
    shared = {"tenant": as_bytes(tenant), "key": key}
    return [shared | {"name": as_bytes(name), "data": notes[name]} for name in sorted(notes)]


def _values(record: Head | StoredRow | StoredEvent, *left_out: str) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in record.__struct_fields__ if name not in left_out}
    if not isinstance(record, Head):
        values["blobs"] = msgspec.json.encode(record.blobs).decode()
    return values
