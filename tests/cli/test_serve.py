"""The command line of the gateway, apart from the serving itself; and the demonstration that ends with it."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path

import pytest
from tests.cli.commands import run

from kompakt.cli import demo_provider as scripted
from kompakt.gateway.config import load
from kompakt.gateway.tenancy.tenants import hash_key


class TestKeys:
    def test_a_key_and_its_line_are_printed(self, tmp_path: Path) -> None:
        """The line goes into the file as it is, and the key then opens the door."""
        done = run("serve", "--make-key", "acme", cwd=tmp_path)
        key, line = done.out.splitlines()
        assert done.code == 0 and "[serve.keys]" in done.err and key not in done.err
        file = tmp_path / "kompakt.toml"
        file.write_text(f"[serve.keys]\n{line}\n")
        assert load(path=file, environ={}).keys == {hash_key(key): "acme"}

    @pytest.mark.parametrize("tenant", ["", "a b", "credential-x", "anonymous", "x\ny"])
    def test_a_tenant_that_is_none_has_no_key(self, tenant: str) -> None:
        """Nothing is printed that would not work."""
        done = run("serve", "--make-key", tenant)
        assert done.code == 2 and done.out == "" and "is no name" in done.err


class TestFlags:
    def test_help_is_quick_and_complete(self) -> None:
        """Every flag that the guide names is there."""
        shown = run("serve", "--help").out
        for flag in (
            "--host",
            "--port",
            "--store",
            "--upstream",
            "--context-window",
            "--recall",
            "--drain",
            "--make-key",
        ):
            assert flag in shown

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ('[serve]\nupstream = "x"\n', "did you mean 'upstreams'?"),
            ("[serve]\nport = []\n", "[serve] port=[] cannot be meant"),
            ("[serve\n", "kompakt.toml"),
        ],
    )
    def test_a_wrong_file_is_said_in_one_line(self, tmp_path: Path, text: str, said: str) -> None:
        """With the place and the way out."""
        (tmp_path / "kompakt.toml").write_text(text)
        done = run("serve", "--port", "0", cwd=tmp_path)
        assert done.code == 2 and said in done.err and len(done.err.strip().splitlines()) == 1

    def test_other_commands_take_no_harm_from_its_table(self, tmp_path: Path) -> None:
        """A table of the gateway's in the same file."""
        (tmp_path / "kompakt.toml").write_text("[serve]\nport = 1\n[serve.upstreams]\n")
        assert tomllib.loads((tmp_path / "kompakt.toml").read_text())["serve"]
        assert run("count", "-", input=b'{"model": "gpt-5.4", "messages": []}', cwd=tmp_path).code == 0


class TestDoctor:
    def test_it_knows_what_the_gateway_needs(self) -> None:
        """By the names of the packages, and which of them only make it quicker."""
        shown = run("doctor", "--offline").out
        for name in ("starlette", "uvicorn", "httpx", "prometheus-client", "uvloop", "httptools"):
            assert name in shown


class TestDemo:
    def test_a_session_far_longer_than_the_window_goes_through(self) -> None:
        """No request is refused, most of each is what the one before began with, and what left is found."""
        played = asyncio.run(scripted.play(window=10_000, steps=25))
        assert (played.requests, played.refused) == (26, 0)
        assert max(played.client) > played.window > max(played.upstream)
        assert sum(played.upstream) < sum(played.client) and played.compactions >= 1
        assert played.cached > 0.5
        assert "BROKER_TIMEOUT = 47" in played.recalled
