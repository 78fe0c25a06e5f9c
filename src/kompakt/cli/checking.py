"""``kompakt check``: list where a provider would refuse a history."""

from __future__ import annotations

import typer

from kompakt import api, files
from kompakt.cli.opening import open_history
from kompakt.cli.options import AsJson, File, Format, Strict


def check(file: File, format: Format = None, strict: Strict = False, as_json: AsJson = False) -> None:
    """List the places where the provider would refuse FILE, one a line. Exit 1 when there are any."""
    history, loaded = open_history(file, format)
    problems = api.check(history, strict=strict, resting=loaded.transcript is not None)
    if as_json:
        report = {"file": loaded.name, "format": history.format, "messages": len(history), "problems": problems}
        typer.echo(files.encode(report), nl=False)
    else:
        for problem in problems:
            typer.echo(str(problem))
        verdict = f"{len(problems)} problems" if problems else "no problems"
        typer.echo(f"{loaded.name}: {history.format}, {len(history)} messages, {verdict}", err=True)
    raise typer.Exit(1 if problems else 0)
