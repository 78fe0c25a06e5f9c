"""``kompakt session delete|purge|gc``: remove sessions for good."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from kompakt.cli.options import AsJson
from kompakt.cli.session.store_options import (
    URL,
    Id,
    KeyFile,
    Place,
    Tenant,
    Url,
    put,
    read_id,
    resumable,
    within,
    written,
)
from kompakt.errors import UsageError

if TYPE_CHECKING:
    from kompakt.session.store import Store

DAY = 86_400.0

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def delete(
    id: Id,
    yes: Yes = False,
    store: Url = URL,
    tenant: Tenant = "",
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Remove a session for good: messages, summaries, index. This cannot be undone."""
    chosen = read_id(id)

    async def there(store: Store) -> None:
        await (await store.session(chosen)).head()

    async def work(store: Store) -> bool:
        removed = await store.delete(chosen)
        await store.scrub()
        return removed

    place = Place(store, tenant, key_file)
    within(place, there)
    _agree(f"remove session {written(chosen)} for good", yes=yes)
    with resumable():
        removed = within(place, work)
    if as_json:
        put({"removed": [chosen] if removed else []})
    typer.echo("1 session removed" if removed else "somebody else has removed it", err=True)


def purge(
    tenant: Annotated[str, typer.Option("--tenant", metavar="T", help="Whose sessions are to go; '' is nobody's.")],
    yes: Yes = False,
    store: Url = URL,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Remove all sessions of a tenant for good. This cannot be undone."""
    _agree(f"remove all sessions of tenant {tenant!r} for good", yes=yes)

    async def work(store: Store) -> int:
        return await store.purge()

    with resumable():
        removed = within(Place(store, tenant, key_file), work)
    if as_json:
        put({"sessions": removed})
    typer.echo(f"{removed} {'session' if removed == 1 else 'sessions'} removed", err=True)


def _agree(what: str, *, yes: bool) -> None:
    """Have a person confirm; where nobody sits, ask for the flag."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"to {what}, say --yes")
    if not typer.confirm(f"Do you want to {what}?", err=True):
        typer.echo("nothing was removed", err=True)
        raise typer.Exit(1)


Days = Annotated[
    float | None,
    typer.Option(
        "--older-than",
        metavar="DAYS",
        envvar="KOMPAKT_RETENTION_DAYS",
        help="Remove sessions older than this; also retention_days in kompakt.toml.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would go; remove nothing.")]


def gc(
    retention_days: Days = None,
    dry_run: DryRun = False,
    store: Url = URL,
    tenant: Tenant = "",
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Remove sessions older than the configured retention, then rewrite the store's files. Print the ids.

    A session's age counts from when it began, or from the newest compaction, revert, edit or pin. Rewriting the files
    erases what was deleted before, over HTTP for example; writers wait for it.
    """
    if retention_days is not None and not retention_days > 0:
        raise UsageError(f"retention_days={retention_days:g}: give days above 0; leave it out to keep everything")
    oldest = -1.0 if retention_days is None else time.time() - retention_days * DAY

    async def work(store: Store) -> list[str]:
        old = [head async for head in store.heads() if max(head.created, head.touched) < oldest]
        if not dry_run:
            if old:
                await store.records.delete([head.key for head in old])
            await store.scrub()
        return [head.id.decode("utf-8", "surrogatepass") for head in old]

    with resumable():
        gone = within(Place(store, tenant, key_file), work)
    if as_json:
        put({"sessions": gone, "dry_run": dry_run})
    else:
        for id in gone:
            typer.echo(written(id))
    if retention_days is None:
        typer.echo("no retention is configured (retention_days, --older-than DAYS); nothing was removed", err=True)
        return
    number = f"{len(gone)} {'session' if len(gone) == 1 else 'sessions'}"
    typer.echo(f"{number} {'would be removed' if dry_run else 'removed'}", err=True)
