"""One request through a running gateway, in the shape that a coding agent sends, and what the answer says.

Only the gateway's headers decide: a provider that refuses the request (no credential, unknown model) still shows that
the history of this client is looked after.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from kompakt.errors import UsageError
from kompakt.gateway.http.outcomes import OUTCOME_HEADER, OUTCOMES, PROTECTED, UNTOUCHED, UNTOUCHED_HEADER

DEFAULT_URL = "http://127.0.0.1:8484"
TIMEOUT = 60.0
"""Seconds for the provider to answer a request of a few words."""

Protocol: TypeAlias = Literal["anthropic", "responses", "chat", "gemini"]

QUESTION = "Reply with the single word OK."


class Client(msgspec.Struct, frozen=True):
    """How a coding agent speaks to its provider."""

    protocol: Protocol
    model: str
    variable: str | None
    """The environment variable from which it takes the address of its provider; ``None`` when a file holds it."""
    agent: str
    """The start of its user agent."""


CLIENTS: dict[str, Client] = {
    "claude": Client("anthropic", "claude-sonnet-4-5", "ANTHROPIC_BASE_URL", "claude-cli/2.1.325 (external, cli)"),
    "codex": Client("responses", "gpt-5-codex", None, "codex_cli_rs/0.166.0"),
    "opencode": Client("chat", "gpt-5", None, "opencode/1.18.33"),
    "pi": Client("chat", "gpt-5", None, "pi/1.5.0"),
    "aider": Client("chat", "gpt-5", "OPENAI_API_BASE", "aider"),
    "gemini": Client("gemini", "gemini-2.5-pro", "GOOGLE_GEMINI_BASE_URL", "GeminiCLI/0.61.0"),
    "qwen": Client("chat", "qwen3-coder-plus", "OPENAI_BASE_URL", "QwenCode"),
    "openai": Client("chat", "gpt-5", "OPENAI_BASE_URL", "OpenAI/Python"),
}

_CREDENTIALS: dict[Protocol, tuple[str, str]] = {
    "anthropic": ("ANTHROPIC_API_KEY", "x-api-key"),
    "responses": ("OPENAI_API_KEY", "authorization"),
    "chat": ("OPENAI_API_KEY", "authorization"),
    "gemini": ("GEMINI_API_KEY", "x-goog-api-key"),
}
"""Where clients take their credential from, and the header in which they send it."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe found."""

    client: str
    url: str
    protected: bool
    because: str
    """Why not, or what was done."""
    outcome: str | None = None
    session: str | None = None
    status: int | None = None
    """What the provider, or the gateway itself, answered."""


def client_named(name: str) -> Client:
    """Return how a client speaks.

    Raises:
        UsageError: the client is not known.
    """
    found = CLIENTS.get(name.removesuffix("-code").removesuffix("-cli"))
    if found is None:
        raise UsageError(f"client {name!r} is not known; use one of {', '.join(CLIENTS)}")
    return found


def probe(name: str, *, url: str | None = None, model: str | None = None, key: str | None = None) -> Verdict:
    """Send one request as a client would, and say whether its history is protected.

    Raises:
        UsageError: the client is not known, or httpx is not installed.
    """
    try:
        import httpx  # late: the gateway's extra
    except ImportError:
        raise UsageError("this needs httpx; install it: pip install 'kompakt[gateway]'") from None

    client = client_named(name)
    base = (url or os.environ.get(client.variable or "") or DEFAULT_URL).rstrip("/").removesuffix("/v1")
    path, body = _request(client, model or client.model)
    headers = _headers(client)
    if key is not None:
        headers["x-kompakt-key"] = key
    try:
        answer = httpx.post(base + path, json=body, headers=headers, timeout=TIMEOUT, trust_env=False)
    except httpx.HTTPError as error:
        reason = f"nothing answers at {base} ({type(error).__name__}); start the gateway with `kompakt serve`"
        return Verdict(client=name, url=base, protected=False, because=reason)
    except httpx.InvalidURL as error:
        raise UsageError(f"{base!r} is not an address: {error}") from None
    return _judged(name, base, answer.status_code, answer.headers, answer.content)


def _headers(client: Client) -> dict[str, str]:
    variable, header = _CREDENTIALS[client.protocol]
    credential = os.environ.get(variable) or "no-credential"
    headers = {header: f"Bearer {credential}" if header == "authorization" else credential, "user-agent": client.agent}
    if client.protocol == "anthropic":
        headers |= {
            "anthropic-version": "2023-06-01",
            "anthropic-beta": "context-management-2025-06-27,interleaved-thinking-2025-05-14",
        }
    return headers


def _request(client: Client, model: str) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a short request with the fields that the client always sends."""
    message = {"role": "user", "content": QUESTION}
    if client.protocol == "anthropic":
        return "/v1/messages?beta=true", {
            "model": model,
            "max_tokens": 1_100,
            "thinking": {"type": "enabled", "budget_tokens": 1_024},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "messages": [message],
        }
    if client.protocol == "responses":
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]}
        return "/v1/responses", {"model": model, "store": False, "stream": True, "input": [item]}
    if client.protocol == "gemini":
        content = {"role": "user", "parts": [{"text": QUESTION}]}
        return f"/v1beta/models/{model}:generateContent", {"contents": [content]}
    return "/v1/chat/completions", {"model": model, "messages": [message]}


def _judged(name: str, base: str, status: int, headers: Mapping[str, str], body: bytes) -> Verdict:
    """Read the gateway's headers."""
    outcome = headers.get(OUTCOME_HEADER)
    session = headers.get("x-kompakt-session")
    if outcome is None:
        because = f"what answers at {base} is not a kompakt gateway, or an older one"
    elif outcome == "untouched":
        reason = headers.get(UNTOUCHED_HEADER, "")
        because = f"the gateway left the request alone: {UNTOUCHED.get(reason, reason)}"
    elif outcome == "refused":
        because = f"the gateway refused the request ({headers.get('x-kompakt-refusal')}): {_message(body)}"
    elif "x-kompakt-degraded" in headers:
        because = f"the gateway cannot record it: {headers['x-kompakt-degraded']}"
    else:
        because = OUTCOMES.get(outcome, outcome)
    protected = outcome in PROTECTED and "x-kompakt-degraded" not in headers
    return Verdict(
        client=name, url=base, protected=protected, because=because, outcome=outcome, session=session, status=status
    )


class _Words(msgspec.Struct):
    message: str = ""


class _Failure(msgspec.Struct):
    error: _Words = msgspec.field(default_factory=_Words)


def _message(body: bytes) -> str:
    """Return what an error says, in any of the providers' shapes."""
    try:
        return msgspec.json.decode(body, type=_Failure).error.message
    except msgspec.MsgspecError:
        return ""
