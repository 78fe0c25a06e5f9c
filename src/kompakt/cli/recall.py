"""``kompakt recall``: search a history or a store, or restore the original of a reference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kompakt import api
from kompakt.cli.input import AsJson, Format, open_file, option
from kompakt.cli.output import waiting
from kompakt.cli.store_options import KeyFile, OtherStore, StoreOptions, Tenant, printable, read_id, refuse_both
from kompakt.engine.recall import DEFAULT_TOKENS, Recalled
from kompakt.errors import UsageError
from kompakt.model.json import indented_json

if TYPE_CHECKING:
    from kompakt.session.store import Store

FileOrStore = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="A request body, a list of messages or a transcript (- reads standard input). With --store: nothing.",
    ),
]
SessionId = Annotated[
    str | None,
    option("session", "ID", "Session of the store (default: all), or of a file that has several (default: the first)."),
]

Query = Annotated[
    str | None,
    typer.Argument(
        metavar="QUERY",
        show_default=False,
        help="Words to search for, or a reference such as m7f3a, m7f3a.1 or m7f3a.1:12-30.",
    ),
]
Tokens = Annotated[int, option("tokens", "N", "Most tokens to print; 0 prints the whole text of a reference.")]


def recall(
    context: typer.Context,
    file: FileOrStore,
    query: Query = None,
    store: OtherStore = None,
    session: SessionId = None,
    tokens: Tokens = DEFAULT_TOKENS,
    format: Format = None,
    tenant: Tenant = "",
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Search FILE or a store, or restore a reference.

    A reference restores its original byte for byte. Exit 1 if nothing is found.

    \b
    Examples:
      kompakt recall request.json 'which test failed'
      kompakt recall request.json m7f3a --tokens 0
      kompakt recall 'port of the broker' --store kompakt.db --session ID
    """
    from kompakt.store import find_store, store_url  # late: `--help` does not need it

    if query is None:  # the only argument is the query
        if store is None:
            if Path(file).exists() or (Path(file).suffix and " " not in file):  # the name of a file, and no words
                raise UsageError(f"name what to search for: kompakt recall {file} QUERY")
            raise UsageError(
                f"name where to search: kompakt recall FILE {file!r}, or kompakt recall {file!r} --store STORE"
            )
        url, query = store_url(store), file
    else:  # a store in place of FILE is accepted as well
        refuse_both(context, file)
        url = None if file == "-" else find_store(file)
    with waiting("searching"):
        if url is not None:
            found = _from_store(StoreOptions(url, tenant, key_file), query, session, tokens or None)
        else:
            found = _from_file(file, query, session, tokens or None, format)
    if as_json:
        shown = {"text": found.text, "references": found.references, "tokens": found.tokens, "rest": found.rest}
        named = {} if found.session is None else {"session": found.session}
        typer.echo(indented_json({**shown, **named, "hits": found.hits}), nl=False)
    elif found:
        if found.session is not None:
            typer.echo(f"session {printable(found.session)}:", err=True)
        typer.echo(found.text.encode("utf-8", "replace"), nl=tokens != 0)
    else:
        typer.echo(found.text, err=True)
    raise typer.Exit(0 if found else 1)


def _from_file(file: str, query: str, session: str | None, tokens: int | None, format: str | None) -> Recalled:
    return api.recall(open_file(file, format, session).payload, query, tokens=tokens)


def _from_store(options: StoreOptions, query: str, session: str | None, tokens: int | None) -> Recalled:
    async def work(store: Store) -> Recalled:
        if session is None:
            return await store.recall(query, tokens)
        return await (await store.session(read_id(session))).recall(query, tokens)

    return options.run(work)
