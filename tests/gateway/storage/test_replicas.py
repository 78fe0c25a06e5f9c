"""Replicas share only the store: a session that moves between them is served as by one gateway."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.contract.postgres import database
from tests.gateway.gateway_server import Gate, Replica, gateway, replica
from tests.gateway.payloads import FORMATS, HEADERS, PATHS, STREAMED, answering, events, history, request
from tests.gateway.upstreams import Raw, Reply, Upstream, wait_for

pytestmark = pytest.mark.slow
ROUNDS = range(6, 46, 4)


@contextmanager
def pair(upstream: str, folder: Path) -> Iterator[tuple[Replica, Replica]]:
    """Start two gateways on one PostgreSQL."""
    store = database()
    with (
        replica(upstream, store=store, folder=folder / "one") as one,
        replica(upstream, store=store, folder=folder / "two") as two,
    ):
        yield one, two


def bodies(format: str, tag: str) -> list[bytes]:
    """Return the requests of one session that grows."""
    return [json.dumps(request(format, history(format, rounds, size=60, tag=tag))).encode() for rounds in ROUNDS]


def post(gate: Gate, format: str, body: bytes) -> httpx.Response:
    headers = {"content-type": "application/json", **HEADERS[format]}
    return httpx.post(gate.url + PATHS[format], content=body, headers=headers, timeout=120)


def alone(format: str, tag: str, folder: Path) -> list[bytes]:
    """Return what a single gateway with its own store sends upstream."""
    with Upstream(answering) as upstream, gateway(upstream.url, store=f"sqlite:///{folder / 'alone.db'}") as gate:
        for body in bodies(format, tag):
            assert post(gate, format, body).status_code == 200
        return [raw.body for raw in upstream.raw]


def test_sessions_that_alternate_are_sent_as_from_one(tmp_path: Path) -> None:
    with Upstream(answering) as upstream, pair(upstream.url, tmp_path) as gates:
        for format in FORMATS:
            del upstream.raw[:]
            sessions = set()
            for at, body in enumerate(bodies(format, "alternating")):
                answer = post(gates[at % 2], format, body)
                assert answer.status_code == 200
                sessions.add(answer.headers["x-kompakt-session"])
            folder = tmp_path / format
            folder.mkdir()
            assert [raw.body for raw in upstream.raw] == alone(format, "alternating", folder)
            assert len(sessions) == 1


def test_after_one_is_killed_in_a_stream_the_other_continues(tmp_path: Path) -> None:
    expected = alone("anthropic", "killed", tmp_path)
    hold, chunks = threading.Event(), events("anthropic")
    killed_at = 6

    def plan(raw: Raw) -> Reply:
        if json.loads(raw.body).get("stream"):
            return Reply(chunks, 200, {"content-type": "text/event-stream"}, [hold])
        return answering(raw)

    with Upstream(plan) as upstream, pair(upstream.url, tmp_path) as (one, two):
        for at, body in enumerate(bodies("anthropic", "killed")):
            if at == killed_at:
                _killed(one, {**json.loads(body), "stream": True})
                streamed = json.loads(upstream.raw.pop().body)
                assert {**streamed, "stream": None} == {**json.loads(expected[at]), "stream": None}
            gate = one if at % 2 and at < killed_at else two
            assert post(gate, "anthropic", body).status_code == 200
        assert [raw.body for raw in upstream.raw] == expected


def _killed(gate: Replica, body: dict[str, Any]) -> None:
    """Begin a stream through a gateway and kill it in the middle."""
    url, headers = gate.url + STREAMED["anthropic"], HEADERS["anthropic"]
    with httpx.stream("POST", url, json=body, headers=headers, timeout=120) as answer:
        arriving = answer.iter_raw()
        next(arriving)
        gate.kill()
        with pytest.raises(httpx.HTTPError):
            list(arriving)


def test_the_same_request_to_both_at_once_is_sent_the_same(tmp_path: Path) -> None:
    """Whoever compacts first is followed by all others."""
    with Upstream(answering) as upstream, pair(upstream.url, tmp_path) as gates, ThreadPoolExecutor(8) as pool:
        for number in range(4):
            del upstream.raw[:]
            body = bodies("openai-chat", f"race{number}")[-1]
            answers = list(pool.map(lambda at, body=body: post(gates[at % 2], "openai-chat", body), range(8)))
            assert {answer.status_code for answer in answers} == {200}
            assert len({raw.body for raw in upstream.raw}) == 1
            assert len({answer.headers["x-kompakt-session"] for answer in answers}) == 1


def test_a_stopped_gateway_finishes_its_streams(tmp_path: Path) -> None:
    hold, chunks = threading.Event(), events("openai-chat")
    reply = Reply(chunks, 200, {"content-type": "text/event-stream"}, [hold])
    body = request("openai-chat", history("openai-chat", 2), stream=True)
    url = PATHS["openai-chat"]
    with ExitStack() as stack:
        upstream = stack.enter_context(Upstream(reply))
        gate = stack.enter_context(replica(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}", folder=tmp_path))
        answer = stack.enter_context(
            httpx.stream("POST", gate.url + url, json=body, headers=HEADERS["openai-chat"], timeout=120)
        )
        arriving = answer.iter_raw()
        got = next(arriving)
        gate.process.terminate()
        wait_for(lambda: not _takes(gate.url), "nothing new is taken")
        assert gate.process.poll() is None
        hold.set()
        assert got + b"".join(arriving) == b"".join(chunks)
        assert gate.process.wait(15) == 0


def _takes(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False
