"""A client that resends its whole history step by step through a gateway without sockets, and what arrives."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import Any

import httpx
from tests.gateway.payloads import ANSWERS, HEADERS, PATHS, history, one_round, request
from tests.gateway.stub_gateway import settings

import kompakt
from kompakt.gateway.app import create_app

_MODELS = {
    "openai-chat": "test-model",
    "openai-responses": "test-model",
    "anthropic": "claude-test",
    "gemini": "gemini-3-pro",
}
_WORDS = ("parser", "window", "buffer", "tenant", "ledger", "cursor", "packet", "branch", "worker", "signal", "record")


@cache
def _scale(format: str) -> float:
    """Return how many tokens the model of a format counts for one of the usual kind."""
    return kompakt.count([{"role": "user", "content": "word " * 4_000}], _MODELS[format], "openai-chat").total / 4_000


def output(format: str, at: int, tokens: int) -> str:
    """Write the result of a step: code of about this many tokens, different at each step."""
    draw = random.Random(at)
    lines: list[str] = []
    while len(lines) * 13.5 * _scale(format) < tokens - 70:
        one, two = draw.choice(_WORDS), draw.choice(_WORDS)
        lines.append(f"    {one}_{at}_{len(lines)} = make_{two}(source[{draw.randrange(9_999)}])")
    return "\n".join(lines)


def fixed_text(format: str, tokens: int) -> str:
    """Write a system prompt of about this many tokens."""
    return "Follow the rules of the house. " * round((tokens - 60) / 7 / _scale(format))


def with_system(format: str, body: dict[str, Any], text: str) -> dict[str, Any]:
    """Add a system prompt to a request."""
    if format == "openai-chat":
        return {**body, "messages": [{"role": "system", "content": text}, *body["messages"]]}
    if format == "gemini":
        return {**body, "systemInstruction": {"parts": [{"text": text}]}}
    return {**body, "instructions" if format == "openai-responses" else "system": text}


def with_output(format: str, body: dict[str, Any], tokens: int | None) -> dict[str, Any]:
    """Ask for this many tokens of answer, or leave it open."""
    names = {"openai-chat": "max_completion_tokens", "openai-responses": "max_output_tokens", "anthropic": "max_tokens"}
    body = {key: value for key, value in body.items() if key not in (names.get(format), "generationConfig")}
    if tokens is None:
        return body
    if format == "gemini":
        return {**body, "generationConfig": {"maxOutputTokens": tokens}}
    return {**body, names[format]: tokens}


def _answer(status: int, value: dict[str, Any]) -> httpx.Response:
    async def chunks() -> AsyncIterator[bytes]:
        yield json.dumps(value).encode()

    return httpx.Response(status, headers={"content-type": "application/json"}, content=chunks())


class Played:
    """What the client and the provider saw of one session."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        """Requests as the provider got them."""
        self.tokens: list[int] = []
        self.statuses: list[int] = []
        self.compacted: list[int] = []
        """The steps at which something was compacted, from 0."""
        self.large: dict[int, str] = {}
        """The results of another size, by step."""


def play(
    format: str,
    steps: int,
    *,
    fixed: int = 0,
    step_tokens: int = 1_300,
    answer_tokens: int | None = 500,
    window: int = 40_000,
    accepts: Callable[[dict[str, Any], int], dict[str, Any] | None] | None = None,
    large: dict[int, int] | None = None,
    key: bytes | None = None,
    **changes: Any,
) -> Played:
    """Hold a session of steps through a gateway.

    ``accepts`` returns the provider's refusal of a request of that many tokens, or ``None``; ``large`` are steps whose
    result has another size.
    """
    made = settings(context_window=window, **changes)
    played = Played()

    async def provider(raw: httpx.Request) -> httpx.Response:
        body = json.loads(raw.content)
        tokens = kompakt.count(body, _MODELS[format], format=format).total
        refusal = accepts(body, tokens) if accepts is not None else None
        played.sent.append(body)
        played.tokens.append(tokens)
        return _answer(200, ANSWERS[format]) if refusal is None else _answer(400, refusal)

    async def whole() -> None:
        app = create_app(made, transport=httpx.MockTransport(provider), key=key)
        async with app.state.gateway.lifespan():
            transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 5))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8484") as client:
                items = history(format, 0)
                for at in range(steps):
                    result = output(format, at, (large or {}).get(at, step_tokens))
                    if large and at in large:
                        played.large[at] = result
                    items += one_round(format, at, result)
                    body = with_output(format, request(format, items), answer_tokens)
                    body = with_system(format, body, fixed_text(format, fixed)) if fixed else body
                    answer = await client.post(PATHS[format], json=body, headers=HEADERS[format], timeout=60)
                    played.statuses.append(answer.status_code)
                    if "x-kompakt-compaction" in answer.headers:
                        played.compacted.append(at)
                    await app.state.gateway.storage.flush()

    asyncio.run(whole())
    return played
