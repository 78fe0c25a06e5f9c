"""Configuration of the gateway: flags, then ``KOMPAKT_…`` variables, then ``kompakt.toml``.

Every setting has one name: ``--max-body``, ``KOMPAKT_MAX_BODY`` and ``max_body`` under ``[serve]`` mean the same. A
``GatewayConfig`` is validated when it is created, so its users need no checks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, cast, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from kompakt.engine.compaction.policies import BUILT_IN, Policy, load_policies
from kompakt.errors import UsageError, nearest

OFFICIAL = {
    "openai": "https://api.openai.com",
    "anthropic": "https://api.anthropic.com",
    "gemini": "https://generativelanguage.googleapis.com",
}
"""The default upstreams."""

FIXED = ("host", "port", "workers", "store", "store_timeout", "key_file", "secret", "max_header")
"""Settings that require a restart: sockets and files are open, and another secret would change the tenants."""

_RESERVED = frozenset(["v1", "v1beta", "kompakt", "mcp", "healthz", "readyz", "metrics", "inspect"])
"""First path segments that belong to the gateway or to providers."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_TENANT = re.compile(r"(?!credential-|anonymous$)[A-Za-z0-9][A-Za-z0-9._@-]{0,127}")
_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,64}")
_HASH = re.compile(r"[0-9a-f]{64}")
_HOST = re.compile(r"(?:[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::\d{1,5})?|\*")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+")

Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]


class Upstream(msgspec.Struct, frozen=True):
    """A provider that requests are sent to."""

    name: str
    url: str
    """Origin and optional base path, without a slash and without ``/v1`` at the end."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in _RESERVED:
            raise UsageError(
                f"upstream {self.name!r} is not a valid name; use lower-case letters, digits, - and _, "
                f"and none of {', '.join(sorted(_RESERVED))}"
            )
        try:
            parts = urlsplit(self.url)
            port = parts.port
        except ValueError as error:
            raise UsageError(
                f"upstream {self.name}={self.url!r}: {error}; write http(s)://HOST[:PORT][/PATH]"
            ) from None
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not self.url.isprintable():
            raise UsageError(f"upstream {self.name}={self.url!r} is not a base URL; write http(s)://HOST[:PORT][/PATH]")
        if parts.username or parts.password or parts.query or parts.fragment or ".." in parts.path or " " in self.url:
            raise UsageError(
                f"upstream {self.name}: the URL must not contain a user, password, query or '..'; "
                "clients send credentials in their own header"
            )
        path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        msgspec.structs.force_setattr(self, "url", f"{parts.scheme}://{parts.netloc}{path}")


FLUSH_SECONDS = 20.0
"""Seconds to write what is queued at shutdown: 4,000 writes of 5 milliseconds. What is left then is dropped."""


def default_store() -> str:
    """Return the URL of the default store, a file in the user's data folder."""
    home = os.environ.get("XDG_DATA_HOME") or os.environ.get("LOCALAPPDATA") or str(Path.home() / ".local" / "share")
    return f"sqlite:///{Path(home) / 'kompakt' / 'gateway.db'}"


def without_password(url: str) -> str:
    """Return the URL of a store without its credentials and options."""
    parts = urlsplit(url)
    if parts.scheme.startswith("sqlite") or "@" not in parts.netloc:
        return url.partition("?")[0]
    return f"{parts.scheme}://…@{parts.netloc.rpartition('@')[2]}{parts.path}"


def _official() -> dict[str, Upstream]:
    return {name: Upstream(name, url) for name, url in OFFICIAL.items()}


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the gateway."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8484
    workers: Annotated[int, Meta(ge=1, le=1_000)] = 1
    """Processes that serve requests. They share the store, so it must not be in memory."""
    store: str = msgspec.field(default_factory=default_store)
    key_file: str | None = None
    """File with the key that encrypts stored values."""
    upstreams: dict[str, Upstream] = msgspec.field(default_factory=_official)
    context_window: Annotated[int, Meta(ge=1)] | None = None
    """Context window in tokens of models that are unknown; also an upper limit for all models."""
    windows: dict[str, Count] = msgspec.field(default_factory=dict[str, int])
    """Context windows by model."""
    policy: str = "default"
    policies: tuple[str, ...] = ()
    """Names that ``x-kompakt-policy`` may select; ``policy`` is always one of them."""
    own_policies: dict[str, Policy] = msgspec.field(default_factory=dict[str, Policy])
    """Policies of the configuration file, by name."""
    trigger: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Share of the usable window at which a compaction is due."""
    summarize: str | None = None
    """The model that writes a part of each summary; ``auto`` for the model of the request. Default: code alone."""
    recall: bool = True
    """Whether the model is offered the ``recall`` tool once a part of its conversation is hidden."""
    report_client_size: bool = False
    """Whether ``usage`` reports the size of the client's request instead of the size that went upstream."""
    keys: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """Tenants by the SHA-256 of their key, in hexadecimal."""
    admin_keys: tuple[str, ...] = ()
    """SHA-256 of the keys that see metrics and the sessions of all tenants; they cannot send provider requests."""
    tenant_header: str | None = None
    """A header with the tenant, set by a trusted proxy that removes it from client requests."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names of a local gateway in addition to the loopback names; ``*`` allows any."""
    allowed_origins: tuple[str, ...] = ()
    """Foreign origins whose web pages may send requests to a local gateway."""
    secret: str = ""
    """Key of the hash of credentials. By default the gateway generates one and keeps it in the store."""
    max_body: Count = 64 * 1024 * 1024
    """Bytes of one request body, decompressed."""
    max_media: Count | None = None
    """Bytes of base64-encoded images, audio and documents that go upstream in one request; ``None`` for no limit."""
    max_messages: Count = 100_000
    """Messages in one request."""
    max_header: Count = 64 * 1024
    """Bytes of all headers of one request."""
    body_timeout: Seconds = 30.0
    """Seconds to receive the body of a request."""
    upstream_timeout: Seconds = 600.0
    """Seconds to wait for the next byte from the provider."""
    connect_timeout: Seconds = 10.0
    """Seconds to connect to the provider."""
    store_timeout: Seconds = 3.0
    """Seconds for a store read; then the request is served without the store. Writes of originals get longer."""
    max_concurrency: Count = 1_000
    max_per_tenant: Count | None = None
    drain: Annotated[float, Meta(ge=0)] = 30.0
    """Seconds that open requests have to finish at shutdown."""
    log_json: bool = False

    def __post_init__(self) -> None:
        names = tuple(dict.fromkeys((self.policy, *self.policies)))
        msgspec.structs.force_setattr(self, "policies", names)
        known = {**BUILT_IN, **self.own_policies}
        for name in names:
            if name not in known:
                raise UsageError(f"policy {name!r} is unknown; use one of {', '.join(map(repr, known))}")
        if self.workers > 1 and self.store.startswith("memory:"):
            raise UsageError(
                f"workers={self.workers} needs a store that several processes can share; choose --store "
                "sqlite:///FILE, postgresql://… or redis://…, or use --workers 1 with --store memory:"
            )
        if not self.upstreams:
            raise UsageError("no upstream is configured; add one with --upstream NAME=URL")
        for name, upstream in self.upstreams.items():
            if name != upstream.name:
                raise UsageError(f"upstream {upstream.name!r} is listed as {name!r}; use the same name")
        self._check_tenants()
        self._check_sites()

    def _check_tenants(self) -> None:
        for digest, tenant in self.keys.items():
            _check_hash("keys", digest)
            check_tenant(tenant)
        for digest in self.admin_keys:
            _check_hash("admin_keys", digest)
        if self.tenant_header is not None:
            name = self.tenant_header.lower()
            if not _HEADER.fullmatch(name):
                raise UsageError(f"tenant_header={self.tenant_header!r} is not a header name; write x-tenant")
            msgspec.structs.force_setattr(self, "tenant_header", name)

    def _check_sites(self) -> None:
        """Normalize hosts and origins: lower case, no slash at the end."""
        hosts = tuple(host.lower() for host in self.allowed_hosts)
        origins = tuple(origin.lower().rstrip("/") for origin in self.allowed_origins)
        for host in hosts:
            if not _HOST.fullmatch(host):
                raise UsageError(f"allowed_hosts: {host!r} is not a host name; write gateway.example or NAME:PORT")
        for origin in origins:
            if not _ORIGIN.fullmatch(origin):
                raise UsageError(
                    f"allowed_origins: {origin!r} is not an origin; write https://HOST or https://HOST:PORT"
                )
        msgspec.structs.force_setattr(self, "allowed_hosts", hosts)
        msgspec.structs.force_setattr(self, "allowed_origins", origins)

    def policy_named(self, name: str) -> Policy:
        """Return a policy that requests may select.

        Raises:
            UsageError: the policy is not one of ``policies``.
        """
        if name not in self.policies:
            raise UsageError(f"policy {name!r} cannot be selected here; use one of {', '.join(self.policies)}")
        return self.own_policies.get(name) or BUILT_IN[name]


def check_tenant(name: str) -> str:
    """Validate the name of a tenant.

    Raises:
        UsageError: the name is not valid.
    """
    if not _TENANT.fullmatch(name):
        raise UsageError(
            f"tenant {name!r} is not a valid name; use up to 128 letters, digits, '.', '_', '@' and '-'. "
            "The name 'anonymous' and the prefix 'credential-' are reserved"
        )
    return name


def _check_hash(where: str, digest: str) -> None:
    if not _HASH.fullmatch(digest):
        raise UsageError(
            f"{where}: an entry of {len(digest)} characters is not a SHA-256 in lower-case hexadecimal; "
            "`kompakt serve --make-key TENANT` prints one"
        )


# --- loading -------------------------------------------------------------------------------------------------------

_TYPES: dict[str, Any] = get_type_hints(GatewayConfig, include_extras=True)
_READABLE = [name for name in GatewayConfig.__struct_fields__ if name != "own_policies"]
FLAGS = {
    "upstreams": "--upstream",
    "windows": "--window",
    "policies": "--allow-policy",
    "allowed_hosts": "--allow-host",
    "allowed_origins": "--allow-origin",
}
"""Flags that are repeated for each entry."""
_LISTS = ("policies", "admin_keys", "allowed_hosts", "allowed_origins")
"""Settings that are lists; as text, their entries are separated by commas."""
_COMMON = ("store", "key_file", "policy")
"""Settings that may also appear outside ``[serve]``, for all commands."""


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> GatewayConfig:
    """Load the settings. Flags override variables, and variables override the file.

    Raises:
        UsageError: a setting is invalid; the message names its source and the fix.
    """
    given: dict[str, Any] = {}
    own = {} if path is None else load_policies(path)
    for source in (
        _from_file(path),
        _from_environment(os.environ if environ is None else environ),
        _from_flags(flags or {}),
    ):
        given.update(source)
    return GatewayConfig(**given, own_policies=own)


def _from_file(path: Path | None) -> Iterator[tuple[str, Any]]:
    if path is None:
        return
    import tomllib  # late: only needed with a configuration file

    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: {error}") from None
    for key in _COMMON:
        value = data.get(key, data.get(key.replace("_", "-")))
        if value is not None:
            yield key, _read(key, value, where=f"{path}: {key}")
    table: Any = data.get("serve", {})
    if not isinstance(table, dict):
        raise UsageError(f"{path}: serve must be a table, [serve]")
    for key, value in cast("dict[str, Any]", table).items():
        name = key.replace("-", "_")
        if name not in _READABLE:
            raise UsageError(f"{path}: [serve] has no {key!r}; {nearest(name, _READABLE)}")
        yield name, _read(name, value, where=f"{path}: [serve] {key}")


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for name in _READABLE:
        variable = f"KOMPAKT_{name.upper()}"
        text = environ.get(variable, "")
        if text:
            yield name, _read(name, text, where=variable)


def _from_flags(flags: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in flags.items():
        if value is None or value == [] or value == ():
            continue
        if name not in _READABLE:
            raise UsageError(f"there is no setting {name!r}; {nearest(name, _READABLE)}")
        yield name, _read(name, value, where=FLAGS.get(name, f"--{name.replace('_', '-')}"))


def _read(name: str, value: Any, *, where: str) -> Any:
    """Convert a value from the file, or text from a variable or a flag."""
    if name in ("upstreams", "windows", "keys"):
        pairs = _pairs(value, where)
        if name == "upstreams":
            return {one: Upstream(one, _text(url, where)) for one, url in pairs.items()}
        value = pairs
    elif name in _LISTS and isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        return msgspec.convert(value, _TYPES[name], strict=not isinstance(value, str | dict))
    except msgspec.ValidationError as error:
        shown = "" if name in ("keys", "admin_keys", "secret") else f"={value!r}"
        raise UsageError(f"{where}{shown} is not valid: {error}") from None


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f'{where}={value!r} is not a string; write NAME = "URL"')
    return value


_PAIR_EXAMPLES = {
    "--upstream": "; for a server of your own: --upstream openai=http://127.0.0.1:8080",
    "--window": "; for example --window my-model=32768",
}


def _pairs(value: Any, where: str) -> dict[str, Any]:
    """Parse NAME=VALUE pairs from a table, a list of flags, or a text with commas."""
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else list(value)
    found: dict[str, Any] = {}
    for part in parts:
        name, equals, rest = part.partition("=")
        if not equals or not name or not rest:
            raise UsageError(f"{where}: {part!r} is not NAME=VALUE{_PAIR_EXAMPLES.get(where, '')}")
        found[name.strip()] = rest.strip()
    return found
