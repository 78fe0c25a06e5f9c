"""The write-behind queue: it writes the newest request of each branch and never grows too large."""

from __future__ import annotations

import asyncio
import gc
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.payloads import ANSWERS, HEADERS, PATHS, history, request
from tests.gateway.stub_gateway import served, settings

from kompakt.errors import StoreUnavailable
from kompakt.gateway.concurrency import with_timeout
from kompakt.gateway.http.metrics import Metrics
from kompakt.gateway.request.history import HashChain, HashChains, root_of
from kompakt.gateway.storage import recorder
from kompakt.gateway.storage.recorder import WriteBehind
from kompakt.gateway.storage.storage import GatewayStorage
from kompakt.gateway.tenants import Owner
from kompakt.session.store import open_store
from kompakt.store.memory import MemoryRecords
from kompakt.store.records import Batch

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


def test_an_unexpected_error_does_not_stop_the_other_writes() -> None:
    """They do not wait for the next request, and the error is logged."""

    async def run() -> tuple[list[str], list[str]]:
        logged: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(repr(context["exception"])))
        queue, book = WriteBehind(on_failure=lambda error: None), Book()

        async def fail() -> None:
            raise ZeroDivisionError("a bug")

        queue.put_other(fail, 1)
        queue.put_other(book.writing("other"), 1)
        queue.put(PLACE, chain_of("a"), book.writing("request"))
        await queue.flush()
        gc.collect()
        return book.written, logged

    written, logged = asyncio.run(run())
    assert (written, logged) == (["other", "request"], ["ZeroDivisionError('a bug')"])


def test_a_slow_write_delays_the_next_by_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write may wait half a minute for a lock. What is queued meanwhile is not kept in memory for minutes."""
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    async def wait_for_a_lock() -> None:
        nonlocal now
        now += 30

    async def run() -> float:
        written: list[float] = []

        async def note_time() -> None:
            written.append(now)

        queue = WriteBehind(on_failure=lambda error: None)
        queue.put_other(wait_for_a_lock, 1)
        queue.put_other(note_time, 1)
        while not written:
            await pause(0)
        return written[0]

    pause = asyncio.sleep
    monkeypatch.setattr(recorder, "time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr(recorder, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    assert 30 <= asyncio.run(run()) <= 30 + recorder.MAX_PAUSE + 0.1


class FakeTime:
    """A clock that only sleeping and writing move. ``on_tick`` is called each time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.on_tick: Callable[[], None] = lambda: None
        self._real_sleep = asyncio.sleep
        monkeypatch.setattr(recorder, "time", SimpleNamespace(perf_counter=lambda: self.now))
        monkeypatch.setattr(recorder, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": self.sleep}))

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_tick()
        await self._real_sleep(0)

    def writing(self, seconds: float, done: Callable[[], object]) -> Callable[[], Awaitable[None]]:
        async def write() -> None:
            await self.sleep(seconds)
            done()

        return write

    async def give_way(self) -> None:
        await self._real_sleep(0)


@pytest.mark.parametrize(("sessions", "least"), [(50, 0.0), (1_000, 0.7), (3_000, 0.0)])
def test_requests_are_written_within_seconds(sessions: int, least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process loses only what came in the last seconds. Where there is time, a write has several requests."""
    clock, delays, every = FakeTime(monkeypatch), list[float](), 4.0

    async def run() -> None:
        queue = WriteBehind(on_failure=lambda error: None)
        sends = deque((number * every / sessions, number) for number in range(sessions))
        waiting: dict[int, float] = {}

        def send() -> None:
            while sends[0][0] <= clock.now:
                due, number = sends.popleft()
                sends.append((due + every, number))
                waiting.setdefault(number, due)
                queue.put(("", f"session {number}"), chain, clock.writing(0.002, partial(written, number)))

        def written(number: int) -> None:
            delays.append(clock.now - waiting.pop(number, clock.now))

        chain = chain_of("a")
        clock.on_tick = send
        while clock.now < 40:
            if queue._worker is None or queue._worker.done():
                await clock.sleep(max(0.0, sends[0][0] - clock.now))  # nothing to do until then
            await clock.give_way()
        queue._worker.cancel()  # type: ignore[union-attr]

    asyncio.run(run())
    assert least * recorder.DRAIN_SECONDS <= max(delays) < 1.2 * recorder.DRAIN_SECONDS


@pytest.mark.parametrize(("sessions", "seconds"), [(1_000, 0.002), (200, 0.02), (1_000, 0.02)])
def test_a_burst_is_written_within_seconds(sessions: int, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the store is too slow for that, its writes follow one another without a pause."""
    clock, written = FakeTime(monkeypatch), list[float]()

    async def run() -> None:
        queue = WriteBehind(on_failure=lambda error: None)
        write = clock.writing(seconds, lambda: written.append(clock.now))
        for number in range(sessions):
            queue.put(("", f"session {number}"), chain_of("a"), write)
        while len(written) < sessions:
            await clock.give_way()

    asyncio.run(run())
    assert max(written) < 1.05 * max(recorder.DRAIN_SECONDS, sessions * seconds)


def test_a_session_that_sends_often_is_written_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, busy, others = FakeTime(monkeypatch), list[int](), list[float]()

    async def run() -> None:
        queue = WriteBehind(on_failure=lambda error: None)

        def send(length: int) -> None:
            chain = chain_of(*map(str, range(length)))
            queue.put(PLACE, chain, clock.writing(0.002, lambda: busy.append(length)))

        def add_another() -> None:
            others.append(clock.now)
            send(len(others))
            number = len(others) + 20
            queue.put(("", f"session {number}"), chain_of(f"{number}"), clock.writing(0.002, add_another))

        for number in range(20):
            queue.put(("", f"session {number}"), chain_of(f"{number}"), clock.writing(0.002, add_another))
        while len(others) <= 200:
            await clock.give_way()
        queue._worker.cancel()  # type: ignore[union-attr]

    asyncio.run(run())
    assert len(busy) > 3
    assert busy[-1] > 100  # the newest request each time


def test_a_flush_that_takes_too_long_drops_the_rest() -> None:
    """A gateway that stops closes the store next, so no write may start after that."""

    async def run() -> tuple[float, int, int]:
        book, queue = Book(0.01), WriteBehind(on_failure=lambda error: None)
        for number in range(100):
            queue.put(("", f"session {number}"), chain_of("a"), book.writing("request"))
            queue.put_other(book.writing("other"), 1)
        with pytest.raises(StoreUnavailable):
            await with_timeout(queue.flush(), 0.1)
        await asyncio.sleep(0.05)
        begun = len(book.written)
        await asyncio.sleep(0.1)
        return queue.load, begun, len(book.written)

    load, begun, written = asyncio.run(run())
    assert load == 0 and 0 < begun == written < 100


@pytest.mark.parametrize("kind", ["requests", "others"])
def test_a_write_is_finished_if_the_one_who_waits_for_it_is_cancelled(kind: str) -> None:
    """A client that disconnects while what its request needs is written."""

    async def run() -> list[str]:
        book, queue, goes_on = Book(), WriteBehind(on_failure=lambda error: None), asyncio.Event()

        def writing(what: str, started: asyncio.Event) -> Callable[[], Awaitable[None]]:
            async def write() -> None:
                started.set()
                await goes_on.wait()
                book.written.append(what)

            return write

        busy, started = asyncio.Event(), asyncio.Event()
        queue.put(("", "another"), chain_of("x"), writing("another", busy))
        await busy.wait()  # the worker has something else to do
        if kind == "requests":
            queue.put(PLACE, chain_of("a"), writing("first", started))
            queue.put(PLACE, chain_of("b"), book.writing("second"))
            waiting = asyncio.create_task(queue.write(PLACE))
        else:
            queue.put_other(writing("first", started), 1)
            queue.put_other(book.writing("second"), 1)
            waiting = asyncio.create_task(queue.write_others())
        await started.wait()
        waiting.cancel()
        await asyncio.wait([waiting])
        goes_on.set()
        await queue.flush()
        return sorted(book.written)

    assert asyncio.run(run()) == ["another", "first", "second"]


@pytest.mark.parametrize("kind", ["requests", "others"])
def test_a_write_that_the_worker_has_started_is_waited_for(kind: str) -> None:
    """It is no longer queued, but an undo that reads the store before its end would miss the newest compaction."""

    async def run() -> tuple[bool, list[str]]:
        queue, started, goes_on = WriteBehind(on_failure=lambda error: None), asyncio.Event(), asyncio.Event()
        written: list[str] = []

        async def write() -> None:
            started.set()
            await goes_on.wait()
            written.append("first")

        if kind == "requests":
            queue.put(PLACE, chain_of("a"), write)
        else:
            queue.put_other(write, 1)
        await started.wait()
        waiting = asyncio.create_task(queue.write(PLACE) if kind == "requests" else queue.write_others())
        await asyncio.sleep(0.01)
        is_early = waiting.done()
        goes_on.set()
        await waiting
        return is_early, written

    assert asyncio.run(run()) == (False, ["first"])


def test_a_compaction_waits_for_the_disk_once() -> None:
    """The originals are written first without waiting; storing the pivot then waits for everything before it."""
    written: list[tuple[str, bool]] = []

    class Watched(MemoryRecords):
        async def commit(self, batch: Batch, **given: Any) -> bool:
            if batch.rows or batch.events:  # else a tenant is registered
                written.append(("rows" if batch.rows else "event", batch.synced))
            return await super().commit(batch, **given)

        async def note(self, tenant: str, key: str, notes: Mapping[str, bytes], *, synced: bool = True) -> None:
            written.extend((name.split()[0], synced) for name in notes)
            await super().note(tenant, key, notes, synced=synced)

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=httpx.ByteStream(json.dumps(ANSWERS["openai-chat"]).encode()))

    with served(settings(context_window=4_000), None, transport=httpx.MockTransport(answer)) as gate:
        gate.gateway.store.records.__class__ = Watched
        asked = request("openai-chat", history("openai-chat", 12, size=30))
        answered = gate.post(PATHS["openai-chat"], json=asked, headers=HEADERS["openai-chat"])
        gate.run(gate.gateway.storage.flush())
    assert "x-kompakt-compaction" in answered.headers
    kinds = [kind for kind, _ in written]
    assert kinds.index("rows") < kinds.index("pivot")
    assert {kind for kind, synced in written if synced} == {"pivot"}


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


@pytest.mark.parametrize("more", [[], ["b"]], ids=["the same history", "a longer history"])
@pytest.mark.parametrize("state", ["in flight", "queued", "recorded"])
def test_every_answer_names_the_session_that_has_its_history(more: list[str], state: str) -> None:
    """Two requests name different sessions for one history: it stays in the first, which both answers name."""
    first, second = chain_of("a"), chain_of("a", *more)

    async def run() -> tuple[list[str], list[str]]:
        async with await open_store("memory:") as store:
            gate = GatewayStorage(store, Metrics())
            one = (await gate.match(OWNER, first, named="one")).branch
            if state != "in flight":
                gate.record_later(OWNER, first, one)
            if state == "recorded":
                await gate.flush()
            other = (await gate.match(OWNER, second, named="other")).branch
            if state == "in flight":
                gate.record_later(OWNER, first, one)
            gate.record_later(OWNER, second, other)
            await gate.flush()
            third = (await gate.match(OWNER, chain_of("c"), named="other")).branch
            return [one.session, other.session, third.session], [one.id async for one in store.sessions()]

    assert asyncio.run(run()) == (["one", "one", "other"], ["one"])
