"""The screen of one session. Each tab loads its part when it is shown first."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import Button, DataTable, Footer, Input, OptionList, Select, Static, TabbedContent, TabPane, Tree
from textual.widgets.tree import TreeNode

from kompakt.errors import KompaktError
from kompakt.inspector.terminal.cells import block, fullness, line, part, short, strip
from kompakt.inspector.terminal.chart import COLORS
from kompakt.inspector.terminal.dialogs import ConfirmScreen, EditScreen, MessageScreen, RequestScreen, about
from kompakt.inspector.terminal.tables import COMPACTIONS, LARGEST, REMOVED, REPEATED, losses, pivot_lines
from kompakt.inspector.terminal.widgets import GrowthChart, Rows
from kompakt.view.values import InspectorAction
from kompakt.view.visible import cleaned

if TYPE_CHECKING:
    from kompakt.view.inspection import Inspection
    from kompakt.view.status import CompactionStatus
    from kompakt.view.values import (
        CompactionPreview,
        CompactionView,
        ContextNode,
        MessageRow,
        PivotLine,
        RemovedItem,
        SessionDetail,
    )

Value = TypeVar("Value")

PAGE = 100
"""Messages that one branch of the message tree holds."""

MAX_CHILDREN = 200
"""Children that one branch of the context tree shows; the rest is one line."""


class SessionScreen(Screen[None]):
    """One session in five tabs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back"),
        Binding("g", "tab('growth')", "Growth"),
        Binding("c", "tab('context')", "Context"),
        Binding("d", "tab('compactions')", "Diff"),
        Binding("t", "tab('try')", "Try it"),
        Binding("r", "tab('recall')", "Recall"),
        Binding("slash", "tab('recall')", "Search", show=False, key_display="/"),
        Binding("s", "request", "Sent"),
        Binding("p", "pin", "Pin"),
        Binding("u", "undo", "Undo"),
        Binding("U", "redo", "Redo", show=False),
        Binding("k", "compact", "Compact now", show=False),
        Binding("e", "edit", "Edit summary", show=False),
        Binding("D", "delete", "Delete", show=False),
        Binding("f5", "reload", "Reload", show=False),
        Binding("left_square_bracket", "budget(0.9)", "Lower budget", show=False),
        Binding("right_square_bracket", "budget(1.1)", "Raise budget", show=False),
    ]

    def __init__(self, inspection: Inspection, session: str) -> None:
        super().__init__()
        self.inspection, self.session = inspection, session
        self.detail: SessionDetail | None = None
        self.compaction: CompactionView | None = None
        self._loaded: set[str] = set()
        self._steps: dict[int, int] = {}
        """The step of each message in the tree."""

    def compose(self) -> ComposeResult:
        """Lay out the tabs."""
        yield Static(line(self.session, 60), id="title")
        with TabbedContent(id="tabs", initial="growth"):
            with TabPane("Growth", id="growth"):
                yield GrowthChart(id="chart")
                with Horizontal(classes="halves"):
                    yield Tree[int | None](Text("messages"), id="messages")
                    with VerticalScroll(id="preview", can_focus=True):
                        yield Static(id="message-about")
                        yield Static(id="message")
            with TabPane("Context", id="context"):
                yield Static(id="context-title")
                with Horizontal(classes="halves"):
                    yield Tree[int | None](Text("context"), id="parts")
                    with Vertical():
                        yield Rows(LARGEST, id="largest")
                        yield Rows(REPEATED, id="repeated")
            with TabPane("Compactions", id="compactions"):
                yield Rows(COMPACTIONS, id="compaction-list")
                yield Static(id="sizes")
                with Horizontal(classes="halves"):
                    yield Rows(REMOVED, id="removed")
                    yield OptionList(id="pivot")
                yield Static(id="item")
            with TabPane("Try it", id="try"):
                with Horizontal(id="settings"):
                    yield Input(placeholder="budget in tokens", type="integer", id="budget", compact=True)
                    yield Select[str]([], prompt="policy", allow_blank=True, id="policy", compact=True)
                    yield Button("Preview", id="run", compact=True, variant="primary")
                yield Static(Text("A preview writes nothing.", "dim"), id="outcome")
                with Horizontal(classes="halves"):
                    with VerticalScroll(id="would-read", can_focus=True):
                        yield Static(id="pivot-text")
                    yield Rows(REMOVED, id="would-remove")
            with TabPane("Recall", id="recall"):
                yield Input(placeholder="what to search for, or a reference such as m7f3a", id="query", compact=True)
                with VerticalScroll(id="answer-scroll", can_focus=True):
                    yield Static(Text("Recall answers exactly as the model's own tool does.", "dim"), id="answer")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Load the session and its first tab."""
        for tree in self.query(Tree):
            tree.show_root = False
            tree.guide_depth = 2
        self.load_detail()
        self._load("growth")
        self.query_one("#messages").focus()
        self.follow()

    @work(group="follow")
    async def follow(self) -> None:
        """Show changes of the session as they happen. Messages follow while the cursor is at the newest one."""
        try:
            async for changed in self.inspection.changes(self.session):
                if changed:
                    self._show_change()
        except KompaktError as error:
            self._say(f"no longer followed: {error}", error=True)

    def _show_change(self) -> None:
        tree: Tree[int | None] = self.query_one("#messages", Tree)
        self._loaded &= {"growth", "try", "recall"}
        self.load_detail()
        self.load_growth()
        if tree.cursor_node is _newest(tree.root):
            self.load_messages()
        self._load(self.query_one("#tabs", TabbedContent).active)

    def action_reload(self) -> None:
        """Load everything again."""
        self._loaded.clear()
        self.load_detail()
        self._load(self.query_one("#tabs", TabbedContent).active)

    async def action_leave(self) -> None:
        """Leave a field, so that keys work again; otherwise go back to the list."""
        field = self.focused
        if isinstance(field, Input):
            self.query_one("#would-read" if field.id == "budget" else "#answer-scroll").focus()
        else:
            await self.app.run_action("back")

    def on_resize(self, event: Resize) -> None:
        """Give the chart more room on a high screen."""
        self.set_class(event.size.height >= 36, "tall")

    def action_tab(self, name: str) -> None:
        """Show a tab and focus its main part."""
        self.query_one("#tabs", TabbedContent).active = name
        focused = {
            "growth": "messages",
            "context": "parts",
            "compactions": "removed",
            "try": "budget",
            "recall": "query",
        }
        self.query_one(f"#{focused[name]}").focus()

    def on_tabbed_content_tab_activated(self, event: TabbedContent.TabActivated) -> None:
        """Load a tab when it is shown."""
        self._load(event.pane.id or "")

    def _load(self, tab: str) -> None:
        if tab in self._loaded:
            return
        self._loaded.add(tab)
        match tab:
            case "growth":
                self.load_growth()
                self.load_messages()
            case "context":
                self.load_context()
            case "compactions":
                self.load_compaction(None)
            case "try" if self._budget() is not None:
                self.load_preview(focus=False)
            case _:
                pass

    async def _ask(self, question: Awaitable[Value]) -> Value | None:
        """Wait for an answer of the inspection; report an error instead of raising it."""
        try:
            return await question
        except KompaktError as error:
            self._say(str(error), error=True)
            return None

    def _say(self, text: str, *, error: bool = False) -> None:
        self.app.notify(cleaned(text), severity="error" if error else "information", markup=False)

    # --- session -----------------------------------------------------------------------------------------------------

    @work(group="detail", exclusive=True)
    async def load_detail(self) -> None:
        """Show the name and the fullness of the session."""
        detail = await self._ask(self.inspection.session(self.session))
        if detail is None:
            return
        self.detail, row = detail, detail.row
        window = f" of {short(row.window)}" if row.window else ""
        title = Text(" ").append_text(line(row.title or row.id, max(20, self.size.width - 44)))
        title.append(f"  {short(row.tokens)}{window} tokens  ", "dim").append_text(fullness(row.fullness))
        self.query_one("#title", Static).update(title)
        policies = self.query_one("#policy", Select)
        if not self._choices:
            self._choices = tuple((name, name) for name in detail.policies)
            policies.set_options(self._choices)
            if detail.policies:
                policies.value = "default" if "default" in detail.policies else detail.policies[0]
        budget = self.query_one("#budget", Input)
        if not budget.value and row.tokens:
            budget.value = str(max(1, row.tokens // 2))

    _choices: tuple[tuple[str, str], ...] = ()

    # --- growth and messages -----------------------------------------------------------------------------------------

    @work(group="growth", exclusive=True)
    async def load_growth(self) -> None:
        """Draw the growth."""
        growth = await self._ask(self.inspection.growth(self.session))
        if growth is not None:
            self.query_one("#chart", GrowthChart).show(growth)

    @work(group="messages", exclusive=True)
    async def load_messages(self) -> None:
        """Show the messages by step. A long session has one branch for every page; the last page is open."""
        first = await self._ask(self.inspection.messages(self.session, start=0, limit=PAGE))
        if first is None:
            return
        tree: Tree[int | None] = self.query_one("#messages", Tree)
        tree.clear()
        if first.total <= PAGE:
            self._steps |= _add_steps(tree.root, first.rows)
            self._show_newest(tree.root)
            return
        for start in range(0, first.total, PAGE):
            end = min(start + PAGE, first.total)
            tree.root.add(Text(f"messages {start + 1:,} to {end:,}"), data=-1 - start)
        tree.root.children[-1].expand()

    def on_tree_node_expanded(self, event: Tree.NodeExpanded[int | None]) -> None:
        """Load the messages of a branch that is opened first."""
        data = event.node.data
        if data is not None and data < 0 and not event.node.children:
            self.load_branch(event.node, -1 - data)

    @work(group="branch")
    async def load_branch(self, node: TreeNode[int | None], start: int) -> None:
        """Load one page of messages."""
        page = await self._ask(self.inspection.messages(self.session, start=start, limit=PAGE))
        if page is not None and not node.children:
            self._steps |= _add_steps(node, page.rows)
            if start + PAGE >= page.total:
                self._show_newest(node)

    def _show_newest(self, node: TreeNode[int | None]) -> None:
        """Move the cursor to the last message of a branch."""
        if node.tree.last_line >= 0:  # the tree gives lines to new nodes when it is asked for its last line
            node.tree.move_cursor(_newest(node))

    def on_tree_node_highlighted(self, event: Tree.NodeHighlighted[int | None]) -> None:
        """Show the message under the cursor."""
        if event.node.tree.id == "messages" and event.node.data is not None and event.node.data >= 0:
            self.load_message(event.node.data)

    def on_tree_node_selected(self, event: Tree.NodeSelected[int | None]) -> None:
        """Open the whole message."""
        if event.node.data is not None and event.node.data >= 0:
            self.open_message(event.node.data)

    @work(group="message", exclusive=True)
    async def load_message(self, seq: int) -> None:
        """Show the start of a message beside the tree."""
        found = await self._ask(self.inspection.message(self.session, seq))
        if found is None:
            return
        self.query_one("#message-about", Static).update(about(found))
        self.query_one("#message", Static).update(block(found.text))
        self.query_one("#preview", VerticalScroll).scroll_home(animate=False)

    def open_message(self, seq: int) -> None:
        """Show a whole message in a window."""
        self.app.push_screen(MessageScreen(self.inspection, self.session, seq))

    def action_request(self) -> None:
        """Show the request of the step under the cursor as it was sent."""
        node = self.query_one("#messages", Tree).cursor_node
        step = self._steps.get(_newest(node).data or 0) if node is not None else None
        if step is None:
            self._say("choose a step or a message in the tab growth first (g)")
            return
        self.app.push_screen(RequestScreen(self.inspection, self.session, max(1, step)))

    # --- context -----------------------------------------------------------------------------------------------------

    @work(group="context", exclusive=True)
    async def load_context(self) -> None:
        """Show what the next request consists of."""
        view = await self._ask(self.inspection.context(self.session))
        if view is None:
            return
        title = Text().append(f" next request: {view.total:,} tokens", "bold")
        if view.free is not None:
            title.append(f"   free {short(view.free)}   reserve {short(view.reserve)}", "dim")
        self.query_one("#context-title", Static).update(title)
        tree: Tree[int | None] = self.query_one("#parts", Tree)
        tree.clear()
        groups = [_add_part(tree.root, child, max(1, view.total)) for child in view.tree.children]
        sizes = [child.tokens for child in view.tree.children]
        if groups:
            groups[sizes.index(max(sizes))].expand()
        self.query_one("#largest", Rows).show(view.largest)
        self.query_one("#repeated", Rows).show(view.repeated)

    # --- compactions -------------------------------------------------------------------------------------------------

    @work(group="compaction", exclusive=True)
    async def load_compaction(self, id: str | None) -> None:
        """Show the compactions, and the chosen one, or the newest."""
        detail = await self._ask(self.inspection.session(self.session))
        if detail is None:
            return
        newest_first: list[CompactionStatus] = list(reversed(detail.compactions))
        place = next((index for index, one in enumerate(newest_first) if one.id == id), 0)
        self._rows("#compaction-list").show(newest_first, cursor=place)
        if not newest_first:
            self.query_one("#sizes", Static).update(Text(" This session has no compactions.", "dim"))
            return
        view = await self._ask(self.inspection.compaction(self.session, newest_first[place].id))
        if view is not None:
            self.show_compaction(view)

    def show_compaction(self, view: CompactionView) -> None:
        """Show one compaction: before and after, what left, and the pivot."""
        self.compaction = view
        self.query_one("#sizes", Static).update(_before_and_after(view))
        pivot = self.query_one("#pivot", OptionList)
        pivot.clear_options()
        pivot.add_options([_pivot_line(row) for row in view.pivot])
        self._rows("#removed").show(view.removed, cursor=0)
        self._describe(view.removed[0] if view.removed else None)

    def _describe(self, item: RemovedItem | None) -> None:
        """Say why an item left, what the pivot says about it, and whether recall returns it."""
        if self.compaction is None:
            return
        text = Text()
        if item is not None:
            text.append_text(line(f"{item.why} ({item.strategy})", self.size.width - 4)).append("\n")
            recall = "recall returns it" if item.recallable else "RECALL DOES NOT RETURN IT"
            text.append(f"{pivot_lines(item)}; {recall}", "" if item.recallable else "bold red").append("  ")
            text.append(f"enter: original, {item.tokens:,} tokens", "dim").append("\n")
        self.query_one("#item", Static).update(text.append_text(losses(self.compaction)))

    def _go_to_pivot(self, item: RemovedItem) -> None:
        """Move the cursor of the pivot to the first line about an item."""
        if self.compaction is None or not item.pivot_lines:
            return
        numbers = [row.line for row in self.compaction.pivot]
        if item.pivot_lines[0] in numbers:
            self.query_one("#pivot", OptionList).highlighted = numbers.index(item.pivot_lines[0])

    def _go_to_original(self, row: PivotLine) -> None:
        """Move the cursor of the removed items to the first item that a line is about; open other messages."""
        if self.compaction is None:
            return
        places = [index for index, item in enumerate(self.compaction.removed) if item.ref in row.refs]
        if places:
            self._rows("#removed").move_cursor(row=places[0])
            self._rows("#removed").focus()
        elif row.seqs:
            self.open_message(row.seqs[0])

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Follow the cursor of the removed items in the pivot."""
        if event.data_table.id == "removed":
            item: RemovedItem | None = self._rows("#removed").current
            self._describe(item)
            if item is not None:
                self._go_to_pivot(item)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the session or message of a row."""
        name, place = event.data_table.id, event.cursor_row
        if name == "compaction-list":
            self.load_compaction(self._rows("#compaction-list").items[place].id)
        elif name == "repeated":
            self.open_message(self._rows("#repeated").items[place].seqs[0])
        elif name in ("largest", "removed", "would-remove"):
            self.open_message(self._rows(f"#{name}").items[place].seq)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Go from a line of the pivot to the original."""
        if event.option_list.id == "pivot" and self.compaction is not None:
            self._go_to_original(self.compaction.pivot[event.option_index])

    def _rows(self, selector: str) -> Rows[Any]:
        return self.query_one(selector, Rows)

    # --- try it ------------------------------------------------------------------------------------------------------

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Run a preview."""
        if event.button.id == "run":
            self.load_preview()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Run a preview, or ask recall."""
        if event.input.id == "budget":
            self.load_preview()
        elif event.input.id == "query" and event.value.strip():
            self.load_recall(event.value)

    def action_budget(self, factor: float) -> None:
        """Change the budget and run a preview."""
        if self.query_one("#tabs", TabbedContent).active == "try" and (budget := self._budget()):
            self.query_one("#budget", Input).value = str(max(1, round(budget * factor)))
            self.load_preview()

    def _budget(self) -> int | None:
        text = self.query_one("#budget", Input).value
        return int(text) if text.isdecimal() and int(text) > 0 else None

    def _policy(self) -> str:
        value = self.query_one("#policy", Select).value
        return value if isinstance(value, str) else "default"

    @work(group="preview", exclusive=True)
    async def load_preview(self, *, focus: bool = True) -> None:
        """Show what a compaction to this budget would do; ``focus`` moves the cursor to it."""
        budget = self._budget()
        if budget is None:
            self._say("the budget must be a positive number of tokens", error=True)
            return
        self.query_one("#outcome", Static).update(Text(" computing…", "dim"))
        preview = await self._ask(self.inspection.preview(self.session, budget=budget, policy=self._policy()))
        if preview is None:
            self.query_one("#outcome", Static).update(Text(" no result", "dim"))
            return
        self.query_one("#outcome", Static).update(_outcome(preview))
        self.query_one("#pivot-text", Static).update(block(preview.pivot))
        if focus:
            self.query_one("#would-read").focus()
        self._rows("#would-remove").show(preview.removed, cursor=0)

    # --- recall ------------------------------------------------------------------------------------------------------

    @work(group="recall", exclusive=True)
    async def load_recall(self, query: str) -> None:
        """Show what the recall tool answers."""
        answer = await self._ask(self.inspection.recall(self.session, query))
        if answer is None:
            return
        text = Text().append(f"{answer.tokens:,} tokens\n", "dim").append_text(block(answer.text))
        self.query_one("#answer", Static).update(text)
        self.query_one("#answer-scroll", VerticalScroll).scroll_home(animate=False)
        self.query_one("#answer-scroll").focus()

    # --- actions -----------------------------------------------------------------------------------------------------

    def action_pin(self) -> None:
        """Pin or unpin the message under the cursor."""
        self.change_pin()

    @work(group="action", exclusive=True)
    async def change_pin(self) -> None:
        """Ask, then pin or unpin a message."""
        node = self.query_one("#messages", Tree).cursor_node
        if node is None or node.data is None or node.data < 0:
            self._say("move the cursor to a message first")
            return
        found = await self._ask(self.inspection.message(self.session, node.data))
        if found is not None:
            name = "unpin" if found.row.pinned else "pin"
            await self._act(InspectorAction(action=name, seq=found.row.seq), f"{name} this message?", found.row.title)

    @work(group="action", exclusive=True)
    async def action_undo(self) -> None:
        """Ask, then undo the newest compaction."""
        await self._act(InspectorAction(action="undo"), "undo the newest change?", "Redo reverses it.")

    @work(group="action", exclusive=True)
    async def action_redo(self) -> None:
        """Ask, then redo what was undone."""
        await self._act(InspectorAction(action="redo"), "redo what was undone last?")

    @work(group="action", exclusive=True)
    async def action_compact(self) -> None:
        """Ask, then compact the session; in the tab "try it" with its budget and policy."""
        tried = self.query_one("#tabs", TabbedContent).active == "try"
        budget, policy = (self._budget(), self._policy()) if tried else (None, None)
        detail = f"budget {budget:,}, policy {policy}" if budget else "with the budget of its model"
        await self._act(InspectorAction(action="compact", budget=budget, policy=policy), "compact now?", detail)

    @work(group="action", exclusive=True)
    async def action_edit(self) -> None:
        """Edit the pivot of the shown compaction; ask before it is replaced."""
        view = self.compaction
        if not self._may_write():
            self._refuse()
            return
        if view is None:
            self._say("open a compaction first (d)")
            return
        text = "\n".join(row.text for row in view.pivot)
        edited = await self.app.push_screen_wait(EditScreen(f"summary of {view.id}", text))
        if edited is not None:
            action = InspectorAction(action="edit", text=edited, compaction=view.id)
            await self._act(action, "replace the text of this summary?", "Undo reverses it.")

    @work(group="action", exclusive=True)
    async def action_delete(self) -> None:
        """Ask, then delete the session and go back to the list."""
        if await self._act(InspectorAction(action="delete"), "delete this session?", "This cannot be undone."):
            self.app.call_later(self.app.action_back)  # later: closing the screen waits for this worker

    def _may_write(self) -> bool:
        return self.detail is not None and self.detail.writable

    def _refuse(self) -> None:
        reason = self.detail.read_only_reason if self.detail is not None else ""
        self._say(reason or "read-only: start `kompakt inspect` with --write to allow actions", error=True)

    async def _act(self, action: InspectorAction, question: str, detail: str = "") -> bool:
        """Ask for a confirmation, act, and report the result."""
        if not self._may_write():
            self._refuse()
            return False
        if not await self.app.push_screen_wait(ConfirmScreen(question.capitalize(), detail)):
            return False
        result = await self._ask(self.inspection.act(self.session, msgspec.structs.replace(action, confirm=True)))
        if result is None:
            return False
        self._say(result.message)
        if action.action != "delete":
            self.action_reload()
        return True


# --- texts -----------------------------------------------------------------------------------------------------------

_STATES = {"sent": " ", "shortened": "~", "replaced": "-", "undone": "x"}
"""Marks of messages: sent as they are, shortened, removed, taken back."""


def _newest(node: TreeNode[int | None]) -> TreeNode[int | None]:
    """Return the last message of a branch."""
    while node.children:
        node = node.children[-1]
    return node


def _add_steps(node: TreeNode[int | None], rows: Iterable[MessageRow]) -> dict[int, int]:
    """Add messages below one branch for each step; return the step of each message."""
    steps: dict[int, int] = {}
    for step, group in groupby(rows, key=lambda row: row.step):
        found = list(group)
        name = f"step {step:,}" if step else "before the first answer"
        label = Text().append(name, "bold").append(f"  {short(sum(row.tokens for row in found))}", "dim")
        branch = node.add(label, expand=True)
        for row in found:
            branch.add_leaf(message_label(row), data=row.seq)
            steps[row.seq] = step
    return steps


def message_label(row: MessageRow) -> Text:
    """Return a message as one line: its state, kind, size and first words."""
    label = (
        Text()
        .append(_STATES[row.state], "yellow")
        .append("■ ", COLORS.get(row.kind))
        .append(f"{short(row.tokens):>5} ")
    )
    if row.pinned:
        label.append("pinned ", "bold green")
    return label.append_text(Text(line(row.title, 120).plain, "dim" if row.state != "sent" else ""))


def _add_part(node: TreeNode[int | None], found: ContextNode, total: int) -> TreeNode[int | None]:
    """Add a part of the context and what it consists of."""
    label = part(found.tokens, total).append(f"{short(found.tokens):>7} ", "dim")
    label.append("■ ", COLORS.get(found.kind)).append_text(line(found.name, 60))
    if found.count > 1:
        label.append(f"  {found.count:,}", "dim")
    if not found.children:
        return node.add_leaf(label, data=found.seq)
    branch = node.add(label, data=found.seq)
    for child in found.children[:MAX_CHILDREN]:
        _add_part(branch, child, total)
    if rest := found.children[MAX_CHILDREN:]:
        tokens = sum(child.tokens for child in rest)
        branch.add_leaf(part(tokens, total).append(f"{short(tokens):>7} {len(rest):,} more", "dim"))
    return branch


def _pivot_line(row: PivotLine) -> Text:
    """Return a line of a pivot with its number. A line that refers to messages is bright."""
    return Text().append(f"{row.line:>3} ", "dim").append(line(row.text).plain, "" if row.refs else "dim")


def _before_and_after(view: CompactionView) -> Text:
    """Draw the sizes before and after a compaction below each other."""
    most = max(1, view.tokens_before, view.tokens_after)
    text = Text()
    for name, tokens, style in (("before", view.tokens_before, "red"), ("after", view.tokens_after, "green")):
        text.append(f" {name:<7}").append(strip(tokens / most, 16), style).append(f" {tokens:>9,} tokens")
        if name == "before":
            text.append(f"   removed {view.removed_count:,}, kept {view.kept:,}", "dim").append("\n")
    named = f"   the pivot names {view.named_count:,} of them"
    return text.append("   undone" if view.undone else named, "dim")


def _outcome(preview: CompactionPreview) -> Text:
    """Say what a preview found."""
    text = Text().append(f" {preview.tokens_before:,} → {preview.tokens_after:,} tokens  ", "bold")
    if not preview.due:
        text.append("nothing to do: this is within the budget", "green")
    elif preview.fits:
        text.append("fits", "bold green")
    else:
        text.append("does not fit", "bold red")
    text.append(f"  removes {preview.removed_count:,} messages ({short(preview.removed_tokens)} tokens)", "")
    text.append(f"  {preview.seconds * 1000:,.0f} ms", "dim")
    if preview.note:
        text.append(f"\n {preview.note}", "dim")
    for problem in preview.problems[:3]:
        text.append("\n ").append_text(Text(line(problem, 160).plain, "red"))
    return text
