"""Keys of the gateway's own: made here, kept by their hash only."""

from __future__ import annotations

import hashlib
import secrets


def make_key() -> str:
    """Make a key."""
    return f"kk-{secrets.token_urlsafe(32)}"


def hash_of(key: str) -> str:
    """Return what is kept of a key. It is random and long, so a plain hash cannot be turned back."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
