"""The server of ``kompakt inspect``: one inspection on the loopback, behind a token."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from urllib.parse import quote, urlencode

import uvicorn
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from kompakt.errors import UsageError
from kompakt.inspector.access import TokenAccess, check_host, check_origin
from kompakt.inspector.api import PREFIX, InspectorApi
from kompakt.view.inspection import Inspection

HOST = "127.0.0.1"


class InspectorServer:
    """Serves an inspection to a person on this machine."""

    def __init__(self, inspection: Inspection, *, port: int = 0, token: str | None = None) -> None:
        """Reserve a port; 0 selects a free one.

        Raises:
            UsageError: the port is in use.
        """
        self._inspection = inspection
        self._socket = _listen(port)
        self.port: int = self._socket.getsockname()[1]
        self.access = TokenAccess(token or secrets.token_urlsafe(24), self.port)
        self.app = create_app(inspection, self.access)

    @property
    def url(self) -> str:
        """The address with the token."""
        return f"http://{HOST}:{self.port}{PREFIX}/?{urlencode({'token': self.access.token})}"

    def url_of(self, session: str | None) -> str:
        """Return the address with the token, of one session or of the list."""
        return self.url if session is None else f"{self.url}#/s/{quote(session, safe='')}"

    async def run(self, started: Callable[[], None] | None = None) -> None:
        """Serve until the process is interrupted; ``started`` is called when the server accepts requests."""
        config = uvicorn.Config(
            self.app,
            access_log=False,
            date_header=False,
            lifespan="off",
            log_level="error",
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[self._socket]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started and started is not None:
            started()
        await serving


def _listen(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"port {port} cannot be used: {reason}; choose another with --port, or 0 for any") from None
    listening.listen(128)
    return listening


def create_app(inspection: Inspection, access: TokenAccess) -> Callable[[Scope, Receive, Send], object]:
    """Create the application of one inspection."""

    async def admit(request: Request, *, asset: bool) -> Inspection | Response:
        given = request.query_params.get("token")
        if asset and request.method == "GET" and given is not None:
            check_host(request, access.hosts)
            check_origin(request)
            if access.is_token(given):
                return _with_cookie(request, access)
        access.check(request)
        return inspection

    return InspectorApi(admit)


def _with_cookie(request: Request, access: TokenAccess) -> Response:
    """Exchange the token in the address for a cookie."""
    rest = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
    target = f"{PREFIX}/?{urlencode(rest)}" if rest else f"{PREFIX}/"
    response = RedirectResponse(target, status_code=303, headers={"cache-control": "no-store"})
    response.set_cookie(access.cookie, access.token, path=PREFIX, httponly=True, samesite="strict")
    return response
