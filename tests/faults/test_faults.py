"""Stores that are full, read-only, unreachable, damaged or too new: a clear error, no loss, and recovery."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from tests.contract import postgres, redis
from tests.contract.backends import STORES, Place, set_pragma
from tests.faults.crashes import session_of
from tests.faults.processes import turn_of
from tests.session.builders import asked

from kompakt.errors import KompaktError, StoreDamaged, StoreUnavailable, StoreVersion
from kompakt.session.session import Session
from kompakt.store.records import StoredRow, key_of

SERVERS = ("postgres", "redis")
SECRET = "the eagle lands at noon"


def plain(error: KompaktError) -> None:
    """Assert that an error is one line without message texts."""
    assert "\n" not in str(error)
    assert SECRET not in str(error)
    assert len(str(error)) > 20


async def settled(session: Session, wanted: list[Any]) -> None:
    """Assert that a session is intact and contains exactly these messages."""
    assert await session.verify() == []
    assert await session.export() == wanted


def run(place: Place, scenario: Callable[[Any, Session], Awaitable[None]]) -> None:
    async def body() -> None:
        async with place.opened() as records:
            await scenario(records, session_of(records, "a"))

    asyncio.run(body())


class TestDisk:
    def test_full(self, tmp_path: Path) -> None:
        """A limit of one more page simulates a full disk."""
        self.refuses("max_page_count=1", "max_page_count=1000000000", "full", tmp_path)

    def test_read_only(self, tmp_path: Path) -> None:
        self.refuses("query_only=ON", "query_only=OFF", "is read-only", tmp_path)

    def refuses(self, setting: str, back: str, said: str, directory: Path) -> None:
        async def scenario(records: Any, session: Session) -> None:
            first, second = turn_of("w", 1), turn_of("w", 2, chars=40_000)
            second[2]["content"] = SECRET + "".join(chr(33 + n * n % 89) for n in range(90_000))
            await session.append(first)
            await set_pragma(records, setting)
            with pytest.raises(StoreUnavailable, match=said) as caught:
                await session.append(second, key="k")
            plain(caught.value)
            await settled(session_of(records, "a"), first)
            await set_pragma(records, back)
            await session.append(second, key="k")
            await settled(session, first + second)
            await session.compact(4_000)
            assert await session.verify() == []

        run(Place("sqlite", directory), scenario)

    @pytest.mark.parametrize("garbage", [b"garbage " * 4_000, b"SQLite format 3\0" + b"\xff" * 9_000], ids=repr)
    def test_a_file_that_became_garbage(self, garbage: bytes, tmp_path: Path) -> None:
        place = Place("sqlite", tmp_path)
        run(place, lambda _, session: session.append(turn_of("w", 1)))
        for left in tmp_path.iterdir():
            left.write_bytes(garbage) if left.suffix == ".db" else left.unlink()
        with pytest.raises(StoreDamaged, match=r"sessions\.db") as caught:
            asyncio.run(place.open())
        plain(caught.value)
        assert (tmp_path / "sessions.db").read_bytes() == garbage, "what is left of a file is for its owner to look at"


def damage(place: Place, change: Callable[[bytes], bytes], seq: int = 2) -> None:
    """Overwrite the stored bytes of a message directly."""
    key = key_of("", "a")
    if place.name == "memory":
        rows = place.memory._sessions[key].rows
        rows[seq] = msgspec.structs.replace(rows[seq], item=change(rows[seq].item))
    elif place.name == "sqlite":
        connection = sqlite3.connect(place.url.removeprefix("sqlite:///"))
        (item,) = connection.execute("SELECT item FROM kompakt_rows WHERE key = ? AND seq = ?", (key, seq)).fetchone()
        connection.execute("UPDATE kompakt_rows SET item = ? WHERE key = ? AND seq = ?", (change(item), key, seq))
        connection.commit()
        connection.close()
    elif place.name == "redis":
        name = f"{place.url.partition('prefix=')[2]}:{{{key}}}:rows"
        row = msgspec.msgpack.decode(redis.command(place.url, "HGET", name, seq), type=StoredRow)
        changed = msgspec.structs.replace(row, item=change(row.item))
        redis.command(place.url, "HSET", name, seq, msgspec.msgpack.encode(changed))
    else:
        asyncio.run(_damage_postgres(place, change, key, seq))


async def _damage_postgres(place: Place, change: Callable[[bytes], bytes], key: str, seq: int) -> None:
    connection = await asyncpg.connect(place.url)
    item = await connection.fetchval("SELECT item FROM kompakt_rows WHERE key = $1 AND seq = $2", key, seq)
    await connection.execute("UPDATE kompakt_rows SET item = $3 WHERE key = $1 AND seq = $2", key, seq, change(item))
    await connection.close()


@pytest.mark.parametrize("store", STORES)
class TestDamage:
    def test_bytes_that_cannot_be_read(self, store: str, tmp_path: Path) -> None:
        place, kept = Place(store, tmp_path), list[bytes]()
        wanted = [asked("one"), asked(SECRET), asked("three")]

        async def start(_: Any, session: Session) -> None:
            await session.append(wanted, format="openai-chat")

        async def look(records: Any, session: Session) -> None:
            with pytest.raises(StoreDamaged, match="message 2") as caught:
                await session.export()
            plain(caught.value)
            found = await session.verify()
            assert len(found) == 1 and "message 2" in found[0]
            other = session_of(records, "b")
            await other.append(wanted, format="openai-chat")
            await settled(other, wanted)

        run(place, start)
        damage(place, lambda item: kept.append(item) or b"p{\xff" + item[3:])  # type: ignore[func-returns-value]
        run(place, look)
        damage(place, lambda _: kept[0])
        run(place, lambda _, session: settled(session, wanted))

    def test_a_replaced_text_is_found(self, store: str, tmp_path: Path) -> None:
        place = Place(store, tmp_path)

        async def start(_: Any, session: Session) -> None:
            await session.append([asked("one"), asked("pay 100"), asked("three")], format="openai-chat")

        async def look(_: Any, session: Session) -> None:
            found = await session.verify()
            assert any("message 2" in fault and "differs from what was written" in fault for fault in found)
            assert not any("pay" in fault for fault in found)

        run(place, start)
        damage(place, lambda item: item.replace(b"pay 100", b"pay 999"))
        run(place, look)


class TestVersions:
    @pytest.mark.parametrize("store", [store for store in STORES if store != "memory"])
    def test_a_newer_schema(self, store: str, tmp_path: Path) -> None:
        """A store from the future is refused and left as it is; what is in it is there when the number is right."""
        place, wanted = Place(store, tmp_path), turn_of("w", 1)
        run(place, lambda _, session: session.append(wanted))
        was = self.change(place, 99)
        with pytest.raises(StoreVersion, match="99") as caught:
            asyncio.run(place.open())
        plain(caught.value)
        self.change(place, was)
        run(place, lambda _, session: settled(session, wanted))

    def change(self, place: Place, version: int) -> int:
        if place.name == "redis":
            name = f"{place.url.partition('prefix=')[2]}:schema"
            return int(redis.command(place.url, "SET", name, version, "GET"))
        if place.name == "sqlite":
            connection = sqlite3.connect(place.url.removeprefix("sqlite:///"))
            (was,) = connection.execute("SELECT version FROM kompakt_schema").fetchone()
            connection.execute("UPDATE kompakt_schema SET version = ?", (version,))
            connection.commit()
            connection.close()
            return was

        async def on_server() -> int:
            connection = await asyncpg.connect(place.url)
            was = await connection.fetchval("SELECT version FROM kompakt_schema")
            await connection.execute("UPDATE kompakt_schema SET version = $1", version)
            await connection.close()
            return was

        return asyncio.run(on_server())


async def insistent(session: Session, messages: list[Any], key: str) -> None:
    """Append as a careful caller does: again under the same key until it is acknowledged."""
    deadline = time.monotonic() + 60
    while True:
        try:
            await session.append(messages, key=key)
            return
        except StoreUnavailable as error:
            plain(error)
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def hang_up(place: Place) -> None:
    """Cut every connection to the server except this one."""
    if place.name == "redis":
        await asyncio.to_thread(redis.command, place.url, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        return
    connection = await asyncpg.connect(place.url)
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname IS NOT NULL"
    )
    await connection.close()


@pytest.mark.parametrize("store", SERVERS)
class TestServers:
    def test_connections_that_are_cut(self, store: str, tmp_path: Path) -> None:
        """All connections are cut repeatedly during appends and compactions; each happens once."""
        place = Place(store, tmp_path)

        async def scenario(_: Any, session: Session) -> None:
            wanted: list[Any] = []
            over = asyncio.Event()

            async def cut() -> None:
                while not over.is_set():
                    await asyncio.sleep(0.03)
                    await hang_up(place)

            cutting = asyncio.create_task(cut())
            for number in range(15):
                messages = turn_of("w", number)
                await insistent(session, messages, f"k{number}")
                wanted += messages
            over.set()
            await cutting
            await settled(session, wanted)
            await session.compact(1_000)
            await settled(session, wanted)

        run(place, scenario)

    def test_a_restart(self, store: str, tmp_path: Path) -> None:
        """The server is restarted between calls and during calls."""
        place, wanted = Place(store, tmp_path), list[Any]()
        restart = redis.restart if store == "redis" else lambda: postgres.restart("immediate")

        async def scenario(_: Any, session: Session) -> None:
            await insistent(session, turn_of("w", 0), "k0")
            await asyncio.to_thread(restart)
            await insistent(session, turn_of("w", 1), "k1")
            restarting = asyncio.create_task(asyncio.to_thread(restart))
            number = 2
            while not restarting.done() or number < 4:
                await insistent(session, turn_of("w", number), f"k{number}")
                number += 1
            await restarting
            wanted.extend(message for made in range(number) for message in turn_of("w", made))
            await settled(session, wanted)
            await session.compact(1_000)

        run(place, scenario)
        run(place, lambda _, session: settled(session, wanted))


def test_a_connection_lost_within_a_transaction(tmp_path: Path) -> None:
    """The transaction waits half-way for a table; its connection is cut there; it is done once."""
    place = Place("postgres", tmp_path)

    async def scenario(_: Any, session: Session) -> None:
        first, second = turn_of("w", 1), turn_of("w", 2)
        await session.append(first)
        blocker, watcher = await asyncpg.connect(place.url), await asyncpg.connect(place.url)
        transaction = blocker.transaction()
        await transaction.start()
        await blocker.execute("LOCK TABLE kompakt_rows IN EXCLUSIVE MODE")
        appending = asyncio.create_task(insistent(session, second, "k"))
        cut = 0
        while not cut:
            await asyncio.sleep(0.01)
            cut = await watcher.fetchval(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO kompakt_rows%'"
            )
        await transaction.rollback()
        await blocker.close()
        await watcher.close()
        await appending
        await settled(session, first + second)

    run(place, scenario)
