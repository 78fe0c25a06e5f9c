"""The report of a compaction: what it did, why and what it saved, for people, logs, traces and listeners."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from kompakt.engine.context.context import Action
from kompakt.engine.pivot.pivot import NarrativeAccount, combined, pivot_text

if TYPE_CHECKING:
    from kompakt.engine.context.context import Context


class Step(msgspec.Struct, frozen=True):
    """What one strategy did in one compaction."""

    strategy: str
    tokens_before: int
    tokens_after: int
    at_message: int
    """The number of messages at that time."""
    failed: str | None = None
    """The exception it raised; its changes were rolled back."""


def _balanced(steps: tuple[Step, ...], before: int, after: int, at_message: int) -> tuple[Step, ...]:
    """Add a step for the rest, so that the steps add up to the difference between ``before`` and ``after``.

    The rest is what the notes use less than was reserved for them, what pins and placeholders add, and what stripped
    reasoning and the exact fit at the end remove.
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
    """The repairs made first."""
    problems: tuple[str, ...] = ()
    """Problems that no repair could solve; the provider will still reject them."""
    notes: str = ""
    """The text of the pivot: the narrative of a summarizer, if there was one, and the ledger."""
    failures: tuple[str, ...] = ()
    """Unusable summaries and exceptions of strategies."""
    narrative: NarrativeAccount | None = None
    """What the model's narrative cost and what of it the history did not support; ``None`` if no model was asked."""
    recoverable: str = "the original messages restore what was left out: keep them, or use a store"
    seconds: float = 0.0
    session: str | None = None
    """The id of the compacted session, if there is one."""

    @property
    def told(self) -> str:
        """Return the notes; their name in version 0.1."""
        return self.notes

    @property
    def saved(self) -> int:
        """Tokens the compaction saved."""
        return self.tokens_before - self.tokens_after

    def __str__(self) -> str:
        """Return sizes, saving and reason in one line, and one for problems and failures. ``notes`` has the notes."""
        tokens = f"{self.tokens_before:,} -> {self.tokens_after:,} tokens"
        messages = f"{self.messages_before:,} -> {self.messages_after:,} messages"
        lines = [f"compacted: {tokens} ({self.saved:,} saved), {messages}; reason: {self.reason or 'requested'}"]
        for name, found in (("problems", self.problems), ("failures", self.failures)):
            if found:
                lines.append(f"{name}: {'; '.join(' '.join(one.split()) for one in found)}")
        return "\n".join(lines)


def build_report(
    context: Context,
    *,
    policy: str,
    reason: str,
    tokens_before: int,
    messages_before: int,
    messages_after: int,
    budget: int = 0,
    steps: tuple[Step, ...] | None = None,
    at_message: int = 0,
    **more: Any,
) -> Report:
    """Build the report of a context that was compacted.

    ``steps`` are the strategies that ran; ``None`` for a context that was replaced as a whole. ``more`` are further
    fields.
    """
    after = context.projected_tokens
    report = Report(
        policy=policy,
        reason=reason,
        tokens_before=tokens_before,
        tokens_after=after,
        messages_before=messages_before,
        messages_after=messages_after,
        budget=budget,
        narrative=combined(context.narratives),
        steps=() if steps is None else _balanced(steps, tokens_before, after, at_message),
        actions=() if steps is None else tuple(context.actions()),
        notes="" if steps is None or context.summary_text is None else pivot_text(context),
    )
    return msgspec.structs.replace(report, **more)


_log = logging.getLogger("kompakt.compaction")

_listeners: list[Callable[[Report], None]] = []


def on_compaction(listener: Callable[[Report], None]) -> Callable[[], None]:
    """Call a function after every compaction; return a function that unregisters it."""
    _listeners.append(listener)

    def stop() -> None:
        if listener in _listeners:
            _listeners.remove(listener)

    return stop


def announce(report: Report) -> None:
    """Write a report to the log and to OpenTelemetry, and call the listeners."""
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
