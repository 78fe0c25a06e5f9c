"""The gateway's own interface: the sessions that it recorded, under ``/kompakt/``, as JSON.

Everybody sees their own tenant only; an administrator's key, or the machine itself where no keys are configured, sees
all. A session of somebody else is not there: the answer is the same as for one that never was.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from kompakt.engine.recall import DEFAULT_TOKENS
from kompakt.errors import DoesNotFit, StoreDamaged, StoreError, UsageError, WrongKey
from kompakt.gateway.admin import inspect_page as inspecting
from kompakt.gateway.admin import openapi
from kompakt.gateway.admin.previews import preview
from kompakt.gateway.concurrency import with_timeout
from kompakt.gateway.errors import GatewayError
from kompakt.gateway.pivots import budget as planning
from kompakt.gateway.pivots.lookup import UndoneNote, undo_name
from kompakt.gateway.request.labels import Label, label_name
from kompakt.gateway.storage.records import decode_note, encode_note
from kompakt.gateway.storage.storage import Owner
from kompakt.gateway.tenancy.access import Access, access_of
from kompakt.gateway.tenancy.tenants import REGISTRY_TENANT, heads_of, is_named
from kompakt.model.budget import TRIGGER_SHARE, Budget
from kompakt.session.session import Session
from kompakt.session.store import Store
from kompakt.session.undo import CompactionInfo
from kompakt.store.records import Head

if TYPE_CHECKING:
    from kompakt.gateway.app import Gateway

MAX_PAGE = 200
MAX_TOKENS = 100_000
MAX_QUERY = 2_000
MAX_ID = 512
MAX_BUDGET = 100_000_000

FLUSH_PATIENCE = 10.0
"""Seconds in which what waits to be written is written before something is undone."""


class Listed(msgspec.Struct):
    """A session in a list."""

    id: str
    title: str
    """The first words of the first request."""
    model: str | None
    client: str | None
    purpose: str | None
    """What it is for, when it is not a conversation: ``title``, ``quota-check``, ``loop-check``, …"""
    tenant: str
    format: str
    messages: int
    turns: int
    created: str
    touched: str
    compactions: int
    tokens_before: int | None = None
    """Tokens before the newest compaction."""
    tokens_after: int | None = None
    """Tokens after it."""


class Compacted(msgspec.Struct):
    """One compaction of a session."""

    id: str
    at: str
    reason: str
    policy: str
    tokens_before: int
    tokens_after: int
    undone: bool


class Shown(msgspec.Struct):
    """A session by itself."""

    session: Listed
    compactions: list[Compacted]


class Page(msgspec.Struct):
    """Some sessions, and where to go on."""

    sessions: list[Listed]
    next: str | None = None


class Place(NamedTuple):
    """A session's head and the store of its tenant."""

    head: Head
    store: Store


class SessionsApi:
    """The endpoints under ``/kompakt`` and the page ``/inspect``."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.router = Router(
            [
                Route("/openapi.json", self.described, methods=["GET"]),
                Route("/sessions", self.listed, methods=["GET"]),
                Route("/sessions/{id:path}/recall", self.recalled, methods=["GET"]),
                Route("/sessions/{id:path}/preview", self.previewed, methods=["GET"]),
                Route("/sessions/{id:path}/undo", self.undone, methods=["POST"]),
                Route("/sessions/{id:path}", self.one, methods=["GET", "DELETE"]),
            ],
            redirect_slashes=False,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; a store that fails is said to have failed."""
        try:
            await self.router(scope, receive, send)
        except HTTPException as error:
            code = "method_not_allowed" if error.status_code == 405 else "not_found"
            raise GatewayError(error.status_code, error.detail, code=code, headers=error.headers) from None
        except StoreError as error:
            self.gateway.metrics.store_failures.inc()
            raise _failed(error) from None

    # --- endpoints ------------------------------------------------------------------------------------------------

    async def described(self, request: Request) -> Response:
        """Describe the interface itself."""
        del request
        return _json(openapi.document(self.gateway.settings.policies))

    async def listed(self, request: Request) -> Response:
        """List sessions."""
        access = self._access(request)
        limit = _number(request, "limit", 50, MAX_PAGE)
        return _json(await self.page(access, request.query_params.get("after", ""), limit))

    async def one(self, request: Request) -> Response:
        """Show a session, or remove it for good."""
        place = await self._find(request)
        if request.method != "DELETE":
            return _json(await self.account(place))
        await (await _session(place)).delete()
        return Response(status_code=204)

    async def recalled(self, request: Request) -> Response:
        """Find what was said in a session."""
        place = await self._find(request)
        query = request.query_params.get("q", "")
        if not query.strip() or len(query) > MAX_QUERY:
            raise GatewayError(400, f"q is what is looked for, up to {MAX_QUERY:,} characters", code="invalid_query")
        tokens = _number(request, "tokens", DEFAULT_TOKENS, MAX_TOKENS)
        found = await (await _session(place)).recall(query, tokens)
        return _json({"found": bool(found), "text": found.text, "references": found.references, "tokens": found.tokens})

    async def previewed(self, request: Request) -> Response:
        """Say what a compaction of a session would do."""
        place = await self._find(request)
        settings = self.gateway.settings
        name = request.query_params.get("policy", settings.policy)
        try:
            policy = settings.policy_named(name)
        except UsageError as error:
            raise GatewayError(400, str(error), code="unknown_policy") from None
        shown = await (await _session(place)).project()
        if "budget" in request.query_params:
            budget = Budget.of(_number(request, "budget", 1, MAX_BUDGET))
        else:
            label = (await self._labels([(place.store.tenant, place.head)])).get((place.store.tenant, _id(place.head)))
            model = shown.history.model or (label.model if label else None) or ""
            share = settings.trigger or TRIGGER_SHARE
            budget = Budget.for_model(planning.window_for(model, settings), trigger_share=share)
        try:
            return _json(await asyncio.to_thread(preview, shown.history, shown.tokens, budget, policy))
        except DoesNotFit as error:
            raise GatewayError(409, str(error), code="does_not_fit") from None
        except UsageError as error:
            raise GatewayError(400, str(error), code="unknown_policy") from None

    async def undone(self, request: Request) -> Response:
        """Take back the newest compaction of a session."""
        place = await self._find(request)
        session = await _session(place)
        await with_timeout(self.gateway.storage.flush(), FLUSH_PATIENCE)  # the newest compaction may not be written yet
        timeline = (await session.reader()).timeline
        live = [record for event, record in timeline.compactions if not timeline.is_undone(event, record)]
        if not live:
            raise GatewayError(409, "the session has no compaction to undo", code="nothing_to_undo")
        newest, before = live[-1], live[-2] if len(live) > 1 else None
        undo = UndoneNote() if before is None else UndoneNote(before=before.id, covers=before.tip)
        note = {undo_name(newest.id): encode_note(undo, self.gateway.storage.value_codec)}
        await self.gateway.storage.write_notes(Owner(place.store.tenant, ""), session.id, note)
        await session.undo(newest.id)
        return _json({"undone": newest.id, "tokens": newest.tokens_before})

    async def inspect(self, request: Request) -> Response:
        """Show sessions as a page for people."""
        try:
            access = self._access(request)
            id = request.query_params.get("session")
            if id is None:
                page = await self.page(access, request.query_params.get("after", ""), MAX_PAGE)
                return inspecting.listed(page, keyless=access.is_keyless)
            place = await self._found(access, id)
            query = request.query_params.get("q", "")[:MAX_QUERY].strip()
            found = await (await _session(place)).recall(query) if query else None
            return inspecting.shown(await self.account(place), query, found.text if found is not None else "")
        except StoreError as error:
            raise _failed(error) from None

    # --- reading --------------------------------------------------------------------------------------------------

    def _access(self, request: Request) -> Access:
        """Say what whoever asks may see, or of that, what is asked for."""
        access = access_of(request, self.gateway.settings)
        asked = request.query_params.get("tenant")
        if asked is None or (access.owner is not None and access.owner.tenant == asked):
            return access
        if access.owner is not None or asked == REGISTRY_TENANT:
            raise _missing()
        return Access(Owner(asked, ""))

    async def page(self, access: Access, after: str, limit: int) -> Page:
        """Read some sessions, those behind a place."""
        found: list[tuple[str, Head]] = []
        following = None
        async for tenant, head in self._heads(access, after):
            if len(found) == limit:
                following = f"{found[-1][0]}/{found[-1][1].key}"
                break
            found.append((tenant, head))
        labels = await self._labels(found)
        return Page([await self._line(head, tenant, labels) for tenant, head in found], next=following)

    async def _labels(self, found: Sequence[tuple[str, Head]]) -> dict[tuple[str, str], Label]:
        """Read what sessions are recognised by, with one question for each tenant."""
        labels: dict[tuple[str, str], Label] = {}
        value_codec = self.gateway.storage.value_codec
        for tenant in dict.fromkeys(tenant for tenant, _ in found):
            names = {label_name(_id(head)): _id(head) for other, head in found if other == tenant}
            for name, data in (await self.gateway.storage.read_notes(Owner(tenant, ""), list(names))).items():
                with suppress(StoreDamaged, WrongKey):
                    labels[tenant, names[name]] = decode_note(data, value_codec, Label)
        return labels

    async def _heads(self, access: Access, after: str) -> AsyncIterator[tuple[str, Head]]:
        """Go through the sessions that somebody may see, tenant by tenant, from a place on."""
        begun, slash, key = after.partition("/")
        if slash and access.owner is not None and access.owner.tenant != begun:
            raise _missing()
        waits = bool(slash)
        async for owner in self._owners(access):
            waits = waits and owner.tenant != begun
            if waits:
                continue
            async for head in heads_of(self.gateway.store.records, owner.tenant, after=key):
                if owner.owns(_id(head)):
                    yield owner.tenant, head
            key = ""

    async def _owners(self, access: Access) -> AsyncIterator[Owner]:
        """Go through those whose sessions somebody may see; who is known by a credential only is in the first."""
        if access.owner is not None:
            yield access.owner
            return
        yield Owner("", "")
        async for tenant in self.gateway.registry.tenants():
            if is_named(tenant):
                yield Owner(tenant, "")

    def _store(self, tenant: str) -> Store:
        return self.gateway.storage.store_of(Owner(tenant, ""))

    async def _find(self, request: Request) -> Place:
        return await self._found(self._access(request), request.path_params["id"])

    async def _found(self, access: Access, id: str) -> Place:
        """Find a session by its id.

        Raises:
            GatewayError: there is none that whoever asks may see.
        """
        if id and len(id) <= MAX_ID:
            async for owner in self._owners(access):
                store = self._store(owner.tenant)
                session = await store.session(owner.session(id))
                await self.gateway.storage.flush_session(owner.tenant, session.id)
                head = await store.records.head(session.key)
                if head is not None:
                    return Place(head, store)
        raise _missing()

    async def _line(self, head: Head, tenant: str, labels: Mapping[tuple[str, str], Label]) -> Listed:
        """Describe a session on one line; costs its events, not its messages."""
        live: list[CompactionInfo] = []
        if head.events:
            with suppress(StoreDamaged, WrongKey):
                session = await self._store(tenant).session(_id(head))
                live = [one for one in await session.compactions() if not one.undone]
        newest = live[-1] if live else None
        label = labels.get((tenant, _id(head)), Label())
        return Listed(
            id=_id(head),
            title=label.title,
            model=label.model,
            client=label.client,
            purpose=label.purpose,
            tenant=tenant,
            format=head.format,
            messages=head.messages,
            turns=head.turn,
            created=_moment(head.created),
            touched=_moment(head.touched or head.created),
            compactions=len(live),
            tokens_before=newest.tokens_before if newest is not None else None,
            tokens_after=newest.tokens_after if newest is not None else None,
        )

    async def account(self, place: Place) -> Shown:
        """Tell all that is known of a session."""
        tenant = place.store.tenant
        line = await self._line(place.head, tenant, await self._labels([(tenant, place.head)]))
        accounts = await (await _session(place)).compactions() if place.head.events else []
        return Shown(
            line,
            [
                Compacted(
                    id=one.id,
                    at=_moment(one.at),
                    reason=one.reason,
                    policy=one.policy,
                    tokens_before=one.tokens_before,
                    tokens_after=one.tokens_after,
                    undone=one.undone,
                )
                for one in accounts
            ],
        )


async def _session(place: Place) -> Session:
    return await place.store.session(_id(place.head))


def _id(head: Head) -> str:
    return head.id.decode("utf-8", "replace")


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _number(request: Request, name: str, default: int, most: int) -> int:
    """Read a number of the query."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= most:
        raise GatewayError(400, f"{name} is a whole number from 1 to {most:,}", code="invalid_query")
    return int(text)


def _missing() -> GatewayError:
    return GatewayError(404, "there is no such session", code="not_found")


def _failed(error: StoreError) -> GatewayError:
    if isinstance(error, WrongKey):
        return GatewayError(503, "the store cannot be read with the gateway's key", code="store_unavailable")
    said = "is damaged" if isinstance(error, StoreDamaged) else "does not answer"
    return GatewayError(
        503, f"the store {said}; try again later", code="store_unavailable", headers={"retry-after": "5"}
    )


def _json(value: object) -> Response:
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return Response(msgspec.json.encode(value), headers=headers, media_type="application/json")
