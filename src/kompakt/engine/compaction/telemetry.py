"""Say that a compaction happened: one log record, one event, one span.

The log record and the event cost nothing to set up; the span is made when OpenTelemetry is installed. Texts of the
conversation never appear in any of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from kompakt.engine.compaction.report import Report

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
