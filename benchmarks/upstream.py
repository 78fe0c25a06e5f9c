"""A cheap fake provider: it reads a request and answers a few bytes, as JSON or as a stream.

``python -m benchmarks.upstream PORT [MILLISECONDS]`` waits that long before each answer. With the request header
``x-cheap: stream`` the answer is a stream of three events. ``GET /count`` returns the number of requests, to detect
answers from a cache.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import cast

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1_790_000_000,
    "model": "test-model",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Done."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-test",
    "content": [{"type": "text", "text": "Done."}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 10, "output_tokens": 2},
}


def _whole(value: object) -> bytes:
    body = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


CHAT, ANTHROPIC = _whole(ANSWER), _whole(MESSAGE)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": "Done."}}]}).encode() + b"\n\n"
PIECE = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)


class Cheap(asyncio.Protocol):
    """One connection."""

    served = 0

    def __init__(self, delay: float = 0) -> None:
        self.delay = delay
        self.transport: asyncio.Transport | None = None
        self.head = b""
        self.left = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where answers go."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Read on; answer when a request is whole. Bodies are thrown away as they come."""
        if self.left < 0:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            found = LENGTH.search(self.head, 0, end)
            data, self.head = self.head[end + 4 :], self.head[:end]
            self.left = int(found.group(1)) if found else 0
        self.left -= len(data)
        if self.left <= 0:
            head, self.head, self.left = self.head, b"", -1
            if self.delay:
                asyncio.get_running_loop().call_later(self.delay, self._answer, head)
            else:
                self._answer(head)

    def _answer(self, head: bytes) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        if head.startswith(b"GET /count"):
            self.transport.write(_whole(Cheap.served))
            return
        Cheap.served += 1
        if b"x-cheap: stream" in head:
            self.transport.write(HEAD + PIECE)
            self.transport.write(PIECE + PIECE + b"0\r\n\r\n")
        else:
            self.transport.write(ANTHROPIC if b"/v1/messages" in head[:60] else CHAT)


async def serve(port: int, delay: float) -> None:
    """Serve until the process ends."""
    server = await asyncio.get_running_loop().create_server(lambda: Cheap(delay), "127.0.0.1", port, backlog=2_048)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2]) / 1_000 if len(sys.argv) > 2 else 0))
