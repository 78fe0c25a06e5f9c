"""Real Redis servers on loopback: one shared by all tests of a process, and others with their own settings."""

from __future__ import annotations

import asyncio
import atexit
import functools
import itertools
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import redis as driver

from kompakt.store.redis.records import RedisRecords, open_redis

_names = itertools.count(1)


class Server:
    """A redis-server with its own directory; by default it keeps an append-only file and no snapshots."""

    def __init__(self, *options: str) -> None:
        self.program = shutil.which("redis-server")
        if self.program is None:
            raise RuntimeError("the tests need redis-server on the PATH: install the system's package redis-server")
        self.directory = Path(tempfile.mkdtemp(prefix="kompakt-redis-"))
        self.options = options
        self.port = free_port()
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the server, which loads the data in its directory, and wait until it answers."""
        settings = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)]
        settings += ["--appendonly", "yes", "--save", "", "--logfile", "log", *self.options]
        self.process = subprocess.Popen([str(self.program), *settings])
        deadline = time.monotonic() + 60
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                log = self.directory / "log"
                raise RuntimeError(f"redis-server did not start: {log.read_text() if log.exists() else 'no log'}")
            time.sleep(0.01)

    def answers(self) -> bool:
        """Return whether the server accepts commands; a request for a password counts."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(100).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def stop(self) -> None:
        """Ask the server to stop, as a system restart does."""
        self.process.terminate()
        self.process.wait(30)

    def kill(self) -> None:
        """Kill the server."""
        self.process.kill()
        self.process.wait(30)

    def close(self) -> None:
        """Kill the server and remove its files."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def files(self) -> list[Path]:
        """List the files of the server."""
        return [path for path in self.directory.rglob("*") if path.is_file()]


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@functools.cache
def shared() -> Server:
    """Start the server that the tests of one process share."""
    server = Server()
    atexit.register(server.close)
    return server


def server() -> str:
    """Return the URL of an empty store on the shared server."""
    return f"{shared().url}?prefix=test{next(_names)}"


def restart() -> None:
    """Stop the shared server and start it again on the same port and files."""
    shared().stop()
    shared().start()


def on(url: str, scenario: Callable[[RedisRecords], Awaitable[Any]]) -> Any:
    """Run a scenario on an open store."""

    async def run() -> Any:
        records = await open_redis(url)
        try:
            return await scenario(records)
        finally:
            await records.close()

    return asyncio.run(run())


def command(url: str, *words: str | bytes | int) -> Any:
    """Send a command directly to the server."""
    client = driver.Redis.from_url(url.partition("?")[0])
    try:
        return client.execute_command(*words)
    finally:
        client.close()
