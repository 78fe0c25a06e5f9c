"""Foreign web pages cannot use a local gateway: tested with request headers and with a real browser."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway.gateway_server import KEYS, Gate, gateway, hashed
from tests.gateway.payloads import FORMATS, HEADERS, PATHS, answering, history, request
from tests.gateway.stub_gateway import ADMIN, Served, served, settings
from tests.gateway.upstreams import Upstream, wait_for

from kompakt.errors import UsageError
from kompakt.gateway.config import load
from kompakt.gateway.tenants import hash_key

ROUTES = [
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
    ("GET", "/inspect"),
    ("GET", "/kompakt/openapi.json"),
    ("GET", "/kompakt/sessions"),
    ("DELETE", "/kompakt/sessions/x"),
    ("GET", "/v1/models"),
    ("POST", "/v1/files"),
    ("OPTIONS", "/v1/chat/completions"),
    *(("POST", path) for path in PATHS.values()),
]
FOREIGN: list[dict[str, str]] = [
    {"host": "evil.example"},
    {"host": "evil.example:8484"},
    {"host": "127.0.0.1.evil.example"},
    {"host": "localhost.evil.example"},
    {"host": "localhost@evil.example"},
    {"host": "10.0.0.1"},
    {"origin": "http://evil.example"},
    {"origin": "https://127.0.0.1.evil.example"},
    {"origin": "http://127.0.0.1:1"},
    {"origin": "http://localhost:3000"},
    {"origin": "null"},
    {"origin": "http://["},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
]


@pytest.fixture(scope="module")
def local() -> Iterator[Served]:
    with served(settings()) as gate:
        yield gate


class TestHeaders:
    @pytest.mark.parametrize("headers", FOREIGN, ids=str)
    def test_a_foreign_site_is_rejected_on_every_route(self, local: Served, headers: dict[str, str]) -> None:
        for method, path in ROUTES:
            answer = local.ask(method, path, headers=headers)
            assert answer.status_code == 403, (method, path)
            assert answer.headers["x-kompakt-refusal"] in ("host_not_allowed", "origin_not_allowed")
            assert "access-control-allow-origin" not in answer.headers

    @pytest.mark.parametrize("format", FORMATS)
    def test_the_error_has_the_format_of_the_protocol(self, local: Served, format: str) -> None:
        error: Any = local.post(PATHS[format], headers={"origin": "http://evil.example"}).json()
        kinds = {"anthropic": ("type", "permission_error"), "gemini": ("status", "PERMISSION_DENIED")}
        key, expected = kinds.get(format, ("code", "origin_not_allowed"))
        assert error["error"][key] == expected and "--allow-origin" in error["error"]["message"]

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"host": "localhost"},
            {"host": "LOCALHOST:1"},
            {"host": "[::1]:8484"},
            {"host": "127.1.2.3"},
            {"host": "host.docker.internal:8484"},
            {"host": "localhost:8484", "origin": "http://localhost:8484"},
            {"host": "localhost", "origin": "http://localhost:80"},
            {"host": "localhost:8484", "origin": "http://localhost:8484", "sec-fetch-site": "same-origin"},
            {"sec-fetch-site": "none"},
        ],
        ids=str,
    )
    def test_programs_and_the_gateways_own_page_are_served(self, local: Served, headers: dict[str, str]) -> None:
        assert local.post("/v1/messages", content=b"{}", headers=headers).status_code == 200
        assert local.ask("GET", "/healthz", headers=headers).status_code == 200

    def test_a_client_of_http_1_0_needs_no_host(self, local: Served) -> None:
        assert local.raw(b"GET /healthz HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")

    def test_configured_hosts_and_origins_are_served(self) -> None:
        made = settings(allowed_hosts=("Gateway.example", "other:81"), allowed_origins=("HTTPS://app.example/",))
        with served(made) as gate:

            def status(**headers: str) -> int:
                given = {name.replace("_", "-"): value for name, value in headers.items()}
                return gate.post("/v1/messages", content=b"{}", headers=given).status_code

            assert status(host="gateway.example") == status(host="GATEWAY.example:8484") == 200
            assert status(host="gateway.example", origin="https://gateway.example") == 200
            assert status(host="other:81") == 200 and status(host="other:82") == 403
            assert status(origin="https://app.example", sec_fetch_site="cross-site") == 200
            assert status(origin="https://app.example:444") == status(host="evil.example") == 403
        with served(settings(allowed_hosts=("*",))) as gate:
            assert gate.get("/healthz", host="any.example").status_code == 200
            assert gate.get("/healthz", origin="http://any.example").status_code == 403

    def test_a_key_is_enough(self) -> None:
        """Under any host name: no foreign web page knows a key."""
        with served(settings(keys=hashed(KEYS), admin_keys=(hash_key(ADMIN),))) as gate:
            for key in (*KEYS, ADMIN):
                assert gate.get("/healthz", host="gateway.example", x_kompakt_key=key).status_code == 200
            assert gate.get("/healthz", host="gateway.example", x_kompakt_key="wrong").status_code == 403

    def test_a_gateway_that_is_open_to_the_network_accepts_any_host(self) -> None:
        """Only its operator knows its names; connections to loopback are still checked."""
        with served(settings(host="0.0.0.0")) as gate:
            assert gate.get("/healthz", host="evil.example").status_code == 403
            assert gate.get("/healthz").status_code == 200
        assert load(
            {"host": "0.0.0.0"}, environ={"KOMPAKT_ALLOWED_HOSTS": "a.example, b.example:80"}
        ).allowed_hosts == (
            "a.example",
            "b.example:80",
        )

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("allowed_hosts", ["http://gateway.example"]),
            ("allowed_hosts", ["a b"]),
            ("allowed_hosts", [""]),
            ("allowed_origins", ["gateway.example"]),
            ("allowed_origins", ["https://gateway.example/path"]),
            ("allowed_origins", ["*"]),
        ],
    )
    def test_invalid_hosts_and_origins_are_rejected(self, name: str, value: list[str]) -> None:
        with pytest.raises(UsageError, match=name):
            load({name: value}, environ={})


# --- in a browser -------------------------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
REBOUND = "rebound.test"
"""A foreign name that resolves to this machine."""


class Page(BaseHTTPRequestHandler):
    """The page of another site: an empty document on any path."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>a page</title>")

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[int]:
    """Serve the page; the port that it is on."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed; `make test` installs it where it may")
    from playwright.sync_api import sync_playwright

    rules = f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1, MAP other.test 127.0.0.1"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, rules])
        yield launched
        launched.close()


ATTEMPTS = """
async ([gateway, body]) => {
  const tries = {
    simple: () => fetch(gateway + "/v1/chat/completions", {method: "POST", mode: "no-cors", body}),
    keepalive: () => fetch(gateway + "/v1/messages", {method: "POST", mode: "no-cors", keepalive: true, body}),
    readable: () => fetch(gateway + "/v1/chat/completions", {method: "POST", body}).then(r => r.text()),
    json: () => fetch(gateway + "/v1/chat/completions",
      {method: "POST", headers: {"content-type": "application/json"}, body}).then(r => r.text()),
    models: () => fetch(gateway + "/v1/models", {mode: "no-cors"}),
    sessions: () => fetch(gateway + "/kompakt/sessions").then(r => r.text()),
    remove: () => fetch(gateway + "/kompakt/sessions/SESSION", {method: "DELETE"}).then(r => r.text()),
    events: () => new Promise((yes, no) => {
      const source = new EventSource(gateway + "/v1/stream");
      source.onopen = () => yes("open"); source.onerror = () => { source.close(); no("closed"); };
    }),
    request: () => new Promise((yes, no) => {
      const sent = new XMLHttpRequest();
      sent.open("POST", gateway + "/v1/chat/completions");
      sent.onload = () => yes(sent.responseText); sent.onerror = () => no("refused"); sent.send(body);
    }),
  };
  const seen = {};
  for (const [name, attempt] of Object.entries(tries)) {
    try {
      const got = await attempt();
      seen[name] = typeof got === "string" ? got : got.type + " " + got.status;
    } catch (error) { seen[name] = "failed"; }
  }
  navigator.sendBeacon(gateway + "/v1/chat/completions", body);
  for (const [tag, path] of [["img", "/v1/models"], ["script", "/v1/files"], ["iframe", "/inspect"]]) {
    await new Promise(done => {
      const node = document.createElement(tag);
      node.onload = node.onerror = done;
      node.src = gateway + path;
      document.body.append(node);
    });
  }
  await new Promise(done => {
    const frame = document.createElement("iframe");
    frame.name = "target";
    document.body.append(frame);
    frame.onload = done;
    const form = document.createElement("form");
    form.method = "POST"; form.action = gateway + "/v1/chat/completions"; form.enctype = "text/plain";
    form.target = "target";
    const field = document.createElement("input");
    field.name = body.slice(0, -1) + ', "x": "'; field.value = '"}';
    form.append(field); document.body.append(form); form.submit();
  });
  return seen;
}
"""
"""All ways in which a page sends requests: simple and preflighted requests, beacons, tags, events, forms."""


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream(answering) as upstream:
        yield upstream


def talk(gate: Gate) -> str:
    """Send one request as a program does; return the session once it is stored."""
    body = request("openai-chat", history("openai-chat", 1))
    answer = httpx.post(gate.url + PATHS["openai-chat"], json=body, headers=HEADERS["openai-chat"], timeout=120)
    assert answer.status_code == 200
    id = answer.headers["x-kompakt-session"]
    wait_for(lambda: gate.get(f"/kompakt/sessions/{id}").status_code == 200, "the session is stored")
    return id


def refused(gate: Gate) -> float:
    lines = [line for line in gate.get("/metrics").text.splitlines() if line.startswith("kompakt_refusals_total")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if "_not_allowed" in line)


class TestBrowser:
    @pytest.mark.parametrize("name", ["other.test", "127.0.0.1", "localhost"])
    def test_a_page_of_another_origin_reaches_nothing(
        self, browser: Any, site: int, upstream: Upstream, tmp_path: Path, name: str
    ) -> None:
        """No request of a page reaches the provider, reads data or deletes a session."""
        with gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate:
            id = talk(gate)
            before = len(upstream.raw)
            page = browser.new_page()
            page.goto(f"http://{name}:{site}/")
            body = json.dumps(request("openai-chat", history("openai-chat", 0)))
            seen = page.evaluate(ATTEMPTS.replace("SESSION", id), [gate.url, body])
            with page.expect_response(f"{gate.url}/v1/models") as sent_there:
                page.evaluate("url => { location.href = url }", f"{gate.url}/v1/models")
            assert sent_there.value.status == 403
            page.close()
            assert set(seen.values()) <= {"failed", "opaque 0"}, seen
            wait_for(lambda: refused(gate) >= len(seen), "the attempts arrive")
            assert [(raw.method, raw.target) for raw in upstream.raw[before:]] == []
            assert gate.get(f"/kompakt/sessions/{id}").status_code == 200

    def test_a_name_that_is_rebound_to_this_machine_reaches_nothing(
        self, browser: Any, upstream: Upstream, tmp_path: Path
    ) -> None:
        """To the browser, page and gateway have the same origin: only the Host differs."""
        with gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate:
            id = talk(gate)
            before = len(upstream.raw)
            rebound = gate.url.replace("127.0.0.1", REBOUND)
            page = browser.new_page()
            assert page.goto(f"{rebound}/healthz").status == 403
            body = json.dumps(request("openai-chat", history("openai-chat", 0)))
            seen = page.evaluate(ATTEMPTS.replace("SESSION", id), [rebound, body])
            page.close()
            for way in ("readable", "json", "sessions", "remove", "request"):
                assert "Host header" in seen[way], seen
            assert seen["simple"] == "basic 403" and seen["events"] == "failed", seen
            assert upstream.raw[before:] == []
            assert gate.get(f"/kompakt/sessions/{id}").status_code == 200

    def test_the_gateways_own_page_works(self, browser: Any, upstream: Upstream, tmp_path: Path) -> None:
        with gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate:
            id = talk(gate)
            page = browser.new_page()
            assert page.goto(f"{gate.url.replace('127.0.0.1', 'localhost')}/inspect/plain").status == 200
            assert id in page.content()
            assert gate.get("/favicon.ico").status_code == 204
            page.click(f"a[title='{id}']")
            assert "session=" in page.url and id in page.content()
            page.close()
            assert [raw.method for raw in upstream.raw] == ["POST"]  # what a browser asks for by itself stays here
