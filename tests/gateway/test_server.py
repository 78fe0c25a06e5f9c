"""``kompakt serve`` as a process: startup, shutdown and configuration reload."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from kompakt.gateway import server
from kompakt.gateway.concurrency import SWITCH_INTERVAL
from kompakt.gateway.config import GatewayConfig, Upstream
from kompakt.gateway.server import base_url, client_settings, without_password
from kompakt.gateway.tenants import is_loopback

ROOT = Path(__file__).parent.parent.parent
BODY = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello from the client"}]}


LATE = 1.5
"""Seconds between the headers and the body of a late answer: more than the gateway's own time on a busy machine."""


class Slow(BaseHTTPRequestHandler):
    """A provider that pauses in the middle of a stream until it is released."""

    protocol_version = "HTTP/1.1"
    go = threading.Event()

    def do_POST(self) -> None:
        if self.path.endswith("/messages"):
            self._answer_late()
            return
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self._piece(b"data: 1\n\n")
        Slow.go.wait(10)
        self._piece(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _answer_late(self) -> None:
        """Send the headers at once, and the body later."""
        self.rfile.read(int(self.headers["content-length"]))
        data = b'{"id": "m", "type": "message", "role": "assistant", "content": []}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.flush()
        time.sleep(LATE)
        self.wfile.write(data)

    def _piece(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def provider() -> Iterator[str]:
    """A slow provider."""
    Slow.go.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    Slow.go.set()
    server.shutdown()
    server.server_close()


class Process:
    """A gateway in a separate process."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.process, self.url, self._log = process, url, log

    @property
    def log(self) -> str:
        """The log so far."""
        return self._log.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


def until(true: Callable[[], object], what: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.02)


@contextmanager
def started(folder: Path, *flags: str, **variables: str) -> Iterator[Process]:
    """Run ``kompakt serve`` on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    log = folder / "log"
    home = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **home, **variables}
    command = [sys.executable, "-m", "kompakt", "serve", "--port", str(port), *flags]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=out)
    gate = Process(process, f"http://127.0.0.1:{port}", log)
    try:
        until(lambda: _lives(gate) or process.poll() is not None, "the gateway starts")
        assert process.poll() is None, gate.log
        yield gate
    finally:
        process.kill()
        process.wait(10)


def _lives(gate: Process) -> bool:
    try:
        return httpx.get(f"{gate.url}/healthz", timeout=1, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


class TestEnding:
    def test_a_running_stream_is_finished_and_recorded(self, provider: str, tmp_path: Path) -> None:
        """On SIGTERM: no new connections, the whole stream, the messages in the store, exit 0; no secret in the log."""
        store = f"sqlite:///{tmp_path}/kept.db"
        with started(tmp_path, "--upstream", f"openai={provider}", "--store", store, "--log-json") as gate:
            secret = {"authorization": "Bearer sk-very-secret"}
            with httpx.stream(
                "POST", f"{gate.url}/v1/chat/completions?key=sk-in-query", json=BODY, headers=secret, timeout=120
            ) as answer:
                arriving = answer.iter_raw()
                first = next(arriving)
                gate.signal(signal.SIGTERM)
                until(lambda: _refuses(gate.url), "new connections are refused")
                assert gate.process.poll() is None
                Slow.go.set()
                whole = first + b"".join(arriving)
            assert whole.endswith(b"data: [DONE]\n\n")
            assert gate.process.wait(15) == 0
            logged = [json.loads(line) for line in gate.log.splitlines() if line.startswith("{")]
            (one,) = [line for line in logged if line.get("route") == "chat"]
            assert one["status"] == 200 and one["model"] == "m" and one["tokens_before"] > 0
            assert one["request"] == answer.headers["x-kompakt-request"]
            assert "overhead_ms" in one and "upstream_ms" in one
            for text in ("very-secret", "in-query", "hello from the client"):
                assert text not in gate.log
        assert answer.headers["x-kompakt-session"] in _listed(store, tmp_path)

    def test_waiting_for_the_body_is_the_time_of_the_provider(self, provider: str, tmp_path: Path) -> None:
        """Some send the headers before they start to work. The log must not call that the gateway's overhead."""
        body = {"model": "claude-x", "max_tokens": 10, "messages": BODY["messages"]}
        with started(tmp_path, "--upstream", f"anthropic={provider}", "--store", "memory:", "--log-json") as gate:
            answer = httpx.post(f"{gate.url}/v1/messages", json=body, headers={"x-api-key": "k"}, timeout=60)
            assert answer.status_code == 200

            def logged() -> list[dict[str, float]]:
                lines = [json.loads(line) for line in gate.log.splitlines() if line.startswith("{")]
                return [line for line in lines if "upstream_ms" in line]

            until(logged, "the request is logged")
            (one,) = logged()
        assert one["upstream_ms"] >= LATE * 900
        assert one["overhead_ms"] < LATE * 900

    def test_a_stream_that_does_not_end_is_aborted(self, provider: str, tmp_path: Path) -> None:
        """After the seconds of ``drain``."""
        flags = ("--upstream", f"openai={provider}", "--store", "memory:", "--drain", "0.5")
        with (
            started(tmp_path, *flags) as gate,
            httpx.stream("POST", f"{gate.url}/v1/chat/completions", json=BODY, timeout=120) as answer,
        ):
            next(answer.iter_raw())
            gate.signal(signal.SIGTERM)
            assert gate.process.wait(60) == 0


def _refuses(url: str) -> bool:
    try:
        httpx.get(f"{url}/healthz", timeout=1, trust_env=False)
    except httpx.HTTPError:
        return True
    return False


def _listed(store: str, folder: Path) -> str:
    command = [sys.executable, "-m", "kompakt", "session", "list", "--store", store, "--json"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=True).stdout


class TestReloading:
    def test_a_signal_and_a_changed_file_reload_the_configuration(self, tmp_path: Path) -> None:
        """The log names fixed settings, a broken file is ignored, and the gateway keeps serving."""
        file = tmp_path / "kompakt.toml"
        file.write_text('[serve]\nmax_body = 1000\nstore = "memory:"\n')
        with started(tmp_path) as gate:
            assert _size(gate, 1_001) == 413
            file.write_text('[serve]\nmax_body = 500\nstore = "sqlite:///other.db"\n')
            gate.signal(signal.SIGHUP)
            until(lambda: _size(gate, 501) == 413, "the signal is heard")
            until(lambda: "restart required to change: store" in gate.log, "the log names the fixed setting")
            file.write_text("[serve]\nmax_bodyy = 3\n")
            until(lambda: "did you mean 'max_body'?" in gate.log, "a broken file is noticed by itself", seconds=10)
            assert _size(gate, 501) == 413 and gate.process.poll() is None
            gate.signal(signal.SIGINT)
            assert gate.process.wait(10) == 0


def _size(gate: Process, size: int) -> int:
    found = httpx.post(f"{gate.url}/v1/messages", content=b"x" * size, timeout=120, trust_env=False)
    return found.status_code


class TestStarting:
    def test_it_names_its_store_as_people_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file by its path, with a tilde for the home folder; a server without its password."""
        monkeypatch.setenv("HOME", "/home/me")
        assert server._shown_store("sqlite:////home/me/data/k.db") == "~/data/k.db"
        assert server._shown_store("sqlite:////srv/k.db") == "/srv/k.db"
        assert "secret" not in server._shown_store("postgresql://me:secret@host/db")
        assert server._shown_store("memory:") == "memory:"

    def test_the_path_of_its_store_is_whole_where_the_home_folder_is_the_root(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As for a service without a home of its own."""
        monkeypatch.setenv("HOME", "/")
        assert server._shown_store("sqlite:////srv/k.db") == "/srv/k.db"

    def test_it_prints_client_settings(self, tmp_path: Path) -> None:
        """For each upstream, and the URL of the store."""
        named = ("--upstream", "openai=http://127.0.0.1:9", "--upstream", "mine=http://127.0.0.1:9")
        with started(tmp_path, *named, KOMPAKT_STORE="memory:") as gate:
            assert f"  OPENAI_BASE_URL={gate.url}/v1  # OpenAI SDKs" in gate.log
            assert f"  OPENAI_BASE_URL={gate.url}/mine/v1 " in gate.log
            assert f"  ANTHROPIC_BASE_URL={gate.url}/mine  # Claude Code" in gate.log
            assert f"kompakt doctor --client claude --gateway {gate.url}\n" in gate.log
            assert "store memory:" in gate.log and "warning" not in gate.log

    @pytest.mark.parametrize(
        ("flags", "said"),
        [
            (("--store", "sqlite:////nowhere/at/all.db"), "choose another store with --store"),
            (("--store", "carrier-pigeon://x"), "unknown store"),
            (("--host", "192.0.2.1"), "choose another address with --host and --port"),
            (("--upstream", "openai"), "--upstream: 'openai' is not NAME=VALUE"),
            (("--policy", "nope"), "policy 'nope' is unknown"),
        ],
    )
    def test_startup_errors_are_one_line(self, tmp_path: Path, flags: tuple[str, ...], said: str) -> None:
        """Exit code 2, the fix, no traceback."""
        command = [sys.executable, "-m", "kompakt", "serve", "--port", "0", "--store", "memory:", *flags]
        environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HOME": str(tmp_path)}
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 2, done.stderr
        assert said in done.stderr and "Traceback" not in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1

    @pytest.mark.parametrize(
        ("upstreams", "expected"),
        [
            (
                {"openai": "https://api.openai.com"},
                ["OPENAI_BASE_URL=http://g/v1", "OPENAI_API_BASE=http://g/v1"],
            ),
            ({"anthropic": "https://api.anthropic.com"}, ["ANTHROPIC_BASE_URL=http://g"]),
            (
                {"openai": "http://127.0.0.1:8080"},
                [
                    "OPENAI_BASE_URL=http://g/v1",
                    "OPENAI_API_BASE=http://g/v1",
                    "ANTHROPIC_BASE_URL=http://g",
                    "GOOGLE_GEMINI_BASE_URL=http://g",
                ],
            ),
            (
                {"router": "https://openrouter.ai/api/v1"},
                [
                    "OPENAI_BASE_URL=http://g/v1",
                    "OPENAI_API_BASE=http://g/v1",
                    "ANTHROPIC_BASE_URL=http://g",
                    "GOOGLE_GEMINI_BASE_URL=http://g",
                ],
            ),
            (
                {"anthropic": "https://api.anthropic.com", "router": "https://openrouter.ai/api/v1"},
                [
                    "ANTHROPIC_BASE_URL=http://g",
                    "OPENAI_BASE_URL=http://g/router/v1",
                    "OPENAI_API_BASE=http://g/router/v1",
                    "ANTHROPIC_BASE_URL=http://g/router",
                    "GOOGLE_GEMINI_BASE_URL=http://g/router",
                ],
            ),
        ],
    )
    def test_each_client_finds_its_variable(self, upstreams: dict[str, str], expected: list[str]) -> None:
        """A single upstream gets the requests of every protocol that it may serve."""
        made = GatewayConfig(store="memory:", upstreams={name: Upstream(name, url) for name, url in upstreams.items()})
        lines = [line for line in client_settings(made, "http://g") if not line.startswith("#")]
        assert [line.partition(" ")[0] for line in lines] == expected
        assert all("  # " in line for line in lines)

    def test_addresses(self) -> None:
        """Passwords of stores are not shown."""
        assert base_url(GatewayConfig(store="memory:", host="::1"), 1) == "http://[::1]:1"
        assert without_password("postgresql://me:secret@h/db?sslmode=x") == "postgresql://…@h/db"
        assert is_loopback("127.0.0.1") and is_loopback("::1") and not is_loopback("0.0.0.0")


def test_worker_threads_give_way_to_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request must not wait five milliseconds for a thread that builds a pivot each time it releases the GIL."""
    seen, usual = list[float](), sys.getswitchinterval()

    async def served(*_: object, **__: object) -> None:
        seen.append(sys.getswitchinterval())

    monkeypatch.setattr(server, "_serve", served)
    monkeypatch.setattr(server, "configure_logging", lambda **_: None)
    try:
        server.serve(GatewayConfig(port=0))
    finally:
        sys.setswitchinterval(usual)
    assert seen == [pytest.approx(SWITCH_INTERVAL)]
