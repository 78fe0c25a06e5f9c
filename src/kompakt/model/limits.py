"""Context windows, output limits and prices of models.

Windows are data, not constants in code, so the budget follows the model of a session. The numbers are a snapshot
packaged beside this module (`scripts/refresh_limits.py` writes it); nothing here uses the network. Invariant: every
model name has limits. An unknown name gets a small window, marked as assumed, and one warning.
"""

from __future__ import annotations

import re
import warnings
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from threading import Lock

import msgspec
from msgspec import Struct

SNAPSHOT = "limits.json"

ASSUMED_WINDOW = 32_000
"""Tokens of an unknown model's window. Most current models have at least this; a smaller value causes early
compactions, a larger one rejected requests.
"""

ASSUMED_OUTPUT = 4_096
"""Output tokens of an unknown model: the default reserve of 32,000 would fill the whole assumed window."""

PER_MILLION = -6
"""Decimal shift from stored prices (USD per million tokens, as providers publish them) to prices per token, so that 0.2
becomes exactly 2e-07.
"""

_SCALE = {"k": 1_000, "m": 1_000_000}

_STATED_WINDOW = re.compile(r"(?:\[(\d{1,9})([km])\]|(?<=:\d):(\d{1,9})(k))$")
"""A window written into the name: `claude-sonnet-4-5[1m]` (Claude Code), `…-v1:0:200k` (Bedrock provisioned)."""

_MAX_NAME = 200
"""Characters of a name that are read: no model has a longer name, and a request may contain anything."""

_VENDOR = re.compile(r"^(?:(?:[a-z-]+|ai21)\.(?=[a-z])|databricks-)+")
"""Bedrock regions and vendors (`us.anthropic.`, `us-gov.`, `ai21.`): letters up to a dot before a letter."""

_VARIANT = re.compile(r"(?:[-@]latest|@default|:[a-z]+|-v?\d+:\d+|(?<=\d)-v\d+)$")
"""Suffixes that name a route, not a model: `:free`, `:thinking`, `-latest`, `@default`, `-v1:0`, `-1:0`, `4-6-v1`."""

_SEPARATE = re.compile(r"gemini")
"""Models whose window limits the prompt alone: Google lists an input and an output token limit, and registries call the
former the context (ai.google.dev/gemini-api/docs/models).
"""

_DATE = re.compile(r"-(?:20\d{6}|20\d\d-\d\d-\d\d)$")


_PACKAGE = __name__.partition(".")[0]


class UnknownModelWarning(UserWarning):
    """The window of a model is unknown and was assumed."""


class Price(Struct, frozen=True):
    """USD per token; a cache price is None where the provider states none."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None


class Limits(Struct, frozen=True):
    """The limits of one model; `model` is the name under which they were found."""

    model: str
    context: int
    """Tokens of prompt and answer together; 0 means unlimited."""
    input: int | None = None
    """Tokens of the prompt alone, where the provider limits it below the context."""
    output: int | None = None
    price: Price | None = None
    known: bool = True
    """False when the window is assumed."""


class _Snapshot(Struct):
    models: dict[str, list[int | float | None]]


_lock = Lock()
_loaded: dict[str, list[int | float | None]] = {}
_warned: set[str] = set()


def limits(model: str) -> Limits:
    """Return the limits of a model; an unknown name gets a small window and one warning."""
    found = lookup(model)
    if not found.known:
        _warn_once(model)
    return found


def lookup(model: str) -> Limits:
    """Return the limits of a model like `limits`, without a warning."""
    return _find(model) or Limits(model=model, context=ASSUMED_WINDOW, output=ASSUMED_OUTPUT, known=False)


def with_window(found: Limits, context: int, *, separate: bool = False) -> Limits:
    """Return the limits of a model that is served with another window.

    If the window limits the prompt alone (``separate``, or known for the model), the other one does too.
    """
    if separate or (found.input is not None and found.input >= found.context):
        return msgspec.structs.replace(found, context=context, input=context or None)
    kept = found.input if found.input is not None and (not context or found.input < context) else None
    return msgspec.structs.replace(found, context=context, input=kept)


def price_of(model: str) -> Price | None:
    """Return the prices of a model; ``None`` when they are unknown."""
    found = _find(model)
    return None if found is None else found.price


def base_name(model: str) -> str:
    """Return the snapshot key of a name as providers and routers write it, with its date."""
    name = _VENDOR.sub("", model.strip().lower().rsplit("/", 1)[-1][:_MAX_NAME])
    while (shorter := _VARIANT.sub("", name)) != name:
        name = shorter
    name = name.replace("@", "-").replace(":", "-")
    # Anthropic's own ids have dashes where routers write dots: claude-opus-4.5 is claude-opus-4-5.
    return name.replace(".", "-") if name.startswith("claude") else name


def undated(name: str) -> str:
    """Drop the release date from the end of a base name."""
    return _DATE.sub("", name)


def is_specific(name: str) -> bool:
    """Return whether a name is specific: the family `mistral` does not define the window of `mistral-next`."""
    return "-" in name or any(map(str.isdigit, name))


@lru_cache(maxsize=4_096)
def _find(model: str) -> Limits | None:
    stated = _STATED_WINDOW.search(model.lower())
    name = base_name(model[: stated.start()] if stated else model)
    key = _key(name)
    if key is None:
        return None
    found = _entry(key)
    if stated is None:
        return found
    number, scale = (stated[1], stated[2]) if stated[1] else (stated[3], stated[4])
    return with_window(found, int(number) * _SCALE[scale])


def _key(name: str) -> str | None:
    models = _models()
    for candidate in (name, undated(name)):
        if candidate in models:
            return candidate
    prefix = undated(name)
    while "-" in prefix:
        prefix = prefix.rpartition("-")[0]
        if prefix in models and _speaks_for(prefix, rest=name[len(prefix) + 1 :]):
            return prefix
    return None


def _speaks_for(prefix: str, *, rest: str) -> bool:
    """Return whether a known model covers a variant, but not a new version: `claude-sonnet` does not cover
    `claude-sonnet-9`.
    """
    return is_specific(prefix) and (any(map(str.isdigit, prefix)) or not rest[:1].isdigit())


def _entry(key: str) -> Limits:
    row = _models()[key]
    context, limit, output, *prices = [*row, *[None] * (7 - len(row))]
    usd = [None if price is None else float(Decimal(str(price)).scaleb(PER_MILLION)) for price in prices]
    price = None if usd[0] is None or usd[1] is None else Price(usd[0], usd[1], usd[2], usd[3])
    return Limits(
        model=key,
        context=int(context or 0),
        input=int(limit) if limit is not None else int(context) if context and _SEPARATE.match(key) else None,
        output=None if output is None else int(output),
        price=price,
    )


def _models() -> dict[str, list[int | float | None]]:
    if not _loaded:
        with _lock:
            if not _loaded:
                data = Path(__file__).with_name(SNAPSHOT).read_bytes()
                _loaded.update(msgspec.json.decode(data, type=_Snapshot).models)
    return _loaded


def _warn_once(model: str) -> None:
    with _lock:
        if model in _warned:
            return
        _warned.add(model)
    warnings.warn(
        f"The context window of model {model!r} is unknown; {ASSUMED_WINDOW:,} tokens are assumed. "
        "Set the limit with budget=… (--budget on the command line).",
        UnknownModelWarning,
        stacklevel=_level_of_caller(),
    )


def _level_of_caller() -> int:
    """Return the ``stacklevel`` with which the caller of this function warns about a line outside of the package."""
    import inspect  # late: importing it takes long, and only this warning needs it

    frame, level = inspect.currentframe(), 0
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    return level
