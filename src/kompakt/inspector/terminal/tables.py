"""The columns of every table, for the screens and for pipes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from rich.text import Text

from kompakt.inspector.terminal.cells import brief, fullness, line, moment, money, number, share
from kompakt.view.values import kind_name

if TYPE_CHECKING:
    from kompakt.view.status import CompactionStatus
    from kompakt.view.values import (
        CompactionView,
        MessageRow,
        RemovedItem,
        RepeatedContent,
        SessionRow,
    )

Row = TypeVar("Row")

LEAST_TITLE = 14
"""Columns that the flexible column of a table has at least."""


class Column(NamedTuple, Generic[Row]):
    """One column of a table. A width of 0 takes the rest of the line."""

    title: str
    width: int
    cell: Callable[[Row, int], Text]
    least: int = 0
    """Columns of the table from which this one is shown."""
    most: int = 10_000
    """Columns of the table up to which it is shown."""


def layout(columns: Sequence[Column[Row]], width: int, gap: int = 2) -> list[tuple[Column[Row], int]]:
    """Choose the columns that a width has room for, and their widths."""
    shown = [column for column in columns if column.least <= width <= column.most]
    rest = width - sum(column.width + gap for column in shown)
    return [(column, column.width or max(LEAST_TITLE, rest)) for column in shown]


SESSIONS: tuple[Column[SessionRow], ...] = (
    Column("session", 0, lambda row, width: line(row.title or row.id, width)),
    Column("client", 12, lambda row, width: line(row.client or "-", width), least=130),
    Column("model", 20, lambda row, width: line(row.model or "-", width), least=110),
    Column("fullness", 13, lambda row, _: fullness(row.fullness)),
    Column("tokens", 6, lambda row, _: brief(row.tokens), least=90),
    Column("steps", 5, lambda row, _: number(row.steps)),
    Column("comp.", 5, lambda row, _: number(row.compactions), most=99),
    Column("compactions", 11, lambda row, _: number(row.compactions), least=100),
    Column("saved", 6, lambda row, _: brief(row.tokens_saved)),
    Column("money", 8, lambda row, _: money(row.money_saved), least=100),
    Column("cached", 6, lambda row, _: share(row.cached), least=100),
    Column("last active", 11, lambda row, _: moment(row.last_activity)),
)

COMPACTIONS: tuple[Column[CompactionStatus], ...] = (
    Column("compaction", 14, lambda row, width: line(row.id, width)),
    Column("at", 11, lambda row, _: moment(row.at)),
    Column("before", 7, lambda row, _: brief(row.tokens_before)),
    Column("after", 7, lambda row, _: brief(row.tokens_after)),
    Column("reason", 0, lambda row, width: line(", ".join(filter(None, (row.reason, row.policy))), width)),
    Column("", 6, lambda row, _: Text("undone" if row.undone else "")),
)

SENT: tuple[Column[MessageRow], ...] = (
    Column("#", 6, lambda row, _: number(row.seq)),
    Column("role", 9, lambda row, width: line(row.role, width)),
    Column("message", 0, lambda row, width: line(row.title, width)),
    Column("kind", 12, lambda row, width: line(row.tool or kind_name(row.kind), width), least=70),
    Column("", 9, lambda row, _: Text("shortened" if row.state == "shortened" else ""), least=60),
    Column("tokens", 7, lambda row, _: number(row.tokens)),
)

LARGEST: tuple[Column[MessageRow], ...] = (
    Column("largest", 0, lambda row, width: line(row.title, width)),
    Column("kind", 12, lambda row, width: line(row.tool or kind_name(row.kind), width), least=44),
    Column("tokens", 7, lambda row, _: number(row.tokens)),
)

REPEATED: tuple[Column[RepeatedContent], ...] = (
    Column("repeated", 0, lambda row, width: line(row.title, width)),
    Column("times", 5, lambda row, _: number(row.count)),
    Column("tokens", 7, lambda row, _: number(row.tokens)),
)

REMOVED: tuple[Column[RemovedItem], ...] = (
    Column("removed", 0, lambda row, width: line(row.title, width)),
    Column("kind", 12, lambda row, width: line(kind_name(row.kind), width), least=60),
    Column("tokens", 6, lambda row, _: brief(row.tokens)),
    Column("pivot", 5, lambda row, _: Text(f"{len(row.pivot_lines)}" if row.pivot_lines else "-", justify="right")),
    Column("recall", 6, lambda row, _: Text("yes", "green") if row.recallable else Text("NO", "bold red")),
)


def pivot_lines(item: RemovedItem) -> str:
    """Name the lines of the pivot that mention a removed item."""
    if not item.pivot_lines:
        return "not in the pivot"
    return f"pivot line{'s' * (len(item.pivot_lines) > 1)} {', '.join(map(str, item.pivot_lines))}"


def losses(view: CompactionView) -> Text:
    """Say whether everything that a compaction removed can be recalled."""
    if view.unrecoverable:
        return Text(f"{len(view.unrecoverable)} removed items CANNOT be recalled", style="bold red")
    return Text("Unrecoverable items: none. Recall returns every removed item.", style="green")
