"""A gateway with a stub handler in place of the proxy, on real sockets, to test the layers around the proxy."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kompakt.gateway import server as serving
from kompakt.gateway.app import Gateway, Handler, create_app
from kompakt.gateway.config import GatewayConfig, Upstream
from kompakt.gateway.tenants import Tenant
from kompakt.gateway.upstream import Route

KEYS = {"key-of-a-0123456789abcdef": "tenant-a", "key-of-b-0123456789abcdef": "tenant-b"}
ADMIN = "key-of-the-operator-0123456789"


async def echo(request: Request, tenant: Tenant, route: Route) -> Response:
    """Answer with what the layers before the handler found out."""
    body = await request.body()
    found = {"size": len(body), "tenant": tenant.id, "source": tenant.source, "route": route.name, "url": route.url}
    return JSONResponse(found)


class Served:
    """A running gateway."""

    def __init__(self, url: str, gateway: Gateway, loop: asyncio.AbstractEventLoop) -> None:
        self.url, self.gateway, self.loop = url, gateway, loop

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.url.rpartition(":")[2])

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request."""
        return httpx.request(method, self.url + path, timeout=120, trust_env=False, **options)

    def get(self, path: str, **headers: str) -> httpx.Response:
        """Send a GET request."""
        return self.ask("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def post(self, path: str, **options: Any) -> httpx.Response:
        """Send a POST request."""
        return self.ask("POST", path, **options)

    def run(self, work: Any) -> Any:
        """Run a coroutine on the gateway's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(120)

    def empty(self) -> None:
        """Wait until no request is in flight; a client has its answer a moment earlier."""
        end = time.monotonic() + 60
        while self.gateway.slots.total or "kompakt_in_flight 0.0" not in self.gateway.metrics.text().decode():
            assert time.monotonic() < end, "a request is still in flight"
            time.sleep(0.01)

    def raw(self, data: bytes, *, wait: float = 120.0) -> bytes:
        """Send raw bytes and read until the gateway closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as line:
            line.sendall(data)
            found = b""
            try:
                while piece := line.recv(65_536):
                    found += piece
            except (TimeoutError, ConnectionResetError):
                pass
            return found


def settings(**changes: Any) -> GatewayConfig:
    """Return settings for tests."""
    given: dict[str, Any] = {
        "port": 0,
        "store": "memory:",
        "upstreams": {name: Upstream(name, f"http://{name}.invalid") for name in ("openai", "anthropic", "gemini")},
        "secret": "a secret of the tests",
        "drain": 1.0,
    }
    return GatewayConfig(**(given | changes))


@contextmanager
def served(
    made: GatewayConfig,
    handler: Handler | None = echo,
    *,
    make: Callable[[Gateway], Handler] | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> Iterator[Served]:
    """Run a gateway in a thread; without a handler the real proxy answers."""
    chosen = make or ((lambda _: handler) if handler is not None else None)
    app = create_app(made, transport=transport, make=chosen)
    listening = serving.listen(made)
    server = serving.GatewayServer(serving.uvicorn_config(app, made))
    loop = asyncio.new_event_loop()
    ready = threading.Event()

    async def whole() -> None:
        async with app.state.gateway.lifespan():
            ready.set()
            await server.serve(sockets=[listening])

    def work() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(whole())
        loop.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        assert ready.wait(20), "the gateway did not start"
        yield Served(f"http://127.0.0.1:{listening.getsockname()[1]}", app.state.gateway, loop)
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        listening.close()
        assert not thread.is_alive(), "the gateway did not stop"
