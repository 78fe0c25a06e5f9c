"""Say that a compaction happened: one log record, one event, one span.

The log record and the event cost nothing to set up; the span is made when OpenTelemetry is installed. Texts of the
conversation never appear in any of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from kompakt.engine.report import Report

_log = logging.getLogger("kompakt.compaction")

_listeners: list[Callable[[Report], None]] = []


def on_compaction(listener: Callable[[Report], None]) -> Callable[[], None]:
    """Call a function after every compaction; return what stops it."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def announce(report: Report) -> None:
    """Tell everyone who wants to know."""
    facts = {
        "policy": report.policy,
        "reason": report.reason,
        "messages_before": report.messages_before,
        "messages_after": report.messages_after,
        "tokens_before": report.tokens_before,
        "tokens_after": report.tokens_after,
        "strategies": ",".join(dict.fromkeys(step.strategy for step in report.steps)),
        "seconds": round(report.seconds, 6),
    }
    _log.info("compacted %(tokens_before)d to %(tokens_after)d tokens", facts, extra={"kompakt": facts})
    _trace(facts)
    for listener in tuple(_listeners):
        listener(report)


def _trace(facts: dict[str, Any]) -> None:
    if find_spec("opentelemetry") is None:
        return
    tracer = import_module("opentelemetry.trace").get_tracer("kompakt")
    with tracer.start_as_current_span("kompakt.compact") as span:
        for name, value in facts.items():
            span.set_attribute(f"kompakt.{name}", value)
