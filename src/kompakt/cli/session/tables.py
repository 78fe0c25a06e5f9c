"""Stored sessions as tables, for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kompakt.cli.session.store_options import written

_WIDE = 200


def show_list(lines: list[dict[str, Any]]) -> None:
    """Print one line a session."""
    table = Table(title=f"{len(lines)} {'session' if len(lines) == 1 else 'sessions'}", title_justify="left")
    table.add_column("id", overflow="fold")
    for column in ("messages", "turns", "compactions"):
        table.add_column(column, justify="right")
    table.add_column("created", no_wrap=True)
    for line in lines:
        compactions = "?" if line["compactions"] is None else f"{line['compactions']:,}"
        numbers = (f"{line['messages']:,}", f"{line['turns']:,}", compactions)
        table.add_row(Text(written(line["id"])), *numbers, line["created"])
    _console().print(table)


def _console() -> Console:
    """Return standard output; what goes into a file or a pipe is not folded to a screen that is not there."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _WIDE)
    return console


def show_account(account: dict[str, Any]) -> None:
    """Print how a session stands."""
    console = _console()
    table = Table(show_header=False, title=Text(written(account["id"])), title_justify="left")
    table.add_column("what")
    table.add_column("is", overflow="fold")
    table.add_row("format", account["format"])
    table.add_row("created", account["created"])
    for name in ("messages", "turns"):
        table.add_row(name, f"{account[name]:,}")
    table.add_row("tokens of the model's view", f"{account['tokens']:,}")
    for marker in account["pending"]:
        asked = "automatic" if marker["auto"] else "by hand"
        said = f": {written(marker['instructions'])}" if marker["instructions"] else ""
        table.add_row("asked to compact", Text(f"{asked}{said}"))
    for text in account["pins"]:
        table.add_row("pinned", Text(written(text)))
    for change in account["repairs"]:
        table.add_row("mended when sent", Text(written(change)))
    console.print(table)
    if account["compactions"]:
        console.print(_compactions(account["compactions"]))


def _compactions(accounts: list[dict[str, Any]]) -> Table:
    table = Table(title="compactions", title_justify="left")
    for column in ("id", "at", "why"):
        table.add_column(column, no_wrap=column != "why")
    for column in ("before", "after"):
        table.add_column(column, justify="right")
    table.add_column("")
    for one in accounts:
        why = f"{one['reason']}, {one['policy']}" + (f", {len(one['failures'])} failures" if one["failures"] else "")
        state = "undone" if one["undone"] else ""
        table.add_row(
            one["id"], one["at"], Text(why), f"{one['tokens_before']:,}", f"{one['tokens_after']:,}", state,
            style="dim" if one["undone"] else None,
        )  # fmt: skip
    return table
