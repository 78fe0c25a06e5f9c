"""Whether a client is still connected while its answer is prepared.

A server reports a disconnect only to whoever calls ``receive``, and between a request's body and its answer nobody
does. ``Presence`` does, so that work for a client that left is cancelled: the request to the provider is closed and the
place in the concurrency limits becomes free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

Value = TypeVar("Value")


class DisconnectWatch:
    """A ``receive`` that can watch for the client's disconnect once the body has been read."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._complete = asyncio.Event()

    async def __call__(self) -> Message:
        """Receive the next message of the request."""
        message = await self._receive()
        if not message.get("more_body", False):
            self._complete.set()
        return message

    async def during(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Return what ``work`` returns; cancel it when the client disconnects first.

        Raises:
            ClientDisconnect: nobody waits for the result.
        """
        task = asyncio.create_task(work)
        watch = asyncio.create_task(self._disconnected())
        try:
            await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientDisconnect
            return task.result()
        finally:
            watch.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # seen here, where nobody else is left to look at it

    async def _disconnected(self) -> None:
        await self._complete.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass
