"""Injected faults: temporary errors, broken connections, invalid answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from tests.provider.answer import Answer, Refusal
from uvicorn.protocols.http.h11_impl import H11Protocol

KINDS = ("429", "500", "503", "closed", "cut", "garbage", "slow", "empty", "refusal", "stream-error")
ANSWERS = {"empty": Answer(), "refusal": Answer(text="I can't help with that.", stop="refusal")}
GARBAGE = b'{"id": "x", "choices": [{"mess\xff\xfe]]'


@dataclass(frozen=True)
class Fault:
    """Something that happens to one request."""

    kind: str
    at: int = 0
    """Bytes of the body that get through before a cut."""
    seconds: float = 0.5
    """Seconds before a slow answer starts."""
    retry_after: str = "0"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown fault {self.kind!r}; known: {', '.join(KINDS)}")

    def refusal(self, format: str) -> Refusal | None:
        """Return the error that the request is answered with, if it is."""
        if self.kind == "429":
            return Refusal(429, "rate_limit_exceeded", "Rate limit reached for requests. Please try again later.")
        if self.kind == "500":
            return Refusal(500, "server_error", "The server had an error while processing your request.")
        if self.kind == "503":
            status = 529 if format == "anthropic" else 503
            return Refusal(status, "overloaded", "Overloaded")
        return None


class Reachable(H11Protocol):
    """A connection that an endpoint can end."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        inner = self.app

        async def app(scope: Any, receive: Any, send: Any) -> None:
            scope["connection"] = self
            await inner(scope, receive, send)

        self.app = app


class Cut(Response):
    """A response of which only the first bytes arrive; with zero bytes not even its headers."""

    def __init__(self, body: bytes, at: int | None, *, media_type: str) -> None:
        super().__init__(body, media_type=media_type)
        self.at = at
        if media_type == "text/event-stream":
            del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what gets through and end the connection."""
        if self.at is not None:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": bytes(self.body[: self.at]), "more_body": True})
        scope["connection"].transport.close()
        while (await receive())["type"] != "http.disconnect":
            pass
