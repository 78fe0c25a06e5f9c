"""``kompakt serve``: the gateway between agents and their providers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kompakt.cli import config as configuration
from kompakt.cli.session.store_options import read_key
from kompakt.errors import UsageError


def _option(name: str, metavar: str, help: str) -> Any:
    return typer.Option(f"--{name}", metavar=metavar, help=help, show_default=False)


def _switch(name: str, help: str) -> Any:
    return typer.Option(f"--{name}/--no-{name}", help=help, show_default=False)


Host = Annotated[str | None, _option("host", "H", "Where to listen; 127.0.0.1 when not given.")]
Port = Annotated[int | None, _option("port", "P", "Where to listen; 8484 when not given, 0 for any.")]
Url = Annotated[str | None, _option("store", "URL", "sqlite:///FILE, postgresql://…, redis://… or memory:")]
KeyFile = Annotated[str | None, _option("key-file", "FILE", "The key that encrypts what is stored.")]
Upstreams = Annotated[
    list[str] | None,
    _option("upstream", "NAME=URL", "openai, anthropic, gemini or a name of your own, and its origin; repeatable."),
]
Window = Annotated[
    int | None, _option("context-window", "N", "Tokens of models that no registry knows; no model is given more.")
]
Windows = Annotated[list[str] | None, _option("window", "MODEL=N", "Tokens of one model; repeatable.")]
PolicyName = Annotated[str | None, _option("policy", "P", "How histories are compacted.")]
Policies = Annotated[
    list[str] | None, _option("allow-policy", "P", "Another that x-kompakt-policy may select; repeatable.")
]
Trigger = Annotated[float | None, _option("trigger", "SHARE", "When: a share of the usable window.")]
Recall = Annotated[bool | None, _switch("recall", "Offer the model a tool to recall with.")]
ClientSize = Annotated[bool | None, _switch("report-client-size", "Tell clients the size of what they sent.")]
TenantHeader = Annotated[
    str | None, _option("tenant-header", "NAME", "A header that a proxy in front sets and no client can.")
]
Hosts = Annotated[
    list[str] | None,
    _option("allow-host", "HOST", "A name beside localhost under which clients reach the gateway; repeatable."),
]
Origins = Annotated[
    list[str] | None, _option("allow-origin", "ORIGIN", "A web page's origin that may send requests; repeatable.")
]
Body = Annotated[int | None, _option("max-body", "BYTES", "Largest request.")]
MediaBytes = Annotated[
    int | None, _option("max-media", "BYTES", "Most bytes of images, audio and documents in a request.")
]
Messages = Annotated[int | None, _option("max-messages", "N", "Most messages in a request.")]
Places = Annotated[int | None, _option("max-concurrency", "N", "Most requests at once.")]
PerTenant = Annotated[int | None, _option("max-per-tenant", "N", "Most requests at once of a tenant.")]
Silence = Annotated[float | None, _option("upstream-timeout", "SECONDS", "Longest silence of a provider.")]
Drain = Annotated[float | None, _option("drain", "SECONDS", "How long running requests have at the end.")]
LogJson = Annotated[bool | None, _switch("log-json", "Write logs as JSON.")]
MakeKey = Annotated[str | None, _option("make-key", "TENANT", "Print a new key and the line for its hash, and stop.")]


_REPEATED = {
    "upstream": "upstreams",
    "window": "windows",
    "allow_policy": "policies",
    "allow_host": "allowed_hosts",
    "allow_origin": "allowed_origins",
}
"""Options that are given once for each entry, and the settings that they make up."""


def serve(
    host: Host = None,
    port: Port = None,
    store: Url = None,
    key_file: KeyFile = None,
    upstream: Upstreams = None,
    context_window: Window = None,
    window: Windows = None,
    policy: PolicyName = None,
    allow_policy: Policies = None,
    trigger: Trigger = None,
    recall: Recall = None,
    report_client_size: ClientSize = None,
    tenant_header: TenantHeader = None,
    allow_host: Hosts = None,
    allow_origin: Origins = None,
    max_body: Body = None,
    max_media: MediaBytes = None,
    max_messages: Messages = None,
    max_concurrency: Places = None,
    max_per_tenant: PerTenant = None,
    upstream_timeout: Silence = None,
    drain: Drain = None,
    log_json: LogJson = None,
    make_key: MakeKey = None,
) -> None:
    """Serve the gateway: change the base URL, and any agent in any language stops overflowing."""
    flags = {_REPEATED.get(name, name): value for name, value in locals().items()}
    tenant = flags.pop("make_key")
    if tenant is not None:
        _print_key(tenant)
        return
    _run(flags)


def _run(flags: dict[str, Any]) -> None:
    from kompakt.gateway.config import load  # late: `--help` should not pay for any of these

    def read() -> Any:
        return load(flags, path=configuration.find())

    settings = read()
    key = read_key(settings.key_file)
    try:
        from kompakt.gateway.server import serve as run
    except ImportError as error:
        raise UsageError(f"the gateway needs {error.name}; install it: pip install 'kompakt[gateway]'") from None
    run(settings, key=key, load=read, find=configuration.find)


def _print_key(tenant: str) -> None:
    """Print a key, which nobody can print again, and what to write down of it."""
    from kompakt.gateway.config import check_tenant
    from kompakt.gateway.tenancy.tenants import hash_key, make_key

    check_tenant(tenant)
    key = make_key()
    typer.echo(key)
    typer.echo(f'"{hash_key(key)}" = "{tenant}"')
    typer.echo(
        "The first line is the key: the client sends it in x-kompakt-key, and it is kept nowhere.\n"
        "The second belongs under [serve.keys] in kompakt.toml; a running gateway takes it up by itself.",
        err=True,
    )
