"""The pages of the inspector in a real browser: every screen, live sessions, actions, hostile content, keyboard."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest
from tests.gateway.gateway_server import KEYS, gateway, hashed
from tests.gateway.payloads import HEADERS, PATHS, answering, history, request
from tests.gateway.upstreams import Upstream
from tests.inspector.inspector_server import inspector
from tests.wire.transcripts.transcript_files import Writer

from kompakt.inspector.assets import bundle
from kompakt.session.store import open_store

pytestmark = [pytest.mark.xdist_group("inspector-browser"), pytest.mark.timeout(300)]

CHROMIUM = shutil.which("chromium")
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage"]
ROOT = Path(__file__).parents[2]
STATIC = ROOT / "src" / "kompakt" / "inspector" / "static"
BUNDLED = ROOT / "src" / "kompakt" / "data" / "long-session.json"
SESSION = "tidewatch"
HOSTILE = "hostile/<b>&?#%2F session"
BUDGET = 24_000
LONG = 10_000_000
ATTACK = (
    "<script>window.attacked = 1</script><img src=x onerror='window.attacked = 1'>"
    "<a href='javascript:window.attacked = 1'>link</a> \u202egnp.exe\u202c \u0007\u001b[31m \u2066isolated\u2069"
)


# --- what is inspected ----------------------------------------------------------------------------------------------


async def _fill(path: Path) -> None:
    """Store the bundled session with two compactions, and a session whose every text is an attack."""
    body = json.loads(BUNDLED.read_text())
    messages = body.pop("messages")
    answers = [at for at, one in enumerate(messages) if one["role"] == "assistant"]
    first, second = (next(at for at in answers if at >= len(messages) * share) for share in (0.45, 0.8))
    async with await open_store(f"sqlite:///{path}") as store:
        session = await store.session(SESSION)
        await session.save({**body, "messages": messages[:first]})
        await session.compact(BUDGET)
        await session.append(messages[first:second])
        await session.compact(BUDGET)
        await session.append(messages[second:])
        hostile = await store.session(HOSTILE)
        call = {"id": "c1", "type": "function", "function": {"name": "<i>tool</i>", "arguments": "{}"}}
        await hostile.save(
            {
                "model": "<b>model</b>",
                "messages": [
                    {"role": "user", "content": ATTACK},
                    {"role": "assistant", "content": ATTACK, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "c1", "content": "x" * LONG},
                    {"role": "assistant", "content": ATTACK},
                    {"role": "user", "content": "Go on. " + ATTACK},
                ],
            }
        )
        await hostile.compact(2_000, reason=ATTACK)


def _transcript(path: Path) -> None:
    """Write a Claude Code transcript with a compaction of its own."""
    writer = Writer(version="2.1.0", cwd="/repo", timestamp="2026-01-01T00:00:00Z")
    writer.user("Find the slow query in the report service.")
    for turn in range(12):
        call = {"type": "tool_use", "id": f"t{turn}", "name": "Read", "input": {"file_path": f"/repo/part{turn}.py"}}
        writer.assistant(f"a{turn}", {"type": "text", "text": f"Reading part {turn}."}, call)
        writer.user([{"type": "tool_result", "tool_use_id": f"t{turn}", "content": f"part {turn}: " + "query " * 400}])
        if turn == 7:
            writer.user("Summary: parts 0 to 7 are fine.", isCompactSummary=True)
    writer.assistant("last", {"type": "text", "text": "The slow query is in part 11."})
    path.write_text("".join(json.dumps(record) + "\n" for record in writer.records))


# --- browser --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed; `make test` installs it where it may")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


@contextmanager
def opened(browser: Any, *, expected: str = "", **options: Any) -> Iterator[Any]:
    """Open a page; when it is closed, nothing may have gone wrong in it.

    That is: no error in the console, no failed script, no violation of the content security policy, no request to
    another host, and no script of the content ran. ``expected`` is part of an error that may be there.
    """
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
    page = context.new_page()
    page.set_default_timeout(60_000)
    wrong: list[str] = []
    hosts: set[str] = set()
    page.on("console", lambda said: said.type in ("error", "warning") and wrong.append(said.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda sent: hosts.add(urlsplit(sent.url).hostname or sent.url))
    page.add_init_script(
        "window.violations = [];"
        "document.addEventListener('securitypolicyviolation', e => violations.push(e.violatedDirective + e.blockedURI))"
    )
    yield page
    wrong += page.evaluate("window.violations")
    assert page.evaluate("window.attacked") is None
    context.close()
    assert [text for text in wrong if not expected or expected not in text] == []
    assert hosts <= {"127.0.0.1"}


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    with opened(browser) as page:
        yield page


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inspected") / "k.db"
    with ThreadPoolExecutor() as pool:  # the browser has an event loop in this thread
        pool.submit(asyncio.run, _fill(path)).result()
    return path


@pytest.fixture(scope="module")
def stored(store: Path) -> Iterator[str]:
    with inspector(store) as url:
        yield url


@pytest.fixture
def writable(store: Path, tmp_path: Path) -> Iterator[str]:
    """Inspect a copy of the store that the test may change."""
    copy = tmp_path / "copy.db"
    for suffix in ("", "-wal", "-shm"):
        if (part := Path(f"{store}{suffix}")).exists():
            shutil.copy(part, f"{copy}{suffix}")
    with inspector(copy, write=True) as url:
        yield url


@pytest.fixture(scope="module")
def transcript(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("claude") / "session.jsonl"
    _transcript(path)
    with inspector(path) as url:
        yield url


def see(page: Any, role: str, name: str | re.Pattern[str], **more: Any) -> Any:
    """Wait for an element by its role and accessible name."""
    found = page.get_by_role(role, name=name, **more).first
    found.wait_for()
    return found


def visit(page: Any, url: str, state: str = "#/") -> None:
    """Open a state by its address; the first address in a browser has the token."""
    base = url.split("?")[0]
    page.goto(f"{base if page.url.startswith(base) else url}{state}")


def go(page: Any, url: str, *parts: str, query: str = "") -> None:
    """Open a state of a session."""
    visit(page, url, f"#/s/{'/'.join(quote(part, safe='') for part in parts)}{query}")


def compactions(page: Any) -> list[str]:
    """Return the addresses of the compactions in the table that is shown."""
    see(page, "table", "Compactions")
    links = page.get_by_role("table", name="Compactions").get_by_role("link")
    return [one.get_attribute("href") for one in links.all()]


class TestList:
    def test_a_session_has_all_its_numbers_and_is_found_by_its_words(self, page: Any, stored: str) -> None:
        visit(page, stored)
        row = page.locator(f"tr[data-id={SESSION}]")
        row.locator("td[data-label=Steps]", has_text=re.compile(r"^\d+$")).wait_for()  # counted in the background
        cells = {one.get_attribute("data-label"): one.inner_text() for one in row.locator("td[data-label]").all()}
        assert re.fullmatch(r"\d+%\s+[\d.]+k of 272k", cells["Context"])
        assert cells["Compactions"] == "2"
        assert re.fullmatch(r"[\d.]+k tokens\s+\$\d+\.\d\d", cells["Saved"])
        assert re.fullmatch(r"\d+%", cells["Cached"]) and re.search("ago|now", cells["Last activity"])
        assert "gpt-5" in row.inner_text() and SESSION in row.inner_text()
        meter = row.get_by_role("meter", name=re.compile("^Context of Two boats"))
        assert f"{meter.get_attribute('aria-valuenow')}%" == cells["Context"].split()[0]
        search = page.get_by_role("searchbox", name="Search sessions")
        for words, count in (("berth boats", 1), ("gpt-5", 1), ("nothing like this", 0), ("", 2)):
            search.fill(words)
            page.wait_for_function("count => document.querySelectorAll('tbody tr').length === count", arg=count)
        search.fill("nothing like this")
        page.get_by_text("No session matches").wait_for()

    def test_a_new_session_appears_by_itself(self, browser: Any, tmp_path: Path) -> None:
        path = tmp_path / "k.db"

        async def add(id: str) -> None:
            async with await open_store(f"sqlite:///{path}") as store:
                await (await store.session(id)).save({"model": "gpt-5", "messages": [{"role": "user", "content": id}]})

        with ThreadPoolExecutor() as pool:
            pool.submit(asyncio.run, add("first")).result()
            with inspector(path) as url, opened(browser) as page:
                visit(page, url)
                see(page, "row", re.compile("first"))
                page.get_by_text("Live", exact=True).wait_for()
                pool.submit(asyncio.run, add("second")).result()
                see(page, "row", re.compile("second"))
                page.get_by_text("2 sessions").wait_for()


class TestLongSessions:
    def test_a_list_draws_only_the_rows_in_view(self, browser: Any, tmp_path: Path) -> None:
        """So scrolling costs the same for 50,000 messages as for 50."""
        count = 6_000
        messages = [{"role": ("user", "assistant")[at % 2], "content": f"message {at}"} for at in range(count)]
        path = tmp_path / "long.json"
        path.write_text(json.dumps({"model": "gpt-5", "messages": messages}))
        with inspector(path) as url, opened(browser) as page:
            go(page, url, "long", "messages")
            rows = see(page, "listbox", "Messages")
            rows.get_by_role("option").first.wait_for()
            page.get_by_role("status").filter(has_text=f"{count:,} messages").wait_for()
            rows.focus()
            for key, place in (("End", count), ("PageUp", None), ("Home", 1)):
                page.keyboard.press(key)
                assert rows.get_by_role("option").count() < 60
                if place is not None:
                    chosen = rows.locator(f"[aria-posinset='{place}'][aria-selected=true]:not(.waiting)")
                    chosen.get_by_text(f"message {place - 1}", exact=True).wait_for()
            page.get_by_role("spinbutton", name="Go to message number").fill("3456")
            page.keyboard.press("Enter")
            see(page, "article", "Message 3456").get_by_text("message 3455", exact=True).wait_for()


class TestScreens:
    @pytest.mark.parametrize("source", ["stored", "transcript"])
    def test_every_screen_shows_the_session(self, page: Any, source: str, request: pytest.FixtureRequest) -> None:
        visit(page, request.getfixturevalue(source))
        title = {"stored": "Two boats got berth C14", "transcript": "Find the slow query"}[source]
        word = {"stored": "overlaps", "transcript": "part 3"}[source]
        row = see(page, "row", re.compile(title))
        assert row.get_by_role("meter").count() == 1
        row.get_by_role("link").click()

        see(page, "heading", re.compile(title), level=1)
        see(page, "img", re.compile(r"Growth of the context over \d+ points"))
        see(page, "heading", "Input by cache class")
        page.get_by_role("link", name=re.compile("^Compaction at step")).first.wait_for()

        chart = page.get_by_role("img", name=re.compile("Growth of the context"))
        chart.click(position={"x": 300, "y": 150})
        see(page, "heading", re.compile(r"^Request \d+ as sent$"))
        see(page, "region", "Request body").get_by_text('"role"').first.wait_for()
        assert page.get_by_role("listbox", name="Messages of request").get_by_role("option").count() >= 2

        page.get_by_role("tab", name="Overview").click()
        counted = page.get_by_text(re.compile(r"^[\d,]+ messages · ")).inner_text().split(" · ")[0]
        page.get_by_role("tab", name="Messages").click()
        page.get_by_role("status").filter(has_text=re.compile(f"^{counted}")).wait_for()
        see(page, "listbox", "Messages").get_by_role("option").nth(3).click()
        see(page, "region", "Text of the message")
        page.get_by_role("button", name="Tool results", exact=True).click()
        page.wait_for_url(re.compile("kind=tool_results"))
        see(page, "option", re.compile("read|Read"))

        page.get_by_role("tab", name="Context").click()
        see(page, "group", re.compile("^Context by size"))
        see(page, "listbox", "Largest messages").get_by_role("option").first.wait_for()
        see(page, "heading", "Repeated content")

        page.get_by_role("tab", name=re.compile("^Compactions")).click()
        newest = compactions(page)[0]
        assert page.get_by_role("table", name="Compactions").locator("tbody time").count() >= 1
        visit(page, page.url.split("#")[0], newest)
        page.get_by_text("Unrecoverable items: none").wait_for()
        see(page, "listbox", "Removed messages").get_by_role("option").first.wait_for()
        assert page.get_by_role("list", name="Pivot").get_by_role("listitem").count() >= 1

        page.get_by_role("tab", name="Try it").click()
        see(page, "region", "Pivot as the model would read it")
        page.get_by_text(re.compile(r"[\d,]+ → [\d,]+ tokens")).wait_for()

        page.get_by_role("tab", name="Recall").click()
        page.get_by_role("searchbox", name="Recall query").fill(word)
        page.keyboard.press("Enter")
        see(page, "region", "Answer").get_by_text(re.compile(word)).first.wait_for()

    def test_marks_of_compactions_that_are_close_leave_each_others_labels_free(
        self, browser: Any, tmp_path: Path
    ) -> None:
        """Each label can be read and clicked, and each mark that has no room for a label."""
        path = tmp_path / "k.db"

        async def fill() -> None:
            body = json.loads(BUNDLED.read_text())
            messages = body["messages"]
            answers = [at for at, one in enumerate(messages) if one["role"] == "assistant"]
            middle = len(answers) // 2
            async with await open_store(f"sqlite:///{path}") as store:
                session = await store.session(SESSION)
                await session.save({**body, "messages": messages[: answers[middle]]})
                await session.compact(BUDGET)
                for number in (1, 2, 3):
                    await session.append(messages[answers[middle + number - 1] : answers[middle + number]])
                    await session.compact(BUDGET - 4_000 * number)
                await session.append(messages[answers[middle + 3] :])

        with ThreadPoolExecutor() as pool:
            pool.submit(asyncio.run, fill()).result()
        with inspector(path) as url, opened(browser) as page:
            go(page, url, SESSION)
            marks = page.get_by_role("link", name=re.compile("^Compaction at step"))
            marks.first.wait_for()
            assert 1 <= marks.locator("text").count() < marks.count()
            free = """mark => {
                const box = mark.querySelector('text, .tick').getBoundingClientRect();
                return [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9].every((share) => {
                    const at = document.elementFromPoint(box.x + box.width * share, box.y + box.height / 2);
                    return at !== null && (mark.contains(at) || !at.closest('.compaction-mark'));
                });
            }"""
            assert all(mark.evaluate(free) for mark in marks.all())
            marks.first.locator("text").click(timeout=5_000)
            page.get_by_text("Unrecoverable items: none").wait_for()

    def test_an_address_opens_the_same_state_again(self, page: Any, stored: str) -> None:
        go(page, stored, SESSION, "compactions")
        first = compactions(page)[0]
        visit(page, stored, first)
        see(page, "listbox", "Removed messages").get_by_role("option").nth(2).click()
        page.get_by_text("returns it byte for byte").wait_for()
        chosen = "#" + page.url.split("#")[1]
        for address, role, name in [
            ("#/?query=boats", "row", "Two boats"),
            (chosen, "button", "Show original"),
            (f"#/s/{SESSION}/messages?kind=user&m=2", "article", "Message 2"),
            (f"#/s/{SESSION}/steps/3", "heading", "Request 3 as sent"),
            (f"#/s/{SESSION}/context?m=2", "dialog", "Message 2"),
            (f"#/s/{SESSION}/try?budget=9000&policy=window", "combobox", "Policy"),
            (f"#/s/{SESSION}/recall?query=overlaps", "region", "Answer"),
        ]:
            page.goto("about:blank")
            visit(page, stored, address)
            see(page, role, re.compile(name))
            if "budget" in address:
                assert page.get_by_role("slider").input_value() == "9000" or page.url.count("budget=9000")
                assert page.get_by_role("combobox").input_value() == "window"

    def test_unknown_addresses_say_what_is_missing(self, page: Any, stored: str) -> None:
        go(page, stored, SESSION, "nonsense")
        page.get_by_text("There is no such view").wait_for()

    def test_a_removed_message_and_the_lines_about_it_lead_to_each_other(self, page: Any, stored: str) -> None:
        go(page, stored, SESSION, "compactions")
        visit(page, stored, compactions(page)[0])
        removed = page.get_by_role("option", name=re.compile("pivot line")).first
        removed.click()
        quoted = page.locator(".quote").first.inner_text()
        marked = page.locator(".pivot li.marked").first
        assert marked.inner_text().strip() == quoted.strip()
        lines = page.locator("button.pivot-line").all()
        assert len(lines) > 20 and page.locator("span.pivot-line").count() < 10  # only headings have no original
        marks = 0
        for line in lines:
            line.click()
            assert page.locator(".chosen button.link").count() >= 1
            marks += page.locator("#removed .row.marked").count()
        assert marks >= 10
        page.locator(".chosen button.link").first.click()
        drawer = see(page, "dialog", re.compile(r"Message \d+"))
        drawer.get_by_role("region", name="Text of the message").locator("pre").first.wait_for()
        page.keyboard.press("Escape")
        drawer.wait_for(state="detached")

    @pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
    def test_details_never_cover_what_was_chosen(self, browser: Any, stored: str, size: tuple[int, int]) -> None:
        with opened(browser, viewport={"width": size[0], "height": size[1]}) as page:
            go(page, stored, SESSION, "compactions")
            visit(page, stored, compactions(page)[0])
            see(page, "listbox", "Removed messages").get_by_role("option").nth(3).wait_for()
            for chosen in ("#removed .row:nth-child(2)", "#removed .row:nth-child(5)", "button.pivot-line >> nth=2"):
                page.locator(chosen).click()
                page.locator(".chosen-card").wait_for()
                mark = ".pivot li.marked" if "pivot" in chosen else "#removed .row[aria-selected=true]"
                bottom = page.locator(mark).first.evaluate("node => node.getBoundingClientRect().bottom")
                assert bottom <= page.locator(".chosen-card").evaluate("node => node.getBoundingClientRect().top"), (
                    chosen
                )
                page.get_by_role("button", name="Close details").click()
                page.locator(".chosen-card").wait_for(state="detached")

    def test_the_treemap_leads_to_a_message(self, page: Any, stored: str) -> None:
        go(page, stored, SESSION, "context")
        group = see(page, "button", re.compile(r"^Tool results, [\d,]+ tokens"))
        group.click(position={"x": 12, "y": 10})
        see(page, "navigation", "Treemap position").get_by_text("Tool results").wait_for()
        page.locator(".tile.leaf").first.click()
        see(page, "dialog", re.compile(r"Message \d+"))


class TestTrying:
    def test_the_budget_slider_runs_the_compaction_again_and_writes_nothing(self, page: Any, stored: str) -> None:
        go(page, stored, SESSION, "try", query="?budget=20000")
        result = page.get_by_text(re.compile(r"[\d,]+ → [\d,]+ tokens"))
        result.wait_for()
        pivot = see(page, "region", "Pivot as the model would read it")
        seen = {}
        for budget in (20_000, 9_000):
            page.get_by_role("spinbutton", name="Exact budget").fill(str(budget))
            page.get_by_role("img", name=re.compile(f"budget {budget:,}")).wait_for()
            seen[budget] = int(result.inner_text().split("→")[1].split()[0].replace(",", ""))
            assert seen[budget] <= budget
            assert pivot.inner_text().strip()
        assert seen[9_000] < seen[20_000]
        slider = page.get_by_role("slider", name="Budget in tokens")
        before = page.url
        slider.press("ArrowRight")
        page.wait_for_url(lambda url: url != before)
        page.get_by_role("combobox", name="Policy").select_option("window")
        page.wait_for_url(re.compile("policy=window"))
        page.get_by_role("tab", name=re.compile("^Compactions")).click()
        assert len(compactions(page)) == 2
        assert page.get_by_role("button", name=re.compile("Compact")).count() == 0  # without --write

    def test_nothing_is_written_until_it_is_confirmed(self, writable: str, page: Any) -> None:
        read = f"() => fetch('api/sessions/{SESSION}').then(answer => answer.text())"
        go(page, writable, SESSION, "try", query="?budget=9000")
        see(page, "region", "Pivot as the model would read it")
        before = page.evaluate(read)
        asked = page.get_by_role("dialog", name="Compact this session now?")
        for leave in ("button", "key"):
            page.get_by_role("button", name="Compact with these settings").click()
            asked.get_by_text("budget 9,000 tokens").wait_for()
            if leave == "button":
                asked.get_by_role("button", name="Cancel").click()
            else:
                page.keyboard.press("Escape")
            asked.wait_for(state="detached")
            assert page.evaluate(read) == before
        shown = page.get_by_role("region", name="Pivot as the model would read it").inner_text()
        page.get_by_role("button", name="Compact with these settings").click()
        asked.get_by_role("button", name="Compact now").click()
        page.get_by_role("tab", name="Compactions, 3").wait_for()
        page.get_by_role("tab", name="Compactions, 3").click()
        visit(page, writable, compactions(page)[0])
        made = see(page, "list", "Pivot, as the model reads it").inner_text()
        assert "".join(made.split()) == "".join(shown.split())  # what was shown is what was done

    def test_the_slider_reaches_what_the_dry_run_starts_from(self, page: Any, transcript: str) -> None:
        """A transcript starts from all of its messages, which are more than the current context."""
        go(page, transcript, "session", "try")
        result = page.get_by_text(re.compile(r"[\d,]+ → [\d,]+ tokens"))
        result.wait_for()
        before = int(result.inner_text().split()[0].replace(",", ""))
        assert int(page.get_by_role("slider", name="Budget in tokens").get_attribute("max")) >= before


class TestActions:
    def test_pin_and_undo_ask_first_and_report_what_they_did(self, writable: str, page: Any) -> None:
        go(page, writable, SESSION, "messages", query="?m=2")
        see(page, "button", "Pin").click()
        asked = see(page, "dialog", "Pin this message?")
        asked.get_by_role("button", name="Cancel").click()
        assert page.get_by_role("button", name="Pin").count() == 1
        page.get_by_role("button", name="Pin").click()
        asked.get_by_role("button", name="Pin").click()
        see(page, "button", "Unpin").wait_for()
        page.locator(".toast.good").wait_for()
        page.get_by_role("option", name=re.compile("pinned")).first.wait_for()

        page.get_by_role("tab", name=re.compile("^Compactions")).click()
        newest = compactions(page)[0]
        page.get_by_role("button", name="Undo").click()
        see(page, "dialog", re.compile("Undo")).get_by_role("button", name="Undo").click()
        page.get_by_role("row", name=re.compile("undone")).wait_for()
        visit(page, writable, newest)
        page.locator(".card .tag", has_text="undone").first.wait_for()
        page.get_by_role("button", name="Redo").click()
        see(page, "dialog", re.compile("Redo")).get_by_role("button", name="Redo").click()
        page.locator(".card .tag", has_text="undone").wait_for(state="detached")

    def test_an_older_compaction_is_undone_with_the_newer_one(self, writable: str, page: Any) -> None:
        go(page, writable, SESSION, "compactions")
        visit(page, writable, compactions(page)[1])
        see(page, "button", "Undo this compaction").click()
        asked = see(page, "dialog", "Undo this compaction?")
        asked.get_by_text("1 newer compaction").wait_for()
        asked.get_by_role("button", name="Undo").click()
        page.locator(".card .tag", has_text="undone").first.wait_for()
        page.get_by_role("button", name="Undo this compaction").wait_for(state="detached")
        page.get_by_role("tab", name=re.compile("^Compactions")).click()
        see(page, "table", "Compactions")
        assert page.get_by_role("row", name=re.compile("undone")).count() == 2

    def test_the_pivot_is_edited_and_a_session_compacted_and_deleted(self, writable: str, page: Any) -> None:
        go(page, writable, SESSION, "compactions")
        visit(page, writable, compactions(page)[0])
        see(page, "button", "Edit the pivot").click()
        page.get_by_role("textbox", name="Text of the pivot").fill("The skipper decides.")
        see(page, "dialog", "Edit the pivot").get_by_role("button", name="Save").click()
        page.locator(".toast.good").wait_for()
        go(page, writable, SESSION, "steps", "171")
        see(page, "heading", "Next request, as it would be sent")
        see(page, "region", "Request body").get_by_text("The skipper decides.").wait_for()

        go(page, writable, SESSION, "try", query="?budget=9000")
        see(page, "button", "Compact with these settings").click()
        see(page, "dialog", "Compact this session now?").get_by_role("button", name="Compact now").click()
        page.get_by_role("tab", name="Compactions, 3").wait_for()

        page.get_by_role("button", name="Delete session").click()
        asked = see(page, "dialog", "Delete this session?")
        page.keyboard.press("Enter")  # the safe choice has the focus
        asked.wait_for(state="detached")
        page.get_by_role("button", name="Delete session").click()
        asked.get_by_role("button", name="Delete").click()
        see(page, "heading", "Sessions")
        page.get_by_role("row", name=re.compile("boats")).wait_for(state="detached")


class TestHostileContent:
    def test_attacks_are_shown_as_text_on_every_screen(self, page: Any, stored: str) -> None:
        visit(page, stored)
        row = page.locator(f"tr[data-id={json.dumps(HOSTILE)}]")
        row.get_by_text("<img src=x onerror").wait_for()
        row.get_by_role("link").click()
        see(page, "heading", re.compile("<img"), level=1)
        for tab in ("messages", "context", "compactions", "try", "recall"):
            go(page, stored, HOSTILE, tab, query="?query=attacked" if tab == "recall" else "")
            page.locator("#panel > *").first.wait_for()
            page.wait_for_load_state("networkidle")
        go(page, stored, HOSTILE, "compactions")
        visit(page, stored, compactions(page)[0])
        page.get_by_text("Unrecoverable items: none").wait_for()
        assert page.locator("main script, main img, main iframe, main a[href^='javascript']").count() == 0

    def test_a_line_of_10_mb_is_loaded_in_pages(self, page: Any, stored: str) -> None:
        go(page, stored, HOSTILE, "messages")
        row = page.get_by_role("listbox", name="Messages").get_by_role("option", name=re.compile("xxx"))
        row.click()
        text = see(page, "region", "Text of the message")
        page.get_by_text(f"of {LONG:,} characters").wait_for()
        assert len(text.inner_text()) < 200_000
        text.evaluate("node => { node.scrollTop = node.scrollHeight }")
        text.locator("pre").nth(1).wait_for()
        assert len(text.inner_text()) < 400_000

    def test_text_directions_and_hidden_characters_are_isolated(self, page: Any, stored: str) -> None:
        go(page, stored, HOSTILE, "messages")
        first = page.get_by_role("listbox", name="Messages").get_by_role("option").first
        title = first.locator("bdi").first
        title.wait_for()
        first.click()
        see(page, "region", "Text of the message").get_by_text("U+202E").wait_for()
        assert title.evaluate("node => getComputedStyle(node).unicodeBidi") == "isolate"
        assert not re.search("[\u202a-\u202e\u2066-\u2069\u0007\u001b]", page.locator("body").inner_text())


class TestLive:
    def test_a_gateway_session_compacts_while_it_is_watched(self, browser: Any, tmp_path: Path) -> None:
        def send(rounds: int) -> str:
            body = request("openai-chat", history("openai-chat", rounds, size=120))
            answer = httpx.post(gate.url + PATHS["openai-chat"], json=body, headers=HEADERS["openai-chat"], timeout=120)
            assert answer.status_code == 200
            return answer.headers["x-kompakt-session"]

        with (
            Upstream(answering) as upstream,
            gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate,
            opened(browser) as page,
        ):
            id = send(2)
            page.goto(f"{gate.url}/inspect/")
            row = see(page, "row", re.compile("Find out why the queue stalls"))
            assert id in row.inner_html()
            size = row.locator(".fill-text").inner_text()
            send(4)
            page.wait_for_function("size => document.querySelector('.fill-text').innerText !== size", arg=size)
            row.get_by_role("link").click()
            see(page, "img", re.compile("Growth of the context"))
            page.get_by_text("Live", exact=True).wait_for()
            tab = page.get_by_role("tab", name="Compactions, 0")
            tab.wait_for()
            rounds = 4
            while tab.count() and rounds < 40:
                rounds += 3
                assert send(rounds) == id
            page.get_by_role("tab", name=re.compile("Compactions, [1-9]")).wait_for()
            page.get_by_role("link", name=re.compile("^Compaction at step")).first.locator("text").click()
            page.get_by_text("Unrecoverable items: none").wait_for()

    def test_every_screen_of_a_gateway_follows_the_session(self, browser: Any, tmp_path: Path) -> None:
        """Each screen is open while the session grows or compacts, and shows it without being loaded again."""

        def send(rounds: int) -> str:
            body = request("openai-chat", history("openai-chat", rounds, size=120))
            answer = httpx.post(gate.url + PATHS["openai-chat"], json=body, headers=HEADERS["openai-chat"], timeout=120)
            assert answer.status_code == 200
            return answer.headers["x-kompakt-session"]

        def changes(selector: str, rounds: int) -> None:
            """Wait until an element shows something else after the next request, on the same page."""
            shown = page.locator(selector).first
            shown.wait_for()
            before = shown.inner_text()
            send(rounds)
            page.wait_for_function(
                "([selector, before]) => document.querySelector(selector).innerText !== before", arg=[selector, before]
            )

        with (
            Upstream(answering) as upstream,
            gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate,
            opened(browser) as page,
        ):
            id = send(2)
            place = f"{gate.url}/inspect/#/s/{quote(id, safe='')}"
            page.goto(f"{place}/overview")
            page.evaluate("window.loaded = 1")
            page.get_by_text("Live", exact=True).wait_for()
            changes(".tile-note", 3)
            page.keyboard.press("2")
            changes(".bar [role=status]", 4)
            page.keyboard.press("3")
            changes(".card h2", 6)
            page.keyboard.press("4")
            page.get_by_text("No compaction yet").wait_for()
            rounds = 6
            while not page.get_by_role("table", name="Compactions").count() and rounds < 40:
                rounds += 3
                send(rounds)
                page.wait_for_timeout(1_500)  # the pages look for changes every second
            compactions(page)
            page.get_by_role("table", name="Compactions").get_by_role("link").first.click()
            page.get_by_text("Unrecoverable items: none").wait_for()
            see(page, "listbox", "Removed messages").get_by_role("option").first.click()
            page.get_by_text("returns it byte for byte").wait_for()
            page.keyboard.press("5")
            see(page, "region", "Pivot as the model would read it")
            page.keyboard.press("6")
            page.get_by_role("searchbox", name="Recall query").fill("marker00003")
            page.keyboard.press("Enter")
            see(page, "region", "Answer").get_by_text("marker00003").first.wait_for()
            page.goto(f"{place}/steps/2")
            see(page, "region", "Request body").get_by_text('"role"').first.wait_for()
            assert page.evaluate("window.loaded") == 1

    def test_a_gateway_with_keys_asks_for_one(self, browser: Any, tmp_path: Path) -> None:
        key = next(iter(KEYS))
        with (
            Upstream(answering) as upstream,
            gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}", keys=hashed(KEYS)) as gate,
            opened(browser, expected="401") as page,
        ):
            body, headers = request("openai-chat", history("openai-chat", 1)), HEADERS["openai-chat"]
            answer = httpx.post(gate.url + PATHS["openai-chat"], json=body, headers={**headers, "x-kompakt-key": key})
            assert answer.status_code == 200
            page.goto(f"{gate.url}/inspect/")
            asked = see(page, "dialog", "This gateway needs a key")
            asked.get_by_label("Key", exact=True).fill("a wrong key")
            page.keyboard.press("Enter")
            asked.get_by_role("alert").get_by_text(re.compile("key")).wait_for()
            asked.get_by_label("Key", exact=True).fill(key)
            page.keyboard.press("Enter")
            see(page, "row", re.compile("Find out why the queue stalls"))

    def test_actions_in_a_gateway_change_the_next_request(self, browser: Any, tmp_path: Path) -> None:
        """Every action is offered with the key, and the gateway sends what the page shows."""
        key = next(iter(KEYS))
        store = f"sqlite:///{tmp_path / 'k.db'}"

        def send(rounds: int) -> tuple[str, str]:
            body = request("openai-chat", history("openai-chat", rounds))
            headers = {**HEADERS["openai-chat"], "x-kompakt-key": key}
            answer = httpx.post(gate.url + PATHS["openai-chat"], json=body, headers=headers, timeout=120)
            assert answer.status_code == 200
            return answer.headers["x-kompakt-session"], upstream.raw[-1].body.decode()

        def do(name: str, title: str, label: str) -> None:
            see(page, "button", name).click()
            with page.expect_response("**/actions") as answered:
                see(page, "dialog", re.compile(title)).get_by_role("button", name=label).click()
            assert answered.value.json()["changed"]
            page.locator(".toast.good").last.wait_for()

        with (
            Upstream(answering) as upstream,
            gateway(upstream.url, store=store, keys=hashed(KEYS), context_window=60_000) as gate,
            opened(browser, expected="401") as page,
        ):
            id, sent = send(20)
            page.goto(f"{gate.url}/inspect/#/s/{quote(id, safe='')}/try?budget=6000")
            see(page, "dialog", "This gateway needs a key").get_by_label("Key", exact=True).fill(key)
            page.keyboard.press("Enter")
            do("Compact with these settings", "Compact this session now", "Compact now")
            page.get_by_role("tab", name="Compactions, 1").wait_for()
            assert "marker00003" in sent and "marker00003" not in send(21)[1]
            page.get_by_role("tab", name=re.compile("^Compactions")).click()
            page.goto(f"{gate.url}/inspect/{compactions(page)[0]}")
            see(page, "button", "Edit the pivot").click()
            page.get_by_role("textbox", name="Text of the pivot").fill("The index lock stalls the queue.")
            see(page, "dialog", "Edit the pivot").get_by_role("button", name="Save").click()
            page.get_by_label("Pivot, as the model reads it").get_by_text("The index lock").wait_for()
            assert "The index lock stalls the queue." in send(22)[1]
            do("Undo", "Undo the newest change", "Undo")
            page.get_by_label("Pivot, as the model reads it").get_by_text("The index lock").wait_for(state="detached")
            assert "The index lock stalls the queue." not in send(22)[1]
            do("Redo", "Redo", "Redo")
            page.get_by_label("Pivot, as the model reads it").get_by_text("The index lock").wait_for()
            assert "The index lock stalls the queue." in send(22)[1]
            page.goto(f"{gate.url}/inspect/#/s/{quote(id, safe='')}/messages?m=1")
            do("Pin", "Pin this message", "Pin")
            do("Unpin", "Unpin this", "Unpin")
            do("Delete session", "Delete this session", "Delete")
            see(page, "heading", "Sessions")
            assert "marker00003" in send(23)[1]


CONTROLS = "button|link|textbox|searchbox|combobox|slider|spinbutton|tab|option|listbox|meter|table|img|dialog|region"


class TestAccess:
    """Everything can be used with the keyboard alone, by name, on a small screen, in both themes."""

    def test_a_walk_with_the_keyboard_alone(self, page: Any, stored: str) -> None:
        press = page.keyboard.press
        visit(page, stored)
        see(page, "row", re.compile("boats"))
        press("?")
        see(page, "dialog", "Keyboard")
        press("Escape")
        press("/")
        page.keyboard.type("boats")
        page.wait_for_url(re.compile("query=boats"))
        page.locator("tbody tr").nth(1).wait_for(state="detached")
        press("Escape")
        press("j")
        assert page.evaluate("getComputedStyle(document.activeElement.closest('tr')).outlineStyle") == "solid"
        press("Enter")
        see(page, "img", re.compile("Growth"))
        press("2")
        see(page, "listbox", "Messages").get_by_role("option").first.wait_for()
        press("j")
        press("j")
        see(page, "article", re.compile("Message 2"))
        press("k")
        see(page, "article", re.compile("Message 1"))
        press("4")
        see(page, "table", "Compactions")
        press("j")
        press("Enter")
        see(page, "listbox", "Removed messages").get_by_role("option").first.wait_for()
        press("j")
        page.get_by_text("returns it byte for byte").wait_for()
        press("Escape")
        see(page, "table", "Compactions")
        press("Escape")
        see(page, "img", re.compile("Growth")).focus()
        press("ArrowRight")
        press("ArrowRight")
        press("Enter")
        see(page, "heading", "Request 2 as sent")
        press("/")
        page.wait_for_url(re.compile("/recall"))
        page.wait_for_function("document.activeElement.type === 'search'")
        page.keyboard.type("overlaps")
        press("Enter")
        see(page, "region", "Answer")
        press("Escape")
        press("Escape")
        press("Escape")
        see(page, "heading", "Sessions")

    def test_every_control_has_a_name(self, page: Any, stored: str) -> None:
        go(page, stored, SESSION, "compactions")
        detail = compactions(page)[0]
        states = [f"#/s/{SESSION}/{tab}" for tab in ("overview", "messages?m=2", "context", "try", "recall", "steps/3")]
        for state in ["#/", *states, detail]:
            visit(page, stored, state)
            page.wait_for_load_state("networkidle")
            snapshot = page.locator("body").aria_snapshot()
            assert re.findall(rf"^\s*- '?(?:{CONTROLS})(?: \[[^\]]*\])*:?$", snapshot, re.M) == [], (state, snapshot)

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_small_screens_need_no_sideways_scrolling(self, browser: Any, stored: str, scheme: str) -> None:
        with opened(browser, viewport={"width": 360, "height": 740}, color_scheme=scheme) as page:
            go(page, stored, SESSION, "compactions")
            detail = compactions(page)[0]
            tabs = [f"#/s/{SESSION}/{tab}" for tab in ("overview", "messages", "context", "try", "recall", "steps/3")]
            for state in ["#/", *tabs, detail]:
                visit(page, stored, state)
                page.wait_for_load_state("networkidle")
                assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, state
            dark = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
            page.keyboard.press("t")
            assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != dark
            page.reload()
            assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != dark

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_text_has_contrast_on_every_screen(self, browser: Any, stored: str, scheme: str) -> None:
        with opened(browser, color_scheme=scheme) as page:
            for state in states_of(page, stored):
                visit(page, stored, state)
                page.locator("#panel > *, tbody tr").first.wait_for()
                page.wait_for_load_state("networkidle")
                assert page.evaluate(CONTRAST) == [], state

    @pytest.mark.parametrize("width", [1280, 390])
    def test_the_tab_key_reaches_every_control_and_shows_where_it_is(
        self, browser: Any, writable: str, width: int
    ) -> None:
        with opened(browser, viewport={"width": width, "height": 800}) as page:
            for state in states_of(page, writable):
                if width == 390 and "m=5" in state:
                    continue  # there a message covers the screen, and the focus stays in it
                page.goto("about:blank")  # so that the first Tab begins at the top
                visit(page, writable, state)
                page.locator("#panel > *, tbody tr").first.wait_for()
                page.wait_for_load_state("networkidle")
                page.evaluate(f"window.stops = new Set(); window.named = {NAMED}; 0")
                lost = []
                for _ in range(page.evaluate(f"{CONTROLS_IN_REACH}.length") + 5):
                    page.keyboard.press("Tab")
                    lost += page.evaluate(STOP)
                assert lost == [], state
                missed = page.evaluate(f"{CONTROLS_IN_REACH}.map(named).filter(one => !stops.has(one))")
                assert missed == [], state

    def test_the_focus_stays_when_the_session_changes(self, writable: str, page: Any, tmp_path: Path) -> None:
        """A person is about to press Enter while another one pins a text: the head is drawn again."""

        async def pin() -> None:
            async with await open_store(f"sqlite:///{next(tmp_path.glob('*.db'))}") as store:
                await (await store.session(SESSION)).pin("The gate of berth C14 stays closed.")

        go(page, writable, SESSION, "compactions")
        page.get_by_text("Live", exact=True).wait_for()
        undo = page.get_by_role("group", name="Actions").get_by_role("button", name="Undo")
        undo.focus()
        undo.evaluate("button => { button.dataset.old = 1; }")
        with ThreadPoolExecutor() as pool:
            pool.submit(asyncio.run, pin()).result()
        page.wait_for_function("() => !document.querySelector('[data-old]')")
        assert page.evaluate("document.activeElement.textContent") == "Undo"

    def test_actions_need_no_mouse(self, writable: str, page: Any) -> None:
        """Pin, undo and compact with the keys alone; Escape cancels, Enter confirms."""

        def reach(name: str) -> None:
            for _ in range(60):
                page.keyboard.press("Tab")
                if page.evaluate("document.activeElement.textContent || document.activeElement.ariaLabel") == name:
                    return
            raise AssertionError(f"the Tab key does not reach {name!r}")

        go(page, writable, SESSION, "messages", query="?m=2")
        see(page, "button", "Pin")
        reach("Pin")
        page.keyboard.press("Enter")
        see(page, "dialog", "Pin this message?")
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="detached")
        assert page.evaluate("document.activeElement.textContent") == "Pin"  # the focus comes back
        page.keyboard.press("Enter")
        see(page, "dialog", "Pin this message?")
        page.keyboard.press("Enter")
        see(page, "button", "Unpin")
        page.keyboard.press("4")
        see(page, "table", "Compactions")
        reach("Undo")
        page.keyboard.press("Enter")
        see(page, "dialog", re.compile("Undo"))
        page.keyboard.press("Enter")
        see(page, "row", re.compile("undone"))
        page.keyboard.press("5")
        see(page, "region", "Pivot as the model would read it")
        reach("Compact with these settings")
        page.keyboard.press("Enter")
        see(page, "dialog", "Compact this session now?")
        page.keyboard.press("Enter")
        page.get_by_role("tab", name="Compactions, 3").wait_for()


def states_of(page: Any, url: str) -> list[str]:
    """Return the address of every screen."""
    go(page, url, SESSION, "compactions")
    newest = compactions(page)[0]
    tabs = ("overview", "messages?m=5", "context", "compactions", "try", "recall?query=overlaps", "steps/3")
    return ["#/", *(f"#/s/{SESSION}/{tab}" for tab in tabs), newest]


CONTROLS_IN_REACH = """
[...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]')].filter(one =>
  !one.disabled && one.tabIndex === 0 && one.checkVisibility() && !one.matches('.skip'))
"""
"""Elements that take the focus."""

NAMED = "one => [one.tagName, one.id, one.getAttribute('aria-label') ?? one.textContent].join(' ')"
"""Tells elements apart, also those of a list that was drawn again meanwhile."""

STOP = """
() => {
  const at = document.activeElement;
  if (!at || at === document.body || at === document.documentElement) return [];
  stops.add(named(at));
  const style = getComputedStyle(at.closest('.sessions tr') ?? at);
  const box = at.getBoundingClientRect();
  const seen = box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
  const marked = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0 || at.matches('.compaction-mark');
  return seen && marked ? [] : [`${seen ? 'not marked' : 'not in view'}: ${at.outerHTML.slice(0, 120)}`];
}
"""


CONTRAST = """
() => {
  const channel = value => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const parse = text => {
    const values = text.match(/[\\d.]+/g).map(Number);
    return text.startsWith('color(') ? values.slice(0, 3).map(value => value * 255) : values;
  };
  const behind = node => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (/^(rgb|color)\\(/.test(colour) && !colour.includes('/')) return parse(colour);
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const node of document.querySelectorAll('main *')) {
    const own = [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim());
    if (!own || node.closest('svg, :disabled') || !node.getClientRects().length) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) low.push(node.className + ': ' + node.textContent.slice(0, 40));
  }
  return low;
}
"""


class TestAssets:
    def test_a_first_visit_asks_for_one_script_and_one_style(self, browser: Any, stored: str) -> None:
        with opened(browser) as page:
            asked: list[str] = []
            page.on("request", lambda sent: "/static/" in sent.url and asked.append(sent.url.rpartition("/")[2]))
            visit(page, stored)
            see(page, "row", re.compile("Two boats"))
            assert {"app.js", "style.css"} <= set(asked) <= {"app.js", "style.css", "icon.svg"}

    @pytest.mark.parametrize("api", ["api", "offline"])
    def test_the_script_contains_every_module_and_resolves_its_imports(self, api: str) -> None:
        script = bundle(api=api)
        assert not re.search(r"^\s*(?:import|export)\b", script, re.M)
        other = {"api": "offline", "offline": "api"}[api]
        named = {f"module_{path.stem}" for path in STATIC.glob("*.js") if path.stem != other}
        assert set(re.findall(r"^const (module_\w+) = \(\(\) =>", script, re.M)) == named

    def test_they_are_small_and_contain_no_markup_from_data(self) -> None:
        files = [path for path in STATIC.iterdir() if path.is_file()]
        assert sum(path.stat().st_size for path in files) < 150_000
        forbidden = r"(?:inner|outer)HTML|insertAdjacent|document\.write|eval\(|new Function|Attribute\('style|style="
        for path in files:
            text = path.read_text()
            assert re.findall(forbidden, text) == [], path
            assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) == [], path
