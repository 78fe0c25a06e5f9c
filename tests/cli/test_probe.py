"""``kompakt doctor --client``: one request through a running gateway, and its verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.commands import run
from tests.gateway.gateway_server import KEYS, free_port, gateway, hashed
from tests.gateway.payloads import answering
from tests.gateway.upstreams import Upstream, said

from kompakt.cli.doctor import CLIENTS, probe
from kompakt.errors import UsageError


class TestProtected:
    @pytest.mark.parametrize("name", CLIENTS)
    def test_each_client_is_protected_by_a_running_gateway(self, name: str, tmp_path: Path) -> None:
        with Upstream(answering) as upstream, gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate:
            found = probe(name, url=gate.url)
        assert (found.protected, found.outcome, found.status) == (True, "fits", 200)

    def test_the_claude_request_has_the_fields_of_claude_code(self, tmp_path: Path) -> None:
        with Upstream(answering) as upstream, gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate:
            probe("claude-code", url=gate.url)
        (sent,) = upstream.raw
        assert sent.json["context_management"]["edits"][0]["type"].startswith("clear_thinking_")
        assert (sent.header("user-agent") or "").startswith("claude-cli/")

    def test_a_rejected_credential_does_not_change_the_verdict(self, tmp_path: Path) -> None:
        plan = said({"type": "error", "error": {"type": "authentication_error", "message": "no"}}, 401)
        with Upstream(plan) as upstream, gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate:
            found = probe("claude", url=gate.url)
        assert (found.protected, found.status) == (True, 401)


class TestNotProtected:
    def test_no_gateway_answers(self) -> None:
        url = f"http://127.0.0.1:{free_port()}"
        found = probe("codex", url=url)
        assert not found.protected and "kompakt serve" in found.because and url in found.because

    def test_a_provider_is_not_a_gateway(self) -> None:
        with Upstream(answering) as upstream:
            found = probe("claude", url=upstream.url)
        assert not found.protected and "is not a kompakt gateway" in found.because

    def test_a_provider_that_answers_in_another_format(self, tmp_path: Path) -> None:
        """A server for OpenAI clients may answer any path."""
        plan = said({"id": "c1", "object": "chat.completion", "choices": []})
        with Upstream(plan) as upstream, gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate:
            found, chat = probe("claude", url=gate.url), probe("openai", url=gate.url)
        assert not found.protected and "check the URL of its provider" in found.because
        assert chat.protected

    def test_a_gateway_with_keys_needs_a_key(self, tmp_path: Path) -> None:
        with (
            Upstream(answering) as upstream,
            gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}", keys=hashed(KEYS)) as gate,
        ):
            found = probe("claude", url=gate.url)
            with_key = probe("claude", url=gate.url, key=next(iter(KEYS)))
        assert not found.protected and "refused the request" in found.because
        assert with_key.protected

    def test_an_unknown_client(self) -> None:
        with pytest.raises(UsageError, match="use one of aider, claude, claude-code, codex"):
            probe("cursed")


class TestCommand:
    def test_verdict_and_exit_code(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
        with Upstream(answering) as upstream, gateway(upstream.url, store=f"sqlite:///{tmp_path / 'k.db'}") as gate:
            done = run("doctor", "--client", "claude", "--gateway", gate.url)
            assert (done.code, done.out.splitlines()[0]) == (
                0,
                f"protected: yes, if claude is started with ANTHROPIC_BASE_URL={gate.url}",
            )
            monkeypatch.setenv("ANTHROPIC_BASE_URL", gate.url)
            done = run("doctor", "--client", "claude", "--gateway", gate.url, "--model", "claude-opus-4-5")
            assert (done.code, done.out.splitlines()[0]) == (0, "protected: yes")
            assert "add --model" not in done.out
        gone = run("doctor", "--client", "claude", "--gateway", gate.url)
        assert gone.code == 1 and gone.out.startswith("protected: no, because nothing answers at ")

    def test_it_prints_json(self) -> None:
        done = run("doctor", "--client", "codex", "--gateway", f"http://127.0.0.1:{free_port()}", "--json")
        assert done.code == 1 and json.loads(done.out)["protected"] is False


class TestWithoutPlugin:
    """The first command that a person tries may be doctor."""

    @pytest.fixture(autouse=True)
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            monkeypatch.delenv(name, raising=False)

    @pytest.mark.parametrize("name", ["claude", "Claude"])
    def test_the_command_that_installs_the_plugin_is_named(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If nothing else protects the agent."""
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{free_port()}")
        done = run("doctor", "--client", name, cwd=tmp_path)
        assert done.code == 1 and done.out.rstrip().endswith("kompakt install claude-code")

    def test_with_a_gateway_the_plugin_is_not_mentioned(self, tmp_path: Path) -> None:
        url = f"http://127.0.0.1:{free_port()}"
        done = run("doctor", "--client", "claude", "--gateway", url, cwd=tmp_path)
        assert done.code == 1 and "install" not in done.out

    def test_a_misspelled_client_is_recognized(self) -> None:
        done = run("doctor", "--client", "cluade")
        assert done.code == 2 and "did you mean claude? use one of aider, claude, " in done.err

    def test_an_error_of_the_gateway_is_not_said_to_be_the_providers(self, tmp_path: Path) -> None:
        with gateway(f"http://127.0.0.1:{free_port()}", store=f"sqlite:///{tmp_path / 'k.db'}") as gate:
            done = run("doctor", "--client", "claude", "--gateway", gate.url, cwd=tmp_path)
        assert done.code == 1 and "unreachable" in done.out
        assert "  gateway   answered 502" in done.out and "provider  answered" not in done.out
