"""Run the gateway: a socket, uvicorn, signals.

SIGTERM and SIGINT end it without cutting anybody off: no new connections, running requests and streams have ``drain``
seconds to finish, what waits to be recorded is written, then everything is closed. SIGHUP reads the settings again.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import signal
import socket
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn

from kompakt.errors import UsageError
from kompakt.gateway.app import Gateway, application
from kompakt.gateway.config import OFFICIAL, GatewayConfig
from kompakt.gateway.http.access_log import configure_logging
from kompakt.gateway.http.connections import protocol
from kompakt.gateway.reload import Reloading

_log = logging.getLogger("kompakt.gateway")

DEFAULT = "http://127.0.0.1:8484"
"""Where the gateway is when nobody says otherwise."""

_OFFICIAL_HOSTS = frozenset(urlsplit(url).hostname for url in OFFICIAL.values())

BACKLOG = 2_048
KEEP_ALIVE = 75
"""Seconds that a connection may rest between requests: agents think long, and a new one costs them a round trip."""

_CLIENTS: dict[str, tuple[tuple[str, str], ...]] = {
    "openai": (("OPENAI_BASE_URL", "OpenAI SDKs, Qwen Code"), ("OPENAI_API_BASE", "aider")),
    "anthropic": (("ANTHROPIC_BASE_URL", "Claude Code, Anthropic SDKs"),),
    "gemini": (("GOOGLE_GEMINI_BASE_URL", "Gemini CLI"),),
}
"""For each protocol, the environment variables that point clients at an address, and which clients read them."""


def serve(
    settings: GatewayConfig,
    *,
    key: bytes | None = None,
    load: Callable[[], GatewayConfig] | None = None,
    find: Callable[[], Path | None] = lambda: None,
) -> None:
    """Serve until told to end; ``load`` reads the settings again, ``find`` the file that they are in.

    Raises:
        UsageError: the address cannot be listened on.
        KompaktError: the store cannot be opened.
    """
    configure_logging(json=settings.log_json)
    listening = listen(settings)
    with asyncio.Runner(loop_factory=_loops()) as runner:
        runner.run(_served(settings, listening, key=key, load=load or (lambda: settings), find=find))


async def _served(
    settings: GatewayConfig,
    listening: socket.socket,
    *,
    key: bytes | None,
    load: Callable[[], GatewayConfig],
    find: Callable[[], Path | None],
) -> None:
    app = application(settings, key=key)
    gateway: Gateway = app.state.gateway
    server = Server(config_of(app, settings))
    async with gateway.running():
        reloading = Reloading(gateway, load, find)
        watching = asyncio.create_task(reloading.watch())
        try:
            with _signals(server, gateway, reloading):
                gc.collect()
                gc.freeze()  # what was loaded stays: collections that hold the loop need not look at it again
                _say(settings, listening)
                await server.serve(sockets=[listening])
        finally:
            watching.cancel()


class Server(uvicorn.Server):
    """uvicorn, with signals left to the gateway: its own handling would end the process before it is closed."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals alone."""
        yield


def config_of(app: Any, settings: GatewayConfig) -> uvicorn.Config:
    """Say how connections are served."""
    return uvicorn.Config(
        app,
        http=protocol(settings),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(settings.drain),
        h11_max_incomplete_event_size=settings.max_header,
        backlog=BACKLOG,
    )


@contextmanager
def _signals(server: Server, gateway: Gateway, reloading: Reloading) -> Generator[None]:
    loop = asyncio.get_running_loop()
    if sys.platform == "win32":  # event loops there take no signals: Ctrl-C ends the process
        yield
        return

    def stop(number: signal.Signals) -> None:
        if gateway.is_draining and number == signal.SIGINT:
            server.force_exit = True
        elif not gateway.is_draining:
            _log.info("ending: %d requests under way have %g seconds", gateway.places.total, gateway.settings.drain)
        gateway.is_draining = server.should_exit = True

    handlers = {signal.SIGTERM: stop, signal.SIGINT: stop}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler, number)
    loop.add_signal_handler(signal.SIGHUP, reloading.reload)
    try:
        yield
    finally:
        for number in (*handlers, signal.SIGHUP):
            loop.remove_signal_handler(number)


def listen(settings: GatewayConfig) -> socket.socket:
    """Take the address.

    Raises:
        UsageError: somebody else has it, or it is none.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror or error}; "
            "name another with --host and --port"
        ) from None


def _loops() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the quicker event loop where it is installed."""
    try:
        return import_module("uvloop").new_event_loop
    except ImportError:
        return None


# --- what is said at the start ------------------------------------------------------------------------------------


def _say(settings: GatewayConfig, listening: socket.socket) -> None:
    """Say on standard error where the gateway is and what to paste into a client."""
    base = base_url(settings, listening.getsockname()[1])
    lines = [f"kompakt gateway on {base}, store {without_password(settings.store)}; point a client at it:"]
    lines += [f"  {line}" for line in pasted(settings, base)]
    lines.append("check a client: kompakt doctor --client claude" + ("" if base == DEFAULT else f" --gateway {base}"))
    if not is_loopback(settings.host) and not settings.keys and settings.tenant_header is None:
        lines.append(
            f"warning: {settings.host} is open to the network and no keys are configured: anybody who reaches it can "
            "use it; `kompakt serve --make-key TENANT` makes a key"
        )
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()


def base_url(settings: GatewayConfig, port: int) -> str:
    """Return the address under which a client on this machine finds the gateway."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::", "") else settings.host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def pasted(settings: GatewayConfig, base: str) -> Iterator[str]:
    """List the lines to paste into a shell, with the clients that read them.

    An upstream with a name of its own may speak any protocol, and a single one gets every request.
    """
    alone = len(settings.upstreams) == 1
    for name, upstream in settings.upstreams.items():
        official = urlsplit(upstream.url).hostname in _OFFICIAL_HOSTS
        protocols = [name] if name in _CLIENTS and (official or not alone) else list(_CLIENTS)
        place = base if alone or name in _CLIENTS else f"{base}/{name}"
        for spoken in protocols:
            address = f"{place}/v1" if spoken == "openai" else place
            for variable, clients in _CLIENTS[spoken]:
                said = clients if place == base else f"{clients}; upstream {name}"
                yield f"{variable}={address}  # {said}"
        if "openai" in protocols:
            yield f"# Codex, opencode, pi: set the base URL of a provider in their configuration to {place}/v1"


def is_loopback(host: str) -> bool:
    """Tell whether an address is reached from this machine only."""
    return host in ("localhost", "::1") or host.startswith("127.")


def without_password(url: str) -> str:
    """Write the address of a store so that it can be shown."""
    parts = urlsplit(url)
    if parts.scheme.startswith("sqlite") or "@" not in parts.netloc:
        return url.partition("?")[0]
    return f"{parts.scheme}://…@{parts.netloc.rpartition('@')[2]}{parts.path}"
