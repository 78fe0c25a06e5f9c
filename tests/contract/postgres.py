"""A PostgreSQL server for tests, started once per process, on a socket in its own directory.

The server is part of the ``pgserver`` wheel. It does not run as root, so root starts it as user ``nobody``.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import subprocess
import tempfile
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

_FOUND = find_spec("pgserver")
assert _FOUND is not None and _FOUND.origin is not None, "the tests need the pgserver wheel"
_PACKAGES = Path(_FOUND.origin).parent.parent
_COPIED = ("pgserver/pginstall", "pgserver.libs")
_numbers = count(1)


def database() -> str:
    """Create an empty database and return its URL."""
    name = f"kompakt_{os.getpid()}_{next(_numbers)}"
    _psql(f"CREATE DATABASE {name}")
    return f"postgresql://postgres@/{name}?host={directory()}"


def load(url: str, dump: Path) -> None:
    """Run an SQL file in a database."""
    name = url.split("@/")[1].split("?")[0]
    _run(
        "psql", "-X", "-q", "-h", str(directory()), "-U", "postgres", "-d", name, "-f", "-", at=directory(), stdin=dump
    )


def restart(mode: str = "fast") -> None:
    """Restart the server; ``immediate`` stops it as a crash would."""
    _control("restart", "-m", mode)


def stop(mode: str = "fast") -> None:
    """Stop the server."""
    _control("stop", "-m", mode)


def start() -> None:
    """Start a server that was stopped."""
    _control("start")


@cache
def directory() -> Path:
    """Return the server's directory with its socket and files; starts the server on the first call."""
    place = Path(tempfile.mkdtemp(prefix="kompakt-pg-"))
    atexit.register(_remove, place)
    if os.geteuid() == 0:
        shutil.chown(place, "nobody")
        if not all(one.stat().st_mode & stat.S_IXOTH for one in (_PACKAGES, *_PACKAGES.parents)):
            for name in _COPIED:  # a clone below /root, which others cannot enter
                shutil.copytree(_PACKAGES / name, place / name, symlinks=True)
    _run("initdb", "-D", str(place / "data"), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", at=place)
    settings = f"listen_addresses = ''\nunix_socket_directories = '{place}'\nmax_connections = 200\n"
    settings += "fsync = off\nfull_page_writes = off\n"  # data survives a crash of the server, not of the machine
    with (place / "data" / "postgresql.conf").open("a") as file:
        file.write(settings)
    _run("pg_ctl", "-w", "-D", str(place / "data"), "-l", str(place / "log"), "start", at=place)
    return place


def _remove(place: Path) -> None:
    if (place / "data").exists():
        _run("pg_ctl", "-w", "-D", str(place / "data"), "-m", "immediate", "stop", at=place, check=False)
    shutil.rmtree(place, ignore_errors=True)


def _control(*command: str) -> None:
    place = directory()
    _run("pg_ctl", "-w", "-D", str(place / "data"), "-l", str(place / "log"), *command, at=place)


def _psql(command: str) -> None:
    _run("psql", "-X", "-q", "-h", str(directory()), "-U", "postgres", "-c", command, at=directory())


def _run(program: str, *arguments: str, at: Path, check: bool = True, stdin: Path = Path(os.devnull)) -> None:
    someone: dict[str, Any] = {"user": "nobody", "extra_groups": []} if os.geteuid() == 0 else {}
    binaries = (at if (at / _COPIED[0]).exists() else _PACKAGES) / _COPIED[0] / "bin"
    with stdin.open("rb") as given:
        subprocess.run(
            [str(binaries / program), *arguments],
            cwd=at, check=check, timeout=60, stdin=given, stdout=subprocess.DEVNULL, **someone,
        )  # fmt: skip
