"""A gateway for tests: a real server on a free local port, in a thread or in a separate process.

``with gateway(provider.url, store=url) as gate:`` and point a client at ``gate.url``.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from tests.gateway.upstreams import wait_for

from kompakt.gateway.app import create_app
from kompakt.gateway.config import GatewayConfig, Upstream

ROOT = Path(__file__).parent.parent.parent
WINDOW = 16_000
NAMES = ("openai", "anthropic", "gemini")
SECRET = "a-secret-of-the-tests-only"

STORE_TIMEOUT = 30.0
"""Seconds for a store read: on a busy machine no request may be served without the store by chance."""
KEYS = {"key-of-a-0123456789abcdef": "tenant-a", "key-of-b-0123456789abcdef": "tenant-b"}


def hashed(keys: dict[str, str]) -> dict[str, str]:
    """Return keys by their digests, as in the configuration."""
    return {hashlib.sha256(key.encode()).hexdigest(): tenant for key, tenant in keys.items()}


def settings_for(upstream: str, store: str, **changes: Any) -> GatewayConfig:
    """Return settings with one upstream for all protocols."""
    given: dict[str, Any] = {
        "store": store,
        "upstreams": {name: Upstream(name=name, url=upstream) for name in NAMES},
        "context_window": WINDOW,
        "secret": SECRET,
        "store_timeout": STORE_TIMEOUT,
    }
    return GatewayConfig(**(given | changes))


class Gate:
    """A running gateway."""

    def __init__(self, url: str, store: str) -> None:
        self.url, self.store = url, store

    def get(self, path: str, **options: Any) -> httpx.Response:
        """Get a page of the gateway's own API."""
        return httpx.get(self.url + path, **{"timeout": 10, **options})

    def metric(self, name: str) -> float:
        """Return a metric summed over its labels."""
        lines = [line for line in self.get("/metrics").text.splitlines() if line.startswith(name)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


class _Server(uvicorn.Server):
    """A server that leaves signals to the tests."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def gateway(
    upstream: str, *, store: str, change: Callable[[Any], Any] = lambda app: app, **changes: Any
) -> Iterator[Gate]:
    """Run a gateway in a thread; ``change`` may wrap the application."""
    app = change(create_app(settings_for(upstream, store, **changes)))
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    config = uvicorn.Config(app, log_level="critical", lifespan="on", ws="none", timeout_graceful_shutdown=5)
    server = _Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        wait_for(lambda: server.started or not thread.is_alive(), "the gateway starts")
        assert server.started, "the gateway did not start"
        yield Gate(f"http://127.0.0.1:{listening.getsockname()[1]}", store)
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        listening.close()
        assert not thread.is_alive(), "the gateway did not stop"


class Replica(Gate):
    """A gateway in a separate process, started as a user starts it."""

    def __init__(self, url: str, store: str, process: subprocess.Popen[bytes], log: Path) -> None:
        super().__init__(url, store)
        self.process, self.log = process, log

    def kill(self) -> None:
        """Kill the process."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def end(self, seconds: float = 20) -> int:
        """Stop the process gracefully and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


def free_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def replica(
    upstream: str,
    *,
    store: str,
    folder: Path,
    window: int = WINDOW,
    flags: tuple[str, ...] = (),
    module: str = "kompakt",
    **more: str,
) -> Iterator[Replica]:
    """Run ``kompakt serve`` in a process, with ``more`` environment variables."""
    folder.mkdir(parents=True, exist_ok=True)
    port, log = free_port(), folder / f"gateway-{os.urandom(3).hex()}.log"
    named = [part for name in NAMES for part in ("--upstream", f"{name}={upstream}")]
    command = [sys.executable, "-m", module, "serve", "--host", "127.0.0.1", "--port", str(port), "--store", store]
    command += [*named, "--context-window", str(window), *flags]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    home = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    own = {"PYTHONPATH": path, "KOMPAKT_SECRET": SECRET, "KOMPAKT_STORE_TIMEOUT": str(STORE_TIMEOUT)}
    environment = {**os.environ, **own, **home, **more}
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT)
    gate = Replica(f"http://127.0.0.1:{port}", store, process, log)
    try:
        wait_for(lambda: _answers(gate.url) or process.poll() is not None, "the gateway starts", pause=0.05)
        assert process.poll() is None, log.read_text()
        yield gate
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                gate.kill()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=1).status_code == 200
    except httpx.HTTPError:
        return False


def toml(value: object) -> str:
    """Return a value as TOML."""
    return json.dumps(value)
