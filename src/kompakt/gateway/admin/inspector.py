"""The inspector at ``/inspect``: the pages and the API of ``kompakt inspect``, on the sessions that a caller may see.

Every request passes the checks of the session API: the site, the key, the tenant. A browser cannot send the header with
the key by itself, so it can log in: the key is then in a cookie that only ``/inspect`` gets and that no script reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kompakt.gateway.admin.sessions import SessionsApi, session_of, shown_id
from kompakt.gateway.errors import GatewayError
from kompakt.gateway.pivots.budget import window_for
from kompakt.gateway.request.labels import Label
from kompakt.gateway.storage.changes import ManagedSession
from kompakt.gateway.tenants import KEY_HEADER, Access
from kompakt.inspector.access import read_json
from kompakt.inspector.api import PREFIX, InspectorApi, segments
from kompakt.inspector.errors import InspectorError
from kompakt.model.budget import TRIGGER_SHARE, Budget
from kompakt.model.json import prepare
from kompakt.model.lru import Lru
from kompakt.store.records import Head
from kompakt.view.directories import MAX_SESSIONS, DirectoryEntry, MissingSession, entry_of
from kompakt.view.inspection import Inspection, InspectionCache
from kompakt.view.sources import Source, StoredSource
from kompakt.view.values import ACTIONS

COOKIE = "kompakt_inspect_key"

KEYLESS = f"this gateway requires keys; log in with a key, or send one in the header {KEY_HEADER}"


class LoginRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a login."""

    key: str


class GatewayDirectory:
    """The sessions that one caller may see."""

    actions = ACTIONS

    def __init__(self, api: SessionsApi, access: Access, labels: Lru[str, Label]) -> None:
        self._api = api
        self._access = access
        self._labels = labels

    async def listed(self) -> Sequence[DirectoryEntry]:
        found: list[tuple[str, Head]] = []
        async for one in self._api.heads(self._access, ""):
            found.append(one)
            if len(found) == MAX_SESSIONS:
                break
        labels = await self._labels_of(found)
        return [
            msgspec.structs.replace(
                entry_of(head, self._api.store(tenant), title=label.title, client=label.client, model=label.model),
                id=shown_id(self._access, tenant, head.name),
            )
            for (tenant, head), label in zip(found, labels, strict=True)
        ]

    async def _labels_of(self, found: Sequence[tuple[str, Head]]) -> list[Label]:
        """Return the labels of sessions. A label never changes, so it is read once."""
        unknown = [(tenant, head) for tenant, head in found if head.key not in self._labels]
        read = await self._api.labels(unknown) if unknown else {}
        for tenant, head in unknown:
            label = read.get((tenant, head.name))
            if label is not None:
                self._labels.put(head.key, label)
        return [self._labels.get(head.key) or Label() for _, head in found]

    async def find(self, id: str) -> Source:
        try:
            found = await self._api.found(self._access, id, is_listed=True)
        except GatewayError as error:
            raise MissingSession(error.message) from None
        (label,) = await self._labels_of([(found.store.tenant, found.head)])
        return StoredSource(await session_of(found), client=label.client, model=label.model)

    async def writable(self, id: str) -> ManagedSession:
        try:
            found = await self._api.found_one(self._access, id, is_listed=True)
        except GatewayError as error:
            if error.status == 404:
                raise MissingSession(error.message) from None
            raise InspectorError(error.status, error.code, error.message) from None
        return await self._api.managed(found)

    async def close(self) -> None:
        pass


class GatewayInspector:
    """The ASGI application below ``/inspect``."""

    def __init__(self, api: SessionsApi) -> None:
        self._api = api
        self._cache = InspectionCache()
        self._labels = Lru[str, Label](MAX_SESSIONS)
        self._pages = InspectorApi(self._admit, has_login=True, is_stopping=lambda: api.gateway.is_draining)

    async def close(self) -> None:
        """Stop background work."""
        await self._cache.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._pages(scope, receive, send)

    async def _admit(self, request: Request, *, asset: bool) -> Inspection | Response:
        is_login = not asset and segments(request, PREFIX) == ["api", "login"]
        access = self._api.access(_with_key(request))
        if is_login:
            return await self._log_in(request)
        if access.is_keyless and not asset:
            raise InspectorError(401, "key_required", KEYLESS)
        settings = self._api.gateway.settings
        return Inspection(
            GatewayDirectory(self._api, access, self._labels),
            write=True,
            cache=self._cache,
            budget_of=self._budget_of,
            policies={name: settings.policy_named(name) for name in settings.policies},
        )

    def _budget_of(self, model: str | None) -> Budget | None:
        settings = self._api.gateway.settings
        found = window_for(model or "", settings)
        if not found.context or not (found.known or settings.context_window or (model or "") in settings.windows):
            return None
        return Budget.for_model(found, trigger_share=settings.trigger or TRIGGER_SHARE)

    async def _log_in(self, request: Request) -> Response:
        """Check a key and keep it in a cookie."""
        try:
            key = msgspec.json.decode(await read_json(request), type=LoginRequest).key
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise InspectorError(400, "invalid_request", 'send {"key": "…"}') from None
        if not key.isascii() or self._api.access(_with_key(request, key)).is_keyless:
            raise InspectorError(401, "invalid_kompakt_key", "this gateway does not know the key")
        response = Response(b"{}", media_type="application/json", headers={"cache-control": "no-store"})
        response.set_cookie(
            COOKIE, key, path=PREFIX, httponly=True, samesite="strict", secure=request.url.scheme == "https"
        )
        return response


def _with_key(request: Request, key: str | None = None) -> Request:
    """Return a request whose key is in its header, wherever it was given."""
    given = request.cookies.get(COOKIE, "") if key is None else key
    if not given or (key is None and KEY_HEADER in request.headers):
        return request
    headers = [(name, value) for name, value in request.scope["headers"] if name != KEY_HEADER.encode()]
    header = (KEY_HEADER.encode(), given.encode("latin-1", "replace"))
    return Request({**request.scope, "headers": [*headers, header]}, request.receive)


prepare(LoginRequest)
