"""The command line, MCP, the pages, the terminal and exported files show the same numbers of a session."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.hosts.mcp.workspace import Workspace
from tests.view.sessions import body
from tests.wire.transcripts.transcript_files import Writer, text
from typer.testing import CliRunner

from kompakt.cli.commands import app
from kompakt.hosts.mcp.sessions import ServedStore
from kompakt.inspector.export import write_html
from kompakt.inspector.terminal import print_tables
from kompakt.session.store import open_store
from kompakt.view.inspection import open_inspection
from kompakt.view.values import SessionDetail, SessionRow

MODEL = "gpt-5"
"""It limits its prompt below its context, so there are two sizes that could be meant."""


def cli(*arguments: str) -> Any:
    done = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def inspected(target: Path, id: str, out: Path) -> tuple[SessionRow, SessionDetail, str]:
    """Return the row, the detail and the printed tables of a session, and export it."""

    async def work() -> tuple[SessionRow, SessionDetail, str]:
        async with await open_inspection(target) as inspection:
            page = await inspection.sessions()
            row = next(one for one in page.rows if one.id == id)
            printed = io.StringIO()
            await print_tables(inspection, session=id, console=Console(file=printed, width=160))
            await write_html(inspection, out, session=id)
            return row, await inspection.session(id), printed.getvalue()

    return asyncio.run(work())


def exported(page: Path) -> Any:
    found = re.search(r'id="kompakt-data"[^>]*>([^<]*)</script>', page.read_text("utf-8"))
    assert found is not None
    return json.loads(zlib.decompress(base64.b64decode(found[1])))


def printed_number(tables: str, name: str) -> int:
    found = re.search(rf"^{name} +([\d,]+)", tables, re.M)
    assert found is not None, name
    return int(found[1].replace(",", ""))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "sessions.db"

    async def work() -> None:
        async with await open_store(f"sqlite:///{path}") as store:
            session = await store.session("one")
            await session.save({**body(40), "model": MODEL})
            await session.compact(4_000)
            await session.pin("Never touch the tests.")

    asyncio.run(work())
    return path


def test_a_stored_session(store: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{store}"
    shown = cli("session", "show", "one", "--store", url)
    (listed,) = cli("session", "list", "--store", url)
    (tmp_path / "work").mkdir()
    said, is_error = Workspace(tmp_path / "work").call("status", {"session": "one"}, store=ServedStore(url))
    assert not is_error
    row, detail, tables = inspected(store, "one", tmp_path / "out.html")
    data = exported(tmp_path / "out.html")["content"]["one"]["detail"]

    assert shown["window"] == row.window == detail.row.window == data["row"]["window"] == 272_000
    tokens = {shown["tokens"], row.tokens, detail.row.tokens, data["row"]["tokens"], printed_number(tables, "tokens")}
    assert len(tokens) == 1
    assert shown["fullness"] == row.fullness == detail.row.fullness
    counted = shown["messages"], shown["turns"], shown["recallable"]
    assert counted == (detail.messages, detail.turns, detail.recallable)
    assert counted[:2] == (listed["messages"], listed["turns"])
    assert counted == tuple(printed_number(tables, name) for name in ("messages", "turns", "messages to recall"))
    (compaction,) = detail.compactions
    stored = shown["compactions"][0]
    assert stored["tokens_before"] == compaction.tokens_before
    assert stored["tokens_after"] == compaction.tokens_after
    assert listed["compactions"] == row.compactions == detail.row.compactions == 1
    assert list(detail.pins) == shown["pins"] == data["pins"]
    for line in (
        f"context: {row.tokens:,} tokens of 272,000 ({row.fullness:.0%})",
        f"messages: {detail.messages:,} in {detail.turns:,} turns",
        f"compactions: 1; newest from {compaction.tokens_before:,} to {compaction.tokens_after:,} tokens",
        f"recallable: {detail.recallable:,} messages",
    ):
        assert line in said


def test_a_transcript(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    writer = Writer().user("Fix the login.")
    for number in range(8):
        writer.assistant(f"m{number}", text(f"Step {number} " + "done " * 50)).user(f"Continue with {number}.")
    path = workspace.claude_code("6b1f", writer.records)
    said, is_error = workspace.call("status")
    assert not is_error

    async def ids() -> str:
        async with await open_inspection(path) as inspection:
            return (await inspection.sessions()).rows[0].id

    row, detail, tables = inspected(path, asyncio.run(ids()), tmp_path / "out.html")
    assert row.tokens == detail.row.tokens == printed_number(tables, "tokens")
    assert f"context: {row.tokens:,} tokens" in said
    assert f"messages: {detail.messages:,} in {detail.turns:,} turns" in said


def test_count_names_the_same_window(tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text(json.dumps({**body(3), "model": MODEL}))
    done = CliRunner().invoke(app, ["count", str(file)], catch_exceptions=False)
    assert "window 272,000" in done.stdout
