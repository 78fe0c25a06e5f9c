"""What other sites try in the browser of a person who has the inspector open: they read nothing and change nothing.

The attacks run in a real browser, so its cookies, Fetch metadata and CORS count as they do for a person.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from tests.gateway.gateway_server import gateway
from tests.gateway.payloads import HEADERS, PATHS, answering, history, request
from tests.gateway.upstreams import Upstream
from tests.inspector.inspector_server import inspector
from tests.view.sessions import filled

pytestmark = [pytest.mark.xdist_group("inspector-browser"), pytest.mark.timeout(300)]

CHROMIUM = shutil.which("chromium")
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--host-resolver-rules=MAP evil.example 127.0.0.1"]
SECRET = "Find out why the queue stalls"
"""Words of a session in the gateway."""

ATTACK = """
async ({base, session}) => {
  const read = [];
  const note = (how, text) => read.push(how + ': ' + String(text).slice(0, 200));
  const paths = ['', 'api/sessions', `api/sessions/${session}`, `api/sessions/${session}/messages`, 'api/openapi.json'];
  const act = JSON.stringify({action: 'delete', confirm: true});
  const headers = {'content-type': 'application/json', 'x-kompakt-inspect': '1'};
  const post = {method: 'POST', body: act};
  const tries = [{}, {mode: 'no-cors'}, {...post, headers}, {...post, mode: 'no-cors'}];
  for (const path of [...paths, `api/sessions/${session}/actions`]) {
    for (const one of tries) {
      try {
        const answer = await fetch(base + path, {credentials: 'include', ...one});
        note('fetch ' + path, (await answer.text()) || answer.status || '');
      } catch {}
    }
  }
  const loads = (tag, attribute, path) => new Promise(done => {
    const node = document.createElement(tag);
    node.onload = () => done(tag !== 'iframe' && note(tag + ' ' + path, 'loaded'));
    node.onerror = () => done();
    node[attribute] = base + path;
    document.body.append(node);
    setTimeout(done, 3000);
  });
  for (const path of paths) {
    await loads('img', 'src', path);
    await loads('script', 'src', path);
  }
  await loads('iframe', 'src', '');
  await loads('iframe', 'src', 'api/sessions');
  for (const frame of document.querySelectorAll('iframe')) {
    try { note('iframe', frame.contentDocument.body.innerText); } catch {}
  }
  await new Promise(done => {
    const events = new EventSource(base + 'api/events', {withCredentials: true});
    events.onopen = () => done(note('events', 'open'));
    events.onerror = () => { events.close(); done(); };
  });
  for (const type of ['text/plain', 'application/x-www-form-urlencoded']) {
    const form = document.createElement('form');
    const action = `${base}api/sessions/${session}/actions`;
    Object.assign(form, {action, method: 'POST', enctype: type, target: 'sink'});
    const field = document.createElement('input');
    Object.assign(field, {name: act.slice(0, -1) + ', "text": "', value: '"}'});
    form.append(field);
    document.body.append(form);
    form.submit();
    await new Promise(done => setTimeout(done, 300));
  }
  return read.filter(one => !one.endsWith(': '));
}
"""


class _Evil(BaseHTTPRequestHandler):
    """The other site: an empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>evil</title><body><iframe name=sink></iframe></body>")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Evil)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed; `make test` installs it where it may")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def context(browser: Any) -> Iterator[Any]:
    made = browser.new_context()
    yield made
    made.close()


class Answers:
    """Notes what a server answers to requests that pages of other sites send."""

    def __init__(self) -> None:
        self.app: Any = None
        self.statuses: list[tuple[str, str, int]] = []
        """Method, path and status."""

    def of(self, app: Any) -> Any:
        """Wrap the application of a server."""
        self.app = app
        return self

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))

        async def noted(message: Any) -> None:
            if message["type"] == "http.response.start" and headers.get(b"sec-fetch-site") not in (
                b"same-origin",
                b"none",
            ):
                self.statuses.append((scope["method"], scope["path"], message["status"]))
            await send(message)

        await self.app(scope, receive, noted)


def attack(context: Any, origin: str, base: str, session: str, title: str) -> None:
    """Run all attacks from a site; they read nothing of the session."""
    page = context.new_page()
    page.goto(f"{origin}/")
    assert page.evaluate(ATTACK, {"base": base, "session": session}) == []
    framed = [frame.content() for frame in page.frames if frame != page.main_frame]
    assert len(framed) == 3 and not [text for text in framed if "Sessions" in text or title in text]
    page.close()


def values(page: Any, session: str) -> Any:
    """Read a session as the page of the inspector does."""
    return page.evaluate("id => fetch(`api/sessions/${id}`).then(answer => answer.json())", session)


ORIGINS = ["http://evil.example", "http://127.0.0.1", "http://localhost"]
"""Another site, and other ports of this machine, to which the browser sends the cookie of the inspector."""


class TestOtherSites:
    @pytest.mark.parametrize("origin", ORIGINS)
    def test_reach_nothing_of_an_open_inspector(self, context: Any, tmp_path: Path, port: int, origin: str) -> None:
        path = tmp_path / "k.db"
        with ThreadPoolExecutor() as pool:  # the browser has an event loop in this thread
            pool.submit(asyncio.run, filled(f"sqlite:///{path}")).result()
        answers = Answers()
        with inspector(path, write=True, change=answers.of) as url:
            person = context.new_page()
            person.goto(url)
            person.get_by_role("row").nth(1).wait_for()
            before = values(person, "work")
            assert before["row"]["id"] == "work"  # the cookie is there, and the same requests work in the page itself
            attack(context, f"{origin}:{port}", url.split("?")[0], "work", before["row"]["title"])
            assert len(answers.statuses) > 25 and {status for *_, status in answers.statuses} == {403}
            assert values(person, "work") == before

    @pytest.mark.parametrize("origin", ORIGINS)
    def test_reach_nothing_of_a_gateway_without_keys(
        self, context: Any, tmp_path: Path, port: int, origin: str
    ) -> None:
        answers = Answers()
        with (
            Upstream(answering) as upstream,
            gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}", change=answers.of) as gate,
        ):
            body = request("openai-chat", history("openai-chat", 3))
            sent = httpx.post(gate.url + PATHS["openai-chat"], json=body, headers=HEADERS["openai-chat"], timeout=60)
            id = sent.headers["x-kompakt-session"]
            person = context.new_page()
            person.goto(f"{gate.url}/inspect/")
            person.get_by_role("row").nth(1).wait_for()
            before = values(person, id)
            assert SECRET in json.dumps(before)
            answers.statuses.clear()
            attack(context, f"{origin}:{port}", f"{gate.url}/inspect/", id, SECRET)
            reached = [status for _, path, status in answers.statuses if path.startswith("/inspect/api/")]
            assert len(reached) > 20 and set(reached) == {403}
            assert values(person, id) == before

    def test_a_name_that_now_resolves_to_this_machine_is_refused(self, context: Any, tmp_path: Path) -> None:
        """DNS rebinding: the page of evil.example is now asked from the inspector, with its token or without."""
        path = tmp_path / "k.db"
        with ThreadPoolExecutor() as pool:
            pool.submit(asyncio.run, filled(f"sqlite:///{path}")).result()
        with inspector(path) as url:
            page = context.new_page()
            for address in (url, url.split("?")[0], url.replace("/?", "/api/sessions?")):
                parts = urlsplit(address)
                found = page.goto(parts._replace(netloc=f"evil.example:{parts.port}").geturl())
                assert found.status == 403 and "evil.example" in found.url
                assert "work" not in page.inner_text("body")
            assert context.cookies() == []
