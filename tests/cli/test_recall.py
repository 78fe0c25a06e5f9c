"""``kompakt recall``: the answer on stdout, exit 1 if there is none, 2 for bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import run
from tests.histories import FORMATS, plain

import kompakt
from kompakt.model.references import References

OUTPUT = "".join(f"row {number}: depth {number % 13} m\n" for number in range(900))
BODY: dict[str, Any] = {
    "model": "gpt-5.4",
    "messages": [
        {"role": "user", "content": "Where does the pilot boat moor?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "depths", "arguments": '{"berth": "C14"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": OUTPUT},
        {"role": "assistant", "content": "At berth C14, which is deep enough."},
    ],
}
NAMES = References(kompakt.parse(BODY)).names


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """Write a session."""
    path = tmp_path / "session.json"
    path.write_text(json.dumps(BODY))
    return path


class TestRecall:
    def test_the_session_of_a_store_that_answers_is_named(self, session: Path, tmp_path: Path) -> None:
        store = f"sqlite:///{tmp_path / 'k.db'}"
        for name in ("one", "two"):
            assert run("session", "import", session, "--store", store, "--id", name).code == 0
        done = run("recall", "pilot boat", "--store", store)
        assert done.code == 0 and done.err == "session one:\n" and "pilot boat" in done.out
        assert json.loads(run("recall", "pilot boat", "--store", store, "--json").out)["session"] == "one"
        done = run("recall", "pilot boat", "--store", store, "--session", "two")
        assert (done.code, done.err) == (0, "")

    def test_words(self, session: Path) -> None:
        """Matches are printed after their reference."""
        done = run("recall", session, "pilot boat")
        assert (done.code, done.err) == (0, "")
        assert f"{NAMES[0]} user: Where does the pilot boat moor?" in done.out

    @pytest.mark.parametrize("query", ["--pilot", "-boat", "--pilot-boat"])
    def test_a_query_that_starts_with_a_dash(self, session: Path, query: str) -> None:
        """An unknown option is a query, with other options before or after it."""
        for arguments in (("recall", session, query), ("recall", session, query, "--tokens", "300")):
            done = run(*arguments)
            assert done.code == 0 and "pilot boat" in done.out

    def test_a_call_with_its_result(self, session: Path) -> None:
        """The reference of a call prints the call and the beginning of its result."""
        done = run("recall", session, NAMES[1], "--tokens", "200")
        assert done.code == 0 and '"berth": "C14"' in done.out and "row 0: depth 0 m" in done.out
        assert run("recall", session, f"{NAMES[1]}:4-5").out.strip() == "row 3: depth 3 m\nrow 4: depth 4 m"
        assert "row 77: depth" in run("recall", session, f'{NAMES[1]} "row 77"').out

    def test_a_reference_byte_for_byte(self, session: Path) -> None:
        """Without a limit the whole text is printed, without an added newline."""
        assert run("recall", session, f"{NAMES[2]}.0", "--tokens", "0") == (0, OUTPUT, "")
        assert run("recall", session, NAMES[3], "--tokens", "0").out == "At berth C14, which is deep enough."

    def test_a_limit(self, session: Path) -> None:
        """A large part is printed as far as it fits, with the reference of the rest."""
        done = json.loads(run("recall", session, NAMES[2], "--tokens", "200", "--json").out)
        assert done["tokens"] <= 200 and done["rest"].startswith(f"{NAMES[2]}:")
        more = run("recall", session, done["rest"])
        assert more.code == 0 and done["text"].partition("[kompakt]")[0] + more.out.partition("[kompakt]")[0] in OUTPUT

    def test_nothing_found(self, session: Path) -> None:
        """Exit 1; the message is on stderr."""
        done = run("recall", session, "zebra crossing")
        assert (done.code, done.out) == (1, "") and "zebra" in done.err
        shown = run("recall", session, "zebra crossing", "--json")
        assert shown.code == 1 and json.loads(shown.out)["references"] == []

    @pytest.mark.parametrize("format", FORMATS)
    def test_every_format_and_standard_input(self, format: str) -> None:
        """The format is detected or given."""
        body = json.dumps(plain.build(format, messages=8)).encode()
        name = References(kompakt.parse(json.loads(body), format)).names[0]
        assert run("recall", "-", name, "--format", format, input=body).code == 0

    def test_text_that_fits_every_format_needs_no_format(self) -> None:
        talk = [{"role": "user", "content": "the heron stands"}, {"role": "assistant", "content": "so be it"}]
        assert "heron" in run("recall", "-", "heron", input=json.dumps(talk).encode()).out

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("missing.json", "x"), "missing.json"),
            (("session.json", "x", "--tokens", "-5"), "tokens=-5"),
            (("session.json", "x", "--format", "telegram"), "telegram"),
        ],
    )
    def test_bad_input(self, session: Path, arguments: tuple[str, ...], said: str) -> None:
        """Exit 2 and one line that names the problem."""
        done = run("recall", *arguments, cwd=session.parent)
        assert (done.code, done.out) == (2, "") and said in done.err and len(done.err.splitlines()) == 1


@pytest.mark.parametrize("name", ["sessions.db", "gateway.db"])
def test_the_stores_of_plugins_and_gateway_are_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If they exist: they are not in the working directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("XDG_DATA_HOME", "KOMPAKT_STORE"):
        monkeypatch.delenv(variable, raising=False)
    assert name not in run("session", "list", cwd=tmp_path).err
    store = tmp_path / ".local" / "share" / "kompakt" / name
    store.parent.mkdir(parents=True)
    store.touch()
    missing = run("session", "list", cwd=tmp_path)
    assert missing.code == 2 and f"add --store ~/.local/share/kompakt/{name}" in missing.err


def test_a_query_alone_is_not_taken_for_a_file(session: Path) -> None:
    done = run("recall", "rules", cwd=session.parent)
    assert done.code == 2 and "kompakt recall FILE 'rules'" in done.err
    done = run("recall", session.name, cwd=session.parent)
    assert done.code == 2 and f"what to search for: kompakt recall {session.name} QUERY" in done.err


@pytest.mark.parametrize("name", ["sessions.db", "gateway.db"])
def test_inspect_names_the_stores_of_plugins_and_gateway(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If they exist: a person does not know their paths."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("XDG_DATA_HOME", "KOMPAKT_STORE"):
        monkeypatch.delenv(variable, raising=False)
    assert name not in run("inspect", cwd=tmp_path).err
    store = tmp_path / ".local" / "share" / "kompakt" / name
    store.parent.mkdir(parents=True)
    store.touch()
    missing = run("inspect", cwd=tmp_path)
    assert missing.code == 2
    assert missing.err.rstrip().endswith(f"kompakt inspect --store ~/.local/share/kompakt/{name}")


def test_inspect_once_prints_tables_without_terminal(session: Path) -> None:
    done = run("inspect", "--once", session.name, cwd=session.parent)
    assert done.code == 0 and "largest" in done.out, done.err


def test_uninstall_names_the_command_that_removes_a_plugin() -> None:
    assert run("uninstall", "--yes", "codex").err.endswith("kompakt install codex --undo\n")
    done = run("uninstall", "claude-code")
    assert done.code == 2 and "kompakt install claude-code --undo" in done.err and "Did you mean" not in done.err
