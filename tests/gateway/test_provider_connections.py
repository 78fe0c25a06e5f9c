"""Connections to providers are used again, and only while they are sound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpcore
import httpx
import pytest

from kompakt.gateway.upstream import ConnectionPool, ProviderTransport

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CLOSING = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"


class Provider:
    """Answers each request with given bytes, after a delay."""

    def __init__(self, answer: bytes = ANSWER, delay: float = 0) -> None:
        self.answer, self.delay = answer, delay
        self.connections, self.open = 0, 0
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections, self.open = self.connections + 1, self.open + 1
        self._writers.append(writer)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await asyncio.sleep(self.delay)
                writer.write(self.answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.close()


def run(
    provider: Provider,
    scenario: Callable[[httpx.AsyncClient, ConnectionPool, str], Awaitable[None]],
    *,
    max_idle: int = 100,
) -> None:
    async def body() -> None:
        server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        transport = ProviderTransport(max_idle=max_idle)
        async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
            pool = transport._pool
            assert isinstance(pool, ConnectionPool)
            await scenario(client, pool, url)
        for _ in range(100):
            await asyncio.sleep(0.01 if provider.open else 0)
        assert provider.open == 0, "closing the client closes every connection"
        server.close()

    asyncio.run(body())


def test_a_connection_is_used_again() -> None:
    provider = Provider()

    async def scenario(client: httpx.AsyncClient, pool: ConnectionPool, url: str) -> None:
        for _ in range(5):
            assert (await client.get(url)).text == "ok"
        assert (provider.connections, pool.idle) == (1, 1)

    run(provider, scenario)


@pytest.mark.parametrize("answer", [ANSWER, CLOSING], ids=["silently", "announced"])
def test_a_connection_that_the_provider_closed_is_not_used_again(answer: bytes) -> None:
    provider = Provider(answer)

    async def scenario(client: httpx.AsyncClient, pool: ConnectionPool, url: str) -> None:
        for _ in range(3):
            assert (await client.get(url)).text == "ok"
            provider.hang_up()
            await asyncio.sleep(0.01)
        assert provider.connections == 3 and pool.idle <= 1

    run(provider, scenario)


def test_an_answer_that_is_not_read_to_its_end_closes_its_connection() -> None:
    """What is left of the answer would be read as the start of the next one."""
    provider = Provider(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\nok")

    async def scenario(client: httpx.AsyncClient, pool: ConnectionPool, url: str) -> None:
        async with client.stream("GET", url) as response:
            assert await anext(response.aiter_raw()) == b"ok"
        assert pool.idle == 0

    run(provider, scenario)


def test_a_cancelled_request_closes_its_connection() -> None:
    provider = Provider(delay=0.3)

    async def scenario(client: httpx.AsyncClient, pool: ConnectionPool, url: str) -> None:
        with pytest.raises(httpx.ReadTimeout):
            await client.get(url, timeout=0.05)
        waiting = asyncio.create_task(client.get(url))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert pool.idle == 0 and not pool._used

    run(provider, scenario)


def test_an_unreachable_provider_is_a_connect_error() -> None:
    async def scenario(client: httpx.AsyncClient, pool: ConnectionPool, url: str) -> None:
        with pytest.raises(httpx.ConnectError):
            await client.get("http://127.0.0.1:9/")
        assert pool.idle == 0 and not pool._used

    run(Provider(), scenario)


def test_idle_connections_are_limited() -> None:
    provider = Provider(delay=0.05)

    async def scenario(client: httpx.AsyncClient, pool: ConnectionPool, url: str) -> None:
        await asyncio.gather(*(client.get(url) for _ in range(20)))
        assert (provider.connections, pool.idle) == (20, 5)

    run(provider, scenario, max_idle=5)


def test_the_cost_of_a_request_does_not_depend_on_other_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    provider, asked = Provider(delay=0.05), list[object]()
    has_expired = httpcore.AsyncHTTPConnection.has_expired

    def counted(connection: httpcore.AsyncHTTPConnection) -> bool:
        asked.append(connection)
        return has_expired(connection)

    async def scenario(client: httpx.AsyncClient, pool: ConnectionPool, url: str) -> None:
        await asyncio.gather(*(client.get(url) for _ in range(50)))
        assert pool.idle == 50
        monkeypatch.setattr(httpcore.AsyncHTTPConnection, "has_expired", counted)
        for _ in range(10):
            await client.get(url)
        assert len(asked) == 20

    run(provider, scenario)


def test_a_connection_that_comes_back_while_another_is_closed_stays_known() -> None:
    """Two tasks close expired connections of a provider; the second forgets its empty list while the first waits."""
    closing, may_close = asyncio.Event(), asyncio.Event()

    class Connection(httpcore.AsyncHTTPConnection):
        def has_expired(self) -> bool:
            return True

        def is_idle(self) -> bool:
            return True

        def is_closed(self) -> bool:
            return False

        async def aclose(self) -> None:
            closing.set()
            await may_close.wait()

    async def main() -> None:
        origin = httpcore.Origin(b"http", b"provider.invalid", 80)
        key = (origin.scheme, origin.host, origin.port)
        pool = ConnectionPool(httpx.create_ssl_context(), max_idle=10)
        await pool.release(Connection(origin), key)
        first = asyncio.create_task(pool._close_expired())
        await closing.wait()
        await pool._close_expired()
        await pool.release(Connection(origin), key)
        may_close.set()
        await first
        assert pool.idle == 1

    asyncio.run(main())
