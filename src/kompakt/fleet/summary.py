"""The summary of a finished job, computed from its rows, and the plot of sizes before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kompakt.fleet.rows import WINDOW, FleetRow

MAX_ERRORS = 10
"""Errors that a summary quotes."""

BAR = 40
"""Characters of the longest bar of the text plot."""

PLOT = "sizes"


class VariantSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one policy and budget."""

    policy: str | None
    budget: int | None
    rows: int
    errors: int
    changed: int
    """Rows with a compaction."""
    unfit: int
    """Rows that do not fit the budget."""
    invalid: int
    """Rows with problems."""
    tokens_before: int
    tokens_after: int
    """Sums over the rows that have both."""
    measures: dict[str, float] = {}
    """For ``evaluate``: the share of each kind that a compacted context still has, over the compacted sessions."""


class FleetSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a job has done."""

    job: str
    out: str
    inputs: int
    """Inputs of the source."""
    skipped: int
    """Inputs that were finished before this run."""
    new_rows: int
    rows: int
    """Rows of the folder, also those of earlier runs."""
    errors: int
    problems: int
    """Rows with problems."""
    seconds: float
    """Duration of this run."""
    variants: tuple[VariantSummary, ...]
    examples: tuple[str, ...]
    """The first errors, each with the id of its session."""
    plot: str | None = None
    """The file with the plot of sizes."""
    interrupted: bool = False

    @property
    def rate(self) -> float:
        """Return the inputs per second of this run."""
        return (self.inputs - self.skipped) / self.seconds if self.seconds else 0.0


def summarize_variants(rows: Sequence[FleetRow]) -> tuple[VariantSummary, ...]:
    """Summarise rows by policy and budget."""
    found: dict[tuple[str | None, int | None], list[FleetRow]] = {}
    for row in rows:
        found.setdefault((row.policy, row.budget), []).append(row)
    order = sorted(found, key=lambda key: (key[0] or "", key[1] or 0))
    return tuple(_variant(policy, budget, found[policy, budget]) for policy, budget in order)


def _variant(policy: str | None, budget: int | None, rows: Sequence[FleetRow]) -> VariantSummary:
    sized = [row for row in rows if row.tokens_before is not None and row.tokens_after is not None]
    sessions = {session_of(row): row.tokens_before or 0 for row in sized}
    return VariantSummary(
        policy=policy,
        budget=budget,
        rows=len(rows),
        errors=sum(row.error is not None for row in rows),
        changed=sum(row.changed is True for row in rows),
        unfit=sum(row.fits is False for row in rows),
        invalid=sum(bool(row.problems) for row in rows),
        tokens_before=sum(sessions.values()),
        tokens_after=sum(row.tokens_after or 0 for row in sized),
        measures=_shares(row.measures for row in rows if row.changed and row.measures is not None),
    )


def session_of(row: FleetRow) -> str:
    """Return the session that a row is about; several windows are of one session."""
    return row.id.rpartition(WINDOW)[0] or row.id if row.job == "samples" else row.id


def _shares(measures: Iterable[str | None]) -> dict[str, float]:
    passed, total = Counter[str](), Counter[str]()
    for text in measures:
        for kind, (some, all_) in msgspec.json.decode(text or "{}", type=dict[str, tuple[int, int]]).items():
            passed[kind] += some
            total[kind] += all_
    return {kind: round(passed[kind] / number, 4) for kind, number in sorted(total.items()) if number}


def error_examples(rows: Iterable[FleetRow]) -> tuple[str, ...]:
    """Return the first errors in one line each."""
    found = (f"{row.id}: {row.error}" for row in rows if row.error is not None)
    return tuple(line for line, _ in zip(found, range(MAX_ERRORS), strict=False))


# --- plot --------------------------------------------------------------------------------------------------------


def draw_sizes(rows: Sequence[FleetRow], folder: Path) -> Path | None:
    """Write a plot of the sizes before and after: a picture if matplotlib is installed, else a text."""
    sessions = {(session_of(row), row.policy, row.budget): row.tokens_before for row in rows}
    before = [size for size in sessions.values() if size]
    after = [row.tokens_after for row in rows if row.tokens_after]
    if not before:
        return None
    try:
        from matplotlib.figure import Figure
    except ImportError:
        path = folder / f"{PLOT}.txt"
        path.write_text(text_plot(before, after), encoding="utf-8")
        return path
    path = folder / f"{PLOT}.png"
    figure: Any = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    lowest, highest = min(before + after).bit_length() - 1, max(before + after).bit_length()
    bins = [2**power for power in range(lowest, highest + 1)]
    axes.hist([before, after] if after else [before], bins=bins, label=["before", "after"] if after else ["tokens"])
    axes.set_xscale("log", base=2)
    axes.set_xticks(bins, [_short(size) for size in bins], rotation=45)
    axes.set_xlabel("tokens")
    axes.set_ylabel("rows")
    axes.legend()
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    return path


def text_plot(before: Sequence[int], after: Sequence[int]) -> str:
    """Return a histogram as text: one line per power of two, with the rows before and after."""
    sizes = [Counter(size.bit_length() - 1 for size in side) for side in (before, after)]
    powers = range(min(min(side) for side in sizes if side), max(max(side) for side in sizes if side) + 1)
    most = max(max(side.values()) for side in sizes if side)
    lines = ["tokens        rows"]
    for power in powers:
        for name, side in zip(("before", "after"), sizes, strict=True):
            bar = "#" * -(-side[power] * BAR // most)
            size = _short(2**power) if name == "before" else ""
            lines.append(f"{size:>6} {name:<6} {bar} {side[power] or ''}".rstrip())
    return "\n".join(lines) + "\n"


def _short(size: int) -> str:
    for unit, name in ((1 << 20, "M"), (1 << 10, "k")):
        if size >= unit:
            return f"{size // unit}{name}"
    return str(size)
