"""What the commands on stored sessions share: which store, how ids are read and written, how work is run in it.

An id may hold anything. One that is plain text is written as it is; any other as a JSON string, and an argument that is
a JSON string is read as one. So what one command prints the next one takes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias, TypeVar

import typer

from kompakt import files
from kompakt.errors import UsageError

if TYPE_CHECKING:
    from kompakt.session.session import Session
    from kompakt.session.store import Store

T = TypeVar("T")

URL = "sqlite:///kompakt.db"
"""The store that is meant when none is named: a file in the working directory."""

Url: TypeAlias = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="KOMPAKT_STORE",
        help="sqlite:///FILE, postgresql://HOST/DATABASE, redis://HOST or memory:",
    ),
]
Tenant: TypeAlias = Annotated[
    str, typer.Option("--tenant", metavar="T", envvar="KOMPAKT_TENANT", help="Whose sessions these are.")
]
KeyFile: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--key-file",
        metavar="FILE",
        envvar="KOMPAKT_KEY_FILE",
        help="The key that encrypts: 32 bytes or 64 hexadecimal digits; else KOMPAKT_KEY, in hexadecimal.",
    ),
]
Id: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="A session, as `session list` names it.")]

_SCHEME = re.compile(r"memory:|(sqlite|postgres|postgresql|redis|rediss|unix)(\+\w+)?:/", re.IGNORECASE)
_HEX_KEY = re.compile(rb"[0-9a-fA-F]{64}")


class Place(NamedTuple):
    """Where sessions are."""

    url: str = URL
    tenant: str = ""
    key_file: str | None = None


def is_store(text: str) -> bool:
    """Tell whether a text is the address of a store rather than the name of a file."""
    return _SCHEME.match(text) is not None


def within(place: Place, work: Callable[[Store], Awaitable[T]], *, make: bool = False) -> T:
    """Do something in a store and close it whatever happens; only who may ``make`` a store makes one."""
    import asyncio  # late: `--help` should not pay for any of these

    from kompakt.session.store import open_store

    if not make:
        _be_there(place.url)
    key = read_key(place.key_file)

    async def whole() -> T:
        async with await open_store(place.url, tenant=place.tenant, key=key) as store:
            return await work(store)

    return asyncio.run(whole())


def with_session(place: Place, id: str, work: Callable[[Session], Awaitable[T]]) -> T:
    """Do something with a session that must be there."""

    async def whole(store: Store) -> T:
        session = await store.session(read_id(id))
        await session.head()
        return await work(session)

    return within(place, whole)


def _be_there(url: str) -> None:
    """Refuse a file that is not there: to look into a store should not make one."""
    path = url.removeprefix("sqlite:///")
    if path != url and path and not Path(path).exists():
        raise UsageError(f"there is no store {url}; import a session first, or name another store with --store")


def read_key(file: str | None) -> bytes | None:
    """Read the key from a file, else from the environment; ``None`` when there is none.

    Raises:
        UsageError: it is no key; what it is instead is not told.
    """
    if file is None:
        where, data = "KOMPAKT_KEY", os.environ.get("KOMPAKT_KEY", "").strip().encode("utf-8", "replace")
        if not data:
            return None
    else:
        where = str(file)
        try:
            data = Path(file).read_bytes()
        except (OSError, ValueError) as error:
            raise UsageError(f"{where}: the key cannot be read: {getattr(error, 'strerror', None) or error}") from None
        if len(data) == 32:
            return data
        data = data.strip()
    if not _HEX_KEY.fullmatch(data):
        raise UsageError(f"{where}: a key is 64 hexadecimal digits{'' if file is None else ', or 32 bytes'}")
    return bytes.fromhex(data.decode())


# --- ids ---------------------------------------------------------------------------------------------------------


def read_id(text: str) -> str:
    """Read an id as ``written`` wrote it."""
    if text.startswith('"'):
        try:
            found = json.loads(text)
        except ValueError:
            return text
        return found if isinstance(found, str) else text
    return text


def written(text: str) -> str:
    """Write a text on one line so that a terminal takes no harm and nothing is lost."""
    plain = text.isprintable() and not text.startswith('"') and text == text.strip() and text
    return text if plain else json.dumps(text)


# --- output ------------------------------------------------------------------------------------------------------


def encode(value: Any) -> bytes:
    """Write JSON for people to read; texts that UTF-8 has no bytes for are written as escapes."""
    try:
        return files.encode(value)
    except UnicodeEncodeError:
        import msgspec

        return json.dumps(msgspec.to_builtins(value), indent=2).encode() + b"\n"


def put(value: Any, out: str | None = None) -> None:
    """Write JSON to standard output, or to a file."""
    data = encode(value)
    if out is None:
        typer.echo(data, nl=False)
    else:
        files.write(out, data)


def moment(seconds: float) -> str:
    """Write a time, in UTC."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def resumable() -> Generator[None]:
    """Say, when work is interrupted that may be done in pieces, that it can be taken up again."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("kompakt: interrupted; what was written so far is kept; run it again to go on", err=True)
        raise typer.Exit(130) from None
