"""``kompakt repair``: repair a history or a transcript file so that the provider accepts it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from kompakt import api, files
from kompakt.cli.input import (
    AsJson,
    File,
    Format,
    Out,
    SessionName,
    Strict,
    check_out,
    open_file,
    problems_of,
    skipped_records,
)
from kompakt.cli.output import MANY_MESSAGES, waiting
from kompakt.errors import plural
from kompakt.files import Loaded
from kompakt.model.json import indented_json
from kompakt.wire.transcripts import ACTIONS
from kompakt.wire.wire import Change, Problem, Repair

Body = Annotated[
    bool,
    typer.Option("--body", help="For a transcript, write the request body that continues it instead of a transcript."),
]


def repair(
    file: File,
    out: Out = None,
    format: Format = None,
    session: SessionName = None,
    strict: Strict = False,
    body: Body = False,
    as_json: AsJson = False,
) -> None:
    """Repair FILE so that the provider accepts it. Exit 1 if problems are left that need your decision.

    A Claude Code or Codex transcript is written as a transcript that the agent can resume. For other transcripts the
    request body is written. FILE itself is never changed.

    \b
    Examples:
      kompakt repair request.json -o repaired.json
      kompakt repair ~/.claude/projects/app/ID.jsonl -o repaired.jsonl
      cat request.json | kompakt repair - > repaired.json
    """
    loaded = open_file(file, format, session)
    check_out(loaded, file, out)
    is_file = files.is_writable(loaded) and not body
    # A transcript may end with an answer; a request body has to end with a user message or tool results.
    with waiting("repairing", when=len(loaded.payload) >= MANY_MESSAGES):
        repaired = api.repair(loaded.payload, strict=strict, resting=is_file)
    changes = _changes(loaded, repaired)
    remaining: Sequence[Problem] = repaired.remaining
    if is_file:
        data = files.rewrite(loaded, repaired.payload) if changes else loaded.data
        remaining = problems_of(files.decode(data, loaded.name), strict=strict)
    else:
        data = indented_json(repaired.payload)
        if loaded.transcript is not None and not body:
            typer.echo(
                f"{loaded.name}: writing a request body, because {loaded.transcript.kind} files are read-only", err=True
            )
    _write(data, out, {"changes": changes, "remaining": remaining, **skipped_records(loaded)}, as_json=as_json)
    for change in changes:
        typer.echo(str(change), err=True)
    for problem in remaining:
        typer.echo(f"left: {problem}", err=True)
    typer.echo(f"{loaded.name}: {plural(len(changes), 'change')}, {plural(len(remaining), 'problem')} left", err=True)
    raise typer.Exit(1 if remaining else 0)


def _changes(loaded: Loaded, repaired: Repair) -> list[Change]:
    """Return the changes to the lines of the file and to its history."""
    transcript = loaded.transcript
    if transcript is None:
        return list(repaired.changes)
    lines = [
        Change(one.code, ACTIONS[one.code], one.path, one.message) for one in transcript.problems if one.repairable
    ]
    located = [Change(one.code, one.action, transcript.located(one.path), one.message) for one in repaired.changes]
    return [*lines, *located]


def _write(data: bytes, out: str | None, report: dict[str, Any], *, as_json: bool) -> None:
    if out is not None:
        files.write(out, data)
    if as_json:
        payload = {"payload": _value(data)} if out is None else {}
        typer.echo(indented_json({**report, **payload}), nl=False)
    elif out is None:
        typer.echo(data, nl=False)


def _value(data: bytes) -> Any:
    """Decode the output: one JSON value, or the records of a transcript."""
    import msgspec

    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return [msgspec.json.decode(line) for line in data.splitlines() if line.strip()]
