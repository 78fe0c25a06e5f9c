"""``kompakt repair``: repair a history, or the transcript file that holds it, and say what was done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kompakt import api, files
from kompakt.cli.input import open_file, problems_of
from kompakt.cli.options import AsJson, File, Format, Strict
from kompakt.errors import UsageError
from kompakt.files import Loaded
from kompakt.wire.problems import Change, Problem, Repair
from kompakt.wire.transcripts import ACTIONS

Out = Annotated[str | None, typer.Option("-o", "--out", metavar="OUT", help="Write the result here instead.")]
Body = Annotated[
    bool, typer.Option("--body", help="Of a transcript, write the request body that would continue it, not the file.")
]


def repair(
    file: File,
    out: Out = None,
    format: Format = None,
    strict: Strict = False,
    body: Body = False,
    as_json: AsJson = False,
) -> None:
    """Repair FILE so that the provider takes it. Exit 1 when something is left that only you can decide.

    A transcript of Claude Code or Codex comes out as a transcript, which the agent resumes; of other recordings the
    request body comes out. FILE itself is never changed.
    """
    loaded = open_file(file, format)
    _refuse_own(loaded, file, out)
    is_file = files.is_writable(loaded) and not body
    # A transcript is a session at rest; a body is sent as it is, so the user has to have the last word in it.
    repaired = api.repair(loaded.payload, strict=strict, resting=is_file)
    changes = _changes(loaded, repaired)
    remaining: Sequence[Problem] = repaired.remaining
    if is_file:
        data = files.rewrite(loaded, repaired.payload) if changes else loaded.data
        remaining = problems_of(files.decode(data, loaded.name), strict=strict)
    else:
        data = files.encode(repaired.payload)
        if loaded.transcript is not None and not body:
            typer.echo(f"{loaded.name}: writing a request body; {loaded.transcript.kind} files are only read", err=True)
    _put(data, out, changes, remaining, as_json=as_json)
    typer.echo(f"{loaded.name}: {len(changes)} changes, {len(remaining)} problems left", err=True)
    raise typer.Exit(1 if remaining else 0)


def _refuse_own(loaded: Loaded, file: str, out: str | None) -> None:
    """Refuse to write over the transcript that is read: it is the only copy until somebody has seen the result."""
    if loaded.transcript is None or out is None or "-" in (out, file):
        return
    if Path(out).resolve() == Path(loaded.name).resolve():
        raise UsageError(f"-o {out} is the transcript itself, which repair leaves as it is; name another file")


def _changes(loaded: Loaded, repaired: Repair) -> list[Change]:
    """List what was done, to the file and to the history in it."""
    transcript = loaded.transcript
    if transcript is None:
        return list(repaired.changes)
    lines = [
        Change(one.code, ACTIONS[one.code], one.path, one.message) for one in transcript.problems if one.repairable
    ]
    placed = [Change(one.code, one.action, transcript.located(one.path), one.message) for one in repaired.changes]
    return [*lines, *placed]


def _put(
    data: bytes, out: str | None, changes: Sequence[Change], remaining: Sequence[Problem], *, as_json: bool
) -> None:
    if out is not None:
        files.write(out, data)
    if as_json:
        report: dict[str, Any] = {"changes": changes, "remaining": remaining}
        if out is None:
            report["payload"] = _value(data)
        typer.echo(files.encode(report), nl=False)
    elif out is None:
        typer.echo(data, nl=False)
    for change in changes:
        typer.echo(str(change), err=True)
    for problem in remaining:
        typer.echo(f"left: {problem}", err=True)


def _value(data: bytes) -> Any:
    """Decode what was written: one JSON value, or the records of a transcript."""
    import msgspec

    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return [msgspec.json.decode(line) for line in data.splitlines() if line.strip()]
