"""``kompakt doctor``: configuration, store and upstreams."""

from __future__ import annotations

import json
import re
import socket
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tests.cli.store_helpers import Run

from kompakt.cli.doctor import EXTRAS


@pytest.fixture
def upstream() -> Iterator[str]:
    """Serve an origin that answers every request with 404, as providers do at their root."""
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    BaseHTTPRequestHandler.log_message = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def closed_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def states(out: str) -> dict[str, tuple[str, str]]:
    """Return state and detail by the name of the check."""
    return {one["what"]: (one["state"], one["detail"]) for one in json.loads(out)["checks"]}


class TestPackages:
    @pytest.mark.parametrize("extra", sorted(set(EXTRAS.values())))
    def test_all_packages_of_an_extra_are_listed(self, extra: str) -> None:
        project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
        needed = {re.split(r"[^a-z0-9-]", one)[0] for one in project["optional-dependencies"][extra]}
        assert {name for name, part in EXTRAS.items() if part == extra} == needed


class TestConfiguration:
    def test_a_valid_file_is_named(self, kom: Run, tmp_path: Path) -> None:
        """Without a file the defaults apply."""
        assert "no kompakt.toml" in states(kom("doctor", "--offline", "--json").out)["configuration"][1]
        (tmp_path / "kompakt.toml").write_text("budget = 5000\n")
        assert states(kom("doctor", "--offline", "--json").out)["configuration"] == ("ok", "kompakt.toml")

    @pytest.mark.parametrize("text", ["budgte = 1\n", "[serve]\nprot = 1\n", "[policies.a]\nstep = []\n", "[serve\n"])
    def test_an_invalid_file_is_a_problem(self, kom: Run, tmp_path: Path, text: str) -> None:
        """Wherever the mistake is; nothing is connected to then."""
        (tmp_path / "kompakt.toml").write_text(text)
        done = kom("doctor", "--json")
        assert done.code == 1
        state, detail = states(done.out)["configuration"]
        assert state == "problem" and "kompakt.toml" in detail
        assert "store" not in states(done.out)


class TestStore:
    def test_a_readable_store(self, kom: Run, id: str) -> None:
        assert id
        done = kom("doctor", "--offline", "--store", "sqlite:///kompakt.db", "--json")
        assert (done.code, states(done.out)["store"][0]) == (0, "ok")

    def test_a_missing_store(self, kom: Run) -> None:
        """A missing file and an unreachable server; no password is printed."""
        done = kom("doctor", "--offline", "--store", "sqlite:///nowhere.db")
        assert done.code == 1 and "does not exist yet" in done.out
        url = f"redis://user:secret@127.0.0.1:{closed_port()}/0"
        done = kom("doctor", "--store", url, "--upstream", f"mine=http://127.0.0.1:{closed_port()}")
        assert done.code == 1 and "cannot be reached" in done.out
        assert "secret" not in done.out

    def test_an_encrypted_store_without_its_key(self, kom: Run, file: Path, tmp_path: Path) -> None:
        """A missing key is not reported as damage."""
        (tmp_path / "key").write_text("ab" * 32)
        assert kom("session", "import", file, "--key-file", "key").code == 0
        done = kom("doctor", "--offline", "--store", "sqlite:///kompakt.db")
        assert done.code == 1
        assert "no key was given" in done.out and "damaged" not in done.out
        assert kom("doctor", "--offline", "--store", "sqlite:///kompakt.db", "--key-file", "key").code == 0


class TestPlugins:
    def test_installed_plugins_and_their_store_are_listed(
        self, kom: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So that a user of a coding agent finds the command that tests it."""
        monkeypatch.setenv("HOME", str(tmp_path / "own"))
        for name in ("XDG_DATA_HOME", "XDG_STATE_HOME", "CLAUDE_CONFIG_DIR"):
            monkeypatch.delenv(name, raising=False)
        assert "plugin claude-code" not in states(kom("doctor", "--offline", "--json").out)
        assert kom("install", "claude-code", "--yes").code == 0
        found = states(kom("doctor", "--offline", "--json").out)
        state, detail = found["plugin claude-code"]
        assert state == "ok" and "in your own settings; to test it: " in detail
        assert detail.endswith("kompakt doctor --client claude-code")
        assert found["recorded sessions"][1].endswith(f" {tmp_path}/own/.local/share/kompakt/sessions.db")
        assert found["log of hooks"][1].endswith(f" {tmp_path}/own/.local/state/kompakt/hooks.log")
        assert found["store"][1].startswith(f"store of the gateway: {tmp_path}/own/.local/share/kompakt/gateway.db")
        shown = " ".join(kom("doctor", "--offline").out.split())
        for name in ("share/kompakt/sessions.db", "state/kompakt/hooks.log", "share/kompakt/gateway.db"):
            assert f" ~/.local/{name}" in shown
        (tmp_path / "own" / ".claude" / "settings.json").write_text("{")
        assert states(kom("doctor", "--offline", "--json").out)["plugin claude-code"][0] == "problem"


class TestUpstreams:
    def test_a_reachable_and_an_unreachable_upstream(self, kom: Run, upstream: str, tmp_path: Path) -> None:
        """Any answer is enough; an unreachable configured upstream is a problem."""
        (tmp_path / "kompakt.toml").write_text(f'[serve]\nstore = "memory:"\n[serve.upstreams]\nmine = "{upstream}"\n')
        done = kom("doctor", "--json")
        assert done.code == 0, done.out
        assert states(done.out)["upstream mine"] == ("ok", f"{upstream} answers")
        done = kom("doctor", "--json", "--upstream", f"gone=http://127.0.0.1:{closed_port()}")
        assert done.code == 1
        assert states(done.out)["upstream gone"][0] == "problem"
