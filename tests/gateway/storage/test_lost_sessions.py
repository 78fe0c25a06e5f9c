"""A session that is deleted while its conversation continues is recorded again from the start.

Deleted through the gateway or beside it, purged by another process, or gone with everything else in the store: every
answer is 200, what is sent fits, and what is hidden can be recalled.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.contract import redis
from tests.contract.postgres import database
from tests.gateway.gateway_server import KEYS, WINDOW, Gate, gateway, hashed
from tests.gateway.payloads import FORMATS, HEADERS, PATHS, answering, history, request
from tests.gateway.upstreams import KEYS as LISTS
from tests.gateway.upstreams import Upstream, wait_for
from tests.judges import judge
from tests.provider.token_count import count_head, count_item

import kompakt
from kompakt.gateway.concurrency import KeyedLocks
from kompakt.gateway.tenants import REGISTRY_TENANT

Vanish = Callable[[Gate, str], None]
ROUNDS = (10, 30, 32, 34, 60, 62, 90, 92)
"""Rounds of each request of a conversation: a window holds about 25, so it is compacted several times."""


def on_store(store: str, work: Callable[[kompakt.Store], Awaitable[Any]], tenant: str = "") -> Any:
    """Run an action on a store, as another process would."""

    async def run() -> Any:
        opened = await kompakt.open_store(store, tenant=tenant)
        try:
            return await work(opened)
        finally:
            await opened.close()

    return asyncio.run(run())


def by_the_gateway(gate: Gate, session: str) -> None:
    answer = httpx.delete(f"{gate.url}/kompakt/sessions/{session}", headers=HEADERS["openai-chat"], timeout=120)
    assert answer.status_code == 204


def by_another_process(gate: Gate, session: str) -> None:
    assert on_store(gate.store, lambda store: store.delete(session))


def with_all_sessions(gate: Gate, session: str) -> None:
    assert on_store(gate.store, lambda store: store.purge()) >= 1


def with_the_notes_only(gate: Gate, session: str) -> None:
    on_store(gate.store, lambda store: store.records.forget(""))


def with_everything(gate: Gate, session: str) -> None:
    redis.command(gate.store, "FLUSHALL")


def ask(gate: Gate, format: str, rounds: int, tag: str = "lost", **headers: str) -> httpx.Response:
    body = json.dumps(request(format, history(format, rounds, size=60, tag=tag)))
    given = {"content-type": "application/json", **HEADERS[format], **headers}
    return httpx.post(gate.url + PATHS[format], content=body, headers=given, timeout=120)


def assert_sent_well(upstream: Upstream, format: str) -> None:
    """Check that the last upstream request is valid, fits and has the task."""
    body = upstream.raw[-1].json
    assert judge(format, {**body, "model": "gemini-3-pro"} if format == "gemini" else body) == []
    assert count_head(None, body["tools"]) + sum(count_item(item) for item in body[LISTS[format]]) + 500 <= WINDOW
    assert "Never touch the migrations folder." in upstream.raw[-1].body.decode()


def messages_in(gate: Gate, session: str, tenant: str = "") -> int:
    async def count(store: kompakt.Store) -> int:
        head = await store.records.head((await store.session(session)).key)
        return 0 if head is None else head.messages

    return on_store(gate.store, count, tenant)


def reaches(gate: Gate, session: str, word: str, tenant: str = "") -> bool:
    async def recall(store: kompakt.Store) -> bool:
        found = await store.session(session)
        return await found.exists() and word in (await found.recall(word)).text.partition("\n")[2]

    return on_store(gate.store, recall, tenant)


def converse(gate: Gate, upstream: Upstream, format: str, vanish: Vanish, *, every: int = 3) -> None:
    """Hold a conversation whose session is deleted repeatedly, and check each upstream request."""
    session, items = "", 0
    for at, rounds in enumerate(ROUNDS):
        if at and at % every == 0:
            wait_for(lambda: messages_in(gate, session) == items, "the session is recorded")  # noqa: B023
            vanish(gate, session)
        answer = ask(gate, format, rounds)
        assert answer.status_code == 200, answer.text
        assert "x-kompakt-degraded" not in answer.headers
        assert_sent_well(upstream, format)
        assert session in ("", answer.headers["x-kompakt-session"])
        session, items = answer.headers["x-kompakt-session"], len(history(format, rounds))
    wait_for(lambda: messages_in(gate, session) == items, "all of it is recorded again")
    for at in range(0, ROUNDS[-1], 13):
        assert reaches(gate, session, f"marker{at:05d}lost"), at


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("vanish", [by_another_process, with_all_sessions])
def test_a_deleted_session_is_recorded_again(format: str, vanish: Vanish, tmp_path: Path) -> None:
    with Upstream(answering) as upstream, gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate:
        converse(gate, upstream, format, vanish)


@pytest.mark.parametrize("vanish", [by_the_gateway, with_the_notes_only])
def test_a_partly_deleted_session_is_recorded_again(vanish: Vanish, tmp_path: Path) -> None:
    with Upstream(answering) as upstream, gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate:
        converse(gate, upstream, "openai-chat", vanish)


def test_a_session_may_be_deleted_before_every_request(tmp_path: Path) -> None:
    with Upstream(answering) as upstream, gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate:
        converse(gate, upstream, "anthropic", by_another_process, every=1)


def test_a_deleted_session_is_recorded_again_in_postgres() -> None:
    with Upstream(answering) as upstream, gateway(upstream.url, store=database()) as gate:
        converse(gate, upstream, "openai-chat", with_all_sessions)


@pytest.mark.parametrize("vanish", [by_another_process, with_everything])
def test_a_deleted_session_is_recorded_again_in_redis(vanish: Vanish) -> None:
    with (
        redis.Server() as server,
        Upstream(answering) as upstream,
        gateway(upstream.url, store=server.url, secret="") as gate,
    ):
        converse(gate, upstream, "openai-chat", vanish)
        # a replica that starts now names tenants by the same secret, and finds the same sessions
        session = ask(gate, "openai-chat", ROUNDS[-1]).headers["x-kompakt-session"]
        with gateway(upstream.url, store=server.url, secret="") as other:
            assert ask(other, "openai-chat", ROUNDS[-1]).headers["x-kompakt-session"] == session


def test_tenants_are_registered_again_after_the_store_was_emptied() -> None:
    key, tenant = next(iter(KEYS.items()))
    with (
        redis.Server() as server,
        Upstream(answering) as upstream,
        gateway(upstream.url, store=server.url, keys=hashed(KEYS)) as gate,
    ):
        for rounds in (10, 12, 14):
            assert ask(gate, "openai-chat", rounds, **{"x-kompakt-key": key}).status_code == 200
            wait_for(lambda: gate.get("/kompakt/sessions", headers={"x-kompakt-key": key}).json()["sessions"], "listed")
            with_everything(gate, "")
        for rounds in (16, 18):
            answer = ask(gate, "openai-chat", rounds, **{"x-kompakt-key": key})
            assert answer.status_code == 200 and "x-kompakt-tenant" not in answer.headers

        async def tenants(store: kompakt.Store) -> list[str]:
            return [head.id.decode() for head in await store.records.heads(REGISTRY_TENANT)]

        assert on_store(server.url, tenants) == [tenant]


def test_recall_finds_messages_that_were_recorded_again(tmp_path: Path) -> None:
    """The recall tool stays available and searches the new session."""
    call = {
        "id": "call_r",
        "type": "function",
        "function": {"name": "recall", "arguments": '{"query": "marker00003lost"}'},
    }
    recalling = {"role": "assistant", "content": None, "tool_calls": [call]}
    asked: list[Any] = []

    def plan(raw: Any) -> Any:
        asked.append(raw.json)
        reply = answering(raw)
        last = raw.json["messages"][-1]
        if len(raw.json["messages"]) > 2 and last.get("tool_call_id") != "call_r" and wants[0]:
            said = json.loads(b"".join(reply.chunks))
            said["choices"] = [{"index": 0, "message": recalling, "finish_reason": "tool_calls"}]
            reply.chunks = [json.dumps(said).encode()]
        return reply

    wants = [False]
    with Upstream(plan) as upstream, gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate:
        session = ask(gate, "openai-chat", 0).headers["x-kompakt-session"]
        assert ask(gate, "openai-chat", 30).headers["x-kompakt-compaction"]
        by_another_process(gate, session)
        wants[0] = True
        answer = ask(gate, "openai-chat", 40)
        assert answer.status_code == 200
        result = asked[-1]["messages"][-1]
        assert result["tool_call_id"] == "call_r" and "marker00003lost" in result["content"].partition("\n")[2]


def test_labels_are_written_again(tmp_path: Path) -> None:
    with Upstream(answering) as upstream, gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate:
        session = ask(gate, "openai-chat", 3).headers["x-kompakt-session"]

        def title() -> str:
            listed = gate.get("/kompakt/sessions").json()["sessions"]
            return next((one.get("title") or "" for one in listed if one["id"] == session), "")

        wait_for(lambda: title().startswith("Find out why"), "the session has its title")
        by_another_process(gate, session)
        ask(gate, "openai-chat", 4)
        wait_for(lambda: title().startswith("Find out why"), "the session has its title again")


# --- locks --------------------------------------------------------------------------------------------------------


class TestLocks:
    def test_one_task_at_a_time_holds_the_lock_of_a_key(self) -> None:
        """Also when many tasks wait, leave and return."""

        async def run() -> list[int]:
            locks, inside, seen = KeyedLocks(), [0], list[int]()

            async def work(key: str) -> None:
                for _ in range(5):
                    async with locks.hold(key):
                        inside[0] += key == "a"
                        seen.append(inside[0])
                        await asyncio.sleep(0)
                        inside[0] -= key == "a"

            await asyncio.gather(*(work("a") for _ in range(10)), *(work(f"b{at}") for at in range(3)))
            assert len(locks) == 0
            return seen

        assert max(asyncio.run(run())) == 1

    def test_a_lock_stays_while_a_task_waits_for_it(self) -> None:
        """Also when the first waiting task is cancelled: the next one waits for the same lock."""

        async def run() -> None:
            locks, order = KeyedLocks(), list[str]()

            async def work(name: str) -> None:
                async with locks.hold("key"):
                    order.append(f"{name} in")
                    await asyncio.sleep(0.01)
                    order.append(f"{name} out")

            first = asyncio.create_task(work("first"))
            await asyncio.sleep(0)
            tired, second = asyncio.create_task(work("tired")), asyncio.create_task(work("second"))
            await asyncio.sleep(0)
            tired.cancel()
            await first
            third = asyncio.create_task(work("third"))
            await asyncio.gather(second, third)
            assert order == [f"{name} {way}" for name in ("first", "second", "third") for way in ("in", "out")]
            assert len(locks) == 0

        asyncio.run(run())

    def test_tenants_with_sessions_of_one_name_do_not_wait_for_each_other(self, tmp_path: Path) -> None:
        """Writes for one tenant do not affect the other."""
        keys = list(KEYS)
        named = {"x-kompakt-session": "shared"}
        with (
            Upstream(answering) as upstream,
            gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}", keys=hashed(KEYS)) as gate,
        ):
            for rounds in (3, 5, 40, 42):
                for tag, key in zip(("ofa", "ofb"), keys, strict=True):
                    answer = ask(gate, "openai-chat", rounds, tag, **{"x-kompakt-key": key}, **named)
                    assert answer.headers["x-kompakt-session"] == "shared"
            for tag, tenant in zip(("ofa", "ofb"), KEYS.values(), strict=True):
                wait_for(lambda tenant=tenant: messages_in(gate, "shared", tenant) == 85, "recorded")
                assert reaches(gate, "shared", f"marker00003{tag}", tenant)
