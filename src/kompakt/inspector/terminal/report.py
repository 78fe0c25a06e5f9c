"""Sessions as printed tables, for pipes and ``--once``. The columns are those of the screens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from kompakt.inspector.terminal.cells import fullness, line, money, number, part
from kompakt.inspector.terminal.chart import growth_lines
from kompakt.inspector.terminal.tables import (
    COMPACTIONS,
    LARGEST,
    REMOVED,
    REPEATED,
    SESSIONS,
    Column,
    Row,
    layout,
    losses,
)

if TYPE_CHECKING:
    from kompakt.view.inspection import Inspection
    from kompakt.view.values import CompactionView, ContextNode, ContextView, SessionDetail, SessionRow

CHART_HEIGHT = 14
"""Lines of a printed growth chart."""


async def print_list(inspection: Inspection, console: Console, most: int) -> None:
    """Print the list of sessions, newest first."""
    rows: list[SessionRow] = []
    cursor: str | None = None
    while len(rows) < most:
        page = await inspection.sessions(cursor=cursor, limit=100)
        rows += page.rows
        cursor = page.next
        if cursor is None:
            break
    console.print(_table(SESSIONS, rows[:most], console, f"{len(rows):,} session{'s' * (len(rows) != 1)}"))
    if cursor is not None:
        console.print(Text(f"only the newest {most:,} sessions are shown", "dim"))


async def print_session(inspection: Inspection, session: str, console: Console) -> None:
    """Print one session: size, growth, what it consists of now, and every compaction."""
    detail = await inspection.session(session)
    console.print(_facts(detail))
    console.print()
    growth = await inspection.growth(session)
    colored = console.color_system is not None
    for drawn in growth_lines(growth, min(console.width, 120), CHART_HEIGHT, colored=colored):
        console.print(drawn, no_wrap=True, crop=True)
    view = await inspection.context(session)
    console.print(_context_table(view))
    console.print(_table(LARGEST, view.largest, console))
    if view.repeated:
        console.print(_table(REPEATED, view.repeated, console))
    if detail.compactions:
        console.print(_table(COMPACTIONS, detail.compactions, console, "compactions"))
    for one in detail.compactions:
        console.print(_compaction(await inspection.compaction(session, one.id), console))


def _facts(detail: SessionDetail) -> Table:
    """Return the numbers of a session below each other."""
    row, cache = detail.row, detail.cache
    billed = f"{cache.fresh:,} fresh, {cache.cached:,} cached, {cache.written:,} written, {cache.output:,} output"
    values = {
        "session": line(row.id),
        "title": line(row.title),
        "client": line(row.client or "-"),
        "model": line(row.model or "-"),
        "format": line(row.format),
        "tokens": number(row.tokens),
        "window": number(row.window),
        "fullness": fullness(row.fullness),
        "messages": number(detail.messages),
        "turns": number(detail.turns),
        "steps": number(row.steps),
        "compactions": number(row.compactions),
        "tokens saved": number(row.tokens_saved),
        "money saved": money(row.money_saved),
        "messages to recall": number(detail.recallable),
        "billed tokens": Text(billed + ("" if cache.reported else " (estimated)")),
        "last activity": line(row.last_activity),
    }
    made = Table.grid(padding=(0, 2))
    for name, value in values.items():
        value.justify = "left"
        made.add_row(Text(name, "dim"), value)
    for pin in detail.pins:
        made.add_row(Text("pinned", "dim"), line(pin, 200))
    return made


def _table(columns: Sequence[Column[Row]], rows: Sequence[Row], console: Console, title: str = "") -> Table:
    """Return a table for a console: as wide as it, all columns that fit."""
    chosen = layout(columns, console.width - 1, gap=3)
    made = Table(title=Text(title) if title else None, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 1))
    made.pad_edge = False
    for column, width in chosen:
        made.add_column(Text(column.title), no_wrap=True, width=width)
    for row in rows:
        made.add_row(*(column.cell(row, width) for column, width in chosen))
    return made


def _context_table(view: ContextView) -> Table:
    """Return the tree of a context, down to the tools, with token shares."""
    made = Table(title="current context", title_justify="left", box=box.SIMPLE_HEAD)
    made.add_column("part", no_wrap=True)
    made.add_column("tokens", justify="right")
    made.add_column("share")

    def add(node: ContextNode, depth: int) -> None:
        made.add_row(Text("  " * depth).append_text(line(node.name, 60)), number(node.tokens), part(node.tokens, total))
        for child in node.children:
            if child.children or child.seq is None:
                add(child, depth + 1)

    total = max(1, view.tree.tokens)
    for child in view.tree.children:
        add(child, 0)
    return made


def _compaction(view: CompactionView, console: Console) -> Group:
    """Return a compaction: sizes, removed items, and the pivot."""
    sizes = f"compaction {view.id}: {view.tokens_before or 0:,} to {view.tokens_after or 0:,} tokens"
    pivot = Text("\n").join(Text(f"{row.line:>4}  ", "dim").append_text(line(row.text)) for row in view.pivot)
    return Group(_table(REMOVED, view.removed, console, sizes), losses(view), Text(), pivot, Text())
