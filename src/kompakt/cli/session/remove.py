"""``kompakt session delete|purge|gc``: delete sessions permanently."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from kompakt.cli.input import AsJson
from kompakt.cli.session.store_options import (
    DEFAULT_URL,
    Id,
    KeyFile,
    StoreOptions,
    Url,
    plural,
    print_json,
    printable,
    read_id,
    resumable,
    store_command,
)
from kompakt.errors import UsageError

if TYPE_CHECKING:
    from kompakt.session.store import Store

DAY = 86_400.0

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


@store_command
def delete(id: Id, store: StoreOptions, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete a session permanently.

    Deletes its messages, summaries and search index. This cannot be undone.
    """
    chosen = read_id(id)

    async def exists(store: Store) -> None:
        await (await store.session(chosen)).head()

    async def work(store: Store) -> bool:
        removed = await store.delete(chosen)
        await store.scrub()
        return removed

    store.run(exists)
    _confirm(f"delete session {printable(chosen)} permanently", yes=yes)
    with resumable():
        removed = store.run(work)
    if as_json:
        print_json({"removed": [chosen] if removed else []})
    typer.echo("1 session removed" if removed else "the session was already removed by another process", err=True)


def purge(
    tenant: Annotated[str, typer.Option("--tenant", metavar="T", help="Tenant to purge; '' for sessions without one.")],
    yes: Yes = False,
    store: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Delete all sessions of a tenant permanently.

    This cannot be undone.
    """
    _confirm(f"delete all sessions of tenant {tenant!r} permanently", yes=yes)

    async def work(store: Store) -> int:
        return await store.purge()

    with resumable():
        removed = StoreOptions(store, tenant, key_file).run(work)
    if as_json:
        print_json({"sessions": removed})
    typer.echo(f"{plural(removed, 'session')} removed", err=True)


def _confirm(what: str, *, yes: bool) -> None:
    """Ask for confirmation; without a terminal, require --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"pass --yes to {what}")
    if not typer.confirm(f"Do you want to {what}?", err=True):
        typer.echo("nothing was removed", err=True)
        raise typer.Exit(1)


Days = Annotated[
    float | None,
    typer.Option(
        "--older-than",
        metavar="DAYS",
        envvar="KOMPAKT_RETENTION_DAYS",
        help="Delete sessions older than this. Default: retention_days in kompakt.toml.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be deleted; delete nothing.")]


@store_command
def gc(store: StoreOptions, retention_days: Days = None, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Delete sessions older than the retention period.

    Prints the deleted ids and compacts the files of the store. The age of a session counts from its creation or from
    its newest compaction, revert, edit or pin. Compacting the files also erases sessions that were deleted earlier, for
    example over HTTP; writers wait meanwhile.
    """
    if retention_days is not None and not retention_days > 0:
        raise UsageError(f"retention_days={retention_days:g} is not above 0; omit it to keep every session")
    oldest = -1.0 if retention_days is None else time.time() - retention_days * DAY

    async def work(store: Store) -> list[str]:
        old = [head async for head in store.heads() if max(head.created, head.touched) < oldest]
        if not dry_run:
            if old:
                await store.records.delete([head.key for head in old])
            await store.scrub()
        return [head.id.decode("utf-8", "surrogatepass") for head in old]

    with resumable():
        gone = store.run(work)
    if as_json:
        print_json({"sessions": gone, "dry_run": dry_run})
    else:
        for id in gone:
            typer.echo(printable(id))
    if retention_days is None:
        typer.echo("no retention configured; nothing was removed (set retention_days or --older-than DAYS)", err=True)
        return
    typer.echo(f"{plural(len(gone), 'session')} {'would be removed' if dry_run else 'removed'}", err=True)
