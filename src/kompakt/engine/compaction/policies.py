"""Policies: named, ordered sets of strategies with their settings. Data, so they can be written in TOML.

A policy says what to try and in which order; when and how far is the budget's to say. A step may have a trigger and a
target of its own: it then runs also while the budget is not due, and so does a whole policy with a ``when``. A strategy
can be used like a policy.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec

from kompakt.engine import strategies
from kompakt.engine.admission.settings import FIRM, AdmissionSettings, level_named
from kompakt.engine.context.context import Context
from kompakt.engine.pivot.pivot import Summarizer
from kompakt.engine.strategies import Strategy
from kompakt.engine.strategies.strategy import MEASURES, Every, Over, Target, Trigger, aim_of, reason_of
from kompakt.errors import UsageError, nearest

_log = logging.getLogger("kompakt.compaction")


class Due(NamedTuple):
    """What has to run though the budget is not due, and why."""

    steps: tuple[Strategy, ...]
    reason: str
    target: Target | None
    """The target of the trigger of the whole policy; the trigger of a step has its own."""


class Policy(msgspec.Struct, frozen=True):
    """A named, ordered set of strategies."""

    name: str
    steps: tuple[Strategy, ...]
    target_share: float | None = None
    """The target as a share of the budget; the budget's own target if not given."""
    admission: AdmissionSettings | None = None
    """How tool outputs are compressed when they arrive; not at all by default."""
    admits_always: bool = False
    """Whether that begins with the first message, and not only when the history first outgrows its budget."""

    when: Trigger | None = None
    """Runs the whole policy also while the budget is not due."""

    @property
    def awaits(self) -> bool:
        """Whether a step may await something; a function of the user may."""
        return any(getattr(step, "awaits", True) for step in self.steps)

    @property
    def has_triggers(self) -> bool:
        """Whether anything but the budget can make it run."""
        return self.when is not None or any(getattr(step, "when", None) is not None for step in self.steps)

    @property
    def ends_at_goal(self) -> bool:
        """Return whether each run for the budget ends at the goal: a step drops the oldest groups until it is reached.

        Triggers and targets of its own, and admission, make the size after a run depend on more than token counts.
        """
        if self.has_triggers or self.admission is not None:
            return False
        kinds = (strategies.Summarization, strategies.Truncation)
        return any(isinstance(step, kinds) and step.target is None for step in self.steps)

    def due(self, context: Context, *, waiting: bool = True) -> Due | None:
        """Return what the triggers ask for now; takes the time of the triggers, which is constant.

        ``waiting`` is false where nothing may be waited for: steps that await something are left out then.
        """
        steps = self.steps if waiting else tuple(step for step in self.steps if not _waits(step))
        if self.when is not None and steps and _fires(self.when, context):
            return Due(steps, reason_of(self.when), aim_of(context, self.when, None))
        fired = [(step, when) for step in steps if (when := _trigger_of(step)) is not None and _fires(when, context)]
        if not fired:
            return None
        reasons = dict.fromkeys(reason_of(when) for _, when in fired)
        return Due(tuple(step for step, _ in fired), ", ".join(reasons), None)


def _waits(step: Strategy) -> bool:
    """Return whether a step has to be awaited. Summarization has not: it can call its summarizer later."""
    return getattr(step, "awaits", True) and not isinstance(step, strategies.Summarization)


def _trigger_of(step: Strategy) -> Trigger | None:
    return getattr(step, "when", None)


def _fires(trigger: Trigger, context: Context) -> bool:
    """Ask a trigger; one that raises has not fired."""
    try:
        return trigger(context)
    except Exception as error:  # noqa: BLE001 — a trigger may be anybody's code; the run must outlive it
        _log.warning("trigger %s failed and counts as not due: %r", reason_of(trigger), error)
        return False


AnyPolicy: TypeAlias = str | Policy | Strategy
"""What may be given as a policy: a name, a ``Policy``, or one strategy."""


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


def policy_named(policy: AnyPolicy) -> Policy:
    """Find a policy, or make one of a single strategy.

    Raises:
        UsageError: no policy has that name.
    """
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str):
        return _alone(policy)
    found = BUILT_IN.get(policy)
    if found is None:
        raise UsageError(f"policy {policy!r} is not known; use one of {', '.join(map(repr, BUILT_IN))} or a Policy")
    return found


def with_summarizer(policy: Policy, summarizer: Summarizer) -> Policy:
    """Return a policy whose summarization steps use a summarizer, unless they have their own."""
    steps = tuple(
        strategies.Summarization(summarizer, share=step.share, when=step.when, target=step.target)
        if isinstance(step, strategies.Summarization) and step.summarizer is None
        else step
        for step in policy.steps
    )
    return msgspec.structs.replace(policy, steps=steps)


def _alone(strategy: Strategy) -> Policy:
    """Make a policy of one strategy, which runs when the strategy itself says so, and when the budget is due.

    Raises:
        UsageError: it is no strategy.
    """
    if not callable(strategy) or isinstance(strategy, type):
        raise UsageError(f"{strategy!r} is neither the name of a policy, nor a Policy, nor a strategy")
    name = getattr(strategy, "__name__", None) or type(strategy).__name__
    if _trigger_of(strategy) is not None:  # asked for by the step itself
        return Policy(name, (strategy,))
    return Policy(name, (strategy,), when=_Own(strategy, name) if getattr(strategy, "decides", True) else None)


class _Own(msgspec.Struct, frozen=True):
    """The trigger of a strategy that is used alone: what it says itself; one that says nothing is asked each time."""

    strategy: Strategy
    name: str

    def __call__(self, context: Context) -> bool:
        is_due: Trigger | None = getattr(self.strategy, "is_due", None)
        return is_due is None or is_due(context)

    @property
    def reason(self) -> str:
        return f"{self.name} was due"


def load_policies(path: str | Path) -> dict[str, Policy]:
    """Read policies from a TOML file: tables ``[policies.NAME]`` with ``steps``, ``target_share`` and ``when``.

    A trigger is a table with one of ``tokens``, ``messages``, ``groups``, ``bytes`` and ``every``; a target is a number
    of tokens, or a table with ``tokens``, ``messages``, ``groups`` or ``bytes``.

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
        when=_trigger(given["when"], where) if "when" in given else None,
    )


_SETTINGS = ("steps", "target_share", "admission", "admits_always", "when")


def _admission(given: Any, where: str) -> AdmissionSettings | None:
    """Read how outputs are admitted: the name of a level, or a table of settings."""
    if given is None:
        return None
    if isinstance(given, str):
        try:
            return level_named(given)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None
    if isinstance(given, dict):
        given = {key.replace("-", "_"): value for key, value in cast("dict[str, Any]", given).items()}
        for key in given:
            if key not in AdmissionSettings.__struct_fields__:
                known = nearest(key, AdmissionSettings.__struct_fields__)
                raise UsageError(f"{where}: unknown setting {key!r} of admission; {known}")
    try:
        return msgspec.convert(given, AdmissionSettings)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: admission={given!r} is neither a name nor a table of settings: {error}") from None


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
    if "when" in settings:
        settings["when"] = _trigger(settings["when"], f"{where}: {kind}")
    if isinstance(settings.get("target"), dict):
        settings["target"] = _target(settings["target"], f"{where}: {kind}")
    try:
        return make(**settings)
    except (TypeError, UsageError) as error:
        raise UsageError(f"{where}: {kind}: {error}") from None


def _trigger(given: Any, where: str) -> Trigger:
    """Read a trigger: a table with one measure and its limit."""
    known = (*MEASURES, "every")
    table = cast("dict[Any, Any]", given) if isinstance(given, dict) else {}
    if len(table) != 1 or next(iter(table)) not in known:
        raise UsageError(
            f"{where}: when={given!r} is no trigger; write {{ messages = 50 }}, with one of {', '.join(known)}"
        )
    ((measure, limit),) = table.items()
    try:
        return Every(limit) if measure == "every" else Over(measure, limit)
    except UsageError as error:
        raise UsageError(f"{where}: when={given!r}: {error}") from None


def _target(given: Any, where: str) -> Target:
    """Read a target: a table of measures and their limits."""
    try:
        return Target(**given)
    except (TypeError, UsageError) as error:
        raise UsageError(f"{where}: target={given!r} is not a target: {error}") from None
