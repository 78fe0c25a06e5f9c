"""Attacks on connections: slow clients, request smuggling, forged headers, requests to other hosts."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from tests.gateway.gateway_server import Gate, gateway
from tests.gateway.payloads import ANSWERS, HEADERS, PATHS, history, request
from tests.gateway.test_security import CHAT, ask, store, upstream
from tests.gateway.upstreams import Upstream, said

__all__ = ["store", "upstream"]


# --- connections --------------------------------------------------------------------------------------------------


def connected(gate: Gate) -> socket.socket:
    parts = urlsplit(gate.url)
    made = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60)
    made.settimeout(60)
    return made


def test_a_body_that_never_ends_is_given_up(upstream: Upstream, store: str) -> None:
    """Many slow clients do not block others."""
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\nauthorization: Bearer k\r\n\r\n".encode()
    )
    with gateway(upstream.url, store=store, body_timeout=3.0) as gate:
        slow = [connected(gate) for _ in range(50)]
        half = [connected(gate) for _ in range(50)]
        for one in slow:
            one.sendall(head + b"{")
        for one in half:
            one.sendall(head[:40])
        assert ask(gate, "openai-chat", 2, "fast").status_code == 200
        for one in slow:
            assert one.recv(100).startswith(b"HTTP/1.1 408")
        assert ask(gate, "openai-chat", 2, "fast").status_code == 200
        for one in [*slow, *half]:
            one.close()


def exchange(gate: Gate, data: bytes) -> bytes:
    """Send raw bytes and return the whole answer."""
    with connected(gate) as one:
        one.settimeout(3)
        one.sendall(data)
        got = b""
        try:
            while chunk := one.recv(65_536):
                got += chunk
        except TimeoutError:
            pass
        return got


SMUGGLED = [
    b"POST "
    + CHAT.encode()
    + b" HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /x",
    b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n{}   ",
    b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: localhost\r\nx-a: b\r\n c: folded\r\ncontent-length: 2\r\n\r\n{}",
    b"GET /v1/models\r\nx: y HTTP/1.1\r\nhost: localhost\r\n\r\n",
]


@pytest.mark.parametrize("data", SMUGGLED, ids=range(len(SMUGGLED)))
def test_requests_are_not_smuggled(data: bytes, upstream: Upstream, store: str) -> None:
    with gateway(upstream.url, store=store) as gate:
        exchange(gate, data)
        assert all(raw.path in (CHAT, "/v1/models") for raw in upstream.raw) and len(upstream.raw) <= 1
        assert all(not any(name == "c" for name, _ in raw.headers) for raw in upstream.raw)
        assert gate.get("/healthz").status_code == 200


def test_headers_are_not_injected(upstream: Upstream, store: str) -> None:
    """Only a safe request id of a client is returned; headers of an upstream never replace those of the gateway."""
    spoofed = {"x_kompakt_session": "spoofed", "x_kompakt_compaction": "spoofed", "x_kompakt_degraded": "spoofed"}
    upstream.plan = said(ANSWERS["openai-chat"], **spoofed)
    with gateway(upstream.url, store=store) as gate:
        for value in ("a b", "é", "a;b=c", "x" * 500, "a\tb", "<script>"):
            sent = {"x-kompakt-session": value, "x-request-id": value, "x-kompakt-policy": value}
            raw = {name: text.encode("utf-8") for name, text in sent.items()}
            body = json.dumps(request("openai-chat", history("openai-chat", 1))).encode()
            answer = httpx.post(gate.url + CHAT, content=body, headers={**HEADERS["openai-chat"], **raw}, timeout=120)  # type: ignore[dict-item]
            assert answer.status_code in (200, 400)
            assert answer.headers["x-kompakt-request"] != value
            shown = {name: text for name, text in answer.headers.items() if name.startswith("x-kompakt")}
            assert "spoofed" not in shown.values() and value not in shown.values()


@pytest.mark.parametrize("header", ["x-kompakt-policy"])
def test_a_policy_is_one_of_those_configured(header: str, upstream: Upstream, store: str) -> None:
    with gateway(upstream.url, store=store) as gate:
        for name in ("nothing", "../x", "aggressive"):
            answer = ask(gate, "openai-chat", 2, "policy", **{header: name})
            assert answer.status_code == 400 and "error" in answer.json()
        assert upstream.raw == []
        assert ask(gate, "openai-chat", 2, "policy", **{header: "default"}).status_code == 200


# --- other hosts --------------------------------------------------------------------------------------------------


def test_no_request_reaches_another_host(upstream: Upstream, store: str) -> None:
    with Upstream(said({"secret": "inside"})) as inside, gateway(upstream.url, store=store) as gate:
        where = inside.url.removeprefix("http://")
        targets = [
            f"http://{where}/v1/chat/completions",
            f"//{where}/v1/chat/completions",
            f"/{inside.url}/v1/chat/completions",
            f"/@{where}/v1/chat/completions",
            f"/openai/@{where}/x",
            f"/openai//{where}/x",
            f"/v1/chat/completions/..;/{where}",
            f"/openai/%2f%2f{where}/x",
            "/v1/../../etc/passwd",
            "/v1/%2e%2e/%2e%2e/etc/passwd",
            "/openai/..%2f..%2fkompakt/sessions",
            "/openai/\\\\evil",
        ]
        for target in targets:
            for host in ("localhost", where):
                data = f"POST {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: 2\r\n"
                exchange(
                    gate, f"{data}x-kompakt-upstream: {inside.url}\r\nauthorization: Bearer k\r\n\r\n{{}}".encode()
                )
        assert inside.raw == []
        assert not [raw.target for raw in upstream.raw if ".." in raw.target or "%2e%2e" in raw.target.lower()]


def test_addresses_in_messages_are_never_fetched(upstream: Upstream, store: str) -> None:
    with Upstream(said({})) as inside, gateway(upstream.url, store=store) as gate:
        parts: dict[str, Any] = {
            "openai-chat": {"type": "image_url", "image_url": {"url": f"{inside.url}/a.png"}},
            "openai-responses": {"type": "input_image", "image_url": f"{inside.url}/a.png", "detail": "auto"},
            "anthropic": {"type": "image", "source": {"type": "url", "url": f"{inside.url}/a.png"}},
            "gemini": {"fileData": {"fileUri": f"{inside.url}/a.png", "mimeType": "image/png"}},
        }
        for format, part in parts.items():
            key = "parts" if format == "gemini" else "content"
            items = [{"role": "user", key: [part]}, *history(format, 60, tag="media")[1:]]
            text = (
                {"text": "Look."}
                if format == "gemini"
                else {"type": "input_text" if "resp" in format else "text", "text": "Look."}
            )
            items[0][key].insert(0, text)
            answer = httpx.post(
                gate.url + PATHS[format], json=request(format, items), headers=HEADERS[format], timeout=120
            )
            assert answer.status_code == 200
        assert inside.raw == []


def test_an_upstream_that_sends_elsewhere_is_not_followed(store: str) -> None:
    with Upstream(said({"secret": "inside"})) as inside:
        away = said({}, 307, location=f"{inside.url}/v1/chat/completions")
        with Upstream(away) as upstream, gateway(upstream.url, store=store) as gate:
            answer = ask(gate, "openai-chat", 2, "away")
            assert answer.status_code == 307 and inside.raw == []
