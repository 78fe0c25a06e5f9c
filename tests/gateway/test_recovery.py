"""Failures of the provider and the store: a request that is too long after all, a store that is down."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway.client_sessions import TASK, Talk, scripted
from tests.gateway.gateway_server import WINDOW, Gate, gateway
from tests.gateway.payloads import FORMATS, HEADERS, PATHS, STREAMED, answering, history, request
from tests.gateway.upstreams import KEYS, Recorded, Reply, Upstream, said
from tests.judges import judge
from tests.provider.sdk_agent import each_way
from tests.provider.token_count import count_head, count_item

from kompakt.errors import StoreUnavailable

each_format = pytest.mark.parametrize("format", FORMATS)


@each_format
@each_way
def test_an_overflow_is_recovered_inside(format: str, stream: bool, tmp_path: Path) -> None:
    """The provider counts more than the gateway does, and the client never hears of it."""
    script = scripted(14)
    with (
        Recorded(script, window=WINDOW, estimate_factor=1.5) as provider,
        gateway(provider.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate,
    ):
        talk = Talk(gate.url, format, stream=stream, lines=75)
        assert talk.run(script.task(TASK)) == 15
        talk.close()
        assert [record.refusal for record in provider.refusals] == [] and provider.violations == []
        assert 1 <= len(provider.overflows) <= 4
        assert all(one["status"] == "200" for one in talk.answers)
        assert gate.metric("kompakt_overflows_recovered_total") >= 1
        assert gate.metric('kompakt_compactions_total{reason="overflow"}') == len(provider.overflows)


def test_an_overflow_without_remedy_is_returned_unchanged(tmp_path: Path) -> None:
    """One message of the user alone is too long for the model: there is nothing to leave out."""
    error = {
        "error": {
            "message": "This model's maximum context length is 100 tokens. However, your messages resulted in 900.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    }
    with (
        Upstream(said(error, 400)) as upstream,
        gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate,
    ):
        body = request("openai-chat", [{"role": "user", "content": "word " * 800}])
        answer = httpx.post(gate.url + PATHS["openai-chat"], json=body, headers=HEADERS["openai-chat"], timeout=120)
        assert (answer.status_code, answer.json()) == (400, error)
        assert len(upstream.raw) <= 4


LONG = "prompt is too long: 9000 tokens > 6000 maximum"
QUOTES = {
    "openai-chat": {"choices": [{"index": 0, "delta": {"content": f'error: "{LONG}"'}}]},
    "openai-responses": {"type": "response.output_text.delta", "delta": f'error: "{LONG}"'},
    "anthropic": {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": f"error: {LONG}"}},
    "gemini": {"candidates": [{"content": {"role": "model", "parts": [{"text": f'error: "{LONG}"'}]}}]},
}
REFUSALS = {
    "openai-chat": {"error": {"message": LONG, "code": "context_length_exceeded"}},
    "openai-responses": {"type": "response.failed", "response": {"error": {"code": "server_error", "message": LONG}}},
    "anthropic": {"type": "error", "error": {"type": "invalid_request_error", "message": LONG}},
    "gemini": {"error": {"code": 400, "message": LONG, "status": "INVALID_ARGUMENT"}},
}


def streamed(body: dict[str, Any]) -> Reply:
    name = f"event: {body['type']}\n" if "type" in body else ""
    return Reply([f"{name}data: {json.dumps(body)}\n\n".encode()], 200, {"content-type": "text/event-stream"})


class TestStreamedAnswers:
    @each_format
    def test_that_quote_an_overflow_are_passed_on(self, format: str, tmp_path: Path) -> None:
        """Text of the model is not an overflow error, and no number in it becomes the size of the window."""
        reply = streamed(QUOTES[format])
        more = {} if format == "gemini" else {"stream": True}
        with Upstream(reply) as upstream, gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate:
            for rounds in (2, 3):
                body = request(format, history(format, rounds), **more)
                answer = httpx.post(gate.url + STREAMED[format], json=body, headers=HEADERS[format], timeout=120)
                assert answer.content == b"".join(reply.chunks) and answer.headers["x-kompakt-outcome"] == "fits"
            assert len(upstream.raw) == 2 and gate.metric("kompakt_overflows_recovered_total") == 0

    @each_format
    def test_that_are_refusals_are_recovered(self, format: str, tmp_path: Path) -> None:
        """A provider that reports the overflow in an event, with status 200, is sent less."""
        good = streamed({"choices": []})
        replies = [streamed(REFUSALS[format]), good]
        more = {} if format == "gemini" else {"stream": True}
        with (
            Upstream(lambda _: replies.pop(0)) as upstream,
            gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate,
        ):
            body = request(format, history(format, 6), **more)
            answer = httpx.post(gate.url + STREAMED[format], json=body, headers=HEADERS[format], timeout=120)
            assert answer.content == b"".join(good.chunks) and answer.headers["x-kompakt-outcome"] == "compacted"
            assert len(upstream.raw) == 2 and gate.metric("kompakt_overflows_recovered_total") == 1

    @pytest.mark.parametrize("last", ["too long", "failed"])
    def test_a_request_that_is_never_accepted_is_not_counted_as_recovered(self, last: str, tmp_path: Path) -> None:
        refusal = {"error": {"message": LONG, "code": "context_length_exceeded"}}
        replies = [said(refusal, 400)] + [said(refusal, 400) if last == "too long" else said({}, 500)] * 5
        with (
            Upstream(lambda _: replies.pop(0)) as upstream,
            gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate,
        ):
            body = request("openai-chat", history("openai-chat", 60))
            answer = httpx.post(gate.url + PATHS["openai-chat"], json=body, headers=HEADERS["openai-chat"], timeout=120)
            assert answer.status_code >= 400 and len(upstream.raw) >= 2
            assert gate.metric("kompakt_overflows_recovered_total") == 0


# --- a store that is down -----------------------------------------------------------------------------------------


def ask(gate: Gate, format: str, rounds: int, tag: str, **headers: str) -> httpx.Response:
    body = json.dumps(request(format, history(format, rounds, size=60, tag=tag)))
    return httpx.post(gate.url + PATHS[format], content=body, headers={**HEADERS[format], **headers}, timeout=120)


def fits(upstream: Upstream, format: str) -> None:
    """Assert that the last request upstream is valid and fits."""
    body = upstream.raw[-1].json
    assert judge(format, {**body, "model": "gemini-3-pro"} if format == "gemini" else body) == []
    tokens = count_head(None, body["tools"]) + sum(count_item(item) for item in body[KEYS[format]])
    assert tokens + 500 <= WINDOW
    assert "Never touch the migrations folder." in upstream.raw[-1].body.decode()


def broken(records: Any, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    async def fail(*arguments: Any, **options: Any) -> Any:
        raise StoreUnavailable("the store is down")

    for name in names:
        monkeypatch.setattr(records, name, fail)


READS = ("notes", "head", "heads", "rows", "rows_at", "events", "named", "blobs", "search")
WRITES = ("note", "commit", "acquire", "renew", "release")


@each_format
@pytest.mark.parametrize("names", [READS + WRITES, WRITES], ids=["gone", "read-only"])
def test_requests_are_served_without_the_store(
    format: str, names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kompakt.store.sql.sqlite import SqliteRecords

    with (
        Upstream(answering) as upstream,
        gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate,
    ):
        assert "x-kompakt-degraded" not in ask(gate, format, 4, "down").headers
        known = ask(gate, format, 40, "known")
        assert "x-kompakt-compaction" in known.headers
        substituted = upstream.raw[-1].body
        broken(SqliteRecords, monkeypatch, *names)
        small = ask(gate, format, 4, "small")
        assert small.status_code == 200
        sent = json.dumps(request(format, history(format, 4, size=60, tag="small"))).encode()
        assert upstream.raw[-1].body == sent  # it fits and was never substituted
        long = ask(gate, format, 40, "long")
        assert long.status_code == 200 and long.headers["x-kompakt-degraded"]
        fits(upstream, format)
        again = ask(gate, format, 42, "known")
        assert again.status_code == 200
        fits(upstream, format)
        assert gate.metric("kompakt_degraded_total") >= 1
        assert gate.metric("kompakt_store_failures_total") >= 1
        monkeypatch.undo()
        back = ask(gate, format, 40, "known")
        assert back.status_code == 200 and "x-kompakt-degraded" not in back.headers
        assert upstream.raw[-1].body == substituted


def test_a_history_that_was_substituted_is_compacted_even_where_it_fits_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the store the same history is compacted again from the request, with the same result each time."""
    from kompakt.store.sql.sqlite import SqliteRecords

    with (
        Upstream(answering) as upstream,
        gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate,
    ):
        broken(SqliteRecords, monkeypatch, *READS, *WRITES)
        sent = []
        for _ in range(3):
            assert ask(gate, "openai-chat", 40, "stateless").status_code == 200
            sent.append(upstream.raw[-1].body)
        assert len(set(sent)) == 1


def test_requests_are_served_while_another_process_locks_the_store(tmp_path: Path) -> None:
    path = tmp_path / "k.db"
    with Upstream(answering) as upstream, gateway(upstream.url, store=f"sqlite:///{path}", store_timeout=0.2) as gate:
        assert ask(gate, "anthropic", 4, "locked").status_code == 200
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        try:
            for rounds in (4, 40, 42):
                answer = ask(gate, "anthropic", rounds, "locked")
                assert answer.status_code == 200
            assert answer.headers["x-kompakt-degraded"] == "store-unavailable"
            fits(upstream, "anthropic")
        finally:
            other.execute("ROLLBACK")
            other.close()


@pytest.mark.slow
def test_postgres_stopped_and_started_again(tmp_path: Path) -> None:
    from tests.contract import postgres

    store = postgres.database()
    with Upstream(answering) as upstream, gateway(upstream.url, store=store) as gate:
        assert "x-kompakt-compaction" in ask(gate, "openai-chat", 40, "pg").headers
        before = upstream.raw[-1].body
        postgres.stop()
        try:
            for rounds in (4, 40, 42):
                answer = ask(gate, "openai-chat", rounds, "pg2")
                assert answer.status_code == 200
                fits(upstream, "openai-chat")
            assert answer.headers["x-kompakt-degraded"]
            assert gate.get("/healthz").status_code == 200
            assert gate.get("/readyz").status_code == 503
        finally:
            postgres.start()
        answer = ask(gate, "openai-chat", 40, "pg")
        assert answer.status_code == 200 and upstream.raw[-1].body == before


def test_a_store_that_is_not_there_at_the_start(tmp_path: Path) -> None:
    """Either the gateway says so and does not start, or it serves without; it never refuses requests for the store."""
    store = f"postgresql://postgres@/nothing?host={tmp_path}"
    with Upstream(answering) as upstream, gateway(upstream.url, store=store) as gate:
        answer = ask(gate, "openai-chat", 40, "never")
        assert answer.status_code == 200 and answer.headers["x-kompakt-degraded"]
        fits(upstream, "openai-chat")
