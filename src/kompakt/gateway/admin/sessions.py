"""The session API under ``/kompakt/``: list, show, search, preview, undo and delete recorded sessions.

A client sees only the sessions of its tenant. An admin key, or a client on the gateway's machine when no keys are
configured, sees all. For the session of another tenant the response is the same as for a missing one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from kompakt.engine.compaction import compact as engine
from kompakt.engine.compaction.compact import CompactionOrder, run_sync
from kompakt.engine.compaction.policies import Policy
from kompakt.engine.pivot.pivot import pivot_text
from kompakt.engine.recall import DEFAULT_TOKENS
from kompakt.errors import DoesNotFit, StoreDamaged, StoreError, UsageError, WrongKey
from kompakt.gateway.admin import inspect_page, openapi
from kompakt.gateway.admin.openapi import (
    MAX_BUDGET,
    MAX_PAGE,
    MAX_QUERY,
    MAX_TOKENS,
    CompactionSummary,
    Preview,
    RecallResult,
    SessionDetails,
    SessionPage,
    SessionSummary,
    UndoneCompaction,
)
from kompakt.gateway.errors import GatewayError
from kompakt.gateway.pivots.budget import window_for
from kompakt.gateway.request.labels import Label
from kompakt.gateway.storage.changes import ManagedSession
from kompakt.gateway.storage.storage import Owner, decode_note
from kompakt.gateway.tenants import REGISTRY_TENANT, Access, access_of, heads_of, is_named
from kompakt.model.budget import TRIGGER_SHARE, Budget
from kompakt.model.json import encode
from kompakt.model.messages import History
from kompakt.model.tokens import counter_for
from kompakt.session.session import Session, label_name
from kompakt.session.store import Store
from kompakt.session.undo import CompactionInfo
from kompakt.store.records import Head
from kompakt.view.status import timestamp
from kompakt.wire.registry import WIRES

if TYPE_CHECKING:
    from kompakt.gateway.app import Gateway

MAX_ID = 512

MAX_NAMED = 5
"""Tenants that an error names."""


class FoundSession(NamedTuple):
    """The head of a session and the store of its tenant."""

    head: Head
    store: Store


class SessionsApi:
    """The endpoints under ``/kompakt`` and the page ``/inspect/plain``."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.router = Router(
            [
                Route("/openapi.json", self.describe, methods=["GET"]),
                Route("/sessions", self.list_sessions, methods=["GET"]),
                Route("/sessions/{id:path}/recall", self.recall, methods=["GET"]),
                Route("/sessions/{id:path}/preview", self.preview, methods=["GET"]),
                Route("/sessions/{id:path}/undo", self.undo, methods=["POST"]),
                Route("/sessions/{id:path}", self.show_or_delete, methods=["GET", "DELETE"]),
            ],
            redirect_slashes=False,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.router(scope, receive, send)
        except HTTPException as error:
            code = "method_not_allowed" if error.status_code == 405 else "not_found"
            raise GatewayError(error.status_code, error.detail, code=code, headers=error.headers) from None
        except StoreError as error:
            self.gateway.storage.store_failed(error)
            raise failed(error) from None

    # --- endpoints ------------------------------------------------------------------------------------------------

    async def describe(self, request: Request) -> Response:
        del request
        return _json(openapi.document(self.gateway.settings.policies))

    async def list_sessions(self, request: Request) -> Response:
        access = self.access(request)
        limit = _number(request, "limit", 50, MAX_PAGE)
        return _json(await self.page(access, request.query_params.get("after", ""), limit))

    async def show_or_delete(self, request: Request) -> Response:
        if request.method != "DELETE":
            return _json(await self.details(await self._find(request)))
        await (await session_of(await self.found_one(self.access(request), request.path_params["id"]))).delete()
        return Response(status_code=204)

    async def recall(self, request: Request) -> Response:
        target = await self._find(request)
        query = request.query_params.get("q", "")
        if not query.strip() or len(query) > MAX_QUERY:
            raise GatewayError(400, f"q must be 1 to {MAX_QUERY:,} characters, not all blank", code="invalid_query")
        tokens = _number(request, "tokens", DEFAULT_TOKENS, MAX_TOKENS)
        found = await (await session_of(target)).recall(query, tokens)
        return _json(RecallResult(found=bool(found), text=found.text, references=found.references, tokens=found.tokens))

    async def preview(self, request: Request) -> Response:
        target = await self._find(request)
        settings = self.gateway.settings
        name = request.query_params.get("policy", settings.policy)
        try:
            policy = settings.policy_named(name)
        except UsageError as error:
            raise GatewayError(400, str(error), code="unknown_policy") from None
        shown = await (await session_of(target)).project()
        if "budget" in request.query_params:
            budget = Budget.of(_number(request, "budget", 1, MAX_BUDGET))
        else:
            label = (await self.labels([(target.store.tenant, target.head)])).get(
                (target.store.tenant, target.head.name)
            )
            model = shown.history.model or (label.model if label else None) or ""
            share = settings.trigger or TRIGGER_SHARE
            budget = Budget.for_model(window_for(model, settings), trigger_share=share)
        try:
            return _json(await asyncio.to_thread(_preview, shown.history, shown.tokens, budget, policy))
        except DoesNotFit as error:
            raise GatewayError(409, str(error), code="does_not_fit") from None
        except UsageError as error:
            raise GatewayError(400, str(error), code="unknown_policy") from None

    async def undo(self, request: Request) -> Response:
        target = await self.found_one(self.access(request), request.path_params["id"])
        try:
            newest = await (await self.managed(target)).undo_newest()
        except UsageError as error:
            raise GatewayError(409, str(error), code="nothing_to_undo") from None
        return _json(UndoneCompaction(undone=newest.id, tokens=newest.tokens_before))

    async def inspect(self, request: Request) -> Response:
        try:
            access = self.access(request)
            id = request.query_params.get("session")
            if id is None:
                page = await self.page(access, request.query_params.get("after", ""), MAX_PAGE)
                return inspect_page.session_list(page, keyless=access.is_keyless)
            target = await self.found(access, id)
            query = request.query_params.get("q", "")[:MAX_QUERY].strip()
            found = await (await session_of(target)).recall(query) if query else None
            return inspect_page.session_details(
                await self.details(target), query, found.text if found is not None else ""
            )
        except StoreError as error:
            raise failed(error) from None

    # --- sessions ---------------------------------------------------------------------------------------------------

    def access(self, request: Request) -> Access:
        """Return which sessions a request may see, narrowed to the tenant that it asks for."""
        access = access_of(request, self.gateway.settings)
        tenant = request.query_params.get("tenant")
        if tenant is None or (access.owner is not None and access.owner.tenant == tenant):
            return access
        if access.owner is not None or tenant == REGISTRY_TENANT:
            raise _missing()
        return Access(Owner(tenant, ""))

    async def page(self, access: Access, after: str, limit: int) -> SessionPage:
        """Read a page of sessions; ``after`` is the ``next`` of the previous page."""
        found: list[tuple[str, Head]] = []
        following = None
        async for tenant, head in self.heads(access, after):
            if len(found) == limit:
                following = f"{found[-1][0]}/{found[-1][1].key}"
                break
            found.append((tenant, head))
        labels = await self.labels(found)
        summaries = [await self._summary(head, tenant, labels) for tenant, head in found]
        return SessionPage(sessions=summaries, next=following)

    async def labels(self, found: Sequence[tuple[str, Head]]) -> dict[tuple[str, str], Label]:
        """Read the labels of sessions, with one query per tenant."""
        labels: dict[tuple[str, str], Label] = {}
        value_codec = self.gateway.storage.value_codec
        for tenant in dict.fromkeys(tenant for tenant, _ in found):
            ids = [head.name for other, head in found if other == tenant]
            names = {label_name(id): id for id in ids if id.isascii()}  # only a gateway writes labels
            for name, data in (await self.gateway.storage.read_notes(Owner(tenant, ""), list(names))).items():
                with suppress(StoreDamaged, WrongKey):
                    labels[tenant, names[name]] = decode_note(data, value_codec, Label)
        return labels

    async def heads(self, access: Access, after: str) -> AsyncIterator[tuple[str, Head]]:
        """Iterate over the visible sessions, tenant by tenant, starting after a position."""
        first, slash, key = after.partition("/")
        if slash and access.owner is not None and access.owner.tenant != first:
            raise _missing()
        skips = bool(slash)
        async for owner in self._owners(access):
            skips = skips and owner.tenant != first
            if skips:
                continue
            async for head in heads_of(self.gateway.store.records, owner.tenant, after=key):
                if owner.owns(head.name):
                    yield owner.tenant, head
            key = ""

    async def _owners(self, access: Access) -> AsyncIterator[Owner]:
        """Iterate over the visible owners. The first one holds the sessions of all credential tenants."""
        if access.owner is not None:
            yield access.owner
            return
        yield Owner("", "")
        async for tenant in self.gateway.registry.tenants():
            if is_named(tenant):
                yield Owner(tenant, "")

    async def managed(self, found: FoundSession) -> ManagedSession:
        """Return a session to change it, so that the requests of its client notice."""
        return ManagedSession(await session_of(found), self.gateway.storage)

    def store(self, tenant: str) -> Store:
        """Return the sessions of a tenant."""
        return self.gateway.storage.store_of(Owner(tenant, ""))

    async def _find(self, request: Request) -> FoundSession:
        return await self.found(self.access(request), request.path_params["id"])

    async def found_one(self, access: Access, id: str, *, is_listed: bool = False) -> FoundSession:
        """Find a visible session by its id, to change it; see ``matches``.

        Raises:
            GatewayError: there is none, or several tenants have one of this id.
        """
        found = [one async for one in self.matches(access, id, is_listed=is_listed)]
        if not found:
            raise _missing()
        if len(found) > 1:
            queries = ", ".join(f"?tenant={one.store.tenant}" for one in found[:MAX_NAMED])
            more = ", …" if len(found) > MAX_NAMED else ""
            message = f"{len(found)} tenants have a session of this id; say whose with {queries}{more}"
            raise GatewayError(409, message, code="ambiguous_session")
        return found[0]

    async def found(self, access: Access, id: str, *, is_listed: bool = False) -> FoundSession:
        """Find a visible session by its id; see ``matches``.

        Raises:
            GatewayError: there is none.
        """
        async for one in self.matches(access, id, is_listed=is_listed):
            return one
        raise _missing()

    async def matches(self, access: Access, id: str, *, is_listed: bool = False) -> AsyncIterator[FoundSession]:
        """Iterate over the visible sessions of an id.

        Who sees all tenants may write it as ``tenant/id``. An id may have a slash too, so this counts only if no
        session has the whole text as its id. With ``is_listed`` the id may come from ``shown_id``, which counts first.
        """
        if is_listed and (one := await self._qualified(access, id)) is not None:
            yield one
            return
        is_literal = False
        async for owner in self._owners(access):
            one = await self._stored(owner, id)
            if one is not None:
                is_literal = True
                yield one
        if not is_literal and (one := await self._qualified(access, id)) is not None:
            yield one

    async def _qualified(self, access: Access, id: str) -> FoundSession | None:
        """Return the session that ``shown_id`` gives this id, if the caller sees all tenants."""
        tenant, _, rest = id.partition("/") if "/" in id else ("", "", id)
        if access.owner is not None or not is_named(tenant) or tenant == REGISTRY_TENANT:
            return None
        return await self._stored(Owner(tenant, ""), rest)

    async def _stored(self, owner: Owner, id: str) -> FoundSession | None:
        if not 0 < len(id) <= MAX_ID:
            return None
        store = self.store(owner.tenant)
        session = await store.session(owner.session(id))
        await self.gateway.storage.flush_session(owner.tenant, session.id)
        head = await store.records.head(session.key)
        return None if head is None else FoundSession(head, store)

    async def _summary(self, head: Head, tenant: str, labels: Mapping[tuple[str, str], Label]) -> SessionSummary:
        """Summarise a session; reads its events, not its messages."""
        live: list[CompactionInfo] = []
        if head.events:
            with suppress(StoreDamaged, WrongKey):
                session = await self.store(tenant).session(head.name)
                live = [one for one in await session.compactions() if not one.undone]
        newest = live[-1] if live else None
        label = labels.get((tenant, head.name), Label())
        return SessionSummary(
            id=head.name,
            title=label.title,
            model=label.model,
            client=label.client,
            purpose=label.purpose,
            tenant=tenant,
            format=head.format,
            messages=head.messages,
            turns=head.turn,
            created=timestamp(head.created),
            touched=timestamp(head.last_write),
            compactions=len(live),
            tokens_before=newest.tokens_before if newest is not None else None,
            tokens_after=newest.tokens_after if newest is not None else None,
        )

    async def details(self, found: FoundSession) -> SessionDetails:
        tenant = found.store.tenant
        summary = await self._summary(found.head, tenant, await self.labels([(tenant, found.head)]))
        compactions = await (await session_of(found)).compactions() if found.head.events else []
        return SessionDetails(
            session=summary,
            compactions=[
                CompactionSummary(
                    id=one.id,
                    at=timestamp(one.at),
                    reason=one.reason,
                    policy=one.policy,
                    tokens_before=one.tokens_before,
                    tokens_after=one.tokens_after,
                    undone=one.undone,
                )
                for one in compactions
            ],
        )


def _preview(history: History, tokens: int, budget: Budget, policy: Policy) -> Preview:
    """Compact the visible messages of a session without storing or reporting the result.

    Raises:
        DoesNotFit: the messages that must stay are larger than the budget.
        UsageError: the policy needs a model.
    """
    unchanged = Preview(
        due=budget.due(tokens),
        budget=budget.trigger,
        target=budget.target,
        policy=policy.name,
        tokens_before=tokens,
        tokens_after=tokens,
        messages_before=len(history),
        messages_after=len(history),
        strategies=[],
        text="",
    )
    if not unchanged.due:
        return unchanged
    order = CompactionOrder(
        budget=budget,
        policy=policy,
        counter=counter_for(history.model).own(),
        manual_thinking=WIRES[history.format].manual_thinking(history.body),
    )
    outcome = run_sync(engine.compact(history, order), may_wait=False)
    context = outcome.context
    return msgspec.structs.replace(
        unchanged,
        tokens_after=context.projected_tokens,
        messages_after=len(context.project()),
        strategies=list(dict.fromkeys(step.strategy for step in outcome.steps)),
        text=pivot_text(context) if context.summary_text else "",
    )


async def session_of(found: FoundSession) -> Session:
    return await found.store.session(found.head.name)


def shown_id(access: Access, tenant: str, id: str) -> str:
    """Return the id that a list shows for a session. Who sees all tenants needs the tenant too.

    No two sessions have the same: names of tenants have no slash, and an id with a slash always follows one.
    """
    return f"{tenant}/{id}" if access.owner is None and (tenant or "/" in id) else id


def _number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= most:
        raise GatewayError(400, f"{name} must be an integer from 1 to {most:,}", code="invalid_query")
    return int(text)


def _missing() -> GatewayError:
    return GatewayError(404, "there is no such session", code="not_found")


def failed(error: StoreError) -> GatewayError:
    if isinstance(error, WrongKey):
        return GatewayError(
            503, "the store is encrypted with another key; check the gateway's --key-file", code="store_unavailable"
        )
    if isinstance(error, StoreDamaged):
        return GatewayError(
            503, "the session is damaged in the store; check it with `kompakt session verify`", code="store_unavailable"
        )
    return GatewayError(
        503, "the store is unavailable; try again later", code="store_unavailable", headers={"retry-after": "5"}
    )


def _json(value: object) -> Response:
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return Response(encode(msgspec.to_builtins(value)), headers=headers, media_type="application/json")
