"""Wrapped clients whose provider rejects a request as too long: shortened, sent again, and finally a typed error."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anthropic
import openai
import pytest
from tests.agent.test_wrap import answer_of, async_clients, aused, calls_of, history, streamed, sync_clients, used

import kompakt
from kompakt.agent.wrap import wrap
from kompakt.agent.wrap.requests import TRIES
from kompakt.errors import Overflowed

ESSAY = "\n".join(f"Paragraph {number} says what berth {number} holds." for number in range(1_000))
SMALL = [
    m for n in range(8) for m in ({"role": "user", "content": f"Q{n}?"}, {"role": "assistant", "content": f"A{n}."})
]
LONG = [
    *SMALL,
    {"role": "user", "content": "Write."},
    {"role": "assistant", "content": ESSAY},
    {"role": "user", "content": "And now?"},
]
LIMIT = 4_000


class Line:
    """A server that rejects requests above a token limit."""

    limit = LIMIT
    in_stream = False
    states = True
    url = ""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.refused = 0

    def answer(self, path: str, body: Any) -> tuple[int, bytes]:
        self.bodies.append(body)
        format = "openai-responses" if "responses" in path else "anthropic" if "messages" in path else "openai-chat"
        assert kompakt.check(body, format) == []
        counted = kompakt.count(body, format=format).total
        if counted <= self.limit:
            return 200, answer_of(path, body)
        self.refused += 1
        if format == "anthropic":
            message = (
                f"prompt is too long: {counted} tokens > {self.limit} maximum" if self.states else "prompt is too long"
            )
            return 400, json.dumps(
                {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
            ).encode()
        message = f"maximum context length is {self.limit} tokens. However, your messages resulted in {counted} tokens."
        error = {"message": message if self.states else "too long", "code": "context_length_exceeded", "type": "x"}
        if not (self.in_stream and body.get("stream")):
            return 400, json.dumps({"error": error}).encode()
        if format == "openai-chat":
            return 200, streamed([{"error": error}])
        failed = {
            "id": "r",
            "object": "response",
            "created_at": 1,
            "model": "gpt-5",
            "output": [],
            "tools": [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "status": "failed",
            "error": error,
        }
        created = {**failed, "status": "in_progress", "error": None}
        return 200, streamed(
            [
                {"type": "response.created", "sequence_number": 0, "response": created},
                {"type": "response.failed", "sequence_number": 1, "response": failed},
            ],
            named=True,
        )


@pytest.fixture
def line() -> Iterator[Line]:
    found = Line()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, made = found.answer(self.path, body)
            self.send_response(status)
            kind = "text/event-stream" if body.get("stream") and status == 200 else "application/json"
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(made)))
            self.end_headers()
            self.wfile.write(made)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize("kind", ["openai", "azure", "anthropic"])
def test_a_rejected_request_is_shortened_where_it_grew_and_sent_again(line: Line, kind: str, states: bool) -> None:
    """In every way of calling: older messages stay, the very large answer is shortened."""
    line.states = states
    with sync_clients(line.url)[kind] as plain:
        for number in range(len(calls_of(kind, plain, LONG))):
            client = wrap(plain, budget=100_000)
            line.refused = 0
            assert used(calls_of(kind, client, LONG)[number]()) is not None
            assert 0 < line.refused <= TRIES
            sent = json.dumps(history(line.bodies[-1]))
            assert all(f"Q{n}?" in sent and f"A{n}." in sent for n in range(8)) and "Paragraph 0 says" in sent
            assert len(sent) < len(json.dumps(LONG))


@pytest.mark.parametrize("kind", ["openai", "azure", "anthropic"])
def test_asynchronous_clients(line: Line, kind: str) -> None:
    async def main() -> None:
        plain = async_clients(line.url)[kind]
        for number in range(len(calls_of(kind, plain, LONG))):
            client = wrap(plain, budget=100_000)
            line.refused = 0
            assert await aused(calls_of(kind, client, LONG)[number]()) is not None
            assert 0 < line.refused <= TRIES
        await plain.close()

    asyncio.run(main())


def test_a_rejection_inside_a_stream(line: Line) -> None:
    """An error event at the start of a stream is a rejection; the caller sees only the second stream."""
    line.in_stream = True

    async def main() -> None:
        async with async_clients(line.url)["openai"] as plain:
            for number in (1, 6):
                assert [
                    one.type
                    for one in await aused(calls_of("openai", wrap(plain, budget=100_000), LONG)[number]())
                    if hasattr(one, "type")
                ] in ([], ["response.completed"])

    with sync_clients(line.url)["openai"] as plain:
        for number in (1, 6):
            line.refused = 0
            made = used(calls_of("openai", wrap(plain, budget=100_000), LONG)[number]())
            assert len(made) == 1 and line.refused == 1
    asyncio.run(main())


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_the_final_error_is_kompakts_and_the_sdks(line: Line, kind: str) -> None:
    """Handlers of either error catch it."""
    line.limit = 1
    own: Any = {"openai": openai.BadRequestError, "anthropic": anthropic.BadRequestError}[kind]

    async def main() -> None:
        async with async_clients(line.url)[kind] as plain:
            with pytest.raises(Overflowed) as caught:
                await calls_of(kind, wrap(plain, budget=100_000), LONG)[0]()
            assert isinstance(caught.value, own)

    with sync_clients(line.url)[kind] as plain:
        with pytest.raises(Overflowed, match="too long") as caught:
            calls_of(kind, wrap(plain, budget=100_000), LONG)[0]()
        assert isinstance(caught.value, own) and caught.value.status == 400
        assert caught.value.overflow.limit == 1 and caught.value.response.status_code == 400
        assert line.refused <= TRIES + 1
    asyncio.run(main())


def test_the_accepted_size_is_remembered(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    with sync_clients(line.url)["openai"] as plain, caplog.at_level(logging.WARNING, "kompakt.agent"):
        client = wrap(plain, budget=100_000)
        for turn in range(4):
            client.chat.completions.create(
                model="gpt-5",
                messages=[*LONG, {"role": "assistant", "content": "So."}, {"role": "user", "content": f"More {turn}?"}],
            )
    assert line.refused == 1 and caplog.text.count("overflow: the provider rejected a request of") == 1


def test_other_errors_are_raised_unchanged(line: Line) -> None:
    with sync_clients(line.url)["openai"] as plain:
        line.answer = lambda path, body: (400, b'{"error": {"message": "no such model", "code": "model_not_found"}}')  # type: ignore[method-assign]
        with pytest.raises(openai.BadRequestError, match="no such model") as caught:
            wrap(plain, budget=100_000).chat.completions.create(model="gpt-5", messages=LONG)
        assert not isinstance(caught.value, Overflowed)


@pytest.mark.parametrize("tokenizer", [len, kompakt.Counter(count=len)])
def test_a_tokenizer_replaces_the_counter(line: Line, tokenizer: Any) -> None:
    """20,000 characters are far fewer than 20,000 tokens."""
    line.limit = 1_000_000
    with sync_clients(line.url)["openai"] as plain:
        for given, cut in ((None, False), (tokenizer, True)):
            wrap(plain, budget=20_000, tokenizer=given).chat.completions.create(model="gpt-5", messages=LONG)
            assert (history(line.bodies[-1]) != LONG) == cut
