"""What is told of each request: one log record, one span, some metrics, and an id on every answer.

Never in any of them: bodies, credentials, queries. The proxy fills in what only it knows through ``told_of``.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from functools import cache
from importlib import import_module
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kompakt.gateway.errors import error_response
from kompakt.gateway.http.metrics import Metrics
from kompakt.gateway.http.outcomes import Disposition, Untouched

_log = logging.getLogger("kompakt.gateway")

ID_HEADER = b"x-kompakt-request"
_PLAIN = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class RequestLog(msgspec.Struct):
    """What is known of one request; filled in while it is served."""

    id: str
    began: float
    """When it began, by ``time.perf_counter``."""
    received: float | None = None
    """When all of its body was there."""
    route: str = "own"
    format: str | None = None
    """In whose shape errors are written."""
    tenant: str = ""
    model: str | None = None
    client: str | None = None
    """The name and version of the program that asks."""
    purpose: str | None = None
    """What the request is for, when it is not part of a conversation."""
    status: int = 0
    session: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    compaction: str | None = None
    outcome: Disposition | None = None
    """What was done with a provider request; ``None`` for the gateway's own endpoints."""
    untouched: Untouched | None = None
    """Why the request was left alone."""
    degraded: str | None = None
    is_new: bool = False
    """Whether a credential never seen before came with a conversation that did not begin just now."""
    refusal: str | None = None
    """Why the gateway itself did not take the request."""
    upstream_seconds: float | None = None
    """How long the provider took to begin its answer, all tries together."""
    overhead: float | None = None
    """The gateway's own time up to the first byte of the answer; computed from the rest when nobody says."""

    def facts(self) -> dict[str, Any]:
        """Return what a log record has of it."""
        found = {
            "request": self.id,
            "route": self.route,
            "status": self.status,
            "tenant": self.tenant or None,
            "model": self.model,
            "client": self.client,
            "purpose": self.purpose,
            "session": self.session,
            "tokens_before": self.tokens_before,
            "tokens_after": self.tokens_after,
            "outcome": self.outcome,
            "untouched": self.untouched,
            "compaction": self.compaction,
            "degraded": self.degraded,
            "refusal": self.refusal,
            "overhead_ms": _milliseconds(self.overhead),
            "upstream_ms": _milliseconds(self.upstream_seconds),
            "total_ms": _milliseconds(time.perf_counter() - self.began),
        }
        return {name: value for name, value in found.items() if value is not None}


def request_log(request: Request) -> RequestLog:
    """Return what is told of a request, to add to it."""
    return request.scope["kompakt"]


class AccessLog:
    """The outermost layer: gives requests their id and says what became of them."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        told = RequestLog(_id_of(scope), time.perf_counter())
        scope["kompakt"] = told

        async def say(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._answered(told, message)
            await send(message)

        self.metrics.in_flight.inc()
        try:
            await self.app(scope, receive, say)
        except Exception:
            if not told.status:  # nobody foresaw it: the server's log has where it was, the client an answer
                told.refusal = "gateway_error"
                message = f"the gateway failed; its log has more under {told.id}"
                await error_response(told.format, 500, message, code="gateway_error")(scope, receive, say)
            raise
        finally:
            self.metrics.in_flight.dec()
            self._finished(told)

    def _answered(self, told: RequestLog, message: Message) -> None:
        """Note how an answer begins."""
        told.status = message["status"]
        headers = list(message.get("headers", ()))
        if told.upstream_seconds is not None and told.overhead is None:
            began = told.began if told.received is None else told.received
            told.overhead = max(0.0, time.perf_counter() - began - told.upstream_seconds)
        for name, value in headers:
            if name.startswith(b"x-kompakt-"):
                _note(told, name, value)
        own = [(ID_HEADER, told.id.encode())]
        if told.is_new:
            own.append((b"x-kompakt-tenant", b"new"))
            self._say_new(told)
        message["headers"] = [*headers, *own]

    def _say_new(self, told: RequestLog) -> None:
        """Say that a tenant began in the middle of a conversation: most likely a credential was exchanged."""
        self.metrics.new_tenants.inc()
        _log.warning(
            "a credential not seen before came with a long history: tenant %s has none of what another credential "
            "stored; give clients keys of the gateway's own to keep their tenant when credentials change",
            told.tenant,
            extra={"kompakt": {"request": told.id, "tenant": told.tenant, "new_tenant": True}},
        )

    def _finished(self, told: RequestLog) -> None:
        metrics = self.metrics
        metrics.requests.labels(told.route, str(told.status or "aborted")).inc()
        if told.refusal is not None:
            told.outcome = "refused"
            metrics.refusals.labels(told.refusal).inc()
        if told.outcome is not None:
            metrics.outcomes.labels(told.outcome, told.untouched or "").inc()
        if told.overhead is not None:
            metrics.overhead.observe(told.overhead)
        if told.upstream_seconds is not None:
            metrics.upstream.observe(told.upstream_seconds)
        if told.route == "own" and told.status < 400:
            return
        facts = told.facts()
        level = logging.WARNING if told.status >= 500 or told.degraded else logging.INFO
        _log.log(level, "%s %s", told.route, told.status or "aborted", extra={"kompakt": facts})
        _trace(told, facts)


def _id_of(scope: Scope) -> str:
    """Take the client's id when it is plain, else make one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _PLAIN.fullmatch(value):
            return value.decode()
    return secrets.token_hex(12)


def _note(told: RequestLog, name: bytes, value: bytes) -> None:
    """Read a header of the gateway's own back, where nobody has said the same."""
    field = name.decode("latin-1").removeprefix("x-kompakt-").replace("-", "_")
    if field in ("session", "compaction", "degraded") and getattr(told, field) is None:
        setattr(told, field, value.decode("latin-1"))
    elif field in ("tokens_before", "tokens_after") and value.isdigit() and getattr(told, field) is None:
        setattr(told, field, int(value))


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1_000, 3)


@cache
def _tracer() -> Any:
    try:
        return import_module("opentelemetry.trace").get_tracer("kompakt")
    except ImportError:
        return None


def _trace(told: RequestLog, facts: dict[str, Any]) -> None:
    """Make a span of a finished request when OpenTelemetry is installed."""
    tracer = _tracer()
    if tracer is None:
        return
    span = tracer.start_span(
        f"kompakt.{told.route}", start_time=time.time_ns() - int((time.perf_counter() - told.began) * 1e9)
    )
    for name, value in facts.items():
        span.set_attribute(f"kompakt.{name}", value)
    span.end()
