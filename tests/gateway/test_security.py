"""Attacks on the gateway: reading sessions of other tenants, reaching other hosts, blocking it, learning secrets."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway.gateway_server import KEYS, SECRET, Gate, gateway, hashed
from tests.gateway.payloads import CREDENTIAL, FORMATS, HEADERS, PATHS, answering, history, request
from tests.gateway.upstreams import Reply, Upstream, wait_for

from kompakt.gateway.errors import error_body

KEY_A, KEY_B = KEYS
HASHED = hashed(KEYS)
CHAT = PATHS["openai-chat"]
COMPACTIONS = "kompakt_compactions_total"
each_format = pytest.mark.parametrize("format", FORMATS)


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream(answering) as upstream:
        yield upstream


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'k.db'}"


def ask(gate: Gate, format: str, rounds: int, tag: str, **headers: str) -> httpx.Response:
    body = request(format, history(format, rounds, size=60, tag=tag))
    return httpx.post(gate.url + PATHS[format], json=body, headers={**HEADERS[format], **headers}, timeout=120)


def talked(gate: Gate, tag: str, **headers: str) -> str:
    """Hold a session of two requests; return its id once it is stored."""
    ask(gate, "openai-chat", 20, tag, **headers)
    answer = ask(gate, "openai-chat", 40, tag, **headers)
    assert answer.status_code == 200
    id = answer.headers["x-kompakt-session"]
    own = {name: value for name, value in headers.items() if name.startswith("x-kompakt")} or HEADERS["openai-chat"]
    wait_for(lambda: f"marker00003{tag}" in recall(gate, id, f"marker00003{tag}", **own).text, "it is stored")
    return id


def recall(gate: Gate, id: str, asked: str, **headers: str) -> httpx.Response:
    return gate.get(f"/kompakt/sessions/{id}/recall", params={"q": asked}, headers=headers)


# --- tenants ------------------------------------------------------------------------------------------------------


def test_one_tenant_never_reads_another(upstream: Upstream, store: str) -> None:
    a, b = {"x-kompakt-key": KEY_A}, {"x-kompakt-key": KEY_B}
    with gateway(upstream.url, store=store, keys=HASHED) as gate:
        id = talked(gate, "secretofa", **a)
        assert gate.get(f"/kompakt/sessions/{id}", headers=a).status_code == 200
        for path in ("", "/recall?q=marker00003secretofa", "/export", "/messages", "/compactions", "/inspect"):
            answer = gate.get(f"/kompakt/sessions/{id}{path}", headers=b)
            assert answer.status_code in (403, 404), path
            assert "secretofa" not in answer.text
        listed = gate.get("/kompakt/sessions", headers=b).text + gate.get("/inspect", headers=b).text
        assert id not in listed and "secretofa" not in listed
        for headers in ({}, {"x-kompakt-key": "wrong"}, {"authorization": f"Bearer {CREDENTIAL}"}):
            for path in ("/kompakt/sessions", f"/kompakt/sessions/{id}", "/inspect"):
                shown = gate.get(path, headers=headers)
                assert id not in shown.text.replace(path, "") and "secretofa" not in shown.text
        # the name of a's session does not help b
        answer = ask(gate, "openai-chat", 40, "ofb", **b, **{"x-kompakt-session": id})
        assert answer.status_code == 200 and b"secretofa" not in upstream.raw[-1].body
        assert not recall(gate, answer.headers["x-kompakt-session"], "secretofa", **b).json()["found"]
        found = recall(gate, id, "marker00003ofb", **a).json()
        assert not found["found"] or "marker00003ofb" not in found["text"].partition("\n")[2]
        for method in ("DELETE", "POST", "PUT"):
            httpx.request(method, f"{gate.url}/kompakt/sessions/{id}", headers=b, timeout=120)
        assert "marker00003secretofa" in recall(gate, id, "marker00003secretofa", **a).text


def test_the_same_history_of_another_tenant_is_another_session(upstream: Upstream, store: str) -> None:
    """Replayed word for word, a's history finds nothing that was made for a."""
    with gateway(upstream.url, store=store, keys=HASHED) as gate:
        made, sessions = [], []
        for key in (KEY_A, KEY_A, KEY_B, KEY_B):
            answer = ask(gate, "openai-chat", 40, "same", **{"x-kompakt-key": key})
            sessions.append(answer.headers["x-kompakt-session"])
            shown = gate.get("/metrics", headers={"x-kompakt-key": key}).text
            made.append(sum(float(line.split()[-1]) for line in shown.splitlines() if line.startswith(COMPACTIONS)))
        assert made[0] == made[1] < made[2] == made[3]
        assert sessions[0] == sessions[1] != sessions[2] == sessions[3]


def test_credentials_are_tenants_of_their_own(upstream: Upstream, store: str) -> None:
    with gateway(upstream.url, store=store) as gate:
        id = talked(gate, "first")
        other = ask(gate, "openai-chat", 40, "first", authorization="Bearer sk-somebody-else")
        assert other.headers["x-kompakt-compaction"] and other.headers["x-kompakt-session"] != id
        seen = recall(gate, id, "marker00003first", authorization="Bearer sk-somebody-else")
        assert seen.status_code in (403, 404) and "marker00003" not in seen.text
        assert other.headers.get("x-kompakt-tenant") == "new"


def test_without_a_key_nothing_is_served_where_keys_are_needed(upstream: Upstream, store: str) -> None:
    with gateway(upstream.url, store=store, keys=HASHED) as gate:
        for format in FORMATS:
            for headers in ({}, {"x-kompakt-key": "unknown"}, {"x-kompakt-key": KEY_A + "x"}):
                answer = ask(gate, format, 2, "none", **headers)
                assert answer.status_code == 401 and "error" in answer.json()
        assert upstream.raw == []


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:80"},
        {"host": "127.0.0.1.evil.example"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"x-forwarded-for": "127.0.0.1"},
        {"sec-fetch-site": "cross-site"},
    ],
    ids=str,
)
def test_pages_of_others_get_nothing_from_this_machine(headers: dict[str, str], upstream: Upstream, store: str) -> None:
    with gateway(upstream.url, store=store) as gate:
        for path in ("/metrics", "/inspect", "/kompakt/sessions", "/kompakt/sessions/x/recall?q=a"):
            answer = gate.get(path, headers=headers)
            assert answer.status_code in (401, 403), (path, answer.status_code)


@pytest.mark.parametrize("id", ["..%2f..%2fetc%2fpasswd", "%00", "a" * 5_000, "'; DROP TABLE rows; --"])
def test_ids_that_are_none(id: str, upstream: Upstream, store: str) -> None:
    with gateway(upstream.url, store=store) as gate:
        answer = gate.get(f"/kompakt/sessions/{id}/recall?q=x")
        assert answer.status_code in (400, 404, 414, 422) and "root:" not in answer.text
        if id.isprintable() and "%" not in id:
            named = ask(gate, "openai-chat", 2, "id", **{"x-kompakt-session": id})
            assert named.status_code in (200, 400)
        assert gate.get("/healthz").status_code == 200


# --- bodies -------------------------------------------------------------------------------------------------------

DEEP = b"[" * 200_000
BODIES = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"{}",
    b'"text"',
    b"\xff\xfe\x00",
    b"\xef\xbb\xbf{}",
    DEEP,
    b'{"messages":' + DEEP,
    b'{"messages": [' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"]}",
    b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"model": "m", "messages": [{"role": "user", "content": 1e999}]}',
    b'{"model": "m", "messages": [NaN]}',
    b'{"model": "m", "messages": {"role": "user"}}',
    b'{"model": 5, "messages": "text"}',
    b'{"model": "m", "messages": [null, 1, "a", []]}',
    b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "messages": 7}',
    b'{"model": "m", "input": 12, "contents": [[]]}',
    b'{"model": "' + b"m" * 100_000 + b'", "messages": []}',
    b'{"model": "m", "max_tokens": -1, "messages": [{"role": "user", "content": "x"}]}',
    b'{"model": "m", "max_tokens": 1e400, "messages": [{"role": "user", "content": "x"}]}',
    b'{"model": "m", "max_tokens": 99999999999999999999999, "messages": [{"role": "user", "content": "x"}]}',
]


def test_invalid_bodies_pass_or_are_rejected(upstream: Upstream, store: str) -> None:
    """The provider judges bodies: any body is passed on unchanged or rejected, and nothing breaks."""
    with gateway(upstream.url, store=store) as gate, httpx.Client(base_url=gate.url, timeout=120) as client:
        for format in FORMATS:
            for body in BODIES:
                before = len(upstream.raw)
                answer = client.post(PATHS[format], content=body, headers=HEADERS[format])
                assert answer.status_code < 500, (format, body[:60], answer.text[:200])
                if answer.status_code == 200:
                    assert upstream.raw[-1].body == body
                else:
                    assert len(upstream.raw) == before and "error" in answer.json()


@each_format
def test_numbers_and_nesting_beyond_the_limits_are_refused_in_the_shape_of_the_provider(
    format: str, upstream: Upstream, store: str
) -> None:
    """Beside the messages and inside them, whether the gateway knows the beginning of the request or not."""
    values = ["9" * 4_301, "9" * 50_000, "[" * 250 + "]" * 250, '{"a":' * 250 + "1" + "}" * 250]
    with gateway(upstream.url, store=store) as gate, httpx.Client(base_url=gate.url, timeout=120) as client:
        for rounds in (1, 12):
            items = history(format, rounds)
            sending: dict[str, Any] = {
                "url": PATHS[format],
                "headers": {**HEADERS[format], "content-type": "application/json"},
            }
            assert client.post(**sending, content=json.dumps(request(format, items))).status_code == 200
            sent = len(upstream.raw)
            fresh = {**items[-1], "extra": "VALUE"}
            bodies = [request(format, items, **{name: "VALUE"}) for name in ("metadata", "max_tokens", "tools")]
            bodies += [request(format, [*items, fresh]), {"metadata": "VALUE", **request(format, items)}]
            for body in bodies:
                for value in values:
                    answer = client.post(**sending, content=json.dumps(body).replace('"VALUE"', value))
                    assert answer.status_code == 400, (body.keys(), value[:10], answer.text)
                    assert answer.headers["x-kompakt-refusal"] == "invalid_json"
                    assert answer.json() == error_body(format, 400, answer_text(answer), code="invalid_json")
                    assert "4,300 digits" in answer_text(answer)
            assert len(upstream.raw) == sent


def answer_text(answer: httpx.Response) -> str:
    """Return the message of an error, which has the same place in all formats."""
    return answer.json()["error"]["message"]


def test_long_histories_that_break_every_rule_do_not_break_the_gateway(upstream: Upstream, store: str) -> None:
    good = history("openai-chat", 60, tag="broken")
    changes: list[Any] = [
        [*good[:5], {"role": "tool", "tool_call_id": "unknown", "content": "x"}, *good[5:]],
        [item for item in good if item["role"] != "tool"],
        [{**item, "content": None} for item in good],
        [*good, None],
        [{**item, "role": "unknown"} for item in good],
        [*good, {"role": "user", "content": [{"type": "new_part", "data": "x" * 200_000}]}],
        [{"role": "user", "content": "x " * 200_000}],
    ]
    with gateway(upstream.url, store=store) as gate, httpx.Client(base_url=gate.url, timeout=120) as client:
        for items in changes:
            body = json.dumps(request("openai-chat", items)).encode()
            answer = client.post(CHAT, content=body, headers=HEADERS["openai-chat"])
            assert answer.status_code == 200 or (400 <= answer.status_code < 500 and "error" in answer.json())
        assert ask(gate, "openai-chat", 60, "after").status_code == 200


@each_format
def test_bodies_too_large_are_refused_in_the_providers_words(format: str, upstream: Upstream, store: str) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(200):
            yield b"x" * 1_000

    with gateway(upstream.url, store=store, max_body=50_000) as gate:
        for content in (b"x" * 60_000, pieces()):
            answer = httpx.post(gate.url + PATHS[format], content=content, headers=HEADERS[format], timeout=120)
            assert answer.status_code == 413 and "error" in answer.json()
        assert upstream.raw == []
        assert httpx.post(gate.url + PATHS[format], content=b"{}", headers=HEADERS[format]).status_code < 500


def test_headers_too_large_are_refused(upstream: Upstream, store: str) -> None:
    with gateway(upstream.url, store=store, max_header=4_096) as gate:
        answer = httpx.post(gate.url + CHAT, content=b"{}", headers={"x-long": "a" * 5_000}, timeout=120)
        assert answer.status_code == 431 and upstream.raw == []


def test_too_many_requests_at_once_get_retry_after(store: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    slow = Reply([b"{}"], delay=1.5)
    with (
        Upstream(slow) as upstream,
        gateway(upstream.url, store=store, max_per_tenant=3, max_concurrency=5) as gate,
        ThreadPoolExecutor(12) as pool,
    ):
        answers = list(pool.map(lambda at: ask(gate, "openai-chat", 1, f"many{at}"), range(12)))
        codes = sorted(answer.status_code for answer in answers)
        assert codes.count(200) == 3 and codes.count(429) == 9
        assert all("retry-after" in answer.headers for answer in answers if answer.status_code == 429)


# --- secrets ------------------------------------------------------------------------------------------------------


def test_credentials_are_nowhere_but_upstream(
    upstream: Upstream, store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secrets = [CREDENTIAL, KEY_A, SECRET, "key-in-the-query-0123"]
    with caplog.at_level(logging.DEBUG), gateway(upstream.url, store=store, keys=HASHED) as gate:
        for format in FORMATS:
            for rounds in (2, 40, 42):
                assert ask(gate, format, rounds, "log", **{"x-kompakt-key": KEY_A}).status_code == 200
        assert {raw.header("authorization") for raw in upstream.raw} >= {f"Bearer {CREDENTIAL}"}
        body = request("gemini", history("gemini", 40))
        httpx.post(
            f"{gate.url}{PATHS['gemini']}?key=key-in-the-query-0123",
            json=body,
            headers={"x-kompakt-key": KEY_A},
            timeout=120,
        )
        assert upstream.raw[-1].target.endswith("?key=key-in-the-query-0123")
        upstream.plan = Reply([CREDENTIAL.encode()], 500)
        ask(gate, "openai-chat", 2, "log", **{"x-kompakt-key": KEY_A})
        shown = gate.get("/metrics", headers={"x-kompakt-key": KEY_A}).text
    logged = [record for record in caplog.records if record.name.startswith("kompakt")]
    assert logged
    text = shown + "".join(f"{record.getMessage()} {record.__dict__}" for record in logged)
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in secrets:
        assert secret not in text and secret.encode() not in kept
    assert "marker00003" not in text
