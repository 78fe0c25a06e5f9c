"""Rows, medians and tables of benchmarks."""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

import kompakt

RESULTS = Path(__file__).parent / "results"

PACKAGES = ("msgspec", "rs-bpe", "splintr-rs", "agent-framework-core", "langchain-core", "langchain", "litellm")
"""Packages that results depend on; installed versions are stored with the results."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One number and its goal."""

    name: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    peer: bool = False
    """Whether this is a number of another library."""
    note: str = ""
    low: float | None = None
    high: float | None = None
    """The least and the greatest of the runs that the value is the median of."""

    @property
    def verdict(self) -> str:
        """Whether the goal is met."""
        if self.at_most is not None:
            return "met" if self.value <= self.at_most else "MISSED"
        if self.at_least is not None:
            return "met" if self.value >= self.at_least else "MISSED"
        return "peer" if self.peer else ""

    @property
    def goal(self) -> str:
        """Show the goal."""
        if self.at_most is not None:
            return f"≤ {self.at_most:g}"
        return f"≥ {self.at_least:g}" if self.at_least is not None else ""


class Spread(msgspec.Struct, frozen=True):
    """The median of several runs and their range."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Spread:
        """Return the same in another unit."""
        return Spread(self.value * factor, self.low * factor, self.high * factor)


def spread(values: Iterable[float]) -> Spread:
    """Sum up the runs of one measurement."""
    found = sorted(values)
    return Spread(statistics.median(found), found[0], found[-1])


def seconds(function: Callable[[], Any]) -> float:
    """Time one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def time_runs(function: Callable[[], Any], *, runs: int = 7) -> Spread:
    """Time several calls."""
    return spread(seconds(function) for _ in range(runs))


def compare_runs(function: Callable[[], Any], base: Callable[[], Any], *, runs: int = 9) -> Spread:
    """Time two functions in turn and take the ratios, so that a busy machine slows both."""
    return spread(seconds(function) / seconds(base) for _ in range(runs))


def row(name: str, found: Spread, unit: str, **more: Any) -> Row:
    """Make the row of a measurement."""
    return Row(name=name, value=found.value, low=found.low, high=found.high, unit=unit, **more)


def show(area: str, rows: Sequence[Row]) -> None:
    """Print an area's rows as a table."""
    table = Table(title=area, title_justify="left")
    table.add_column("what")
    table.add_column("median", justify="right")
    table.add_column("runs", justify="right")
    table.add_column("unit")
    table.add_column("goal", justify="right")
    table.add_column("")
    for one in rows:
        runs = "" if one.low is None or one.high is None else f"{_number(one.low)} – {_number(one.high)}"
        table.add_row(one.name, _number(one.value), runs, one.unit, one.goal, one.verdict)
        if one.note:
            table.add_row(f"  [dim]{one.note}[/dim]")
    Console().print(table)


def _number(value: float) -> str:
    return f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def save(area: str, rows: Sequence[Row], *, directory: Path = RESULTS, **more: Any) -> None:
    """Write the rows of an area as JSON, with package versions."""
    directory.mkdir(parents=True, exist_ok=True)
    record = {
        "area": area,
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "load": round(os.getloadavg()[0], 2),
        "kompakt": kompakt.__version__,
        "versions": _versions(),
        "rows": [{**msgspec.to_builtins(one), "verdict": one.verdict} for one in rows],
        **more,
    }
    (directory / f"{area}.json").write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
