"""Wrapped SDK clients: requests are compacted if they have to be, and sent unchanged otherwise."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anthropic
import openai
import pydantic
import pytest

import kompakt
from kompakt.agent.wrap import wrap
from kompakt.errors import UsageError
from kompakt.session.store import open_store
from kompakt.strategies import Truncation
from kompakt.triggers import over_messages

SMALL = [{"role": "user", "content": "task"}]
LONG = SMALL + [{"role": r, "content": f"{n} " + "word " * 300} for n in range(30) for r in ("assistant", "user")]
TOOL = {"name": "f", "description": "F.", "input_schema": {"type": "object", "properties": {}}}
BUDGET = 3_000


class Seen:
    def __init__(self) -> None:
        self.raw: list[tuple[str, bytes]] = []
        self.url = ""

    @property
    def body(self) -> Any:
        return json.loads(self.raw[-1][1])


CHAT = {"id": "c", "object": "chat.completion", "created": 1, "model": "gpt-5"}
SAID = {"role": "assistant", "content": '{"city": "Ulm"}'}
MESSAGE = {"id": "m", "type": "message", "role": "assistant", "model": "claude-opus-4-5", "stop_sequence": None}
USED = {"input_tokens": 1, "output_tokens": 1}
RESPONSE = {
    "id": "r", "object": "response", "created_at": 1, "model": "gpt-5", "output": [], "parallel_tool_calls": True,
    "tool_choice": "auto", "tools": [],
}  # fmt: skip


def answer_of(path: str, body: Any) -> bytes:
    """Return the answer to a request, whole or as a stream."""
    if "responses" in path:
        events = [{"type": "response.completed", "sequence_number": 1, "response": RESPONSE}]
        return streamed(events, named=True) if body.get("stream") else json.dumps(RESPONSE).encode()
    if "messages" in path:
        whole = {**MESSAGE, "content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn", "usage": USED}
        events = [
            {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": USED},
            {"type": "message_stop"},
        ]
        return streamed(events, named=True) if body.get("stream") else json.dumps(whole).encode()
    whole = {**CHAT, "choices": [{"index": 0, "finish_reason": "stop", "message": SAID}]}
    chunk = {**CHAT, "object": "chat.completion.chunk"}
    events = [{**chunk, "choices": [{"index": 0, "delta": SAID, "finish_reason": "stop"}]}]
    return streamed(events) + b"data: [DONE]\n\n" if body.get("stream") else json.dumps(whole).encode()


def streamed(events: list[Any], *, named: bool = False) -> bytes:
    lines = [(f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n" for event in events]
    return "".join(lines).encode()


@pytest.fixture
def server() -> Iterator[Seen]:
    seen = Seen()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            seen.raw.append((self.path, raw))
            made = answer_of(self.path, json.loads(raw))
            self.send_response(200)
            kind = "text/event-stream" if json.loads(raw).get("stream") else "application/json"
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(made)))
            self.end_headers()
            self.wfile.write(made)

        def log_message(self, *_: Any) -> None: ...

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    seen.url = f"http://127.0.0.1:{listening.server_port}"
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield seen
    listening.shutdown()
    listening.server_close()
    thread.join()


class City(pydantic.BaseModel):
    city: str


def sync_clients(url: str) -> dict[str, Any]:
    azure = {"azure_endpoint": url, "api_key": "k", "api_version": "2025-01-01"}
    return {
        "openai": openai.OpenAI(base_url=f"{url}/v1", api_key="k"),
        "azure": openai.AzureOpenAI(**azure),
        "anthropic": anthropic.Anthropic(base_url=url, api_key="k"),
    }


def async_clients(url: str) -> dict[str, Any]:
    azure = {"azure_endpoint": url, "api_key": "k", "api_version": "2025-01-01"}
    return {
        "openai": openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k"),
        "azure": openai.AsyncAzureOpenAI(**azure),
        "anthropic": anthropic.AsyncAnthropic(base_url=url, api_key="k"),
    }


def calls_of(kind: str, client: Any, messages: Any) -> list[Any]:
    """Return every way to send a history with a client, as functions."""
    if kind == "anthropic":
        given = {"model": "claude-opus-4-5", "max_tokens": 100, "messages": messages, "tools": [TOOL]}
        return [
            lambda: client.messages.create(**given),
            lambda: client.messages.create(**given, stream=True),
            lambda: client.messages.with_raw_response.create(**given),
            lambda: client.beta.messages.create(**given, betas=["context-management-2025-06-27"]),
            lambda: client.with_options(timeout=5).messages.create(**given, metadata={"user_id": "u"}),
        ]
    given = {"model": "gpt-5", "messages": messages}
    return [
        lambda: client.chat.completions.create(**given),
        lambda: client.chat.completions.create(**given, stream=True, temperature=0.3),
        lambda: client.chat.completions.parse(**given, response_format=City),
        lambda: client.chat.completions.with_raw_response.create(**given),
        lambda: client.with_options(timeout=5, max_retries=0).chat.completions.create(**given),
        lambda: client.responses.create(model="gpt-5", input=messages),
        lambda: client.responses.create(model="gpt-5", input=messages, stream=True),
    ]


def used(made: Any) -> Any:
    """Read a stream to its end."""
    return list(made) if isinstance(made, (openai.Stream, anthropic.Stream)) else made


async def aused(made: Any) -> Any:
    found = await made
    if isinstance(found, (openai.AsyncStream, anthropic.AsyncStream)):
        return [one async for one in found]
    return found


def history(body: Any) -> list[Any]:
    return body["input"] if "input" in body else body["messages"]


@pytest.mark.parametrize("kind", ["openai", "azure", "anthropic"])
def test_requests_that_fit_are_sent_unchanged(server: Seen, kind: str) -> None:
    plain = sync_clients(server.url)[kind]
    wrapped = wrap(plain, budget=100_000)
    assert type(wrapped).__name__ == type(plain).__name__ and isinstance(wrapped, type(plain))
    for bare, with_us in zip(calls_of(kind, plain, LONG), calls_of(kind, wrapped, LONG), strict=True):
        used(bare())
        used(with_us())
        assert server.raw[-1] == server.raw[-2]
    plain.close()
    wrapped.close()


@pytest.mark.parametrize("kind", ["openai", "azure", "anthropic"])
def test_requests_that_do_not_fit_are_compacted_in_every_way_of_sending(server: Seen, kind: str) -> None:
    with wrap(sync_clients(server.url)[kind], budget=BUDGET) as client:
        for send in calls_of(kind, client, LONG):
            made = used(send())
            assert made is not None
            format = {"/responses": "openai-responses", "/messages": "anthropic"}.get(
                "/" + server.raw[-1][0].partition("?")[0].rsplit("/", 1)[1], "openai-chat"
            )
            assert len(history(server.body)) < len(LONG)
            assert kompakt.count(server.body, format=format).total <= BUDGET
            assert kompakt.check(server.body, format) == [] and "task" in json.dumps(history(server.body)[:2])


@pytest.mark.parametrize("kind", ["openai", "azure", "anthropic"])
def test_asynchronous_clients(server: Seen, kind: str) -> None:
    async def main() -> None:
        plain = async_clients(server.url)[kind]
        loose, tight = wrap(plain, budget=100_000), wrap(plain, budget=BUDGET)
        sends = (calls_of(kind, one, LONG) for one in (plain, loose, tight))
        for bare, fits, cut in zip(*sends, strict=True):
            await aused(bare())
            await aused(fits())
            assert server.raw[-1] == server.raw[-2]
            await aused(cut())
            assert len(history(server.body)) < len(LONG)
        for one in (plain, loose, tight):
            await one.close()

    asyncio.run(main())


def test_a_history_stored_by_the_provider_is_unchanged(server: Seen) -> None:
    with wrap(sync_clients(server.url)["openai"], budget=BUDGET) as client:
        client.responses.create(model="gpt-5", input=LONG, previous_response_id="r")
        assert history(server.body) == LONG
        client.responses.create(model="gpt-5", input=LONG, conversation="c")
        assert history(server.body) == LONG
        client.responses.create(model="gpt-5", input="word " * 10)
        assert server.body["input"] == "word " * 10
        client.responses.compact(model="gpt-5", input=LONG)  # the provider's own compaction is not made before it
        assert history(server.body) == LONG


def test_wrapping_twice_uses_the_last_options(server: Seen) -> None:
    once = wrap(sync_clients(server.url)["openai"], budget=BUDGET)
    twice = wrap(once, budget=100_000)
    twice.chat.completions.create(model="gpt-5", messages=LONG)
    assert history(server.body) == LONG
    once.chat.completions.create(model="gpt-5", messages=LONG)
    assert len(history(server.body)) < len(LONG)
    once.close()
    twice.close()


def test_the_given_client_and_body_are_not_changed(server: Seen) -> None:
    with wrap(sync_clients(server.url)["openai"], budget=BUDGET) as client:
        given = json.loads(json.dumps(LONG))
        client.chat.completions.create(model="gpt-5", messages=given)
        assert given == LONG


def test_requests_that_cannot_fit_or_be_read_are_sent_unchanged(server: Seen) -> None:
    with wrap(sync_clients(server.url)["openai"], budget=BUDGET) as client:
        huge = [{"role": "user", "content": "word " * 9_000}]
        client.chat.completions.create(model="gpt-5", messages=huge)
        assert history(server.body) == huge
        odd: Any = [{"role": "unknown", "content": 3}]
        client.chat.completions.create(model="gpt-5", messages=odd)
        assert history(server.body) == odd


def test_a_store_saves_the_conversation(server: Seen) -> None:
    async def main() -> None:
        store = await open_store("memory:")
        for kind, format in (("openai", "openai-chat"), ("anthropic", "anthropic")):
            client = wrap(async_clients(server.url)[kind], budget=BUDGET, store=store)
            longer = [*LONG, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "and now?"}]
            for messages in (LONG, longer):
                await calls_of(kind, client, messages)[0]()
            kept = [s async for s in store.sessions() if (await s.head()).format == format]
            assert len(kept) == 1 and await kept[0].verify() == []
            edited = [LONG[0], *LONG[3:]]
            for messages in (edited, [*edited, *longer[-2:]]):
                await calls_of(kind, client, messages)[0]()
            await client.close()
            assert len([s async for s in store.sessions() if (await s.head()).format == format]) == 2
            exported: Any = await kept[0].export(view="full")
            assert exported["messages"] == longer

    asyncio.run(main())


def test_parallel_requests_with_one_history_are_all_answered_and_saved_once(server: Seen) -> None:
    async def main() -> None:
        store = await open_store("memory:")
        commit = store.records.commit

        async def slow(*given: Any, **options: Any) -> bool:
            await asyncio.sleep(0.01)
            return await commit(*given, **options)

        store.records.commit = slow
        async with wrap(async_clients(server.url)["openai"], budget=BUDGET, store=store) as client:
            asked = [client.chat.completions.create(model="gpt-5", messages=LONG) for _ in range(4)]
            await asyncio.gather(*asked)
        (saved,) = [session async for session in store.sessions()]
        exported: Any = await saved.export(view="full")
        assert exported["messages"] == LONG

    asyncio.run(main())


def test_a_request_is_sent_while_the_store_is_unavailable(server: Seen, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        store = await open_store("memory:")

        async def failing(*_: Any, **__: Any) -> bool:
            raise kompakt.StoreUnavailable("the disk is full")

        store.records.commit = failing
        async with wrap(async_clients(server.url)["openai"], budget=BUDGET, store=store) as client:
            await client.chat.completions.create(model="gpt-5", messages=LONG)

    asyncio.run(main())
    assert len(history(server.body)) < len(LONG)
    assert "compacted history not saved in the store: the disk is full" in caplog.text


def test_unsupported_clients_are_rejected(server: Seen) -> None:
    with pytest.raises(UsageError, match="cannot be wrapped"):
        wrap(object())
    store = asyncio.run(open_store("memory:"))
    with sync_clients(server.url)["openai"] as client, pytest.raises(UsageError, match="asynchronous"):
        wrap(client, store=store)


def test_a_strategy_with_a_trigger_serves_as_a_policy(server: Seen) -> None:
    """Far below the budget the trigger alone decides how many messages are sent."""
    strategy = Truncation(when=over_messages(10))
    with wrap(sync_clients(server.url)["openai"], budget=1_000_000, policy=strategy) as client:
        client.chat.completions.create(model="gpt-5", messages=LONG)
        assert len(history(server.body)) <= 10 and history(server.body)[0] == LONG[0]
        client.chat.completions.create(model="gpt-5", messages=LONG[:9])
        assert history(server.body) == LONG[:9]
