"""Plots of the results as PNG and SVG. Needs matplotlib: install ``kompakt[evals]``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from kompakt.evals.facts import KINDS
from kompakt.evals.measures.retention import PASSES, SUMMARY, TENTH
from kompakt.evals.measures.score import SCORED_KINDS
from kompakt.evals.results import Metric, chain_share

_SETTINGS: dict[Any, Any] = {"svg.hashsalt": "kompakt", "font.size": 9}
"""The salt makes the ids in an SVG the same in every run."""


def draw(found: Sequence[Metric], out: Path) -> list[Path]:
    """Draw every plot that has data and return the files."""
    pictures = {
        "retention-10": _retention(found, TENTH),
        "retention-summary": _retention(found, SUMMARY),
        "spread": _spread(found),
        "chains": _chains(found),
    }
    written: list[Path] = []
    with mpl.rc_context(_SETTINGS):
        for name, figure in pictures.items():
            if figure is None:
                continue
            for suffix in ("png", "svg"):
                path = out / f"{name}.{suffix}"
                figure.savefig(path, dpi=150, metadata={"Date": None} if suffix == "svg" else None)
                written.append(path)
    return written


def _axes(title: str, width: float = 10.0) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _retention(found: Sequence[Metric], size: str) -> Figure | None:
    shares = {
        (one.mode, one.kind): one.share for one in found if one.measure == "retention" and one.mode.endswith(size)
    }
    modes = sorted(dict.fromkeys(mode for mode, _ in shares), key=lambda mode: not mode.startswith("kompakt"))
    if not modes:
        return None
    figure, axes = _axes(f"Retention at {size}", width=12)
    width = 0.85 / len(modes)
    for place, mode in enumerate(modes):
        heights = [shares.get((mode, kind), 0.0) for kind in SCORED_KINDS]
        places = [index + place * width for index in range(len(SCORED_KINDS))]
        axes.bar(places, heights, width, label=mode.removesuffix(f", {size}"))
    axes.set_xticks(
        [index + 0.4 for index in range(len(SCORED_KINDS))], [kind.replace(", ", ",\n") for kind in SCORED_KINDS]
    )
    axes.legend(fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.12))
    return figure


def _spread(found: Sequence[Metric]) -> Figure | None:
    """Draw median, tenth percentile and minimum of each kind."""
    chosen = {one.kind: one for one in found if one.measure == "retention" and one.mode == f"kompakt, {TENTH}"}
    kinds = [kind for kind in SCORED_KINDS if kind in chosen]
    if not kinds:
        return None
    figure, axes = _axes(f"Over sessions and cuts, at {TENTH}")
    for mark, label in (("o", "median"), ("v", "p10"), ("x", "least")):
        values = [getattr(chosen[kind], label) for kind in kinds]
        axes.plot(range(len(kinds)), values, mark, label=label)
    axes.set_xticks(range(len(kinds)), kinds, rotation=20)
    axes.legend()
    return figure


def _chains(found: Sequence[Metric]) -> Figure | None:
    """Draw retention after each number of passes."""
    groups = (("facts", KINDS), ("forward need", ("need",)), ("constraints", ("constraint",)))
    figure, axes = _axes("After repeated compaction", width=7)
    drawn = False
    for label, kinds in groups:
        points = [(n, s) for n in PASSES if (s := chain_share(found, n, lambda kind, k=kinds: kind in k)) is not None]
        if points:
            drawn = True
            axes.plot([point[0] for point in points], [point[1] for point in points], "o-", label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(PASSES, [str(passes) for passes in PASSES])
    axes.set_xlabel("compactions")
    if drawn:
        axes.legend()
    return figure if drawn else None
