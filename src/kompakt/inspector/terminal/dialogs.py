"""Windows above a screen: help, a question before an action, an editor, a whole message, and a request as sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Static, TextArea

from kompakt.errors import KompaktError
from kompakt.inspector.terminal.cells import block, line, short
from kompakt.inspector.terminal.tables import SENT
from kompakt.inspector.terminal.widgets import Rows
from kompakt.view.values import kind_name

if TYPE_CHECKING:
    from kompakt.view.inspection import Inspection
    from kompakt.view.values import MessageRow, MessageText, StepRequest

MAX_SUBJECT = 200
"""Columns of a path or command above the text of its output."""

HELP = """\
Everywhere
  /        filter sessions; in a session: ask recall
  enter    open what is under the cursor
  tab      go to the next part of the screen
  f5       read everything again
  escape   back          q  quit          ?  this help

In a session
  g        growth and messages
  c        current context: shares, largest, repeated
  d        compactions: before and after, what left and why
  t        try another budget or policy; writes nothing
  r        recall, exactly as the model has it
  s        the request of the step under the cursor, as it was sent
  [ ]      lower or raise the budget by a tenth (in try it)

Actions; only with --write, each after a question
  p        pin the message under the cursor, or unpin it
  u  U     undo the newest change; redo it
  k  e     compact now; edit the summary of the shown compaction
  D        delete the session
"""


class HelpScreen(ModalScreen[None]):
    """Lists the keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        """Show the keys in a window."""
        with VerticalScroll(id="window", can_focus=True):
            yield Static(Text(HELP), id="help")

    async def action_dismiss(self, result: None = None) -> None:
        """Close the window."""
        self.dismiss(result)


class ConfirmScreen(ModalScreen[bool]):
    """Asks before an action. The safe answer has the focus."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape", "answer(False)", "No"),
        Binding("left,right", "app.focus_next", "Other button", show=False),
    ]

    def __init__(self, question: str, detail: str = "") -> None:
        super().__init__()
        self._question, self._detail = question, detail

    def compose(self) -> ComposeResult:
        """Show the question with two buttons."""
        with Vertical(id="window"):
            yield Static(Text(self._question, style="bold"), id="question")
            yield Static(line(self._detail, 200), id="detail")
            with Horizontal(id="buttons"):
                yield Button("No (n)", id="no")
                yield Button("Yes (y)", id="yes", variant="error")

    def on_mount(self) -> None:
        """Focus the safe answer."""
        self.query_one("#no").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer with the pressed button."""
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        """Answer with a key."""
        self.dismiss(answer)


class EditScreen(ModalScreen[str | None]):
    """Edits a text. The result is ``None`` when nothing is to be changed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "save", "Save", priority=True),
        Binding("escape", "cancel", "Cancel", priority=True),
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title, self._text = title, block(text).plain

    def compose(self) -> ComposeResult:
        """Show the text in an editor. Invisible characters are escaped in it."""
        with Vertical(id="window"):
            yield Static(Text(f"{self._title}   ctrl+s saves, escape cancels", style="bold"))
            yield TextArea(self._text, id="editor")

    def action_save(self) -> None:
        """Return the text if it was changed."""
        edited = self.query_one("#editor", TextArea).text
        self.dismiss(None if edited == self._text else edited)

    def action_cancel(self) -> None:
        """Change nothing."""
        self.dismiss(None)


class MessageScreen(ModalScreen[None]):
    """A whole message, in pages."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Close"),
        Binding("n", "page(1)", "Next page"),
        Binding("b", "page(-1)", "Page before"),
    ]

    def __init__(self, inspection: Inspection, session: str, seq: int) -> None:
        super().__init__()
        self._inspection, self._session, self._seq = inspection, session, seq
        self._starts = [0]
        self._next: int | None = None

    def compose(self) -> ComposeResult:
        """Show a line about the message above its text."""
        with Vertical(id="window", classes="large"):
            yield Static(Text("loading…"), id="about")
            with VerticalScroll(id="scroll"):
                yield Static(id="text")

    def on_mount(self) -> None:
        """Load the first page."""
        self.run_worker(self._load(), exclusive=True)

    async def _load(self) -> None:
        try:
            found = await self._inspection.message(self._session, self._seq, offset=self._starts[-1])
        except KompaktError as error:
            self.query_one("#about", Static).update(block(str(error)))
            return
        self._next = found.next
        self.query_one("#about", Static).update(about(found))
        self.query_one("#text", Static).update(block(found.text))
        self.query_one("#scroll", VerticalScroll).scroll_home(animate=False)

    def action_page(self, step: int) -> None:
        """Show the next page, or the one before."""
        if step > 0 and self._next is not None:
            self._starts.append(self._next)
        elif step < 0 and len(self._starts) > 1:
            self._starts.pop()
        else:
            return
        self.run_worker(self._load(), exclusive=True)

    async def action_dismiss(self, result: None = None) -> None:
        """Close the window."""
        self.dismiss(result)


MAX_REQUEST = 20_000
"""Characters of the body of a request that a window shows; its messages can be opened whole."""


class RequestScreen(ModalScreen[None]):
    """A request as it was sent: its messages, and its body."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Close"),
        Binding("n", "step(1)", "Next request"),
        Binding("b", "step(-1)", "Request before"),
    ]

    def __init__(self, inspection: Inspection, session: str, step: int) -> None:
        super().__init__()
        self._inspection, self._session, self._step = inspection, session, step

    def compose(self) -> ComposeResult:
        """Show the messages above the body."""
        with Vertical(id="window", classes="large"):
            yield Static(Text("loading…"), id="about")
            yield Rows(SENT, id="sent")
            with VerticalScroll(id="scroll", can_focus=True):
                yield Static(id="text")

    def on_mount(self) -> None:
        """Load the request."""
        self.query_one("#sent").focus()
        self.run_worker(self._load(self._step), exclusive=True)

    async def _load(self, step: int) -> None:
        try:
            found = await self._inspection.step(self._session, step)
        except KompaktError as error:
            self.app.notify(block(str(error)).plain, severity="error", markup=False)
            if not self.query_one("#sent", Rows).items:
                self.dismiss(None)
            return
        self._step = step
        self.query_one("#about", Static).update(about_request(found))
        self.query_one("#sent", Rows).show([*found.rows, *found.answer], cursor=0)
        body = block(found.body[:MAX_REQUEST])
        if found.body_chars > MAX_REQUEST:
            body.append(f"\n… the first {MAX_REQUEST:,} of {found.body_chars:,} characters", "yellow")
        self.query_one("#text", Static).update(body)
        self.query_one("#scroll", VerticalScroll).scroll_home(animate=False)

    def on_data_table_row_selected(self) -> None:
        """Open a message of the request."""
        row: MessageRow | None = self.query_one("#sent", Rows).current
        if row is not None:
            self.app.push_screen(MessageScreen(self._inspection, self._session, row.seq))

    def action_step(self, by: int) -> None:
        """Show the next request, or the one before."""
        if self._step + by >= 1:
            self.run_worker(self._load(self._step + by), exclusive=True)

    async def action_dismiss(self, result: None = None) -> None:
        """Close the window."""
        self.dismiss(result)


def about_request(found: StepRequest) -> Text:
    """Say which request is shown, how large it was, and which part the cache had."""
    name = f"request {found.step:,} as sent" if found.answer else "next request, as it would be sent"
    text = Text().append(f"{name}  {found.total:,} tokens  ", "bold")
    text.append(f"{found.cached / max(1, found.total):.0%} from cache  ", "dim")
    text.append("  ".join(f"{kind_name(kind)} {short(size)}" for kind, size in found.tokens.items() if size), "dim")
    if found.compaction is not None:
        text.append("  contains the pivot of ", "dim").append(line(found.compaction, 20).plain, "dim")
    left_out = f"{found.left_out:,} older messages are not listed   " if found.left_out else ""
    return text.append(f"\n{left_out}n: next, b: before, enter: whole message, tab: body", "yellow")


def about(found: MessageText) -> Text:
    """Say which message is shown, and which part of it."""
    row = found.row
    text = Text().append(f"message {row.seq}  {row.tool or kind_name(row.kind)}  {row.tokens:,} tokens  ", "bold")
    state = {"sent": "", "replaced": "removed by a compaction", "shortened": "shortened", "undone": "taken back"}
    text.append("  ".join(filter(None, (line(row.ref, 24).plain, state[row.state], "pinned" * row.pinned))), "dim")
    if row.subject:
        text.append("\n").append_text(line(row.subject, MAX_SUBJECT))
    if found.next is not None or found.offset:
        end = found.next if found.next is not None else found.total
        text.append(f"\ncharacters {found.offset:,} to {end:,} of {found.total:,}   n: next, b: back", "yellow")
    return text
