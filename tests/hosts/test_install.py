"""``kompakt install`` and ``--undo``: what is written, what stays, and that undo leaves nothing."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sqlite3
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.commands import ENVIRONMENT, run
from tests.cli.store_helpers import runner

from kompakt.errors import UnreadableFile
from kompakt.hosts import claude_code, claude_code_settings, codex_settings, erasure, install, jsonc, places, rehearsal
from kompakt.hosts.checkup import check_host
from kompakt.hosts.install import HostPlan, is_own_hook
from kompakt.session.store import open_store
from kompakt.version import install_command, own_program

SETTINGS = """{
  // my settings
  "model": "opus", // best
  "hooks": {
    "PostToolUse": [
      {"matcher": "Edit", "hooks": [{"type": "command", "command": "fmt"}]} // format
    ]
  },
  "env": {"A": "b"}
}"""
SERVERS = '{"userID": "x",\r\n "mcpServers": {"other": {"command": "other"}}}'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of its own, which commands inherit."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (
        "CLAUDE_CONFIG_DIR",
        "CODEX_HOME",
        "PI_CODING_AGENT_DIR",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "KOMPAKT_STORE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def files_of(home: Path) -> dict[str, bytes]:
    """Return every file below a folder, without kompakt's own state."""
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in home.rglob("*")
        if path.is_file() and not path.is_relative_to(home / "state")
    }


def nothing(home: Path) -> None:
    """The agent was never started."""


def own_settings(home: Path) -> None:
    """The user has settings with comments, other hooks and other servers."""
    (home / ".claude").mkdir()
    (home / ".claude" / "settings.json").write_text(SETTINGS)
    (home / ".claude.json").write_bytes(SERVERS.encode())
    (home / ".claude.json").chmod(0o600)


def own_codex(home: Path) -> None:
    """The user has a configuration with comments and hooks."""
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text('# mine\nmodel = "gpt-5" # good\n\n[mcp_servers.other]\ncommand = "x"')
    (home / ".codex" / "hooks.json").write_text(
        '{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "x"}]}]}}'
    )


def own_opencode(home: Path) -> None:
    """The user has another plugin."""
    (home / ".config" / "opencode" / "plugin").mkdir(parents=True)
    (home / ".config" / "opencode" / "plugin" / "mine.js").write_text("export const Mine = async () => ({})")


CASES = [
    ("claude-code", nothing),
    ("claude-code", own_settings),
    ("codex", nothing),
    ("codex", own_codex),
    ("opencode", nothing),
    ("opencode", own_opencode),
    ("pi", nothing),
]
Prepare = Callable[[Path], None]


class TestUndo:
    @pytest.mark.parametrize(("agent", "prepare"), CASES)
    def test_undo_restores_every_byte(self, home: Path, agent: str, prepare: Prepare) -> None:
        """Files and folders that were created are gone, and the others are as they were."""
        prepare(home)
        before = files_of(home)
        assert run("install", agent, "--yes").code == 0
        assert files_of(home) != before
        assert run("install", agent, "--undo", "--yes").code == 0
        assert files_of(home) == before
        empty = [path for path in home.iterdir() if path.is_dir() and not any(path.iterdir())]
        assert empty == [home / "state"]

    @pytest.mark.parametrize(("agent", "prepare"), CASES)
    def test_twice_installed_is_once_installed(self, home: Path, agent: str, prepare: Prepare) -> None:
        """The second time changes nothing, and undo still restores what was there before the first."""
        prepare(home)
        before = files_of(home)
        run("install", agent, "--yes")
        installed = files_of(home)
        again = run("install", agent, "--yes")
        assert (again.code, again.out) == (0, "")
        assert files_of(home) == installed
        run("install", agent, "--undo", "--yes")
        assert files_of(home) == before

    def test_a_file_that_was_edited_since_is_not_overwritten(self, home: Path) -> None:
        """The edit stays, the entries of kompakt are removed, and the user is informed."""
        own_settings(home)
        run("install", "claude-code", "--yes")
        settings = home / ".claude" / "settings.json"
        settings.write_text(settings.read_text().replace('"opus"', '"haiku"'))
        undone = run("install", "claude-code", "--undo", "--yes")
        assert "changed since the installation" in undone.err
        assert settings.read_text() == SETTINGS.replace('"opus"', '"haiku"')

    def test_the_agent_may_rewrite_its_file(self, home: Path) -> None:
        """Claude Code writes .claude.json at every start. Only our server is taken out, and what it added stays."""
        run("install", "claude-code", "--yes")
        path = home / ".claude.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "numStartups": 1}, indent=2))
        run("install", "claude-code", "--undo", "--yes")
        assert json.loads(path.read_text()) == {"numStartups": 1}

    def test_a_block_in_an_edited_toml_file_is_taken_out(self, home: Path) -> None:
        """Comments and edits around it stay."""
        own_codex(home)
        config = home / ".codex" / "config.toml"
        before = config.read_text()
        run("install", "codex", "--yes")
        config.write_text(config.read_text() + '\n[projects."x"]\ntrust_level = "trusted"\n')
        run("install", "codex", "--undo", "--yes")
        assert "kompakt" not in config.read_text()
        assert config.read_text().startswith(before)
        assert "projects" in tomllib.loads(config.read_text())

    def test_a_hook_that_was_added_to_our_group_stays(self, home: Path) -> None:
        """Only ours goes out of it."""
        run("install", "claude-code", "--yes")
        settings = home / ".claude" / "settings.json"
        value = json.loads(settings.read_text())
        value["hooks"]["Stop"][0]["hooks"].insert(0, {"type": "command", "command": "bell"})
        settings.write_text(json.dumps(value, indent=2))
        run("install", "claude-code", "--undo", "--yes")
        assert json.loads(settings.read_text()) == {
            "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "bell"}]}]}
        }

    @pytest.mark.parametrize("first", [(), ("--project",)])
    def test_undo_names_the_other_scope(self, home: Path, first: tuple[str, ...]) -> None:
        """Each undo says whose settings it changed, and where the plugin still is."""
        project = home / "project"
        project.mkdir()
        for scope in ((), ("--project",)):
            run("install", "claude-code", "--yes", *scope, cwd=project)
        done = run("install", "claude-code", "--undo", "--yes", *first, cwd=project)
        names = {(): "your own settings", ("--project",): "the settings of this folder"}
        other = next(scope for scope in names if scope != first)
        assert f"removed from claude-code ({names[first]})" in done.err
        rest = f"claude-code still has the plugin in {names[other]}"
        command = " ".join(["kompakt install claude-code", *other, "--undo"])
        assert rest in done.err and command in done.err
        again = run("install", "claude-code", "--undo", *first, cwd=project)
        assert f"claude-code has no plugin in {names[first]}" in again.err and rest in again.err
        run("install", "claude-code", "--undo", "--yes", *other, cwd=project)
        assert "still" not in run("install", "claude-code", "--undo", cwd=project).err

    @pytest.mark.parametrize("scope", [(), ("--project",)])
    def test_undo_reports_settings_of_the_other_scope_that_cannot_be_read(
        self, home: Path, scope: tuple[str, ...]
    ) -> None:
        """They do not stop the undo, and whether the plugin is in them is not known."""
        project = home / "project"
        (project / ".claude").mkdir(parents=True)
        (home / ".claude").mkdir()
        run("install", "claude-code", "--yes", *scope, cwd=project)
        broken = (home if scope else project) / ".claude" / "settings.json"
        broken.write_text('{"model": ')
        names = ["your own settings", "the settings of this folder"]
        own, other = reversed(names) if scope else names
        for said in (f"kompakt was removed from claude-code ({own})", f"claude-code has no plugin in {own}"):
            undone = run("install", "claude-code", "--undo", "--yes", *scope, cwd=project)
            assert undone.code == 0 and said in undone.err
            assert f"claude-code may still have the plugin in {other}, which cannot be read" in undone.err
            assert "settings.json: line 1: not a JSON value; correct the file and run the command again" in undone.err

    def test_an_empty_store_stays_until_it_is_erased(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another agent may record sessions in it. Undo names it and the command that deletes it."""
        asyncio.run(record([]))
        store = home / ".local" / "share" / "kompakt" / "sessions.db"
        undone = run("install", "claude-code", "--undo", "--yes")
        assert undone.code == 0 and store.exists()
        assert "the store ~/.local/share/kompakt/sessions.db stays; it has no sessions; to delete it:" in undone.err
        assert "install claude-code --undo --erase" in undone.err
        assert run("install", "claude-code", "--undo", "--erase").code == 2 and store.exists()
        erased = run("install", "claude-code", "--undo", "--erase", "--yes")
        assert erased.code == 0 and "sessions.db: deleted" in erased.err
        assert not store.parent.exists()
        monkeypatch.setenv("KOMPAKT_STORE", f"sqlite:///{home}/mine.db")
        asyncio.run(record([]))
        assert "mine.db" not in run("install", "claude-code", "--undo", "--erase", "--yes").err
        assert files_of(home).keys() == {"mine.db"}

    @pytest.mark.parametrize(("ids", "said"), [(["s1"], "1 recorded session "), (["s1", "s2"], "2 recorded sessions ")])
    def test_undo_counts_the_sessions_that_stay(self, home: Path, ids: list[str], said: str) -> None:
        """Those of this agent, and names the command that deletes them."""
        run("install", "claude-code", "--yes")
        asyncio.run(record([*(f"claude-code/{id}" for id in ids), "codex/s3"]))
        undone = run("install", "claude-code", "--undo", "--yes")
        assert f"{said}of claude-code stay" in undone.err and "install claude-code --undo --erase" in undone.err
        erased = run("install", "claude-code", "--undo", "--erase", "--dry-run")
        assert f"would erase {said.replace('recorded ', '')}of claude-code" in erased.err
        assert "sessions.db" in " ".join(files_of(home))

    def test_a_store_that_cannot_be_read_does_not_stop_an_undo(self, home: Path) -> None:
        run("install", "claude-code", "--yes")
        store = home / ".local" / "share" / "kompakt" / "sessions.db"
        store.parent.mkdir(parents=True)
        store.write_bytes(b"not a database" * 1000)
        undone = run("install", "claude-code", "--undo", "--yes")
        assert undone.code == 0 and "removed from claude-code" in undone.err
        assert "recorded sessions may be left in ~/.local/share/kompakt/sessions.db, which cannot be read" in undone.err
        assert store.exists()

    def test_json_of_an_undo_has_the_notes_about_what_is_left(self, home: Path) -> None:
        """The same as the text, and none of those about an installation."""
        project = home / "project"
        project.mkdir()
        for scope in ((), ("--project",)):
            run("install", "claude-code", "--yes", *scope, cwd=project)
        asyncio.run(record(["claude-code/s1"]))
        done = json.loads(run("install", "claude-code", "--undo", "--yes", "--json", cwd=project).out)
        elsewhere, left = done["notes"]
        assert done["done"] and elsewhere.startswith("claude-code still has the plugin in the settings of this folder")
        assert left.startswith("1 recorded session of claude-code stays in")
        shown = run("install", "claude-code", "--undo", cwd=project).err
        assert shown.count("note: ") == 2 and "note: 1 recorded session of claude-code stays in" in shown

    def test_undo_without_an_installation_does_nothing(self, home: Path) -> None:
        own_settings(home)
        before = files_of(home)
        assert run("install", "claude-code", "--undo", "--yes").code == 0
        assert files_of(home) == before

    def test_an_edit_before_a_new_installation_survives_undo(self, home: Path) -> None:
        """Installed, edited, an entry lost, installed again: undo gives the edited file without our entries."""
        own_settings(home)
        run("install", "claude-code", "--yes")
        settings = home / ".claude" / "settings.json"
        edited = settings.read_text().replace('"opus"', '"haiku"').replace("PreCompact", "PreCompactOff", 1)
        settings.write_text(edited)
        run("install", "claude-code", "--yes")
        run("install", "claude-code", "--undo", "--yes")
        assert "kompakt" not in settings.read_text()
        assert '"haiku", // best' in settings.read_text()


async def record(ids: list[str]) -> None:
    """Store a session under each id, as hooks do."""
    url = places.store_url()
    places.make_store_folder(url)
    async with await open_store(url) as store:
        for id in ids:
            await (await store.session(id)).append([{"role": "user", "content": id}], format="anthropic")


class TestErase:
    def use(self, home: Path, agent: str = "claude-code") -> None:
        """Run hooks of two agents as they do in a session, and let one fail."""
        for name in (agent, "codex"):
            given = {"session_id": "s1", "cwd": str(home), "hook_event_name": "SessionStart", "source": "startup"}
            transcript = home / f"{name}.jsonl"
            transcript.write_text("")
            places.note_session(name, "s1", folder=str(home), transcript=str(transcript))
            places.write(places.session_file(name, "s1", "size"), b"1")
            asyncio.run(self.record(f"{name}/s1", json.dumps(given)))
        places.log(f"{agent} Stop: failed")

    async def record(self, id: str, text: str) -> None:
        url = places.store_url()
        places.make_store_folder(url)
        async with await open_store(url) as store:
            for name in (id, f"{id}/outputs"):
                await (await store.session(name)).append([{"role": "user", "content": text}], format="anthropic")

    def test_everything_of_the_agent_is_deleted_and_nothing_of_another(self, home: Path) -> None:
        run("install", "claude-code", "--yes")
        self.use(home)
        kept = [path for path in (home / "state").rglob("*") if path.name.startswith("codex")]
        asked = run("install", "claude-code", "--undo", "--erase", "--dry-run", "--json")
        assert json.loads(asked.out)["erased"]["sessions"] == 2
        assert len(json.loads(run("session", "list", "--json", "--store", places.store_url()).out)) == 4
        done = run("install", "claude-code", "--undo", "--erase", "--yes")
        assert done.code == 0 and "erased 2 sessions and 3 files" in done.err
        left = json.loads(run("session", "list", "--json", "--store", places.store_url()).out)
        assert {one["id"] for one in left} == {"codex/s1", "codex/s1/outputs"}
        assert all(path.exists() for path in kept) and len(places.noted_sessions(str(home))) == 1

    def test_nothing_is_left_in_the_state_folder_after_the_last_agent(self, home: Path) -> None:
        run("install", "claude-code", "--yes")
        self.use(home)
        run("install", "claude-code", "--undo", "--yes")
        for agent in ("claude-code", "codex"):
            assert run("install", agent, "--undo", "--erase", "--yes").code == 0
        assert not (home / "state" / "kompakt").exists()
        assert not (home / ".local" / "share" / "kompakt").exists()

    def test_no_byte_of_an_erased_session_is_left(self, home: Path) -> None:
        """Sessions of another agent keep the file of the store."""
        self.use(home)
        asyncio.run(record(["codex/s2"]))
        assert run("install", "claude-code", "--undo", "--erase", "--yes").code == 0
        assert b"claude-code" not in (home / ".local" / "share" / "kompakt" / "sessions.db").read_bytes()

    def test_an_interruption_says_what_was_erased(
        self, home: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
    ) -> None:
        """And not that nothing was written. The command can be run again."""
        kom = runner(home, monkeypatch, capsysbinary)
        assert kom("install", "claude-code", "--yes").code == 0
        self.use(home)
        deleted: list[Path] = []

        def delete_one(path: Path) -> None:
            if deleted:
                raise KeyboardInterrupt
            deleted.append(path)
            path.unlink()

        with monkeypatch.context() as patch:
            patch.setattr(erasure, "_delete", delete_one)
            done = kom("install", "claude-code", "--undo", "--erase", "--yes")
        assert done.code == 130 and done.out == ""
        assert done.err.splitlines()[-1] == (
            "kompakt: interrupted; kompakt was removed from claude-code (your own settings); 1 of 3 files erased; "
            "2 of 2 sessions erased; run the command again to finish"
        )
        assert "erased 0 sessions and 2 files" in kom("install", "claude-code", "--undo", "--erase", "--yes").err

    def test_a_store_that_another_program_has_open_stays(self, home: Path) -> None:
        """That program would write to a file that is gone. The sessions of the agent are deleted anyway."""
        self.use(home)
        asyncio.run(record(["pi/s1"]))
        run("install", "codex", "--undo", "--erase", "--yes")
        run("install", "pi", "--undo", "--erase", "--yes")
        store = home / ".local" / "share" / "kompakt" / "sessions.db"
        with closing(sqlite3.connect(store)) as reader:
            reader.execute("SELECT count(*) FROM kompakt_heads").fetchone()
            done = run("install", "claude-code", "--undo", "--erase", "--yes", "--json")
            assert done.code == 0, done.err
            assert json.loads(done.out)["erased"]["sessions"] == 2 and json.loads(done.out)["erased"]["store"] is None
            assert store.exists()
            said = run("install", "claude-code", "--undo", "--erase", "--yes").err
            assert "erases the store itself, which has no sessions" in said
            assert "sessions.db: stays, because another program uses it" in said
        last = json.loads(run("install", "claude-code", "--undo", "--erase", "--yes", "--json").out)
        assert last["erased"] == {"sessions": 0, "files": [], "store": str(store)} and not store.exists()

    def test_with_nothing_to_erase_it_says_so_once(self, home: Path) -> None:
        done = run("install", "claude-code", "--undo", "--erase")
        assert done.code == 0 and done.err.count("erase") == 1
        assert "nothing to erase: there are no recorded sessions of claude-code" in done.err
        assert files_of(home) == {}

    def test_it_needs_undo_and_confirmation(self, home: Path) -> None:
        run("install", "claude-code", "--yes")
        self.use(home)
        refused = run("install", "claude-code", "--erase")
        assert refused.code == 2 and refused.err.endswith(f"{own_program()} install claude-code --undo --erase\n")
        assert run("install", "claude-code", "--undo", "--erase").code == 2
        assert len(places.noted_sessions(str(home))) == 2


class TestInstall:
    def test_other_hooks_servers_and_comments_stay(self, home: Path) -> None:
        """The user's lines are all there, and a hook of the user runs as before."""
        own_settings(home)
        run("install", "claude-code", "--yes")
        text = (home / ".claude" / "settings.json").read_text()
        assert '"model": "opus", // best' in text
        assert '{"matcher": "Edit", "hooks": [{"type": "command", "command": "fmt"}]}, // format' in text
        servers = json.loads((home / ".claude.json").read_text())["mcpServers"]
        assert servers["other"] == {"command": "other"}
        assert servers["kompakt"]["alwaysLoad"] is True
        assert stat.S_IMODE((home / ".claude.json").stat().st_mode) == 0o600

    def test_a_status_line_of_the_user_stays(self, home: Path) -> None:
        """It is not replaced, and not removed by undo."""
        (home / ".claude").mkdir()
        settings = home / ".claude" / "settings.json"
        settings.write_text('{"statusLine": {"type": "command", "command": "mine"}}')
        done = run("install", "claude-code", "--yes")
        assert "Your own status line stays" in done.err
        assert json.loads(settings.read_text())["statusLine"]["command"] == "mine"

    @pytest.mark.parametrize(
        "server",
        [{"type": "http", "url": "https://example.test/mcp"}, {"command": "kompakt", "args": ["mcp", "--mine"]}],
    )
    def test_a_server_of_the_user_with_our_name_stays(self, home: Path, server: dict[str, object]) -> None:
        """It is neither replaced nor removed by undo, also if the file changes in between."""
        path = home / ".claude.json"
        path.write_text(json.dumps({"mcpServers": {"kompakt": server}}))
        done = run("install", "claude-code", "--yes")
        assert "Your own MCP server kompakt" in done.err
        assert json.loads(path.read_text()) == {"mcpServers": {"kompakt": server}}
        path.write_text(json.dumps({"mcpServers": {"kompakt": server}, "numStartups": 1}))
        assert run("install", "claude-code", "--undo", "--yes").code == 0
        assert json.loads(path.read_text()) == {"mcpServers": {"kompakt": server}, "numStartups": 1}

    def test_a_server_of_another_environment_is_updated(self, home: Path) -> None:
        """It is ours, and what the user added to it stays."""
        path = home / ".claude.json"
        old = {"command": "/old/bin/python", "args": ["-m", "kompakt", "mcp"], "env": {"A": "b"}}
        path.write_text(json.dumps({"mcpServers": {"kompakt": old}}))
        run("install", "claude-code", "--yes")
        server = json.loads(path.read_text())["mcpServers"]["kompakt"]
        assert [server["command"], *server["args"]] == install.mcp_command("user")
        assert server["env"] == {"A": "b"}

    def test_a_dry_run_prints_the_diff_and_writes_nothing(self, home: Path) -> None:
        own_settings(home)
        before = files_of(home)
        shown = run("install", "claude-code", "--dry-run")
        assert shown.code == 0
        assert "+++" in shown.out and "SessionStart" in shown.out
        assert files_of(home) == before and not (home / "state").exists()

    def test_without_dry_run_the_summary_is_shown_and_the_diff_on_request(self, home: Path) -> None:
        """A hundred lines of diff would hide the summary."""
        own_settings(home)
        settings = home / ".claude" / "settings.json"
        settings.write_text(json.dumps({"permissions": {"allow": [f"Bash(make {number})" for number in range(40)]}}))
        before = files_of(home)
        assert run("install", "claude-code").out == ""
        outer, inner = pty.openpty()
        os.write(outer, b"d\nperhaps\nn\n")
        command = [sys.executable, "-m", "kompakt", "install", "claude-code"]
        done = subprocess.run(command, stdin=inner, capture_output=True, text=True, check=False)
        os.close(inner)
        os.close(outer)
        assert done.returncode == 1 and "nothing was changed" in done.stderr
        assert done.stderr.count("Install? [y]es, [N]o, [d]iff") == 3
        assert done.stderr.count("please answer y, n or d") == 1
        assert "+++" in done.stdout and "SessionStart" in done.stdout
        assert "settings.json has long lines; they are shown with line breaks" in done.stderr
        assert files_of(home) == before

    def test_without_a_terminal_it_does_not_write_unasked(self, home: Path) -> None:
        """Confirmation needs a terminal or --yes."""
        refused = run("install", "claude-code")
        assert refused.code == 2 and "--yes" in refused.err
        assert files_of(home) == {}

    def test_json_has_the_changes(self, home: Path) -> None:
        done = json.loads(run("install", "claude-code", "--yes", "--json").out)
        assert done["done"] is True and done["action"] == "install"
        assert {Path(file["path"]).name for file in done["files"]} == {"settings.json", ".claude.json"}

    @pytest.mark.parametrize(
        ("agent", "hooks", "servers"),
        [
            ("claude-code", ".claude/settings.json", ".mcp.json"),
            ("codex", ".codex/hooks.json", ".codex/config.toml"),
        ],
    )
    def test_a_project_has_no_paths_of_this_machine(self, home: Path, agent: str, hooks: str, servers: str) -> None:
        """Its settings are shared; without kompakt the hooks do nothing."""
        project = home / "project"
        project.mkdir()
        assert run("install", agent, "--project", "--yes", cwd=project).code == 0
        assert set(files_of(project)) == {hooks, servers}
        text = "".join(data.decode() for data in files_of(project).values())
        assert "python" not in text and str(home) not in text
        command = json.loads((project / hooks).read_text())["hooks"]["Stop"][0]["hooks"][0]
        missing = {"PATH": "/nowhere"}
        assert os.spawnve(os.P_WAIT, "/bin/sh", ["sh", "-c", command["command"]], missing) == 0
        assert run("install", agent, "--project", "--undo", "--yes", cwd=project).code == 0
        assert files_of(project) == {}

    def test_a_broken_file_stops_the_installation(self, home: Path) -> None:
        """Nothing is written, and the message names file and line."""
        (home / ".claude").mkdir()
        (home / ".claude" / "settings.json").write_text('{\n"model": \n}')
        refused = run("install", "claude-code", "--yes")
        assert refused.code == 2
        assert "settings.json: line 3" in refused.err
        assert not (home / ".claude.json").exists()

    def test_without_the_extra_there_is_no_mention_of_recall(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neither a server that cannot start nor a hook that names its tool is installed."""
        monkeypatch.setattr(install, "find_spec", lambda name: None)
        for plan in (claude_code_settings.plan("user"), codex_settings.plan("user")):
            install.install(plan, install.plan_install(plan))
            (note,) = [note for note in plan.notes if "recall" in note]
            assert note.endswith(f"{install_command('mcp')} && {own_program()} install {plan.agent}")
        assert "--no-recall" in (home / ".claude" / "settings.json").read_text()
        assert not (home / ".claude.json").exists() and not (home / ".codex" / "config.toml").exists()

    def test_one_line_for_each_file_comes_before_the_diff(self, home: Path) -> None:
        """It says what the agent gets, so that a person need not count hooks in a diff."""
        shown = run("install", "claude-code", "--yes")
        assert shown.err.splitlines()[:2] == [
            f"~/.claude/settings.json: adds {len(claude_code_settings.EVENTS)} hooks and 1 status line",
            "~/.claude.json: adds 1 MCP server",
        ]
        settings = home / ".claude" / "settings.json"
        settings.write_text(
            settings.read_text().replace("kompakt-hook claude-code Stop", "kompakt-hook claude-code Halt")
        )
        changed = json.loads(run("install", "claude-code", "--dry-run", "--json").out)
        assert [file["summary"] for file in changed["files"]] == ["updates 1 hook"]
        settings.write_text(settings.read_text().replace('"timeout": 10', '"timeout": 11'))
        undone = run("install", "claude-code", "--undo", "--dry-run")
        assert undone.err.startswith("~/.claude/settings.json: would remove 7 hooks and 1 status line (changed")

    def test_a_plugin_is_one_entry(self) -> None:
        assert "plugin/kompakt.js: adds 1 plugin and 1 MCP server\n" in run("install", "opencode", "--yes").err
        assert "extensions/kompakt.ts: adds 1 plugin\n" in run("install", "pi", "--yes").err

    def test_without_an_agent_the_agents_are_listed(self) -> None:
        refused = run("install")
        assert refused.code == 2 and "claude-code, codex, opencode, pi" in refused.err
        assert refused.err.rstrip().endswith("install claude-code")

    def test_an_unknown_agent_is_refused(self) -> None:
        """The error lists the few agents that there are."""
        refused = run("install", "vscode")
        assert refused.code == 2 and "claude-code, codex, opencode, pi" in refused.err
        assert "did you mean" not in refused.err

    @pytest.mark.parametrize(
        ("name", "meant"), [("cluade", "claude"), ("claude-cod", "claude-code"), ("opencod", "opencode")]
    )
    def test_a_misspelled_agent_is_recognized(self, name: str, meant: str) -> None:
        """It is not installed, but named beside the known ones."""
        refused = run("install", name, "--yes")
        assert refused.code == 2 and f"did you mean {meant}?" in refused.err and "codex, opencode, pi" in refused.err

    @pytest.mark.parametrize("name", ["claude", "Claude", "CLAUDE-CODE", "Claude Code", "claude_code"])
    def test_an_agent_may_be_spelled_in_several_ways(self, name: str) -> None:
        assert json.loads(run("install", name, "--dry-run", "--json").out)["agent"] == "claude-code"

    def test_what_is_recorded_and_where_is_said_before_the_question(self, home: Path) -> None:
        """So that a person knows it when they answer; without a terminal, nothing was written."""
        shown = run("install", "codex")
        recorded, refused = shown.err.index("~/.local/share/kompakt/sessions.db"), shown.err.index("pass --yes")
        assert recorded < refused and "any secrets" in shown.err and "hooks.log" in shown.err
        notes = json.loads(run("install", "codex", "--dry-run", "--json").out)["notes"]
        assert any(f"{home}/.local/share/kompakt/sessions.db" in note for note in notes)
        assert "sessions.db" not in run("install", "codex", "--undo").err

    @pytest.mark.parametrize(
        ("store", "is_local"), [("mine.db", True), ("sqlite:///mine.db", True), ("redis://localhost", False)]
    )
    def test_a_store_that_is_a_file_is_named_as_local(
        self, monkeypatch: pytest.MonkeyPatch, store: str, is_local: bool
    ) -> None:
        """By its path or by its URL."""
        monkeypatch.setenv("KOMPAKT_STORE", store)
        assert ("Nothing is sent anywhere" in run("install", "codex", "--dry-run").err) == is_local

    def test_the_next_steps_are_doctor_and_then_a_restart(self) -> None:
        done = run("install", "claude", "--yes")
        doctor, restart = "kompakt doctor --client claude-code", "then restart claude-code"
        assert done.err.index(doctor) < done.err.index(restart)

    def test_a_dry_run_says_would(self) -> None:
        """And at its end that nothing was changed."""
        for options in ((), ("--undo",)):
            shown = run("install", "claude-code", "--dry-run", *options).err
            assert f"would {'remove' if options else 'add'} 7 hooks" in shown
            assert shown.endswith("dry run: nothing was changed\n")
            assert " adds " not in shown and " removes " not in shown and "will be" not in shown
            run("install", "claude-code", "--yes")


class TestCodex:
    def test_the_configuration_has_the_server_and_the_hooks(self, home: Path) -> None:
        """Beside those of the user. Outputs are not hooked, because Codex cannot replace them."""
        own_codex(home)
        done = run("install", "codex", "--yes")
        assert "trusted" in done.err
        config = tomllib.loads((home / ".codex" / "config.toml").read_text())
        assert config["mcp_servers"]["kompakt"]["args"] == ["mcp"]
        assert config["mcp_servers"]["other"] == {"command": "x"}
        hooks = json.loads((home / ".codex" / "hooks.json").read_text())["hooks"]
        assert set(hooks) == {"SessionStart", "PreCompact", "PostCompact", "Stop"}
        assert len(hooks["Stop"]) == 2

    def test_a_server_entry_of_the_user_stays(self, home: Path) -> None:
        """Also with undo."""
        (home / ".codex").mkdir()
        config = home / ".codex" / "config.toml"
        config.write_text('[mcp_servers.kompakt]\ncommand = "mine"\n')
        run("install", "codex", "--yes")
        run("install", "codex", "--undo", "--yes")
        assert config.read_text() == '[mcp_servers.kompakt]\ncommand = "mine"\n'

    @pytest.mark.parametrize("again", [False, True])
    def test_tables_that_codex_wrote_before_the_end_marker_stay(self, home: Path, again: bool) -> None:
        """For Codex the marker is a comment at the end of the file. A reinstallation and undo keep such tables."""
        own_codex(home)
        config = home / ".codex" / "config.toml"
        before = tomllib.loads(config.read_text())
        run("install", "codex", "--yes")
        installed = tomllib.loads(config.read_text())
        added = '\n[projects."/x"]\ntrust_level = "trusted"\n'
        config.write_text(config.read_text().replace(codex_settings.END, added + codex_settings.END))
        projects = {"projects": {"/x": {"trust_level": "trusted"}}}
        if again:
            config.write_text(config.read_text().replace('["mcp"]', '["old"]'))
            assert run("install", "codex", "--yes").code == 0
            assert tomllib.loads(config.read_text()) == installed | projects
            assert config.read_text().count(codex_settings.END) == 1
        assert run("install", "codex", "--undo", "--yes").code == 0
        assert tomllib.loads(config.read_text()) == before | projects
        assert "kompakt" not in config.read_text()

    def test_settings_added_to_our_table_do_not_move_to_another(self, home: Path) -> None:
        """A reinstallation keeps them. Undo removes them with the table, and needs no empty line before it."""
        own_codex(home)
        config = home / ".codex" / "config.toml"
        before = tomllib.loads(config.read_text())
        run("install", "codex", "--yes")
        added = 'enabled = false\n\n[mcp_servers.kompakt.tools.recall]\napproval_mode = "approve"\n'
        text = config.read_text().replace(f"\n\n{codex_settings.BEGIN}", f"\n{codex_settings.BEGIN}")
        config.write_text(text.replace(codex_settings.END, added + codex_settings.END).replace('["mcp"]', '["old"]'))
        run("install", "codex", "--yes")
        server = tomllib.loads(config.read_text())["mcp_servers"]["kompakt"]
        assert (server["args"], server["enabled"]) == (["mcp"], False)
        assert server["tools"] == {"recall": {"approval_mode": "approve"}}
        config.write_text(f"{config.read_text()}# edited\n")
        run("install", "codex", "--undo", "--yes")
        assert tomllib.loads(config.read_text()) == before
        assert config.read_text().endswith("# edited\n")

    def test_a_broken_configuration_stops_the_installation(self, home: Path) -> None:
        (home / ".codex").mkdir()
        (home / ".codex" / "config.toml").write_text("model = \n")
        refused = run("install", "codex", "--yes")
        assert refused.code == 2 and "config.toml" in refused.err
        assert not (home / ".codex" / "hooks.json").exists()

    def test_servers_that_are_not_a_table_are_an_error(self, home: Path) -> None:
        (home / ".codex").mkdir()
        (home / ".codex" / "config.toml").write_text("mcp_servers = 5\n")
        refused = run("install", "codex", "--yes")
        assert refused.code == 2 and "config.toml: mcp_servers is not a table; correct the file" in refused.err


class TestDoctor:
    @pytest.mark.parametrize("agent", ["claude-code", "codex", "opencode", "pi"])
    def test_a_working_installation(self, home: Path, agent: str) -> None:
        """Entries, hook program, MCP server and store are tried, and a rule returns after a scripted compaction."""
        run("install", agent, "--yes")
        done = run("doctor", "--client", agent, "--json")
        report = json.loads(done.out)
        assert {check["what"]: check["detail"] for check in report["checks"] if not check["works"]} == {}
        assert done.code == 0 and report["works"] and report["scopes"] == {"user": True}
        checks = {check["what"]: check["detail"] for check in report["checks"]}
        assert f'rule: "{rehearsal.RULE}" → returned; refusal: "{rehearsal.REFUSAL}" → returned' in checks.values()
        assert {"hook program", "recording", "store", "log of hooks"} <= checks.keys()
        assert places.noted_sessions(str(home)) == [] and not Path(places.log_file()).exists()

    @pytest.mark.parametrize("event", ["SessionStart", "Stop"])
    def test_a_hook_program_that_returns_no_rule(self, home: Path, monkeypatch: pytest.MonkeyPatch, event: str) -> None:
        """It answers the check, and gives the model nothing after the compaction: the plugin does not work."""
        run("install", "claude-code", "--yes")
        own = Path(sys.executable).parent / "kompakt-hook"
        broken = home / "kompakt-hook"
        broken.write_text(f'#!/bin/sh\ncase "$2" in {event}) cat >/dev/null;; *) exec {own} "$@";; esac\n')
        broken.chmod(0o755)
        settings = home / ".claude" / "settings.json"
        settings.write_text(settings.read_text().replace(str(own), str(broken)))
        monkeypatch.setattr(rehearsal, "SECONDS", 3.0)
        found = {check.what: check for check in check_host(claude_code_settings.plan("user"))}
        assert found["compaction test"].works == (event != "SessionStart")
        assert f'"{rehearsal.RULE}" → {"LOST" if event == "SessionStart" else "returned"}' in (
            found["compaction test"].detail
        )

    @pytest.mark.parametrize(
        ("version", "state"), [(None, "note"), ("2.1.0", "note"), ("2.1.325", "ok"), ("2.2.1", "ok"), ("?", "note")]
    )
    def test_the_version_of_the_agent_is_shown(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, state: str
    ) -> None:
        """A missing or old agent is a note: the plugin itself works."""
        folder = tmp_path / "bin"
        folder.mkdir()
        if version is not None:
            (folder / "claude").write_text(f"#!/bin/sh\necho '{version} (Claude Code)'\n")
            (folder / "claude").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        first = next(check_host(claude_code_settings.plan("user")))
        assert (first.what, first.state) == ("claude-code", state)
        assert "not on PATH" in first.detail if version is None else version in first.detail or version == "?"
        assert claude_code.TESTED in first.detail or version == "?"

    def test_each_scope_has_a_verdict(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Shared settings that do nothing on this machine do not condemn the user's own, and the remedy is named."""
        project = home / "project"
        project.mkdir()
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        run("install", "claude-code", "--yes")
        installed = run("install", "claude-code", "--project", "--yes", cwd=project)
        folder = install.bin_folder()
        assert f"kompakt-hook is not on PATH: the hooks of this project do nothing here until you add {folder}" in (
            installed.err
        )
        done = run("doctor", "--client", "claude-code", cwd=project)
        assert "plugin in claude-code, your own settings: works" in done.out
        assert "plugin in claude-code, the settings of this folder: does not work" in done.out
        assert f"kompakt-hook is not on PATH, so it does nothing; add {folder} to the PATH" in done.out
        assert done.code == 1
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
        assert run("doctor", "--client", "claude-code", cwd=project).code == 0

    def test_settings_of_one_scope_that_cannot_be_read_are_reported_beside_the_checks_of_the_other(
        self, home: Path
    ) -> None:
        project = home / "project"
        (project / ".claude").mkdir(parents=True)
        (project / ".claude" / "settings.json").write_text('{"model": ')
        run("install", "claude-code", "--yes")
        done = run("doctor", "--client", "claude-code", "--json", cwd=project)
        report = json.loads(done.out)
        assert done.code == 1 and report["scopes"] == {"user": True, "project": False}
        assert [(one["what"], one["scope"]) for one in report["checks"] if not one["works"]] == [
            ("settings", "project")
        ]
        shown = run("doctor", "--client", "claude-code", cwd=project).out
        assert "plugin in claude-code, the settings of this folder: cannot be checked" in shown
        listed = [line.split(maxsplit=3) for line in run("doctor", "--offline", cwd=project).out.splitlines()]
        assert [line[0] for line in listed if line[1:3] == ["plugin", "claude-code"]] == ["problem", "ok"]

    def test_a_file_that_cannot_be_read_does_not_stop_the_checks_of_the_others(self, home: Path) -> None:
        run("install", "codex", "--yes")
        (home / ".codex" / "config.toml").write_text("model = \n")
        checks = {check.what: check for check in check_host(codex_settings.plan("user"))}
        assert checks["MCP server for recall"].state == "problem"
        assert "correct the file" in checks["MCP server for recall"].detail
        assert checks["hooks"].state == checks["hook program"].state == "ok"

    def test_a_typo_is_reported_at_once(self) -> None:
        refused = run("doctor", "--client", "claud-code")
        assert refused.code == 2 and "use one of aider, claude, claude-code" in refused.err

    def test_the_gateway_of_the_same_client_is_named(self) -> None:
        """The gateway knows Claude Code as claude, and the plugin must not hide it."""
        run("install", "claude-code", "--yes")
        assert "--client claude --gateway http://127.0.0.1:8484" in run("doctor", "--client", "claude").out

    def test_a_store_that_cannot_be_written(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The check that fails says why."""
        run("install", "claude-code", "--yes")
        monkeypatch.setenv("KOMPAKT_STORE", "sqlite:////proc/nowhere/x.db")
        done = run("doctor", "--client", "claude")
        assert done.code == 1
        assert "problem  store " in done.out

    def test_in_the_home_folder_the_user_scope_is_not_taken_for_a_project(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """There ``.claude/settings.json`` belongs to both scopes."""
        monkeypatch.chdir(home)
        run("install", "claude-code", "--yes")
        done = run("doctor", "--client", "claude-code", "--json")
        assert {check["scope"] for check in json.loads(done.out)["checks"]} == {"user"}
        assert done.code == 0

    def test_a_plugin_that_is_not_installed_is_named_with_the_command_that_installs_it(self) -> None:
        done = run("doctor", "--client", "claude-code")
        assert done.code == 1
        assert "kompakt install claude-code" in done.out

    def test_a_missing_mcp_server_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(install, "find_spec", lambda name: None)
        checks = {check.what: check for check in check_host(claude_code_settings.plan("user"))}
        assert not checks["MCP server"].works
        assert "[mcp]'" in checks["MCP server"].detail

    @pytest.mark.parametrize("agent", ["claude-code", "codex", "opencode"])
    def test_the_commands_in_the_settings_are_run(self, agent: str, home: Path) -> None:
        """They may be those of an environment that was moved or deleted."""
        run("install", agent, "--yes")
        names = {
            "claude-code": (".claude/settings.json", ".claude.json"),
            "codex": (".codex/hooks.json", ".codex/config.toml"),
            "opencode": (".config/opencode/plugin/kompakt.js",),
        }
        for name in names[agent]:
            file = home / name
            file.write_text(file.read_text().replace(str(Path(sys.executable).parent), "/nowhere"))
        done = run("doctor", "--client", agent, "--json")
        failed = {check["what"]: check["detail"] for check in json.loads(done.out)["checks"] if not check["works"]}
        assert done.code == 1
        assert "/nowhere/kompakt-hook" in failed["hook program"] and "exit code 127" in failed["hook program"]
        assert "/nowhere/kompakt mcp" in failed["MCP server"]

    def test_another_installation_that_works_is_no_problem(self, home: Path, tmp_path: Path) -> None:
        """Doctor of one environment says what the agent will run, which may be that of another."""
        run("install", "claude-code", "--yes")
        other, own = tmp_path / "other", Path(sys.executable).parent
        other.mkdir()
        for name in ("kompakt", "kompakt-hook"):
            (other / name).write_text(f'#!/bin/sh\nexec {own / name} "$@"\n')
            (other / name).chmod(0o755)
        for file in (home / ".claude" / "settings.json", home / ".claude.json"):
            file.write_text(file.read_text().replace(str(own), str(other)))
        done = run("doctor", "--client", "claude-code")
        assert done.code == 0, done.out
        assert "entries of another installation of kompakt" in done.out
        assert "~/other/kompakt-hook" in done.out

    def test_outdated_entries(self, home: Path) -> None:
        run("install", "claude-code", "--yes")
        settings = home / ".claude" / "settings.json"
        settings.write_text(settings.read_text().replace(" claude-code Stop", " claude-code Halt"))
        done = run("doctor", "--client", "claude-code")
        assert done.code == 1 and "outdated" in done.out


class TestWidth:
    @pytest.mark.parametrize("scope", [(), ("--project",)])
    def test_lines_fit_80_columns(self, home: Path, monkeypatch: pytest.MonkeyPatch, scope: tuple[str, ...]) -> None:
        """A longer line is one word, such as a path, or a command of its own, which can be copied."""
        monkeypatch.setattr("tests.cli.commands.ENVIRONMENT", {**ENVIRONMENT, "COLUMNS": "80"})
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        project = home / "project"
        project.mkdir()
        before = run("doctor", "--client", "claude-code", cwd=project)
        installed = run("install", "claude-code", "--yes", *scope, cwd=project)
        checked = run("doctor", "--client", "claude-code", cwd=project)
        undone = run("install", "claude-code", "--undo", "--yes", *scope, cwd=project)
        lines = [line for done in (before, installed, checked, undone) for line in (done.out + done.err).splitlines()]
        assert [
            line for line in lines if len(line) > 80 and not line.startswith("  kompakt") and " " in line.strip()
        ] == []
        assert len(lines) > 30


class TestFaults:
    @pytest.mark.parametrize(
        ("command", "code"), [(("install", "claude-code", "--dry-run"), 2), (("doctor", "--client", "claude-code"), 1)]
    )
    def test_settings_that_are_not_text_are_an_error_with_their_path(
        self, home: Path, command: tuple[str, ...], code: int
    ) -> None:
        (home / ".claude").mkdir()
        (home / ".claude" / "settings.json").write_bytes(b"\xff\xfe{}")
        done = run(*command)
        assert done.code == code
        assert "settings.json: not UTF-8" in done.out + done.err
        assert "Traceback" not in done.err

    def test_a_folder_in_place_of_the_settings_is_an_error_with_its_path(self, home: Path) -> None:
        (home / ".claude" / "settings.json").mkdir(parents=True)
        done = run("install", "claude-code", "--dry-run")
        assert done.code == 2
        assert "cannot read" in done.err
        assert "settings.json" in done.err

    def plan(self) -> HostPlan:
        return claude_code_settings.plan("user")

    def test_a_full_disk_leaves_every_file_as_it_was(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The second file cannot be written: the first is restored, and there is no manifest."""
        own_settings(home)
        before = files_of(home)
        plan, write = self.plan(), install.files.write

        def full(path: Path, data: bytes) -> None:
            if path.name == ".claude.json" and b"kompakt" in data:
                raise UnreadableFile(f"{path}: No space left on device")
            write(path, data)

        monkeypatch.setattr(install.files, "write", full)
        with pytest.raises(UnreadableFile, match="No space left"):
            install.install(plan, install.plan_install(plan))
        assert files_of(home) == before
        assert list((home / "state" / "kompakt" / "install").iterdir()) == []

    @pytest.mark.parametrize("options", [(), ("--undo",)])
    @pytest.mark.parametrize("error", [UnreadableFile("No space left on device"), KeyboardInterrupt()])
    def test_a_change_of_settings_that_does_not_finish_changes_nothing(
        self,
        home: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsysbinary: pytest.CaptureFixture[bytes],
        options: tuple[str, ...],
        error: BaseException,
    ) -> None:
        """It ends after the second file was written and before that is known."""
        kom = runner(home, monkeypatch, capsysbinary)
        own_settings(home)
        for _ in options:
            kom("install", "claude-code", "--yes")
        before, write, written = files_of(home), install.files.write, list[Path]()

        def stopped(path: Path, data: bytes) -> None:
            write(path, data)
            written.append(path)
            if len(written) == 2:
                raise error

        with monkeypatch.context() as patch:
            patch.setattr(install.files, "write", stopped)
            done = kom("install", "claude-code", "--yes", *options)
        assert done.code == (2 if isinstance(error, UnreadableFile) else 130)
        assert "removed from" not in done.err and files_of(home) == before
        assert kom("install", "claude-code", "--yes", *options).code == 0

    def test_backups_can_be_read_by_the_user_only(self, home: Path) -> None:
        """Settings of agents may contain credentials."""
        run("install", "claude-code", "--yes")
        (manifest,) = (home / "state" / "kompakt" / "install").iterdir()
        assert stat.S_IMODE(manifest.stat().st_mode) == 0o600
        for folder in (manifest.parent, manifest.parent.parent):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700


class TestRecognition:
    """Which entries in settings are those of kompakt."""

    @pytest.mark.parametrize(
        "command",
        [
            "kompakt-hook claude-code Stop",
            "venv/bin/kompakt-hook claude-code Stop",
            "'venvs/my x/bin/kompakt-hook' claude-code Stop",
            "command -v kompakt-hook >/dev/null || exit 0; kompakt-hook codex Stop",
            "venv/bin/python -m kompakt.hosts.hook claude-code Stop",
        ],
    )
    def test_own_commands_are_recognized(self, command: str) -> None:
        assert is_own_hook({"type": "command", "command": command})

    @pytest.mark.parametrize("command", ["my-kompakt-hook-wrapper", "notkompakt-hook", "echo kompakt-hooks", "x"])
    def test_commands_of_the_user_are_not(self, command: str) -> None:
        assert not is_own_hook({"type": "command", "command": command})

    def test_of_a_key_that_is_there_twice_the_last_is_changed(self) -> None:
        """Agents read the last one."""
        text = jsonc.put('{"a": {"x": 1}, "a": {"y": 1}}', ("a", "z"), 2, "settings")
        assert json.loads(text) == {"a": {"y": 1, "z": 2}}


def test_settings_on_one_line_are_shown_with_line_breaks(home: Path) -> None:
    """A diff of one line with a thousand characters cannot be reviewed."""
    (home / ".claude").mkdir()
    long = {"permissions": {"allow": [f"Bash(make {number})" for number in range(40)]}}
    (home / ".claude" / "settings.json").write_text(json.dumps(long))
    shown = run("install", "claude-code", "--dry-run").out
    assert max(map(len, shown.splitlines())) < 200
    assert json.loads((home / ".claude" / "settings.json").read_text()) == long
