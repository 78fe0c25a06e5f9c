"""``kompakt serve`` that reports how many memory blocks it uses besides its caches, to find leaks under load.

The caches of a gateway fill for hours, which looks like a leak. So before each measurement the queue of writes is
flushed and the caches are emptied. Measure while no request is in flight: connect to the socket in the variable
``KOMPAKT_MEASURE``.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from multiprocessing.connection import Client, Listener
from typing import Any

from kompakt.cli import main
from kompakt.engine.recall import terms
from kompakt.gateway import app
from kompakt.gateway.request.history import RecentChains
from kompakt.gateway.storage import recorder
from kompakt.gateway.upstream import ProviderTransport
from kompakt.model import tokens
from kompakt.model.lru import Lru
from kompakt.store.sql import sqlite

ADDRESS = "KOMPAKT_MEASURE"

CACHES: list[Lru[Any, Any]] = []
CHAINS: list[RecentChains] = []
QUEUES: list[recorder.WriteBehind] = []


def collect(kind: type[Any], found: list[Any]) -> None:
    """Add every object of a class that is created from now on to a list."""
    original = kind.__init__

    def collected(self: Any, *given: Any, **named: Any) -> None:
        original(self, *given, **named)
        found.append(self)

    kind.__init__ = collected  # type: ignore[misc]


def prepare() -> None:
    """Collect the caches and queues, and keep nothing else between requests."""
    collect(Lru, CACHES)
    collect(RecentChains, CHAINS)
    collect(recorder.WriteBehind, QUEUES)
    tokens._CACHE_ENTRIES = terms._MAX_KNOWN = sqlite._MAX_LEASES = 64  # type: ignore[attr-defined]
    recorder.PAUSE_FACTOR = 0
    app.ProviderTransport = _without_keepalive  # type: ignore[assignment,misc]


def _without_keepalive(*, max_idle: int) -> ProviderTransport:
    return ProviderTransport(max_idle=0)


def serve_measurements(address: str) -> None:
    """Send the number of memory blocks in use to each client that connects."""
    with Listener(address) as listener:
        while True:
            with listener.accept() as connection:
                while any(queue._worker is not None and not queue._worker.done() for queue in QUEUES):
                    time.sleep(0.05)
                for cache in CACHES:
                    cache.clear()
                for chains in CHAINS:
                    chains._entries.clear()
                    chains._starts.clear()
                    chains._size = 0
                gc.collect()
                connection.send(sys.getallocatedblocks())


def blocks_of(address: str) -> int:
    """Return the number of memory blocks in use by the gateway with this socket."""
    with Client(address) as connection:
        return int(connection.recv())


if __name__ == "__main__":
    prepare()
    threading.Thread(target=serve_measurements, args=[os.environ[ADDRESS]], daemon=True).start()
    main()
