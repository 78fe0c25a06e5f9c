"""A minimal proxy: forward a request and return the answer. The baseline for the overhead of the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

HOP = frozenset(["host", "connection", "keep-alive", "transfer-encoding", "content-length"])
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def passing(upstream: str) -> Starlette:
    """Make an application that passes everything on to one upstream, and nothing else."""
    limits = httpx.Limits(max_connections=1_000, max_keepalive_connections=1_000)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with httpx.AsyncClient(base_url=upstream, timeout=600, limits=limits) as client:
            app.state.client = client
            yield

    async def handle(request: Request) -> Response:
        client: httpx.AsyncClient = request.app.state.client
        query = f"?{request.url.query}" if request.url.query else ""
        headers = [(name, value) for name, value in request.headers.raw if name.decode() not in HOP]
        path = request.scope["raw_path"].decode() + query
        sending = client.build_request(request.method, path, content=await request.body(), headers=headers)
        answer = await client.send(sending, stream=True)
        kept = {name: value for name, value in answer.headers.items() if name not in HOP}
        ending = BackgroundTask(answer.aclose)
        return StreamingResponse(answer.aiter_raw(), answer.status_code, headers=kept, background=ending)

    return Starlette(routes=[Route("/{path:path}", handle, methods=METHODS)], lifespan=lifespan)
