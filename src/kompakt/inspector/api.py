"""The HTTP API of the inspector, and its page: everything below one prefix.

A session id is one segment of the path, percent-encoded, whatever characters it has. The API is independent of who
serves it: ``kompakt inspect`` checks a token, the gateway its keys and tenants.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from kompakt.errors import KompaktError, StoreError, UsageError
from kompakt.inspector import openapi
from kompakt.inspector.access import read_json
from kompakt.inspector.assets import load_assets
from kompakt.inspector.errors import InspectorError, as_answer
from kompakt.model.json import encode, prepare
from kompakt.view.compactions import MAX_REMOVED
from kompakt.view.directories import MissingSession
from kompakt.view.inspection import Inspection
from kompakt.view.values import InspectorAction

Body = TypeVar("Body")

PREFIX = "/inspect"

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

MAX_STREAMS = 64
"""Event streams at the same time."""

PAUSE = 1.0
"""Seconds between two looks for changes."""

PATIENCE = 0.05
"""Seconds after which a long session is shown with the numbers that are known."""

BEATS = 15
"""Looks without a change after which a stream sends a comment, so that a closed connection is noticed."""


class PreviewRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of a preview."""

    budget: int | None = None
    policy: str | None = None


class Admission(Protocol):
    """Decides about a request before anything else."""

    async def __call__(self, request: Request, *, asset: bool) -> Inspection | Response:
        """Return what the caller may inspect, or an answer instead.

        ``asset`` is true for the page and its files, which contain no data of sessions.

        Raises:
            InspectorError: the request is refused.
        """
        ...


class InspectorApi:
    """The ASGI application below the prefix."""

    def __init__(
        self,
        admit: Admission,
        *,
        prefix: str = PREFIX,
        has_login: bool = False,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._admit = admit
        self._is_stopping = is_stopping
        self._prefix = prefix
        self._has_login = has_login
        self._streams = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            response = await self.respond(request)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    async def respond(self, request: Request) -> Response:
        """Answer a request; errors become answers too."""
        try:
            response = await self._route(request)
        except InspectorError as error:
            response = _error(error)
        except KompaktError as error:
            response = _error(as_answer(error))
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    async def _route(self, request: Request) -> Response:
        path = segments(request, self._prefix)
        is_asset = not path or path == [""] or path[0] == "static"
        admitted = await self._admit(request, asset=is_asset)
        if isinstance(admitted, Response):
            return admitted
        if request.method not in ("GET", "HEAD", "POST"):
            raise InspectorError(405, "method_not_allowed", "use GET, or POST for previews and actions")
        if is_asset:
            return self._asset(request, path)
        if path[0] != "api":
            raise InspectorError(404, "not_found", f"there is no such page; start at {self._prefix}/")
        return await self._call(request, admitted, path[1:])

    def _asset(self, request: Request, path: list[str]) -> Response:
        if request.method == "POST":
            raise InspectorError(405, "method_not_allowed", "use GET")
        if not path:
            return RedirectResponse(f"{self._prefix}/", status_code=308)
        assets = load_assets()
        if path == [""]:
            return Response(assets.page, media_type="text/html", headers={"cache-control": "no-store"})
        names = path[1:]
        kept = bool(names) and names[0] == assets.version
        asset = assets.files.get("/".join(names[1:] if kept else names))
        if asset is None:
            raise InspectorError(404, "not_found", "there is no such file; reload the page")
        cache = "private, max-age=31536000, immutable" if kept else "no-cache"
        return Response(asset.data, media_type=asset.media_type, headers={"cache-control": cache})

    # --- the API ----------------------------------------------------------------------------------------------------

    async def _call(self, request: Request, inspection: Inspection, path: list[str]) -> Response:
        match path:
            case ["openapi.json"]:
                _only(request, "GET")
                return _json(openapi.document(self._prefix, has_login=self._has_login))
            case ["events"]:
                _only(request, "GET")
                return self._events(inspection, None)
            case ["sessions"]:
                _only(request, "GET")
                query = request.query_params
                return _json(
                    await inspection.sessions(
                        query.get("query", ""), query.get("cursor") or None, _number(request, "limit", 50)
                    )
                )
            case ["sessions", id, "preview"]:
                _only(request, "POST")
                asked = _decoded(await read_json(request), PreviewRequest)
                if asked.budget is not None and not 1 <= asked.budget <= openapi.MAX_BUDGET:
                    raise InspectorError(
                        400, "invalid_request", f"budget must be an integer from 1 to {openapi.MAX_BUDGET:,}"
                    )
                return _json(await inspection.preview(id, asked.budget, asked.policy))
            case ["sessions", id, "actions"]:
                _only(request, "POST")
                return _json(await inspection.act(id, _decoded(await read_json(request), InspectorAction)))
            case ["sessions", id, *rest]:
                _only(request, "GET")
                try:
                    return await self._read(request, inspection, id, rest)
                except MissingSession:
                    raise
                except (StoreError, UsageError):
                    await inspection.version(id)  # raises if the session was deleted meanwhile
                    return await self._read(request, inspection, id, rest)  # or it was made again
            case _:
                raise _missing()

    async def _read(self, request: Request, inspection: Inspection, id: str, rest: list[str]) -> Response:
        query = request.query_params
        match rest:
            case []:
                return _json(await inspection.session(id, patience=PATIENCE))
            case ["growth"]:
                return _json(await inspection.growth(id))
            case ["context"]:
                return _json(await inspection.context(id))
            case ["messages"]:
                start, limit = _number(request, "start", 0), _number(request, "limit", 100)
                return _json(await inspection.messages(id, start, limit, query.get("kind") or None))
            case ["messages", seq]:
                return _json(await inspection.message(id, _integer("seq", seq), _number(request, "offset", 0)))
            case ["steps", number]:
                return _json(await inspection.step(id, _integer("step", number)))
            case ["compactions", compaction]:
                start, limit = _number(request, "start", 0), _number(request, "limit", MAX_REMOVED)
                return _json(await inspection.compaction(id, compaction, start, limit))
            case ["recall"]:
                return _json(await inspection.recall(id, query.get("query", "")))
            case ["events"]:
                await inspection.version(id)
                return self._events(inspection, id)
            case _:
                raise _missing()

    def _events(self, inspection: Inspection, id: str | None) -> Response:
        """Stream the sessions that change."""
        if self._streams >= MAX_STREAMS:
            raise InspectorError(503, "too_many_streams", "too many pages follow sessions; close some of them")
        return StreamingResponse(
            self._changes(inspection, id), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    async def _changes(self, inspection: Inspection, id: str | None) -> AsyncIterator[bytes]:
        self._streams += 1
        quiet = 0
        try:
            yield b": connected\nretry: 3000\n\n"
            watching = False
            async for changed in inspection.changes(id, pause=PAUSE):
                if self._is_stopping():
                    return
                if not watching:
                    watching = True  # changes before this moment are not reported: the page reads once more
                    yield b"event: watching\ndata: {}\n\n"
                for session, seq in changed:
                    yield b"event: changed\ndata: " + encode({"id": session, "seq": seq}) + b"\n\n"
                quiet = 0 if changed else quiet + 1
                if quiet == BEATS:
                    quiet = 0
                    yield b": waiting\n\n"
        except KompaktError as error:
            yield b"event: failed\ndata: " + encode({"message": str(error)}) + b"\n\n"
        finally:
            self._streams -= 1


def segments(request: Request, prefix: str) -> list[str]:
    """Return the decoded segments of the path below the prefix. An encoded slash stays inside its segment."""
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode("utf-8", "surrogatepass")
    path = raw.partition(b"?")[0]
    start = prefix.encode()
    if path == start:
        return []
    if not path.startswith(start + b"/"):
        raise _missing()
    parts = path[len(start) + 1 :].split(b"/")
    return [unquote_to_bytes(part).decode("utf-8", "surrogatepass" if _is_wtf8(part) else "replace") for part in parts]


def _is_wtf8(part: bytes) -> bool:
    try:
        unquote_to_bytes(part).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


def _only(request: Request, method: str) -> None:
    if request.method != method and not (method == "GET" and request.method == "HEAD"):
        raise InspectorError(405, "method_not_allowed", f"use {method}")


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    return default if text is None else _integer(name, text)


def _integer(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise InspectorError(400, "invalid_request", f"{name} must be an integer, 0 or more")
    return int(text)


def _decoded(data: bytes, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # a validation error is a decode error
        raise InspectorError(400, "invalid_request", f"the body is not valid: {error}") from None


def _missing() -> InspectorError:
    return InspectorError(404, "not_found", "there is no such address; openapi.json lists all of them")


def _json(value: object) -> Response:
    data = encode(msgspec.to_builtins(value))
    return Response(data, media_type="application/json", headers={"cache-control": "no-store"})


def _error(error: InspectorError) -> Response:
    data = encode({"error": {"code": error.code, "message": error.message}})
    return Response(
        data, status_code=error.status, media_type="application/json", headers={"cache-control": "no-store"}
    )


prepare(PreviewRequest, InspectorAction)
