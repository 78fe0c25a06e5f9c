"""MCP at ``/mcp``: recall, ledger and status of recorded sessions, for clients of the gateway.

Every request passes the same checks as the session API: the site, the key, the tenant. A client finds the session that
it names in a tool argument, else the one in the header ``x-kompakt-session``, else the newest one that it may see.
Sessions are only read. The MCP library is imported, and its server started, by the first request.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from kompakt.errors import StoreError, UsageError
from kompakt.gateway.admin.sessions import FoundSession, SessionsApi, failed, session_of, shown_id
from kompakt.gateway.errors import GatewayError
from kompakt.gateway.storage.storage import Owner
from kompakt.gateway.tenants import Access
from kompakt.store.records import Head
from kompakt.version import install_command

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from kompakt.hosts.mcp.directory import Caller, ListedSession, ServedSession

SESSION_HEADER = "x-kompakt-session"

MAX_LISTED = 50
MAX_SEARCHED = 1_000
"""Sessions among which the newest is searched. A client with more has to name one."""


class McpEndpoint:
    """The ASGI application at ``/mcp``."""

    def __init__(self, api: SessionsApi) -> None:
        self._api = api
        self._starting = asyncio.Lock()
        self._manager: StreamableHTTPSessionManager | None = None
        self._stopped = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check who asks, then let the MCP library answer.

        Raises:
            GatewayError: the request may not see sessions, or MCP is not installed.
        """
        self._api.access(Request(scope))
        if scope["method"] != "POST":
            raise GatewayError(405, "MCP requests are sent with POST", code="method_not_allowed", headers=_ALLOW)
        async with self._starting:
            manager = self._manager or await self._start()
        await manager.handle_request(scope, receive, send)

    async def _start(self) -> StreamableHTTPSessionManager:
        try:
            server = await asyncio.to_thread(import_module, "kompakt.hosts.mcp.server")
            library = await asyncio.to_thread(import_module, "mcp.server.streamable_http_manager")
        except ImportError as error:
            raise GatewayError(
                404,
                f"the MCP endpoint needs {error.name}; install it with: {install_command('mcp')}",
                code="not_found",
            ) from None
        made = server.create_server(GatewaySessions(self._api))
        manager: StreamableHTTPSessionManager = library.StreamableHTTPSessionManager(
            made, json_response=True, stateless=True
        )
        started = asyncio.Event()
        self._task = asyncio.create_task(self._run(manager, started))
        self._api.gateway.at_exit(self._stop)
        await started.wait()
        self._manager = manager
        return manager

    async def _run(self, manager: StreamableHTTPSessionManager, started: asyncio.Event) -> None:
        """Hold the task group of the library open: one task has to enter and leave it."""
        async with manager.run():
            started.set()
            await self._stopped.wait()

    async def _stop(self) -> None:
        self._stopped.set()
        if self._task is not None:
            await self._task


_ALLOW = {"allow": "POST"}


class GatewaySessions:
    """The recorded sessions that a request may see, as the MCP server needs them."""

    def __init__(self, api: SessionsApi) -> None:
        self._api = api

    async def find(self, id: str | None, caller: Caller) -> ServedSession:
        """Return a session by its id, or the one that the caller is in.

        Raises:
            UsageError: there is no such session.
        """
        from kompakt.hosts.mcp.sessions import StoredSession  # late: only with the MCP endpoint

        request: Request = caller.request
        access = self._api.access(request)
        name = id if id is not None else request.headers.get(SESSION_HEADER) or None
        try:
            if name is not None:
                found = await self._api.found(access, name, is_listed=id is not None)
            else:
                found = await self._newest(access)
        except GatewayError as error:
            raise UsageError(error.message) from None
        except StoreError as error:
            raise UsageError(failed(error).message) from None
        session = await session_of(found)
        return StoredSession(session, shown_id(access, session.tenant, session.id))

    async def _newest(self, access: Access) -> FoundSession:
        best: tuple[str, Head] | None = None
        newest, count = 0.0, 0
        async for tenant, head in self._api.heads(access, ""):
            count += 1
            if count > MAX_SEARCHED:
                raise UsageError(f"there are many sessions; name one with the argument session or in {SESSION_HEADER}")
            if best is None or head.last_write >= newest:
                best, newest = (tenant, head), head.last_write
        if best is None:
            raise UsageError("the gateway has recorded no session yet; send a request through it first")
        tenant, head = best
        return await self._api.found(Access(Owner(tenant, "")), head.name)

    async def list(self, caller: Caller) -> list[ListedSession]:
        """List sessions that the caller may see."""
        from kompakt.hosts.mcp.directory import ListedSession  # late: only with the MCP endpoint

        access = self._api.access(caller.request)
        page = await self._api.page(access, "", MAX_LISTED)
        listed = [ListedSession(shown_id(access, one.tenant, one.id), one.format, one.touched) for one in page.sessions]
        return sorted(listed, key=lambda one: one.modified, reverse=True)

    async def close(self) -> None:
        """Do nothing: the gateway owns the store."""
