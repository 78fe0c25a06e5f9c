"""``kompakt demo``: the main features on bundled sessions, without API key and network."""

from __future__ import annotations

from importlib.resources import files as resources
from typing import TYPE_CHECKING

import msgspec
import typer

from kompakt import api
from kompakt.model.limits import limits
from kompakt.model.messages import JsonObject
from kompakt.model.tokens import TokenCount
from kompakt.wire.wire import Problem, Repair

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

BUDGET = 30_000
"""Token budget of the second session, which is three times as long."""

LEDGER_LINES = 14
QUESTION = "which test failed"

_WIDTH = 100
"""Most columns of a table; narrower terminals wrap inside the cells."""


def demo() -> None:
    """Show the main features on bundled sessions.

    Checks, repairs, compacts and searches, then runs a session through the gateway. Needs no API key and no network.
    """
    from rich.console import Console  # late: `--help` does not need it

    console = Console(highlight=False, soft_wrap=False)
    if console.width > _WIDTH:
        console.width = _WIDTH
    body = session()
    console.print(
        f"A coding agent's session of {len(body['messages'])} messages, damaged by a crash and by careless trimming. "
        f"{body['model']} would reject it with status 400, now and on every retry.\n"
    )
    _show_count(console, api.count(body), body["model"])
    _show_problems(console, api.check(body))
    repaired = api.repair(body)
    _show_repair(console, repaired)
    kept = {id(message) for message in repaired.payload["messages"]}
    same = sum(id(message) in kept for message in body["messages"])
    console.print(
        f"{same} of {len(body['messages'])} messages are unchanged, byte for byte. The input itself is never changed.\n"
        "On your own file: kompakt check FILE, kompakt repair FILE -o OUT, kompakt count FILE."
    )
    _compact_long_session(console)
    refused = _show_gateway(console)
    raise typer.Exit(1 if repaired.remaining or refused else 0)


def _compact_long_session(console: Console) -> None:
    """Compact the second bundled session and show the result."""
    body = session("long-session.json")
    done = api.compact(body, BUDGET)
    report = done.report
    console.print(
        f"\nA second, healthy session of {report.messages_before} messages and {report.tokens_before:,} tokens, "
        f"to fit into {BUDGET:,}.\n"
    )
    table = _table(f"kompakt compact: {report.tokens_before:,} to {report.tokens_after:,} tokens")
    table.add_column("", ratio=1)
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    before, after = api.count(body), api.count(done.payload)
    table.add_row("messages", f"{report.messages_before}", f"{report.messages_after}")
    for role in before.by_role:
        table.add_row(f"tokens of {role}", f"{before.by_role[role]:,}", f"{after.by_role.get(role, 0):,}")
    console.print(table)
    console.print(
        f"System prompt, first and newest request are unchanged. The report lists {len(report.actions)} actions. "
        f"`kompakt check` finds {len(api.check(done.payload))} problems.\n"
        "On your own file: kompakt compact FILE --budget N -o OUT.\n"
    )
    _show_ledger(console, done)


def _show_ledger(console: Console, done: api.Compaction) -> None:
    """Show the first lines of the summary and one recall."""
    lines = done.report.told.split("\n")
    console.print(
        f"A summary of {len(lines)} lines replaces the removed messages. It was extracted by code, without a model:",
        style="bold",
    )
    _print_lines(console, lines[1 : 1 + LEDGER_LINES])
    console.print(f"  … and {max(0, len(lines) - LEDGER_LINES - 1)} more\n")
    found = done.recall(QUESTION, tokens=120)
    console.print(f'Removed messages can be searched: kompakt recall FILE "{QUESTION}"', style="bold")
    _print_lines(console, found.text.split("\n"))


def _print_lines(console: Console, lines: list[str]) -> None:
    for line in lines:
        console.print(f"  {line}", markup=False, highlight=False, no_wrap=True, overflow="ellipsis")


def _show_gateway(console: Console) -> int:
    """Run a session through a gateway and show what it saved; return the number of rejected requests."""
    try:
        from kompakt.cli import demo_provider  # late: needs the gateway extra
    except ImportError as error:
        console.print(f"\nThe gateway needs {error.name}; install it with: pip install 'kompakt\\[gateway]'")
        return 0
    import asyncio

    played = asyncio.run(demo_provider.play())
    console.print(
        f"\nFor agents in any language there is a gateway. It ran on {played.url} with a temporary store and a "
        f"scripted model with a window of {played.window:,} tokens, and an ordinary client ran a session through it.\n"
    )
    table = _table(f"kompakt serve: {played.requests} requests, {played.refused} rejected")
    table.add_column("tokens", ratio=1)
    table.add_column("sent by the client", justify="right")
    table.add_column("received by the model", justify="right")
    table.add_row("longest request", f"{max(played.client, default=0):,}", f"{max(played.upstream, default=0):,}")
    table.add_row("all requests", f"{sum(played.client):,}", f"{sum(played.upstream):,}")
    console.print(table)
    console.print(
        f"{played.compactions} compactions; {played.cached:.0%} of what the model received was a prefix of the "
        "previous request, which prompt caches serve.\nThe removed messages can be searched over HTTP, for example for "
        f'"{demo_provider.QUESTION}":'
    )
    _print_lines(console, played.recalled.split("\n"))
    console.print("\nFor your own agent: run kompakt serve and set the base URL that it prints.")
    return played.refused


def session(name: str = "broken-session.json") -> JsonObject:
    return msgspec.json.decode((resources("kompakt") / "data" / name).read_bytes())


def _show_count(console: Console, counted: TokenCount, model: str) -> None:
    window = limits(model).context
    table = _table(f"kompakt count: {counted.total:,} tokens, {counted.total / window:.0%} of {model}'s {window:,}")
    table.add_column("part of the request", ratio=1)
    table.add_column("tokens", justify="right")
    table.add_column("share", justify="right")
    tools = {_tool_label(name): number for name, number in counted.by_tool.items()}
    rest = {name: number for name, number in counted.by_kind.items() if not name.startswith("tool ")}
    schemas = {"tool schemas": counted.by_kind.get("tool schema", 0)}
    for name, number in sorted({**tools, **rest, **schemas}.items(), key=lambda item: -item[1]):
        table.add_row(name, f"{number:,}", f"{number / counted.total:.1%}")
    console.print(table)


def _tool_label(name: str) -> str:
    return "results without a call" if name == "unknown" else f"calls and results of {name}"


def _show_problems(console: Console, problems: list[Problem]) -> None:
    table = _table(f"kompakt check: {len(problems)} problems that the provider rejects")
    table.add_column("rule", no_wrap=True, style="red")
    table.add_column("where", no_wrap=True)
    table.add_column("problem", ratio=1)
    for problem in problems:
        table.add_row(problem.code, problem.path, problem.message)
    console.print(table)


def _show_repair(console: Console, repaired: Repair) -> None:
    table = _table(f"kompakt repair: {len(repaired.changes)} changes, {len(repaired.remaining)} problems left")
    table.add_column("rule", no_wrap=True, style="green")
    table.add_column("where", no_wrap=True)
    table.add_column("change", ratio=1)
    for change in repaired.changes:
        table.add_row(change.code, change.path, f"{change.action}: {change.message}")
    console.print(table)


def _table(title: str) -> Table:
    from rich import box
    from rich.table import Table

    return Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, expand=True, pad_edge=False
    )
