"""The growth of a context over its steps as stacked columns of block characters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from rich.style import Style
from rich.text import Text

from kompakt.inspector.terminal.cells import short
from kompakt.view.values import kind_name

if TYPE_CHECKING:
    from kompakt.view.values import Growth, GrowthPoint

COLORS = {
    "system": "#7c6fd0",
    "tools": "#3f8fd2",
    "user": "#2fa56b",
    "assistant": "#d9a53c",
    "tool_results": "#d0663f",
    "ledger": "#b65fa8",
}
"""Colours of the kinds, readable on dark and on light backgrounds."""

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_AXIS = 6
"""Columns left of the chart: a number of tokens and a line."""


def growth_lines(growth: Growth, width: int, height: int, *, colored: bool = True) -> list[Text]:
    """Draw a growth: ``height`` lines, of which the last three are compactions, steps and the legend.

    Without colours the columns show totals, because kinds cannot be distinguished.
    """
    rows, columns = max(1, height - 3), max(1, width - _AXIS)
    points = growth.points
    if not points:
        return [Text("no steps yet")]
    chosen = _spread(points, columns)
    top = max(1, max(point.total for point in points), _limit_in_sight(growth))
    stacks = [_stack(growth.kinds, point, top, rows * 8) for point in chosen]
    if not colored:
        stacks = [[kind and "" for kind in stack] for stack in stacks]
    trigger_row = _row_of(growth.trigger, top, rows)
    lines = [_line(stacks, row, rows, top, columns, dashed=row == trigger_row) for row in reversed(range(rows))]
    marks, count = _marks(growth, chosen, columns)
    lines.append(marks)
    first, last = str(points[0].step), f"{points[-1].step} step{'s' * (points[-1].step != 1)}"
    room = len(chosen) - len(first)
    labels = first + last.rjust(room) if room > len(last) else last
    lines.append(Text(" " * _AXIS + labels, style="dim", no_wrap=True))
    lines.append(_legend(growth, count, colored=colored))
    return lines


def _limit_in_sight(growth: Growth) -> int:
    """Return the trigger if the context has come near to it, so that the chart shows it."""
    most = max(point.total for point in growth.points)
    return growth.trigger if growth.trigger and most >= growth.trigger / 2 else 0


def _spread(points: Sequence[GrowthPoint], columns: int) -> list[GrowthPoint]:
    """Choose one point for each column: the largest of its range, and the newest. Few points become wide columns."""
    if len(points) <= columns:
        wide = min(4, columns // len(points))
        return [point for point in points for _ in range(wide)]
    edges = [index * len(points) // columns for index in range(columns + 1)]
    chosen = [max(points[start:end], key=lambda point: point.total) for start, end in pairwise(edges)]
    return [*chosen[:-1], points[-1]]


def _stack(kinds: Sequence[str], point: GrowthPoint, top: int, eighths: int) -> list[str | None]:
    """Return the kind at each eighth of a row, from the bottom to the top; ``None`` above the column."""
    stack: list[str | None] = []
    total = 0
    for kind in kinds:
        total += point.tokens.get(kind, 0)
        stack += [kind] * (round(total * eighths / top) - len(stack))
    return (stack + [None] * eighths)[:eighths]


def _line(stacks: list[list[str | None]], row: int, rows: int, top: int, columns: int, *, dashed: bool) -> Text:
    """Draw one row of all columns."""
    label = short(top * (row + 1) / rows) if row == rows - 1 or row == (rows - 1) // 2 else ""
    line = Text(no_wrap=True).append(f"{label:>{_AXIS - 1}}│", style="dim")
    for stack in stacks:
        cell = stack[row * 8 : row * 8 + 8]
        filled = [kind for kind in cell if kind is not None]
        if not filled:
            line.append("╌" if dashed else " ", style="red" if dashed else "")
        elif len(filled) < 8:  # the top of a column: one colour, on the background
            line.append(_EIGHTHS[len(filled)], style=COLORS.get(_most(filled), ""))
        else:  # at most two colours fit into a cell
            share = filled.index(filled[-1]) if filled[-1] != filled[0] else 8
            upper = COLORS.get(_most(filled[share:])) if share < 8 else None
            line.append(_EIGHTHS[share], style=Style(color=COLORS.get(_most(filled[:share])), bgcolor=upper))
    if dashed:
        line.append("╌" * (columns - len(stacks)), style="red")
    return line


def _most(kinds: list[str]) -> str:
    return max(kinds, key=kinds.count)


def _row_of(limit: int | None, top: int, rows: int) -> int | None:
    return None if not limit or limit > top else min(rows - 1, limit * rows // top)


def _marks(growth: Growth, chosen: list[GrowthPoint], columns: int) -> tuple[Text, int]:
    """Mark the columns of compactions below the chart; the last one also with its sizes."""
    cells = ["─"] * max(1, len(chosen))
    steps = [point.step for point in chosen]
    for mark in growth.compactions:
        place = next((index for index, step in enumerate(steps) if step >= mark.step), len(steps) - 1)
        cells[place] = "▲"
    line = Text(no_wrap=True).append(" " * (_AXIS - 1) + "└", style="dim")
    for cell in cells[:columns]:
        line.append(cell, style="bold red" if cell == "▲" else "dim")
    return line, len(growth.compactions)


def _legend(growth: Growth, compactions: int, *, colored: bool) -> Text:
    legend = Text(no_wrap=True)  # from the left edge: all of it fits into 80 columns
    if compactions:
        legend.append("▲ ", style="bold red").append("compaction ")
    for kind in growth.kinds if colored else ():
        if any(point.tokens.get(kind) for point in growth.points):
            legend.append("■ ", style=COLORS.get(kind)).append(kind_name(kind).removeprefix("tool ") + " ")
    if growth.trigger and _limit_in_sight(growth):
        legend.append("╌ ", style="red").append(f"due {short(growth.trigger)}")
    return legend
