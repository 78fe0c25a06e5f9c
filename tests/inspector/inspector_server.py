"""The server of ``kompakt inspect`` for tests, in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from tests.gateway.upstreams import wait_for

from kompakt.inspector.server import InspectorServer
from kompakt.view.inspection import open_inspection


class _Server(uvicorn.Server):
    """A server that leaves signals to the tests."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def inspector(target: Path, *, write: bool = False, change: Callable[[Any], Any] = lambda app: app) -> Iterator[str]:
    """Inspect a transcript or a store; the value is the address with its token. ``change`` may wrap the application."""
    made: list[tuple[InspectorServer, uvicorn.Server]] = []

    async def work() -> None:
        async with await open_inspection(target, write=write) as inspection:
            served = InspectorServer(inspection)
            config = uvicorn.Config(
                change(served.app), log_level="critical", lifespan="off", timeout_graceful_shutdown=1
            )
            server = _Server(config)
            made.append((served, server))
            await server.serve(sockets=[served._socket])

    thread = threading.Thread(target=lambda: asyncio.run(work()), daemon=True)
    thread.start()
    try:
        wait_for(lambda: bool(made and made[0][1].started) or not thread.is_alive(), "the inspector starts")
        assert made and made[0][1].started, "the inspector did not start"
        yield made[0][0].url
    finally:
        if made:
            made[0][1].should_exit = True
        thread.join(timeout=20)
        assert not thread.is_alive(), "the inspector did not stop"
