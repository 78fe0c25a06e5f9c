"""When a strategy is due: questions to a context that take constant time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from kompakt.engine.context import Context

Trigger: TypeAlias = Callable[[Context], bool]
"""Tells whether a strategy is due. Any predicate serves; keep it constant in time."""


def over_tokens(tokens: int) -> Trigger:
    """Be due when the request shown has more tokens than this."""
    return lambda context: context.tokens > tokens


def over_messages(messages: int) -> Trigger:
    """Be due when more messages than this are shown."""
    return lambda context: context.shown_messages > messages


def over_bytes(size: int) -> Trigger:
    """Be due when text and media shown have more bytes than this."""
    return lambda context: context.bytes > size


def every(steps: int) -> Trigger:
    """Be due at every so many steps of the run."""
    return lambda context: context.rounds > 0 and context.rounds % steps == 0


def always(context: Context) -> bool:
    """Be due whenever asked."""
    del context
    return True
