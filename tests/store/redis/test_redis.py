"""Redis: which servers are rejected, how a URL is parsed, how errors are translated."""

from __future__ import annotations

import socket
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.contract.builders import batch, digest, event, everything, extend, new_head, noise, plain, row, start
from tests.contract.redis import Server, command, free_port, on, server, shared

from kompakt.errors import StoreDamaged, StoreUnavailable, StoreVersion, UsageError
from kompakt.store.redis.records import RedisRecords

SECRET = "hunter2-s3cret"


async def nothing(_: RedisRecords) -> None:
    """Do nothing with an opened store."""


def message_of(error: BaseException) -> str:
    """Return the text of an error and of its causes, as a traceback shows it."""
    return "".join(traceback.format_exception(error))


@pytest.fixture
def url() -> str:
    return server()


class TestRefused:
    def test_a_server_without_persistence(self) -> None:
        """It would lose what it acknowledged; who says that this is wanted gets in."""
        with Server("--appendonly", "no") as volatile:
            with pytest.raises(StoreUnavailable, match=r"appendonly yes.*persistence=none"):
                on(volatile.url, nothing)
            on(f"{volatile.url}?persistence=none", start)
            command(volatile.url, "CONFIG", "SET", "save", "60 1")
            with pytest.raises(StoreUnavailable, match="append-only"):
                on(volatile.url, nothing)

    def test_a_server_that_evicts(self) -> None:
        """A server that drops keys when memory is short is no store."""
        with Server("--maxmemory-policy", "allkeys-lru") as cache:
            with pytest.raises(StoreUnavailable, match=r"'allkeys-lru'.*noeviction.*persistence=none"):
                on(cache.url, nothing)
            on(f"{cache.url}?persistence=none", nothing)

    def test_a_cluster(self) -> None:
        """No script spans its servers."""
        with (
            Server("--cluster-enabled", "yes", "--cluster-port", str(free_port())) as cluster,
            pytest.raises(StoreUnavailable, match="cluster"),
        ):
            on(f"{cluster.url}?persistence=none", nothing)

    def test_a_newer_schema_is_refused(self, url: str) -> None:
        """Nothing is read or written in a place that a newer kompakt made."""
        prefix = url.partition("=")[2]
        on(url, nothing)
        assert command(url, "GET", f"{prefix}:schema") == b"2"
        command(url, "SET", f"{prefix}:schema", "3")
        with pytest.raises(StoreVersion, match="schema 3"):
            on(url, nothing)
        command(url, "SET", f"{prefix}:schema", "one")
        with pytest.raises(StoreDamaged):
            on(url, nothing)

    def test_an_older_schema_is_upgraded(self, url: str) -> None:
        """Existing data stays, and an old version of kompakt, which would not delete notes, is locked out."""
        prefix = url.partition("=")[2]
        head = on(url, start)
        command(url, "SET", f"{prefix}:schema", "1")
        assert on(url, lambda records: records.head(head.key)) == head
        assert command(url, "GET", f"{prefix}:schema") == b"2"

    def test_a_user_without_rights(self) -> None:
        """A rejection by the server is reported without the data that was sent; CONFIG is not needed."""
        with Server() as guarded:
            command(guarded.url, "ACL", "SETUSER", "plain", "on", f">{SECRET}", "~*", "+@all", "-config")
            command(
                guarded.url, "ACL", "SETUSER", "reader", "on", f">{SECRET}", "~*", "+@read", "+info", "+@connection"
            )
            place = guarded.url.removeprefix("redis://")
            on(f"redis://plain:{SECRET}@{place}", start)
            on(f"redis://reader:{SECRET}@{place}", nothing)
            with pytest.raises(StoreUnavailable, match="permit") as caught:
                on(f"redis://reader:{SECRET}@{place}", lambda records: start(records, "other"))
            assert SECRET not in message_of(caught.value)


class TestUrls:
    @pytest.mark.parametrize(
        "url",
        [
            f"http://:{SECRET}@host/0",
            f"redis://:{SECRET}@/0",
            f"redis://:{SECRET}/x@host:6379/0",
            f"redis://:{SECRET}@host:6379/zero",
            f"redis://:{SECRET}@host/0?decode_responses=true",
            f"redis://:{SECRET}@host/0?persistence=maybe",
            f"redis://:{SECRET}@host/0?prefix=",
            f"redis://:{SECRET}@host/0?prefix=a%7Bb",
            f"redis://:{SECRET}@host/0?socket_timeout=long",
            f"redis://:{SECRET}@host/0?max_connections=1.5",
            f"unix://:{SECRET}@host/redis.sock",
            f"unix://:{SECRET}@/",
            f"unix://:{SECRET}@/redis.sock?db=zero",
            f"unix://:{SECRET}@/redis.sock?decode_responses=true",
        ],
    )
    def test_invalid_urls(self, url: str) -> None:
        """A URL is read whole or refused, without showing its password."""
        with pytest.raises(UsageError) as caught:
            on(url, nothing)
        assert SECRET not in message_of(caught.value)

    def test_a_server_on_a_unix_socket(self) -> None:
        """It is opened by the path of its socket; the database, password and other parameters count."""
        with Server("--unixsocket", "redis.sock", "--requirepass", SECRET) as local:
            socket_url = f"unix://:{SECRET}@{local.directory}/redis.sock?db=3&prefix=mine"

            async def scenario(records: RedisRecords) -> str:
                return (await start(records)).key

            key = on(socket_url, scenario)
            tcp = local.url.replace("redis://", f"redis://:{SECRET}@").removesuffix("/0")
            assert on(f"{tcp}/3?prefix=mine", lambda records: records.head(key)) is not None
            with pytest.raises(StoreUnavailable, match=r"^unix:///.*redis.sock\?db=3 ") as caught:
                on(socket_url.replace(SECRET, "wrong"), nothing)
            assert "wrong" not in str(caught.value)

    def test_prefixes_are_independent(self, url: str) -> None:
        """Two installations on one server are separate; every key starts with the prefix."""

        async def scenario(records: RedisRecords) -> str:
            return (await start(records)).key

        key = on(url, scenario)
        assert on(f"{url}x", lambda records: records.head(key)) is None
        prefix = url.partition("=")[2]
        with Server() as alone:
            on(f"{alone.url}?prefix={prefix}", scenario)
            keys = command(alone.url, "KEYS", "*")
            assert len(keys) > 5
            assert all(name.startswith(f"{prefix}:".encode()) for name in keys)

    def test_keys_of_a_session_share_a_hash_tag(self) -> None:
        """They share a hash tag; no tenant's name and no id is in the name of a key."""
        with Server() as alone:
            head = new_head("the id", "the tenant")
            blobs = {digest("a"): b"a"}
            made = batch(head, [row(1, blobs=list(blobs))], [event(1)], blobs=blobs)
            on(alone.url, lambda records: records.commit(made, seen=None))
            names = [name.decode() for name in command(alone.url, "KEYS", "*")]
            tags = {name.split("{")[1].split("}")[0] for name in names if "{" in name}
            assert head.key in tags and len(tags) == 2
            assert not any("the id" in name or "the tenant" in name for name in names)


class TestErrors:
    def test_an_unreachable_server(self) -> None:
        """The place is named, the password is not."""
        port = free_port()
        with pytest.raises(StoreUnavailable, match=f"redis://127.0.0.1:{port}/3 cannot be reached") as caught:
            on(f"redis://user:{SECRET}@127.0.0.1:{port}/3", nothing)
        assert SECRET not in message_of(caught.value)

    def test_wrong_password(self) -> None:
        """Neither the right nor the wrong nor a missing password is shown."""
        with Server("--requirepass", SECRET) as guarded:
            place = guarded.url.removeprefix("redis://")
            on(f"redis://:{SECRET}@{place}", start)
            for wrong in (f"redis://:{SECRET}x@{place}", guarded.url):
                with pytest.raises(StoreUnavailable, match="password") as caught:
                    on(wrong, nothing)
                assert SECRET not in message_of(caught.value)

    def test_no_answer(self) -> None:
        """A server that accepts the connection and does not answer times out as the URL says."""
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen(50)
            address = f"redis://127.0.0.1:{silent.getsockname()[1]}/0?socket_timeout=0.05"
            with pytest.raises(StoreUnavailable, match="in time"):
                on(address, nothing)

    def test_no_memory(self) -> None:
        """A batch that finds no room is refused whole; what was there can be read, and deleting makes room."""
        with Server() as small:

            async def scenario(records: RedisRecords) -> None:
                head = await start(records, rows=3)
                before = await everything(records, head.key)
                command(small.url, "CONFIG", "SET", "maxmemory", "1")
                made = batch(head, [row(4, item=noise(1000))], [event(1)], blobs={digest("a"): noise(1000, 1)})
                with pytest.raises(StoreUnavailable, match="out of memory"):
                    await records.commit(made, seen=head)
                with pytest.raises(StoreUnavailable, match="out of memory"):
                    await records.acquire(head.key, "compact", lease=1)
                assert await everything(records, head.key) == before
                assert await records.rows_at(head.key, [4]) == []
                assert await records.blobs("tenant", [digest("a")]) == {}
                assert await records.delete([head.key]) == 1

            on(small.url, scenario)

    def test_a_replica(self, url: str) -> None:
        """It can be read from, and says that it cannot be written to."""
        head = on(url, start)
        command(url, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
        with Server("--replicaof", f"127.0.0.1 {shared().port}") as replica:
            mirror = url.replace(str(shared().port), str(replica.port))
            deadline = time.monotonic() + 30
            while command(mirror, "INFO", "replication")["master_link_status"] != "up":
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert on(mirror, lambda records: records.head(head.key)) == head
            with pytest.raises(StoreUnavailable, match="replica"):
                on(mirror, lambda records: extend(records, head, plain(head, 1)))

    @pytest.mark.parametrize("part", ["head", "rows", "names", "turns", "events", "batches", "blobs", "fences"])
    def test_a_key_of_another_type(self, url: str, part: str) -> None:
        """An overwritten key is reported as damage, and nothing of the batch is written."""
        prefix = url.partition("=")[2]

        async def scenario(records: RedisRecords) -> None:
            head = await start(records)
            command(url, "DEL", f"{prefix}:{{{head.key}}}:{part}")
            command(url, "SET", f"{prefix}:{{{head.key}}}:{part}", "x")
            fence = await records.acquire(head.key, "compact", lease=60) if part != "fences" else None
            made = batch(head, [row(3, blobs=[digest("a")])], [event(1)], blobs={digest("a"): b"a"})
            with pytest.raises(StoreDamaged):
                await records.commit(made, seen=head, fence=fence)
            assert part == "rows" or await records.rows_at(head.key, [3]) == []
            assert await records.blobs("tenant", [digest("a")]) == {}
            command(url, "DEL", f"{prefix}:{{{head.key}}}:{part}")

        on(url, scenario)

    def test_values_that_cannot_be_read(self, url: str) -> None:
        """The session and the place are named, the bytes are not shown."""
        prefix = url.partition("=")[2]

        async def scenario(records: RedisRecords) -> None:
            head = await start(records)
            head = await extend(records, head, [], [event(1)])
            own = f"{prefix}:{{{head.key}}}:"
            broken: list[tuple[list[str], Callable[[], Awaitable[Any]], str]] = [
                (["rows", "2"], lambda: records.rows(head.key, upto=9, limit=9), "row 2"),
                (["rows", "2"], lambda: records.rows_at(head.key, [1, 2]), "row 2"),
                (["events", "1"], lambda: records.events(head.key), "event 1"),
                (["names", "m00001"], lambda: records.named(head.key, ["m00001"]), "number"),
                (["head", "value"], lambda: records.head(head.key), "head"),
                (["head", "value"], lambda: records.heads("tenant", strict=True), "head"),
                (["head", "rows"], lambda: records.rows(head.key, upto=9, limit=9), "number"),
            ]
            for (part, field), call, said in broken:
                command(url, "HSET", f"{own}{part}", field, SECRET)
                with pytest.raises(StoreDamaged, match=said) as caught:
                    await call()
                assert SECRET not in message_of(caught.value)

        on(url, scenario)
