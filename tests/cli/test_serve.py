"""The options of ``kompakt serve``, and the gateway part of ``kompakt demo``."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from tests.cli.commands import run

from kompakt.gateway.config import load
from kompakt.gateway.tenants import hash_key


class TestKeys:
    def test_make_key_prints_a_key_and_its_configuration_line(self, tmp_path: Path) -> None:
        """The printed line is valid configuration for the key."""
        done = run("serve", "--make-key", "acme", cwd=tmp_path)
        key, line = done.out.splitlines()
        assert done.code == 0 and "[serve.keys]" in done.err and key not in done.err
        file = tmp_path / "kompakt.toml"
        file.write_text(f"[serve.keys]\n{line}\n")
        assert load(path=file, environ={}).keys == {hash_key(key): "acme"}

    @pytest.mark.parametrize("tenant", ["", "a b", "credential-x", "anonymous", "x\ny"])
    def test_an_invalid_tenant_gets_no_key(self, tenant: str) -> None:
        done = run("serve", "--make-key", tenant)
        assert done.code == 2 and done.out == "" and "is not a valid name" in done.err


class TestFlags:
    def test_help_is_quick_and_complete(self) -> None:
        """It lists every option of the guide."""
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
            ("[serve]\nport = []\n", "[serve] port=[] is not valid"),
            ("[serve\n", "kompakt.toml"),
        ],
    )
    def test_an_invalid_file_is_reported_in_one_line(self, tmp_path: Path, text: str, said: str) -> None:
        """With the position and the fix."""
        (tmp_path / "kompakt.toml").write_text(text)
        done = run("serve", "--port", "0", cwd=tmp_path)
        assert done.code == 2 and said in done.err and len(done.err.strip().splitlines()) == 1

    def test_other_commands_ignore_the_serve_table(self, tmp_path: Path) -> None:
        (tmp_path / "kompakt.toml").write_text("[serve]\nport = 1\n[serve.upstreams]\n")
        assert tomllib.loads((tmp_path / "kompakt.toml").read_text())["serve"]
        assert run("count", "-", input=b'{"model": "gpt-5.4", "messages": []}', cwd=tmp_path).code == 0


class TestDoctor:
    def test_doctor_lists_the_packages_of_the_gateway(self) -> None:
        shown = run("doctor", "--offline").out
        for name in ("starlette", "uvicorn", "httpx", "prometheus-client", "uvloop", "httptools"):
            assert name in shown
