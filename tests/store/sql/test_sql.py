"""SQL stores: files, disks, lost servers, processes that die or hang."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import asyncpg
import msgspec
import pytest
from tests.contract import postgres
from tests.contract.backends import set_pragma
from tests.contract.builders import batch, digest, event, everything, extend, new_head, noise, plain, row, start

from kompakt.errors import Conflict, StoreDamaged, StoreUnavailable, UsageError
from kompakt.store import open_records
from kompakt.store.records import Head, StoredEvent
from kompakt.store.sql import sqlite
from kompakt.store.sql.postgres import open_postgres
from kompakt.store.sql.schema import CHUNK
from kompakt.store.sql.sqlite import SqliteRecords, open_sqlite

KEY = new_head().key
each_store = pytest.mark.parametrize("kind", ["sqlite", "postgres"])

WRITER = """
import asyncio, sys
from tests.contract.builders import batch, new_head, row
from kompakt.errors import Conflict
from kompakt.store import open_records

async def write(records, task, process):
    for turn in range(4):
        while True:
            head = await records.head(new_head(f"session {task % 10}").key)
            try:
                made = batch(head, [row(head.rows + 1, item=b"%d %d %d" % (process, task, turn), words="some words")],
                             id=f"{process} {task} {turn}")
                await records.commit(made, seen=head)
            except Conflict:
                continue
            break

async def main(url, process):
    records = await open_records(url)
    await asyncio.gather(*(write(records, task, process) for task in range(process, 50, 4)))
    await records.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""

ENDLESS = """
import asyncio, sys, uuid
from tests.contract.builders import batch, new_head, row
from kompakt.store import open_records

async def main(url):
    records = await open_records(url)
    head = await records.head(new_head().key)
    while True:
        made = batch(head, [row(head.rows + 1, words="kept"), row(head.rows + 2)], id=uuid.uuid4().hex)
        await records.commit(made, seen=head)
        head = made.head
        print(head.rows, flush=True)

asyncio.run(main(sys.argv[1]))
"""

HOLDER = """
import asyncio, sys
from tests.contract.builders import new_head
from kompakt.store import open_records

async def main(url):
    records = await open_records(url)
    print((await records.acquire(new_head().key, "compact", lease=1000)).number, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main(sys.argv[1]))
"""


def address(kind: str, directory: Path) -> str:
    return f"sqlite:///{directory / 'sessions.db'}" if kind == "sqlite" else postgres.database()


def process(code: str, *arguments: str) -> subprocess.Popen[str]:
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True)


@contextmanager
def idle() -> Iterator[None]:
    """Be a user to whom permissions apply."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


class TestOpening:
    @pytest.mark.parametrize("url", ["sqlite:", "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://host/x.db"])
    def test_a_url_without_a_file(self, url: str) -> None:
        with pytest.raises(UsageError, match=r"SQLite (store|URL)"):
            asyncio.run(open_sqlite(url))

    def test_relative_and_absolute(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async def scenario() -> None:
            for place in ("sqlite:///a b%20'é?.db", "a b%20'é?.db", f"sqlite:///{tmp_path}/a b%20'é?.db"):
                records = await open_sqlite(place)
                if await records.head(KEY) is None:
                    await start(records)
                assert await records.head(KEY)
                await records.close()
                await records.close()

        monkeypatch.chdir(tmp_path)
        asyncio.run(scenario())
        assert (tmp_path / "a b%20'é?.db").is_file()

    def test_no_such_directory(self, tmp_path: Path) -> None:
        with pytest.raises(StoreUnavailable, match=r"there is no directory '.*missing'"):
            asyncio.run(open_sqlite(tmp_path / "missing" / "sessions.db"))
        with pytest.raises(StoreUnavailable, match="is a directory"):
            asyncio.run(open_sqlite(tmp_path))

    def test_not_a_database(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("remember the milk\n" * 100)
        with pytest.raises(StoreDamaged, match="is not a SQLite database"):
            asyncio.run(open_sqlite(tmp_path / "notes.txt"))
        assert (tmp_path / "notes.txt").read_text().startswith("remember")

    def test_a_read_only_file(self) -> None:
        async def scenario(path: Path) -> None:
            records = await open_sqlite(path)
            head = await start(records)
            await records.close()
            path.chmod(0o444)
            with idle():
                with pytest.raises(StoreUnavailable, match=r"permissions|writable"):
                    await write(path, head)
                with pytest.raises(StoreUnavailable, match="cannot be opened"):
                    await open_sqlite(path.parent / "new.db")

        async def write(path: Path, head: Head) -> None:
            records = await open_sqlite(path)
            try:
                await extend(records, head, plain(head, 1))
            finally:
                await records.close()

        directory = Path(tempfile.mkdtemp(prefix="kompakt-"))
        directory.chmod(0o755)
        try:
            asyncio.run(scenario(directory / "sessions.db"))
        finally:
            shutil.rmtree(directory)

    def test_no_such_server(self, tmp_path: Path) -> None:
        for url in (
            "postgresql://me:sesame@127.0.0.1:1/db",
            f"postgresql://me:sesame@/db?host={tmp_path}",
            f"postgresql://postgres:sesame@/missing?host={postgres.directory()}",
        ):
            with pytest.raises(StoreUnavailable, match=r"cannot be reached|no such database") as caught:
                asyncio.run(open_postgres(url))
            assert "sesame" not in str(caught.value) and caught.value.__suppress_context__
        for url in ("mysql://host/db", "postgresql://host:port/db", "words"):
            with pytest.raises(UsageError):
                asyncio.run(open_postgres(url))


class TestThreads:
    def test_a_commit_is_one_call(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A whole transaction runs in one call of a thread, and heads, references and notes are read without one."""
        calls = list[object]()
        execute = sqlite._Connection._execute

        async def counted(connection: sqlite._Connection, work: Any, *arguments: Any) -> Any:
            calls.append(work)
            return await execute(connection, work, *arguments)

        async def scenario() -> None:
            records = await open_sqlite(tmp_path / "sessions.db")
            head = await start(records)
            monkeypatch.setattr(sqlite._Connection, "_execute", counted)
            large = batch(head, [row(3, item=noise(1 << 20))], [event(1)], blobs={digest("x"): b"x"})
            await records.commit(large, seen=head)
            assert len(calls) == 1
            await records.note("", KEY, {"a": b"1"})
            assert len(calls) == 2
            assert await records.head(KEY) == large.head
            assert await records.named(KEY, [large.rows[0].name]) == {large.rows[0].name: 3}
            assert await records.notes("", ["a"]) == {"a": b"1"}
            assert len(calls) == 2
            monkeypatch.undo()
            await records.close()

        asyncio.run(scenario())

    def test_a_cancelled_commit_is_whole(self, tmp_path: Path) -> None:
        """A commit whose caller gave up while it ran is written as a whole, and the next one follows it."""

        async def scenario() -> None:
            records = await open_sqlite(tmp_path / "sessions.db")
            head = await start(records)
            other = sqlite3.connect(tmp_path / "sessions.db", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            first = batch(head, [row(3)], [event(1)])
            waiting = asyncio.create_task(records.commit(first, seen=head))
            await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.wait([waiting])
            other.execute("ROLLBACK")
            other.close()
            await records.note("", KEY, {"a": b"1"})
            assert await records.head(KEY) == first.head
            assert [one.seq for one in await records.rows(KEY, after=2, upto=9, limit=9)] == [3]
            assert [one.number for one in await records.events(KEY)] == [1]
            await records.close()

        asyncio.run(scenario())


class TestSync:
    def test_only_commits_that_ask_for_it_wait_for_the_disk(self, tmp_path: Path) -> None:
        """The setting of the connection before each commit; locks never wait."""

        async def run() -> list[int]:
            records = cast("SqliteRecords", await open_sqlite(tmp_path / "a.db"))
            used: list[int] = []

            async def look() -> None:
                writer = await records._writer.connection()
                used.append(await writer.call(lambda opened: opened.execute("PRAGMA synchronous").fetchone()[0]))

            head = await start(records)
            await look()
            unsynced = msgspec.structs.replace(batch(head, plain(head, 1)), synced=False)
            await records.commit(unsynced, seen=head)
            await look()
            await records.note("tenant", head.key, {"a": b""})
            await look()
            fence = await records.acquire(head.key, "turn", lease=10)
            await look()
            assert fence is not None and await records.acquire(head.key, "turn", lease=10) is None
            await records.note("tenant", head.key, {"b": b""}, synced=False)
            await look()
            await records.commit(batch(unsynced.head, plain(unsynced.head, 1)), seen=unsynced.head, fence=fence)
            await look()
            await records.close()
            return used

        normal, full = 1, 2
        assert asyncio.run(run()) == [full, normal, full, normal, normal, full]


class TestDisk:
    def test_a_full_disk(self, tmp_path: Path) -> None:
        """Nothing of a batch that found no room is written; with room again it is."""

        async def scenario() -> None:
            records = await open_sqlite(tmp_path / "sessions.db")
            head = await start(records)
            before = await everything(records, KEY)
            await set_pragma(records, "max_page_count=1")
            large = batch(head, [row(3, item=noise(1 << 20))], [event(1)], blobs={digest("x"): b"x"})
            with pytest.raises(StoreUnavailable, match="disk is full"):
                await records.commit(large, seen=head)
            assert await everything(records, KEY) == before
            await set_pragma(records, "max_page_count=1000000000")
            await records.commit(large, seen=head)
            assert await records.head(KEY) == large.head
            await records.close()

        asyncio.run(scenario())

    @each_store
    def test_a_damaged_row(self, kind: str, tmp_path: Path) -> None:
        """The session and the row are named, what is in it is not quoted, and others can be read."""

        async def scenario() -> None:
            url = address(kind, tmp_path)
            records = await open_records(url)
            await start(records, rows=3)
            damage = "UPDATE kompakt_rows SET blobs = '[sesame' WHERE seq = 2"
            if kind == "sqlite":
                with sqlite3.connect(tmp_path / "sessions.db") as connection:
                    connection.execute("UPDATE kompakt_rows SET item = 'sesame' WHERE seq = 2")
                connection.close()
            else:
                server = await asyncpg.connect(url)
                await server.execute(damage)
                await server.close()
            with pytest.raises(StoreDamaged, match=f"session {KEY}.*is damaged") as caught:
                await records.rows(KEY, upto=3, limit=3)
            assert "sesame" not in str(caught.value)
            assert [found.seq for found in await records.rows_at(KEY, [1, 3])] == [1, 3]
            await records.close()

        asyncio.run(scenario())

    def test_a_damaged_page(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            path = tmp_path / "sessions.db"
            records = await open_sqlite(path)
            head = await start(records, rows=0)
            await extend(records, head, [row(number, item=noise(500, number)) for number in range(1, 301)])
            await records.close()
            raw = bytearray(path.read_bytes())
            raw[4096 * 20 : 4096 * 60] = noise(4096 * 40)
            path.write_bytes(raw)
            with pytest.raises(StoreDamaged, match="the file is damaged"):
                await read(path)

        async def read(path: Path) -> None:
            records = await open_sqlite(path)
            try:
                await everything(records, KEY)
            finally:
                await records.close()

        asyncio.run(scenario())

    @each_store
    def test_scrubbed_data_is_in_no_file(self, kind: str, tmp_path: Path) -> None:
        """Items, words, blobs, events and notes of a deleted session are in no file of the tables; others stay."""
        secrets = [noise(40, name).hex().encode() for name in ("item", "words", "blob", "event", "note")]

        async def scenario() -> None:
            url = address(kind, tmp_path)
            records = await open_records(url)
            other = await start(records, "other")
            head = await start(records)
            secret = row(3, item=secrets[0], words=f"some {secrets[1].decode()} words", blobs=[digest("secret")])
            done = StoredEvent(1, "compacted", 3, 1.0, secrets[3])
            await extend(records, head, [secret], [done], blobs={digest("secret"): secrets[2]})
            await records.note("tenant", KEY, {"secret": secrets[4]})
            if kind == "postgres":
                server = await asyncpg.connect(url)
                await server.execute("CHECKPOINT")
                await server.close()
            assert all(holds(secret) for secret in secrets)
            assert await records.delete([KEY]) == 1
            await records.scrub()
            assert not any(holds(secret) for secret in secrets)
            assert await records.head(other.key) == other
            await records.close()
            assert not any(holds(secret) for secret in secrets)

        def holds(secret: bytes) -> bool:
            place = tmp_path if kind == "sqlite" else postgres.directory() / "data" / "base"
            return any(secret in path.read_bytes() for path in place.rglob("*") if path.is_file())

        asyncio.run(scenario())


class TestProcesses:
    @each_store
    def test_fifty_writers_of_four_processes(self, kind: str, tmp_path: Path) -> None:
        """In ten sessions no message is lost or duplicated, and no writer is locked out."""

        async def open_session() -> None:
            records = await open_records(url)
            for number in range(10):
                await start(records, f"session {number}", rows=0)
            await records.close()

        async def written() -> list[bytes]:
            records = await open_records(url)
            keys = [new_head(f"session {number}").key for number in range(10)]
            found = [found for key in keys for found in await records.rows(key, upto=1000, limit=1000)]
            await records.close()
            return [found.item for found in found]

        url = address(kind, tmp_path)
        asyncio.run(open_session())
        writers = [process(WRITER, url, str(number)) for number in range(4)]
        assert [writer.wait(100) for writer in writers] == [0, 0, 0, 0]
        for writer in writers:
            writer.communicate()
        expected = [b"%d %d %d" % (task % 4, task, turn) for task in range(50) for turn in range(4)]
        assert sorted(asyncio.run(written())) == sorted(expected)

    @each_store
    def test_a_kill_loses_nothing_acknowledged(self, kind: str, tmp_path: Path) -> None:
        async def open_session() -> None:
            records = await open_records(url)
            await start(records, rows=0)
            await records.close()

        async def check(acknowledged: int) -> None:
            records = await open_records(url)
            head = await records.head(KEY)
            assert head is not None and head.rows - acknowledged in (0, 2)
            rows = await records.rows(KEY, upto=1 << 40, limit=1 << 20)
            assert [found.seq for found in rows] == list(range(1, head.rows + 1))
            found = await records.search(KEY, ["kept"], limit=1 << 20)
            assert sorted(found or []) == list(range(1, head.rows + 1, 2))
            await records.close()

        url = address(kind, tmp_path)
        asyncio.run(open_session())
        for lines in (1, 7, 20):
            writer = process(ENDLESS, url)
            assert writer.stdout is not None
            said = [writer.stdout.readline() for _ in range(lines)]
            writer.kill()
            said += [line for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
            writer.communicate()
            asyncio.run(check(int(said[-1])))


class TestCancellation:
    @each_store
    def test_a_call_may_be_cancelled_anywhere(self, kind: str, tmp_path: Path) -> None:
        """An interrupted write is stored completely or not at all. The store still works and its locks are free."""

        async def scenario() -> None:
            records = await open_records(address(kind, tmp_path))
            head = await start(records, rows=0)
            for number in range(60):
                made = batch(head, [row(head.rows + 1, words="w"), row(head.rows + 2)], blobs={digest("x"): b"x"})
                writing = asyncio.create_task(records.commit(made, seen=head))
                locking = asyncio.create_task(records.acquire(KEY, f"lock {number}", lease=100))
                await asyncio.sleep(0.0002 * (number % 30))
                writing.cancel()
                locking.cancel()
                await asyncio.gather(writing, locking, return_exceptions=True)
                assert await records.head(KEY) in (head, made.head)
                await asyncio.wait_for(records.commit(made, seen=head), 10)
                head = made.head
                assert await records.head(KEY) == head
            found = await records.rows(KEY, upto=1000, limit=1000)
            assert [found.seq for found in found] == list(range(1, 121))
            await records.close()

        asyncio.run(scenario())


class TestCost:
    @pytest.mark.slow
    @each_store
    def test_a_long_session_costs_no_more(self, kind: str, tmp_path: Path) -> None:
        """Two rows after 100,000 cost at most twice what they cost after 100."""

        async def scenario() -> tuple[float, float]:
            places = [await open_records(address(kind, tmp_path / name)) for name in ("few", "many")]
            heads = [await start(records, rows=100) for records in places]
            while heads[1].rows < 100_000:
                numbers = range(heads[1].rows + 1, heads[1].rows + 1001)
                rows = [row(number, words=f"word{number} of many", item=noise(300)) for number in numbers]
                heads[1] = await extend(places[1], heads[1], rows)
            times: list[list[float]] = [[], []]
            for turn in range(400):  # by turns, so that a busy machine slows both alike
                which = turn % 2
                numbers = (heads[which].rows + 1, heads[which].rows + 2)
                rows = [row(number, words="some words to find", item=noise(300)) for number in numbers]
                since = time.perf_counter()
                heads[which] = await extend(places[which], heads[which], rows)
                times[which].append(time.perf_counter() - since)
            for records in places:
                await records.close()
            return median(times[0]), median(times[1])

        for name in ("few", "many"):
            (tmp_path / name).mkdir()
        few, many = asyncio.run(scenario())
        assert many <= 2 * few, f"{few * 1000:.2f} ms, then {many * 1000:.2f} ms"


def test_deleting_a_long_session_reads_it_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most, fetch = 0, sqlite._Cursor._execute_all  # pyright: ignore[reportPrivateUsage]

    def counted(cursor: Any, sql: str, parameters: Any) -> None:
        nonlocal most
        fetch(cursor, sql, parameters)
        most = max(most, len(cursor._rows))

    async def main() -> None:
        records = await open_sqlite(tmp_path / "k.db")
        head = await start(records)
        await extend(records, head, [row(seq, words=f"word{seq}") for seq in range(head.rows + 1, 2 * CHUNK + 11)])
        monkeypatch.setattr(sqlite._Cursor, "_execute_all", counted)  # pyright: ignore[reportPrivateUsage]
        assert await records.delete([KEY]) == 1
        assert most <= CHUNK
        assert await records.search(KEY, ["word7"], limit=5) == []
        await records.close()
        file = sqlite3.connect(tmp_path / "k.db")
        assert file.execute("SELECT count(*) FROM kompakt_index_docsize").fetchone() == (0,)
        file.close()

    asyncio.run(main())


def test_a_duplicate_reference_is_refused(tmp_path: Path) -> None:
    """A batch that would write over what is there is a conflict and changes nothing."""

    async def scenario() -> None:
        records = await open_sqlite(tmp_path / "sessions.db")
        head = await start(records)
        before = await everything(records, KEY)
        with pytest.raises(Conflict):
            await extend(records, head, [row(2)])
        assert await everything(records, KEY) == before
        await records.close()

    asyncio.run(scenario())


class TestLeases:
    def test_sqlite_counts_a_lease_from_the_end_of_the_wait(self, tmp_path: Path) -> None:
        """A lock that waited for another process's transaction has its whole lease before it, taken or renewed."""

        async def moved(records: SqliteRecords, work: Coroutine[Any, Any, Any]) -> tuple[Any, float, float]:
            other = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            task = asyncio.create_task(work)
            while not records._turn.locked():
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.02)
            ended = time.time()
            other.execute("COMMIT")
            done = await task
            expires = other.execute("SELECT expires FROM kompakt_locks").fetchone()[0]
            other.close()
            return done, expires, ended

        async def scenario() -> None:
            records = await open_sqlite(tmp_path / "s.db")
            assert isinstance(records, SqliteRecords)
            fence, expires, ended = await moved(records, records.acquire(KEY, "compact", lease=60))
            assert expires >= ended + 60
            kept, expires, ended = await moved(records, records.renew(KEY, fence, lease=90))
            assert kept and expires >= ended + 90
            await records.close()

        asyncio.run(scenario())

    @staticmethod
    def scenario(tmp_path: Path, work: Callable[[SqliteRecords, SqliteRecords], Coroutine[Any, Any, None]]) -> None:
        """Run something with two stores on one file."""

        async def opened() -> None:
            one, two = await open_sqlite(tmp_path / "s.db"), await open_sqlite(tmp_path / "s.db")
            assert isinstance(one, SqliteRecords) and isinstance(two, SqliteRecords)
            await work(one, two)
            await one.close()
            await two.close()

        asyncio.run(opened())

    def test_a_dead_lock_is_free_after_its_lease_though_the_clock_was_set_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The stored end is an hour away by the new clock. The lease is not renewed, so it ends anyway."""

        async def work(one: SqliteRecords, two: SqliteRecords) -> None:
            dead = await one.acquire(KEY, "compact", lease=0.2)
            monkeypatch.setattr("kompakt.store.sql.sqlite.time", clock_off_by(-3600))
            assert dead is not None and await two.acquire(KEY, "compact", lease=0.2) is None
            await asyncio.sleep(0.25)
            fence = await two.acquire(KEY, "compact", lease=0.2)
            assert fence is not None and fence.number > dead.number
            assert not await one.renew(KEY, dead, lease=0.2)

        self.scenario(tmp_path, work)

    def test_a_holder_that_renews_keeps_its_lock_though_the_clock_was_set(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A clock change in either direction neither ends a renewed lease nor prevents its renewal."""

        async def work(one: SqliteRecords, two: SqliteRecords) -> None:
            fence = await one.acquire(KEY, "compact", lease=30)
            assert fence is not None and await two.acquire(KEY, "compact", lease=30) is None
            for offset in (3600, -3600):
                monkeypatch.setattr("kompakt.store.sql.sqlite.time", clock_off_by(offset))
                assert await two.acquire(KEY, "compact", lease=30) is None
                assert await one.renew(KEY, fence, lease=30)
                assert await two.acquire(KEY, "compact", lease=30) is None

        self.scenario(tmp_path, work)


def clock_off_by(seconds: float) -> SimpleNamespace:
    """Return the module of clocks with the host's clock set."""
    return SimpleNamespace(time=lambda: time.time() + seconds, monotonic=time.monotonic)


@pytest.mark.skipif(sys.platform == "win32", reason="files have no modes there")
class TestFileModes:
    def test_a_new_file_is_private(self, tmp_path: Path) -> None:
        """Also the files beside it, for any umask."""

        async def write() -> dict[str, int]:
            records = await open_sqlite(tmp_path / "k.db")
            await start(records)
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
            await records.close()
            return modes

        before = os.umask(0)
        try:
            modes = asyncio.run(write())
        finally:
            os.umask(before)
        assert modes["k.db"] == 0o600 and len(modes) >= 2 and set(modes.values()) == {0o600}

    def test_a_file_that_exists_keeps_its_mode(self, tmp_path: Path) -> None:
        """An operator may share it on purpose."""
        path = tmp_path / "k.db"
        path.touch()
        path.chmod(0o660)

        async def write() -> None:
            await (await open_sqlite(path)).close()

        asyncio.run(write())
        assert path.stat().st_mode & 0o777 == 0o660
