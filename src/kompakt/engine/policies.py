"""Policies: named, ordered sets of strategies with their settings. Data, so they can be written in TOML.

A policy says what to try and in which order; when and how far is the budget's to say. A step may have a ``when`` of
its own and a ``target`` as a share of the budget's target.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec

from kompakt.engine import strategies
from kompakt.engine.admission.settings import FIRM, GENTLE, Settings
from kompakt.engine.strategies import Strategy
from kompakt.errors import UsageError
from kompakt.model.spelling import nearest


class Policy(msgspec.Struct, frozen=True):
    """A named, ordered set of strategies."""

    name: str
    steps: tuple[Strategy, ...]
    target_share: float | None = None
    """How far to come down, as a share of the budget; the budget's own target when not given."""
    admission: Settings | None = None
    """How tool outputs are compressed as they come; not at all when not given."""
    admits_always: bool = False
    """Whether that begins with the first message, and not only when the history first outgrows its budget."""

    @property
    def awaits(self) -> bool:
        """Tell whether a step may await something; anybody's own function may."""
        return any(getattr(step, "awaits", True) for step in self.steps)


REGISTRY: dict[str, Callable[..., Strategy]] = {
    "truncation": strategies.Truncation,
    "sliding-window": strategies.SlidingWindow,
    "tool-call-removal": strategies.ToolCallRemoval,
    "output-pruning": strategies.OutputPruning,
    "output-collapsing": strategies.OutputCollapsing,
    "shortening": strategies.Shortening,
    "source-attribution": strategies.SourceAttribution,
    "summarization": strategies.Summarization,
    "overflow-by-rounds": strategies.OverflowByRounds,
}
"""Strategies by the name a policy file uses."""


def _built_in() -> dict[str, Policy]:
    shorten = strategies.Shortening()
    ephemeral = strategies.SourceAttribution()
    prune = strategies.OutputPruning()
    summarize = strategies.Summarization()
    gentle = (shorten, ephemeral, summarize)
    return {
        policy.name: policy
        for policy in (
            Policy("default", gentle),
            Policy("conservative", (shorten, ephemeral, prune, summarize), target_share=0.75),
            Policy(
                "aggressive",
                (shorten, ephemeral, strategies.OutputCollapsing(min_keep_groups=2), summarize),
                target_share=0.25,
                admission=FIRM,
            ),
            Policy("window", (shorten, strategies.Truncation())),
            Policy("admission", gentle, admission=FIRM, admits_always=True),
        )
    }


BUILT_IN = _built_in()


def policy_named(policy: str | Policy) -> Policy:
    """Find a policy.

    Raises:
        UsageError: no policy has that name.
    """
    if isinstance(policy, Policy):
        return policy
    found = BUILT_IN.get(policy) if isinstance(policy, str) else None  # type: ignore[reportUnnecessaryIsInstance]
    if found is None:
        raise UsageError(f"policy {policy!r} is not known; use one of {', '.join(map(repr, BUILT_IN))} or a Policy")
    return found


def load_policies(path: str | Path) -> dict[str, Policy]:
    """Read policies from a TOML file: tables ``[policies.NAME]`` with ``steps`` and ``target_share``.

    Raises:
        UsageError: the file is not there, is no TOML, or names something that does not exist.
    """
    import tomllib  # late: only who keeps policies in files pays for it

    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from None
    tables: Any = data.get("policies", {})
    if not isinstance(tables, dict):
        raise UsageError(f"{path}: policies={tables!r} is not a table; write [policies.NAME]")
    return {name: _read(name, table, str(path)) for name, table in cast("dict[str, Any]", tables).items()}


def _read(name: str, table: Any, path: str) -> Policy:
    if not isinstance(table, dict):
        raise UsageError(f"{path}: policy {name!r} is {table!r} and not a table; write [policies.{name}]")
    given = {key.replace("-", "_"): value for key, value in cast("dict[str, Any]", table).items()}
    for key in given:
        if key not in _SETTINGS:
            raise UsageError(f"{path}: policy {name!r}: unknown setting {key!r}; {nearest(key, _SETTINGS)}")
    steps: Any = given.get("steps", [])
    if not isinstance(steps, list):
        raise UsageError(f"{path}: policy {name!r}: steps={steps!r} is not a list of tables")
    share: Any = given.get("target_share")
    if share is not None and not (isinstance(share, int | float) and 0 < share < 1):
        raise UsageError(f"{path}: policy {name!r}: target_share={share!r} is not a share between 0 and 1")
    where = f"{path}: policy {name!r}"
    return Policy(
        name,
        tuple(_step(step, where) for step in cast("list[Any]", steps)),
        target_share=share,
        admission=_admission(given.get("admission"), where),
        admits_always=given.get("admits_always") is True,
    )


_SETTINGS = ("steps", "target_share", "admission", "admits_always")
_LEVELS = {"gentle": GENTLE, "firm": FIRM}


def _admission(given: Any, where: str) -> Settings | None:
    """Read how outputs are admitted: the name of a level, or a table of settings."""
    if given is None:
        return None
    if isinstance(given, str) and given in _LEVELS:
        return _LEVELS[given]
    if isinstance(given, dict):
        given = {key.replace("-", "_"): value for key, value in cast("dict[str, Any]", given).items()}
        for key in given:
            if key not in Settings.__struct_fields__:
                known = nearest(key, Settings.__struct_fields__)
                raise UsageError(f"{where}: unknown setting {key!r} of admission; {known}")
    try:
        return msgspec.convert(given, Settings)
    except msgspec.ValidationError as error:
        levels = " or ".join(map(repr, _LEVELS))
        raise UsageError(f"{where}: admission={given!r} is neither {levels} nor a table of settings: {error}") from None


def _step(step: Any, where: str) -> Strategy:
    if not isinstance(step, dict):
        raise UsageError(f"{where}: step {step!r} is not a table; write {{ strategy = {step!r} }}")
    given = cast("dict[str, Any]", step)
    settings = {key.replace("-", "_"): value for key, value in given.items() if key != "strategy"}
    kind: object = given.get("strategy")
    make = REGISTRY.get(kind) if isinstance(kind, str) else None
    if make is None:
        raise UsageError(f"{where}: strategy {kind!r} is not known; {nearest(str(kind), REGISTRY)}")
    parameters = inspect.signature(make).parameters
    for key in settings:
        if key not in parameters:
            hint = nearest(key, parameters) if parameters else "it takes no settings"
            raise UsageError(f"{where}: {kind}: unknown setting {key!r}; {hint}")
    try:
        return make(**settings)
    except TypeError as error:
        raise UsageError(f"{where}: {kind}: {error}") from None
