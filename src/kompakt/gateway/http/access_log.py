"""The access log: one log record, one span, metrics and a request id for each request, and how records are formatted.

Bodies, credentials and query strings are never logged. The proxy adds what only it knows through ``request_log``.
"""

from __future__ import annotations

import logging
import re
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from types import TracebackType
from typing import Any, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kompakt.gateway.errors import error_response, without_controls
from kompakt.gateway.http.metrics import Metrics
from kompakt.gateway.outcomes import Disposition, Untouched, outcome_of_error

_log = logging.getLogger("kompakt.gateway")

ID_HEADER = b"x-kompakt-request"
_SAFE_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class RequestLog(msgspec.Struct):
    """The log entry of one request, filled in while it is served."""

    id: str
    began: float
    """Start of the request, by ``time.perf_counter``."""
    received: float | None = None
    """When the body was complete."""
    route: str = "gateway"
    """The kind of provider request, or ``gateway`` for the gateway's own endpoints."""
    format: str | None = None
    """The provider format in which errors are written."""
    tenant: str = ""
    model: str | None = None
    client: str | None = None
    """Name and version of the client."""
    purpose: str | None = None
    """Purpose of a request that is not part of a conversation."""
    status: int = 0
    session: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    compaction: str | None = None
    outcome: Disposition | None = None
    """What was done with a provider request; ``None`` for the gateway's own endpoints."""
    untouched: Untouched | None = None
    """Why the request was passed through unchanged."""
    degraded: str | None = None
    is_new: bool = False
    """Whether an unknown credential came with a history that is already long."""
    refusal: str | None = None
    """Why the gateway rejected the request."""
    upstream_seconds: float | None = None
    """Time spent waiting for the provider, over all attempts: until the client's response starts, and until each later
    recall round starts to answer. ``None`` if the provider was not asked."""
    waits_since: float | None = None
    """Start of the wait for the provider that is not over, by ``time.perf_counter``."""
    overhead: float | None = None
    """The gateway's own time until the first byte of the response; computed when not set."""

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Count the time of a block as the provider's, however the block ends."""
        self.waits_since = time.perf_counter()
        try:
            yield
        finally:
            self.end_wait()

    def end_wait(self) -> None:
        """Count the wait for the provider so far, and nothing after this."""
        if self.waits_since is not None:
            self.upstream_seconds = (self.upstream_seconds or 0.0) + time.perf_counter() - self.waits_since
            self.waits_since = None

    def fields(self) -> dict[str, Any]:
        fields = {
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
        return {name: value for name, value in fields.items() if value is not None}


def request_log(request: Request) -> RequestLog:
    return request.scope["kompakt"]


class AccessLog:
    """The outermost middleware: assigns request ids, logs and counts requests.

    While ``is_draining`` returns true, responses ask the client to close the connection.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, is_draining: Callable[[], bool] = lambda: False) -> None:
        self.app = app
        self.metrics = metrics
        self.is_draining = is_draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        entry = RequestLog(_id_of(scope), time.perf_counter())
        scope["kompakt"] = entry

        async def send_logged(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._on_response(entry, message)
            await send(message)

        self.metrics.in_flight.inc()
        try:
            await self.app(scope, receive, send_logged)
        except Exception:  # an error that no handler expected: the server logs it, the client gets a response
            if not entry.status:
                entry.refusal = "gateway_error"
                message = f"internal gateway error; see the gateway log for request {entry.id}"
                await error_response(entry.format, 500, message, code="gateway_error")(scope, receive, send_logged)
            raise
        finally:
            self.metrics.in_flight.dec()
            self._on_end(entry)

    def _on_response(self, entry: RequestLog, message: Message) -> None:
        entry.status = message["status"]
        headers = list(message.get("headers", ()))
        entry.end_wait()  # an announced answer is passed on while the next chunk is waited for
        if entry.upstream_seconds is not None and entry.overhead is None:
            began = entry.began if entry.received is None else entry.received
            entry.overhead = max(0.0, time.perf_counter() - began - entry.upstream_seconds)
        for name, value in headers:
            if name.startswith(b"x-kompakt-"):
                _read_header(entry, name, value)
        own = [(ID_HEADER, entry.id.encode())]
        if entry.is_new:
            own.append((b"x-kompakt-tenant", b"new"))
            self._warn_new_tenant(entry)
        if self.is_draining():
            headers = [(name, value) for name, value in headers if name.lower() != b"connection"]
            own.append((b"connection", b"close"))
        message["headers"] = [*headers, *own]

    def _warn_new_tenant(self, entry: RequestLog) -> None:
        self.metrics.new_tenants.inc()
        _log.warning(
            "unknown credential with a long history: new tenant %s has no access to sessions stored under another "
            "credential; issue gateway keys to clients to keep their tenant when credentials change",
            entry.tenant,
            extra={"kompakt": {"request": entry.id, "tenant": entry.tenant, "new_tenant": True}},
        )

    def _on_end(self, entry: RequestLog) -> None:
        metrics = self.metrics
        metrics.requests.labels(entry.route, str(entry.status or "aborted")).inc()
        metrics.worker_requests.inc()
        if entry.refusal is not None:
            entry.outcome, entry.untouched = outcome_of_error(entry.refusal), None
            metrics.refusals.labels(entry.refusal).inc()
        if entry.outcome is not None:
            metrics.outcomes.labels(entry.outcome, entry.untouched or "").inc()
        if entry.overhead is not None:
            metrics.overhead.observe(entry.overhead)
        if entry.upstream_seconds is not None:
            metrics.upstream.observe(entry.upstream_seconds)
        if entry.route == "gateway" and entry.status < 400:
            return
        fields = entry.fields()
        level = logging.WARNING if entry.status >= 500 or entry.degraded else logging.INFO
        _log.log(level, "%s %s", entry.route, entry.status or "aborted", extra={"kompakt": fields})
        _trace(entry, fields)


def _id_of(scope: Scope) -> str:
    """Return the client's ``x-request-id`` if it is safe to log, else a new id."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SAFE_ID.fullmatch(value):
            return value.decode()
    return secrets.token_hex(12)


def _read_header(entry: RequestLog, name: bytes, value: bytes) -> None:
    """Copy one of the gateway's own response headers into a field that is not set."""
    field = name.decode("latin-1").removeprefix("x-kompakt-").replace("-", "_")
    if field in ("session", "compaction", "degraded") and getattr(entry, field) is None:
        setattr(entry, field, value.decode("latin-1"))
    elif field in ("tokens_before", "tokens_after") and value.isdigit() and getattr(entry, field) is None:
        setattr(entry, field, int(value))


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1_000, 3)


@cache
def _tracer() -> Any:
    try:
        return import_module("opentelemetry.trace").get_tracer("kompakt")
    except ImportError:
        return None


def _trace(entry: RequestLog, fields: dict[str, Any]) -> None:
    """Create a span for a finished request when OpenTelemetry is installed."""
    tracer = _tracer()
    if tracer is None:
        return
    span = tracer.start_span(
        f"kompakt.{entry.route}", start_time=time.time_ns() - int((time.perf_counter() - entry.began) * 1e9)
    )
    for name, value in fields.items():
        span.set_attribute(f"kompakt.{name}", value)
    span.end()


# --- Format ---
# Of an unexpected error only the type and traceback are written: its message may quote what a client sent.

_ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

_LEVELS = {"kompakt": logging.INFO, "uvicorn": logging.WARNING, "asyncio": logging.WARNING, "httpx": logging.WARNING}


class TextFormatter(logging.Formatter):
    """One line per record, for people. Lines of a worker have its number."""

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._worker = {} if worker is None else {"worker": worker}

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        fields = "".join(f" {name}={_quoted(value)}" for name, value in self.fields(record).items())
        line = f"{moment} {record.levelname.lower()} {without_controls(record.getMessage())}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the fields of a record."""
        found = getattr(record, "kompakt", {})
        return {**self._worker, **found} if isinstance(found, dict) else self._worker

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802
        """Return the traceback and the type of an error, without its message."""
        kind, _, at = ei
        return f"{''.join(traceback.format_tb(at))}{kind.__name__ if kind else ''}"


class JsonFormatter(TextFormatter):
    """One JSON object per record."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": without_controls(record.getMessage()),
            **self.fields(record),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields).decode()


def _quoted(value: object) -> str:
    text = without_controls(str(value))
    return f'"{text}"' if " " in text else text


def configure_logging(*, json: bool, worker: int | None = None) -> None:
    """Write the records of the gateway and its libraries to standard error; ``worker`` is added to each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(worker) if json else TextFormatter(worker))
    for name, level in _LEVELS.items():
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False
