"""The terminal inspector, driven by keys at several sizes. Widgets are checked, not pixels."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text
from tests.inspector.stand_in import HOSTILE, StandIn
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Select, Static, TabbedContent, Tree
from textual.widgets.tree import TreeNode
from typer.testing import CliRunner

from kompakt.cli.commands import app
from kompakt.inspector.terminal import print_tables
from kompakt.inspector.terminal.app import InspectorApp, SessionsScreen
from kompakt.inspector.terminal.cells import block, fullness, line, moment, short, strip
from kompakt.inspector.terminal.chart import growth_lines
from kompakt.inspector.terminal.dialogs import ConfirmScreen, EditScreen, HelpScreen, MessageScreen, RequestScreen
from kompakt.inspector.terminal.session import SessionScreen
from kompakt.inspector.terminal.tables import SESSIONS, layout
from kompakt.inspector.terminal.widgets import GrowthChart, Rows
from kompakt.session.store import open_store
from kompakt.view.inspection import Inspection, open_inspection
from kompakt.view.values import InspectorAction

SIZES = [(80, 24), (120, 40)]
each_size = pytest.mark.parametrize("size", SIZES, ids=["80x24", "120x40"])

ESCAPED = r"\x1b[31mred\x07 \u202egnp.exe\u200b"
"""How the controls of ``HOSTILE`` are shown."""

Drive = Callable[["Driver"], Awaitable[None]]


class Driver:
    """Presses keys and waits until everything that they started has ended."""

    def __init__(self, app: InspectorApp, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot
        self._notify, app.notify = app.notify, self._note
        self._notices = [one.message for one in app._notifications]  # those of the start

    def _note(self, message: str, **options: Any) -> None:
        """Keep a notification: the app forgets it after some seconds, and a busy machine takes longer."""
        self._notices.append(message)
        self._notify(message, **options)

    async def settle(self) -> None:
        """Wait for workers and for the messages that they sent."""
        idle = 0
        while idle < 2:
            await self.pilot.pause()
            waiting = [worker for worker in self.app.workers if worker.group not in ("action", "follow")]
            if waiting:
                await self.app.workers.wait_for_complete(waiting)
            idle = 0 if waiting else idle + 1

    async def press(self, *keys: str) -> None:
        """Press keys one after the other."""
        for key in keys:
            await self.pilot.press(key)
            await self.settle()

    async def type(self, text: str) -> None:
        """Type into a field, and submit it."""
        await self.pilot.press(*text, "enter")
        await self.settle()

    def text(self, selector: str) -> str:
        """Return the text of a static widget."""
        shown = self.app.screen.query_one(selector, Static).visual
        return str(getattr(shown, "plain", shown))

    def rows(self, selector: str) -> list[list[str]]:
        """Return the cells of a table."""
        table = self.app.screen.query_one(selector, Rows)
        return [[str(cell) for cell in table.get_row_at(index)] for index in range(table.row_count)]

    def labels(self, selector: str) -> list[str]:
        """Return the labels of a tree, from top to bottom."""

        def walk(node: TreeNode[int | None]) -> list[str]:
            return [str(node.label), *(label for child in node.children for label in walk(child))]

        return walk(self.app.screen.query_one(selector, Tree).root)

    def notices(self) -> list[str]:
        """Return the notifications so far."""
        return self._notices


def drive(
    work: Drive, inspection: StandIn | None = None, *, size: tuple[int, int] = (80, 24), session: str | None = None
) -> None:
    """Run the app and a test of it."""

    async def main() -> None:
        app = InspectorApp(inspection or StandIn(), session)  # pyright: ignore[reportArgumentType]
        app.animation_level = "none"
        async with app.run_test(size=size) as pilot:
            driver = Driver(app, pilot)
            await driver.settle()
            await work(driver)

    asyncio.run(main())


class TestSessions:
    @each_size
    def test_lists_sessions_with_their_numbers(self, size: tuple[int, int]) -> None:
        async def work(driver: Driver) -> None:
            rows = driver.rows("#sessions")
            assert len(rows) == 3
            assert rows[0][0].startswith("Fix the log")
            assert any("62%" in cell for cell in rows[0])
            assert {"30", "2", "181k", "11-16 17:04"} <= set(rows[0])
            assert "3 sessions" in driver.text("#title")
            assert driver.app.screen.query_one("#sessions").size.height >= size[1] - 3

        drive(work, size=size)

    def test_columns_fit_into_the_width(self) -> None:
        for width in (60, 80, 99, 100, 120, 200):
            assert sum(columns + 2 for _, columns in layout(SESSIONS, width)) <= max(width, 74)
        assert {column.title for column, _ in layout(SESSIONS, 140)} >= {"client", "model", "money", "compactions"}

    def test_slash_filters_and_escape_shows_all_again(self) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("slash")
            await driver.pilot.press(*"shop", "space", "2")
            await driver.settle()
            assert len(driver.rows("#sessions")) == 1
            await driver.press("enter", "enter")
            assert isinstance(driver.app.screen, SessionScreen)
            assert driver.app.screen.session == "session-2"
            await driver.press("escape", "escape")
            assert len(driver.rows("#sessions")) == 3

        drive(work)

    def test_more_sessions_are_loaded_near_the_end(self) -> None:
        async def work(driver: Driver) -> None:
            assert len(driver.rows("#sessions")) == 100
            await driver.press("end")
            assert len(driver.rows("#sessions")) == 200

        drive(work, StandIn(sessions=250))

    def test_new_sessions_appear_by_themselves(self) -> None:
        inspection = StandIn()

        async def work(driver: Driver) -> None:
            inspection.sessions_made.append(inspection.sessions_made[0])
            inspection.append(0)
            await driver.settle()
            assert len(driver.rows("#sessions")) == 4

        drive(work, inspection)

    def test_the_cursor_stays_on_its_session_when_the_order_changes(self) -> None:
        inspection = StandIn()

        async def work(driver: Driver) -> None:
            await driver.press("down")
            inspection.sessions_made.insert(0, inspection.sessions_made.pop())
            inspection.append(0)
            await driver.settle()
            current = driver.app.screen.query_one("#sessions", Rows).current
            assert current is not None
            assert current.id == "session-1"

        drive(work, inspection)

    def test_help_lists_the_keys_and_q_quits(self) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("question_mark")
            assert isinstance(driver.app.screen, HelpScreen)
            assert "undo" in driver.text("#help")
            await driver.press("escape")
            assert isinstance(driver.app.screen, SessionsScreen)
            await driver.pilot.press("q")
            assert driver.app._exit

        drive(work)


class TestSession:
    @each_size
    def test_shows_growth_messages_and_the_newest_message(self, size: tuple[int, int]) -> None:
        async def work(driver: Driver) -> None:
            screen = driver.app.screen
            chart = screen.query_one(GrowthChart)
            assert "▲" in str(chart.render())
            assert chart.size.height == (14 if size[1] >= 36 else 9)
            assert "124k of 200k" in driver.text("#title")
            labels = driver.labels("#messages")
            assert any("step 1 " in label for label in labels)
            assert any("pinned" in label for label in labels)
            assert "whole text of message 59" in driver.text("#message")
            assert screen.query_one("#messages").size.height >= 6
            assert screen.query_one("#preview").region.right <= size[0]

        drive(work, size=size, session="session-0")

    def test_a_long_session_loads_only_the_pages_that_are_opened(self) -> None:
        inspection = StandIn(messages=1_000)

        async def work(driver: Driver) -> None:
            assert inspection.asked == ["messages 0", "messages 900"]
            tree = driver.app.screen.query_one("#messages", Tree)
            assert len(tree.root.children) == 10
            tree.root.children[3].expand()
            await driver.settle()
            assert inspection.asked[-1] == "messages 300"
            assert any("message 399" in label for label in driver.labels("#messages"))

        drive(work, inspection, session="session-0")

    def test_enter_opens_a_message_in_pages(self) -> None:
        async def work(driver: Driver) -> None:
            screen = driver.app.screen
            assert isinstance(screen, SessionScreen)
            screen.open_message(4)
            await driver.settle()
            assert isinstance(driver.app.screen, MessageScreen)
            assert "0 to 65,536 of" in driver.text("#about")
            await driver.press("n")
            assert "65,536 to 131,072" in driver.text("#about")
            await driver.press("b", "b")
            assert "whole text of message 4" in driver.text("#text")
            await driver.press("escape")
            assert driver.app.screen is screen

        drive(work, session="session-0")

    @each_size
    def test_s_shows_the_request_of_a_step_as_it_was_sent(self, size: tuple[int, int]) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("s")
            screen = driver.app.screen
            assert isinstance(screen, RequestScreen)
            assert "request 30 as sent  100 tokens" in driver.text("#about") and "user 100" in driver.text("#about")
            rows = driver.rows("#sent")
            assert [row[0] for row in rows] == ["0", "1", "2", "3", "59"] and "message 3" in rows[3][2]
            assert driver.text("#text") == '{"model": "m"}'
            for widget in ("#about", "#sent", "#scroll"):
                region = screen.query_one(widget).region
                assert region.height > 0 and region.right <= size[0] and region.bottom <= size[1]
            await driver.press("b")
            assert "request 29 as sent" in driver.text("#about")
            await driver.press("n", "n")
            assert "next request, as it would be sent" in driver.text("#about")
            await driver.press("n")  # there is no request after it
            assert "next request" in driver.text("#about") and "there is no step" in driver.notices()[-1]
            await driver.press("down", "enter")
            assert isinstance(driver.app.screen, MessageScreen) and "message 1 " in driver.text("#about")
            await driver.press("escape", "escape")
            assert isinstance(driver.app.screen, SessionScreen)

        drive(work, size=size, session="session-0")

    def test_keys_open_the_tabs_and_escape_goes_back(self) -> None:
        async def work(driver: Driver) -> None:
            tabs = driver.app.screen.query_one("#tabs", TabbedContent)
            for key, tab in (("c", "context"), ("d", "compactions"), ("g", "growth"), ("t", "try")):
                await driver.press(key)
                assert tabs.active == tab
            await driver.press("escape", "r")
            assert tabs.active == "recall"
            await driver.press("escape", "escape")
            assert isinstance(driver.app.screen, SessionsScreen)

        drive(work, session="session-0")

    def test_new_messages_appear_while_the_cursor_is_at_the_newest(self) -> None:
        inspection = StandIn()

        async def work(driver: Driver) -> None:
            inspection.append(2)
            await driver.settle()
            assert "whole text of message 61" in driver.text("#message")
            await driver.press("up", "up")  # over the line of the step
            inspection.append(2)
            await driver.settle()
            assert "whole text of message 60" in driver.text("#message")
            assert not any("message 63" in label for label in driver.labels("#messages"))

        drive(work, inspection, session="session-0")

    def test_a_message_that_is_gone_is_reported(self) -> None:
        async def work(driver: Driver) -> None:
            screen = driver.app.screen
            assert isinstance(screen, SessionScreen)
            screen.open_message(4_711)
            await driver.settle()
            assert "there is no message" in driver.text("#about")

        drive(work, session="session-0")

    def test_a_session_that_is_gone_is_reported(self) -> None:
        async def work(driver: Driver) -> None:
            assert any("there is no session" in notice for notice in driver.notices())

        drive(work, session="nothing")


class TestContext:
    def test_shows_shares_largest_and_repeated(self) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("c")
            assert "78,000 tokens" in driver.text("#context-title")
            labels = driver.labels("#parts")
            assert any("90%" in label and "read_file" in label for label in labels)
            assert driver.rows("#largest")[0][-1] == "2,283"
            assert driver.rows("#repeated")[0][-2:] == ["3", "9,000"]
            for name in ("#parts", "#largest", "#repeated"):
                assert driver.app.screen.query_one(name).size.height >= 4

        drive(work, session="session-0")

    def test_enter_on_a_large_item_opens_the_message(self) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("c", "tab", "enter")
            assert isinstance(driver.app.screen, MessageScreen)
            assert "message 59" in driver.text("#text")

        drive(work, session="session-0")


class TestCompactions:
    @each_size
    def test_shows_before_after_and_why_each_item_left(self, size: tuple[int, int]) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("d")
            assert [row[0] for row in driver.rows("#compaction-list")] == ["c2", "c1"]
            sizes = driver.text("#sizes")
            assert "160,000" in sizes
            assert "60,002" in sizes
            assert len(driver.rows("#removed")) == 5
            item = driver.text("#item")
            assert "older than the newest turns (summarize)" in item
            assert "pivot line 2; recall returns it" in item
            assert "Unrecoverable items: none" in item
            assert driver.app.screen.query_one("#pivot", OptionList).highlighted == 1
            for name in ("#removed", "#pivot"):
                assert driver.app.screen.query_one(name).size.height >= 4

        drive(work, size=size, session="session-0")

    def test_the_cursor_links_removed_items_and_pivot_lines(self) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("d", "down", "down")
            pivot = driver.app.screen.query_one("#pivot", OptionList)
            assert pivot.highlighted == 3
            pivot.focus()
            await driver.press("up", "enter")
            removed = driver.app.screen.query_one("#removed", Rows)
            assert removed.has_focus
            assert removed.current is not None
            assert removed.current.ref == "m0002"

        drive(work, session="session-0")

    def test_another_compaction_is_opened_from_the_list(self) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("d")
            driver.app.screen.query_one("#compaction-list").focus()
            await driver.press("down", "enter")
            assert "60,001" in driver.text("#sizes")

        drive(work, session="session-0")


class TestTryIt:
    def test_previews_a_budget_with_a_policy(self) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("t")
            screen = driver.app.screen
            assert screen.query_one("#budget", Input).value == "62000"
            assert screen.query_one("#policy", Select).value == "default"
            assert "124,000 → 61,999" in driver.text("#outcome")  # the first budget is tried at once
            screen.query_one("#budget", Input).value = "50000"
            await driver.press("enter")
            assert "124,000 → 49,999" in driver.text("#outcome")
            assert "fits" in driver.text("#outcome")
            assert "What was done so far?" in driver.text("#pivot-text")
            assert len(driver.rows("#would-remove")) == 5
            await driver.press("right_square_bracket")
            assert "124,000 → 54,999" in driver.text("#outcome")

        drive(work, session="session-0")

    def test_a_budget_that_cannot_be_met_is_explained(self) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("t")
            driver.app.screen.query_one("#budget", Input).value = "5"
            await driver.press("enter")
            assert any("does not fit" in notice for notice in driver.notices())

        drive(work, session="session-0")


class TestRecall:
    def test_shows_the_answer_of_the_tool(self) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("slash")
            await driver.type("login")
            assert "42 tokens\nfound for login" in driver.text("#answer")

        drive(work, session="session-0")


class TestActions:
    def test_without_write_nothing_is_asked(self) -> None:
        inspection = StandIn()

        async def work(driver: Driver) -> None:
            await driver.press("u", "U", "k", "D", "p", "d", "e")
            assert isinstance(driver.app.screen, SessionScreen)
            assert any("--write" in notice for notice in driver.notices())

        drive(work, inspection, session="session-0")
        assert inspection.acted == []

    def test_an_action_happens_only_after_a_yes(self) -> None:
        inspection = StandIn(writable=True)

        async def work(driver: Driver) -> None:
            await driver.press("u")
            assert isinstance(driver.app.screen, ConfirmScreen)
            await driver.press("enter")  # the safe answer has the focus
            assert inspection.acted == []
            await driver.press("u", "escape", "u", "n")
            assert inspection.acted == []
            await driver.press("u", "y")

        drive(work, inspection, session="session-0")
        assert inspection.acted == [InspectorAction(action="undo", confirm=True)]

    def test_each_action_has_a_key_and_reports_its_result(self) -> None:
        inspection = StandIn(writable=True)

        async def work(driver: Driver) -> None:
            await driver.press("U", "y", "k", "y", "p", "y")
            assert isinstance(driver.app.screen, SessionScreen)
            assert driver.notices() == ["redo is done", "compact is done", "pin is done"]
            await driver.press("D", "y")
            assert isinstance(driver.app.screen, SessionsScreen)
            assert len(driver.rows("#sessions")) == 2

        drive(work, inspection, session="session-0")
        assert inspection.acted == [
            InspectorAction(action="redo", confirm=True),
            InspectorAction(action="compact", confirm=True),
            InspectorAction(action="pin", seq=59, confirm=True),
            InspectorAction(action="delete", confirm=True),
        ]

    def test_a_pinned_message_is_unpinned(self) -> None:
        inspection = StandIn(messages=4, writable=True)

        async def work(driver: Driver) -> None:
            await driver.press("p", "y")

        drive(work, inspection, session="session-0")
        assert inspection.acted == [InspectorAction(action="unpin", seq=3, confirm=True)]

    def test_try_it_compacts_with_its_budget_and_policy(self) -> None:
        inspection = StandIn(writable=True)

        async def work(driver: Driver) -> None:
            await driver.press("t", "enter", "k", "y")

        drive(work, inspection, session="session-0")
        assert inspection.acted == [InspectorAction(action="compact", budget=62_000, policy="default", confirm=True)]

    def test_a_summary_is_edited_and_replaced_after_a_yes(self) -> None:
        inspection = StandIn(writable=True, text="plain")

        async def work(driver: Driver) -> None:
            await driver.press("d", "e")
            assert isinstance(driver.app.screen, EditScreen)
            await driver.press("N", "o", "w", "ctrl+s", "y")

        drive(work, inspection, session="session-0")
        (action,) = inspection.acted
        assert action.action == "edit"
        assert action.compaction == "c2"
        assert (action.text or "").startswith("NowWhat was done so far?\nmessage 1 plain")

    def test_an_unchanged_summary_is_not_replaced(self) -> None:
        inspection = StandIn(writable=True)

        async def work(driver: Driver) -> None:
            await driver.press("d", "e", "ctrl+s")
            assert isinstance(driver.app.screen, SessionScreen)

        drive(work, inspection, session="session-0")
        assert inspection.acted == []


class TestHostileText:
    """Recorded text is shown as it is: no markup, no terminal controls, no hidden directions."""

    def test_no_screen_interprets_it(self) -> None:
        async def work(driver: Driver) -> None:
            assert any("[bold red]" in row[0] for row in driver.rows("#sessions"))
            await driver.press("enter")
            assert any(ESCAPED[:20] in label for label in driver.labels("#messages"))
            assert "[@click=app.quit]quit[/] <script>" in driver.text("#message")
            await driver.press("d", "t", "enter", "r", "a", "enter", "c")
            for name in ("#message", "#pivot-text", "#answer"):
                assert ESCAPED in driver.text(name)
            lines = driver.app.screen.query_one("#pivot", OptionList).options
            assert any("[bold red]markup[/]" in str(one.prompt) for one in lines)
            for screen in driver.app.screen_stack:
                shown = "\n".join(str(strip.text) for strip in screen._compositor.render_strips())
                assert not set(shown) & {"\x1b", "\x07", "\u202e", "\u200b"}

        drive(work, size=(160, 50))

    def test_cells_escape_controls_and_keep_brackets(self) -> None:
        assert ESCAPED in line(HOSTILE).plain
        assert line("a\nb\tc\r\nd").plain == "a b c d"
        assert block("a\r\n\tb").plain == "a\n    b"
        assert line("[red]x[/]", 20).spans == []
        assert line("\u4e2d" * 40, 10).cell_len <= 10
        assert line("\ud800 x").plain.endswith(" x")


class TestDrawing:
    def test_numbers_are_short(self) -> None:
        shown = [short(value) for value in (None, 0, 950, 1_000, 12_345, 99_960, 200_000, 1_250_000)]
        assert shown == ["-", "0", "950", "1k", "12.3k", "100k", "200k", "1.2M"]
        assert strip(0.5, 4) == "██░░"
        assert strip(7, 2) == "██"
        assert fullness(None).plain.strip() == "-"
        assert moment("2026-11-16T17:04:05Z").plain == "11-16 17:04"
        assert moment(None).plain == "-"

    @pytest.mark.parametrize("messages", [0, 2, 60, 3_000])
    @pytest.mark.parametrize("width", [20, 80, 160])
    def test_a_chart_has_the_size_that_it_gets(self, messages: int, width: int) -> None:
        growth = asyncio.run(StandIn(messages=messages).growth("session-0"))
        lines = growth_lines(growth, width, 9)
        assert len(lines) == (9 if messages else 1)
        assert all(drawn.cell_len <= width for drawn in lines[:-1])

    def test_the_legend_of_a_chart_fits_into_80_columns(self) -> None:
        growth = asyncio.run(StandIn().growth("session-0"))
        legend = growth_lines(growth, 80, 9)[-1]
        assert legend.plain == "▲ compaction ■ system ■ tools ■ user ■ assistant ■ results ■ summary ╌ due 170k"
        assert legend.cell_len <= 80


class TestPipes:
    def printed(self, session: str | None, width: int = 120, sessions: int = 3) -> str:
        out = io.StringIO()
        console = Console(file=out, width=width, highlight=False)
        asyncio.run(print_tables(StandIn(sessions=sessions), session=session, console=console))  # pyright: ignore[reportArgumentType]
        return out.getvalue()

    def test_the_list_has_the_cells_of_the_screen(self) -> None:
        text = self.printed(None, 300)
        assert "3 sessions" in text
        assert text.count("181k") == 3
        assert ESCAPED[:10] in text
        assert "\x1b" not in text

    def test_a_session_has_growth_context_and_compactions(self) -> None:
        text = self.printed("session-0")
        for part in (
            "124,000",
            "▲",
            "read_file",
            "repeated",
            "compaction c1",
            "Unrecoverable items: none",
            "What was done",
        ):
            assert part in text
        assert "\x1b" not in text

    def test_columns_are_not_cut(self) -> None:
        for width in (100, 160):
            head = self.printed(None, width).splitlines()[2]
            assert "…" not in head
            assert head.split()[-1] == "active"

    def test_a_file_with_one_session_shows_it(self) -> None:
        assert "compaction c1" in self.printed(None, sessions=1)

    def test_a_pipe_gets_tables(self, tmp_path: Path) -> None:
        file = tmp_path / "session.json"
        file.write_text(json.dumps({"model": "gpt-5", "messages": [{"role": "user", "content": "Fix the login."}]}))
        done = CliRunner().invoke(app, ["inspect", str(file), "--terminal"], catch_exceptions=False)
        assert done.exit_code == 0
        assert "Fix the login." in done.stdout
        assert "\x1b" not in done.stdout

    def test_a_narrow_console_is_respected(self) -> None:
        assert max(Text(row).cell_len for row in self.printed(None, 80).splitlines()) <= 80


ROOT = Path(__file__).parents[2]


class TestStore:
    """The screens on a stored session, with the real numbers."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Path:
        """Store the start of the bundled session with a compaction."""
        path = tmp_path / "sessions.db"

        async def fill() -> None:
            body = json.loads((ROOT / "src" / "kompakt" / "data" / "long-session.json").read_text())
            messages = body.pop("messages")
            end = next(at for at in range(120, len(messages)) if messages[at]["role"] == "assistant")
            async with await open_store(f"sqlite:///{path}") as store:
                session = await store.session("tidewatch")
                await session.save({**body, "messages": messages[:end]})
                await session.compact(12_000)

        asyncio.run(fill())
        return path

    def drive(self, path: Path, work: Callable[[Driver, Inspection], Awaitable[None]], *, write: bool = False) -> None:
        async def main() -> None:
            async with await open_inspection(path, write=write) as inspection:
                app = InspectorApp(inspection, "tidewatch")
                app.animation_level = "none"
                async with app.run_test(size=(100, 30)) as pilot:
                    driver = Driver(app, pilot)
                    await driver.settle()
                    await work(driver, inspection)

        asyncio.run(main())

    def test_every_screen_shows_the_numbers_of_the_view(self, store: Path) -> None:
        async def work(driver: Driver, inspection: Inspection) -> None:
            detail = await inspection.session("tidewatch")
            assert short(detail.row.tokens) in driver.text("#title")
            assert "▲" in str(driver.app.screen.query_one(GrowthChart).render())
            assert "[kompakt]" in driver.text("#message")
            await driver.press("c")
            view = await inspection.context("tidewatch")
            assert f"{view.total:,} tokens" in driver.text("#context-title")
            assert driver.rows("#largest")[0][-1] == f"{view.largest[0].tokens:,}"
            await driver.press("d")
            (one,) = detail.compactions
            made = await inspection.compaction("tidewatch", one.id)
            assert f"{made.tokens_before:,}" in driver.text("#sizes")
            assert f"{made.tokens_after:,}" in driver.text("#sizes")
            assert len(driver.rows("#removed")) == made.removed_count
            assert "Unrecoverable items: none" in driver.text("#item")
            await driver.press("t", "enter")
            assert "fits" in driver.text("#outcome")
            await driver.press("r")
            await driver.type("overlaps")
            answer = await inspection.recall("tidewatch", "overlaps")
            assert answer.text.splitlines()[0] in driver.text("#answer")

        self.drive(store, work)

    def test_undo_redo_and_pin_change_the_session(self, store: Path) -> None:
        async def work(driver: Driver, inspection: Inspection) -> None:
            await driver.press("u", "y")
            await driver.settle()
            (one,) = (await inspection.session("tidewatch")).compactions
            assert one.undone
            await driver.press("U", "y")
            await driver.settle()
            assert (await inspection.session("tidewatch")).row.compactions == 1
            assert len(driver.notices()) == 2

        self.drive(store, work, write=True)
