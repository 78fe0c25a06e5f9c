"""No log and no error contains messages or credentials; an id is never interpreted."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from tests.contract.backends import STORES, Place
from tests.contract.redis import Server
from tests.faults.crashes import session_of
from tests.faults.test_faults import damage
from tests.session.builders import asked, turns

from kompakt.errors import KompaktError
from kompakt.session.store import Store, open_store
from kompakt.store.sql import sqlite

SAID = "zebra-sonata-said"
ID = "zebra-sonata-id"
KEY = b"zebra-sonata-key-of-32-bytes----"
PASSWORD = "zebra-sonata-password"
SECRETS = (SAID, ID, KEY.decode(), KEY.hex(), PASSWORD)

HOSTILE = [
    "a", "b", "a'; DROP TABLE kompakt_rows; --", 'a" OR "1"="1', "../../etc/passwd", "a\0b", "a\0", "\ud800",
    "\udfff\ud800", "}:head", "{a}:rows", "*", "a*", "%", "_", "a\nb", "a\r\nFLUSHALL\r\n", ":key", "%s", "$1",
    "x" * 5_000, " ", "ａ", "é", "e\u0301",
]  # fmt: skip
"""Ids and tenants that mean something somewhere."""


@pytest.fixture
def logs(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Log all there is to log; statements too."""
    loggers = [logging.getLogger(name) for name in ("sqlalchemy.engine", "sqlalchemy.pool", "asyncpg", "redis")]
    before = [logger.level for logger in loggers]
    caplog.set_level(logging.DEBUG)
    for logger in loggers:
        logger.setLevel(logging.INFO if "engine" in logger.name else logging.DEBUG)
    yield caplog
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


def leaks(logs: pytest.LogCaptureFixture) -> list[str]:
    """List the log lines that contain a secret."""
    texts = [record.getMessage() + (record.exc_text or "") for record in logs.records]
    return [text[:300] for text in texts if any(secret in text for secret in SECRETS)]


@pytest.mark.parametrize("store", STORES)
class TestLogs:
    def test_no_content_in_logs(self, store: str, tmp_path: Path, logs: pytest.LogCaptureFixture) -> None:
        place = Place(store, tmp_path)

        async def run() -> None:
            async with place.opened() as records:
                session = await Store(records, tenant=ID, key=KEY).session(ID)
                await session.append([asked(SAID), *turns(6, chars=900)], key=ID)
                await session.pin(SAID)
                await session.compact(2_500)
                await session.edit_summary(SAID * 500)
                await session.recall(SAID)
                await session.undo()
                await session.fork(ID + " fork", turn=2)
                await session.revert(3)
                assert await session.verify() == []
                await session.delete()

        asyncio.run(run())
        assert leaks(logs) == []

    def test_errors(self, store: str, tmp_path: Path, logs: pytest.LogCaptureFixture) -> None:
        """Neither the text of an error nor what a traceback shows beside it."""
        place = Place(store, tmp_path)

        async def start() -> None:
            async with place.opened() as records:
                await session_of(records, "a").append([asked(SAID), asked(SAID)], format="openai-chat")

        async def fail() -> None:
            async with place.opened() as records:
                await session_of(records, "a").export()

        asyncio.run(start())
        damage(place, lambda item: b"p{\xff" + item)
        with pytest.raises(KompaktError) as caught:
            asyncio.run(fail())
        assert not any(secret in shown(caught.value) for secret in SECRETS)
        assert leaks(logs) == []


def shown(error: BaseException) -> str:
    """Return what a log contains of an error: its text and the texts of its causes."""
    return "".join(line for line in traceback.format_exception(error) if not line.startswith("  File"))


class TestUrls:
    def test_a_password_is_never_shown(self, tmp_path: Path, logs: pytest.LogCaptureFixture) -> None:
        with Server("--requirepass", "another") as server:
            redis = server.url.replace("://", f"://:{PASSWORD}@")
            urls = [
                redis,
                redis.replace(f":{server.port}", ":1"),
                redis.replace("redis:", "gopher:"),
                f"redis://user:{PASSWORD}@[::1",
                f"redis://user:{PASSWORD}@127.0.0.1:{server.port}/x",
                Place("postgres", tmp_path)
                .url.replace("postgres@", f"postgres:{PASSWORD}@")
                .replace("kompakt_", "none_"),
                f"postgresql://user:{PASSWORD}@127.0.0.1:1/db",
                f"postgresql://user:{PASSWORD}@127.0.0.1:port/db",
            ]
            for url in urls:
                with pytest.raises(KompaktError) as caught:
                    asyncio.run(open_store(url))
                assert PASSWORD not in shown(caught.value), url.partition(":")[0]
                assert "\n" not in str(caught.value)
        assert leaks(logs) == []


@pytest.mark.parametrize("store", STORES)
class TestIds:
    def test_no_id_reaches_another_session(self, store: str, tmp_path: Path) -> None:
        """Ids and tenants of any bytes: each pair is a separate session, listed only under its tenant."""
        place = Place(store, tmp_path)
        pairs = [(tenant, id) for tenant in ("", *HOSTILE[:9]) for id in HOSTILE[:6]] + [("t", id) for id in HOSTILE]

        async def run() -> None:
            async with place.opened() as records:
                names: dict[tuple[str, str], list[str]] = {}
                for number, (tenant, id) in enumerate(pairs):
                    session = await Store(records, tenant=tenant).session(id)
                    assert not await session.exists()
                    names[tenant, id] = await session.append([asked(f"only {number}")], format="openai-chat", key=id)
                for number, (tenant, id) in enumerate(pairs):
                    session = await Store(records, tenant=tenant).session(id)
                    assert await session.export() == [asked(f"only {number}")]
                    other = names[pairs[number - 1]]
                    assert await records.named(session.key, other) == {}
                for tenant in {tenant for tenant, _ in pairs}:
                    listed = [session.id async for session in Store(records, tenant=tenant).sessions()]
                    assert sorted(listed) == sorted(id for of, id in pairs if of == tenant)
                gone = Store(records, tenant=HOSTILE[2])
                assert await gone.purge() == 6
                left = [pair for pair in pairs if pair[0] != HOSTILE[2]]
                for tenant, id in left:
                    assert await (await Store(records, tenant=tenant).session(id)).exists()

        asyncio.run(run())


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
class TestStatements:
    def test_ids_are_bound(self, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """No SQL statement contains an id, a tenant, a batch key or the text of a message."""
        place, statements = Place(store, tmp_path), list[str]()

        def noted(_: Any, __: Any, statement: str, *___: Any) -> None:
            statements.append(statement)

        def compiled(statement: Any, columns: tuple[str, ...]) -> str:
            statements.append(written(statement, columns))
            return statements[-1]

        written = sqlite._compiled
        monkeypatch.setattr(sqlite, "_compiled", compiled)

        async def run() -> None:
            async with place.opened() as records:
                event.listen(records.engine.sync_engine, "before_cursor_execute", noted)  # type: ignore[attr-defined]
                session = await Store(records, tenant=ID).session(ID)
                await session.append([asked(SAID), *turns(4)], key=ID)
                await session.request_compaction(instructions=SAID)
                await session.compact(1_500)
                await session.recall(f"{SAID} OR 1=1")
                await session.delete()

        asyncio.run(run())
        assert len(statements) > 20
        assert not [text for text in statements if any(secret in text for secret in SECRETS)]
