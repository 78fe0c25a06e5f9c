"""``kompakt doctor``: what is installed, reachable and configured."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import typer

from kompakt import files
from kompakt.cli.options import AsJson
from kompakt.model.tokens import Counter
from kompakt.version import __version__

_PACKAGES = {
    "msgspec": "core",
    "rs-bpe": "core",
    "rich": "core",
    "typer": "core",
    "sqlalchemy": "core",
    "aiosqlite": "core",
    "starlette": "gateway",
    "uvicorn": "gateway",
    "httpx": "gateway",
    "prometheus-client": "gateway",
    "uvloop": "gateway",
    "httptools": "gateway",
    "asyncpg": "postgres",
    "redis": "redis",
    "cryptography": "encryption",
    "opentelemetry-api": "telemetry",
}


def doctor(as_json: AsJson = False) -> None:
    """Say what is installed and whether it works. Exit 1 when something that kompakt needs does not."""
    found = {name: _version(name) for name in _PACKAGES}
    tokens = Counter().text("The tokenizer answers.")
    missing = [name for name, extra in _PACKAGES.items() if extra == "core" and found[name] is None]
    if as_json:
        report = {"kompakt": __version__, "python": platform.python_version(), "packages": found, "missing": missing}
        typer.echo(files.encode(report), nl=False)
    else:
        typer.echo(f"kompakt {__version__} on Python {platform.python_version()}")
        for name, extra in _PACKAGES.items():
            state = found[name] or f"not installed (pip install 'kompakt[{extra}]')"
            typer.echo(f"  {name:<20} {state}")
        typer.echo(f"  tokenizer            works offline ({tokens} tokens in a test sentence)")
    raise typer.Exit(1 if missing else 0)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
