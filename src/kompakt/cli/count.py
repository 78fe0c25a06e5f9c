"""``kompakt count``: count the tokens of a request by role, kind and tool."""

from __future__ import annotations

import msgspec
import typer

from kompakt import api
from kompakt.cli.input import AsJson, File, Format, ModelName, SessionName, open_history, skipped_records
from kompakt.cli.output import MANY_MESSAGES, console, table, waiting
from kompakt.model.json import indented_json
from kompakt.model.limits import limits
from kompakt.model.tokens import TokenCount
from kompakt.view.status import window_of


def count(
    file: File,
    model: ModelName = None,
    format: Format = None,
    session: SessionName = None,
    as_json: AsJson = False,
) -> None:
    """Count the tokens of FILE by role, kind and tool.

    The count covers the whole request, including system prompt and tool definitions.

    \b
    Examples:
      kompakt count request.json --model claude-sonnet-4-5
      kompakt count ~/.claude/projects/app/ID.jsonl --json
    """
    history, loaded = open_history(file, format, session)
    with waiting("counting", when=len(history) >= MANY_MESSAGES):
        counted = api.count(history, model=model)
    if as_json:
        typer.echo(indented_json({**msgspec.structs.asdict(counted), **skipped_records(loaded)}), nl=False)
        return
    show(counted, model or history.model)


def show(counted: TokenCount, model: str | None) -> None:
    shown = table(
        f"{counted.total:,} tokens in {counted.messages:,} messages",
        "by",
        "name",
        "tokens",
        "share",
        numbers=("tokens", "share"),
    )
    rows = (("role", counted.by_role), ("kind", counted.by_kind), ("tool", counted.by_tool))
    for label, numbers in rows:
        for name, number in sorted(numbers.items(), key=lambda item: -item[1]):
            shown.add_row(label, name, f"{number:,}", f"{number / max(1, counted.total):.1%}")
        shown.add_section()
    page = console()
    page.print(shown)
    if model:
        known = limits(model)
        window = window_of(model) or known.context
        page.print(f"{model}: window {window:,}, {counted.total / max(1, window):.1%} full")
