"""A scripted provider without network, and a session with it through a gateway: the last part of ``kompakt demo``.

The model calls one tool after another and then says that it is done. Like a real one it rejects requests that are
longer than its window. It measures how much of each request a prompt cache would serve.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from kompakt import api
from kompakt.gateway.app import Gateway, create_app
from kompakt.gateway.config import GatewayConfig, Upstream
from kompakt.gateway.errors import error_body
from kompakt.gateway.server import GatewayServer, listen, uvicorn_config

MODEL = "scripted"
TASK = "The nightly import fails. Find out why, fix it, and do not change the public interface."
QUESTION = "broker timeout seconds"

_FILES = ("importer/reader.py", "importer/rows.py", "importer/service.py", "importer/retry.py", "tests/test_rows.py")
_TOOLS = ("read_file", "run_tests", "search")


class ScriptedProvider:
    """A Chat Completions provider for one conversation."""

    def __init__(self, *, window: int, steps: int) -> None:
        self.window = window
        self.steps = steps
        self.step = 0
        self.tokens: list[int] = []
        """Tokens of each request."""
        self.refused = 0
        self.sent = 0
        """Bytes of all received messages."""
        self.repeated = 0
        """Bytes of those that are in the common prefix with the previous request: what a prompt cache serves."""
        self._last: list[str] = []
        self.app = Starlette(routes=[Route("/v1/chat/completions", self.complete, methods=["POST"])])

    async def complete(self, request: Request) -> JSONResponse:
        body = await request.json()
        tokens = api.count(body, format="openai-chat").total
        if tokens > self.window:
            self.refused += 1
            message = f"This model's maximum context length is {self.window} tokens, but you sent {tokens} tokens."
            return JSONResponse(error_body("openai-chat", 400, message, code="context_length_exceeded"), 400)
        self._remember([json.dumps(message) for message in body["messages"]])
        self.tokens.append(tokens)
        self.step += 1
        usage = {"prompt_tokens": tokens, "completion_tokens": 20, "total_tokens": tokens + 20}
        choice = {"index": 0, "message": self._answer(), "finish_reason": "stop"}
        return JSONResponse({"id": f"scripted-{self.step}", "model": MODEL, "choices": [choice], "usage": usage})

    def _remember(self, messages: list[str]) -> None:
        same = True
        for at, message in enumerate(messages):
            same = same and at < len(self._last) and self._last[at] == message
            self.sent += len(message)
            self.repeated += len(message) if same else 0
        self._last = messages

    def _answer(self) -> dict[str, Any]:
        if self.step > self.steps:
            return {"role": "assistant", "content": "Fixed: the retry used a closed connection. All tests pass."}
        arguments = {"path": _FILES[self.step % len(_FILES)], "from_line": self.step * 20}
        function = {"name": _TOOLS[self.step % len(_TOOLS)], "arguments": json.dumps(arguments)}
        call = {"id": f"call_{self.step}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}


def output_of(step: int) -> str:
    """Return the output of a tool: some code, and in one step the fact that is searched for in the end."""
    name = _FILES[step % len(_FILES)]
    lines = [f"{name}, lines {step * 20} to {step * 20 + 24}"]
    for at in range(24):
        number = step * 20 + at
        lines.append(f"{number:5}  row_{number} = convert(source[{number}], width={number % 7 + 1})  # batch {step}")
    if step == 3:
        lines.append("       BROKER_TIMEOUT = 47  # seconds")
    return "\n".join(lines)


class DemoRun(msgspec.Struct):
    """The result of a session through the gateway."""

    requests: int
    refused: int
    """Requests that were rejected."""
    window: int
    client: list[int]
    """Tokens of each request as sent by the client."""
    upstream: list[int]
    """Tokens of each request as received by the provider."""
    compactions: int
    cached: float
    """Share of the sent bytes that a prompt cache would serve."""
    url: str
    session: str
    recalled: str


async def play(*, window: int = 16_000, steps: int = 60) -> DemoRun:
    """Start a gateway with a temporary store, run a session through it, and search the session."""
    model = ScriptedProvider(window=window, steps=steps)
    with tempfile.TemporaryDirectory(prefix="kompakt-demo-") as folder:
        settings = GatewayConfig(
            port=0,
            store=f"sqlite:///{Path(folder) / 'gateway.db'}",
            upstreams={"openai": Upstream("openai", "http://scripted.invalid")},
            context_window=window,
            drain=1.0,
        )
        async with (
            running(settings, httpx.ASGITransport(app=model.app)) as (url, gateway),
            httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client,
        ):
            return await _run_session(client, model, gateway, url)


@asynccontextmanager
async def running(
    settings: GatewayConfig, transport: httpx.AsyncBaseTransport | None = None
) -> AsyncGenerator[tuple[str, Gateway]]:
    """Serve a gateway in this event loop and yield its URL."""
    app = create_app(settings, transport=transport)
    listening = listen(settings)
    server = GatewayServer(uvicorn_config(app, settings))
    async with app.state.gateway.lifespan():
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", app.state.gateway
        finally:
            server.should_exit = True
            await serving


async def _run_session(client: httpx.AsyncClient, model: ScriptedProvider, gateway: Gateway, url: str) -> DemoRun:
    """Run the session as an ordinary client, which sends the whole history with every request."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a careful engineer."},
        {"role": "user", "content": TASK},
    ]
    before: list[int] = []
    seen: set[str] = set()
    refused, session = 0, ""
    while True:
        body = {"model": MODEL, "messages": messages}
        answer = await client.post("/v1/chat/completions", json=body, headers={"authorization": "Bearer demo"})
        if answer.status_code != 200:
            refused += 1
            break
        headers = answer.headers
        before.append(int(headers.get("x-kompakt-tokens-before", "0")))
        session = headers.get("x-kompakt-session", session)
        seen.update(filter(None, [headers.get("x-kompakt-compaction")]))
        message = answer.json()["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            break
        call = message["tool_calls"][0]
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": output_of(len(before))})
    await gateway.storage.flush()
    found = await client.get(f"/kompakt/sessions/{session}/recall", params={"q": QUESTION, "tokens": 200})
    return DemoRun(
        requests=len(before),
        refused=refused,
        window=model.window,
        client=before,
        upstream=model.tokens,
        compactions=len(seen),
        cached=model.repeated / max(1, model.sent),
        url=url,
        session=session,
        recalled=found.json().get("text", "") if found.status_code == 200 else "",
    )
