"""``kompakt repair``: mend a history and say what was done."""

from __future__ import annotations

from typing import Annotated

import typer

from kompakt import api, files
from kompakt.cli.opening import open_history
from kompakt.cli.options import AsJson, File, Format, Strict

Out = Annotated[str | None, typer.Option("-o", "--out", metavar="OUT", help="Write the result here instead.")]


def repair(file: File, out: Out = None, format: Format = None, strict: Strict = False, as_json: AsJson = False) -> None:
    """Mend FILE so that the provider takes it. Exit 1 when something is left that only you can decide."""
    history, loaded = open_history(file, format)
    mended = api.repair(history, strict=strict)
    data = files.encode(mended.payload)
    if out is not None:
        files.write(out, data)
    if as_json:
        report = {"changes": mended.changes, "remaining": mended.remaining}
        typer.echo(files.encode(report if out is not None else {**report, "payload": mended.payload}), nl=False)
    elif out is None:
        typer.echo(data, nl=False)
    for change in mended.changes:
        typer.echo(str(change), err=True)
    for problem in mended.remaining:
        typer.echo(f"left: {problem}", err=True)
    typer.echo(f"{loaded.name}: {len(mended.changes)} changes, {len(mended.remaining)} problems left", err=True)
    raise typer.Exit(1 if mended.remaining else 0)
