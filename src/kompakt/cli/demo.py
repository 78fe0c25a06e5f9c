"""``kompakt demo``: the main job on a bundled session, with no key and no network."""

from __future__ import annotations

from importlib.resources import files as resources
from typing import TYPE_CHECKING

import msgspec
import typer

from kompakt import api
from kompakt.model.limits import limits
from kompakt.model.messages import JsonObject
from kompakt.model.tokens import TokenCount
from kompakt.wire.problems import Problem, Repair

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

BUDGET = 30_000
"""Tokens the second session has to fit into: a third of what it has."""

LEDGER_LINES = 14
QUESTION = "which test failed"

_WIDTH = 100
"""Columns of the widest table: it fits beside an editor; narrower terminals wrap inside the cells."""


def demo() -> None:
    """Check, count and repair a session that was cut off in the middle; compact another that grew too long."""
    from rich.console import Console  # late: `--help` should not pay for it

    console = Console(highlight=False, soft_wrap=False)
    if console.width > _WIDTH:
        console.width = _WIDTH
    body = session()
    console.print(
        f"A coding agent's session of {len(body['messages'])} messages, cut off by a crash and cut up by a careless "
        f"trimmer. {body['model']} would answer it with error 400, now and on every retry.\n"
    )
    _show_count(console, api.count(body), body["model"])
    _show_problems(console, api.check(body))
    mended = api.repair(body)
    _show_repair(console, mended)
    kept = {id(message) for message in mended.payload["messages"]}
    same = sum(id(message) in kept for message in body["messages"])
    console.print(
        f"{same} of {len(body['messages'])} messages are untouched, byte for byte. The input itself never changes.\n"
        "On your own file: kompakt check FILE, kompakt repair FILE -o OUT, kompakt count FILE."
    )
    _compact_long_session(console)
    refused = _through_the_gateway(console)
    raise typer.Exit(1 if mended.remaining or refused else 0)


def _compact_long_session(console: Console) -> None:
    """Compact the second bundled session and show what became of it."""
    body = session("long-session.json")
    done = api.compact(body, BUDGET)
    report = done.report
    console.print(
        f"\nA second, healthy session of {report.messages_before} messages and {report.tokens_before:,} tokens, "
        f"to fit into {BUDGET:,}.\n"
    )
    table = _table(f"kompakt compact: {report.tokens_before:,} to {report.tokens_after:,} tokens")
    table.add_column("what is kept", ratio=1)
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    before, after = api.count(body), api.count(done.payload)
    table.add_row("messages", f"{report.messages_before}", f"{report.messages_after}")
    for role in before.by_role:
        table.add_row(f"tokens of {role}", f"{before.by_role[role]:,}", f"{after.by_role.get(role, 0):,}")
    console.print(table)
    console.print(
        f"System prompt, first and newest request stand as they were; {len(report.actions)} actions are in the report; "
        f"{len(api.check(done.payload))} problems.\nOn your own file: kompakt compact FILE --budget N -o OUT.\n"
    )
    _show_ledger(console, done)


def _show_ledger(console: Console, done: api.Compaction) -> None:
    """Show the beginning of what the ledger tells, and one recall of what it leaves out."""
    lines = done.report.told.split("\n")
    console.print(f"What left is told by {len(lines)} lines that code took from it, no model asked:", style="bold")
    for line in lines[1 : 1 + LEDGER_LINES]:
        console.print(f"  {line}", markup=False, highlight=False, no_wrap=True, overflow="ellipsis")
    console.print(f"  … and {max(0, len(lines) - LEDGER_LINES - 1)} more\n")
    found = done.recall(QUESTION, tokens=120)
    console.print(f'And nothing is lost: kompakt recall FILE "{QUESTION}"', style="bold")
    for line in found.text.split("\n"):
        console.print(f"  {line}", markup=False, highlight=False, no_wrap=True, overflow="ellipsis")


def _through_the_gateway(console: Console) -> int:
    """Hold a session through a gateway and show what that saved; return how many requests were refused."""
    try:
        from kompakt.cli.demo_provider import QUESTION as ASKED  # late: an extra
        from kompakt.cli.demo_provider import play
    except ImportError as error:
        console.print(f"\nThe gateway needs {error.name}; install it: pip install 'kompakt\\[gateway]'")
        return 0
    import asyncio

    played = asyncio.run(play())
    console.print(
        f"\nAnd for agents in any language, a gateway: it was started on {played.url} with a store of its own and a "
        f"scripted model of {played.window:,} tokens, and a client that knows nothing of it held a session.\n"
    )
    table = _table(f"kompakt serve: {played.requests} requests, {played.refused} refused")
    table.add_column("tokens", ratio=1)
    table.add_column("as the client sent them", justify="right")
    table.add_column("as the model got them", justify="right")
    table.add_row("longest request", f"{max(played.client, default=0):,}", f"{max(played.upstream, default=0):,}")
    table.add_row("all requests", f"{sum(played.client):,}", f"{sum(played.upstream):,}")
    console.print(table)
    console.print(
        f"{played.compactions} compactions; {played.cached:.0%} of what the model got stood in the request before at "
        "the same place, where prompt caches find it.\nNothing is lost here either. Recall over HTTP, asked "
        f'"{ASKED}":'
    )
    for line in played.recalled.split("\n"):
        console.print(f"  {line}", markup=False, highlight=False, no_wrap=True, overflow="ellipsis")
    console.print("\nFor your own agent: kompakt serve, and paste the line that it prints.")
    return played.refused


def session(name: str = "broken-session.json") -> JsonObject:
    """Read a bundled session."""
    return msgspec.json.decode((resources("kompakt") / "data" / name).read_bytes())


def _show_count(console: Console, counted: TokenCount, model: str) -> None:
    window = limits(model).context
    table = _table(f"kompakt count: {counted.total:,} tokens, {counted.total / window:.0%} of {model}'s {window:,}")
    table.add_column("where they are", ratio=1)
    table.add_column("tokens", justify="right")
    table.add_column("share", justify="right")
    tools = {_tool_label(name): number for name, number in counted.by_tool.items()}
    rest = {name: number for name, number in counted.by_kind.items() if not name.startswith("tool ")}
    schemas = {"tool schemas": counted.by_kind.get("tool schema", 0)}
    for name, number in sorted({**tools, **rest, **schemas}.items(), key=lambda item: -item[1]):
        table.add_row(name, f"{number:,}", f"{number / counted.total:.1%}")
    console.print(table)


def _tool_label(name: str) -> str:
    return "results whose call is missing" if name == "unknown" else f"calls and results of {name}"


def _show_problems(console: Console, problems: list[Problem]) -> None:
    table = _table(f"kompakt check: {len(problems)} places that the provider refuses")
    table.add_column("rule", no_wrap=True, style="red")
    table.add_column("where", no_wrap=True)
    table.add_column("what is wrong", ratio=1)
    for problem in problems:
        table.add_row(problem.code, problem.path, problem.message)
    console.print(table)


def _show_repair(console: Console, mended: Repair) -> None:
    table = _table(f"kompakt repair: {len(mended.changes)} changes, {len(mended.remaining)} problems left")
    table.add_column("rule", no_wrap=True, style="green")
    table.add_column("where", no_wrap=True)
    table.add_column("what was done", ratio=1)
    for change in mended.changes:
        table.add_row(change.code, change.path, f"{change.action}: {change.message}")
    console.print(table)


def _table(title: str) -> Table:
    from rich import box
    from rich.table import Table

    return Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, expand=True, pad_edge=False
    )
