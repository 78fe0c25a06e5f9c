"""Run the gateway: socket, uvicorn, signals and configuration reload.

SIGTERM and SIGINT end it gracefully: it accepts no new connections, open requests and streams have ``drain`` seconds to
finish, pending records are written, then everything is closed. SIGHUP and a change of the configuration file reload the
settings. If they are invalid, the gateway logs the reason and keeps the old ones.

With several workers, this process is their supervisor, or one of the workers; see ``workers.py``.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import signal
import socket
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn

from kompakt.errors import UsageError
from kompakt.gateway.app import Gateway, create_app
from kompakt.gateway.concurrency import SWITCH_INTERVAL, full_collections
from kompakt.gateway.config import OFFICIAL, GatewayConfig, without_password
from kompakt.gateway.http.access_log import configure_logging
from kompakt.gateway.http.limits import protocol
from kompakt.gateway.http.metrics import share_metrics
from kompakt.gateway.tenants import is_loopback
from kompakt.gateway.workers import Supervisor, WorkerAssignment, WorkerChannel
from kompakt.store import sqlite_path
from kompakt.version import own_program

_log = logging.getLogger("kompakt.gateway")

_OFFICIAL_HOSTS = frozenset(urlsplit(url).hostname for url in OFFICIAL.values())

BACKLOG = 2_048
KEEP_ALIVE = 75
"""Seconds that an idle connection stays open: agents pause between requests, and reconnecting costs a round trip."""

RELOAD_PERIOD = 2.0
"""Seconds between checks of the configuration file."""

_POLL = 0.05
"""Seconds between checks whether a retired worker has open requests."""

_CLIENTS: dict[str, tuple[tuple[str, str], ...]] = {
    "openai": (("OPENAI_BASE_URL", "OpenAI SDKs, Qwen Code"), ("OPENAI_API_BASE", "aider")),
    "anthropic": (("ANTHROPIC_BASE_URL", "Claude Code, Anthropic SDKs"),),
    "gemini": (("GOOGLE_GEMINI_BASE_URL", "Gemini CLI"),),
}
"""For each protocol, the environment variables with the base URL and the clients that read them."""


def serve(
    settings: GatewayConfig,
    *,
    key: bytes | None = None,
    load: Callable[[], GatewayConfig] | None = None,
    find: Callable[[], Path | None] = lambda: None,
    worker: WorkerAssignment | None = None,
) -> None:
    """Serve until a signal ends it; ``load`` reads the settings again, ``find`` returns the path of their file.

    Raises:
        UsageError: the address cannot be listened on.
        KompaktError: the store cannot be opened.
    """
    configure_logging(json=settings.log_json, worker=None if worker is None else worker.number)
    if worker is not None:
        share_metrics(worker.metrics_folder, worker.metrics_file)
    listening = listen(settings) if worker is None else None
    sys.setswitchinterval(SWITCH_INTERVAL)
    with asyncio.Runner(loop_factory=_loops()) as runner:
        runner.run(_serve(settings, listening or worker, key=key, load=load or (lambda: settings), find=find))


def supervise(settings: GatewayConfig, *, flags: Mapping[str, Any], load: Callable[[], GatewayConfig]) -> int:
    """Run ``settings.workers`` processes until a signal ends them; return the exit code.

    Raises:
        UsageError: the address cannot be listened on, or the system cannot pass connections to other processes.
    """
    if not hasattr(socket, "send_fds"):
        raise UsageError("--workers needs an operating system that can pass connections to processes; use --workers 1")
    configure_logging(json=settings.log_json)
    listening = listen(settings)
    port = listening.getsockname()[1]
    with asyncio.Runner() as runner:
        return runner.run(Supervisor(settings, listening, flags, load).run(lambda: _print_banner(settings, port)))


async def _serve(
    settings: GatewayConfig,
    source: socket.socket | WorkerAssignment | None,
    *,
    key: bytes | None,
    load: Callable[[], GatewayConfig],
    find: Callable[[], Path | None],
) -> None:
    """Serve connections from a listening socket, or from the supervisor."""
    worker = source if isinstance(source, WorkerAssignment) else None
    app = create_app(settings, key=key, worker=1 if worker is None else worker.number)
    gateway: Gateway = app.state.gateway
    server = GatewayServer(uvicorn_config(app, settings))
    async with gateway.lifespan():
        reloader = ConfigReloader(gateway, load, find)
        background = [
            asyncio.create_task(reloader.watch()),
            asyncio.create_task(full_collections.collect_rarely()),
        ]
        try:
            with _signals(server, gateway, reloader):
                gc.collect()
                gc.freeze()  # loaded modules stay: collections that block the event loop can skip them
                if isinstance(source, socket.socket):
                    _print_banner(settings, source.getsockname()[1])
                    await server.serve(sockets=[source])
                elif worker is not None:
                    await _serve_as_worker(server, gateway, worker)
        finally:
            for task in background:
                task.cancel()


async def _serve_as_worker(server: GatewayServer, gateway: Gateway, worker: WorkerAssignment) -> None:
    retired: list[asyncio.Task[None]] = []

    def retire() -> None:
        _log.info("retired: %d open requests continue, new connections go to another worker", gateway.slots.total)
        retired.append(asyncio.create_task(server.retire(gateway)))

    channel = WorkerChannel(
        worker, serve=server.serve_connection, retire=retire, stop=lambda: _drain(server, gateway, signal.SIGTERM)
    )
    server.on_started = channel.open
    await server.serve(sockets=[])
    channel.close()


class GatewayServer(uvicorn.Server):
    """uvicorn without its signal handlers, which would end the process before the gateway is closed."""

    on_started: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._opening: set[asyncio.Task[Any]] = set()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_started()

    def serve_connection(self, connection: socket.socket) -> None:
        """Serve a connection that another process accepted."""
        loop = asyncio.get_running_loop()

        def make() -> asyncio.Protocol:
            kind: Any = self.config.http_protocol_class
            return kind(config=self.config, server_state=self.server_state, app_state={}, _loop=loop)

        connection.setblocking(False)
        opening = loop.create_task(loop.connect_accepted_socket(make, connection))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def retire(self, gateway: Gateway) -> None:
        """Exit after the last request, and after idle clients had ``drain`` seconds to send another one."""
        loop, state = asyncio.get_running_loop(), self.server_state
        gateway.is_draining = True
        end = loop.time() + gateway.settings.drain
        while self._opening or state.tasks or (state.connections and loop.time() < end):
            await asyncio.sleep(_POLL)
        self.should_exit = True


def uvicorn_config(app: Any, settings: GatewayConfig) -> uvicorn.Config:
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


class ConfigReloader:
    """Applies changes of the configuration to a running gateway."""

    def __init__(self, gateway: Gateway, load: Callable[[], GatewayConfig], find: Callable[[], Path | None]) -> None:
        self.gateway = gateway
        self._load = load
        self._find = find
        self._seen = self._state()

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_PERIOD)
            if self._state() != self._seen:
                self.reload()

    def reload(self) -> None:
        self._seen = self._state()
        metrics = self.gateway.metrics
        try:
            settings = self._load()
        except UsageError as error:
            metrics.reloads.labels("failed").inc()
            _log.error("configuration reload failed, keeping the old settings: %s", error)
            return
        fixed = self.gateway.reconfigure(settings)
        metrics.reloads.labels("done").inc()
        _log.info("configuration reloaded")
        if fixed:
            _log.warning("restart required to change: %s", ", ".join(fixed))

    def _state(self) -> tuple[object, ...]:
        """Return a value that changes when the file changes."""
        path = self._find()
        if path is None:
            return ()
        try:
            found = path.stat()
        except OSError:
            return (path,)
        return (path, found.st_mtime_ns, found.st_size, found.st_ino)


@contextmanager
def _signals(server: GatewayServer, gateway: Gateway, reloader: ConfigReloader) -> Generator[None]:
    loop = asyncio.get_running_loop()
    if sys.platform == "win32":  # its event loops support no signal handlers: Ctrl-C ends the process
        yield
        return

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _drain, server, gateway, number)
    loop.add_signal_handler(signal.SIGHUP, reloader.reload)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)


def _drain(server: GatewayServer, gateway: Gateway, number: signal.Signals) -> None:
    """Let open requests finish, then exit; a second SIGINT exits at once."""
    if server.should_exit and number == signal.SIGINT:
        server.force_exit = True
    elif not server.should_exit:
        drain = gateway.settings.drain
        _log.info("shutting down: %d open requests have %g seconds to finish", gateway.slots.total, drain)
    gateway.is_draining = server.should_exit = True


def listen(settings: GatewayConfig) -> socket.socket:
    """Open the listening socket.

    Raises:
        UsageError: the address is in use or invalid.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror or error}; "
            "choose another address with --host and --port"
        ) from None


def _loops() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of uvloop, if it is installed."""
    try:
        return import_module("uvloop").new_event_loop
    except ImportError:
        return None


# --- startup banner ------------------------------------------------------------------------------------------------


def _print_banner(settings: GatewayConfig, port: int) -> None:
    """Print the address and the client settings on standard error."""
    base = base_url(settings, port)
    workers = f"{settings.workers} workers, " if settings.workers > 1 else ""
    lines = [f"kompakt gateway on {base}, {workers}store {_shown_store(settings.store)}; client settings:"]
    lines += [f"  {line}" for line in client_settings(settings, base)]
    lines.append(f"check a client: {own_program()} doctor --client claude --gateway {base}")
    if not is_loopback(settings.host) and not settings.keys and settings.tenant_header is None:
        lines.append(
            f"warning: {settings.host} is open to the network without keys: anybody who can connect can use it; "
            "`kompakt serve --make-key TENANT` creates a key"
        )
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()


def _shown_store(url: str) -> str:
    """Return a store for people: the path of a SQLite file, with ``~`` for the home folder, or a URL."""
    path, home = sqlite_path(url), Path("~").expanduser()
    if path is None:
        return without_password(url)
    is_below = home != home.parent and Path(path).is_relative_to(home)
    return str("~" / Path(path).relative_to(home)) if is_below else path


def base_url(settings: GatewayConfig, port: int) -> str:
    """Return the base URL for a client on this machine."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::", "") else settings.host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def client_settings(settings: GatewayConfig, base: str) -> Iterator[str]:
    """List the environment variables that point clients at the gateway.

    An upstream with a custom name may serve any protocol, and a single upstream gets every request.
    """
    alone = len(settings.upstreams) == 1
    for name, upstream in settings.upstreams.items():
        official = urlsplit(upstream.url).hostname in _OFFICIAL_HOSTS
        protocols = [name] if name in _CLIENTS and (official or not alone) else list(_CLIENTS)
        address_base = base if alone or name in _CLIENTS else f"{base}/{name}"
        for spoken in protocols:
            address = f"{address_base}/v1" if spoken == "openai" else address_base
            for variable, clients in _CLIENTS[spoken]:
                comment = clients if address_base == base else f"{clients}; upstream {name}"
                yield f"{variable}={address}  # {comment}"
        if "openai" in protocols:
            yield f"# Codex, opencode, pi: base URL in their settings: {address_base}/v1"
