"""The connection to a Redis server: its URL, checks of its configuration, translation of its errors.

Commands are retried four times within a second if the connection breaks; every command of the store may be repeated. No
error message quotes a password or data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

import msgspec

from kompakt.errors import StoreDamaged, StoreUnavailable, UsageError
from kompakt.store.redis.scripts import LuaScript
from kompakt.version import install_command

try:
    from redis import asyncio as driver
    from redis import exceptions
    from redis.asyncio.retry import Retry
    from redis.backoff import ExponentialBackoff
except ModuleNotFoundError as missing:
    raise UsageError(
        f"a store in Redis needs {missing.name}, which is not installed: {install_command('redis')}"
    ) from missing

POLL = 0.05
"""Seconds between checks whether the server has rewritten its files."""

OWN = {"prefix": "kompakt", "persistence": "required"}
"""URL parameters for kompakt, with their defaults."""

DRIVERS = {"socket_timeout": "30", "socket_connect_timeout": "5", "max_connections": "50"}
"""URL parameters for the driver, with their defaults. A caller waits if no connection is free."""

REASONS: list[tuple[type[exceptions.RedisError], str, str]] = [
    (exceptions.AuthenticationError, "", "refused the user or password of the URL"),
    (exceptions.AuthorizationError, "", "refused this user"),
    (exceptions.NoPermissionError, "", "does not permit this user a command; grant +@all on the keys of the prefix"),
    (exceptions.BusyLoadingError, "", "is still loading its data; retry shortly"),
    (
        exceptions.TimeoutError,
        "",
        "did not answer in time; raise socket_timeout in the URL, or check the load of the server",
    ),
    (exceptions.ConnectionError, "", "cannot be reached; start it, or correct the URL"),
    (exceptions.ReadOnlyError, "", "is a read-only replica; name the primary in the URL"),
    (exceptions.OutOfMemoryError, "", "is out of memory and wrote nothing; raise its maxmemory, or delete sessions"),
    (exceptions.ResponseError, "NOAUTH", "requires a password; add it to the URL"),
    (exceptions.ResponseError, "MISCONF", "cannot write to its disk; free some space, and see the server's log"),
    (exceptions.ResponseError, "BUSY", "is busy with a script; retry shortly"),
    (exceptions.ResponseError, "NOREPLICAS", "has too few replicas to accept writes; start them"),
]
"""Type of an error, start of its text, and kompakt's message; the first match is used."""


class Address(msgspec.Struct, frozen=True):
    """A parsed URL."""

    url: str
    """The URL for the driver, with the password."""
    place: str
    """The URL for messages, without the password."""
    prefix: str
    volatile: bool
    """Whether data may be lost (``persistence=none``)."""


def read_url(url: str) -> Address:
    """Parse a URL.

    Raises:
        UsageError: the URL is not valid. The message does not quote it, because it may contain a password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError(
            "the port of the Redis URL is not a number; escape special characters of a password as %XX"
        ) from None
    if parts.scheme == "unix":
        return _read_socket_url(parts)
    if parts.scheme not in ("redis", "rediss") or not parts.hostname:
        raise UsageError("not a Redis URL; use redis://[user:password@]host[:port]/[database], or rediss:// for TLS")
    database = parts.path.strip("/") or "0"
    if not (database.isascii() and database.isdigit()):
        raise UsageError("the path of a Redis URL must be the number of a database, such as /0")
    options = _options(parts)
    place = f"{parts.scheme}://{parts.hostname}:{port or 6379}/{database}"
    rest = {name: value for name, value in options.items() if name not in OWN}
    known = SplitResult(parts.scheme, parts.netloc, f"/{database}", urlencode(rest), "")
    return Address(known.geturl(), place, options["prefix"], options["persistence"] == "none")


def _read_socket_url(parts: SplitResult) -> Address:
    """Parse the URL of a Unix socket; the database is the parameter ``db``, as in redis-py."""
    if parts.hostname or not parts.path.strip("/"):
        raise UsageError("not the URL of a Redis socket; use unix://[user:password@]/path/to/redis.sock[?db=0]")
    given = parse_qsl(parts.query, keep_blank_values=True)
    database = dict(given).get("db", "0")
    if not (database.isascii() and database.isdigit()):
        raise UsageError("db in the URL of a Redis socket must be the number of a database, such as 0")
    options = _options(parts._replace(query=urlencode([pair for pair in given if pair[0] != "db"])))
    rest = {name: value for name, value in options.items() if name not in OWN}
    known = f"unix://{parts.netloc}{parts.path}?{urlencode({'db': database, **rest})}"
    return Address(known, f"unix://{parts.path}?db={database}", options["prefix"], options["persistence"] == "none")


def _options(parts: SplitResult) -> dict[str, str]:
    options = OWN | DRIVERS | dict(parse_qsl(parts.query, keep_blank_values=True))
    _check_options(options)
    return options


def _check_options(options: dict[str, str]) -> None:
    unknown = [name for name in options if name not in OWN | DRIVERS and not name.startswith("ssl_")]
    if unknown:
        known = ", ".join((*OWN, *DRIVERS, "ssl_…"))
        raise UsageError(f"unknown parameter {unknown[0]!r} in the Redis URL; use one of {known}")
    if options["persistence"] not in ("required", "none"):
        raise UsageError("persistence in the Redis URL must be 'required' or 'none'")
    if not options["prefix"] or set(options["prefix"]) & set("{}"):
        raise UsageError("prefix in the Redis URL must be a text without braces, not empty")
    for name in DRIVERS:
        digits = options[name] if name == "max_connections" else options[name].replace(".", "", 1)
        if not (digits.isascii() and digits.isdigit() and int(digits)):
            raise UsageError(f"{name} in the Redis URL must be a number above 0")


class RedisServer:
    """A pool of connections to one server."""

    def __init__(self, address: Address) -> None:
        self.place = address.place
        self._volatile = address.volatile
        pool = driver.BlockingConnectionPool.from_url(
            address.url,
            protocol=2,
            encoding_errors="surrogatepass",
            retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), 4),
            timeout=None,
        )
        self._client = driver.Redis.from_pool(pool)

    async def close(self) -> None:
        """Close the connections; another command would open one again."""
        with self._translated():
            await self._client.aclose()

    async def run(self, *command: str | bytes | int) -> Any:
        with self._translated():
            return await self._client.execute_command(*command)

    async def script(self, script: LuaScript, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any:
        """Run a script by its digest, or by its text if the server does not have it.

        A server without the script may have been restarted with another configuration, so it is checked again.
        """
        with self._translated():
            try:
                return await self._client.execute_command("EVALSHA", script.digest, len(keys), *keys, *args)
            except exceptions.NoScriptError:
                await self.check()
                return await self._client.execute_command("EVAL", script.text, len(keys), *keys, *args)

    async def check(self) -> None:
        """Refuse a server that could lose acknowledged data."""
        found: dict[str, Any] = {}
        for section in ("persistence", "memory", "cluster"):
            found |= await self.run("INFO", section)
        if found.get("cluster_enabled"):
            raise StoreUnavailable(f"{self.place} is a cluster, where commits cannot be atomic; use a single server")
        if self._volatile:
            return
        fix = "or add persistence=none to the URL's parameters if they may be lost"
        if not found.get("aof_enabled"):
            raise StoreUnavailable(
                f"{self.place} would lose acknowledged messages when it stops, since it has no append-only file; "
                f"set `appendonly yes` there, {fix}"
            )
        policy = found.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise StoreUnavailable(
                f"{self.place} would drop messages when memory is short, since its maxmemory-policy is {policy!r}; "
                f"set `maxmemory-policy noeviction` there, {fix}"
            )

    async def scrub(self) -> None:
        """Make the server rewrite its files, and wait until the old ones are gone.

        An old snapshot may exist whatever the current settings are, so both kinds of file are rewritten, unless the
        server writes none. Files of replicas and backups are not rewritten.
        """
        found = await self.run("INFO", "persistence")
        if found["aof_enabled"]:
            signs = ("aof_rewrite_in_progress", "aof_rewrite_scheduled")
            await self._rewrite("BGREWRITEAOF", signs, "aof_last_bgrewrite_status")
        if found["aof_enabled"] or await self._snapshots():
            await self._rewrite("BGSAVE", ("rdb_bgsave_in_progress",), "rdb_last_bgsave_status")

    async def _rewrite(self, command: str, signs: tuple[str, ...], status: str) -> None:
        """Start a rewrite and wait for its end."""
        while not await self._started(command):
            await asyncio.sleep(POLL)
        found = await self.run("INFO", "persistence")
        while any(found[sign] for sign in signs):
            await asyncio.sleep(POLL)
            found = await self.run("INFO", "persistence")
        if found[status] != "ok":
            raise StoreUnavailable(f"{self.place} could not rewrite its files ({command}); see the server's log")

    async def _started(self, command: str) -> bool:
        """Start a rewrite; false while another runs, which may have started before the deletion."""
        with self._translated():
            try:
                await self._client.execute_command(command)
            except exceptions.ResponseError as error:
                if "in progress" not in str(error) and "child process is active" not in str(error):
                    raise
                return False
            return True

    async def _snapshots(self) -> bool:
        """Return whether the server writes snapshots; true if CONFIG is not permitted."""
        try:
            answer: Any = await self._client.execute_command("CONFIG GET", "save")
        except exceptions.ResponseError:
            return True
        return any(answer.values())

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except exceptions.RedisError as error:
            text = str(error)
            if "WRONGTYPE" in text:
                raise StoreDamaged(
                    f"{self.place}: a key has the wrong type; restore the store from a backup"
                ) from error
            for kind, begin, reason in REASONS:
                if isinstance(error, kind) and text.startswith(begin):
                    raise StoreUnavailable(f"{self.place} {reason}") from error
            raise StoreUnavailable(
                f"{self.place} refused a command ({type(error).__name__}); see the server's log"
            ) from error
