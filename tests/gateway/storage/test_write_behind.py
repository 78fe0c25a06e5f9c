"""The write-behind queue: it writes the newest request of each branch and never grows too large."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

from hypothesis import given
from hypothesis import strategies as st

from kompakt.errors import StoreUnavailable
from kompakt.gateway.http.metrics import Metrics
from kompakt.gateway.request.history import HashChain, HashChains, root_of
from kompakt.gateway.storage.recorder import WriteBehind
from kompakt.gateway.storage.storage import GatewayStorage
from kompakt.gateway.tenants import Owner
from kompakt.session.store import open_store

ROOT = root_of("somebody", "openai-chat", "1")
PLACE = ("", "session")
OWNER = Owner("", "")


def chain_of(*words: str) -> HashChain:
    messages = [{"role": "user", "content": word} for word in words]
    chain = HashChains().read(json.dumps({"messages": messages}).encode(), "openai-chat", ROOT)
    assert chain is not None
    return chain


class Book:
    """Records writes, each after a delay."""

    def __init__(self, seconds: float = 0) -> None:
        self.written: list[str] = []
        self._seconds = seconds

    def writing(self, what: str) -> Callable[[], Awaitable[None]]:
        async def write() -> None:
            await asyncio.sleep(self._seconds)
            self.written.append(what)

        return write


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), max_size=12))
def test_the_longest_of_every_branch_is_written(given: list[list[str]]) -> None:
    """For each queued request, one that starts with it is written."""

    async def run() -> list[str]:
        book, queue = Book(), WriteBehind(on_failure=lambda error: None)
        for words in given:
            queue.put(PLACE, chain_of(*words), book.writing("".join(words)))
        await queue.flush()
        assert queue.load == 0
        return book.written

    written = asyncio.run(run())
    assert all(any(one.startswith("".join(words)) for one in written) for words in given)
    assert len(set(written)) == len(written)


def test_new_requests_wait_while_the_queue_is_full() -> None:
    async def run() -> tuple[float, int]:
        book, queue = Book(0.002), WriteBehind(on_failure=lambda error: None, max_writes=10)
        most = 0.0
        for number in range(60):
            await queue.wait_for_room()
            queue.put(("", f"session {number}"), chain_of(f"{number}"), book.writing(f"{number}"))
            most = max(most, queue.load)
        await queue.flush()
        return most, len(book.written)

    assert asyncio.run(run()) == (1, 60)


def test_queued_bytes_count_until_they_are_written() -> None:
    async def run() -> None:
        book, queue = Book(0.001), WriteBehind(on_failure=lambda error: None, max_bytes=11_000)
        queue.put_other(book.writing("other"), 4_000)
        queue.put(PLACE, chain_of("a" * 2_000), book.writing("short"))
        queue.put(PLACE, chain_of("a" * 2_000, "b" * 3_500), book.writing("long"))
        assert 0.9 < queue.load < 1  # the longer one took the place of the other
        queue.put_other(book.writing("last"), 4_000)
        assert queue.load > 1
        await queue.wait_for_room()
        assert queue.load < 1
        await queue.flush()
        assert (queue.load, sorted(book.written)) == (0, ["last", "long", "other"])

    asyncio.run(run())


def test_a_failed_write_is_reported_and_removed() -> None:
    async def run() -> list[str]:
        reported: list[str] = []
        queue, book = WriteBehind(on_failure=lambda error: reported.append(str(error)), max_writes=2), Book()

        async def fail() -> None:
            raise StoreUnavailable("away")

        for number in range(6):
            await queue.wait_for_room()
            queue.put_other(fail if number % 2 else book.writing(f"{number}"), 1)
        await queue.flush()
        assert queue.load == 0
        return [*book.written, *reported]

    assert asyncio.run(run()) == ["0", "2", "4", "away", "away", "away"]


def test_a_session_that_another_process_deletes_stays_deleted() -> None:
    """A request that is queued then does not write it again; the next request does."""
    first, second, third = chain_of("a"), chain_of("a", "b"), chain_of("a", "b", "c")

    async def run() -> list[bool]:
        found: list[bool] = []
        async with await open_store("memory:") as store:
            one, other = GatewayStorage(store, Metrics()), GatewayStorage(store, Metrics())
            await one.record(OWNER, first, (await one.match(OWNER, first, named=None)).branch)
            match = await one.match(OWNER, second, named=None)
            one.record_later(OWNER, second, match.branch)
            session = await other.store_of(OWNER).session(match.branch.session)
            await session.delete()
            await one.flush()
            found.append(await session.exists())
            one.record_later(OWNER, third, (await one.match(OWNER, third, named=None)).branch)
            await one.flush()
            found.append(await session.exists())
        return found

    assert asyncio.run(run()) == [False, True]
