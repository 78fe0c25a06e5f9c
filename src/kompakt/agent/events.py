"""What happens in a run, as it happens: for whoever streams it."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from kompakt.engine.compaction.report import Report
from kompakt.model.budget import Usage


class Spoke(msgspec.Struct, frozen=True):
    """A piece of the answer."""

    text: str


class Thought(msgspec.Struct, frozen=True):
    """A piece of the reasoning."""

    text: str


class Called(msgspec.Struct, frozen=True):
    """The model calls a tool."""

    id: str
    name: str
    input: str


class Answered(msgspec.Struct, frozen=True):
    """A tool has answered."""

    id: str
    name: str
    output: str
    is_error: bool = False


class Stepped(msgspec.Struct, frozen=True):
    """A model call is over."""

    number: int
    usage: Usage


class Compacted(msgspec.Struct, frozen=True):
    """The history was compacted."""

    id: str
    report: Report | None


class Recovered(msgspec.Struct, frozen=True):
    """A request was too long; the round that brought it was cut and the request sent again."""

    round: str
    tokens: int
    """What the history was brought down to."""


class Result(msgspec.Struct, frozen=True):
    """A run that is over."""

    text: str
    """What the model said last."""
    session: str
    steps: int
    """Model calls."""
    usage: Usage
    """What was paid for in all."""
    stop: str
    """Why it ended: ``end``, ``length``, ``refused``, or ``steps`` when it had as many as it may."""


RunEvent: TypeAlias = Spoke | Thought | Called | Answered | Stepped | Compacted | Recovered | Result
"""Anything that happens in a run; a result is the last."""
