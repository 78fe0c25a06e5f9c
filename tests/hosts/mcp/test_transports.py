"""``kompakt mcp`` as a process: standard streams, HTTP, options, and what it imports before it answers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters
from tests.cli.commands import SOURCE
from tests.hosts.mcp.workspace import RULE, SECRET, Workspace, said_by, talk

from kompakt.hosts.mcp.server import create_server
from kompakt.hosts.mcp.sessions import LocalSessions
from kompakt.hosts.mcp.transports import http_app

REQUEST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


def environment(workspace: Workspace) -> dict[str, str]:
    return {**os.environ, **workspace.environ, "PYTHONPATH": SOURCE, "COLUMNS": "200"}


def run(workspace: Workspace, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kompakt", "mcp", *arguments]
    return subprocess.run(
        command,
        cwd=workspace.project,
        env=environment(workspace),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@contextmanager
def serving(workspace: Workspace, *arguments: str) -> Iterator[str]:
    """Run the server over HTTP and yield its URL."""
    command = [sys.executable, "-m", "kompakt", "mcp", "--http", "0", *arguments]
    server = subprocess.Popen(
        command, cwd=workspace.project, env=environment(workspace), stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stderr is not None
        line = server.stderr.readline()
        yield line.rpartition(" ")[2].strip()
    finally:
        server.terminate()
        server.communicate(timeout=120)


class TestStdio:
    @pytest.mark.parametrize("mode", ["auto", "legacy"])
    def test_a_client_starts_the_server_and_uses_it(self, workspace: Workspace, mode: str) -> None:
        """With the newest protocol, and with the handshake of older clients."""
        workspace.claude_code("mine", talk(workspace.project).records)
        parameters = StdioServerParameters(
            command=sys.executable,
            args=["-m", "kompakt", "mcp"],
            env=environment(workspace),
            cwd=workspace.project,
        )

        async def work() -> list[str]:
            async with Client(parameters, mode=mode) as client:
                assert [tool.name for tool in (await client.list_tools()).tools] == ["recall", "ledger", "status"]
                found = [(await said_by(client.call_tool("recall", {"query": "staging"})))[0]]
                said, is_error = await said_by(client.call_tool("recall", {"query": "x" * 100_000, "tokens": -1}))
                assert is_error and said
                return [*found, (await said_by(client.call_tool("ledger", {})))[0]]

        found, ledger = asyncio.run(work())
        assert SECRET in found and RULE in ledger

    def test_lines_that_are_no_messages_do_not_stop_the_server(self, workspace: Workspace) -> None:
        workspace.claude_code("mine", talk(workspace.project).records)
        version = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        lines = [
            json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": version}),
            json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}),
            "not json",
            "[" * 100_000,
            '{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": 7}}',
            '{"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "status", "arguments": []}}',
            '{"jsonrpc": "2.0", "id": 4, "method": "no/such"}',
            '{"a": ' * 5_000,
            json.dumps({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "status"}}),
        ]
        server = subprocess.Popen(
            [sys.executable, "-m", "kompakt", "mcp"],
            cwd=workspace.project,
            env=environment(workspace),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write("\n".join(lines) + "\n")
        server.stdin.flush()
        answers: dict[int | None, Any] = {}
        while 5 not in answers:
            answer = json.loads(server.stdout.readline())
            answers[answer.get("id")] = answer
        server.communicate(timeout=60)
        assert server.returncode == 0
        assert {2, 3, 4} <= {id for id, one in answers.items() if "error" in one}
        assert "the claude-code transcript mine" in answers[5]["result"]["content"][0]["text"]

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_ends_the_server_while_it_waits_for_input(self, workspace: Workspace, number: int) -> None:
        server = subprocess.Popen(
            [sys.executable, "-m", "kompakt", "mcp"],
            cwd=workspace.project,
            env=environment(workspace),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with server:
            assert server.stdin is not None and server.stdout is not None
            server.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
            server.stdin.flush()
            assert server.stdout.readline()
            server.send_signal(number)
            assert server.wait(timeout=60) == 128 + number

    def test_the_engine_is_not_imported_before_it_is_needed(self, workspace: Workspace) -> None:
        """A client waits for the server at its start."""
        code = (
            "import sys; from kompakt.cli import main; sys.argv = ['kompakt', 'mcp']\n"
            "try: main()\n"
            "except SystemExit: pass\n"
            "heavy = ['kompakt.engine', 'kompakt.wire', 'kompakt.api', 'kompakt.session', 'sqlalchemy', 'rs_bpe']\n"
            "print([name for name in heavy if name in sys.modules], file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=workspace.project,
            env=environment(workspace),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        assert (done.stdout, done.stderr) == ("", "[]\n")


class TestHttp:
    def test_a_client_uses_the_server(self, workspace: Workspace) -> None:
        workspace.claude_code("mine", talk(workspace.project).records)

        async def work(url: str) -> str:
            async with Client(url) as client:
                return (await said_by(client.call_tool("recall", {"query": "staging"})))[0]

        with serving(workspace) as url:
            assert url.startswith("http://127.0.0.1:")
            assert SECRET in asyncio.run(work(url))

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({}, 200),
            ({"host": "localhost:8485"}, 200),
            ({"origin": "http://127.0.0.1:8485"}, 200),
            ({"host": "attacker.example:8485"}, 421),
            ({"host": "127.0.0.1.attacker.example:8485"}, 421),
            ({"host": "127.0.0.1:9999"}, 421),
            ({"origin": "https://attacker.example"}, 403),
            ({"origin": "http://localhost:3000"}, 403),
            ({"origin": "null"}, 403),
            ({"content-type": "text/plain"}, 400),
        ],
    )
    def test_requests_of_web_pages_are_rejected(
        self, workspace: Workspace, headers: dict[str, str], status: int
    ) -> None:
        """A foreign page cannot read sessions, not even with a name that resolves to this machine."""

        async def work() -> int:
            sessions = LocalSessions(folder=workspace.project, environ=workspace.environ)
            app = http_app(create_server(sessions), 8485)
            transport = httpx.ASGITransport(app)
            async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport) as client:
                sent = {**HEADERS, **headers}
                return (await client.post("http://127.0.0.1:8485/mcp", json=REQUEST, headers=sent)).status_code

        assert asyncio.run(work()) == status

    def test_a_port_in_use_is_reported(self, workspace: Workspace) -> None:
        with serving(workspace) as url:
            done = run(workspace, "--http", url.rpartition(":")[2].removesuffix("/mcp"))
        assert done.returncode == 2 and "cannot listen on port" in done.stderr


class TestOptions:
    def test_show_prints_the_session_that_would_be_served(self, workspace: Workspace) -> None:
        workspace.claude_code("mine", talk(workspace.project).records)
        done = run(workspace, "--show")
        assert done.returncode == 0 and done.stdout.startswith("the claude-code transcript mine: ")
        shown = json.loads(run(workspace, "--show", "--json").stdout)
        assert (shown["id"], shown["messages"], shown["origin"]) == ("mine", 4, "the claude-code transcript mine")

    def test_nothing_to_serve_is_one_clear_line(self, workspace: Workspace) -> None:
        done = run(workspace, "--show")
        assert done.returncode == 2 and done.stdout == ""
        assert "no session found for" in done.stderr and len(done.stderr.splitlines()) == 1

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("--transcript", "none.jsonl"), "there is no file"),
            (("--transcript", "x", "--session", "y"), "give one of them"),
            (("--session", "none", "--show"), "there is no session 'none'"),
            (("--store", "none.db", "--show"), "there is no store none.db"),
        ],
    )
    def test_wrong_options_are_reported(self, workspace: Workspace, arguments: tuple[str, ...], said: str) -> None:
        done = run(workspace, *arguments)
        assert done.returncode == 2 and said in done.stderr
        assert not (workspace.project / "none.db").exists()

    def test_a_working_directory_that_was_deleted_is_reported(self, workspace: Workspace) -> None:
        code = "import os, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); sys.argv = ['kompakt', 'mcp']"
        command = [sys.executable, "-c", f"{code}; from kompakt.cli import main; main()"]
        options = {"cwd": workspace.project, "env": environment(workspace), "stdin": subprocess.DEVNULL}
        done = subprocess.run(command, **options, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert "the working directory does not exist any more" in done.stderr

    def test_settings_of_the_configuration_file_apply(self, workspace: Workspace) -> None:
        path = workspace.claude_code("mine", talk(workspace.project).records)
        other = path.rename(workspace.project / "other.jsonl")
        (workspace.project / "kompakt.toml").write_text(f"[mcp]\ntranscript = {json.dumps(str(other))}\n")
        assert run(workspace, "--show").stdout.startswith("the transcript other: ")

    def test_the_session_of_the_environment_is_served(self, workspace: Workspace, tmp_path: Path) -> None:
        workspace.claude_code("newer", talk(workspace.project).records, at=2_000)
        workspace.claude_code("older", talk(workspace.project).records, at=1_000)
        workspace.environ["KOMPAKT_SESSION"] = "older"
        assert "transcript older" in run(workspace, "--show").stdout
