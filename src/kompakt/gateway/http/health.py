"""Whether the gateway lives, whether it can work, and what it counts.

``/healthz`` asks nobody. ``/readyz`` asks the store and every upstream, at most once in five seconds however often it
is asked itself. Neither says more than names and states: they are open to all.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from kompakt.errors import StoreError
from kompakt.gateway.config import Upstream
from kompakt.gateway.http.metrics import CONTENT_TYPE
from kompakt.gateway.tenancy.access import access_of
from kompakt.gateway.tenancy.tenants import REGISTRY_TENANT
from kompakt.version import __version__

if TYPE_CHECKING:
    from kompakt.gateway.app import Gateway

FRESH = 5.0
"""Seconds that an answer of the store and the upstreams is believed."""

PATIENCE = 2.0
"""Seconds that each of them has."""


class Health:
    """The endpoints for whoever looks after the gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._asking = asyncio.Lock()
        self._known: dict[str, str] = {}
        self._at = float("-inf")

    async def healthz(self, request: Request) -> Response:
        """Say that the gateway lives."""
        del request
        return _json({"status": "ok", "version": __version__})

    async def readyz(self, request: Request) -> Response:
        """Say whether store and upstreams answer; 503 when one does not."""
        del request
        async with self._asking:
            if time.monotonic() - self._at > FRESH:
                self._known, self._at = await self._asked(), time.monotonic()
        known = dict(self._known)
        if self.gateway.is_draining:
            known["gateway"] = "draining"
        ready = all(state == "ok" for state in known.values())
        return _json({"status": "ready" if ready else "not ready", **known}, status=200 if ready else 503)

    async def favicon(self, request: Request) -> Response:
        """Answer browsers, which ask for an icon by themselves; a provider has nothing to do with it."""
        del request
        return Response(status_code=204, headers={"cache-control": "max-age=86400"})

    async def metrics(self, request: Request) -> Response:
        """Write all counters."""
        access_of(request, self.gateway.settings)
        return Response(self.gateway.metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def _asked(self) -> dict[str, str]:
        """Ask all of them at once."""
        upstreams = self.gateway.settings.upstreams.values()
        states = await asyncio.gather(self._store(), *(_reached(upstream) for upstream in upstreams))
        return dict(zip(["store", *(f"upstream {one.name}" for one in upstreams)], states, strict=True))

    async def _store(self) -> str:
        try:
            async with asyncio.timeout(PATIENCE):
                await self.gateway.store.records.notes(REGISTRY_TENANT, ["secret"])
        except (StoreError, TimeoutError):
            return "not reachable"
        return "ok"


async def _reached(upstream: Upstream) -> str:
    """Tell whether somebody listens at an upstream's address."""
    parts = urlsplit(upstream.url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(PATIENCE):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except (OSError, TimeoutError):
        return "not reachable"
    writer.close()
    return "ok"


def _json(value: object, *, status: int = 200) -> Response:
    headers = {"cache-control": "no-store"}
    return Response(msgspec.json.encode(value), status, headers=headers, media_type="application/json")
