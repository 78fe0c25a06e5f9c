"""Requests with very many messages: they do not block others, cost only what is new, and are limited."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway.payloads import ANSWERS, FORMATS, HEADERS, PATHS, history, request
from tests.gateway.stub_gateway import Served, served, settings
from tests.gateway.upstreams import KEYS as LISTS

from kompakt.errors import StoreUnavailable
from kompakt.gateway.concurrency import SMALL, THREADS, FullCollections, off_loop
from kompakt.gateway.pivots import builder
from kompakt.gateway.pivots.lookup import Pivot
from kompakt.gateway.request import history as request_history
from kompakt.gateway.request.history import MAX_ENDS, NEAR, HashChain, HashChains, TooManyMessages, read, root_of
from kompakt.gateway.storage import recorder
from kompakt.gateway.storage.recorder import BATCH
from kompakt.store.memory import MemoryRecords

ROOT = root_of("somebody", "openai-chat", "1")


def tiny(format: str, count: int, tag: str = "m") -> list[Any]:
    """Return ``count`` messages of a few bytes, the last of them from the user."""
    users = [(count - at) % 2 == 1 for at in range(count)]
    if format == "gemini":
        roles = ["user" if user else "model" for user in users]
        return [{"role": role, "parts": [{"text": f"{tag}{at}"}]} for at, role in enumerate(roles)]
    roles = ["user" if user else "assistant" for user in users]
    return [{"role": role, "content": f"{tag}{at}"} for at, role in enumerate(roles)]


def body_of(format: str, items: list[Any]) -> bytes:
    beside = {} if format == "gemini" else {"model": "test-model"}
    return json.dumps({**beside, LISTS[format]: items}).encode()


def answers(asked: httpx.Request) -> httpx.Response:
    del asked
    stream = httpx.ByteStream(json.dumps(ANSWERS["openai-chat"]).encode())
    return httpx.Response(200, headers={"content-type": "application/json"}, stream=stream)


@pytest.fixture
def gate() -> Iterator[Served]:
    made = settings(max_messages=5_000, context_window=1_000_000)
    with served(made, None, transport=httpx.MockTransport(answers)) as gate:
        yield gate


# --- the limit ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_too_many_messages_are_rejected_in_the_provider_format(gate: Served, format: str) -> None:
    answer = gate.post(PATHS[format], content=body_of(format, tiny(format, 5_001)), headers=HEADERS[format])
    assert answer.status_code == 413 and answer.headers["x-kompakt-refusal"] == "too_many_messages"
    error = answer.json()["error"]
    assert "5,001 messages" in error["message"] and "--max-messages" in error["message"]
    if format == "anthropic":
        assert (answer.json()["type"], error["type"]) == ("error", "request_too_large")
    elif format == "gemini":
        assert (error["code"], error["status"]) == (413, "INVALID_ARGUMENT")
    else:
        assert error["code"] == "too_many_messages"


def test_the_limit_also_holds_for_continued_requests(gate: Served) -> None:
    items = tiny("openai-chat", 4_998)
    for more, status in ((0, 200), (2, 200), (4, 413)):
        said = [{"role": ("assistant", "user")[at % 2], "content": "more"} for at in range(more)]
        body = body_of("openai-chat", [*items, *said])
        assert gate.post(PATHS["openai-chat"], content=body, headers=HEADERS["openai-chat"]).status_code == status


def test_messages_are_counted_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = list[object]()
    monkeypatch.setattr(request_history.DigestCache, "of", lambda *given: looked.append(given))
    with pytest.raises(TooManyMessages) as caught:
        HashChains(max_messages=10).read(body_of("openai-chat", tiny("openai-chat", 11)), "openai-chat", ROOT)
    assert (caught.value.found, caught.value.limit, looked) == (11, 10, [])


# --- off the loop -------------------------------------------------------------------------------------------------


class Held:
    """Blocks work in a worker thread until it is released; work on the event loop fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        work: Callable[..., Any] = getattr(where, name)

        def held(*given: Any, **named: Any) -> Any:
            self.begun.set()
            assert threading.current_thread().name.startswith("kompakt-work"), "held on the event loop"
            assert self.go.wait(30)
            return work(*given, **named)

        monkeypatch.setattr(where, name, held)


def ask_aside(gate: Served, body: bytes) -> tuple[threading.Thread, list[httpx.Response]]:
    got = list[httpx.Response]()

    def ask() -> None:
        got.append(
            httpx.post(
                gate.url + PATHS["openai-chat"],
                content=body,
                headers=HEADERS["openai-chat"],
                timeout=60,
                trust_env=False,
            )
        )

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, got


def test_others_are_served_while_a_long_request_is_read(gate: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its work is blocked, the gateway's own endpoints and other requests respond."""
    held = Held(monkeypatch, request_history, "read")
    thread, got = ask_aside(gate, body_of("openai-chat", tiny("openai-chat", 4_000)))
    assert held.begun.wait(20)
    monkeypatch.setattr(request_history, "read", read)
    assert gate.get("/healthz").status_code == 200
    short = body_of("openai-chat", tiny("openai-chat", 3, "other"))
    assert gate.post(PATHS["openai-chat"], content=short, headers=HEADERS["openai-chat"]).status_code == 200
    assert got == []
    held.go.set()
    thread.join(30)
    assert got[0].status_code == 200


def test_others_are_served_while_a_long_request_is_recorded(gate: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from kompakt.session.rows import RowCodec

    held = Held(monkeypatch, RowCodec, "row")
    thread, got = ask_aside(gate, body_of("openai-chat", tiny("openai-chat", 4_000, "a word or two " * 30)))
    assert held.begun.wait(20)
    thread.join(30)
    assert got[0].status_code == 200  # recorded after the answer
    assert gate.get("/healthz").status_code == 200
    held.go.set()


def test_small_work_runs_on_the_loop_and_large_work_in_a_thread() -> None:
    async def where(size: int) -> str:
        return await off_loop(lambda: threading.current_thread().name, size=size)

    assert asyncio.run(where(SMALL)) == threading.current_thread().name
    assert asyncio.run(where(SMALL + 1)).startswith("kompakt-work")
    assert THREADS <= 2


# --- work follows what is new -------------------------------------------------------------------------------------


class Counted(MemoryRecords):
    """Counts the notes that are read and the rows of each batch."""

    names = 0
    largest = 0

    async def notes(self, tenant: str, names: Collection[str]) -> dict[str, bytes]:
        type(self).names += len(names)
        return await super().notes(tenant, names)

    async def commit(self, batch: Any, **given: Any) -> bool:
        type(self).largest = max(self.largest, len(batch.rows))
        return await super().commit(batch, **given)


@pytest.fixture
def counted(gate: Served, monkeypatch: pytest.MonkeyPatch) -> type[Counted]:
    Counted.names = Counted.largest = 0
    records = gate.gateway.store.records
    assert type(records) is MemoryRecords
    records.__class__ = Counted
    return Counted


def send(gate: Served, items: list[Any]) -> None:
    body = body_of("openai-chat", items)
    assert gate.post(PATHS["openai-chat"], content=body, headers=HEADERS["openai-chat"]).status_code == 200


def test_store_reads_are_bounded(gate: Served, counted: type[Counted]) -> None:
    """An unknown long history costs a bounded number of reads, a known one few."""
    items = tiny("openai-chat", 4_001)
    send(gate, items)
    assert counted.names <= NEAR + MAX_ENDS + 20
    for at in range(3):
        gate.run(gate.gateway.storage.flush())
        counted.names = 0
        items = [*items, {"role": "assistant", "content": "yes"}, {"role": "user", "content": f"more {at}"}]
        send(gate, items)
        assert counted.names <= 20


def test_originals_are_written_in_batches(gate: Served, counted: type[Counted]) -> None:
    send(gate, tiny("openai-chat", 1_001))
    gate.run(gate.gateway.storage.flush())
    assert counted.largest == BATCH

    async def recorded() -> list[int]:
        return [head.messages async for head in gate.gateway.store.heads()]

    assert gate.run(recorded()) == [1_001]


def test_another_replica_searches_the_newest_prefixes_first(tmp_path: Path) -> None:
    """It finds the session and the pivot of a long conversation with few reads."""
    store = f"sqlite:///{tmp_path / 'k.db'}"
    made = settings(store=store, context_window=8_000)
    items = tiny("openai-chat", 1_201, "some words of a longer message ")
    sent: list[Any] = []

    def upstream(asked: httpx.Request) -> httpx.Response:
        sent.append(json.loads(asked.content)["messages"])
        return answers(asked)

    with served(made, None, transport=httpx.MockTransport(upstream)) as gate:
        send(gate, items)
    assert len(sent[0]) < len(items)
    items += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "more"}]
    with served(made, None, transport=httpx.MockTransport(upstream)) as gate:
        asked = list[int]()
        records = gate.gateway.store.records
        notes = records.notes

        async def counting(tenant: str, names: Collection[str]) -> dict[str, bytes]:
            asked.append(len(names))
            return await notes(tenant, names)

        gate.gateway.storage.records.notes = counting
        send(gate, items)
        assert sum(asked) <= 2 * NEAR
    assert sent[1][: len(sent[0])] == sent[0] and sent[1][-2:] == items[-2:]


def chain_of(count: int, answered: Callable[[int], bool]) -> HashChain:
    items = [{"role": "assistant" if answered(at) else "user", "content": f"m{at}"} for at in range(count)]
    chain = HashChains().read(body_of("openai-chat", items), "openai-chat", ROOT)
    assert chain is not None
    return chain


class TestEnds:
    def test_each_end_of_an_earlier_request_is_listed(self) -> None:
        chain = chain_of(1_000, lambda at: at % 5 in (1, 2))
        ends = [at for page in chain.ends(0) for at in page]
        assert ends[:NEAR] == list(range(1_000, 1_000 - NEAR, -1))
        assert ends == sorted(set(ends), reverse=True)
        assert set(chain.tips()) <= {*ends, 0}

    def test_known_prefixes_are_not_listed(self) -> None:
        chain = chain_of(1_000, lambda at: at % 2 == 1)
        assert [at for page in chain.ends(990) for at in page] == list(range(1_000, 990, -1))
        assert [at for page in chain.ends(1_000) for at in page] == []
        assert min(at for page in chain.ends(501) for at in page) > 501

    def test_the_number_of_ends_is_bounded(self) -> None:
        chain = chain_of(12_000, lambda at: at % 2 == 1)
        assert sum(map(len, chain.ends(0))) == NEAR + MAX_ENDS


def test_a_pivot_is_found_however_the_client_continues(tmp_path: Path) -> None:
    """Also when it extends a compacted request that was not answered."""
    made = settings(store=f"sqlite:///{tmp_path / 'k.db'}", context_window=8_000)
    items = tiny("openai-chat", 801, "some words of a longer message ")
    sent: list[Any] = []

    def upstream(asked: httpx.Request) -> httpx.Response:
        sent.append(json.loads(asked.content)["messages"])
        return answers(asked)

    for more in ([], [{"role": "user", "content": "and this"}], [{"role": "user", "content": "and that"}]):
        items = [*items, *more]
        with served(made, None, transport=httpx.MockTransport(upstream)) as gate:
            send(gate, items)
    assert sent[1] == [*sent[0], items[-2]] and sent[2] == [*sent[1], items[-1]]


def test_the_size_of_a_chain_counts_its_messages() -> None:
    """Tiny messages need more memory than their bytes."""
    chain = chain_of(2_000, lambda at: False)
    assert chain.size > 5 * len(chain.request.body)


# --- references ---------------------------------------------------------------------------------------------------


def compacted(gate: Served) -> httpx.Response:
    body = request("openai-chat", history("openai-chat", 1_200))
    return gate.post(PATHS["openai-chat"], json=body, headers=HEADERS["openai-chat"])


@pytest.fixture
def small_window() -> Iterator[Served]:
    with served(settings(context_window=20_000), None, transport=httpx.MockTransport(answers)) as gate:
        yield gate


def test_references_are_read_page_by_page(small_window: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page has the timeout of one call, so a long history does not count as a store that is unavailable."""
    pages, read_page = list[int](), recorder.references

    async def counted(*given: Any) -> tuple[str, ...]:
        page = await read_page(*given)
        pages.append(len(page))
        return page

    monkeypatch.setattr(recorder, "references", counted)
    answer = compacted(small_window)
    assert answer.status_code == 200 and "x-kompakt-compaction" in answer.headers
    assert len(pages) > 4 and set(pages[:-1]) == {500} and sum(pages) > 2_400


def test_a_store_that_fails_while_references_are_read_fails_no_request(
    small_window: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is compacted without them, and the answer says so."""

    async def failing(*given: Any) -> tuple[str, ...]:
        del given
        raise StoreUnavailable("the store did not respond")

    monkeypatch.setattr(recorder, "references", failing)
    answer = compacted(small_window)
    assert answer.status_code == 200 and "x-kompakt-compaction" in answer.headers
    assert answer.headers["x-kompakt-degraded"] == "store-unavailable"


# --- garbage collection -------------------------------------------------------------------------------------------


def test_no_full_collection_runs_while_a_pivot_is_built(small_window: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would scan the whole history and block the event loop meanwhile; young objects are still collected."""
    usual, seen = gc.get_threshold(), list[tuple[int, ...]]()
    build_pivot = builder.build_pivot

    def build(given: builder.PivotRequest) -> Pivot:
        seen.append(gc.get_threshold())
        return build_pivot(given)

    monkeypatch.setattr(builder, "build_pivot", build)
    assert "x-kompakt-compaction" in compacted(small_window).headers
    assert seen == [(*usual[:2], FullCollections.NEVER)] and gc.get_threshold() == usual


def test_full_collections_return_after_the_last_build() -> None:
    """Builds overlap, and one that fails counts as ended."""
    usual, collections = gc.get_threshold(), FullCollections()
    with collections.suspended():
        with pytest.raises(KeyError), collections.suspended():
            raise KeyError
        assert gc.get_threshold()[2] == FullCollections.NEVER
    assert gc.get_threshold() == usual


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python collects in small steps")
def test_full_collections_are_rare_while_the_gateway_runs() -> None:
    """Python starts none, and what only they find is still collected."""

    class Node:
        other: Node

    async def run() -> None:
        collecting = asyncio.create_task(collections.collect_rarely(pause=0.05))
        await asyncio.sleep(0)
        assert gc.get_threshold() == (*usual[:2], FullCollections.NEVER)
        node = Node()
        node.other = node
        gone = asyncio.Event()
        loop = asyncio.get_running_loop()
        weakref.finalize(node, loop.call_soon_threadsafe, gone.set)
        gc.collect(1)
        gc.collect(1)  # the node is old now
        del node
        await asyncio.wait_for(gone.wait(), 30)
        collecting.cancel()
        await asyncio.wait([collecting])

    usual, collections = gc.get_threshold(), FullCollections()
    asyncio.run(run())
    assert gc.get_threshold() == usual
