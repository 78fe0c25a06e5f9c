"""Settings have one name, flags override variables and variables the file, and errors name the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.gateway.stub_gateway import served, settings

from kompakt.errors import UsageError
from kompakt.gateway.config import OFFICIAL, GatewayConfig, Upstream, load
from kompakt.gateway.server import ConfigReloader
from kompakt.gateway.tenants import hash_key

HASH = hash_key("a key")


def written(folder: Path, text: str) -> Path:
    path = folder / "kompakt.toml"
    path.write_text(text)
    return path


class TestOrder:
    def test_defaults_serve_this_machine(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Loopback, the official upstreams, a file in the data folder."""
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
        found = load(environ={})
        assert (found.host, found.port) == ("127.0.0.1", 8484)
        assert {name: one.url for name, one in found.upstreams.items()} == OFFICIAL
        assert found.store == f"sqlite:///{tmp_path}/kompakt/gateway.db"
        assert found.policies == ("default",)

    def test_flags_override_variables_and_variables_the_file(self, tmp_path: Path) -> None:
        """Each source provides the settings that the sources before it omit."""
        path = written(tmp_path, 'store = "memory:"\n[serve]\nport = 1\nhost = "::1"\ncontext-window = 7\n')
        environ = {"KOMPAKT_PORT": "2", "KOMPAKT_CONTEXT_WINDOW": "9", "KOMPAKT_LOG_JSON": "true"}
        found = load({"port": 3, "drain": None}, path=path, environ=environ)
        assert (found.port, found.host, found.context_window) == (3, "::1", 9)
        assert found.log_json is True
        assert found.store == "memory:"

    def test_tables_lists_and_texts_are_equivalent(self, tmp_path: Path) -> None:
        """Upstreams, windows and keys in the file, in a variable, in flags."""
        path = written(
            tmp_path, f'[serve.upstreams]\nmine = "http://h"\n[serve.windows]\nm = 5\n[serve.keys]\n"{HASH}" = "t"\n'
        )
        of_file = load(path=path, environ={})
        environ = {"KOMPAKT_UPSTREAMS": "mine=http://h", "KOMPAKT_WINDOWS": "m=5", "KOMPAKT_KEYS": f"{HASH}=t"}
        of_flags = load({"upstreams": ["mine=http://h"], "windows": ["m=5"]}, environ={"KOMPAKT_KEYS": f"{HASH}=t"})
        assert of_file == load(environ=environ) == of_flags
        assert (of_file.windows, of_file.keys) == ({"m": 5}, {HASH: "t"})

    def test_policies_of_the_file_can_be_selected(self, tmp_path: Path) -> None:
        """Only the listed names can be selected."""
        tables = '[policies.mine]\nsteps = [{ strategy = "truncation" }]\n[policies.other]\nsteps = []\n'
        text = f'[serve]\npolicies = ["mine"]\n{tables}'
        found = load(path=written(tmp_path, text), environ={})
        assert found.policies == ("default", "mine")
        assert found.policy_named("mine").name == "mine"
        with pytest.raises(UsageError, match="'other' cannot be selected here"):
            found.policy_named("other")


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("[serve]\nportt = 1\n", r"\[serve\] has no 'portt'; did you mean 'port'\?"),
            ("[serve]\nport = 70000\n", r"\[serve\] port=70000 is not valid"),
            ('[serve]\nport = "x"\n', r"\[serve\] port='x' is not valid"),
            ("[serve]\ndrain = -1\n", "drain=-1"),
            ("serve = 3\n", r"serve must be a table, \[serve\]"),
            ("[serve\n", "kompakt.toml: "),
            ("[serve.upstreams]\nmine = 3\n", 'write NAME = "URL"'),
            ('[serve]\npolicy = "nope"\n', "policy 'nope' is unknown; use one of 'default'"),
            ('[serve.keys]\nplain = "tenant"\n', "`kompakt serve --make-key TENANT` prints one"),
            (f'[serve.keys]\n"{HASH}" = "credential-1"\n', "is not a valid name"),
            (f'[serve.keys]\n"{HASH}" = "a tenant"\n', "is not a valid name"),
            ('[serve]\ntenant_header = "x tenant"\n', "is not a header name"),
            ("[serve.upstreams]\n", "add one with --upstream"),
        ],
    )
    def test_invalid_settings_name_the_fix(self, tmp_path: Path, text: str, said: str) -> None:
        with pytest.raises(UsageError, match=said):
            load(path=written(tmp_path, text), environ={})

    def test_errors_name_the_variable_or_flag(self) -> None:
        with pytest.raises(UsageError, match="KOMPAKT_PORT='many' is not valid"):
            load(environ={"KOMPAKT_PORT": "many"})
        with pytest.raises(UsageError, match="--upstream: 'openai' is not NAME=VALUE"):
            load({"upstreams": ["openai"]}, environ={})
        with pytest.raises(UsageError, match="there is no setting 'upstram'; did you mean"):
            load({"upstram": 1}, environ={})

    def test_secrets_are_not_repeated(self) -> None:
        """An error about a key or a secret does not contain it."""
        for environ in ({"KOMPAKT_KEYS": "sk-very-secret=t"}, {"KOMPAKT_ADMIN_KEYS": "sk-very-secret"}):
            with pytest.raises(UsageError) as caught:
                load(environ=environ)
            assert "very-secret" not in str(caught.value)


class TestUpstreams:
    @pytest.mark.parametrize(
        ("given", "kept"),
        [
            ("https://api.openai.com", "https://api.openai.com"),
            ("https://api.openai.com/v1", "https://api.openai.com"),
            ("https://openrouter.ai/api/v1/", "https://openrouter.ai/api"),
            ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
        ],
    )
    def test_urls_are_normalized(self, given: str, kept: str) -> None:
        """Without a slash at the end, and without the version that requests contain."""
        assert Upstream("a", given).url == kept

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "api.openai.com",
            "ftp://h",
            "http://",
            "http://user:pass@h",
            "http://h/a?b=1",
            "http://h/../x",
            "http://h:x",
            "http://h\r\nx: y",
            "file:///etc/passwd",
        ],
    )
    def test_invalid_urls_are_rejected(self, url: str) -> None:
        """Also URLs with a password or with '..'."""
        with pytest.raises(UsageError, match="upstream a"):
            Upstream("a", url)

    @pytest.mark.parametrize("name", ["v1", "kompakt", "metrics", "", "A", "a/b", "..", "a b"])
    def test_names_are_valid_path_segments(self, name: str) -> None:
        """Segments that the gateway or a provider uses are reserved."""
        with pytest.raises(UsageError, match="is not a valid name"):
            Upstream(name, "http://h")

    def test_an_upstream_is_listed_under_its_own_name(self) -> None:
        with pytest.raises(UsageError, match="use the same name"):
            GatewayConfig(upstreams={"a": Upstream("b", "http://h")})


class TestReloading:
    def test_a_changed_file_is_applied_and_a_broken_one_is_not(self, tmp_path: Path, caplog: Any) -> None:
        """The log names settings that require a restart; an invalid file changes nothing."""
        path = written(tmp_path, "[serve]\nport = 0\n")
        base = {"store": "memory:", "upstreams": ["openai=http://h"]}

        def read() -> GatewayConfig:
            return load(base, path=path, environ={})

        with served(read()) as gate:
            reloader = ConfigReloader(gate.gateway, read, lambda: path)
            secret, store = gate.gateway.settings.secret, gate.gateway.settings.store
            path.write_text(f'[serve]\nport = 9\nmax_body = 10\n[serve.keys]\n"{HASH}" = "t"\n')
            gate.loop.call_soon_threadsafe(reloader.reload)
            gate.run(_soon())
            assert gate.gateway.settings.keys == {HASH: "t"}
            assert (gate.gateway.settings.port, gate.gateway.settings.secret) == (0, secret)
            assert "restart required to change: port" in caplog.text
            assert gate.post("/v1/messages", content=b"x" * 11).status_code == 413
            path.write_text("[serve]\nmax_bodyy = 1\n")
            gate.loop.call_soon_threadsafe(reloader.reload)
            gate.run(_soon())
            assert gate.gateway.settings.max_body == 10 and gate.gateway.settings.store == store
            assert (
                "configuration reload failed, keeping the old settings" in caplog.text
                and "did you mean 'max_body'?" in caplog.text
            )
            text = gate.gateway.metrics.text().decode()
            assert 'kompakt_reloads_total{outcome="done"} 1.0' in text
            assert 'kompakt_reloads_total{outcome="failed"} 1.0' in text

    def test_a_configured_secret_is_kept_over_reloads(self) -> None:
        """Another secret would change the tenants of the same clients."""
        with served(settings()) as gate:
            assert gate.gateway.reconfigure(settings(secret="another")) == ["secret"]
            assert gate.gateway.settings.secret == "a secret of the tests"


async def _soon() -> None:
    """Wait until the loop has run its earlier callbacks."""
