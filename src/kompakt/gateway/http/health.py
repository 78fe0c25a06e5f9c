"""Endpoints for operators: liveness, readiness and metrics.

``/healthz`` checks nothing. ``/readyz`` checks the store and every upstream, at most once per ``MAX_AGE``. Both are
public, so they show only names and states.
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
from kompakt.gateway.tenants import REGISTRY_TENANT, access_of
from kompakt.version import __version__

if TYPE_CHECKING:
    from kompakt.gateway.app import Gateway

MAX_AGE = 5.0
"""Seconds for which a readiness result is reused."""

TIMEOUT = 2.0
"""Seconds within which the store and each upstream must respond."""


class Health:
    """The operator endpoints of a gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._lock = asyncio.Lock()
        self._states: dict[str, str] = {}
        self._checked_at = float("-inf")

    async def healthz(self, request: Request) -> Response:
        del request
        return _json({"status": "ok", "version": __version__})

    async def readyz(self, request: Request) -> Response:
        """Report whether store and upstreams respond; 503 when one does not."""
        del request
        async with self._lock:
            if time.monotonic() - self._checked_at > MAX_AGE:
                self._states, self._checked_at = await self._check(), time.monotonic()
        states = dict(self._states)
        if self.gateway.is_draining:
            states["gateway"] = "draining"
        ready = all(state == "ok" for state in states.values())
        return _json({"status": "ready" if ready else "not ready", **states}, status=200 if ready else 503)

    async def favicon(self, request: Request) -> Response:
        """Answer browsers, whose icon requests must not reach a provider."""
        del request
        return Response(status_code=204, headers={"cache-control": "max-age=86400"})

    async def metrics(self, request: Request) -> Response:
        access_of(request, self.gateway.settings)
        return Response(self.gateway.metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def _check(self) -> dict[str, str]:
        upstreams = self.gateway.settings.upstreams.values()
        states = await asyncio.gather(self._store(), *(_connects(upstream) for upstream in upstreams))
        return dict(zip(["store", *(f"upstream {one.name}" for one in upstreams)], states, strict=True))

    async def _store(self) -> str:
        try:
            async with asyncio.timeout(TIMEOUT):
                await self.gateway.store.records.notes(REGISTRY_TENANT, ["secret"])
        except (StoreError, TimeoutError):
            return "not reachable"
        return "ok"


async def _connects(upstream: Upstream) -> str:
    """Check whether an upstream accepts connections."""
    parts = urlsplit(upstream.url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(TIMEOUT):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except (OSError, TimeoutError):
        return "not reachable"
    writer.close()
    return "ok"


def _json(value: object, *, status: int = 200) -> Response:
    headers = {"cache-control": "no-store"}
    return Response(msgspec.json.encode(value), status, headers=headers, media_type="application/json")
