"""Failures of a provider, read out of whatever an SDK raised: the status, the words, and whether asking again may help.

Asking again is right when the provider was busy, broken or out of reach, and wrong when it refused the request itself.
An error inside a stream comes with status 200 and only its name says which of the two it is.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import cast

from kompakt.wire.overflow import Overflow, overflow

REPEATABLE = frozenset({408, 409, 429})
"""Statuses below 500 that are worth another try."""

MAX_WORDS = 2_000

_PASSING = re.compile(
    r"overload|server_?error|api_error|internal|rate_?limit|resource_exhausted|too_many|timeout|deadline|unavailable"
    r"|slow_down|aborted",
    re.IGNORECASE,
)
"""Names of errors that pass."""

_KEYS = re.compile(r"\b(?:sk|pk|rk|gsk|xai|AIza)[-_]?[\w*.-]{8,}|(?i:\bbearer\s+)[\w.~+/=-]{8,}")
"""What keys look like: providers quote them, in part, when they refuse them."""

_HIDDEN = "[key]"


class Failed(Exception):
    """One try that failed. Never leaves the clients."""

    def __init__(
        self, words: str, *, status: int | None = None, again: bool, wait: float | None = None, body: object = None
    ) -> None:
        self.words = words
        self.status = status
        self.wait = wait
        """Seconds that the provider asks to wait."""
        self.overflow: Overflow | None = overflow(body, status=status) if body is not None else None
        self.again = again and self.overflow is None
        super().__init__(words)


def failed_of(error: Exception) -> Failed:
    """Read what an SDK raised."""
    status = _status(error)
    body: object = getattr(error, "body", None) or getattr(error, "details", None)
    if status is not None and status >= 400:
        again = status in REPEATABLE or status >= 500
        evidence = body if body else f"{status} status code (no body)"
        return Failed(_words(body, error), status=status, again=again, wait=_wait(error), body=evidence)
    if body:
        return failed_in_stream(body)
    return Failed(_words(None, error), again=True)


def failed_in_stream(body: object) -> Failed:
    """Read an error that came where an answer should have come; only its name tells what kind it is."""
    names = list(_names(body, depth=0))
    statuses = [int(name) for name in names if name.isdigit() and 400 <= int(name) < 600]
    status = statuses[0] if statuses else None
    if status is not None:
        again = status in REPEATABLE or status >= 500
    else:
        named = [name for name in names if not name.isdigit() and name not in ("error", "response.failed")]
        again = not named or any(_PASSING.search(name) for name in named)
    return Failed(_words(body, None), status=status, again=again, body=body)


def plain(words: str, secrets: Iterable[object]) -> str:
    """Leave out of a text what is, or looks like, a key."""
    for secret in secrets:
        if isinstance(secret, str) and len(secret) >= 6:
            words = words.replace(secret, _HIDDEN)
    return _KEYS.sub(_HIDDEN, words)


def secrets_in(headers: Mapping[str, str]) -> list[str]:
    """List the secrets among headers, each without the word for its kind."""
    told = [value for name, value in headers.items() if re.search("auth|key|token|secret|cookie", name, re.IGNORECASE)]
    return [word for value in told for word in value.split()]


def _status(error: Exception) -> int | None:
    for name in ("status_code", "code"):
        value: object = getattr(error, name, None)
        if isinstance(value, int):
            return value
    return None


def _names(body: object, *, depth: int) -> Iterable[str]:
    """List the names and codes of an error, outermost first."""
    if not isinstance(body, Mapping) or depth > 3:
        return
    known = cast("Mapping[str, object]", body)
    for key in ("code", "type", "status"):
        value = known.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool):
            yield str(value)
    for key in ("error", "response"):
        yield from _names(known.get(key), depth=depth + 1)


def _words(body: object, error: Exception | None) -> str:
    found = _message(body, depth=0) or (str(error) if error is not None else "")
    found = re.sub(r"\s+", " ", found).strip()
    name = type(error).__name__ if error is not None else "no reason was given"
    return found[:MAX_WORDS] or name


def _message(body: object, *, depth: int) -> str:
    """Find the sentence of an error, which is one to three levels deep."""
    if isinstance(body, str):
        return body
    if not isinstance(body, Mapping) or depth > 3:
        return ""
    known = cast("Mapping[str, object]", body)
    for key in ("message", "error", "response", "detail"):
        if said := _message(known.get(key), depth=depth + 1):
            return said
    return ""


def _wait(error: Exception) -> float | None:
    """Read how long the provider asks to wait, in either of the header's two forms."""
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
