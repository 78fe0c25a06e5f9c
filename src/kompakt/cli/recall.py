"""``kompakt recall``: find something in a history or in a store, or give back what a reference names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kompakt import api, files
from kompakt.cli.input import note_session
from kompakt.cli.options import AsJson, Format
from kompakt.cli.session.store_options import KeyFile, Place, Tenant, encode, is_store, read_id, within
from kompakt.engine.recall import DEFAULT_TOKENS, Recalled
from kompakt.errors import InputError, UsageError

if TYPE_CHECKING:
    from kompakt.session.store import Store

FileOrStore = Annotated[
    str,
    typer.Argument(
        metavar="FILE|STORE",
        help="A request body, a list of messages or a transcript, - for standard input; or a store's URL.",
    ),
]
SessionId = Annotated[
    str | None, typer.Option("--session", metavar="ID", help="A session of the store; all of them when not given.")
]

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
    file: FileOrStore,
    asked: Asked,
    session: SessionId = None,
    tokens: Tokens = DEFAULT_TOKENS,
    format: Format = None,
    tenant: Tenant = "",
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Search FILE or a store by words, or restore byte-exactly what a reference names. Exit 1 for nothing found."""
    if is_store(file):
        found = _from_store(Place(file, tenant, key_file), asked, session, tokens or None)
    elif session is not None:
        raise UsageError(f"--session names a session of a store, and {file!r} is none; give sqlite:///FILE or the like")
    else:
        found = _from_file(file, asked, tokens or None, format)
    if as_json:
        shown = {"text": found.text, "references": found.references, "tokens": found.tokens, "rest": found.rest}
        typer.echo(encode({**shown, "hits": found.hits}), nl=False)
    elif found:
        typer.echo(found.text.encode("utf-8", "replace"), nl=tokens != 0)
    else:
        typer.echo(found.text, err=True)
    raise typer.Exit(0 if found else 1)


def _from_file(file: str, asked: str, tokens: int | None, format: str | None) -> Recalled:
    loaded = files.load(file)
    note_session(loaded, file)
    try:
        return api.recall(loaded.payload, asked, tokens=tokens, format=format)
    except InputError as error:
        raise InputError(f"{loaded.name}: {error}") from None


def _from_store(place: Place, asked: str, session: str | None, tokens: int | None) -> Recalled:
    async def work(store: Store) -> Recalled:
        if session is None:
            return await store.recall(asked, tokens)
        return await (await store.session(read_id(session))).recall(asked, tokens)

    return within(place, work)
