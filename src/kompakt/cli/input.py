"""Open the file that a command was given and say on standard error what is worth knowing about it."""

from __future__ import annotations

import typer

from kompakt.api import check, parse, repair
from kompakt.errors import InputError
from kompakt.files import Loaded, load
from kompakt.model.messages import History
from kompakt.wire.problems import Problem


def read_history(file: str, format: str | None) -> tuple[History, Loaded]:
    """Read a file into a history, as it is; errors name the file, lines that could not be read are reported."""
    loaded = open_file(file, format)
    _report_lines(loaded)
    return loaded.payload, loaded


def open_file(file: str, format: str | None) -> Loaded:
    """Read a file; the payload is a history. Errors name the file; which session was read is said where several are.

    Raises:
        InputError: it holds no history.
    """
    loaded = load(file)
    note_session(loaded, file)
    if loaded.transcript is not None:
        return loaded
    try:
        return Loaded(loaded.name, parse(loaded.payload, format))
    except InputError as error:
        raise InputError(f"{loaded.name}: {error}") from None


def note_session(loaded: Loaded, file: str) -> None:
    """Say which session was read when a file holds several and none was named."""
    if loaded.sessions and loaded.transcript is not None and file == loaded.name:
        chosen, some = loaded.transcript.name, f"{loaded.name}#{loaded.sessions[-1]}"
        typer.echo(
            f"{loaded.name}: {len(loaded.sessions)} sessions; reading {chosen}; name another one like {some}", err=True
        )


def open_history(file: str, format: str | None) -> tuple[History, Loaded]:
    """Read a file into a history; errors name the file.

    A transcript is a session at rest: calls it left open are closed as they would be on the next request.
    """
    history, loaded = read_history(file, format)
    if loaded.transcript is None:
        return history, loaded
    try:
        repaired = repair(history, resting=True)
        if not repaired.changes:
            return history, loaded
        for change in repaired.changes:
            typer.echo(f"{loaded.name}: on reading: {change}", err=True)
        return parse(repaired.payload, loaded.format), loaded
    except InputError as error:
        raise InputError(f"{loaded.name}: {error}") from None


def problems_of(loaded: Loaded, *, strict: bool = False) -> list[Problem]:
    """List what is wrong with a file: with the file itself, if it is a transcript, and with its history."""
    transcript = loaded.transcript
    if transcript is None:
        return check(loaded.payload, strict=strict)
    found = check(loaded.payload, strict=strict, resting=True)
    placed = [Problem(one.code, transcript.located(one.path), one.message, one.repairable) for one in found]
    return [*transcript.problems, *placed]


def _report_lines(loaded: Loaded) -> None:
    transcript = loaded.transcript
    if transcript is None:
        return
    for skipped in transcript.skipped:
        typer.echo(f"{loaded.name}: line {skipped.line}: skipped: {skipped.reason}", err=True)
    if transcript.sidechains:
        typer.echo(f"{loaded.name}: {len(transcript.sidechains)} side chains left apart", err=True)
