"""Jobs on many sessions: compact, evaluate, check, and cut training samples, on local processes or on Ray.

summary = kompakt.fleet.run("compact", "sessions/", "out/", budgets=50_000)
for row in kompakt.fleet.rows("out/"):
    ...
"""

from __future__ import annotations

from pathlib import Path

from kompakt.fleet.output import read_rows
from kompakt.fleet.rows import FleetRow
from kompakt.fleet.run import run
from kompakt.fleet.sources import StoreSelection
from kompakt.fleet.summary import FleetSummary, VariantSummary

__all__ = ["FleetRow", "FleetSummary", "StoreSelection", "VariantSummary", "rows", "run"]


def rows(out: str | Path) -> list[FleetRow]:
    """Read the rows of a job from its folder, sorted by source, id, policy and budget.

    If a session ran several times with the same policy and budget, the rows of the last run count.

    Raises:
        UsageError: pyarrow is not installed.
    """
    return read_rows(Path(out))
