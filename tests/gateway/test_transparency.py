"""What passes unchanged: bodies and headers that fit, all answers and errors, and streams as they arrive."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway.gateway_server import gateway
from tests.gateway.payloads import (
    ANSWERS,
    FORMATS,
    HEADERS,
    PATHS,
    STREAMED,
    answering,
    events,
    history,
    odd,
    request,
)
from tests.gateway.upstreams import KEYS, Raw, Reply, Upstream, said, wait_for
from tests.judges import judge

each_format = pytest.mark.parametrize("format", FORMATS)
OWN = "x-kompakt-"


class Stage:
    """An upstream, a gateway before it, and a client."""

    def __init__(self, upstream: Upstream, url: str) -> None:
        self.upstream, self.url = upstream, url
        self.client = httpx.Client(base_url=url, timeout=120)

    def post(self, format: str, content: bytes, **headers: str) -> httpx.Response:
        given = {"content-type": "application/json", **HEADERS[format], **headers}
        return self.client.post(PATHS[format], content=content, headers=given)

    @property
    def last(self) -> Raw:
        return self.upstream.raw[-1]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    store = tmp_path_factory.mktemp("gateway") / "k.db"
    with Upstream(answering) as upstream, gateway(upstream.url, store=f"sqlite:///{store}") as gate:
        stage = Stage(upstream, gate.url)
        yield stage
        stage.client.close()


@pytest.fixture
def stage(running: Stage) -> Stage:
    running.upstream.plan = answering
    return running


def own(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith(OWN)}


@each_format
def test_a_request_that_fits_passes_byte_for_byte(format: str, stage: Stage) -> None:
    body = odd(request(format, history(format, 3)))
    headers = {"x-custom": "kept, as it is", "user-agent": "agent/1.0", "x-request-id": "r-1"}
    answer = stage.post(format, body, **headers)
    assert answer.status_code == 200 and answer.json() == ANSWERS[format]
    assert stage.last.body == body
    assert stage.last.target == PATHS[format] and stage.last.method == "POST"
    sent = {"content-type": "application/json", "accept": "*/*", **HEADERS[format], **headers}
    assert stage.last.lasting == sorted(sent.items())
    assert answer.headers["x-kompakt-request"] == "r-1"


@each_format
def test_answers_come_back_byte_for_byte(format: str, stage: Stage) -> None:
    body = b'{ "usage" : {"prompt_tokens":1,\t"x":1.50},\n"odd": "\\u00e9"  }\n'
    named = {"content-type": "application/json; charset=utf-8", "openai-processing-ms": "12", "request-id": "req_7"}
    stage.upstream.plan = Reply([body[:20], body[20:]], 200, named)
    answer = stage.post(format, odd(request(format, history(format, 2))))
    assert answer.content == body
    assert {name: answer.headers[name] for name in named} == named


@each_format
@pytest.mark.parametrize("long", [False, True], ids=["fits", "substituted"])
def test_usage_is_left_true(format: str, long: bool, stage: Stage) -> None:
    items = history(format, 60 if long else 2, tag="usage")
    answer = stage.post(format, json.dumps(request(format, items)).encode())
    assert answer.json() == ANSWERS[format]
    before, after = int(answer.headers["x-kompakt-tokens-before"]), int(answer.headers["x-kompakt-tokens-after"])
    assert after < before / 2 if long else after == before
    assert ("x-kompakt-compaction" in answer.headers) == long


def test_an_encoded_answer_stays_encoded(stage: Stage) -> None:
    packed = gzip.compress(json.dumps(ANSWERS["openai-chat"]).encode())
    stage.upstream.plan = Reply([packed], 200, {"content-type": "application/json", "content-encoding": "gzip"})
    for rounds in (2, 60):
        body = json.dumps(request("openai-chat", history("openai-chat", rounds, tag="zip"))).encode()
        headers = {**HEADERS["openai-chat"], "accept-encoding": "gzip"}
        with stage.client.stream("POST", PATHS["openai-chat"], content=body, headers=headers) as answer:
            raw = b"".join(answer.iter_raw())
        encoded = answer.headers.get("content-encoding") == "gzip"
        assert json.loads(gzip.decompress(raw) if encoded else raw) == ANSWERS["openai-chat"]


ERRORS = [
    (400, b'{"error": {"message": "bad", "type": "invalid_request_error" } }', "application/json"),
    (
        401,
        b'{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}',
        "application/json",
    ),
    (429, b'{"error":{"message":"Too many tokens, please wait"}}', "application/json"),
    (500, b"<html>Internal</html>", "text/html"),
    (529, b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', "application/json"),
    (418, b"", "text/plain"),
]


@each_format
@pytest.mark.parametrize(("status", "body", "media"), ERRORS, ids=[str(error[0]) for error in ERRORS])
def test_errors_of_the_upstream_come_back_as_they_are(
    format: str, status: int, body: bytes, media: str, stage: Stage
) -> None:
    headers = {"content-type": media, "retry-after": "7", "x-should-retry": "true"}
    stage.upstream.plan = Reply([body], status, headers)
    asked = len(stage.upstream.raw)
    answer = stage.post(format, json.dumps(request(format, history(format, 2))).encode())
    assert (answer.status_code, answer.content) == (status, body)
    assert {name: answer.headers[name] for name in headers} == headers
    assert len(stage.upstream.raw) == asked + 1


def test_an_upstream_that_is_not_there_is_an_error_in_the_providers_shape(tmp_path: Path) -> None:
    from tests.gateway.gateway_server import free_port

    dead = f"http://127.0.0.1:{free_port()}"
    with gateway(dead, store=f"sqlite:///{tmp_path / 'k.db'}", connect_timeout=1.0) as gate:
        for format in FORMATS:
            body = json.dumps(request(format, history(format, 1)))
            answer = httpx.post(gate.url + PATHS[format], content=body, headers=HEADERS[format], timeout=120)
            assert answer.status_code in (502, 503, 504)
            assert "error" in answer.json() and "127.0.0.1" not in answer.text


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        ("GET", "/v1/models", HEADERS["openai-chat"]),
        ("GET", "/v1/models/some%2Fmodel?limit=3&a=%20b", HEADERS["openai-chat"]),
        ("GET", "/v1/models", HEADERS["anthropic"]),
        ("POST", "/v1/embeddings", HEADERS["openai-chat"]),
        ("POST", "/v1/messages/count_tokens", HEADERS["anthropic"]),
        ("POST", "/v1/messages/batches", HEADERS["anthropic"]),
        ("DELETE", "/v1/files/file-1", HEADERS["openai-chat"]),
        ("GET", "/v1/responses/resp_1", HEADERS["openai-chat"]),
        ("POST", "/v1beta/models/gemini-3-pro:countTokens", HEADERS["gemini"]),
        ("PUT", "/v1/some/new/path", HEADERS["openai-chat"]),
    ],
)
def test_what_is_not_known_passes(method: str, target: str, headers: dict[str, str], stage: Stage) -> None:
    content = b'{"any": "value"}' if method in ("POST", "PUT") else b""
    stage.upstream.plan = said({"echo": True}, 201, x_upstream="seen")
    answer = stage.client.request(method, target, content=content, headers=headers)
    assert (answer.status_code, answer.json(), answer.headers["x-upstream"]) == (201, {"echo": True}, "seen")
    assert (stage.last.method, stage.last.target, stage.last.body) == (method, target, content)
    assert all(stage.last.header(name) == value for name, value in headers.items())


@pytest.mark.parametrize(
    "more",
    [
        {"previous_response_id": "resp_0"},
        {"conversation": "conv_1"},
        {"conversation": {"id": "conv_1"}},
    ],
)
def test_conversations_that_the_server_keeps_are_left_alone(more: dict[str, Any], stage: Stage) -> None:
    body = odd(request("openai-responses", history("openai-responses", 60, tag="managed"), **more))
    answer = stage.post("openai-responses", body)
    assert answer.status_code == 200 and stage.last.body == body
    assert "x-kompakt-compaction" not in answer.headers


@each_format
def test_headers_of_the_gateway_stay_with_the_gateway(format: str, stage: Stage) -> None:
    own_headers = {
        "x-kompakt-session": "mine",
        "x-kompakt-policy": "default",
        "x-kompakt-key": "k",
        "X-Kompakt-Odd": "1",
    }
    for rounds in (2, 60):
        body = json.dumps(request(format, history(format, rounds, tag="own"))).encode()
        assert stage.post(format, body, **own_headers).status_code == 200
        assert not [name for name, _ in stage.last.headers if name.startswith(OWN)]
        assert all(stage.last.header(name) == value for name, value in HEADERS[format].items())


@each_format
@pytest.mark.parametrize("long", [False, True], ids=["fits", "substituted"])
def test_a_stream_arrives_chunk_by_chunk(format: str, long: bool, stage: Stage) -> None:
    """The first chunk is with the client before the upstream sends the second."""
    holds = [threading.Event(), threading.Event()]
    chunks = events(format)
    stage.upstream.plan = Reply(chunks, 200, {"content-type": "text/event-stream"}, holds)
    items = history(format, 60 if long else 2, tag="stream")
    more = {} if format == "gemini" else {"stream": True}
    body = json.dumps(request(format, items, **more)).encode()
    with stage.client.stream("POST", STREAMED[format], content=body, headers=HEADERS[format]) as answer:
        arriving = answer.iter_raw()
        assert answer.headers["content-type"] == "text/event-stream"
        for at, chunk in enumerate(chunks):
            assert next(arriving) == chunk
            if at < len(holds):
                assert not holds[at].is_set()
                holds[at].set()
        assert b"".join(arriving) == b""


def test_a_disconnected_client_ends_the_upstream_request(stage: Stage) -> None:
    hold = threading.Event()
    stage.upstream.plan = Reply(events("openai-chat"), 200, {"content-type": "text/event-stream"}, [hold])
    body = json.dumps(request("openai-chat", history("openai-chat", 2), stream=True)).encode()
    with stage.client.stream("POST", PATHS["openai-chat"], content=body, headers=HEADERS["openai-chat"]) as answer:
        next(answer.iter_raw())
    wait_for(lambda: stage.last.aborted, "the upstream notices")


def test_a_stream_that_breaks_off_breaks_off(stage: Stage) -> None:
    chunks = events("openai-chat")
    stage.upstream.plan = Reply(chunks, 200, {"content-type": "text/event-stream"}, breaks=True)
    body = json.dumps(request("openai-chat", history("openai-chat", 2), stream=True)).encode()
    got: list[bytes] = []
    with stage.client.stream("POST", PATHS["openai-chat"], content=body, headers=HEADERS["openai-chat"]) as answer:
        arriving = answer.iter_raw()
        with pytest.raises(httpx.RemoteProtocolError):
            got.extend(iter(lambda: next(arriving), None))
    assert b"".join(got) == b"".join(chunks)


@each_format
def test_a_history_too_long_becomes_one_that_fits_and_the_rest_passes(format: str, stage: Stage) -> None:
    body = request(format, history(format, 60, tag="fits"))
    body |= {"generationConfig": {"temperature": 0.25}} if format == "gemini" else {"temperature": 0.25, "top_p": 0.5}
    answer = stage.post(format, json.dumps(body).encode(), **{"x-custom": "kept"})
    sent = stage.last.json
    key = KEYS[format]
    assert answer.status_code == 200 and len(sent[key]) < len(body[key])
    own = {"tools", key}
    assert {name: value for name, value in sent.items() if name not in own} == {
        name: value for name, value in body.items() if name not in own
    }
    tools = [one["tools"][0]["functionDeclarations"] if format == "gemini" else one["tools"] for one in (sent, body)]
    functions, declared = tools
    assert functions[:-1] == declared and "recall" in json.dumps(functions[-1])
    asked = {**sent, "model": "gemini-3-pro"} if format == "gemini" else sent
    assert judge(format, asked) == []
    assert stage.last.header("x-custom") == "kept"
    assert int(stage.last.header("content-length") or 0) == len(stage.last.body)
    text = stage.last.body.decode()
    assert "Never touch the migrations folder." in text and "marker00059fits" in text
