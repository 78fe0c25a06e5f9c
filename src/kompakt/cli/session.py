"""``kompakt session …``: manage the sessions in a store.

Each command opens the store, calls one method of a session, and closes the store.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kompakt import api
from kompakt.cli import config
from kompakt.cli.compact import NOTHING_LEAVES, cost_of
from kompakt.cli.compact import show as show_report
from kompakt.cli.input import (
    AsJson,
    Budget,
    DryRun,
    File,
    Format,
    ModelName,
    Out,
    PolicyName,
    SessionName,
    option,
    problems_of,
    read_history,
    skipped_records,
)
from kompakt.cli.output import console, progress, table, waiting
from kompakt.cli.store_options import (
    AGE,
    DEFAULT_URL,
    Id,
    KeyFile,
    StoreOptions,
    Url,
    print_json,
    printable,
    read_age,
    read_id,
    resumable,
    store_command,
)
from kompakt.engine.compaction.policies import Policy
from kompakt.errors import StoreDamaged, UsageError, plural
from kompakt.hosts.places import shown_store
from kompakt.model.messages import History, Marker
from kompakt.model.references import References
from kompakt.version import own_program

if TYPE_CHECKING:
    from rich.table import Table

    from kompakt.session.compaction import SessionCompaction
    from kompakt.session.session import Session
    from kompakt.session.store import Store
    from kompakt.store.records import Head
    from kompakt.view.directories import DirectoryEntry
    from kompakt.view.status import CompactionStatus, SessionStatus
    from kompakt.view.values import SessionLine

_MAX_PROBLEMS = 20
"""Problems of an imported file that are printed."""

app = typer.Typer(
    name="session",
    help="Manage the sessions in a store.\n\n"
    "\b\nExamples:\n  kompakt session import request.json --id app\n  kompakt session list\n"
    "  kompakt session compact app --budget 50000 --dry-run",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def _options(context: typer.Context) -> None:
    settings = context.default_map or {}
    context.default_map = {command.name or "": settings for command in app.registered_commands}


# --- import ------------------------------------------------------------------------------------------------------

NewId = Annotated[str | None, option("id", "ID", "Session id. Default: made from file name and content.")]


@store_command
def import_file(
    file: File,
    store: StoreOptions,
    id: NewId = None,
    format: Format = None,
    session: SessionName = None,
    as_json: AsJson = False,
) -> None:
    """Import FILE into the store and print the session id.

    Messages that are already stored are not written again. Side chains, such as sub-agents, become sessions of their
    own, which recall on the imported session also searches.

    \b
    Examples:
      kompakt session import request.json
      kompakt session import ~/.claude/projects/app/ID.jsonl --id app
    """
    history, loaded = read_history(file, format, session, ignores_sides=False)
    sides = loaded.transcript.sidechains if loaded.transcript is not None else ()
    chosen = read_id(id) if id is not None else _id_for(file, history)
    problems = problems_of(loaded)

    async def work(store: Store) -> Head:
        stored = await store.session(chosen)
        with progress(len(history), "importing") as bar:
            await stored.save(history, progress=bar)
        for number, side in enumerate(sides, start=1):
            child = await store.session(f"{chosen}/side-{number}")
            await child.save(api.parse(side.body, side.format))
            await child.link(chosen)
        return await stored.head()

    with resumable():
        head = store.run(work, create=True)
    for problem in problems[:_MAX_PROBLEMS]:
        typer.echo(f"{loaded.name}: {problem}", err=True)
    repaired = f"; {plural(len(problems), 'problem')}, repaired in every request" if problems else ""
    if sides:
        typer.echo(f"{loaded.name}: {plural(len(sides), 'side chain')}; sessions {chosen}/side-1 and on", err=True)
    counts = f"{plural(head.messages, 'message')}, {plural(head.turn, 'turn')}"
    typer.echo(f"{loaded.name}: {history.format}, {counts}{repaired}", err=True)
    if as_json:
        numbers = {"messages": head.messages, "turns": head.turn, **skipped_records(loaded)}
        print_json({"session": chosen, **numbers, "problems": problems})
    else:
        typer.echo(printable(chosen))


def _id_for(file: str, history: History) -> str:
    """Return the default id of a file: its name and a hash of its messages."""
    import hashlib

    stem = re.sub(r"[^\w.-]+", "-", Path(file).stem if file != "-" else "stdin", flags=re.ASCII).strip("-.")
    content = f"{history.format} {' '.join(References(history).names)}".encode()
    return f"{stem or 'session'}-{hashlib.blake2b(content, digest_size=5).hexdigest()}"


# --- list and show -----------------------------------------------------------------------------------------------


@store_command
def list_all(store: StoreOptions, as_json: AsJson = False) -> None:
    """List the sessions of the store, the newest first. Undone compactions are not counted.

    \b
    Examples:
      kompakt session list
      kompakt session list --store postgresql://HOST/DATABASE --json
    """

    async def work(store: Store) -> list[SessionLine]:
        from kompakt.view.directories import entries_of  # late: `--help` does not need it

        heads = sorted([head async for head in store.heads()], key=lambda head: (-head.last_write, head.name))
        return [await _line(head, entry) for head, entry in zip(heads, await entries_of(heads, store), strict=True)]

    with waiting("reading the store"):
        rows = store.run(work)
    if as_json:
        print_json(rows)
    elif rows:
        _show_list(rows)
    else:
        typer.echo(f"no sessions in {shown_store(store.url)}{_of_tenant(store.tenant)}", err=True)
        typer.echo(f"add one with: {own_program()} session import FILE; or name another store with --store", err=True)


def _of_tenant(tenant: str) -> str:
    return f" of tenant {tenant!r}" if tenant else ""


async def _line(head: Head, entry: DirectoryEntry) -> SessionLine:
    from kompakt.view.inspection import line_of, session_line  # late: `--help` does not need it

    try:
        return await session_line(head, entry)
    except StoreDamaged as error:
        typer.echo(f"{printable(head.name)}: {error}", err=True)
        return line_of(head)


def _show_list(rows: list[SessionLine]) -> None:
    """Print three lines for each session: title; id, which people copy; numbers."""
    from rich.text import Text  # late: `--help` does not need it

    page = console()
    page.print(Text(f"{plural(len(rows), 'session')}, newest first; times are UTC\n", "bold"))
    for row in rows:
        title = Text(_one_line(row.title) or "(no request)")
        title.truncate(page.width, overflow="ellipsis")
        compactions = "? compactions" if row.compactions is None else plural(row.compactions, "compaction")
        facts = [_minute(row.touched), plural(row.messages, "message"), compactions, row.client, row.model]
        page.print(title, Text(f"  {printable(row.id)}"), sep="\n")
        page.print(Text(f"  {', '.join(_one_line(fact) for fact in facts if fact)}", "dim"))


def _one_line(text: str) -> str:
    """Return recorded text as one line that is safe to print."""
    from kompakt.view.visible import cleaned  # late: `--help` does not need it

    return " ".join(cleaned(text).split())


def _minute(moment: str | None) -> str:
    """Shorten a time such as 2026-11-16T18:37:38Z, so that a table fits 80 columns."""
    return (moment or "")[:16].replace("T", " ")


@store_command
def show(id: Id, store: StoreOptions, model: ModelName = None, as_json: AsJson = False) -> None:
    """Show title, size, compactions, requests and pins of a session.

    \b
    Examples:
      kompakt session show ID
      kompakt session show ID --model gpt-5 --json
    """
    import msgspec  # late: `--help` does not need these

    from kompakt.view.directories import entries_of
    from kompakt.view.status import session_status, window_of

    async def work(store: Store) -> tuple[SessionLine, SessionStatus]:
        session = await store.session(read_id(id))
        head = await session.head()
        line = await _line(head, (await entries_of([head], store))[0])
        status = await session_status(session, model=model)
        if status.model is None and line.model is not None:  # only the label of a gateway's session names it
            status = msgspec.structs.replace(status, model=line.model, window=window_of(line.model))
        return line, status

    line, status = store.run(work)
    if as_json:
        pending = [{"row": row} | msgspec.to_builtins(marker) for row, marker in status.pending]
        more = {"title": line.title, "client": line.client, "touched": line.touched}
        print_json(msgspec.to_builtins(status) | {"pending": pending, "fullness": status.fullness, **more})
    else:
        _show_status(line, status)


def _show_status(line: SessionLine, status: SessionStatus) -> None:
    from rich.text import Text  # late: `--help` does not need it

    page, shown = console(), table(printable(status.id), "", "")
    shown.show_header = False
    for name, text in {"title": line.title, "client": line.client, "model": status.model}.items():
        if text:
            shown.add_row(name, Text(_one_line(text)))
    shown.add_row("format", status.format)
    shown.add_row("created (UTC)", _minute(status.created))
    shown.add_row("last used (UTC)", _minute(line.touched))
    shown.add_row("messages", f"{status.messages:,}")
    shown.add_row("turns", f"{status.turns:,}")
    share = f" of {status.window:,} ({status.fullness:.0%})" if status.window and status.fullness is not None else ""
    shown.add_row("tokens in the model's view", f"{status.tokens:,}{share}")
    shown.add_row("messages to recall", f"{status.recallable:,}")
    for _, marker in status.pending:
        origin = "automatic" if marker.auto else "manual"
        instructions = f": {printable(marker.instructions)}" if marker.instructions else ""
        shown.add_row("compaction requested", Text(f"{origin}{instructions}"))
    for text in status.pins:
        shown.add_row("pinned", Text(printable(text)))
    for change in status.repairs:
        shown.add_row("repaired in requests", Text(printable(change)))
    page.print(shown)
    if status.compactions:
        page.print(_compaction_table(status.compactions))


def _compaction_table(compactions: Sequence[CompactionStatus]) -> Table:
    from rich.text import Text

    shown = table("compactions", "id", "at (UTC)", "reason", "before", "after", "", numbers=("id", "before", "after"))
    shown.columns[0].justify = "left"
    for one in compactions:
        reason = f"{one.reason}, {one.policy}"
        reason += f", {plural(len(one.failures), 'failure')}" if one.failures else ""
        tokens = ("?" if size is None else f"{size:,}" for size in (one.tokens_before, one.tokens_after))
        state, style = ("undone", "dim") if one.undone else ("", None)
        shown.add_row(one.id, _minute(one.at), Text(reason), *tokens, state, style=style)
    return shown


# --- compact -----------------------------------------------------------------------------------------------------

Force = Annotated[bool, typer.Option("--force", help="Compact even if the budget is not due.")]
Instructions = Annotated[str | None, option("instructions", "TEXT", "What the summary should pay attention to.")]


@store_command
def compact(
    id: Id,
    store: StoreOptions,
    budget: Budget = None,
    model: ModelName = None,
    policy: PolicyName = "default",
    force: Force = False,
    instructions: Instructions = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Compact a session if it is due or requested.

    Exit 3 if it cannot fit. A dry run shows the effect on what the model sees now and writes nothing.

    \b
    Examples:
      kompakt session compact ID --budget 50000 --dry-run
      kompakt session compact ID --force --instructions 'keep the API names'
    """
    chosen = config.policy(policy)
    if dry_run:
        _preview(store, id, budget, model=model, policy=chosen, instructions=instructions, force=force, as_json=as_json)
        return

    async def work(session: Session) -> SessionCompaction:
        request = Marker(auto=False, instructions=instructions)
        if force and await session.is_served():  # a request would be a row between the messages of the client
            return await session.compact(
                budget, model=model, policy=chosen, instructions=instructions, reason="asked for"
            )
        if force and request not in (await session.pending()).values():
            await session.request_compaction(auto=False, instructions=instructions)
        given = None if force else instructions
        return await session.compact(budget, model=model, policy=chosen, instructions=given)

    with resumable():
        done = store.run_session(id, work)
    if as_json:
        numbers = {"tokens_before": done.tokens_before, "tokens_after": done.tokens_after}
        print_json({"session": read_id(id), "id": done.id, "changed": done.changed, **numbers})
    elif done.report is None:
        typer.echo(f"nothing to do: {done.tokens_after:,} tokens are within the budget", err=True)
    else:
        show_report(done.report)
        typer.echo(done.id)


def _preview(
    store: StoreOptions,
    id: str,
    budget: int | None,
    *,
    model: str | None,
    policy: str | Policy,
    instructions: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Compact what the model sees of a session without writing to the store."""

    async def work(session: Session) -> tuple[api.Compaction, str | None]:
        shown, reader = await session.project(model=model), await session.reader()
        chosen = model or shown.history.model
        limit = min(budget or shown.tokens, shown.tokens // 2) if force else budget
        done = await api.acompact(
            shown.history, limit, model=chosen, policy=policy, pins=reader.timeline.pins, instructions=instructions
        )
        return done, chosen

    done, chosen = store.run_session(id, work)
    cost = cost_of(done.report, chosen)
    if as_json:
        print_json({"session": read_id(id), "changed": done.changed, "report": done.report, "cost": cost})
        return
    typer.echo((done.report.notes or NOTHING_LEAVES).encode("utf-8", "replace"))
    show_report(done.report, dry_run=True, cost=cost)


# --- verify ------------------------------------------------------------------------------------------------------

SomeId = Annotated[str | None, typer.Argument(metavar="ID", help="Session id. Default: all sessions.")]


@store_command
def verify(store: StoreOptions, id: SomeId = None, as_json: AsJson = False) -> None:
    """Check stored sessions for damage.

    Prints one problem per line. Exit 1 if there are any.

    \b
    Examples:
      kompakt session verify
      kompakt session verify ID --store agent.db
    """
    problems: list[tuple[str, str]] = []

    async def work(store: Store) -> int:
        if id is not None:
            heads = [await (await store.session(read_id(id))).head()]
        else:
            heads = [head async for head in store.heads()]
        await _verify(store, heads, problems)
        return len(heads)

    sessions = store.run(work)
    if as_json:
        found = [{"session": session, "problem": problem} for session, problem in problems]
        print_json({"sessions": sessions, "problems": found})
    else:
        for session, problem in problems:
            typer.echo(f"{printable(session)}: {problem}")
    verdict = plural(len(problems), "problem") if problems else "no problems"
    typer.echo(f"{plural(sessions, 'session')}, {verdict}", err=True)
    raise typer.Exit(1 if problems else 0)


async def _verify(store: Store, heads: list[Head], problems: list[tuple[str, str]]) -> None:
    """Verify sessions and add (session, problem) pairs to ``problems``."""
    seen, total = 0, sum(head.messages for head in heads)
    with progress(total, "verifying") as bar:
        for head in heads:
            session = await store.session(head.name)
            try:
                found = await session.verify()
            except StoreDamaged as error:
                found = [str(error)]
            problems += [(session.id, problem) for problem in found]
            seen += head.messages
            if bar is not None:
                bar(seen, total)


# --- undo, revert, fork, export, edit, pin -------------------------------------------------------------------------


class ExportView(StrEnum):
    """Which messages of a session are exported."""

    FULL = "full"
    MODEL = "model"


CompactionId = Annotated[str | None, option("compaction", "C", "Compaction id. Default: the newest compaction.")]
Turn = Annotated[int, option("turn", "N", "Number of a turn, starting at 1.")]
To = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="Output format: openai-chat, openai-responses, anthropic, gemini or bedrock. Default: as imported.",
    ),
]


@store_command
def undo(id: Id, store: StoreOptions, compaction: CompactionId = None, as_json: AsJson = False) -> None:
    """Undo the latest compaction, revert or edit.

    With --compaction, undo that compaction and those after it, which were made from its result. Prints what was undone.

    \b
    Examples:
      kompakt session undo ID
      kompakt session undo ID --compaction COMPACTION
    """
    undone = store.run_session(id, lambda session: session.undo(compaction))
    if as_json:
        print_json({"session": read_id(id), "undone": undone})
    else:
        typer.echo(undone)


@store_command
def redo(id: Id, store: StoreOptions, as_json: AsJson = False) -> None:
    """Take back the newest undo of a compaction or an edit.

    Prints what counts again.

    \b
    Examples:
      kompakt session redo ID
      kompakt session redo ID --json
    """
    redone = store.run_session(id, lambda session: session.redo())
    if as_json:
        print_json({"session": read_id(id), "redone": redone})
    else:
        typer.echo(redone)


@store_command
def revert(id: Id, turn: Turn, store: StoreOptions, as_json: AsJson = False) -> None:
    """Return a session to its state after turn N.

    No message is deleted; `undo` reverses it.

    \b
    Examples:
      kompakt session revert ID --turn 3
      kompakt session revert ID --turn 3 --json
    """
    hidden = store.run_session(id, lambda session: session.revert(turn))
    if as_json:
        print_json({"session": read_id(id), "turn": turn, "messages_taken_back": hidden})
    typer.echo(f"{hidden} messages reverted; the session is at turn {turn}", err=True)


@store_command
def replay(id: Id, turn: Turn, store: StoreOptions, to: To = None, out: Out = None) -> None:
    """Write a session from turn N on as a request body.

    \b
    Examples:
      kompakt session replay ID --turn 3 -o rest.json
      kompakt session replay ID --turn 3 --format anthropic
    """
    print_json(store.run_session(id, lambda session: session.replay(turn, format=to)), out)


@store_command
def fork(
    id: Id,
    store: StoreOptions,
    turn: Annotated[int | None, option("turn", "N", "Copy the first N turns only.")] = None,
    new: Annotated[str | None, option("id", "ID", "Id of the fork. Default: generated.")] = None,
    as_json: AsJson = False,
) -> None:
    """Copy a session, or its first turns; print the new id.

    \b
    Examples:
      kompakt session fork ID
      kompakt session fork ID --turn 3 --id experiment
    """

    async def work(session: Session) -> str:
        return (await session.fork(None if new is None else read_id(new), turn=turn)).id

    made = store.run_session(id, work)
    if as_json:
        print_json({"session": read_id(id), "fork": made})
    else:
        typer.echo(printable(made))


@store_command
def export(
    id: Id,
    store: StoreOptions,
    view: Annotated[
        ExportView, typer.Option("--view", help="full: every message. model: what the model sees.")
    ] = ExportView.FULL,
    to: To = None,
    turns: Annotated[int | None, typer.Option("--turns", metavar="K", min=1, help="The last K turns only.")] = None,
    out: Out = None,
) -> None:
    """Write a session as a request body.

    The model's view is repaired if the format requires it.

    \b
    Examples:
      kompakt session export ID -o request.json
      kompakt session export ID --view model --format openai-chat
    """
    print_json(store.run_session(id, lambda session: session.export(view=view.value, format=to, turns=turns)), out)


@store_command
def edit(
    id: Id,
    store: StoreOptions,
    summary: Annotated[str | None, option("summary", "TEXT", "The new summary.")] = None,
    file: Annotated[str | None, option("file", "F", "File with the new summary.")] = None,
    compaction: CompactionId = None,
    as_json: AsJson = False,
) -> None:
    """Replace the summary of a compaction. `undo` reverses it.

    \b
    Examples:
      kompakt session edit ID --file summary.md
      kompakt session edit ID --summary 'Parser done; tests are left.'
    """
    if (summary is None) == (file is None):
        raise UsageError("pass the new summary with either --summary TEXT or --file F")
    text = summary if file is None else _read_text(file)
    store.run_session(id, lambda session: session.edit_summary(text or "", compaction))
    if as_json:
        print_json({"session": read_id(id), "summary": text or ""})
    typer.echo("summary replaced", err=True)


def _read_text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: cannot read the file: {getattr(error, 'strerror', None) or error}") from None


@store_command
def pin(
    id: Id,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Text that every compaction keeps verbatim.")],
    store: StoreOptions,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the pin.")] = False,
    as_json: AsJson = False,
) -> None:
    """Pin a text, or remove a pin. Print all pinned texts.

    \b
    Examples:
      kompakt session pin ID 'Never change the migrations.'
      kompakt session pin ID 'Never change the migrations.' --remove
    """

    async def work(session: Session) -> tuple[str, ...]:
        if remove and text not in (await session.reader()).timeline.pins:
            raise UsageError(f"{printable(text)} is not pinned; `kompakt session show` lists the pins")
        await session.pin(text, pinned=not remove)
        return (await session.reader()).timeline.pins

    pins = store.run_session(id, work)
    if as_json:
        print_json({"session": read_id(id), "pins": pins})
        return
    for one in pins:
        typer.echo(printable(one))


# --- delete --------------------------------------------------------------------------------------------------------

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


@store_command
def delete(id: Id, store: StoreOptions, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete a session permanently.

    Deletes its messages, summaries and search index. This cannot be undone.

    \b
    Examples:
      kompakt session delete ID
      kompakt session delete ID --yes --store agent.db
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
    with resumable(), waiting("deleting"):
        removed = store.run(work)
    if as_json:
        print_json({"removed": [chosen] if removed else []})
    typer.echo("1 session removed" if removed else "the session was already removed by another process", err=True)


def purge(
    tenant: Annotated[str, option("tenant", "T", "Tenant to purge; '' for sessions without one.")],
    yes: Yes = False,
    store: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Delete all sessions of a tenant permanently.

    This cannot be undone.

    \b
    Examples:
      kompakt session purge --tenant acme
      kompakt session purge --tenant acme --yes --json
    """
    _confirm(f"delete all sessions of tenant {tenant!r} permanently", yes=yes)
    with resumable(), waiting("deleting"):
        removed = StoreOptions(store, tenant, key_file).run(lambda store: store.purge())
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


Retention = Annotated[
    str | None,
    typer.Option(
        "--older-than",
        metavar="AGE",
        envvar="KOMPAKT_RETENTION_DAYS",
        help=f"Delete sessions older than this, {AGE}. Default: retention_days in kompakt.toml.",
    ),
]
DeletionDryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be deleted; delete nothing.")]


@store_command
def gc(
    store: StoreOptions, retention_days: Retention = None, dry_run: DeletionDryRun = False, as_json: AsJson = False
) -> None:
    """Delete sessions older than the retention period.

    Prints the deleted ids and compacts the files of the store. The age of a session counts from its last write.
    Compacting the files also erases sessions that were deleted earlier, for example over HTTP; writers wait meanwhile.

    \b
    Examples:
      kompakt session gc --older-than 30d --dry-run
      kompakt session gc --older-than 30d --json
    """
    oldest = -1.0 if retention_days is None else time.time() - read_age(retention_days, "older-than")

    async def work(store: Store) -> list[str]:
        old = [head async for head in store.heads() if head.last_write < oldest]
        if not dry_run:
            if old:
                await store.records.delete([head.key for head in old])
            await store.scrub()
        return [head.name for head in old]

    with resumable(), waiting("looking for old sessions"):
        gone = store.run(work)
    if as_json:
        print_json({"sessions": gone, "dry_run": dry_run})
    else:
        for id in gone:
            typer.echo(printable(id))
    if retention_days is None:
        typer.echo("no retention configured; nothing was removed (set retention_days or --older-than AGE)", err=True)
        return
    typer.echo(f"{plural(len(gone), 'session')} {'would be removed' if dry_run else 'removed'}", err=True)
    if dry_run:
        typer.echo("dry run: nothing was removed", err=True)


for _name, _command in {
    "import": import_file,
    "list": list_all,
    "show": show,
    "compact": compact,
    "undo": undo,
    "redo": redo,
    "revert": revert,
    "replay": replay,
    "fork": fork,
    "export": export,
    "edit": edit,
    "pin": pin,
    "verify": verify,
    "delete": delete,
    "purge": purge,
    "gc": gc,
}.items():
    app.command(_name)(_command)
