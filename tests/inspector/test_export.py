"""Exported files: they open from disk without network, stay small, keep hostile text inert, and can be redacted."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
import shutil
import zlib
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.view.sessions import claude_code

from kompakt.errors import UsageError
from kompakt.inspector import export
from kompakt.inspector.assets import bundle
from kompakt.inspector.export import write_html
from kompakt.inspector.redaction import Redaction
from kompakt.session.store import open_store
from kompakt.view import inspection
from kompakt.view.inspection import open_inspection
from kompakt.view.status import BY_AGENT

pytestmark = [pytest.mark.xdist_group("inspector-browser"), pytest.mark.timeout(120)]

Value = TypeVar("Value")

CHROMIUM = shutil.which("chromium")
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage"]
ROOT = Path(__file__).parents[2]
BUNDLED = ROOT / "src" / "kompakt" / "data" / "long-session.json"
SESSION = "tidewatch/<b>&\"'?#%2F"
ATTACK = (
    "</script><script>window.attacked = 1</script><img src=x onerror='window.attacked = 1'><!-- "
    "<a href='javascript:window.attacked = 1'>link</a> \u202egnp.exe\u202c \u0007\u001b[31m \ud800 ]]>"
)


def finished(work: Coroutine[Any, Any, Value]) -> Value:
    """Run a coroutine in another thread: the browser has a loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def exported(target: Path, out: Path, **options: Any) -> int:
    """Export the sessions of a file or store."""

    async def work() -> int:
        async with await open_inspection(target) as inspection:
            return await write_html(inspection, out, **options)

    return finished(work())


def data_of(page: Path) -> Any:
    """Return the data in an exported file."""
    found = re.search(r'id="kompakt-data"[^>]*>([^<]*)</script>', page.read_text("utf-8"))
    assert found is not None
    return json.loads(zlib.decompress(base64.b64decode(found[1])))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Store the bundled session with a compaction, and a session whose texts are attacks."""
    path = tmp_path_factory.mktemp("store") / "sessions.db"

    async def work() -> None:
        async with await open_store(f"sqlite:///{path}") as store:
            session = await store.session(SESSION)
            body = json.loads(BUNDLED.read_text())
            messages = body.pop("messages")
            half = next(at for at in range(200, len(messages)) if messages[at]["role"] == "assistant")
            await session.save({**body, "messages": messages[:half]})
            await session.compact(20_000)
            await session.append(messages[half : half + 20])
            hostile = await store.session("hostile")
            texts = [ATTACK, "x" * 10_000_000, ATTACK]
            roles = ["user", "assistant", "user"]
            listed = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
            await hostile.save({"model": "gpt-5", "messages": listed})

    finished(work())
    return path


@pytest.fixture(scope="module")
def page_file(store: Path) -> Path:
    out = store.with_name("all.html")
    exported(store, out)
    return out


# --- browser ---------------------------------------------------------------------------------------------------------


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
def opened(browser: Any, path: Path) -> Iterator[Any]:
    """Open a file; afterwards nothing may have gone wrong: no error, no violation of the policy, no other request."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.set_default_timeout(20_000)
    wrong: list[str] = []
    requests: list[str] = []
    page.on("console", lambda said: said.type in ("error", "warning") and wrong.append(said.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda sent: sent.url.startswith("data:") or requests.append(sent.url))
    page.add_init_script(
        "window.violations = [];"
        "document.addEventListener('securitypolicyviolation', e => violations.push(e.violatedDirective + e.blockedURI))"
    )
    page.goto(path.as_uri())
    yield page
    wrong += page.evaluate("window.violations")
    assert page.evaluate("window.attacked") is None
    context.close()
    assert wrong == []
    assert requests == [path.as_uri()]


class TestPage:
    def test_every_screen_opens_from_disk(self, browser: Any, page_file: Path) -> None:
        with opened(browser, page_file) as page:
            page.locator("table.sessions tbody tr").nth(1).wait_for()
            page.get_by_role("link", name=re.compile("Two boats")).click()
            page.locator("k-growth svg").first.wait_for()
            assert page.get_by_role("tab").all_inner_texts()[:3] == ["Overview", "Messages", "Context"]
            assert page.get_by_role("tab", name="Recall").count() == 0
            page.get_by_role("tab", name="Messages").click()
            page.locator("#messages .row", has_text="Two boats").first.click()
            page.get_by_role("article", name=re.compile("Message")).get_by_text("Two boats got berth").wait_for()
            page.get_by_role("tab", name="Context").click()
            page.get_by_text("Tool results").first.wait_for()
            page.get_by_role("tab", name="Compactions").click()
            page.locator("#panel a.mono, #panel td a").first.click()
            page.get_by_text("Notes on the earlier part").first.wait_for()

    def test_a_file_of_one_session_starts_with_it(self, browser: Any, store: Path) -> None:
        out = store.with_name("one.html")
        exported(store, out, session=SESSION)
        with opened(browser, out) as page:
            page.get_by_role("heading", name=re.compile("Two boats")).wait_for()
            assert "read only" in page.inner_text("header.session-head")
            last = data_of(out)["content"][SESSION]["growth"]["steps"]
            page.evaluate(f"location.hash = location.hash + '/steps/{last}'")
            page.get_by_role("heading", name=f"Request {last} as sent").wait_for()

    def test_a_sent_request_whose_answer_is_not_in_the_file_is_not_the_next_one(
        self, browser: Any, store: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(export, "MAX_MESSAGES", 2)
        out = store.with_name("newest.html")
        exported(store, out, session=SESSION)
        content = data_of(out)["content"][SESSION]
        steps = content["growth"]["steps"]
        with opened(browser, out) as page:
            page.get_by_role("heading", name=re.compile("Two boats")).wait_for()
            page.evaluate(f"location.hash = location.hash + '/steps/{steps - 5}'")
            page.get_by_role("heading", name=f"Request {steps - 5} as sent").wait_for()
            page.get_by_role("link", name="Next").wait_for()

    def test_everything_that_a_compaction_removed_is_in_the_file(
        self, browser: Any, store: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The inspector reads it in pages."""
        monkeypatch.setattr(inspection, "MAX_REMOVED", 7)
        out = store.with_name("pages.html")
        exported(store, out, session=SESSION)
        (view,) = data_of(out)["content"][SESSION]["compactions"].values()
        assert len(view["removed"]) == len({one["seq"] for one in view["removed"]}) == view["removed_count"] > 100
        with opened(browser, out) as page:
            page.get_by_role("tab", name="Compactions").click()
            page.locator("#panel td a").first.click()
            page.locator("#removed .row").first.wait_for()
            page.evaluate("document.querySelector('#removed').select(100, {middle: true})")
            shown = page.locator("#removed .row[aria-selected=true]").inner_text()
            assert view["removed"][100]["ref"] in shown

    def test_a_page_that_embeds_a_file_stays_where_it_is(self, browser: Any, store: Path) -> None:
        exported(store, store.with_name("inner.html"), session=SESSION)
        outer = store.with_name("outer.html")
        outer.write_text('<div style="height: 3000px"></div><iframe src="inner.html" style="height: 700px"></iframe>')
        page = browser.new_page()
        page.goto(outer.as_uri())
        page.frame_locator("iframe").locator("[role=tab][aria-selected=true]").wait_for()
        assert page.evaluate("scrollY") == 0
        page.close()

    def test_hostile_text_is_inert(self, browser: Any, page_file: Path) -> None:
        text = page_file.read_text("utf-8")
        assert "window.attacked" not in text
        assert len(re.findall(r"<script\b", text)) == 2
        with opened(browser, page_file) as page:
            page.locator("table.sessions a", has_text="window.attacked").click()
            page.get_by_role("tab", name="Messages").click()
            page.locator("#messages .row").nth(1).click()
            page.get_by_text("This file has the first 20000 of 10000000 characters").wait_for()
            page.locator("#messages .row").first.click()
            page.get_by_role("article").get_by_text("onerror").wait_for()

    def test_the_policy_allows_only_the_script_of_the_file(self, page_file: Path) -> None:
        text = page_file.read_text("utf-8")
        policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
        assert policy is not None
        assert "default-src 'none'" in policy[1]
        assert "unsafe" not in policy[1]
        assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", text)

    def test_the_script_of_a_file_never_asks_a_server(self) -> None:
        script = bundle(api="offline")
        assert "EventSource" not in script and "fetch(" not in script


class TestSize:
    def test_a_session_of_200000_tokens_is_small(self, tmp_path: Path) -> None:
        """The text is random, so it compresses badly."""
        chance = random.Random(7)
        letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ,.;:"
        messages = [{"role": "user", "content": "Read everything."}]
        for number in range(150):
            call = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            text = "".join(chance.choices(letters, k=3_000))
            messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": text})
        messages.append({"role": "assistant", "content": "Done."})
        file = tmp_path / "long.json"
        file.write_text(json.dumps({"model": "gpt-5", "messages": messages}))
        out = tmp_path / "out.html"
        size = exported(file, out)
        (row,) = data_of(out)["sessions"]
        assert row["tokens"] > 200_000
        assert size == out.stat().st_size < 3_000_000

    def test_the_longest_texts_are_cut_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(export, "MAX_TEXT", 1_000)
        texts: list[Any] = [{"text": "a" * 2_000}, {"text": "b" * 100}, {"text": "c" * 800}]
        export._cut(texts)
        assert [len(text["text"]) for text in texts] == [450, 100, 450]

    def test_an_empty_store_is_an_error(self, tmp_path: Path) -> None:
        path = tmp_path / "empty.db"

        async def work() -> None:
            async with await open_store(f"sqlite:///{path}") as store:
                assert [head async for head in store.heads()] == []

        finished(work())
        with pytest.raises(UsageError, match="no session"):
            exported(path, tmp_path / "out.html")


SECRETS = [
    *("zorgle", "quuxly", "flimbert", "grumbo", "wibblon", "snarfled", "krandolf", "plonkish", "vexnard"),
    *("/srv/quuxly/keys.txt", "sk-live-8472", "krandolf@plonkish.test", "acme-private-7"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Export a session that has a secret in every kind of place, as it is and redacted."""
    folder = tmp_path_factory.mktemp("redaction")
    path = folder / "sessions.db"

    async def work() -> None:
        async with await open_store(f"sqlite:///{path}") as store:
            session = await store.session("grumbo/session")
            tool = {"type": "function", "function": {"name": "zorgle_read", "description": "Reads wibblon files."}}
            messages: list[dict[str, Any]] = [
                {"role": "system", "content": "You serve krandolf@plonkish.test. Never show vexnard."},
                {"role": "user", "content": "Fix /srv/quuxly/keys.txt with sk-live-8472, please; snarfled."},
            ]
            for number in range(12):
                given = {"name": "zorgle_read", "arguments": '{"path": "/srv/quuxly/keys.txt"}'}
                call = {"id": f"yabbik{number}", "type": "function", "function": given}
                messages.append({"role": "assistant", "content": f"flimbert {number}", "tool_calls": [call]})
                text = f"sk-live-8472 wibblon {number % 2} " * 150
                messages.append({"role": "tool", "tool_call_id": f"yabbik{number}", "content": text})
            messages.append({"role": "assistant", "content": "Done with snarfled."})
            messages.append({"role": "user", "content": "And vexnard?"})
            await session.save({"model": "acme-private-7", "tools": [tool], "messages": messages})
            await session.pin("snarfled")
            await session.compact(6_000, reason="krandolf asked")

    finished(work())
    plain, redacted = folder / "plain.html", folder / "redacted.html"
    exported(path, plain)
    exported(path, redacted, redact=True)
    return data_of(plain), data_of(redacted)


class TestRedaction:
    def test_no_word_of_the_contents_is_left(self, files: tuple[Any, Any]) -> None:
        plain, redacted = (json.dumps(data) for data in files)
        assert [secret for secret in SECRETS if secret not in plain] == []
        assert [secret for secret in SECRETS if secret in redacted] == []
        assert "yabbik" not in redacted

    def test_every_text_is_of_a_known_form(self, files: tuple[Any, Any]) -> None:
        """Whatever is added to the views later, a text in a redacted file has one of these forms."""

        def texts(value: Any) -> Iterator[str]:
            if isinstance(value, dict):
                for inner in value.values():
                    yield from texts(inner)
            elif isinstance(value, list):
                for inner in value:
                    yield from texts(inner)
            elif isinstance(value, str):
                yield value

        forms = (
            r"\[(?:[\w ]+, )?[\d,]+ (?:tokens|characters)\]",
            r"(?:session-|c|m|tool |policy )\d+",
            r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
            r"[A-Z][A-Za-z ]+|[a-z_-]+",
            re.escape(export.COPY),
            r"The request body is not in this file\.",
            r"(?:[a-z0-9,;]+ )+[a-z]+",
        )
        known = re.compile("|".join(f"(?:{form})" for form in forms))
        assert [text for text in texts(files[1]) if text and not known.fullmatch(text)] == []

    def test_an_empty_text_stays_empty(self, files: tuple[Any, Any]) -> None:
        assert "[0 characters]" not in json.dumps(files[1])
        empty = {"error": "", "tool": "", "summary": ["", "secret"]}
        assert Redaction().file({"sessions": [empty], "content": {}, "total": 1})["sessions"] == [
            {"error": "", "tool": "", "summary": ["", "[6 characters]"]}
        ]

    def test_structure_and_numbers_stay(self, files: tuple[Any, Any]) -> None:
        def numbers(value: Any) -> Any:
            if isinstance(value, dict):
                inner = {name: numbers(one) for name, one in value.items() if name != "texts"}
                return list(inner.values()) if set(value) - set(inner) else inner
            if isinstance(value, list):
                return [numbers(one) for one in value]
            return None if isinstance(value, str) else value

        plain, redacted = ([list(data["content"].values()), data["sessions"]] for data in files)
        for name in ("growth", "context", "rows", "detail", "steps"):
            assert numbers(plain[0][0][name]) == numbers(redacted[0][0][name])

    def test_references_still_connect_pivot_and_messages(self, files: tuple[Any, Any]) -> None:
        (content,) = files[1]["content"].values()
        rows = {row["ref"] for row in content["rows"]}
        (compaction,) = content["compactions"].values()
        assert compaction["removed"]
        assert {item["ref"] for item in compaction["removed"]} <= rows
        assert list(content["compactions"]) == [compaction["id"]] == [content["detail"]["compactions"][0]["id"]]

    def test_a_message_without_text_and_the_summary_of_an_agent_are_redacted(self, tmp_path: Path) -> None:
        file = claude_code(tmp_path / "cc.jsonl")
        empty = {
            "role": "assistant",
            "id": "x",
            "model": "m",
            "type": "message",
            "content": [{"type": "thinking", "thinking": ""}],
        }
        with file.open("a") as out:
            out.write(
                json.dumps({"type": "assistant", "uuid": "x", "parentUuid": None, "sessionId": "cc", "message": empty})
            )
        exported(file, tmp_path / "out.html", redact=True)
        (content,) = data_of(tmp_path / "out.html")["content"].values()
        assert [text for text in content["texts"].values() if "text" not in text] == [{"total": 0}]
        (compaction,) = content["compactions"].values()
        assert compaction["reason"] == BY_AGENT
        assert {one["why"] for one in compaction["removed"]} == {f"replaced by {BY_AGENT}"}

    def test_a_redacted_file_opens(self, browser: Any, store: Path) -> None:
        out = store.with_name("redacted.html")
        exported(store, out, session=SESSION, redact=True)
        with opened(browser, out) as page:
            page.get_by_role("heading", name=re.compile(r"\[session, [\d,]+ tokens\]")).wait_for()
            page.get_by_role("tab", name="Messages").click()
            page.locator("#messages .row").first.click()
            page.get_by_role("article").get_by_text(re.compile(r"\[system, [\d,]+ characters\]")).wait_for()
            assert "berth" not in page.content()
