"""An HTTP server with planned answers: status, headers, and a body that may break off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

from kompakt.agent.clients import AnthropicMessages, Gemini, OpenAIChat, OpenAIResponses

KEY = "sk-very-secret-0123456789"


class Plan(NamedTuple):
    """One answer."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({})
    cut: bool = False
    """Whether the connection breaks before the body is over."""


class Asked(NamedTuple):
    """A received request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def whole(value: object, status: int = 200, **headers: str) -> Plan:
    """Return a plan that answers with JSON."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Plan(json.dumps(value).encode(), status, {"content-type": "application/json", **named})


def stream(*events: object, cut: bool = False, done: bool = True) -> Plan:
    """Return a plan that answers with server-sent events; events with a type are named after it."""
    lines = []
    for event in events:
        named = isinstance(event, dict) and isinstance(event.get("type"), str)
        lines.append((f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n")
    if done and not any(isinstance(event, dict) and "type" in event for event in events):
        lines.append("data: [DONE]\n\n")
    return Plan("".join(lines).encode(), 200, {"content-type": "text/event-stream"}, cut)


HANG_UP = Plan(b"", 0)
SILENCE = Plan(b"", -1)


class Server:
    """Gives the planned answers in order and repeats the last one."""

    def __init__(self, *plans: Plan) -> None:
        self.plans = list(plans)
        self.asked: list[Asked] = []
        self.address = self.url = ""
        self.tasks: set[asyncio.Task[Any]] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            while line := await reader.readline():
                path = line.split()[1].decode()
                headers: dict[str, str] = {}
                while (field := (await reader.readline()).decode().strip()) != "":
                    name, _, value = field.partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.asked.append(Asked(path, headers, body))
                plan = self.plans.pop(0) if len(self.plans) > 1 else self.plans[0]
                if plan is SILENCE:
                    await reader.read()
                if not await self._answer(plan, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone
        finally:
            writer.close()

    async def _answer(self, plan: Plan, writer: asyncio.StreamWriter) -> bool:
        if plan.status <= 0:
            return False
        size = len(plan.body) + (1_000 if plan.cut else 0)
        fields = {**plan.headers, "content-length": str(size)}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"HTTP/1.1 {plan.status} Planned\r\n{head}\r\n".encode() + plan.body)
        await writer.drain()
        return not plan.cut


@asynccontextmanager
async def serving(*plans: Plan) -> AsyncIterator[Server]:
    """Listen on a free port."""
    server = Server(*plans)
    listening = await asyncio.start_server(server._serve, "127.0.0.1", 0)
    server.address = server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        if server.tasks:
            await asyncio.wait(server.tasks, timeout=5)
        await asyncio.sleep(0)


CLIENTS = {
    "openai-chat": OpenAIChat,
    "openai-responses": OpenAIResponses,
    "anthropic": AnthropicMessages,
    "gemini": Gemini,
}


def client_of(format: str, address: str, **options: Any) -> Any:
    """Return a client for the server."""
    base = address + ("/v1" if format.startswith("openai") else "")
    given: dict[str, Any] = {"base_url": base, "api_key": KEY, "context_window": 8_000, "output_limit": 100}
    return CLIENTS[format](**{"model": "some-model", **given, **options})


async def asked_of(format: str, *plans: Plan, body: Any = None, **options: Any) -> tuple[Any, Server]:
    """Send one request to a server with these plans; return the reply or the error."""
    sending = {name: options.pop(name) for name in ("on_delta", "changes") if name in options}
    async with serving(*plans) as server:
        client = client_of(format, server.address, **options)
        try:
            reply: Any = await client.send(body or {"model": "some-model"}, **sending)
        except Exception as error:  # noqa: BLE001 — the test looks at it
            reply = error
        finally:
            await client.close()
    return reply, server
