"""``kompakt doctor``: check what is installed, configured and reachable, and whether an agent is protected."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec
import typer

from kompakt.cli import config
from kompakt.cli.input import AsJson, spelled
from kompakt.cli.output import print_line, waiting, wrapped
from kompakt.cli.store_options import STORE, read_key
from kompakt.errors import KompaktError, UsageError, did_you_mean
from kompakt.gateway.outcomes import OUTCOME_HEADER, OUTCOMES, PROTECTED, UNTOUCHED, UNTOUCHED_HEADER
from kompakt.model.json import indented_json
from kompakt.model.tokens import Counter
from kompakt.version import __version__, install_command, own_program

if TYPE_CHECKING:
    from kompakt.gateway.config import GatewayConfig, Upstream
    from kompakt.hosts.install import Scope

CORE = ("msgspec", "rs-bpe", "rich", "typer", "sqlalchemy", "aiosqlite")
"""Required packages."""

EXTRAS = {
    "starlette": "gateway",
    "uvicorn": "gateway",
    "httpx": "gateway",
    "httpcore": "gateway",
    "prometheus-client": "gateway",
    "zstandard": "gateway",
    "uvloop": "gateway",
    "httptools": "gateway",
    "asyncpg": "postgres",
    "redis": "redis",
    "mcp": "mcp",
    "textual": "tui",
    "cryptography": "encryption",
    "opentelemetry-api": "telemetry",
    "pyarrow": "fleet",
    "ray": "fleet",
}
"""Optional packages and the extras that install them."""

_UPSTREAM_TIMEOUT = 5.0
"""Seconds to wait for an upstream: enough for slow DNS and a TLS handshake."""

State: TypeAlias = Literal["ok", "note", "problem"]


class Diagnosis(msgspec.Struct, frozen=True):
    """The result of one check."""

    what: str
    state: State
    """``note``: something is missing that this installation may not need."""
    detail: str


StoreUrl = Annotated[
    str | None, typer.Option("--store", metavar="STORE", help=f"Store to check: {STORE}", show_default=False)
]
KeyFile = Annotated[
    str | None, typer.Option("--key-file", metavar="FILE", help="File with the encryption key of the store.")
]
Upstreams = Annotated[
    list[str] | None, typer.Option("--upstream", metavar="NAME=URL", help="Provider to check; repeatable.")
]
Offline = Annotated[bool, typer.Option("--offline", help="Do not connect to store servers and providers.")]
ClientName = Annotated[
    str | None,
    typer.Option(
        "--client",
        metavar="NAME",
        help="Check the plugin in this agent (see `kompakt install`). If it has none, or with --gateway, send one "
        "request like this agent through a running gateway and check whether its history is protected: claude, codex, "
        "opencode, pi, aider, gemini, qwen or openai.",
    ),
]
GatewayUrl = Annotated[
    str | None,
    typer.Option(
        "--gateway", metavar="URL", help="Gateway URL. Default: the client's own variable, else http://127.0.0.1:8484."
    ),
]
ModelName = Annotated[str | None, typer.Option("--model", metavar="M", help="Model for the request of --client.")]
GatewayKey = Annotated[
    str | None,
    # Not KOMPAKT_KEY: that is the encryption key of a store and must never be sent.
    typer.Option(
        "--gateway-key",
        metavar="KEY",
        envvar="KOMPAKT_GATEWAY_KEY",
        help="Client key of the gateway, if it requires one.",
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
    """Check packages, configuration, store and providers. With --client, check whether an agent is protected.

    Exit 1 if a check fails or the agent is not protected.

    \b
    Examples:
      kompakt doctor
      kompakt doctor --client claude-code
      kompakt doctor --store kompakt.db --offline --json
    """
    if client is not None:
        client = spelled(client)
        is_without_plugin = gateway is None and _report_installation(client, as_json=as_json)
        _report_probe(client, gateway, model, gateway_key, as_json=as_json, offers_plugin=is_without_plugin)
    packages = {name: _version(name) for name in (*CORE, *EXTRAS)}
    found = [*_packages(packages), _tokenizer(), *_configuration(context), *_plugins()]
    flags = {"store": store, "key_file": key_file, "upstreams": upstream}
    if not any(one.what == "configuration" and one.state == "problem" for one in found):
        with waiting("checking store and providers", when=not offline):
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
        typer.echo(indented_json(report), nl=False)
    else:
        typer.echo(f"kompakt {__version__} on Python {platform.python_version()}")
        for one in found:
            print_line(f"  {one.state:<8} {one.what:<20} ", one.detail)
    raise typer.Exit(1 if problems else 0)


def _packages(packages: dict[str, str | None]) -> Iterator[Diagnosis]:
    groups = {extra: [name for name, part in EXTRAS.items() if part == extra] for extra in EXTRAS.values()}
    for extra, names in {"": CORE, **groups}.items():
        what = f"extra {extra}" if extra else "packages"
        absent = [name for name in names if packages[name] is None]
        if absent:
            state: State = "note" if extra else "problem"
            missing = "not installed" if len(absent) == len(names) else f"{', '.join(absent)} not installed"
            yield Diagnosis(what, state, f"{missing}; to add it: {install_command(extra)}")
        else:
            yield Diagnosis(what, "ok", ", ".join(f"{name} {packages[name]}" for name in names))


def _report_installation(name: str, *, as_json: bool) -> bool:
    """Report whether the plugin in an agent works.

    If there is none, return whether it could be installed.
    """
    from kompakt.cli.install import ALIASES, PLANS, WHERE, installed_scopes  # late: only this option needs them
    from kompakt.hosts.checkup import HostCheck, check_host

    agent = ALIASES.get(name, name)
    if agent not in PLANS:
        client_named(name)  # a typo is reported before anything is sent
        return False
    installed = installed_scopes(agent)
    if not installed.plans and not installed.unreadable:
        fix = f"the plugin is not installed in {agent}; install it with: {_installing(name)}"
        if name == "claude-code":  # the gateway knows this client as claude
            report = {"client": agent, "works": False, "reason": fix}
            typer.echo(indented_json(report) if as_json else wrapped(fix), nl=not as_json)
            raise typer.Exit(1)
        typer.echo(wrapped(f"the plugin is not installed in {agent}, so the gateway is checked"), err=True)
        return True
    with waiting(f"running a test session through the plugin in {agent}"):
        found: dict[Scope, list[HostCheck]] = {plan.scope: list(check_host(plan)) for plan in installed.plans}
    found |= {scope: [HostCheck("settings", "problem", error)] for scope, error in installed.unreadable.items()}
    works = {scope: all(check.works for check in checks) for scope, checks in found.items()}
    if as_json:
        checks = [
            {"scope": scope, "what": one.what, "works": one.works, "state": one.state, "detail": one.detail}
            for scope, checks in found.items()
            for one in checks
        ]
        report = {"client": agent, "works": all(works.values()), "scopes": works, "checks": checks}
        typer.echo(indented_json(report), nl=False)
    else:
        for scope, checks in found.items():
            failure = "cannot be checked" if scope in installed.unreadable else "does not work"
            typer.echo(f"plugin in {agent}, {WHERE[scope]}: {'works' if works[scope] else failure}")
            for one in checks:
                print_line(f"  {one.state:<8} {one.what:<22} ", one.detail)
        if name == "claude" or os.environ.get(client_named(name).variable or ""):
            address = f"{own_program()} doctor --client {name} --gateway {DEFAULT_GATEWAY}"
            typer.echo(wrapped(f"This is about the plugin. To check a gateway: {address}"))
    raise typer.Exit(0 if all(works.values()) else 1)


def _installing(name: str) -> str:
    from kompakt.cli.install import ALIASES

    return f"{own_program()} install {ALIASES.get(name, name)}"


def _report_probe(
    name: str, url: str | None, model: str | None, key: str | None, *, as_json: bool, offers_plugin: bool
) -> None:
    client_named(name)  # a typo is reported before anything is sent
    with waiting("waiting for the gateway and the provider"):
        found = probe(name, url=url, model=model, key=key)
    if as_json:
        typer.echo(indented_json(msgspec.to_builtins(found)), nl=False)
        raise typer.Exit(0 if found.protected else 1)
    client = client_named(name)
    program = "the client" if name == "openai" else name
    unset = client.variable if client.variable and not os.environ.get(client.variable) else None
    where = f", if {program} is started with {unset}={_base_url(client, found.url)}" if unset else ""
    typer.echo(wrapped(f"protected: yes{where}" if found.protected else f"protected: no, because {found.because}"))
    if found.outcome is not None:
        print_line("  model     ", model or f"{client.model}; for your own model, add --model NAME")
        print_line("  gateway   ", f"{found.url}, outcome {found.outcome}, session {found.session or 'none'}")
        who = "gateway " if found.outcome in ("refused", "failed") else "provider"
        typer.echo(f"  {who}  answered {found.status}" + _hint(found.status))
    if offers_plugin and not found.protected:
        typer.echo(wrapped(f"to install the plugin, which needs no gateway: {_installing(name)}"))
    raise typer.Exit(0 if found.protected else 1)


def _base_url(client: AgentProfile, url: str) -> str:
    """Return the value of a client's variable for a gateway."""
    return f"{url}/v1" if (client.variable or "").startswith("OPENAI_") else url


def _hint(status: int | None) -> str:
    return " (the credential is missing or wrong; this does not affect the result)" if status in (401, 403) else ""


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _tokenizer() -> Diagnosis:
    return Diagnosis("tokenizer", "ok", f"works offline ({Counter().text('The tokenizer answers.')} tokens counted)")


def _configuration(context: typer.Context) -> Iterator[Diagnosis]:
    """Check all parts of ``kompakt.toml``: command options, policies, gateway settings."""
    path = config.find()
    if path is None:
        yield Diagnosis("configuration", "ok", f"no {config.NAME}; defaults apply")
        return
    from kompakt.engine.compaction.policies import load_policies
    from kompakt.gateway.config import load

    root = context.find_root().command
    for read in (lambda: config.defaults(root), lambda: load_policies(path), lambda: load(path=path)):
        try:
            read()
        except KompaktError as error:
            yield Diagnosis("configuration", "problem", str(error))
            return
    yield Diagnosis("configuration", "ok", str(path))


def _plugins() -> Iterator[Diagnosis]:
    """List the coding agents with a plugin, and where their sessions and the log are."""
    from kompakt.cli.install import PLANS, WHERE, installed_scopes  # late: `--help` does not need these
    from kompakt.hosts import places
    from kompakt.hosts.checkup import check_log

    is_used = False
    for agent in PLANS:
        installed = installed_scopes(agent)
        for scope, error in installed.unreadable.items():
            detail = f"{WHERE[scope]} cannot be read: {error}"
            yield Diagnosis(f"plugin {agent}", "problem", detail)
        if scopes := [WHERE[plan.scope] for plan in installed.plans]:
            is_used = True
            test = f"{own_program()} doctor --client {agent}"
            yield Diagnosis(f"plugin {agent}", "ok", f"in {' and '.join(scopes)}; to test it: {test}")
    if is_used:
        store = places.shown_store(places.store_url())
        yield Diagnosis("recorded sessions", "ok", f"plugins record sessions in {store}")
        log = check_log()
        yield Diagnosis(log.what, log.state, log.detail)


def _connections(flags: dict[str, Any], *, offline: bool) -> Iterator[Diagnosis]:
    """Check the store and the upstreams of the gateway."""
    from kompakt.gateway.config import OFFICIAL, load

    try:
        settings = load(flags, path=config.find())
    except KompaktError as error:
        yield Diagnosis("configuration", "problem", str(error))
        return
    yield _store(settings, offline=offline)
    if offline:
        yield Diagnosis("upstreams", "note", "not checked (--offline)")
        return
    from concurrent.futures import ThreadPoolExecutor  # late: `--help` does not need it

    with ThreadPoolExecutor(max(1, len(settings.upstreams))) as pool:
        reached = list(pool.map(_reach, settings.upstreams.values()))
    for upstream, failure in zip(settings.upstreams.values(), reached, strict=True):
        # The official upstreams are defaults. If they are unreachable, the gateway may still serve others.
        wanted = OFFICIAL.get(upstream.name) != upstream.url
        state: State = "ok" if failure is None else "problem" if wanted else "note"
        detail = f"{upstream.url} answers" if failure is None else f"{upstream.url} cannot be reached: {failure}"
        yield Diagnosis(f"upstream {upstream.name}", state, detail)


def _store(settings: GatewayConfig, *, offline: bool) -> Diagnosis:
    from kompakt.gateway.config import default_store, without_password
    from kompakt.store import sqlite_path, store_url

    url, path = store_url(settings.store), sqlite_path(settings.store)
    shown = without_password(url) if path is None else path
    shown = f"store of the gateway: {shown}" if url == default_store() else shown
    if path and not Path(path).exists():
        if url == default_store():
            return Diagnosis("store", "note", f"{shown} does not exist yet; `{own_program()} serve` creates it")
        return Diagnosis(
            "store", "problem", f"{shown} does not exist yet; check its name, or `{own_program()} serve` creates it"
        )
    if offline and path is None and not url.startswith("memory:"):
        return Diagnosis("store", "note", f"{shown} was not checked (--offline)")
    import asyncio

    from kompakt.session.store import open_store

    async def count_sessions() -> int:
        async with await open_store(url, key=read_key(settings.key_file)) as store:
            heads = await store.records.heads("", after="", limit=1)
            for head in heads:  # reading a message verifies the key
                session = await store.session(head.name)
                await anext(session.pages(), None)
            return len(heads)

    try:
        sessions = asyncio.run(count_sessions())
    except KompaktError as error:
        return Diagnosis("store", "problem", f"{shown}: {error}")
    return Diagnosis("store", "ok", f"{shown} is readable{'' if sessions else '; it has no sessions yet'}")


def _reach(upstream: Upstream) -> str | None:
    """Send a request to an upstream and return why it failed; any HTTP answer is a success.

    Like the gateway, this ignores proxy settings of the environment.
    """
    from http.client import HTTPConnection, HTTPException, HTTPSConnection
    from urllib.parse import urlsplit

    parts = urlsplit(upstream.url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_UPSTREAM_TIMEOUT)
    try:
        connection.request("HEAD", parts.path or "/", headers={"user-agent": f"kompakt/{__version__}"})
        connection.getresponse()
    except (OSError, HTTPException) as error:
        return getattr(error, "strerror", None) or str(error) or type(error).__name__
    finally:
        connection.close()
    return None


# --- probe of a running gateway ----------------------------------------------------------------------------------

DEFAULT_GATEWAY = "http://127.0.0.1:8484"
PROBE_TIMEOUT = 60.0
"""Seconds for the provider to answer a short request."""

Protocol: TypeAlias = Literal["anthropic", "responses", "chat", "gemini"]

PROBE_TEXT = "Reply with the single word OK."


class AgentProfile(msgspec.Struct, frozen=True):
    """How a coding agent calls its provider."""

    protocol: Protocol
    model: str
    variable: str | None
    """Environment variable with the base URL; ``None`` if the agent reads it from a file."""
    agent: str
    """Start of its user agent header."""


CLIENTS: dict[str, AgentProfile] = {
    "claude": AgentProfile(
        "anthropic", "claude-sonnet-4-5", "ANTHROPIC_BASE_URL", "claude-cli/2.1.325 (external, cli)"
    ),
    "codex": AgentProfile("responses", "gpt-5-codex", None, "codex_cli_rs/0.166.0"),
    "opencode": AgentProfile("chat", "gpt-5", None, "opencode/1.18.33"),
    "pi": AgentProfile("chat", "gpt-5", None, "pi/1.5.0"),
    "aider": AgentProfile("chat", "gpt-5", "OPENAI_API_BASE", "aider"),
    "gemini": AgentProfile("gemini", "gemini-2.5-pro", "GOOGLE_GEMINI_BASE_URL", "GeminiCLI/0.61.0"),
    "qwen": AgentProfile("chat", "qwen3-coder-plus", "OPENAI_BASE_URL", "QwenCode"),
    "openai": AgentProfile("chat", "gpt-5", "OPENAI_BASE_URL", "OpenAI/Python"),
}

_CREDENTIALS: dict[Protocol, tuple[str, str]] = {
    "anthropic": ("ANTHROPIC_API_KEY", "x-api-key"),
    "responses": ("OPENAI_API_KEY", "authorization"),
    "chat": ("OPENAI_API_KEY", "authorization"),
    "gemini": ("GEMINI_API_KEY", "x-goog-api-key"),
}
"""Environment variable with the credential, and the header that carries it."""


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a probe."""

    client: str
    url: str
    protected: bool
    because: str
    """Why the history is not protected, or what the gateway did."""
    outcome: str | None = None
    session: str | None = None
    status: int | None = None
    """Status of the answer of the provider or the gateway."""


def client_named(name: str) -> AgentProfile:
    """Return the profile of a client.

    Raises:
        UsageError: the client is unknown.
    """
    found = CLIENTS.get(spelled(name).removesuffix("-code").removesuffix("-cli"))
    if found is None:
        known = sorted({*CLIENTS, "claude-code"})
        raise UsageError(f"unknown client {name!r}; {did_you_mean(spelled(name), known)}use one of {', '.join(known)}")
    return found


def probe(name: str, *, url: str | None = None, model: str | None = None, key: str | None = None) -> ProbeResult:
    """Send one request like a client through a running gateway and return whether its history is protected.

    Only the gateway's headers decide. A provider that rejects the request (no credential, unknown model) still shows
    that the gateway handles this client.

    Raises:
        UsageError: the client is unknown, or httpx is not installed.
    """
    try:
        import httpx  # late: needs the gateway extra
    except ImportError:
        raise UsageError(f"--client needs httpx; install it with: {install_command('gateway')}") from None

    client = client_named(name)
    base = (url or os.environ.get(client.variable or "") or DEFAULT_GATEWAY).rstrip("/").removesuffix("/v1")
    path, body = _probe_request(client, model or client.model)
    headers = _probe_headers(client)
    if key is not None:
        headers["x-kompakt-key"] = key
    try:
        answer = httpx.post(base + path, json=body, headers=headers, timeout=PROBE_TIMEOUT, trust_env=False)
    except httpx.HTTPError as error:
        reason = f"nothing answers at {base} ({type(error).__name__}); start the gateway with `{own_program()} serve`"
        return ProbeResult(client=name, url=base, protected=False, because=reason)
    except httpx.InvalidURL as error:
        raise UsageError(f"{base!r} is not a valid URL: {error}") from None
    found = _result_of(name, base, answer.status_code, answer.headers, answer.content)
    if found.protected and found.status == 200 and not _is_answer(client.protocol, answer.content):
        because = (
            f"the provider's answer is not one that {name} understands; check the URL of its provider, the option "
            f"--upstream of `{own_program()} serve`"
        )
        return msgspec.structs.replace(found, protected=False, because=because)
    return found


_SHAPES: dict[Protocol, str] = {
    "anthropic": '"content"',
    "responses": '"response',
    "chat": '"choices"',
    "gemini": '"candidates"',
}
"""What every answer of a protocol contains, in a stream too."""


def _is_answer(protocol: Protocol, body: bytes) -> bool:
    """Return whether a body is an answer of a protocol, whole or as a stream of events."""
    return _SHAPES[protocol].encode() in body


def _probe_headers(client: AgentProfile) -> dict[str, str]:
    variable, header = _CREDENTIALS[client.protocol]
    credential = os.environ.get(variable) or "no-credential"
    headers = {header: f"Bearer {credential}" if header == "authorization" else credential, "user-agent": client.agent}
    if client.protocol == "anthropic":
        headers |= {
            "anthropic-version": "2023-06-01",
            "anthropic-beta": "context-management-2025-06-27,interleaved-thinking-2025-05-14",
        }
    return headers


def _probe_request(client: AgentProfile, model: str) -> tuple[str, dict[str, Any]]:
    """Return path and body of a short request with the fields that the client always sends."""
    message = {"role": "user", "content": PROBE_TEXT}
    if client.protocol == "anthropic":
        return "/v1/messages?beta=true", {
            "model": model,
            "max_tokens": 1_100,
            "thinking": {"type": "enabled", "budget_tokens": 1_024},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "messages": [message],
        }
    if client.protocol == "responses":
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": PROBE_TEXT}]}
        return "/v1/responses", {"model": model, "store": False, "stream": True, "input": [item]}
    if client.protocol == "gemini":
        content = {"role": "user", "parts": [{"text": PROBE_TEXT}]}
        return f"/v1beta/models/{model}:generateContent", {"contents": [content]}
    return "/v1/chat/completions", {"model": model, "messages": [message]}


def _result_of(name: str, base: str, status: int, headers: Mapping[str, str], body: bytes) -> ProbeResult:
    outcome = headers.get(OUTCOME_HEADER)
    session = headers.get("x-kompakt-session")
    if outcome is None:
        because = f"the server at {base} is not a kompakt gateway, or an old version"
    elif outcome == "untouched":
        reason = headers.get(UNTOUCHED_HEADER, "")
        because = f"the gateway did not change the request: {UNTOUCHED.get(reason, reason)}"
    elif outcome == "refused":
        because = f"the gateway refused the request ({headers.get('x-kompakt-refusal')}): {_error_message(body)}"
    elif outcome == "failed":
        because = f"the gateway got no answer ({headers.get('x-kompakt-refusal')}): {_error_message(body)}"
    elif "x-kompakt-degraded" in headers:
        because = f"the gateway cannot record the session: {headers['x-kompakt-degraded']}"
    else:
        because = OUTCOMES.get(outcome, outcome)
    protected = outcome in PROTECTED and "x-kompakt-degraded" not in headers
    return ProbeResult(
        client=name, url=base, protected=protected, because=because, outcome=outcome, session=session, status=status
    )


class _ErrorBody(msgspec.Struct):
    message: str = ""


class _Failure(msgspec.Struct):
    error: _ErrorBody = msgspec.field(default_factory=_ErrorBody)


def _error_message(body: bytes) -> str:
    """Return the message of an error in any provider's shape."""
    try:
        return msgspec.json.decode(body, type=_Failure).error.message
    except msgspec.MsgspecError:
        return ""
