"""Damaged stores: for any file contents callers get a ``KompaktError``, and intact sessions stay readable."""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
import time
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.session.builders import run, turns
from typer.testing import CliRunner

from kompakt.cli import app
from kompakt.errors import KompaktError, StoreDamaged, StoreError
from kompakt.session import compaction, lock, rows, session, timeline
from kompakt.session.store import Store, open_store
from kompakt.store.sql import sqlite

COLUMNS = {
    "heads": ("envelope", "rows", "events", "tip"),
    "rows": ("seq", "kind", "item", "note", "blobs"),
    "events": ("kind", "tip", "data", "blobs"),
    "blobs": ("hash", "data"),
    "schema": ("version",),
}

VALUES: tuple[Any, ...] = (
    b"\xff\xfe", b"p[]", b"p{}", b'p{"$kompakt-blob":[1]}', b'p{"role":7,"content":{"a":[]}}', "marker", -1, 2**62,
)  # fmt: skip

FLIPS = 60


def write_store(path: Path) -> None:
    """Write two sessions into one file: one compacted, one with a request to compact. The bytes are always the same."""
    numbers = count(1)

    def token_hex(size: int) -> str:
        return f"{next(numbers):0{2 * size}x}"

    async def work() -> None:
        async with await open_store(f"sqlite:///{path}") as store:
            for id in ("one", "two"):
                session = await store.session(id)
                await session.save([{"role": "user", "content": "long " * 1_200}, *turns(5, chars=150)])
            await (await store.session("one")).compact(800)
            await (await store.session("two")).request_compaction()
            await store.scrub()

    stopped = SimpleNamespace(time=lambda: 1.7e9, monotonic=time.monotonic, perf_counter=lambda: 0.0)
    with pytest.MonkeyPatch.context() as patch:
        for module in (compaction, rows, session, sqlite):
            patch.setattr(module, "time", stopped)
        for module in (rows, timeline):
            patch.setattr(module, "token_hex", token_hex)
        # A renewal of the lock is another transaction, which SQLite counts in the file.
        patch.setitem(lock.hold.__wrapped__.__kwdefaults__, "lease", 600.0)  # type: ignore[attr-defined]
        run(work())


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an intact store."""
    path = tmp_path_factory.mktemp("sound") / "sessions.db"
    write_store(path)
    return path


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Path:
    """Return a copy of the store to damage."""
    return Path(shutil.copy(sound, tmp_path / "sessions.db"))


def change(path: Path, statement: str, *values: Any) -> None:
    """Change the file without the store."""
    with sqlite3.connect(path) as connection:
        connection.execute(statement, values)
    connection.close()


async def use(path: Path) -> list[KompaktError]:
    """Read everything in a store and return the errors; any other exception is raised."""
    errors: list[KompaktError] = []

    async def attempt(call: Callable[[], Awaitable[object]]) -> None:
        try:
            await call()
        except KompaktError as error:
            errors.append(error)

    async def whole() -> None:
        async with await open_store(f"sqlite:///{path}") as store:
            await attempt(lambda: listed(store))
            for id in ("one", "two"):
                session = await store.session(id)
                for call in (session.compactions, session.project, session.export, session.verify, session.pending):
                    await attempt(call)
                for query in ("parser", "k1", "long"):
                    await attempt(lambda session=session, query=query: session.recall(query))
            await attempt(lambda: store.recall("long"))

    await attempt(whole)
    return errors


async def listed(store: Store) -> list[str]:
    """List the ids of the sessions."""
    return sorted([session.id async for session in store.sessions()])


class TestBytes:
    def test_the_file_to_damage_is_always_the_same(self, sound: Path, tmp_path: Path) -> None:
        """The flipped bytes below are chosen by position, so that a failure can be repeated."""
        write_store(tmp_path / "again.db")
        assert (tmp_path / "again.db").read_bytes() == sound.read_bytes()

    def test_flipped_bytes_raise_only_kompakt_errors(self, sound: Path, tmp_path: Path) -> None:
        data = sound.read_bytes()
        written = [at for at, byte in enumerate(data) if byte]
        for number in range(FLIPS):
            at = written[number * len(written) // FLIPS]
            path = tmp_path / f"{number}.db"
            path.write_bytes(data[:at] + bytes([data[at] ^ (1 << number % 8)]) + data[at + 1 :])
            run(use(path))

    @pytest.mark.parametrize("at", [0, 16, 18, 28, 40, 56, 100, 101, 103, 105, 110])
    def test_a_damaged_file_header_raises_only_kompakt_errors(self, at: int, sound: Path, tmp_path: Path) -> None:
        data = bytearray(sound.read_bytes())
        data[at] ^= 0xFF
        path = tmp_path / "sessions.db"
        path.write_bytes(data)
        run(use(path))


class TestValues:
    @pytest.mark.parametrize(
        ("table", "column"), [(table, column) for table, columns in COLUMNS.items() for column in columns]
    )
    def test_any_value_in_any_column_raises_only_kompakt_errors(
        self, table: str, column: str, sound: Path, tmp_path: Path
    ) -> None:
        for number, value in enumerate(VALUES):
            path = Path(shutil.copy(sound, tmp_path / f"{number}.db"))
            first = f"(SELECT min(rowid) FROM kompakt_{table})"
            change(path, f"UPDATE OR IGNORE kompakt_{table} SET {column} = ? WHERE rowid = {first}", value)
            run(use(path))

    @pytest.mark.parametrize("format", ["", "nonsense", "anthropic", "gemini", "bedrock", "openai-responses"])
    def test_a_changed_format_is_reported_as_damage(self, format: str, copy: Path) -> None:
        change(copy, "UPDATE kompakt_heads SET format = ?", format)
        errors = run(use(copy))
        assert all(isinstance(error, StoreError) for error in errors)
        if format in ("", "nonsense"):
            assert any(isinstance(error, StoreDamaged) and "format" in str(error) for error in errors)


class TestLists:
    DAMAGE = pytest.mark.parametrize(
        ("column", "value"),
        [("id", b"\xff\xfe"), ("created", 1e300), ("rows", "x"), ("envelope", 7), ("turn", -1)],
    )

    @DAMAGE
    def test_one_damaged_session_is_skipped_and_logged(
        self, column: str, value: Any, copy: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        change(copy, f"UPDATE kompakt_heads SET {column} = ? WHERE id = ?", value, b"one")
        with sqlite3.connect(copy) as connection:
            (key,) = connection.execute("SELECT key FROM kompakt_heads WHERE id != ?", (b"two",)).fetchone()
        connection.close()

        async def work() -> None:
            async with await open_store(f"sqlite:///{copy}") as store:
                assert await listed(store) == ["two"]
                assert [head.id for head in await store.records.heads("", limit=1)] == [b"two"]
                with pytest.raises(StoreDamaged, match=key):
                    await store.purge()

        with caplog.at_level(logging.WARNING, "kompakt.store"):
            run(work())
        assert key in caplog.text
        shown = CliRunner().invoke(app, ["session", "list", "--json", "--store", f"sqlite:///{copy}"])
        assert shown.exit_code == 0, shown.output
        assert [line["id"] for line in json.loads(shown.stdout)] == ["two"]

    def test_a_session_whose_text_is_not_unicode_does_not_break_the_list(self, copy: Path) -> None:
        change(copy, "UPDATE kompakt_heads SET format = CAST(x'FF41' AS TEXT) WHERE id = ?", b"one")

        async def work() -> None:
            async with await open_store(f"sqlite:///{copy}") as store:
                assert await listed(store) == ["one", "two"]
                assert (await (await store.session("two")).project()).payload
                with pytest.raises(StoreDamaged, match="format"):
                    await (await store.session("one")).project()

        run(work())


class TestRecall:
    @pytest.mark.parametrize("damaged", ["one", "two"])
    def test_recall_skips_a_damaged_session_and_reports_it(
        self, damaged: str, copy: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        change(copy, "UPDATE kompakt_heads SET format = 'nonsense' WHERE id = ?", damaged.encode())

        async def work() -> None:
            async with await open_store(f"sqlite:///{copy}") as store:
                assert "long" in (await store.recall("long")).text
                nothing = await store.recall("heron")
                assert not nothing
                assert f"skipped: {damaged!r}" in nothing.text

        with caplog.at_level(logging.WARNING, "kompakt.store"):
            run(work())
        assert f"session {damaged!r} skipped in recall, it is damaged" in caplog.text

    def test_recall_in_the_damaged_session_itself_raises(self, copy: Path) -> None:
        change(copy, "UPDATE kompakt_heads SET format = 'nonsense' WHERE id = ?", b"one")

        async def work() -> None:
            async with await open_store(f"sqlite:///{copy}") as store:
                with pytest.raises(StoreDamaged):
                    await (await store.session("one")).recall("long")

        run(work())
