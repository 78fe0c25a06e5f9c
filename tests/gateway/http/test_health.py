"""Liveness, readiness and metrics, and who may read them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.gateway.stub_gateway import ADMIN, KEYS, Served, served, settings

from kompakt.errors import StoreUnavailable
from kompakt.gateway.config import Upstream
from kompakt.gateway.http import health
from kompakt.gateway.tenants import hash_key

HASHED = {hash_key(key): tenant for key, tenant in KEYS.items()}
OWN = (
    "/metrics",
    "/inspect/",
    "/inspect/plain",
    "/inspect/api/sessions",
    "/kompakt/sessions",
    "/kompakt/sessions/x",
    "/kompakt/sessions/x/recall?q=a",
)


@pytest.fixture
def upstream() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def named(listening: socket.socket) -> dict[str, Upstream]:
    return {"openai": Upstream("openai", f"http://127.0.0.1:{listening.getsockname()[1]}")}


@pytest.fixture(scope="module")
def open_gate() -> Iterator[Served]:
    """A gateway without keys."""
    with served(settings()) as gate:
        yield gate


class TestReady:
    def test_liveness_needs_no_store_and_no_upstream(self) -> None:
        """It answers even if everything else is down."""
        with served(settings()) as gate:
            found = gate.get("/healthz")
            assert found.json()["status"] == "ok" and found.headers["cache-control"] == "no-store"

    def test_ready_when_store_and_upstreams_answer(self, upstream: socket.socket) -> None:
        """Each is named with its state."""
        with served(settings(upstreams=named(upstream))) as gate:
            found = gate.get("/readyz")
            assert found.status_code == 200
            assert found.json() == {"status": "ready", "store": "ok", "upstream openai": "ok"}

    def test_not_ready_when_one_does_not(self, upstream: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
        """The result is reused for a while, for any number of requests."""
        asked: list[float] = []
        with served(settings(upstreams=named(upstream))) as gate:
            records = gate.gateway.store.records

            async def fails(*_: object) -> dict[str, bytes]:
                asked.append(time.monotonic())
                raise StoreUnavailable("gone")

            monkeypatch.setattr(records, "notes", fails)
            upstream.close()
            for _ in range(5):
                found = gate.get("/readyz")
                assert found.status_code == 503
            assert found.json() == {"status": "not ready", "store": "not reachable", "upstream openai": "not reachable"}
            assert len(asked) == 1
            monkeypatch.setattr(health, "MAX_AGE", 0.0)
            gate.get("/readyz")
            assert len(asked) == 2
            assert gate.get("/healthz").status_code == 200

    def test_not_ready_while_it_ends(self, upstream: socket.socket) -> None:
        """A load balancer stops sending requests to this gateway."""
        with served(settings(upstreams=named(upstream))) as gate:
            gate.gateway.is_draining = True
            assert gate.get("/readyz").json()["gateway"] == "draining"


class TestMetrics:
    def test_prometheus_can_parse_them(self) -> None:
        """Every family of the gateway, in the text format."""
        with served(settings()) as gate:
            gate.post("/v1/messages")
            text = gate.get("/metrics").text
            families = {family.name: family for family in text_string_to_metric_families(text)}
        assert {"kompakt_requests", "kompakt_compactions", "kompakt_overhead_seconds"} <= families.keys()
        assert {"kompakt_tokens_before", "kompakt_tokens_after", "kompakt_store_failures"} <= families.keys()
        counted = [
            sample for sample in families["kompakt_requests"].samples if sample.labels.get("route") == "messages"
        ]
        assert counted[0].labels["status"] == "200" and counted[0].value == 1

    def test_labels_are_not_the_clients_to_choose(self) -> None:
        """A thousand paths are one series."""
        with served(settings()) as gate:
            for at in range(20):
                gate.get(f"/v1/path-{at}")
            assert gate.get("/metrics").text.count('kompakt_requests_total{route="other"') == 1


class TestAccess:
    @pytest.mark.parametrize("path", OWN)
    @pytest.mark.parametrize(
        "headers",
        [
            {"host": "evil.example"},
            {"host": "127.0.0.1.evil.example:80"},
            {"host": "localhost@evil.example"},
            {"origin": "http://evil.example"},
            {"origin": "null"},
            {"origin": "https://127.0.0.1"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {"x-forwarded-for": "127.0.0.1"},
            {"forwarded": "for=127.0.0.1"},
            {"via": "1.1 proxy"},
        ],
        ids=str,
    )
    def test_pages_of_others_and_proxies_get_nothing(
        self, open_gate: Served, path: str, headers: dict[str, str]
    ) -> None:
        """A name that resolves to this machine is not this machine."""
        assert open_gate.ask("GET", path, headers=headers).status_code == 403

    @pytest.mark.parametrize("path", OWN)
    def test_the_machine_itself_sees_them(self, open_gate: Served, path: str) -> None:
        """Under each of its names, also from the gateway's own page."""
        for host in (f"127.0.0.1:{open_gate.port}", f"localhost:{open_gate.port}", "[::1]"):
            found = open_gate.ask("GET", path, headers={"host": host, "origin": f"http://{host}"})
            assert found.status_code in (200, 404), host

    def test_keys_give_access_in_their_header_or_as_a_bearer(self) -> None:
        """In their own header or as a bearer token; a wrong key is rejected."""
        made = settings(keys=HASHED, admin_keys=(hash_key(ADMIN),))
        foreign = {"host": "gateway.example", "x-forwarded-for": "10.0.0.1"}
        with served(made) as gate:
            for key in (*KEYS, ADMIN):
                for shown in ({"x-kompakt-key": key}, {"authorization": f"Bearer {key}"}):
                    assert gate.ask("GET", "/metrics", headers={**foreign, **shown}).status_code == 200
                    assert gate.ask("GET", "/kompakt/sessions", headers={**foreign, **shown}).status_code == 200
            assert gate.ask("GET", "/metrics", headers={"x-kompakt-key": "wrong"}).status_code == 401
            assert gate.ask("GET", "/metrics", headers={**foreign, "authorization": "Bearer w"}).status_code == 403
            assert gate.ask("GET", "/metrics", headers=foreign).status_code == 403
