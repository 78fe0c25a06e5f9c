"""How clients reach the MCP server: standard input and output, or HTTP on the loopback.

Over HTTP the Host must be the address of this server and the Origin, if there is one, the server itself. Otherwise any
web page in a browser on this machine could read sessions.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kompakt.errors import UsageError

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from starlette.applications import Starlette

PATH = "/mcp"
HOST = "127.0.0.1"


def run_stdio(create: Callable[[], Server[Any]]) -> None:
    """Serve one client on standard input and output until it closes the input, or until a signal."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    asyncio.run(_stdio(create))


def _leave(number: int, frame: object) -> None:
    """Exit at once: nothing interrupts the thread that waits for input. What was written to a store is committed."""
    del frame
    os._exit(128 + number)


async def _stdio(create: Callable[[], Server[Any]]) -> None:
    from mcp.server.stdio import stdio_server  # late: one transport is used

    server = create()
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def run_http(create: Callable[[], Server[Any]], port: int, *, ready: Callable[[str], None]) -> None:
    """Serve clients on this machine over HTTP; ``ready`` gets the URL once the port is open.

    Raises:
        UsageError: the port is in use.
    """
    import uvicorn  # late: one transport is used

    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()  # a client that connects as soon as it knows the URL waits instead of being refused
    except (OSError, OverflowError) as error:
        listener.close()
        raise UsageError(
            f"cannot listen on port {port}: {str(error).rstrip('.')}; choose another with --http PORT"
        ) from None
    port = listener.getsockname()[1]
    ready(f"http://{HOST}:{port}{PATH}")
    config = uvicorn.Config(http_app(create(), port), log_level="warning", lifespan="on", timeout_graceful_shutdown=5)
    uvicorn.Server(config).run(sockets=[listener])


def http_app(server: Server[Any], port: int) -> Starlette:
    """Return the application that answers on a port of the loopback."""
    from mcp.server.transport_security import TransportSecuritySettings  # late: one transport is used

    names = [f"{name}:{port}" for name in (HOST, "localhost", "[::1]")]
    return server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,
        transport_security=TransportSecuritySettings(
            allowed_hosts=names, allowed_origins=[f"http://{name}" for name in names]
        ),
    )
