"""``kompakt inspect``: the printed URL, the same numbers as other commands, clear errors, and a clean end."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from tests.cli.commands import run
from tests.view.sessions import claude_code, stored

from kompakt.view.inspection import open_inspection


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "s.db"
    asyncio.run(stored(path))
    return path


def values(*arguments: str | Path) -> Any:
    found = run(*arguments)
    assert found.code == 0, found.err
    return json.loads(found.out)


class TestNumbers:
    def test_are_those_of_the_other_commands(self, store: Path) -> None:
        url = f"sqlite:///{store}"
        listed = {row["id"]: row for row in values("inspect", store, "--json")["rows"]}
        one = values("inspect", url, "--json", "--session", "work")
        shown = values("session", "show", "work", "--store", url, "--json")
        assert listed["work"]["tokens"] == one["context"]["total"] == shown["tokens"]
        assert listed["work"]["compactions"] == len(one["compactions"]) == len(shown["compactions"])
        assert one["session"]["row"]["messages"] == shown["messages"]
        assert all(compaction["unrecoverable"] == [] for compaction in one["compactions"])

    def test_a_preview_is_what_compacting_the_file_gives(self, tmp_path: Path) -> None:
        file = claude_code(tmp_path / "cc.jsonl", steps=40, summary=False)
        made = run("compact", file, "--budget", "3000", "--dry-run", "--json")
        assert made.code == 0, made.err
        report = json.loads(made.out)["report"]

        async def work() -> None:
            async with await open_inspection(file) as inspection:
                found = await inspection.preview("cc", 3_000)
            assert found.due and found.tokens_before == report["tokens_before"]
            assert found.tokens_after == report["tokens_after"] and found.pivot == report["notes"]

        asyncio.run(work())


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["missing.json"], "No such file"),
            (["."], "is a directory"),
            ([""], "name a file or a store"),
            (["sqlite:///missing.db"], "session import"),
            (["ftp://host/x"], "unknown store"),
            (["STORE", "--session", "missing"], "there is no session 'missing'"),
            (["STORE", "--redact"], "--html"),
            (["STORE", "--json", "--terminal"], "choose one"),
            (["STORE", "--port", "99999"], "port"),
            (["STORE", "--key-file", "missing"], "cannot read the key"),
        ],
    )
    def test_explain_what_to_do(self, store: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
        given = [str(store) if one == "STORE" else one for one in arguments]
        found = run("inspect", *given, cwd=tmp_path)
        assert found.code == 2 and words in found.err
        assert "Traceback" not in found.err

    def test_a_port_that_is_in_use_is_named(self, store: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            found = run("inspect", store, "--port", port)
        assert found.code == 2 and port in found.err and "--port" in found.err


class TestForms:
    """What the command does with a file: a page, tables, a screen of the terminal, an HTML file."""

    def test_a_file_opens_with_its_only_session(self, tmp_path: Path) -> None:
        file = claude_code(tmp_path / "my work.jsonl", steps=4, summary=False)
        (listed,) = (row["id"] for row in values("inspect", file, "--json")["rows"])
        command = [sys.executable, "-m", "kompakt", "inspect", str(file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                url = process.stdout.readline().strip()
                assert "/inspect/?token=" in url and url.rpartition("#/s/")[2] == quote(listed, safe="")
            finally:
                process.kill()

    def test_an_html_file_is_written_and_redacted(self, tmp_path: Path) -> None:
        file = claude_code(tmp_path / "cc.jsonl", steps=4, summary=False)
        for name, options in (("whole.html", ()), ("redacted.html", ("--redact",))):
            found = run("inspect", file, "--html", tmp_path / name, *options)
            assert found.code == 0 and f"{name} written" in found.err and found.out == ""
        assert "Redacted copy" in (tmp_path / "redacted.html").read_text("utf-8")
        assert (tmp_path / "redacted.html").stat().st_size < (tmp_path / "whole.html").stat().st_size

    def test_a_terminal_of_80x24_shows_the_session_until_q(self, tmp_path: Path) -> None:
        """The command as a person starts it, in a pseudo-terminal."""
        file = claude_code(tmp_path / "cc.jsonl", steps=6, summary=False)
        primary, secondary = pty.openpty()
        termios.tcsetwinsize(secondary, (24, 80))
        command = [sys.executable, "-m", "kompakt", "inspect", str(file), "--terminal"]
        environment = {**os.environ, "TERM": "xterm-256color"}
        with subprocess.Popen(command, stdin=secondary, stdout=secondary, stderr=secondary, env=environment) as process:
            os.close(secondary)
            shown, sent = b"", False
            try:
                while process.poll() is None:
                    if select.select([primary], [], [], 0.2)[0]:
                        try:
                            shown += os.read(primary, 65_536)
                        except OSError:  # the program has closed the terminal
                            break
                    if not sent and b"rowth" in shown and b"Read" in shown:
                        os.write(primary, b"q")
                        sent = True
                assert process.wait(60) == 0 and sent
                assert b"Traceback" not in shown
            finally:
                process.kill()
                os.close(primary)


def test_the_printed_url_opens_the_page_and_an_interrupt_ends_the_server(store: Path) -> None:
    """Without a terminal no browser is opened. An open stream of events does not delay the end."""
    command = [sys.executable, "-m", "kompakt", "inspect", str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:") and "/inspect/?token=" in url
            with httpx.Client(follow_redirects=True, trust_env=False) as http:
                page = http.get(url)
                assert page.status_code == 200 and "token" not in str(page.url)
                base = str(page.url)
                assert {row["id"] for row in http.get(f"{base}api/sessions").json()["rows"]} == {"work", "small"}
                asked = {"action": "delete", "confirm": True}
                headers = {"x-kompakt-inspect": "1"}
                refused = http.post(f"{base}api/sessions/work/actions", json=asked, headers=headers)
                assert refused.status_code == 400 and "--write" in refused.json()["error"]["message"]
                with http.stream("GET", f"{base}api/events") as events:
                    assert next(events.iter_lines()) == ": connected"
                    process.send_signal(signal.SIGINT)
                    assert process.wait(timeout=120) == 0
        finally:
            process.kill()
