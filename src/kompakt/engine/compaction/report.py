"""What a compaction did, why, and what it saved: values for people, logs and tests."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import msgspec

from kompakt.engine.context.annotations import Action
from kompakt.engine.pivot.summarizer import NarrativeAccount


class Step(msgspec.Struct, frozen=True):
    """What one strategy did at one rewriting."""

    strategy: str
    tokens_before: int
    tokens_after: int
    at_message: int
    """How many messages there were."""
    failed: str | None = None
    """What it raised; the run went on with the state before it."""


def balanced(steps: tuple[Step, ...], before: int, after: int, at_message: int) -> tuple[Step, ...]:
    """Add a step for what no strategy did, so that the steps add up to the whole.

    That is what pins and placeholders add, what stripped reasoning and the exact fit at the end take away.
    """
    rest = before - after - sum(step.tokens_before - step.tokens_after for step in steps)
    return (*steps, Step("fitting", after + rest, after, at_message)) if rest else steps


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The account of one compaction."""

    policy: str
    reason: str
    tokens_before: int
    tokens_after: int
    messages_before: int
    messages_after: int
    budget: int
    steps: tuple[Step, ...] = ()
    actions: tuple[Action, ...] = ()
    repairs: tuple[str, ...] = ()
    """What had to be mended before anything else."""
    problems: tuple[str, ...] = ()
    """What no repair could mend: the provider will refuse it still."""
    told: str = ""
    """What the pivot says of what was left out: the ledger, behind a summariser's words if there were any."""
    failures: tuple[str, ...] = ()
    """What went wrong on the way: summaries that could not be used, strategies that raised."""
    narrative: NarrativeAccount | None = None
    """What the model's narrative cost and what of it the history did not support; ``None`` if no model was asked."""
    recoverable: str = "only the payload that was given can restore what was left out: no store was"
    seconds: float = 0.0
    session: str | None = None
    """The session that was compacted, where there is one."""

    @property
    def saved(self) -> int:
        """Tokens the compaction saved."""
        return self.tokens_before - self.tokens_after


_log = logging.getLogger("kompakt.compaction")

_listeners: list[Callable[[Report], None]] = []


def on_compaction(listener: Callable[[Report], None]) -> Callable[[], None]:
    """Call a function after every compaction; return what stops it."""
    _listeners.append(listener)

    def stop() -> None:
        if listener in _listeners:
            _listeners.remove(listener)

    return stop


def announce(report: Report) -> None:
    """Tell everyone who wants to know."""
    facts: dict[str, Any] = {} if report.session is None else {"session": report.session}
    facts |= {
        "policy": report.policy,
        "reason": report.reason,
        "messages_before": report.messages_before,
        "messages_after": report.messages_after,
        "tokens_before": report.tokens_before,
        "tokens_after": report.tokens_after,
        "strategies": ",".join(dict.fromkeys(step.strategy for step in report.steps)),
        "seconds": round(report.seconds, 6),
    }
    if (narrative := report.narrative) is not None:
        facts |= {
            "narrative_model": narrative.model,
            "narrative_input_tokens": narrative.usage.prompt,
            "narrative_output_tokens": narrative.usage.output,
            "narrative_sentences": narrative.sentences,
            "narrative_dropped": len(narrative.dropped),
        }
    _log.info("compacted %(tokens_before)d to %(tokens_after)d tokens", facts, extra={"kompakt": facts})
    _trace(facts)
    for listener in tuple(_listeners):
        try:
            listener(report)
        except Exception as error:  # noqa: BLE001 — a listener may be anybody's code; the compaction is done
            _log.warning("a listener of compactions failed: %r", error)


def _trace(facts: dict[str, Any]) -> None:
    try:
        trace = import_module("opentelemetry.trace")
    except ImportError:
        return
    began = time.time_ns() - int(facts["seconds"] * 1e9)
    span = trace.get_tracer("kompakt").start_span("kompakt.compact", start_time=began)
    for name, value in facts.items():
        span.set_attribute(f"kompakt.{name}", value)
    span.end()
