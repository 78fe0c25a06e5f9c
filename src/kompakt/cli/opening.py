"""Open the file a command was given and say on standard error what is worth knowing about it."""

from __future__ import annotations

import typer

from kompakt.api import parse, repair
from kompakt.errors import InputError
from kompakt.files import Loaded, load
from kompakt.model.messages import History


def read_history(file: str, format: str | None) -> tuple[History, Loaded]:
    """Read a file into a history, as it is; errors name the file, lines that could not be read are reported."""
    loaded = load(file)
    try:
        if loaded.transcript is None:
            return parse(loaded.payload, format), loaded
    except InputError as error:
        raise InputError(f"{loaded.name}: {error}") from None
    _report_lines(loaded)
    return loaded.payload, loaded


def open_history(file: str, format: str | None) -> tuple[History, Loaded]:
    """Read a file into a history; errors name the file.

    A transcript is a session at rest: calls it left open are closed as they would be on the next request.
    """
    history, loaded = read_history(file, format)
    if loaded.transcript is None:
        return history, loaded
    try:
        mended = repair(history, resting=True)
        if not mended.changes:
            return history, loaded
        for change in mended.changes:
            typer.echo(f"{loaded.name}: on reading: {change}", err=True)
        return parse(mended.payload, loaded.format), loaded
    except InputError as error:
        raise InputError(f"{loaded.name}: {error}") from None


def _report_lines(loaded: Loaded) -> None:
    transcript = loaded.transcript
    assert transcript is not None
    for skipped in transcript.skipped:
        typer.echo(f"{loaded.name}: line {skipped.line}: skipped: {skipped.reason}", err=True)
    if transcript.sidechains:
        typer.echo(f"{loaded.name}: {len(transcript.sidechains)} side chains left apart", err=True)
