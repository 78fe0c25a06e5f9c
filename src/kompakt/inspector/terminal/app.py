"""The terminal inspector: the list of sessions, from which one opens the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static

from kompakt.errors import KompaktError
from kompakt.inspector.terminal.dialogs import HelpScreen
from kompakt.inspector.terminal.session import SessionScreen
from kompakt.inspector.terminal.tables import SESSIONS
from kompakt.inspector.terminal.widgets import Rows
from kompakt.view.visible import cleaned

if TYPE_CHECKING:
    from kompakt.view.inspection import Inspection
    from kompakt.view.values import SessionRow

PAGE = 100
"""Sessions that are read at once."""

MOST = 500
"""Sessions that are read again after a change."""


class SessionsScreen(Screen[None]):
    """The list of sessions."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("escape", "clear_filter", "All", show=False),
        Binding("r,f5", "reload", "Reload"),
    ]

    def __init__(self, inspection: Inspection) -> None:
        super().__init__()
        self.inspection = inspection
        self._next: str | None = None

    def compose(self) -> ComposeResult:
        """Lay out the filter above the list."""
        yield Static(Text(" kompakt inspect", "bold"), id="title")
        yield Input(placeholder="filter sessions", id="filter", compact=True)
        yield Rows(SESSIONS, id="sessions")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Load the first page."""
        self.query_one("#filter").display = False
        self.query_one("#sessions").focus()
        self.load(more=False)
        self.follow()

    @work(group="follow")
    async def follow(self) -> None:
        """Show new and changed sessions as they appear."""
        try:
            async for changed in self.inspection.changes():
                if changed:
                    self.load(more=False)
        except KompaktError as error:
            self.app.notify(f"no longer followed: {cleaned(str(error))}", severity="error", markup=False)

    @work(group="list", exclusive=True)
    async def load(self, *, more: bool) -> None:
        """Load the first page of the sessions, or the next one."""
        query = self.query_one("#filter", Input).value
        table: Rows[SessionRow] = self.query_one("#sessions", Rows)
        limit = PAGE if more else min(MOST, max(PAGE, len(table.items)))
        try:
            page = await self.inspection.sessions(query=query, cursor=self._next if more else None, limit=limit)
        except KompaktError as error:
            self.app.notify(cleaned(str(error)), severity="error", markup=False)
            return
        self._next = page.next
        if more:
            table.append(page.rows)
        else:
            chosen = table.current
            places = [index for index, row in enumerate(page.rows) if chosen is not None and row.id == chosen.id]
            table.show(page.rows, cursor=places[0] if places and table.cursor_row else None)
        count = f"{page.total:,}" if page.total is not None else f"{len(table.items):,}" + "+" * bool(page.next)
        title = Text().append(" kompakt inspect", "bold").append(f"   {count} session{'s' * (count != '1')}", "dim")
        if query:
            title.append("   filter: ", "dim").append(query)
        self.query_one("#title", Static).update(title)

    def action_reload(self) -> None:
        """Read the list again."""
        self.load(more=False)

    def action_filter(self) -> None:
        """Show the filter."""
        self.query_one("#filter").display = True
        self.query_one("#filter").focus()

    def action_clear_filter(self) -> None:
        """Show all sessions again."""
        entry = self.query_one("#filter", Input)
        entry.value = ""
        entry.display = False
        self.query_one("#sessions").focus()

    def on_input_changed(self) -> None:
        """Filter while the person types."""
        self.load(more=False)

    def on_input_submitted(self) -> None:
        """Go to the list."""
        self.query_one("#sessions").focus()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Load the next page when the cursor is near the end."""
        if self._next is not None and event.cursor_row >= event.data_table.row_count - 5:
            self.load(more=True)

    def on_data_table_row_selected(self) -> None:
        """Open a session."""
        row: SessionRow | None = self.query_one("#sessions", Rows).current
        if row is not None:
            self.app.push_screen(SessionScreen(self.inspection, row.id))


class InspectorApp(App[None]):
    """Shows sessions in a terminal."""

    TITLE = "kompakt inspect"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #title { height: 1; background: $panel; color: $foreground; }
    #filter { height: 1; margin: 0 1; }
    Screen { overflow: hidden; }
    TabbedContent, ContentSwitcher, TabPane { height: 1fr; }
    TabPane { padding: 0; }
    .halves { height: 1fr; }
    .halves > * { width: 1fr; height: 1fr; }
    Tree { padding: 0 1; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; background: $surface; }
    VerticalScroll { padding: 0 1; scrollbar-size-vertical: 1; background: $surface; }
    DataTable { scrollbar-size-vertical: 1; scrollbar-size-horizontal: 1; }
    .halves > *:focus { background-tint: $foreground 3%; }
    #pivot > .option-list--option { padding: 0; }
    #message-about { height: auto; color: $text-muted; margin-bottom: 1; }
    #context-title, #sizes, #outcome { height: auto; }
    #compaction-list { height: auto; max-height: 5; }
    #item { height: 3; padding: 0 1; background: $panel; }
    #settings { height: auto; padding: 0 1; }
    GrowthChart { height: 9; }
    .tall GrowthChart { height: 14; }
    OptionList { border: none; padding: 0 1; scrollbar-size-vertical: 1; }
    #settings > Input { width: 20; margin-right: 2; }
    #settings > Select { width: 24; margin-right: 2; }
    #query { margin: 0 1; }
    #answer-scroll { height: 1fr; }
    ModalScreen { align: center middle; background: $background 60%; }
    #window { width: 72; max-width: 95%; height: auto; max-height: 100%; padding: 0 2; background: $panel;
              border: round $primary; }
    #window.large { width: 95%; height: 95%; padding: 0 1; }
    #sent { height: 1fr; margin-top: 1; }
    #window.large > VerticalScroll { height: 1fr; margin-top: 1; background: $panel; padding: 0; }
    #window > TextArea { height: 16; max-height: 70vh; margin-top: 1; }
    #buttons { height: 3; margin-top: 1; align-horizontal: right; }
    #buttons > Button { margin-left: 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, inspection: Inspection, session: str | None = None) -> None:
        super().__init__()
        self._inspection, self._session = inspection, session

    def on_mount(self) -> None:
        """Open the list, and the session that was asked for."""
        self.push_screen(SessionsScreen(self._inspection))
        if self._session is not None:
            self.push_screen(SessionScreen(self._inspection, self._session))

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(HelpScreen())

    async def action_back(self) -> None:
        """Close a session and read the list again."""
        await self.pop_screen()
        if isinstance(self.screen, SessionsScreen):
            self.screen.action_reload()
