"""Stores, tenants, keys, unusual ids and removal. Keys and passwords are never printed."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.commands import run
from tests.cli.store_helpers import BODY, Run, account, put, refused

from kompakt.cli import session as session_commands
from kompakt.cli.store_options import printable, read_id
from kompakt.session.session import Session
from kompakt.session.store import Store, open_store

SECRET = "c7" * 32
ODD = ["a\nb", "\udcff\udc00", '"x"', " lead", "ünï", "a'; DROP TABLE x; --", "../../etc"]


class TestRemove:
    def test_delete(self, kom: Run, id: str) -> None:
        """Without a terminal, --yes is required."""
        refused(kom("session", "delete", id), "--yes")
        assert kom("session", "delete", id, "--yes").code == 0
        assert json.loads(kom("session", "list", "--json").out) == []
        refused(kom("session", "delete", id, "--yes"), id)

    def test_purge_of_a_tenant(self, kom: Run, file: Path, id: str) -> None:
        """Sessions of other tenants are not removed."""
        assert kom("session", "import", file, "--tenant", "acme").out.strip() == id
        refused(kom("session", "purge", "--tenant", "acme"), "--yes")
        done = kom("session", "purge", "--tenant", "acme", "--yes")
        assert (done.code, done.out, done.err) == (0, "", "1 session removed\n")
        assert json.loads(kom("session", "list", "--json", "--tenant", "acme").out) == []
        assert json.loads(kom("session", "export", id).out) == BODY
        assert kom("session", "purge", "--yes").code == 2

    def test_gc_without_retention(self, kom: Run, id: str) -> None:
        """Nothing is removed."""
        done = kom("session", "gc")
        assert (done.code, done.out) == (0, "") and "nothing was removed" in done.err
        refused(kom("session", "gc", "--older-than", "0"), "--older-than '0' is not an age above 0")
        refused(kom("session", "gc", "--older-than", "-1"), "in days (30) or with a unit (30d, 12h, 2w)")
        assert account(kom, id)["id"] == id

    def test_gc_erases_earlier_deletions(self, kom: Run, id: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """The files of the store are rewritten with and without a retention, and never by a dry run."""
        calls: list[str] = []
        scrub = Store.scrub

        async def counted(store: Store) -> None:
            calls.append("scrub")
            await scrub(store)

        monkeypatch.setattr(Store, "scrub", counted)
        kom("session", "gc", "--dry-run")
        assert calls == []
        kom("session", "gc")
        kom("session", "gc", "--older-than", "30")
        assert calls == ["scrub"] * 2
        assert account(kom, id)["id"] == id

    def test_gc(self, kom: Run, id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The retention comes from the configuration, a variable or an option."""
        (tmp_path / "kompakt.toml").write_text("retention_days = 30")
        assert kom("session", "gc").err == "0 sessions removed\n"
        now = session_commands.time.time()
        monkeypatch.setattr(session_commands.time, "time", lambda: now + 20 * 86_400)
        assert kom("session", "gc").out == ""
        monkeypatch.setenv("KOMPAKT_RETENTION_DAYS", "19.5")
        assert kom("session", "gc", "--older-than", "21").out == ""
        for age in ("21d", "3w", "481h"):
            assert kom("session", "gc", "--older-than", age, "--dry-run").out == ""
        for age in ("19d", "479h", "2w"):
            assert kom("session", "gc", "--older-than", age, "--dry-run").out == f"{id}\n"
        dry_run = kom("session", "gc", "--dry-run")
        assert dry_run == (0, f"{id}\n", "1 session would be removed\ndry run: nothing was removed\n")
        assert kom("session", "gc") == (0, f"{id}\n", "1 session removed\n")
        assert json.loads(kom("session", "list", "--json").out) == []

    def test_every_write_keeps_a_session_from_gc(self, kom: Run, id: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also a message, not only a compaction, a revert, an edit or a pin."""
        now = session_commands.time.time()
        monkeypatch.setattr(session_commands.time, "time", lambda: now + 20 * 86_400)
        asyncio.run(self.append(id))
        assert kom("session", "gc", "--older-than", "19d", "--dry-run").out == ""

    async def append(self, id: str) -> None:
        async with await open_store("kompakt.db") as store:
            await (await store.session(id)).append([{"role": "user", "content": "One more."}])


class TestStores:
    def test_the_store_can_be_configured(
        self, kom: Run, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An option has precedence over a variable, and a variable over the file."""
        (tmp_path / "kompakt.toml").write_text('[session]\nstore = "sqlite:///a.db"\ntenant = "t"\n')
        id = kom("session", "import", file).out.strip()
        assert kom("session", "show", id).code == 0 and (tmp_path / "a.db").exists()
        monkeypatch.setenv("KOMPAKT_STORE", "sqlite:///b.db")
        kom("session", "import", file)
        kom("session", "import", file, "--store", "sqlite:///c.db")
        assert {path.name for path in tmp_path.glob("*.db")} == {"a.db", "b.db", "c.db"}
        refused(kom("session", "show", id, "--store", "sqlite:///c.db", "--tenant", ""), id)

    def test_a_store_in_memory(self, kom: Run, file: Path) -> None:
        """It is lost at exit."""
        assert kom("session", "import", file, "--store", "memory:").code == 0
        assert json.loads(kom("session", "list", "--store", "memory:", "--json").out) == []

    @pytest.mark.parametrize("kind", ["raw", "hex", "variable"])
    def test_a_key(self, kind: str, kom: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With a key no text is readable in the file, and nothing can be read without it."""
        more: tuple[str, ...] = ("--key-file", "key")
        if kind == "variable":
            monkeypatch.setenv("KOMPAKT_KEY", SECRET)
            more = ()
        else:
            (tmp_path / "key").write_bytes(bytes.fromhex(SECRET) if kind == "raw" else f"{SECRET}\n".encode())
        body = {"model": "gpt-5.4", "messages": [{"role": "user", "content": "the heron stands in the reeds"}]}
        assert kom("session", "import", put(tmp_path / "h.json", body), "--id", "h", *more).code == 0
        assert json.loads(kom("session", "export", "h", *more).out) == body
        assert "heron" in kom("recall", "sqlite:///kompakt.db", "reeds", "--session", "h", *more).out
        assert all(b"heron" not in path.read_bytes() for path in tmp_path.glob("kompakt.db*"))
        monkeypatch.delenv("KOMPAKT_KEY", raising=False)
        refused(kom("session", "export", "h"), "key")

    def test_bad_keys_are_not_quoted(self, kom: Run, id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """One line explains what a key is."""
        (tmp_path / "key").write_text("hunter2")
        done = kom("session", "show", id, "--key-file", "key")
        refused(done, "key: a key is 64")
        refused(kom("session", "show", id, "--key-file", "nowhere"), "nowhere")
        monkeypatch.setenv("KOMPAKT_KEY", "hunter2")
        other = kom("session", "show", id)
        refused(other, "KOMPAKT_KEY")
        assert "hunter2" not in done.err + other.err

    @pytest.mark.parametrize(
        "url",
        ["ftp://u:hunter2@host", "sqlite://x", "", "redis://u:hunter2@127.0.0.1:1/0",
         "postgresql://u:hunter2@127.0.0.1:1/db", "sqlite:///no/such/folder/x.db", "sqlite:////"],
    )  # fmt: skip
    @pytest.mark.parametrize("command", ["import", "list"])
    def test_bad_urls(self, url: str, command: str, kom: Run, file: Path) -> None:
        """One line, exit 2, no password."""
        done = kom("session", command, *([file] if command == "import" else []), "--store", url)
        refused(done)
        assert "hunter2" not in done.err

    @pytest.mark.parametrize(
        "command",
        ["show", "compact", "undo", "redo", "revert --turn 1", "replay --turn 1", "fork", "export", "edit --summary x",
         "pin x", "pin x --remove", "verify", "delete --yes"],
    )  # fmt: skip
    def test_no_such_session(self, command: str, kom: Run, id: str) -> None:
        """Exit 2 and one line with the id, for any id."""
        name, *more = command.split()
        for missing in ("nope", "no\npe\x1b[2J", "\udcff"):
            done = kom("session", name, missing, *more)
            refused(done, repr(missing)[1:-1])
            assert "\x1b" not in done.err
        assert account(kom, id)["id"] == id

    def test_a_file_that_is_not_a_store(self, kom: Run, file: Path) -> None:
        """It is not overwritten."""
        before = file.read_bytes()
        refused(kom("session", "list", "--store", f"sqlite:///{file}"), file.name)
        assert file.read_bytes() == before

    def test_an_interrupt_of_another_command(self, kom: Run, id: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Exit 130 and one line."""

        async def interrupted(*_: object, **__: object) -> NoReturn:
            raise KeyboardInterrupt

        monkeypatch.setattr(Session, "export", interrupted)
        assert kom("session", "export", id) == (130, "", "kompakt: interrupted; nothing was written\n")


class TestIds:
    @given(st.text(st.characters(exclude_categories=())))
    def test_printable_ids_are_read_back(self, id: str) -> None:
        assert read_id(printable(id)) == id
        assert printable(id).isprintable() and printable(id).encode()

    @pytest.mark.parametrize(
        "odd", ["a\nb", "\udcff\udc00", '"x"', " lead", "ünï", "a'; DROP TABLE x; --", "../../etc"]
    )
    def test_unusual_ids_work_in_all_commands(self, odd: str, kom: Run, file: Path) -> None:
        """The output of import is accepted by the other commands."""
        name = printable(odd)
        assert kom("session", "import", file, "--id", name).out == f"{name}\n"
        assert account(kom, name)["id"] == odd
        assert json.loads(kom("session", "list", "--json").out)[0]["id"] == odd
        assert name in kom("session", "list").out and kom("session", "show", name).code == 0
        forked = kom("session", "fork", name).out.strip()
        assert read_id(forked).startswith(odd) and kom("session", "verify", forked).code == 0
        assert kom("session", "delete", name, "--yes").code == 0

    def test_ids_that_are_not_utf_8(self, tmp_path: Path, file: Path) -> None:
        done = run("session", "import", file, "--id", os.fsdecode(b"caf\xe9"), cwd=tmp_path)
        assert (done.code, done.out) == (0, '"caf\\udce9"\n')
        assert run("session", "show", done.out.strip(), cwd=tmp_path).code == 0
