"""The recorder stores all that clients send, including abandoned branches and equal names of different tenants."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.gateway.gateway_server import KEYS, Gate, gateway, hashed
from tests.gateway.payloads import HEADERS, PATHS, answering, history, one_round, request
from tests.gateway.upstreams import Upstream, wait_for

import kompakt

KEY_A, KEY_B = KEYS


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    store = f"sqlite:///{tmp_path / 'k.db'}"
    with Upstream(answering) as upstream, gateway(upstream.url, store=store, keys=hashed(KEYS)) as gate:
        yield gate


def send(gate: Gate, format: str, items: list[object], key: str = KEY_A, **headers: str) -> str:
    """Send a history and return the session that records it."""
    given = {**HEADERS[format], "x-kompakt-key": key, **headers}
    answer = httpx.post(gate.url + PATHS[format], json=request(format, items), headers=given, timeout=120)
    assert answer.status_code == 200
    return answer.headers["x-kompakt-session"]


async def _found(store: str, tenant: str, words: list[str]) -> set[str]:
    opened = await kompakt.open_store(store, tenant=tenant)
    try:
        return {word for word in words if word in (await opened.recall(word)).text.partition("\n")[2]}
    finally:
        await opened.close()


def missing(gate: Gate, tenant: str, words: list[str]) -> set[str]:
    return set(words) - asyncio.run(_found(gate.store, tenant, words))


@pytest.mark.parametrize("format", ["openai-chat", "anthropic"])
def test_concurrent_branches_are_all_stored(format: str, gate: Gate) -> None:
    """The client regenerates an answer several times; the last request contains only the last one."""
    shared = history(format, 4, size=4, tag="shared")
    words = [f"branchword{at:03d}" for at in range(12)]
    with ThreadPoolExecutor(6) as pool:
        branches = [[*shared, *one_round(format, 50 + at, f"a line before\n{word}")] for at, word in enumerate(words)]
        list(pool.map(lambda items: send(gate, format, items), branches))
    wait_for(lambda: not missing(gate, "tenant-a", words), "all branches are stored")


def test_the_session_named_in_the_response_has_the_request(gate: Gate) -> None:
    """With several branches, each response names the session that records its branch."""
    shared = history("openai-chat", 4, size=4, tag="shared")
    for at in range(3):
        items = [*shared, *one_round("openai-chat", 50 + at, f"a line before\ntoldword{at:03d}")]
        for _ in range(2):  # sent again, it is known where it is
            id = send(gate, "openai-chat", items)

        def is_there(id: str = id, word: str = f"toldword{at:03d}") -> bool:
            headers = {"x-kompakt-key": KEY_A}
            answer = gate.get(f"/kompakt/sessions/{id}/recall", params={"q": word}, headers=headers)
            return answer.status_code == 200 and word in answer.json()["text"].partition("\n")[2]

        wait_for(is_there, f"branch {at} is in session {id}")


def test_equal_session_names_of_two_tenants_are_separate(gate: Gate) -> None:
    ours, theirs = [f"wordofa{at:03d}" for at in range(8)], [f"wordofb{at:03d}" for at in range(8)]

    def both(at: int) -> None:
        for key, word in ((KEY_A, ours[at]), (KEY_B, theirs[at])):
            items = [*history("openai-chat", 2, tag=f"n{at}"), *one_round("openai-chat", 60, f"a line\n{word}")]
            assert send(gate, "openai-chat", items, key, **{"x-kompakt-session": f"shared-{at}"})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(both, range(8)))
    wait_for(lambda: not missing(gate, "tenant-a", ours), "all words of tenant a are stored")
    wait_for(lambda: not missing(gate, "tenant-b", theirs), "all words of tenant b are stored")
    assert missing(gate, "tenant-b", ours) == set(ours) and missing(gate, "tenant-a", theirs) == set(theirs)


def test_the_queue_is_flushed_at_shutdown(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'k.db'}"
    words = [f"lastword{at:03d}" for at in range(20)]
    with Upstream(answering) as upstream, gateway(upstream.url, store=store, keys=hashed(KEYS)) as gate:
        for at, word in enumerate(words):
            send(
                gate, "anthropic", history("anthropic", 2, tag=f"e{at}") + one_round("anthropic", 9, f"a line\n{word}")
            )
    assert missing(gate, "tenant-a", words) == set()


def test_a_session_named_by_the_client_keeps_its_name(gate: Gate) -> None:
    items = history("openai-chat", 3, tag="named")
    names = {send(gate, "openai-chat", items, **{"x-kompakt-session": "my-work"})}
    items += one_round("openai-chat", 70, "more")
    names.add(send(gate, "openai-chat", items, **{"x-kompakt-session": "my-work"}))
    assert names == {"my-work"}


def test_the_exported_session_equals_the_history(gate: Gate) -> None:
    """The export has the client's history, message for message."""
    items = history("openai-chat", 40, size=30, tag="whole")
    for end in (11, 41, 61, len(items)):
        id = send(gate, "openai-chat", items[:end])

    async def exported() -> object:
        store = await kompakt.open_store(gate.store, tenant="tenant-a")
        try:
            session = await store.session(id)
            assert await session.verify() == []
            return await session.export(view="full")
        finally:
            await store.close()

    def is_all() -> bool:
        found = asyncio.run(exported())
        kept = found["messages"] if isinstance(found, dict) else found
        return kept == items

    wait_for(is_all, "the whole history is stored")
