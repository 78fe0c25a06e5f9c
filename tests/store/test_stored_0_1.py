"""Stores written by version 0.1: same messages, same projection, no problems found by ``verify``.

`stored_0_1/` holds seven sessions as each back end kept them, plain and encrypted: compacted twice, compacted on
request (Anthropic), undone, forked, reverted, with a pending request, and with an edited summary. `expected.json.gz` is
what version 0.1 itself returned for them.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as driver
from tests.contract import postgres
from tests.contract.redis import Server

import kompakt

STORED = Path(__file__).parent / "stored_0_1"
KEY = bytes(range(32))
BACKENDS = ("sqlite", "postgres", "redis")


def _sqlite(name: str, folder: Path) -> str:
    (folder / "sessions.db").write_bytes(gzip.decompress((STORED / f"{name}.sqlite.gz").read_bytes()))
    return f"sqlite:///{folder / 'sessions.db'}"


def _postgres(name: str, folder: Path) -> str:
    url = postgres.database()
    dump = folder / "dump.sql"
    dump.write_bytes(gzip.decompress((STORED / f"{name}.sql.gz").read_bytes()))
    dump.chmod(0o644)
    postgres.load(url, dump)
    return url


def _redis(name: str, server: Server) -> str:
    client = driver.Redis.from_url(server.url)
    prefix = ""
    for key64, kind, value, _ in json.loads(gzip.decompress((STORED / f"{name}.json.gz").read_bytes())):
        key = base64.b64decode(key64)
        prefix = key.decode().split(":")[0]
        if kind == "string":
            client.set(key, base64.b64decode(value))
        elif kind == "hash":
            client.hset(key, mapping={base64.b64decode(name): base64.b64decode(inner) for name, inner in value})
        elif kind == "list":
            client.rpush(key, *map(base64.b64decode, value))
        elif kind == "set":
            client.sadd(key, *map(base64.b64decode, value))
        else:
            client.zadd(key, {base64.b64decode(member): score for member, score in value})
    client.close()
    return f"{server.url}?prefix={prefix}"


@pytest.fixture(params=[f"{backend}{suffix}" for backend in BACKENDS for suffix in ("", "-encrypted")])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, bytes | None]]:
    """Restore one store; give its address and key."""
    name: str = request.param
    key = KEY if name.endswith("-encrypted") else None
    if name.startswith("redis"):
        with Server() as server:
            yield _redis(name, server), key
    elif name.startswith("postgres"):
        yield _postgres(name, tmp_path), key
    else:
        yield _sqlite(name, tmp_path), key


async def _read(url: str, key: bytes | None) -> dict[str, dict[str, Any]]:
    store = await kompakt.open_store(url, key=key)
    try:
        return {
            session.id: {
                "full": await session.export(),
                "model": await session.export(view="model"),
                "projected": json.loads(json.dumps((await session.project()).payload)),
                "tokens": await session.count(),
                "verify": await session.verify(),
                "pending": sorted(await session.pending()),
                "compactions": len(await session.compactions()),
            }
            async for session in store.sessions()
        }
    finally:
        await store.close()


def test_sessions_of_0_1_read_the_same(stored: tuple[str, bytes | None]) -> None:
    """Every session gives the bytes that version 0.1 gave."""
    expected = json.loads(gzip.decompress((STORED / "expected.json.gz").read_bytes()))
    found = asyncio.run(_read(*stored))
    assert found.keys() == expected.keys()
    for id, session in found.items():
        assert session == {name: expected[id][name] for name in session}, id


def test_sessions_of_0_1_can_be_continued(stored: tuple[str, bytes | None]) -> None:
    """They take new messages, compact again, and recall what 0.1 hid."""

    async def scenario() -> None:
        url, key = stored
        store = await kompakt.open_store(url, key=key)
        session = await store.session("compacted")
        await session.append([{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Check part 5."}])
        assert (await session.compact(3_000, model="gpt-4o")).changed
        assert "value_5_7 = compute(7)" in (await session.recall("value_5_7 compute")).text
        assert await session.verify() == []
        await store.close()

    asyncio.run(scenario())
