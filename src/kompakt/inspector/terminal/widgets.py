"""Widgets: a table that fits its columns into its width, and the growth chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Generic

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import DataTable

from kompakt.inspector.terminal.chart import growth_lines
from kompakt.inspector.terminal.tables import Column, Row, layout

if TYPE_CHECKING:
    from kompakt.view.values import Growth


class Rows(DataTable[Text], Generic[Row]):
    """Shows rows by columns. Columns that do not fit are left out."""

    DEFAULT_CSS = "Rows { scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; height: 1fr; }"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("home", "scroll_top", "First", show=False),
        Binding("end", "scroll_bottom", "Last", show=False),
    ]

    def __init__(self, columns: Sequence[Column[Row]], *, id: str) -> None:
        super().__init__(id=id, cursor_type="row", zebra_stripes=False, show_row_labels=False)
        self._layout = columns
        self._width = 0
        self.items: list[Row] = []

    def show(self, items: Sequence[Row], *, cursor: int | None = None) -> None:
        """Replace the rows. The cursor stays at its place unless another is given."""
        self.items = list(items)
        self._rebuild(self.cursor_row if cursor is None else cursor)

    def append(self, items: Sequence[Row]) -> None:
        """Add rows at the end."""
        start = len(self.items)
        self.items += items
        self._fill(start)

    @property
    def current(self) -> Row | None:
        """Return the row under the cursor."""
        return self.items[self.cursor_row] if 0 <= self.cursor_row < len(self.items) else None

    def on_resize(self, event: Resize) -> None:
        """Choose the columns again for another width."""
        if event.size.width != self._width:
            self._rebuild(self.cursor_row)

    def _rebuild(self, cursor: int) -> None:
        self._width = self.size.width
        if not self._width:
            return  # not laid out yet; the first resize builds the table
        self.clear(columns=True)
        for column, width in layout(self._layout, self._width - 1):
            self.add_column(Text(column.title), width=width)
        self._fill(0)
        self.move_cursor(row=max(0, min(cursor, len(self.items) - 1)))

    def _fill(self, start: int) -> None:
        chosen = layout(self._layout, self._width - 1) if self._width else []
        for index, row in enumerate(self.items[start:], start):
            if chosen:
                self.add_row(*(column.cell(row, width) for column, width in chosen), key=str(index))


class GrowthChart(Widget):
    """Shows a ``Growth`` in all of its space."""

    DEFAULT_CSS = "GrowthChart { padding: 0 1; }"

    growth: Growth | None = None

    def show(self, growth: Growth) -> None:
        """Draw another growth."""
        self.growth = growth
        self.refresh()

    def render(self) -> Text:
        """Draw the chart for the current size."""
        if self.growth is None:
            return Text("loading…", style="dim")
        return Text("\n").join(growth_lines(self.growth, self.content_size.width, self.content_size.height))
