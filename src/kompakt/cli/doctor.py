"""``kompakt doctor``: what is installed, configured and reachable."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec
import typer

from kompakt import files
from kompakt.cli import config as configuration
from kompakt.cli.options import AsJson
from kompakt.cli.session.store_options import read_key
from kompakt.errors import KompaktError
from kompakt.model.tokens import Counter
from kompakt.version import __version__

if TYPE_CHECKING:
    from kompakt.gateway.config import GatewayConfig, Upstream

CORE = ("msgspec", "rs-bpe", "rich", "typer", "sqlalchemy", "aiosqlite")
"""Packages that kompakt cannot work without."""

EXTRAS = {
    "starlette": "gateway",
    "uvicorn": "gateway",
    "httpx": "gateway",
    "prometheus-client": "gateway",
    "zstandard": "gateway",
    "uvloop": "gateway",
    "httptools": "gateway",
    "asyncpg": "postgres",
    "redis": "redis",
    "cryptography": "encryption",
    "opentelemetry-api": "telemetry",
}
"""Packages of optional features, with the extra that installs them."""

_PATIENCE = 5.0
"""Seconds to wait for an upstream: enough for a slow name server and a TLS handshake."""

State: TypeAlias = Literal["ok", "note", "problem"]


class Diagnosis(msgspec.Struct, frozen=True):
    """One thing that was checked."""

    what: str
    state: State
    """``note``: something is missing that this installation may not need."""
    detail: str


StoreUrl = Annotated[str | None, typer.Option("--store", metavar="URL", help="Check this store.", show_default=False)]
KeyFile = Annotated[str | None, typer.Option("--key-file", metavar="FILE", help="The key of the store.")]
Upstreams = Annotated[
    list[str] | None, typer.Option("--upstream", metavar="NAME=URL", help="Check this upstream; repeatable.")
]
Offline = Annotated[bool, typer.Option("--offline", help="Connect to no store server and no upstream.")]
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
    # Not KOMPAKT_KEY: that is the key that encrypts a store, and it must never be sent anywhere.
    typer.Option(
        "--gateway-key", metavar="KEY", envvar="KOMPAKT_GATEWAY_KEY", help="The gateway's own key, if it has keys."
    ),
]


def doctor(
    context: typer.Context,
    store: StoreUrl = None,
    key_file: KeyFile = None,
    upstream: Upstreams = None,
    offline: Offline = False,
    as_json: AsJson = False,
    client: ClientName = None,
    gateway: GatewayUrl = None,
    model: ModelName = None,
    gateway_key: GatewayKey = None,
) -> None:
    """Check packages, configuration, store and upstreams; with --client, whether an agent is protected.

    Exit 1 when something that kompakt needs does not work, or when the agent is not protected.
    """
    if client is not None:
        _probe(client, gateway, model, gateway_key, as_json=as_json)
    packages = {name: _version(name) for name in (*CORE, *EXTRAS)}
    found = [*_packages(packages), _tokenizer(), *_configuration(context)]
    flags = {"store": store, "key_file": key_file, "upstreams": upstream}
    if not any(one.what == "configuration" and one.state == "problem" for one in found):
        found += _connections(flags, offline=offline)
    problems = [one for one in found if one.state == "problem"]
    if as_json:
        report = {
            "kompakt": __version__,
            "python": platform.python_version(),
            "packages": packages,
            "missing": [name for name in CORE if packages[name] is None],
            "checks": found,
        }
        typer.echo(files.encode(report), nl=False)
    else:
        typer.echo(f"kompakt {__version__} on Python {platform.python_version()}")
        for one in found:
            typer.echo(f"  {one.state:<8} {one.what:<20} {one.detail}")
    raise typer.Exit(1 if problems else 0)


def _packages(packages: dict[str, str | None]) -> Iterator[Diagnosis]:
    for name, found in packages.items():
        if found is not None:
            yield Diagnosis(name, "ok", found)
        elif name in EXTRAS:
            yield Diagnosis(name, "note", f"not installed; pip install 'kompakt[{EXTRAS[name]}]'")
        else:
            yield Diagnosis(name, "problem", "not installed; pip install --force-reinstall kompakt")


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


def _tokenizer() -> Diagnosis:
    return Diagnosis("tokenizer", "ok", f"works offline ({Counter().text('The tokenizer answers.')} tokens counted)")


def _configuration(context: typer.Context) -> Iterator[Diagnosis]:
    """Read all of ``kompakt.toml``: options of commands, policies, the gateway's settings."""
    path = configuration.find()
    if path is None:
        yield Diagnosis("configuration", "ok", f"no {configuration.NAME}; defaults apply")
        return
    from kompakt.engine.compaction.policies import load_policies
    from kompakt.gateway.config import load

    root = context.find_root().command
    for read in (lambda: configuration.defaults(root), lambda: load_policies(path), lambda: load(path=path)):
        try:
            read()
        except KompaktError as error:
            yield Diagnosis("configuration", "problem", str(error))
            return
    yield Diagnosis("configuration", "ok", str(path))


def _connections(flags: dict[str, Any], *, offline: bool) -> Iterator[Diagnosis]:
    """Check the store and the upstreams that the gateway would use."""
    from kompakt.gateway.config import OFFICIAL, load

    try:
        settings = load(flags, path=configuration.find())
    except KompaktError as error:
        yield Diagnosis("configuration", "problem", str(error))
        return
    yield _store(settings, offline=offline)
    if offline:
        yield Diagnosis("upstreams", "note", "not checked (--offline)")
        return
    from concurrent.futures import ThreadPoolExecutor  # late: `--help` should not pay for it

    with ThreadPoolExecutor(max(1, len(settings.upstreams))) as pool:
        reached = list(pool.map(_reach, settings.upstreams.values()))
    for upstream, failure in zip(settings.upstreams.values(), reached, strict=True):
        # Nobody asked for the official upstreams; a machine without a way to them may serve others.
        wanted = OFFICIAL.get(upstream.name) != upstream.url
        state: State = "ok" if failure is None else "problem" if wanted else "note"
        said = f"{upstream.url} answers" if failure is None else f"{upstream.url} cannot be reached: {failure}"
        yield Diagnosis(f"upstream {upstream.name}", state, said)


def _store(settings: GatewayConfig, *, offline: bool) -> Diagnosis:
    from kompakt.gateway.config import default_store

    url = settings.store
    path = url.removeprefix("sqlite:///")
    if path != url and path and not Path(path).exists():
        state: State = "note" if url == default_store() else "problem"
        return Diagnosis("store", state, f"{_shown(url)} does not exist yet; `serve` and `session import` create it")
    if offline and path == url and not url.startswith("memory:"):
        return Diagnosis("store", "note", f"{_shown(url)} was not checked (--offline)")
    import asyncio

    from kompakt.session.store import open_store

    async def look() -> int:
        async with await open_store(url, key=read_key(settings.key_file)) as store:
            heads = await store.records.heads("", after="", limit=1)
            for head in heads:  # reading a message shows whether the key is the right one
                session = await store.session(head.id.decode("utf-8", "surrogatepass"))
                await anext(session.pages(), None)
            return len(heads)

    try:
        sessions = asyncio.run(look())
    except KompaktError as error:
        return Diagnosis("store", "problem", f"{_shown(url)}: {error}")
    return Diagnosis("store", "ok", f"{_shown(url)} can be read{'' if sessions else '; it has no sessions yet'}")


def _shown(url: str) -> str:
    """Write a URL without the user and the password in it."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _reach(upstream: Upstream) -> str | None:
    """Ask an upstream for anything; any HTTP answer will do. Return why there is none.

    Like the gateway's own client, this uses no proxy of the environment.
    """
    from http.client import HTTPConnection, HTTPException, HTTPSConnection
    from urllib.parse import urlsplit

    parts = urlsplit(upstream.url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_PATIENCE)
    try:
        connection.request("HEAD", parts.path or "/", headers={"user-agent": f"kompakt/{__version__}"})
        connection.getresponse()
    except (OSError, HTTPException) as error:
        return getattr(error, "strerror", None) or str(error) or type(error).__name__
    finally:
        connection.close()
    return None
