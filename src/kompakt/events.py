"""The events that ``Agent.stream`` yields, in the order in which they happen; the last is the ``Result``."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from kompakt.engine.compaction.report import Report
from kompakt.model.budget import Usage

__all__ = ["Answered", "Called", "Compacted", "Recovered", "Result", "RunEvent", "Spoke", "Stepped", "Thought"]


class Spoke(msgspec.Struct, frozen=True):
    """A piece of the answer's text."""

    text: str


class Thought(msgspec.Struct, frozen=True):
    """A piece of the model's reasoning."""

    text: str


class Called(msgspec.Struct, frozen=True):
    """The model called a tool."""

    id: str
    name: str
    input: str


class Answered(msgspec.Struct, frozen=True):
    """A tool returned its result."""

    id: str
    name: str
    output: str
    is_error: bool = False


class Stepped(msgspec.Struct, frozen=True):
    """A model call is complete."""

    number: int
    usage: Usage


class Compacted(msgspec.Struct, frozen=True):
    """The history was compacted."""

    id: str
    report: Report | None


class Recovered(msgspec.Struct, frozen=True):
    """A request was too long. The round that caused it was shortened; the request is sent again."""

    round: str
    tokens: int
    """Tokens of the history after shortening."""


class Result(msgspec.Struct, frozen=True):
    """The end of a run."""

    text: str
    """Text of the last answer."""
    session: str
    steps: int
    """Number of model calls."""
    usage: Usage
    """Tokens paid for in the whole run."""
    stop: str
    """Why the run ended: ``end``, ``length``, ``refused``, ``steps`` when it reached ``max_steps``, or ``recalls`` when
    the model only called the recall tool, even after it was no longer offered."""


RunEvent: TypeAlias = Spoke | Thought | Called | Answered | Stepped | Compacted | Recovered | Result
"""Any event of a run; the last one is a ``Result``."""
