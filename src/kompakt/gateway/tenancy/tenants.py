"""Whose request it is. Sessions, pivots and recall of one tenant are out of reach for every other.

Three ways, in this order: a key of the gateway's own in ``x-kompakt-key``; a header that a trusted proxy sets; else a
keyed hash of the client's credential for the provider. The credential itself stays in its header: it is neither stored
nor logged, and whoever does not know it cannot name its tenant.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from kompakt.errors import UsageError
from kompakt.gateway.config import GatewayConfig, check_tenant
from kompakt.gateway.errors import GatewayError
from kompakt.gateway.tenancy.keys import hash_of

KEY_HEADER = "x-kompakt-key"
ANONYMOUS = "anonymous"
"""The tenant of requests without any credential: a model on one's own machine."""

Source: TypeAlias = Literal["key", "header", "credential", "none"]
_CREDENTIALS = ("authorization", "x-api-key", "x-goog-api-key", "api-key")


class Tenant(NamedTuple):
    """Whose request it is, and how that is known."""

    id: str
    source: Source


def tenant_of(headers: Mapping[str, str], query: Mapping[str, str], settings: GatewayConfig) -> Tenant:
    """Say whose request it is.

    Raises:
        GatewayError: keys or a trusted header are configured, and the request brings none that is known.
    """
    if settings.keys:
        presented = headers.get(KEY_HEADER, "")
        if presented:
            found = tenant_of_key(presented, settings)
            if found is None:
                raise _unknown_key()
            return Tenant(found, "key")
    if settings.tenant_header is not None:
        named = headers.get(settings.tenant_header, "")
        if named:
            return _of_header(named)
    if settings.keys or settings.tenant_header is not None:
        raise _unknown_key()
    credential = credential_of(headers, query)
    if not credential:
        return Tenant(ANONYMOUS, "none")
    return Tenant(f"credential-{hashed(credential, settings.secret)}", "credential")


def _of_header(named: str) -> Tenant:
    try:
        return Tenant(check_tenant(named), "header")
    except UsageError:
        raise GatewayError(
            400, "the trusted header does not hold the name of a tenant", code="invalid_tenant"
        ) from None


def _unknown_key() -> GatewayError:
    return GatewayError(
        401,
        f"this gateway needs a key of its own in the header {KEY_HEADER}; your provider's key stays where it is",
        code="invalid_kompakt_key",
    )


def tenant_of_key(presented: str, settings: GatewayConfig) -> str | None:
    """Return whose key this is; takes the same time whatever is presented and wherever it is listed."""
    digest, found = hash_of(presented), None
    for known, tenant in settings.keys.items():
        if hmac.compare_digest(known, digest):
            found = tenant
    return found


def is_admin(presented: str, settings: GatewayConfig) -> bool:
    """Tell whether a key sees everything; takes the same time whatever is presented."""
    digest, found = hash_of(presented), False
    for known in settings.admin_keys:
        found |= hmac.compare_digest(known, digest)
    return found


def credential_of(headers: Mapping[str, str], query: Mapping[str, str]) -> str:
    """Return what the client shows its provider, without the word that says how; empty when there is nothing."""
    for name in _CREDENTIALS:
        value = headers.get(name, "").strip()
        if value:
            kind, _, rest = value.partition(" ")
            return rest.strip() if kind.lower() == "bearer" else value
    return query.get("key", "")


def hashed(credential: str, secret: str) -> str:
    """Return the name of a credential that tells nothing about it."""
    key = hashlib.blake2b(secret.encode(), digest_size=32).digest()
    data = credential.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, key=key, digest_size=16, person=b"kompakt tenant").hexdigest()


def is_named(id: str) -> bool:
    """Tell whether an operator gave a tenant its name: nobody is known by a credential only."""
    return id != ANONYMOUS and not id.startswith("credential-")


def is_private(name: str, settings: GatewayConfig) -> bool:
    """Tell whether a request header, in small letters, is between client and gateway: it never goes upstream."""
    return name.startswith("x-kompakt-") or name == settings.tenant_header
