"""Progress of a fleet job on standard error, and its summary on standard output."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kompakt.cli.output import console, table
from kompakt.errors import plural

if TYPE_CHECKING:
    from rich.table import Table

    from kompakt.fleet import FleetSummary
    from kompakt.fleet.summary import VariantSummary

KINDS = ("command", "constraint", "failure", "modified", "need", "precision")
"""What the job ``evaluate`` measures."""

LINE_SECONDS = 5.0
"""Interval of the progress lines when standard error is not a terminal."""


class FleetProgress:
    """Progress on standard error: a bar with rate and remaining time on a terminal, else a line every few seconds."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._bar: Any = None
        self._task: Any = None
        self._began = self._printed = time.monotonic()
        self._done = self._total = 0

    def __call__(self, done: int, total: int, errors: int) -> None:
        self._done, self._total = done, total
        failed = f", {plural(errors, 'error')}" if errors else ""
        if sys.stderr.isatty():
            self._show_bar(done, total, f"{self._rate(done)}{failed}")
            return
        now = time.monotonic()
        if total and now - self._printed >= LINE_SECONDS:
            self._printed = now
            left = (total - done) * (now - self._began) / done if done else None
            remaining = "" if left is None else f", {_clock(left)} left"
            typer.echo(f"{done:,} of {total:,} sessions, {self._rate(done)}{remaining}{failed}", err=True)

    def _rate(self, done: int) -> str:
        return f"{done / max(0.001, time.monotonic() - self._began):.1f}/s"

    def _show_bar(self, done: int, total: int, text: str) -> None:
        from rich.console import Console  # late: `--help` does not need it
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        if self._bar is None:
            columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(text, total=total)
            self._bar.start()
        self._bar.update(self._task, completed=done, description=text)

    def __enter__(self) -> FleetProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if kind is KeyboardInterrupt:
            saved = f"{self._done:,} of {self._total:,} sessions are saved in {self._out}"
            typer.echo(f"kompakt: interrupted; {saved}; run the command again to continue", err=True)
            raise typer.Exit(130) from None


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _variants(title: str, summary: FleetSummary, values: Mapping[str, Callable[[VariantSummary], str]]) -> Table:
    """Return a table with a row for each policy and budget; columns without a value are left out."""
    names: dict[str, Callable[[VariantSummary], str]] = {
        "policy": lambda one: one.policy or "",
        "budget": lambda one: "" if one.budget is None else f"{one.budget:,}",
    }
    columns = {name: [value(one) for one in summary.variants] for name, value in {**names, **values}.items()}
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    made = table(title, *columns, numbers=tuple(name for name in columns if name != "policy"))
    for cells in zip(*columns.values(), strict=True):
        made.add_row(*cells)
    return made


def show_summary(summary: FleetSummary) -> None:
    shown = console()
    title = f"{summary.job}: {plural(summary.rows, 'row')} in {summary.out}"
    shown.print(
        _variants(
            title,
            summary,
            {
                "rows": lambda one: f"{one.rows:,}",
                "errors": lambda one: f"{one.errors:,}",
                "too large": lambda one: f"{one.unfit:,}",
                "invalid": lambda one: f"{one.invalid:,}",
                "tokens": lambda one: f"{one.tokens_before:,}" if one.tokens_before else "",
                "compacted": lambda one: f"{one.tokens_after:,}" if one.tokens_before else "",
            },
        )
    )
    if any(one.measures for one in summary.variants):
        shown.print(
            _variants(
                "share that the compacted sessions still have",
                summary,
                {
                    kind: lambda one, kind=kind: f"{one.measures[kind]:.1%}" if kind in one.measures else ""
                    for kind in KINDS
                },
            )
        )
    for line in summary.examples:
        typer.echo(line, err=True)
    if summary.errors > len(summary.examples):
        typer.echo(f"… and {summary.errors - len(summary.examples):,} more errors", err=True)
    skipped = f", {summary.skipped:,} were finished before" if summary.skipped else ""
    done = plural(summary.inputs - summary.skipped, "input")
    typer.echo(f"{done} in {summary.seconds:.1f} s ({summary.rate:.1f}/s){skipped}", err=True)
    if summary.plot is not None:
        typer.echo(f"sizes: {summary.plot}", err=True)
