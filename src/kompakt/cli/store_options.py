"""What commands on stored sessions share: the options that select a store, session ids, and output.

An id may contain any characters. A plain id is printed as it is; any other id is printed as a JSON string, and an
argument that is a JSON string is read as one. So the output of one command can be passed to the next.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias, TypeVar

import typer

from kompakt.errors import UsageError

if TYPE_CHECKING:
    from kompakt.session.session import Session
    from kompakt.session.store import Store

T = TypeVar("T")

DEFAULT_URL = "sqlite:///kompakt.db"
"""The default store: a file in the working directory."""

STORE = "path of a SQLite file, or URL: sqlite:///FILE, postgresql://HOST/DATABASE, redis://HOST or memory:"
"""How a store is written in options and arguments."""

Url: TypeAlias = Annotated[
    str, typer.Option("--store", metavar="STORE", envvar="KOMPAKT_STORE", help=f"Store: {STORE}")
]
OtherStore: TypeAlias = Annotated[
    str | None,
    typer.Option("--store", metavar="STORE", show_default=False, help=f"Read this store, not a file: {STORE}"),
]
Tenant: TypeAlias = Annotated[
    str, typer.Option("--tenant", metavar="T", envvar="KOMPAKT_TENANT", help="Tenant that owns the sessions.")
]
KeyFile: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--key-file",
        metavar="FILE",
        envvar="KOMPAKT_KEY_FILE",
        help="File with the encryption key of the store: 32 bytes or 64 hexadecimal digits. "
        "Without it, KOMPAKT_KEY is read (hexadecimal).",
    ),
]
Id: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="Session id, as printed by `session list`.")]

_HEX_KEY = re.compile(rb"[0-9a-fA-F]{64}")


def require_store(store: str) -> None:
    """Check that a SQLite file exists, which opening it would create.

    Raises:
        UsageError: there is no such file.
    """
    from kompakt.store import sqlite_path  # late: `--help` does not need it

    path = sqlite_path(store)
    if path and not Path(path).exists():
        hints = [f"for the sessions of {owner}, add --store {own}" for owner, own in own_stores().items()]
        hint = "; ".join(hints) or "import a session first, or name another with --store"
        raise UsageError(f"there is no store {path}; {hint}")


def own_stores() -> dict[str, str]:
    """Return the files in which plugins and the gateway have recorded sessions, by who records there."""
    from kompakt.cli.output import with_short_paths  # late: `--help` does not need these
    from kompakt.gateway.config import default_store
    from kompakt.hosts import places
    from kompakt.store import sqlite_path

    paths = {"coding agents": sqlite_path(places.store_url()), "the gateway": sqlite_path(default_store())}
    return {owner: with_short_paths(path) for owner, path in paths.items() if path and Path(path).exists()}


def refuse_both(context: typer.Context, file: str | None, *, name: str = "FILE") -> None:
    """Check that the arguments of a command name a file or a store, and not both; a store in the settings is a default.

    Raises:
        UsageError: they name both.
    """
    source = context.get_parameter_source("store")
    if file is not None and source is not None and source.name == "COMMANDLINE":
        raise UsageError(f"{file!r} and --store name different sessions; give {name} or --store, not both")


class StoreOptions(NamedTuple):
    """Where the sessions are stored."""

    url: str = DEFAULT_URL
    tenant: str = ""
    key_file: str | None = None

    def run(self, work: Callable[[Store], Awaitable[T]], *, create: bool = False) -> T:
        """Open the store, run ``work`` on it and close it. Without ``create`` the store has to exist."""
        import asyncio  # late: `--help` does not need these

        from kompakt.session.store import open_store
        from kompakt.store import store_url

        url = store_url(self.url)
        if not create:
            require_store(self.url)
        key = read_key(self.key_file)

        async def opened() -> T:
            async with await open_store(url, tenant=self.tenant, key=key) as store:
                return await work(store)

        return asyncio.run(opened())

    def run_session(self, id: str, work: Callable[[Session], Awaitable[T]]) -> T:
        """Run ``work`` on a session that has to exist."""

        async def found(store: Store) -> T:
            session = await store.session(read_id(id))
            await session.head()
            return await work(session)

        return self.run(found)


def store_command(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter ``store: StoreOptions`` of a command by the options --store, --tenant and --key-file."""
    signature = inspect.signature(command, eval_str=True)
    options = inspect.signature(_store_options, eval_str=True).parameters
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "store"]
    parameters = [*own, *options.values()]

    @functools.wraps(command)
    def wrapper(**arguments: Any) -> None:
        store = _store_options(**{name: arguments.pop(name) for name in options})
        command(store=store, **arguments)

    # Typer reads both.
    setattr(wrapper, "__signature__", signature.replace(parameters=parameters))  # noqa: B010 — functions lack the field
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def _store_options(store: Url = DEFAULT_URL, tenant: Tenant = "", key_file: KeyFile = None) -> StoreOptions:
    return StoreOptions(store, tenant, key_file)


def read_key(file: str | None) -> bytes | None:
    """Read the encryption key from a file, else from ``KOMPAKT_KEY``; return ``None`` if there is none.

    Raises:
        UsageError: the value is not a key. The message does not contain the value.
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
            raise UsageError(f"{where}: cannot read the key: {getattr(error, 'strerror', None) or error}") from None
        if len(data) == 32:
            return data
        data = data.strip()
    if not _HEX_KEY.fullmatch(data):
        raise UsageError(f"{where}: a key is 64 hexadecimal digits{'' if file is None else ', or 32 bytes'}")
    return bytes.fromhex(data.decode())


# --- ids ---------------------------------------------------------------------------------------------------------


def read_id(text: str) -> str:
    """Read an id that was printed with ``printable``."""
    if text.startswith('"'):
        try:
            found = json.loads(text)
        except ValueError:
            return text
        return found if isinstance(found, str) else text
    return text


def printable(text: str) -> str:
    """Return a text as one line that is safe to print and that ``read_id`` can read back."""
    plain = text.isprintable() and not text.startswith('"') and text == text.strip() and text
    return text if plain else json.dumps(text)


# --- ages --------------------------------------------------------------------------------------------------------

AGE = "in days (30) or with a unit (30d, 12h, 2w)"
"""How an age is written in options."""

_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "": 86_400, "w": 604_800}


def read_age(text: str, name: str) -> float:
    """Read the age in an option; return seconds.

    Raises:
        UsageError: it is not an age above 0.
    """
    found = _AGE.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise UsageError(f"--{name} {text!r} is not an age above 0; write it {AGE}")
    return float(found[1]) * _SECONDS[found[2]]


# --- output ------------------------------------------------------------------------------------------------------


def print_json(value: Any, out: str | None = None) -> None:
    """Write JSON to standard output or to a file."""
    from kompakt import files  # late: importing the formats of files takes time, and not every command writes
    from kompakt.model.json import indented_json

    data = indented_json(value)
    if out is None:
        typer.echo(data, nl=False)
    else:
        files.write(out, data)


@contextmanager
def resumable() -> Generator[None]:
    """Report, on Ctrl-C, that the command can be run again to continue."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("kompakt: interrupted; completed writes are saved; run the command again to continue", err=True)
        raise typer.Exit(130) from None
