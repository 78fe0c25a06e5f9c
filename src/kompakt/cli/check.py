"""``kompakt check``: list what a provider would reject in a history, and the problems of a transcript file."""

from __future__ import annotations

from typing import Any

import typer

from kompakt.cli.input import AsJson, File, Format, SessionName, Strict, open_file, problems_of, skipped_records
from kompakt.cli.output import MANY_MESSAGES, waiting
from kompakt.errors import plural
from kompakt.model.json import indented_json


def check(
    file: File, format: Format = None, session: SessionName = None, strict: Strict = False, as_json: AsJson = False
) -> None:
    """List what a provider would reject in FILE.

    Prints one problem per line. Exit 1 if there are any. For a transcript this includes unreadable lines and calls
    without a result: everything that `repair` would change.

    \b
    Examples:
      kompakt check request.json
      kompakt check ~/.codex/sessions/2026/11/16/rollout-ID.jsonl
      kompakt check results.json --session task-3.trial-0
    """
    loaded = open_file(file, format, session)
    history = loaded.payload
    with waiting("checking", when=len(history) >= MANY_MESSAGES):
        problems = problems_of(loaded, strict=strict)
    if as_json:
        report: dict[str, Any] = {"file": loaded.name, "format": history.format, "messages": len(history)}
        if loaded.transcript is not None:
            report |= {"transcript": loaded.transcript.kind, **skipped_records(loaded)}
        typer.echo(indented_json({**report, "problems": problems}), nl=False)
    else:
        for problem in problems:
            typer.echo(str(problem))
        verdict = plural(len(problems), "problem") if problems else "no problems"
        kind = f"{loaded.transcript.kind} transcript, " if loaded.transcript is not None else ""
        typer.echo(f"{loaded.name}: {kind}{history.format}, {plural(len(history), 'message')}, {verdict}", err=True)
    raise typer.Exit(1 if problems else 0)
