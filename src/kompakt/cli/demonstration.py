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
from kompakt.wire.problem import Problem, Repair

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDTH = 100
"""Columns of the widest table: it fits beside an editor; narrower terminals wrap inside the cells."""


def demo() -> None:
    """Check, count and repair a bundled agent session that was cut off in the middle."""
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
    raise typer.Exit(1 if mended.remaining else 0)


def session() -> JsonObject:
    """Read the bundled session."""
    return msgspec.json.decode((resources("kompakt") / "data" / "broken-session.json").read_bytes())


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
