"""``kompakt serve``: run the gateway between agents and their providers."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from kompakt.cli import config
from kompakt.cli.input import option
from kompakt.cli.store_options import STORE, read_key
from kompakt.errors import UsageError
from kompakt.version import install_command


def _switch(name: str, help: str) -> Any:
    return typer.Option(f"--{name}/--no-{name}", help=help, show_default=False)


Host = Annotated[str | None, option("host", "H", "Address to listen on. Default: 127.0.0.1.")]
Port = Annotated[int | None, option("port", "P", "Port to listen on; 0 selects a free one. Default: 8484.")]
Workers = Annotated[
    int | None, option("workers", "N", "Processes; they share the store, which must not be memory:. Default: 1.")
]
Url = Annotated[str | None, option("store", "STORE", f"Store: {STORE}")]
KeyFile = Annotated[str | None, option("key-file", "FILE", "File with the key that encrypts the store.")]
Upstreams = Annotated[
    list[str] | None,
    option(
        "upstream", "NAME=URL", "Provider (openai, anthropic, gemini or your own name) and its base URL; repeatable."
    ),
]
Window = Annotated[
    int | None,
    option("context-window", "N", "Context window of unknown models, in tokens, and maximum for every model."),
]
Windows = Annotated[
    list[str] | None, option("window", "MODEL=N", "Context window of one model, in tokens; repeatable.")
]
PolicyName = Annotated[str | None, option("policy", "P", "Compaction policy.")]
Policies = Annotated[
    list[str] | None,
    option("allow-policy", "P", "Another policy that clients may select with the x-kompakt-policy header; repeatable."),
]
Trigger = Annotated[
    float | None, option("trigger", "SHARE", "Share of the usable window at which histories are compacted.")
]
Summarize = Annotated[
    str | None,
    option(
        "summarize",
        "[MODEL]",
        "Let a model write a part of each summary, at the client's cost: MODEL, else the model of the request.",
    ),
]
Recall = Annotated[bool | None, _switch("recall", "Let the model search the hidden history with a tool. Default: on.")]
ClientSize = Annotated[
    bool | None,
    _switch("report-client-size", "Report to clients the token count of what they sent, not of what was forwarded."),
]
TenantHeader = Annotated[
    str | None,
    option("tenant-header", "NAME", "Header with the tenant, set by a trusted proxy in front of the gateway."),
]
Hosts = Annotated[
    list[str] | None,
    option("allow-host", "HOST", "Host name, besides localhost, under which clients reach the gateway; repeatable."),
]
Origins = Annotated[
    list[str] | None, option("allow-origin", "ORIGIN", "Origin of web pages that may send requests; repeatable.")
]
Body = Annotated[int | None, option("max-body", "BYTES", "Largest request body.")]
MediaBytes = Annotated[
    int | None, option("max-media", "BYTES", "Most bytes of images, audio and documents in a request.")
]
Messages = Annotated[int | None, option("max-messages", "N", "Most messages in a request.")]
Concurrency = Annotated[int | None, option("max-concurrency", "N", "Most concurrent requests.")]
PerTenant = Annotated[int | None, option("max-per-tenant", "N", "Most concurrent requests of one tenant.")]
UpstreamTimeout = Annotated[
    float | None, option("upstream-timeout", "SECONDS", "Time without data after which a provider request fails.")
]
Drain = Annotated[float | None, option("drain", "SECONDS", "Time that running requests get to finish at shutdown.")]
LogJson = Annotated[bool | None, _switch("log-json", "Write logs as JSON.")]
MakeKey = Annotated[
    str | None,
    option("make-key", "TENANT", "Print a new client key and the configuration line for its hash, then exit."),
]


class ServeCommand(TyperCommand):
    """Allows ``--summarize`` without a value, which Typer does not support."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Complete the arguments before they are parsed."""
        following = [*args, "--"][1:]
        bare = [one == "--summarize" and after.startswith("-") for one, after in zip(args, following, strict=True)]
        return super().parse_args(ctx, [f"{one}=auto" if alone else one for one, alone in zip(args, bare, strict=True)])


_REPEATED = {
    "upstream": "upstreams",
    "window": "windows",
    "allow_policy": "policies",
    "allow_host": "allowed_hosts",
    "allow_origin": "allowed_origins",
}
"""Repeatable options and the settings that they fill."""


def serve(
    host: Host = None,
    port: Port = None,
    workers: Workers = None,
    store: Url = None,
    key_file: KeyFile = None,
    upstream: Upstreams = None,
    context_window: Window = None,
    window: Windows = None,
    policy: PolicyName = None,
    allow_policy: Policies = None,
    trigger: Trigger = None,
    summarize: Summarize = None,
    recall: Recall = None,
    report_client_size: ClientSize = None,
    tenant_header: TenantHeader = None,
    allow_host: Hosts = None,
    allow_origin: Origins = None,
    max_body: Body = None,
    max_media: MediaBytes = None,
    max_messages: Messages = None,
    max_concurrency: Concurrency = None,
    max_per_tenant: PerTenant = None,
    upstream_timeout: UpstreamTimeout = None,
    drain: Drain = None,
    log_json: LogJson = None,
    make_key: MakeKey = None,
) -> None:
    """Run the gateway, a compacting proxy for LLM APIs.

    Point the base URL of an agent at it; every request then fits the context window. Settings also come from [serve] in
    kompakt.toml.

    \b
    Examples:
      kompakt serve
      kompakt serve --port 9000 --store postgresql://HOST/DATABASE
      kompakt serve --upstream local=http://127.0.0.1:8000 --context-window 32768
    """
    flags = {_REPEATED.get(name, name): value for name, value in locals().items()}
    for name, _, tokens in (one.partition("=") for one in window or ()):
        if tokens and not tokens.strip().isdigit():
            raise UsageError(f"--window {name}={tokens}: {tokens!r} is not a number of tokens")
    tenant = flags.pop("make_key")
    if tenant is not None:
        _print_key(tenant)
        return
    _run(flags)


def _run(flags: dict[str, Any]) -> None:
    from kompakt.gateway.config import load  # late: `--help` does not need these

    def read() -> Any:
        return load(flags, path=config.find())

    try:
        from kompakt.gateway import server
        from kompakt.gateway.workers import assignment
    except ImportError as error:
        read()
        raise UsageError(f"the gateway needs {error.name}; install it with: {install_command('gateway')}") from None
    worker = assignment()
    if worker is not None:
        flags = worker.flags
    settings = read()
    key = read_key(settings.key_file)
    if worker is None and settings.workers > 1:
        raise typer.Exit(server.supervise(settings, flags=flags, load=read))
    server.serve(settings, key=key, load=read, find=config.find, worker=worker)


def _print_key(tenant: str) -> None:
    """Print a new key, which is not stored anywhere, and the configuration line with its hash."""
    from kompakt.gateway.config import check_tenant
    from kompakt.gateway.tenants import hash_key, make_key

    check_tenant(tenant)
    key = make_key()
    typer.echo(key)
    typer.echo(f'"{hash_key(key)}" = "{tenant}"')
    typer.echo(
        "Line 1 is the key. Clients send it in the x-kompakt-key header. It is not stored anywhere.\n"
        "Line 2 belongs under [serve.keys] in kompakt.toml. A running gateway reloads the file.",
        err=True,
    )
