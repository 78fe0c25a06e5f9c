"""A measured row: what was asked of one session in one way, and how much of it held.

Every metric is told out of asked, so that one shape serves facts, needs, validity, restoring and all else.
"""

from __future__ import annotations

import msgspec

from kompakt.evals.measures.measure import Missed, Score

MOST_MISSED = 400
"""Misses that a row keeps for reading; the counts are complete."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One session, one cut, one way of compacting it."""

    measure: str
    """``told``, ``chains``, ``attack``, ``evidence``, ``compression``, ``bill`` or ``latency``."""
    mode: str
    """What stood in the context: kompakt at a size, a baseline, a real summary; or after how many passes."""
    session: str
    source: str
    at: int = 0
    """The cut, as a message of the session."""
    told: dict[str, int] = {}
    asked: dict[str, int] = {}
    missed: tuple[Missed, ...] = ()
    tokens: int = 0
    """Of what stood in the context."""
    budget: int = 0
    seconds: float = 0.0
    note: str = ""

    def share(self, kind: str) -> float | None:
        """Return how much of a kind held, where it was asked for."""
        asked = self.asked.get(kind, 0)
        return self.told.get(kind, 0) / asked if asked else None


def scored(row: Row, score: Score) -> Row:
    """Return a row with what was counted."""
    missed = tuple(score.missed[:MOST_MISSED])
    return msgspec.structs.replace(row, told=score.told, asked=score.asked, missed=missed)
