"""``kompakt serve``: the gateway between agents and their providers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kompakt.cli import configuration
from kompakt.cli.stores import read_key
from kompakt.errors import UsageError


def _option(name: str, metavar: str, help: str) -> Any:
    return typer.Option(f"--{name}", metavar=metavar, help=help, show_default=False)


def serve(
    host: Annotated[str | None, _option("host", "H", "Where to listen; 127.0.0.1 when not given.")] = None,
    port: Annotated[int | None, _option("port", "P", "Where to listen; 8484 when not given, 0 for any.")] = None,
    store: Annotated[
        str | None, _option("store", "URL", "sqlite:///FILE, postgresql://…, redis://… or memory:")
    ] = None,
    key_file: Annotated[str | None, _option("key-file", "FILE", "The key that encrypts what is stored.")] = None,
    upstream: Annotated[
        list[str] | None,
        _option("upstream", "NAME=URL", "openai, anthropic, gemini or a name of your own, and its origin; repeatable."),
    ] = None,
    context_window: Annotated[
        int | None, _option("context-window", "N", "Tokens of models that no registry knows; no model is given more.")
    ] = None,
    window: Annotated[list[str] | None, _option("window", "MODEL=N", "Tokens of one model; repeatable.")] = None,
    policy: Annotated[str | None, _option("policy", "P", "How histories are compacted.")] = None,
    allow_policy: Annotated[
        list[str] | None, _option("allow-policy", "P", "Another that x-kompakt-policy may select; repeatable.")
    ] = None,
    trigger: Annotated[float | None, _option("trigger", "SHARE", "When: a share of the usable window.")] = None,
    recall: Annotated[
        bool | None, typer.Option("--recall/--no-recall", help="Offer the model a tool to recall with.")
    ] = None,
    report_client_size: Annotated[
        bool | None,
        typer.Option("--report-client-size/--no-report-client-size", help="Tell clients the size of what they sent."),
    ] = None,
    tenant_header: Annotated[
        str | None, _option("tenant-header", "NAME", "A header that a proxy in front sets and no client can.")
    ] = None,
    max_body: Annotated[int | None, _option("max-body", "BYTES", "Largest request.")] = None,
    max_concurrency: Annotated[int | None, _option("max-concurrency", "N", "Most requests at once.")] = None,
    max_per_tenant: Annotated[int | None, _option("max-per-tenant", "N", "Most requests at once of a tenant.")] = None,
    upstream_timeout: Annotated[
        float | None, _option("upstream-timeout", "SECONDS", "Longest silence of a provider.")
    ] = None,
    drain: Annotated[float | None, _option("drain", "SECONDS", "How long running requests have at the end.")] = None,
    log_json: Annotated[bool | None, typer.Option("--log-json/--no-log-json", help="Write logs as JSON.")] = None,
    make_key: Annotated[
        str | None, _option("make-key", "TENANT", "Print a new key and the line for its hash, and stop.")
    ] = None,
) -> None:
    """Serve the gateway: change the base URL, and any agent in any language stops overflowing."""
    flags = {name: value for name, value in locals().items() if name not in ("upstream", "window", "allow_policy")}
    flags |= {"upstreams": upstream, "windows": window, "policies": allow_policy}
    tenant = flags.pop("make_key")
    if tenant is not None:
        _print_key(tenant)
        return
    _run(flags)


def _run(flags: dict[str, Any]) -> None:
    from kompakt.gateway.configuration import load  # late: `--help` should not pay for any of these

    def read() -> Any:
        return load(flags, path=configuration.find())

    settings = read()
    key = read_key(settings.key_file)
    try:
        from kompakt.gateway.serving import serve as run
    except ImportError as error:
        raise UsageError(f"the gateway needs {error.name}; install it: pip install 'kompakt[gateway]'") from None
    run(settings, key=key, load=read, find=configuration.find)


def _print_key(tenant: str) -> None:
    """Print a key, which nobody can print again, and what to write down of it."""
    from kompakt.gateway.configuration import check_tenant
    from kompakt.gateway.keys import hash_of, make_key

    check_tenant(tenant)
    key = make_key()
    typer.echo(key)
    typer.echo(f'"{hash_of(key)}" = "{tenant}"')
    typer.echo(
        "The first line is the key: the client sends it in x-kompakt-key, and it is kept nowhere.\n"
        "The second belongs under [serve.keys] in kompakt.toml; a running gateway takes it up by itself.",
        err=True,
    )
