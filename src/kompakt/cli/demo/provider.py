"""A scripted provider without network, and one request that is too long for it. Used by ``kompakt demo``.

The request goes to the provider directly, and then compacted, by the library or by a gateway. The gateway listens on a
free local port and keeps its store in memory, so nothing is left when the request is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from kompakt import api
from kompakt.model.messages import JsonObject
from kompakt.wire.registry import WIRES

if TYPE_CHECKING:
    from httpx import AsyncBaseTransport

    from kompakt.gateway.config import GatewayConfig

WINDOW = 64_000
"""Context window of the scripted model. The bundled session is half as long again."""

RESERVE = 32_000
"""Part of the window that is kept free for the answer, as in the gateway."""

_PATH = "/v1/chat/completions"
_KEY = "demo"
_TIMEOUT = 60.0


class DemoExchange(msgspec.Struct, frozen=True, kw_only=True):
    """One request, sent as it is and sent compacted."""

    error_status: int
    error: JsonObject
    """What the provider answers to the request as it is."""
    status: int
    """What it answers to the compacted request."""
    sent: JsonObject
    """The compacted request."""
    recalled: str
    """What a search of the removed messages found."""


class ScriptedProvider:
    """A Chat Completions provider that answers every request that fits its window."""

    def __init__(self) -> None:
        self.accepted: list[JsonObject] = []

    def answer(self, body: JsonObject) -> tuple[int, JsonObject]:
        """Return the status and the body of the answer to a request."""
        tokens = api.count(body, format="openai-chat").total
        if tokens > WINDOW:
            message = f"This model's maximum context length is {WINDOW} tokens, but you sent {tokens} tokens."
            return 400, WIRES["openai-chat"].error_body(400, message, code="context_length_exceeded")
        self.accepted.append(body)
        message = {"role": "assistant", "content": "The fix is in. Next I run the whole suite."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": tokens, "completion_tokens": 12, "total_tokens": tokens + 12}
        return 200, {"id": "scripted", "model": body["model"], "choices": [choice], "usage": usage}


def send_by_library(body: JsonObject, question: str, tokens: int) -> DemoExchange:
    """Send a request as it is, and compacted by the library; then search the removed messages."""
    provider = ScriptedProvider()
    error_status, error = provider.answer(body)
    compacted = api.compact(body, WINDOW - RESERVE)
    status, _ = provider.answer(compacted.payload)
    return DemoExchange(
        error_status=error_status,
        error=error,
        status=status,
        sent=compacted.payload,
        recalled=compacted.recall(question, tokens=tokens).text,
    )


async def send_by_gateway(body: JsonObject, question: str, tokens: int) -> DemoExchange:
    """Send a request as it is, and through a gateway; then search the removed messages over HTTP."""
    import httpx  # late: needs the gateway extra

    from kompakt.gateway.config import GatewayConfig, Upstream
    from kompakt.gateway.tenants import hash_key

    provider = ScriptedProvider()
    error_status, error = provider.answer(body)

    async def handle(request: httpx.Request) -> httpx.Response:
        status, answer = provider.answer(msgspec.json.decode(await request.aread()))

        async def chunks() -> AsyncGenerator[bytes]:  # the gateway streams answers
            yield msgspec.json.encode(answer)

        return httpx.Response(status, headers={"content-type": "application/json"}, content=chunks())

    settings = GatewayConfig(
        port=0,
        store="memory:",
        upstreams={"openai": Upstream("openai", "http://scripted.invalid")},
        context_window=WINDOW,
        keys={hash_key(_KEY): "demo"},
        drain=1.0,
    )
    headers = {"x-kompakt-key": _KEY, "authorization": "Bearer demo"}
    async with (
        running(settings, httpx.MockTransport(handle)) as url,
        httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=_TIMEOUT) as client,
    ):
        answer = await client.post(_PATH, json=body)
        session = answer.headers.get("x-kompakt-session", "none")
        found = await client.get(f"/kompakt/sessions/{session}/recall", params={"q": question, "tokens": tokens})
    return DemoExchange(
        error_status=error_status,
        error=error,
        status=answer.status_code,
        sent=provider.accepted[-1] if provider.accepted else body,
        recalled=found.json().get("text", "") if found.status_code == 200 else "",
    )


@asynccontextmanager
async def running(settings: GatewayConfig, transport: AsyncBaseTransport | None = None) -> AsyncGenerator[str]:
    """Serve a gateway in this event loop and yield its URL."""
    from kompakt.gateway.app import create_app  # late: needs the gateway extra
    from kompakt.gateway.server import GatewayServer, listen, uvicorn_config

    app = create_app(settings, transport=transport)
    listening = listen(settings)
    server = GatewayServer(uvicorn_config(app, settings))
    async with app.state.gateway.lifespan():
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving
