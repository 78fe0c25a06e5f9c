"""Another configuration without another start: on SIGHUP, and when the file has changed.

A file that cannot be read changes nothing: the gateway goes on as it was and says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from kompakt.errors import UsageError
from kompakt.gateway.app import Gateway
from kompakt.gateway.config import GatewayConfig

_log = logging.getLogger("kompakt.gateway")

PERIOD = 2.0
"""Seconds between looks at the file."""


class Reloading:
    """Keeps a gateway's settings those of its file."""

    def __init__(self, gateway: Gateway, load: Callable[[], GatewayConfig], find: Callable[[], Path | None]) -> None:
        self.gateway = gateway
        self._load = load
        self._find = find
        self._seen = self._look()

    async def watch(self) -> None:
        """Look at the file again and again."""
        while True:
            await asyncio.sleep(PERIOD)
            if self._look() != self._seen:
                self.reload()

    def reload(self) -> None:
        """Read the settings again."""
        self._seen = self._look()
        metrics = self.gateway.metrics
        try:
            settings = self._load()
        except UsageError as error:
            metrics.reloads.labels("failed").inc()
            _log.error("the configuration stays as it was: %s", error)
            return
        fixed = self.gateway.reconfigure(settings)
        metrics.reloads.labels("done").inc()
        _log.info("the configuration was read again")
        if fixed:
            _log.warning("only another start can change this, it stays as it was: %s", ", ".join(fixed))

    def _look(self) -> tuple[object, ...]:
        """Return what is different when the file is."""
        path = self._find()
        if path is None:
            return ()
        try:
            found = path.stat()
        except OSError:
            return (path,)
        return (path, found.st_mtime_ns, found.st_size, found.st_ino)
