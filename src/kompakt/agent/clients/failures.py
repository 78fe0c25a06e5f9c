"""Failures of a provider, read from the exception that an SDK raised: status, message, and whether a retry may help.

A retry helps if the provider was busy, failed or was unreachable. It does not help if the provider rejected the request
itself. An error inside a stream arrives with status 200, so only its name tells the two apart.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import cast

from kompakt.wire.overflow import Overflow, overflow

RETRYABLE = frozenset({408, 409, 429})
"""Statuses below 500 that are retried."""

MAX_MESSAGE = 2_000
"""Characters of a provider's error message that are kept."""

_TEMPORARY = re.compile(
    r"overload|server_?error|api_error|internal|rate_?limit|resource_exhausted|too_many|timeout|deadline|unavailable"
    r"|slow_down|aborted",
    re.IGNORECASE,
)
"""Names of temporary errors."""

_STATUS = re.compile(r"[45]\d\d", re.ASCII)
"""Matches an HTTP status of a failure."""

_BARE = re.compile(r"(?:[\s\d]|error code:?)*", re.IGNORECASE)
"""Matches what SDKs say of a response without a body."""

_KEYS = re.compile(r"\b(?:sk|pk|rk|gsk|xai|AIza)[-_]?[\w*.-]{8,}|(?i:\bbearer\s+)[\w.~+/=-]{8,}")
"""Matches API keys: providers quote parts of a key that they reject."""

_HIDDEN = "[key]"


class AttemptFailed(Exception):
    """One failed attempt of a request. Clients convert it to a ``ProviderError``."""

    def __init__(
        self,
        message: str,
        *,
        retryable: bool,
        status: int | None = None,
        wait: float | None = None,
        body: object = None,
    ) -> None:
        self.message = message
        self.status = status
        self.wait = wait
        """Seconds that the provider asks to wait before the next attempt."""
        self.overflow: Overflow | None = overflow(body, status=status) if body is not None else None
        self.retryable = retryable and self.overflow is None
        super().__init__(message)


def failure_from(error: Exception) -> AttemptFailed:
    """Read an exception of an SDK or of the network."""
    status = _status(error)
    body: object = getattr(error, "body", None) or getattr(error, "details", None)
    if status is not None and status >= 400:
        retryable = status in RETRYABLE or status >= 500
        evidence = body or (f"{status} status code (no body)" if _BARE.fullmatch(str(error)) else error)
        text = _text(body, error)
        return AttemptFailed(text, retryable=retryable, status=status, wait=_wait(error), body=evidence)
    if body:
        return failure_in_body(body)
    return AttemptFailed(_text(None, error), retryable=True, body=error)


def failure_in_body(body: object) -> AttemptFailed:
    """Read an error that arrived in place of an answer; only its name tells whether a retry may help."""
    names = list(_names(body, depth=0))
    statuses = [int(name) for name in names if _STATUS.fullmatch(name)]
    status = statuses[0] if statuses else None
    if status is not None:
        retryable = status in RETRYABLE or status >= 500
    else:
        named = [name for name in names if not name.isdecimal() and name not in ("error", "response.failed")]
        retryable = not named or any(_TEMPORARY.search(name) for name in named)
    return AttemptFailed(_text(body, None), retryable=retryable, status=status, body=body)


def redact(text: str, secrets: Iterable[object]) -> str:
    """Replace secrets, and whatever looks like an API key, in a text."""
    for secret in secrets:
        if isinstance(secret, str) and len(secret) >= 6:
            text = text.replace(secret, _HIDDEN)
    return _KEYS.sub(_HIDDEN, text)


def secrets_in(headers: Mapping[str, str]) -> list[str]:
    """Return the secrets in headers; ``Bearer KEY`` gives both words."""
    secret = re.compile("auth|key|token|secret|cookie", re.IGNORECASE)
    return [word for name, value in headers.items() if secret.search(name) for word in value.split()]


def _status(error: Exception) -> int | None:
    for name in ("status_code", "code"):
        value: object = getattr(error, name, None)
        if isinstance(value, int):
            return value
    return None


def _names(body: object, *, depth: int) -> Iterable[str]:
    """Yield the names and codes of an error, outermost first."""
    if not isinstance(body, Mapping) or depth > 3:
        return
    known = cast("Mapping[str, object]", body)
    for key in ("code", "type", "status"):
        value = known.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool):
            yield str(value)
    for key in ("error", "response"):
        yield from _names(known.get(key), depth=depth + 1)


def _text(body: object, error: Exception | None) -> str:
    found = _message(body, depth=0) or (str(error) if error is not None else "")
    found = re.sub(r"\s+", " ", found).strip()
    name = type(error).__name__ if error is not None else "the provider gave no reason"
    return found[:MAX_MESSAGE] or name


def _message(body: object, *, depth: int) -> str:
    """Return the message of an error, which is one to three levels deep."""
    if isinstance(body, str):
        return body
    if not isinstance(body, Mapping) or depth > 3:
        return ""
    known = cast("Mapping[str, object]", body)
    for key in ("message", "error", "response", "detail"):
        if message := _message(known.get(key), depth=depth + 1):
            return message
    return ""


def _wait(error: Exception) -> float | None:
    """Read the seconds to wait from ``retry-after-ms`` or ``retry-after`` (seconds or a date)."""
    headers: object = getattr(getattr(error, "response", None), "headers", None)
    if not isinstance(headers, Mapping):
        return None
    given = cast("Mapping[str, str]", headers)
    if precise := _seconds(given.get("retry-after-ms")):
        return precise / 1000
    asked = given.get("retry-after")
    seconds = _seconds(asked)
    if seconds is not None or not asked:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(asked).timestamp() - time.time())
    except ValueError:
        return None


def _seconds(value: str | None) -> float | None:
    if value is None or not re.fullmatch(r"\s*\d{1,9}(?:\.\d{1,9})?\s*", value):
        return None
    return float(value)
