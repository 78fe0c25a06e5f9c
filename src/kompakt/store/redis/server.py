"""The way to a Redis server: its URL, what must be true of it, its errors in kompakt's words.

Commands are tried again when the connection breaks, four times within a second: every one that the store sends may be
repeated. No error quotes a password or what was sent.
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

try:
    from redis import asyncio as driver
    from redis import exceptions
    from redis.asyncio.retry import Retry
    from redis.backoff import ExponentialBackoff
except ModuleNotFoundError as missing:
    raise UsageError(
        f"a store in Redis needs {missing.name}, which is not installed: pip install 'kompakt[redis]'"
    ) from missing

POLL = 0.05
"""How often, in seconds, scrubbing looks whether the server is done."""

OWN = {"prefix": "kompakt", "persistence": "required"}
"""What a URL may say to kompakt, and what holds unless it does."""

DRIVERS = {"socket_timeout": "30", "socket_connect_timeout": "5", "max_connections": "50"}
"""What it may say to the driver: seconds, and connections; who finds none free waits for one."""

REASONS: list[tuple[type[exceptions.RedisError], str, str]] = [
    (exceptions.AuthenticationError, "", "refused the user or the password of the URL"),
    (exceptions.AuthorizationError, "", "does not let this user in"),
    (exceptions.NoPermissionError, "", "does not permit this user a command; it needs +@all on the keys of the prefix"),
    (exceptions.BusyLoadingError, "", "is still loading its data; try again shortly"),
    (
        exceptions.TimeoutError,
        "",
        "did not answer in time; raise socket_timeout in the URL, or see what it is busy with",
    ),
    (exceptions.ConnectionError, "", "cannot be reached; start it, or mend the URL"),
    (exceptions.ReadOnlyError, "", "is a read-only replica; name the primary in the URL"),
    (exceptions.OutOfMemoryError, "", "is out of memory and wrote nothing; raise its maxmemory, or delete sessions"),
    (exceptions.ResponseError, "NOAUTH", "asks for a password; put one into the URL"),
    (exceptions.ResponseError, "MISCONF", "cannot write to its disk; make room there, see the server's log"),
    (exceptions.ResponseError, "BUSY", "is busy with a script; try again shortly"),
    (exceptions.ResponseError, "NOREPLICAS", "has too few replicas to take writes; start them"),
]
"""What an error means, the first that fits: its type, how its text begins, what is said."""


class Address(msgspec.Struct, frozen=True):
    """A URL, read."""

    url: str
    """For the driver, with the password."""
    place: str
    """For people, without."""
    prefix: str
    volatile: bool
    """Whether what is kept there may be lost."""


def read_url(url: str) -> Address:
    """Read a URL, every part of it.

    Raises:
        UsageError: it cannot be meant; not quoted, since what is wrong with it may be where its password ends.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError("the Redis URL has no readable port; write special characters of a password as %XX") from None
    if parts.scheme == "unix":
        return _read_socket_url(parts)
    if parts.scheme not in ("redis", "rediss") or not parts.hostname:
        raise UsageError("a Redis URL is redis://[user:password@]host[:port]/[database], or rediss:// for TLS")
    database = parts.path.strip("/") or "0"
    if not (database.isascii() and database.isdigit()):
        raise UsageError("the path of a Redis URL is the number of a database, such as /0")
    options = _options(parts)
    place = f"{parts.scheme}://{parts.hostname}:{port or 6379}/{database}"
    rest = {name: value for name, value in options.items() if name not in OWN}
    known = SplitResult(parts.scheme, parts.netloc, f"/{database}", urlencode(rest), "")
    return Address(known.geturl(), place, options["prefix"], options["persistence"] == "none")


def _read_socket_url(parts: SplitResult) -> Address:
    """Read the URL of a server that listens on a Unix socket; the database is the parameter ``db``, as in redis-py."""
    if parts.hostname or not parts.path.strip("/"):
        raise UsageError("the URL of a Redis socket is unix://[user:password@]/path/to/redis.sock[?db=0]")
    given = parse_qsl(parts.query, keep_blank_values=True)
    database = dict(given).get("db", "0")
    if not (database.isascii() and database.isdigit()):
        raise UsageError("db in the URL of a Redis socket is the number of a database, such as 0")
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
        raise UsageError(f"unknown parameter {unknown[0]!r} in the Redis URL; known are {known}")
    if options["persistence"] not in ("required", "none"):
        raise UsageError("persistence in the Redis URL is 'required' or 'none'")
    if not options["prefix"] or set(options["prefix"]) & set("{}"):
        raise UsageError("prefix in the Redis URL is a text without braces, not empty")
    for name in DRIVERS:
        digits = options[name] if name == "max_connections" else options[name].replace(".", "", 1)
        if not (digits.isascii() and digits.isdigit() and int(digits)):
            raise UsageError(f"{name} in the Redis URL is a number above 0")


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
        """Let go of the connections; the next command would open one again."""
        with self._translated():
            await self._client.aclose()

    async def run(self, *command: str | bytes | int) -> Any:
        """Send a command."""
        with self._translated():
            return await self._client.execute_command(*command)

    async def script(self, script: LuaScript, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any:
        """Run a script by its name; send it whole when the server does not know it yet.

        A server that does not know it was perhaps restarted, and with other settings, so it is checked again.
        """
        with self._translated():
            try:
                return await self._client.execute_command("EVALSHA", script.digest, len(keys), *keys, *args)
            except exceptions.NoScriptError:
                await self.check()
                return await self._client.execute_command("EVAL", script.text, len(keys), *keys, *args)

    async def check(self) -> None:
        """Refuse a server that would not keep what it is given."""
        found: dict[str, Any] = {}
        for section in ("persistence", "memory", "cluster"):
            found |= await self.run("INFO", section)
        if found.get("cluster_enabled"):
            raise StoreUnavailable(f"{self.place} is a cluster, where no commit can be whole; name a single server")
        if self._volatile:
            return
        way_out = "or add persistence=none to the URL's parameters if they may be lost"
        if not found.get("aof_enabled"):
            raise StoreUnavailable(
                f"{self.place} would lose acknowledged messages when it stops, since it has no append-only file; "
                f"set `appendonly yes` there, {way_out}"
            )
        policy = found.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise StoreUnavailable(
                f"{self.place} would drop messages when memory is short, since its maxmemory-policy is {policy!r}; "
                f"set `maxmemory-policy noeviction` there, {way_out}"
            )

    async def scrub(self) -> None:
        """Have the server write its files anew, and wait until the old ones are gone.

        An old snapshot may lie there whatever the settings are now, so both kinds of file are written, except by a
        server that keeps none. The files of replicas, and backups, are not reached from here.
        """
        found = await self.run("INFO", "persistence")
        if found["aof_enabled"]:
            signs = ("aof_rewrite_in_progress", "aof_rewrite_scheduled")
            await self._rewrite("BGREWRITEAOF", signs, "aof_last_bgrewrite_status")
        if found["aof_enabled"] or await self._snapshots():
            await self._rewrite("BGSAVE", ("rdb_bgsave_in_progress",), "rdb_last_bgsave_status")

    async def _rewrite(self, command: str, signs: tuple[str, ...], status: str) -> None:
        """Start a rewrite that begins after now, and wait for its end."""
        while not await self._started(command):
            await asyncio.sleep(POLL)
        found = await self.run("INFO", "persistence")
        while any(found[sign] for sign in signs):
            await asyncio.sleep(POLL)
            found = await self.run("INFO", "persistence")
        if found[status] != "ok":
            raise StoreUnavailable(f"{self.place} could not write its files anew ({command}); see the server's log")

    async def _started(self, command: str) -> bool:
        """Start a rewrite; false while another runs, which may have begun before the deletion."""
        with self._translated():
            try:
                await self._client.execute_command(command)
            except exceptions.ResponseError as error:
                if "in progress" not in str(error) and "child process is active" not in str(error):
                    raise
                return False
            return True

    async def _snapshots(self) -> bool:
        """Tell whether the server makes snapshots; assumed when it does not say."""
        try:
            answer: Any = await self._client.execute_command("CONFIG GET", "save")
        except exceptions.ResponseError:
            return True
        return any(answer.values())

    @contextmanager
    def _translated(self) -> Generator[None]:
        """Turn the driver's errors into kompakt's."""
        try:
            yield
        except exceptions.RedisError as error:
            said = str(error)
            if "WRONGTYPE" in said:
                raise StoreDamaged(
                    f"{self.place}: a key is not of the kind that was written; restore a backup"
                ) from error
            for kind, begin, reason in REASONS:
                if isinstance(error, kind) and said.startswith(begin):
                    raise StoreUnavailable(f"{self.place} {reason}") from error
            raise StoreUnavailable(
                f"{self.place} refused a command ({type(error).__name__}); see the server's log"
            ) from error
