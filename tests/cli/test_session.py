"""``kompakt session …``: ids and data on stdout, the rest on stderr, one line for an error.

Most commands run inside this process, on a SQLite file; a few run in a separate process.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import SOURCE, run
from tests.cli.store_helpers import BODY, Run, account, put, refused
from tests.histories import FORMATS, plain
from tests.wire.transcripts.transcript_files import Writer, text

import kompakt
from kompakt.cli import session as session_commands
from kompakt.gateway.request.labels import Label
from kompakt.gateway.storage.recorder import encode_note
from kompakt.session import session as sessions
from kompakt.session.session import Session, label_name
from kompakt.session.store import open_store
from kompakt.store import find_store, sqlite_path, store_url
from kompakt.store.records import key_of

CALL = {"id": "a", "type": "function", "function": {"name": "read", "arguments": "{}"}}
BROKEN = {
    "model": "gpt-5.4",
    "messages": [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "user", "content": "on"},
    ],
}


class TestImport:
    def test_import_in_a_separate_process(self, tmp_path: Path, file: Path) -> None:
        """Only the id is on stdout; the store is a file in the working directory; piped input gets an id too."""
        first = run("session", "import", file, cwd=tmp_path)
        assert first.code == 0 and first.out.startswith("talk-") and len(first.out.splitlines()) == 1
        assert (tmp_path / "kompakt.db").exists() and f"{len(BODY['messages'])} messages" in first.err
        piped = run("session", "import", "-", cwd=tmp_path, input=file.read_bytes())
        assert piped.out.startswith("stdin-")
        shown = run("session", "export", first.out.strip(), cwd=tmp_path)
        assert json.loads(shown.out) == BODY

    def test_importing_twice_writes_once(self, kom: Run, file: Path, id: str) -> None:
        assert kom("session", "import", file).out.strip() == id
        assert account(kom, id)["messages"] == len(BODY["messages"])

    def test_other_content_is_another_session(self, kom: Run, file: Path, id: str) -> None:
        """The id depends on the content."""
        put(file, plain.build("openai-chat", messages=20, seed=4))
        assert kom("session", "import", file).out.strip() != id

    def test_a_longer_history_is_appended(self, kom: Run, tmp_path: Path) -> None:
        """Another history with the same id is rejected."""
        for upto in (20, 41, len(BODY["messages"])):
            part = put(tmp_path / "part.json", {**BODY, "messages": BODY["messages"][:upto]})
            assert kom("session", "import", part, "--id", "mine").out == "mine\n"
            assert account(kom, "mine")["messages"] == upto
        refused(kom("session", "import", put(tmp_path / "o.json", BROKEN), "--id", "mine"), "mine")

    def test_a_broken_history_is_imported_unchanged(self, kom: Run, tmp_path: Path) -> None:
        """Problems are reported; requests are repaired."""
        done = kom("session", "import", put(tmp_path / "bad.json", BROKEN))
        assert done.code == 0 and "OC-1" in done.err
        id = done.out.strip()
        assert json.loads(kom("session", "export", id).out) == BROKEN
        assert kompakt.check(json.loads(kom("session", "export", id, "--view", "model").out)) == []
        assert account(kom, id)["repairs"] and "OC-1" in kom("session", "show", id).out

    def test_a_transcript(self, kom: Run, tmp_path: Path) -> None:
        """The lines of a coding agent are imported; an unreadable line is reported."""
        said = [("user", "Fix the lock gate."), ("assistant", [{"type": "text", "text": "The hinge was bent."}])]
        lines = [
            {"type": role, "uuid": f"u{i}", "parentUuid": f"u{i - 1}" if i else None, "sessionId": "s",
             "isSidechain": False, "message": {"role": role, "content": content}}
            for i, (role, content) in enumerate(said)
        ]  # fmt: skip
        path = tmp_path / "agent.jsonl"
        path.write_text("\n".join([*map(json.dumps, lines), "{broken"]))
        done = kom("session", "import", path)
        assert done.code == 0 and "line 3: skipped" in done.err
        shown = account(kom, done.out.strip())
        assert (shown["format"], shown["messages"], shown["turns"]) == ("anthropic", 2, 1)

    def test_side_chains_are_linked_sessions(self, kom: Run, tmp_path: Path) -> None:
        """Recall in the imported session finds what a sub-agent did, and names the session of the sub-agent."""
        main = Writer().user("Fix the tide table.").assistant("a1", text("A helper reads it."))
        side = (
            Writer(prefix="n", isSidechain=True, agentId="x").user("Read it.").assistant("n1", text("It is 17 cm off."))
        )
        path = tmp_path / "s.jsonl"
        path.write_text("".join(json.dumps(one) + "\n" for one in (*main.records, *side.records)))
        for _ in range(2):
            done = kom("session", "import", path, "--id", "main")
            assert "1 side chain; sessions main/side-1" in done.err and "ignored" not in done.err
        found = kom("recall", "sqlite:///kompakt.db", "17 cm", "--session", "main")
        assert "'main/side-1'" in found.out and "It is 17 cm off." in found.out

    def test_an_interrupted_import_continues(self, kom: Run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Exit 130; the second run completes it."""
        commit, calls = Session._commit, []

        async def interrupted(self: Session, *arguments: Any, **options: Any) -> bool:
            calls.append(1)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return await commit(self, *arguments, **options)

        monkeypatch.setattr(sessions, "BATCH", 10)
        monkeypatch.setattr(Session, "_commit", interrupted)
        done = kom("session", "import", file, "--id", "x")
        assert (done.code, done.out) == (130, "")
        assert done.err == "kompakt: interrupted; completed writes are saved; run the command again to continue\n"
        assert account(kom, "x")["messages"] == 20
        assert kom("session", "import", file, "--id", "x").code == 0
        assert json.loads(kom("session", "export", "x").out) == BODY

    def test_bad_files(self, kom: Run, tmp_path: Path) -> None:
        """Nothing is imported from an unreadable file."""
        refused(kom("session", "import", tmp_path / "missing.json"), "missing.json")
        refused(kom("session", "import", put(tmp_path / "n.json", 7)), "n.json")
        assert not (tmp_path / "kompakt.db").exists()


class TestListShowVerify:
    def test_list(self, kom: Run, id: str, tmp_path: Path) -> None:
        """A table by default, a list of objects with --json."""
        other = kom("session", "import", put(tmp_path / "b.json", BROKEN)).out.strip()
        shown = kom("session", "list")
        assert shown.code == 0 and "2 sessions" in shown.out and id in shown.out and other in shown.out
        lines = {line["id"]: line for line in json.loads(kom("session", "list", "--json").out)}
        assert lines.keys() == {id, other}
        assert lines[id]["messages"] == len(BODY["messages"]) and lines[id]["compactions"] == 0
        assert lines[other]["turns"] == 2 and lines[other]["created"].endswith("Z")

    def test_a_list_starts_with_the_newest_session(self, kom: Run, id: str, tmp_path: Path) -> None:
        """A person finds it by title, client, model and last use; they are those of the inspector."""
        plain_id = kom("session", "import", put(tmp_path / "b.json", BODY["messages"])).out.strip()
        asyncio.run(self.label(plain_id))
        kom("session", "import", put(tmp_path / "c.json", {**BODY, "model": "gpt-5"}), "--id", "newer")
        lines = json.loads(kom("session", "list", "--json").out)
        assert [line["id"] for line in lines] == ["newer", plain_id, id]
        assert [line["model"] for line in lines] == ["gpt-5", "local-model", BODY["model"]]
        rows = json.loads(kom("inspect", "--store", "kompakt.db", "--json").out)["rows"]
        for line, row in zip(lines, rows, strict=True):
            assert [line[name] for name in ("id", "title", "client", "model", "messages", "compactions")] == [
                row[name] for name in ("id", "title", "client", "model", "messages", "compactions")
            ]
            assert line["touched"] == row["last_activity"]
        shown = kom("session", "list").out
        assert shown.index("newer") < shown.index("Move the harbour\\x1b[2J") < shown.index(plain_id) < shown.index(id)
        assert "0 compactions, aider 0.9, local-model\n" in shown
        one = kom("session", "show", plain_id).out
        assert "aider 0.9" in one and "local-model" in one and "last used" in one
        assert account(kom, plain_id)["title"] == "Move the harbour\x1b[2J"

    async def label(self, id: str) -> None:
        """Write what a gateway writes at the first request of a session."""
        async with await open_store("kompakt.db") as store:
            label = Label("Move the harbour\x1b[2J", "local-model", "aider 0.9")
            note = {label_name(id): encode_note(label, store.value_codec)}
            await store.records.note("", key_of("", id), note)

    def test_an_empty_list_says_what_to_do(self, kom: Run, id: str) -> None:
        """No table without rows; JSON stays a list."""
        done = kom("session", "list", "--tenant", "acme")
        assert (done.code, done.out) == (0, "")
        assert done.err.startswith("no sessions in kompakt.db of tenant 'acme'\n")
        assert "kompakt session import FILE" in done.err
        assert kom("session", "list", "--tenant", "acme", "--json").out == "[]\n"

    def test_show(self, kom: Run, id: str) -> None:
        """The numbers are those of the file; tokens are those of a request."""
        shown = account(kom, id)
        assert shown["id"] == id and shown["messages"] == len(BODY["messages"]) and shown["turns"] >= 1
        assert shown["tokens"] == kompakt.count(BODY).total
        assert shown["compactions"] == shown["pending"] == shown["pins"] == shown["repairs"] == []
        assert f"{shown['tokens']:,}" in kom("session", "show", id).out

    def test_verify(self, kom: Run, id: str, tmp_path: Path) -> None:
        """Nothing on stdout and exit 0 if everything is valid."""
        assert kom("session", "verify", id) == (0, "", "1 session, no problems\n")
        kom("session", "fork", id)
        assert kom("session", "verify") == (0, "", "2 sessions, no problems\n")

    def test_verify_finds_a_wrong_key(self, kom: Run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """One problem per line, exit 1; the key is not printed."""
        monkeypatch.setenv("KOMPAKT_KEY", "a1" * 32)
        id = kom("session", "import", file).out.strip()
        monkeypatch.setenv("KOMPAKT_KEY", "c7" * 32)
        done = kom("session", "verify")
        assert done.code == 1 and done.out.startswith(f"{id}: ") and "c7c7" not in done.out + done.err

    @pytest.mark.parametrize("command", ["show", "export", "verify", "compact"])
    def test_a_missing_key_is_not_reported_as_damage(
        self, kom: Run, file: Path, monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        """The error says that the store is encrypted and how to pass the key."""
        monkeypatch.setenv("KOMPAKT_KEY", "a1" * 32)
        id = kom("session", "import", file).out.strip()
        monkeypatch.delenv("KOMPAKT_KEY")
        done = kom("session", command, id)
        refused(done, "encrypted and no key was given", "--key-file")
        assert "damaged" not in done.err

    def test_reading_creates_no_store(self, kom: Run, tmp_path: Path) -> None:
        """Only an import creates a file."""
        refused(kom("session", "list"), "no store kompakt.db", "import")
        refused(kom("recall", "sqlite:///none.db", "x"), "none.db")
        assert list(tmp_path.iterdir()) == []


class TestCompact:
    def test_compact_show_undo(self, kom: Run, id: str) -> None:
        """The model's view shrinks, the messages stay, and undo restores the view."""
        before = account(kom, id)
        done = json.loads(kom("session", "compact", id, "--budget", "4000", "--json").out)
        assert done["changed"] and done["session"] == id and done["tokens_before"] == before["tokens"]
        assert done["tokens_after"] <= 4000
        after = account(kom, id)
        assert after["messages"] == before["messages"] and after["tokens"] < before["tokens"]
        assert [(one["id"], one["undone"]) for one in after["compactions"]] == [(done["id"], False)]
        assert done["id"] in kom("session", "show", id).out
        assert json.loads(kom("session", "list", "--json").out)[0]["compactions"] == 1
        assert kom("session", "undo", id, "--compaction", done["id"]).out == f"compaction {done['id']}\n"
        assert account(kom, id)["tokens"] == before["tokens"]
        assert account(kom, id)["compactions"][0]["undone"] is True
        assert json.loads(kom("session", "list", "--json").out)[0]["compactions"] == 0
        assert kom("session", "redo", id).out == f"compaction {done['id']}\n"
        refused(kom("session", "redo", id), "nothing to redo")
        assert kom("session", "undo", id, "--json").out.count(done["id"]) == 1
        refused(kom("session", "undo", id), "nothing to undo")

    def test_not_due(self, kom: Run, id: str) -> None:
        """A session within its budget is unchanged."""
        done = kom("session", "compact", id, "--budget", "1000000")
        assert (done.code, done.out) == (0, "") and "nothing to do" in done.err
        assert account(kom, id)["compactions"] == []

    def test_forced(self, kom: Run, id: str) -> None:
        """The table is on stderr, the id of the compaction on stdout."""
        tokens = account(kom, id)["tokens"]
        done = kom("session", "compact", id, "--budget", str(2 * tokens), "--force", "--instructions", "keep the flag")
        (one,) = account(kom, id)["compactions"]
        assert (done.code, done.out) == (0, one["id"] + "\n") and "before" in done.err
        assert one["auto"] is False and account(kom, id)["pending"] == []

    def test_does_not_fit(self, kom: Run, id: str) -> None:
        """Exit 3; a manual request stays pending and is not made twice."""
        for _ in range(2):
            done = kom("session", "compact", id, "--budget", "10", "--force", "--instructions", "mind the gap")
            assert (done.code, done.out) == (3, "") and len(done.err.splitlines()) == 1
        (waiting,) = account(kom, id)["pending"]
        assert waiting["instructions"] == "mind the gap" and "mind the gap" in kom("session", "show", id).out

    def test_edit_and_undo(self, kom: Run, id: str, tmp_path: Path) -> None:
        """The new summary comes from the command line or from a file."""
        refused(kom("session", "edit", id, "--summary", "x"), "no summary")
        kom("session", "compact", id, "--budget", "4000")
        (tmp_path / "words.txt").write_text("The gate was mended on Tuesday.")
        assert kom("session", "edit", id, "--file", tmp_path / "words.txt").code == 0
        assert "mended on Tuesday" in kom("session", "export", id, "--view", "model").out
        assert kom("session", "edit", id, "--summary", "Nothing happened.").code == 0
        assert "Nothing happened." in kom("session", "export", id, "--view", "model").out
        assert "edit" in kom("session", "undo", id).out
        assert "mended on Tuesday" in kom("session", "export", id, "--view", "model").out
        refused(kom("session", "edit", id), "--summary")
        refused(kom("session", "edit", id, "--file", "nowhere.txt"), "nowhere.txt")

    def test_pins(self, kom: Run, id: str) -> None:
        """A pin is listed, survives a compaction, and can be removed."""
        assert kom("session", "pin", id, "never push to main").out == "never push to main\n"
        assert kom("session", "pin", id, "two\nlines").out == 'never push to main\n"two\\nlines"\n'
        assert account(kom, id)["pins"] == ["never push to main", "two\nlines"]
        assert kom("session", "pin", id, "two\nlines", "--remove").out == "never push to main\n"
        refused(kom("session", "pin", id, "two\nlines", "--remove"), "is not pinned")


class TestRevertForkExport:
    def test_revert_and_undo(self, kom: Run, id: str) -> None:
        turns = account(kom, id)["turns"]
        assert turns >= 2
        done = kom("session", "revert", id, "--turn", "1")
        assert (done.code, done.out) == (0, "") and "messages reverted" in done.err
        shown = json.loads(kom("session", "export", id).out)
        assert shown["messages"] == BODY["messages"][: len(shown["messages"])] and account(kom, id)["turns"] == 1
        assert kom("session", "undo", id).out == "the revert to turn 1\n"
        assert json.loads(kom("session", "export", id).out) == BODY
        refused(kom("session", "revert", id, "--turn", "99"), "3 turns")

    def test_fork(self, kom: Run, id: str) -> None:
        """The new id is on the last line; the fork has the first turns."""
        done = kom("session", "fork", id, "--turn", "1")
        new = done.out.splitlines()[-1]
        assert new != id and account(kom, new)["turns"] == 1
        assert kom("session", "fork", id, "--id", "copy").out == "copy\n"
        assert json.loads(kom("session", "export", "copy").out) == BODY
        refused(kom("session", "fork", id, "--id", "copy"), "copy")

    def test_replay(self, kom: Run, id: str, tmp_path: Path) -> None:
        """A request from a turn on, also into a file."""
        done = kom("session", "replay", id, "--turn", "2")
        messages = json.loads(done.out)["messages"]
        assert messages == BODY["messages"][-len(messages) :] and messages[0]["role"] == "user"
        assert kom("session", "replay", id, "--turn", "2", "-o", tmp_path / "r.json").out == ""
        assert (tmp_path / "r.json").read_text() == done.out

    @pytest.mark.parametrize("format", FORMATS)
    def test_export_in_every_format(self, kom: Run, id: str, format: str) -> None:
        """All messages are there, and the model's view is valid in every format."""
        kom("session", "compact", id, "--budget", "4000")
        full, shown = (kom("session", "export", id, "--view", view, "--format", format) for view in ("full", "model"))
        assert (full.code, shown.code) == (0, 0)
        assert len(kompakt.parse(json.loads(full.out), format)) >= len(BODY["messages"]) - 1
        assert kompakt.check(json.loads(shown.out), format=format) == []

    def test_export_of_the_last_turns(self, kom: Run, id: str) -> None:
        messages = json.loads(kom("session", "export", id, "--turns", "1").out)["messages"]
        assert messages == BODY["messages"][-len(messages) :] and messages[0]["role"] == "user"
        assert kom("session", "export", id, "--turns", "1", "--view", "model").code == 0
        refused(kom("session", "export", id, "--format", "telegram"), "telegram")


class TestRecall:
    def test_recall_in_a_store(self, kom: Run, id: str, file: Path) -> None:
        """By words and by reference, also after a compaction; in all sessions by default."""
        kom("session", "compact", id, "--budget", "4000")
        url = "sqlite:///kompakt.db"
        found = json.loads(kom("recall", url, "supplier invoices", "--session", id, "--json").out)
        assert found["references"]
        assert kom("recall", url, "supplier invoices").code == 0
        whole = kom("recall", url, found["references"][0], "--session", id, "--tokens", "0")
        assert whole.code == 0 and whole.out == kom("recall", file, found["references"][0], "--tokens", "0").out
        assert kom("recall", url, "zebra crossing", "--session", id).code == 1
        refused(kom("recall", url, "x", "--session", "nope"), "nope")
        refused(kom("recall", file, "x", "--session", id), "contains one history and no sessions")

    def test_store_urls_are_recognized(self, tmp_path: Path) -> None:
        """A scheme makes a URL; anything else is a file, which is a store if it is one of kompakt."""
        for url in ("memory:", "postgresql+asyncpg://h/d", "REDIS://h", "unix:///s"):
            assert find_store(url) == url == store_url(url)
        for name in ("a.json", "-", "C:/a.json", "memory.json", "redis", "sqlite.db"):
            assert find_store(name) is None
        assert store_url("a.db") == "sqlite:///a.db" and store_url("/x/store") == "sqlite:////x/store"
        assert store_url("redis") == "redis"  # more likely an incomplete URL than a file
        assert [sqlite_path(one) for one in ("a.db", "sqlite:///b/a.db", "memory:")] == ["a.db", "b/a.db", None]

    @pytest.mark.parametrize(
        ("command", "name"),
        [
            (("recall", "a.json", "words"), "FILE"),
            (("inspect", "a.json", "--json"), "FILE"),
            (("fleet", "check", "a.json", "--out", "o"), "SOURCE"),
        ],
    )
    def test_a_file_and_a_store_are_refused(self, kom: Run, command: tuple[str, ...], name: str) -> None:
        refused(
            kom(*command, "--store", "b.db"), "'a.json' and --store name different", f"give {name} or --store, not both"
        )

    @pytest.mark.parametrize(
        "command",
        [
            ("recall", "talk.json", "work"),
            ("inspect", "talk.json", "--json"),
            ("fleet", "check", "talk.json", "-o", "o"),
        ],
        ids=lambda command: command[0],
    )
    def test_a_file_has_precedence_over_a_store_in_the_settings(
        self, kom: Run, file: Path, tmp_path: Path, command: tuple[str, ...]
    ) -> None:
        """The store does not exist, so a command that reads it fails; without a file it is read."""
        (tmp_path / "kompakt.toml").write_text('store = "missing.db"\n')
        done = kom(*command)
        assert done.code == 0, done.err
        refused(kom(command[0], *(argument for argument in command[1:] if argument != file.name)), "missing.db")

    def test_a_store_is_named_in_the_same_way_everywhere(self, kom: Run, id: str, tmp_path: Path) -> None:
        """With --store, as a path or as a URL; in place of FILE it works as well."""
        shown = kom("session", "list", "--json").out
        for store in ("kompakt.db", tmp_path / "kompakt.db", "sqlite:///kompakt.db"):
            assert kom("session", "list", "--json", "--store", store).out == shown
            first = kom("recall", "--store", store, "which test failed", "--json")
            assert first.code == 0 and first == kom("recall", store, "which test failed", "--json")
            seen = kom("inspect", "--store", store, "--json")
            assert seen.code == 0 and seen.out == kom("inspect", store, "--json").out
            assert "is readable" in kom("doctor", "--offline", "--store", store).out
            assert kom("fleet", "check", "--store", store, "--out", tmp_path / f"out{len(str(store))}").code == 0
        refused(kom("session", "list", "--store", "other.db"), "there is no store other.db")
        refused(kom("recall", "session.json"), "kompakt recall session.json QUERY")
        refused(kom("inspect"), "kompakt inspect --store STORE")
        refused(kom("fleet", "check", "--out", "o"), "--store STORE")
        refused(kom("session", "list", "--store", "sessions"), "or the path of a SQLite file")


class TestHelp:
    def test_every_command_is_explained(self, kom: Run) -> None:
        listed = kom("session", "--help").out
        for command in session_commands.app.registered_commands:
            assert command.name and f"  {command.name} " in listed
            assert kom("session", command.name, "--help").out.startswith("Usage: ")
        assert "session" in kom("--help").out

    def test_help_loads_nothing_heavy(self) -> None:
        """Neither a driver nor an event loop."""
        code = (
            "import sys, kompakt.cli.session;"
            "print(sorted({'asyncio', 'sqlalchemy', 'aiosqlite', 'rich'} & set(sys.modules)))"
        )
        environment = {**os.environ, "PYTHONPATH": SOURCE}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
        assert done.stdout == "[]\n"
