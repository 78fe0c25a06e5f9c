"""``kompakt recall``: find something in a history, or give back what a reference names."""

from __future__ import annotations

from typing import Annotated

import typer

from kompakt import api, files
from kompakt.cli.options import AsJson, File, Format
from kompakt.engine.recall import DEFAULT_TOKENS
from kompakt.errors import InputError

Asked = Annotated[
    str,
    typer.Argument(
        metavar="QUERY|REFERENCE", help="Words to search for, or a reference: m7f3a, m7f3a.1, m7f3a.1:12-30."
    ),
]
Tokens = Annotated[
    int, typer.Option("--tokens", metavar="N", help="Most tokens of the answer; 0 gives a reference's text whole.")
]


def recall(
    file: File, asked: Asked, tokens: Tokens = DEFAULT_TOKENS, format: Format = None, as_json: AsJson = False
) -> None:
    """Search FILE by words, or restore byte-exactly what a reference names. Exit 1 when nothing was found."""
    loaded = files.load(file)
    try:
        found = api.recall(loaded.payload, asked, tokens=tokens or None, format=format)
    except InputError as error:
        raise InputError(f"{loaded.name}: {error}") from None
    if as_json:
        shown = {"text": found.text, "references": found.references, "tokens": found.tokens, "rest": found.rest}
        typer.echo(files.encode({**shown, "hits": found.hits}), nl=False)
    elif found:
        typer.echo(found.text.encode("utf-8", "replace"), nl=tokens != 0)
    else:
        typer.echo(found.text, err=True)
    raise typer.Exit(0 if found else 1)
