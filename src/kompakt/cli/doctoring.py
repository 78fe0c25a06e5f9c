"""``kompakt doctor``: what is installed, reachable and configured."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import msgspec
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


ClientName = Annotated[
    str | None,
    typer.Option(
        "--client",
        metavar="NAME",
        help="Send one request as this agent does through a running gateway and say whether its history is protected: "
        "claude, codex, opencode, pi, aider, gemini, qwen or openai.",
    ),
]
GatewayUrl = Annotated[
    str | None,
    typer.Option(
        "--gateway", metavar="URL", help="The gateway; the client's own variable, else http://127.0.0.1:8484."
    ),
]
ModelName = Annotated[str | None, typer.Option("--model", metavar="M", help="The model that --client asks for.")]
GatewayKey = Annotated[
    str | None,
    typer.Option("--gateway-key", metavar="KEY", envvar="KOMPAKT_KEY", help="The gateway's own key, if it has keys."),
]


def doctor(
    as_json: AsJson = False,
    client: ClientName = None,
    gateway: GatewayUrl = None,
    model: ModelName = None,
    gateway_key: GatewayKey = None,
) -> None:
    """Say what is installed and whether it works; with --client, whether an agent is protected.

    Exit 1 when something that kompakt needs does not work, or when the agent is not protected.
    """
    if client is not None:
        _probe(client, gateway, model, gateway_key, as_json=as_json)
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


def _probe(name: str, url: str | None, model: str | None, key: str | None, *, as_json: bool) -> None:
    """Print whether the gateway looks after what a client sends."""
    from kompakt.cli.probe import client_named, probe  # late: only --client needs it

    found = probe(name, url=url, model=model, key=key)
    if as_json:
        typer.echo(files.encode(msgspec.to_builtins(found)), nl=False)
        raise typer.Exit(0 if found.protected else 1)
    typer.echo("protected: yes" if found.protected else f"protected: no, because {found.because}")
    if found.outcome is not None:
        typer.echo(f"  gateway   {found.url}, outcome {found.outcome}, session {found.session or 'none'}")
        typer.echo(f"  provider  answered {found.status}" + _hint(found.status))
    variable = client_named(name).variable
    if variable is not None and not os.environ.get(variable):
        typer.echo(f"  note      {variable} is not set in this shell; {name} started here does not use the gateway")
    raise typer.Exit(0 if found.protected else 1)


def _hint(status: int | None) -> str:
    return " (the credential is missing or wrong; that changes nothing here)" if status in (401, 403) else ""


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
