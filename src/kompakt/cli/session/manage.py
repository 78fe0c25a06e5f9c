"""``kompakt session …``: sessions in a store.

Each command opens the store, calls one method of a session, and closes the store again.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kompakt import api
from kompakt.cli import config as configuration
from kompakt.cli.compact import NOTHING_LEAVES, Budget, DryRun, ModelName, PolicyName, cost_of, progress
from kompakt.cli.compact import show as show_report
from kompakt.cli.input import problems_of, read_history
from kompakt.cli.options import AsJson, File, Format
from kompakt.cli.session import remove as removing
from kompakt.cli.session import undo_fork_export as traveling
from kompakt.cli.session.store_options import (
    URL,
    Id,
    KeyFile,
    Place,
    Tenant,
    Url,
    moment,
    put,
    read_id,
    resumable,
    with_session,
    within,
    written,
)
from kompakt.engine.compaction.policies import Policy
from kompakt.errors import StoreDamaged
from kompakt.model.messages import History, Marker
from kompakt.model.references import References

if TYPE_CHECKING:
    from kompakt.session.compaction import SessionCompaction
    from kompakt.session.session import Session
    from kompakt.session.store import Store
    from kompakt.store.records import Head

_TOLD = 20
"""Problems of an imported file that are told one by one."""

app = typer.Typer(
    name="session",
    help="Keep sessions in a store: import, compact, undo, revert, fork, export, verify, remove.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _options(context: typer.Context) -> None:
    settings = context.default_map or {}
    context.default_map = {command.name or "": settings for command in app.registered_commands}


# --- import ------------------------------------------------------------------------------------------------------

NewId = Annotated[str | None, typer.Option("--id", metavar="ID", help="The id; else made of name and content.")]


def import_file(
    file: File,
    id: NewId = None,
    format: Format = None,
    store: Url = URL,
    tenant: Tenant = "",
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Put FILE into the store as it is and print the session's id. What is there already is not written again."""
    history, loaded = read_history(file, format)
    chosen = read_id(id) if id is not None else _id_for(file, history)
    problems = problems_of(loaded)

    async def work(store: Store) -> Head:
        session = await store.session(chosen)
        with progress(len(history), "importing") as bar:
            await session.save(history, progress=bar)
        return await session.head()

    with resumable():
        head = within(Place(store, tenant, key_file), work, make=True)
    for problem in problems[:_TOLD]:
        typer.echo(f"{loaded.name}: {problem}", err=True)
    repaired = f"; {len(problems)} problems, repaired whenever it is sent" if problems else ""
    typer.echo(f"{loaded.name}: {history.format}, {head.messages} messages, {head.turn} turns{repaired}", err=True)
    if as_json:
        put({"session": chosen, "messages": head.messages, "turns": head.turn, "problems": problems})
    else:
        typer.echo(written(chosen))


def _id_for(file: str, history: History) -> str:
    """Make an id that the same file has every time: its name, and a part of the hash over its messages."""
    import hashlib

    stem = re.sub(r"[^\w.-]+", "-", Path(file).stem if file != "-" else "stdin", flags=re.ASCII).strip("-.")
    content = f"{history.format} {' '.join(References(history).names)}".encode()
    return f"{stem or 'session'}-{hashlib.blake2b(content, digest_size=5).hexdigest()}"


# --- list and show -----------------------------------------------------------------------------------------------


def list_all(store: Url = URL, tenant: Tenant = "", key_file: KeyFile = None, as_json: AsJson = False) -> None:
    """List the sessions of the store; compactions that were undone are not counted."""

    async def work(store: Store) -> list[dict[str, Any]]:
        return [await _line(store, head) async for head in store.heads()]

    lines = within(Place(store, tenant, key_file), work)
    lines.sort(key=lambda line: (line["created"], line["id"]))
    if as_json:
        put(lines)
        return
    from kompakt.cli.session.tables import show_list  # late: `--help` should not pay for it

    show_list(lines)


async def _line(store: Store, head: Head) -> dict[str, Any]:
    id = head.id.decode("utf-8", "surrogatepass")
    compactions: int | None = 0
    try:
        if head.events:
            compactions = sum(not one.undone for one in await (await store.session(id)).compactions())
    except StoreDamaged as error:
        typer.echo(f"{written(id)}: {error}", err=True)
        compactions = None
    return {
        "id": id,
        "messages": head.messages,
        "turns": head.turn,
        "compactions": compactions,
        "format": head.format,
        "created": moment(head.created),
    }


def show(
    id: Id,
    model: ModelName = None,
    store: Url = URL,
    tenant: Tenant = "",
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Say how a session stands: size, what the model sees of it, compactions, requests, pins."""

    async def work(session: Session) -> dict[str, Any]:
        return await _account(session, model)

    account = with_session(Place(store, tenant, key_file), id, work)
    if as_json:
        put(account)
        return
    from kompakt.cli.session.tables import show_account  # late: `--help` should not pay for it

    show_account(account)


async def _account(session: Session, model: str | None) -> dict[str, Any]:
    import msgspec

    reader, shown = await session.reader(), await session.project(model=model)
    compactions = [msgspec.to_builtins(one) | {"at": moment(one.at)} for one in await session.compactions()]
    pending = await session.pending()
    return {
        "id": session.id,
        "format": reader.head.format,
        "created": moment(reader.head.created),
        "messages": reader.head.messages,
        "turns": reader.head.turn,
        "tokens": shown.tokens,
        "compactions": compactions,
        "pending": [{"row": row} | msgspec.to_builtins(marker) for row, marker in pending.items()],
        "pins": list(reader.timeline.pins),
        "repairs": list(shown.repairs),
    }


# --- compact -----------------------------------------------------------------------------------------------------

Force = Annotated[bool, typer.Option("--force", help="Compact even when the budget is not due.")]
Instructions = Annotated[
    str | None, typer.Option("--instructions", metavar="TEXT", help="What the summary should look after.")
]


def compact(
    id: Id,
    budget: Budget = None,
    model: ModelName = None,
    policy: PolicyName = "default",
    force: Force = False,
    instructions: Instructions = None,
    dry_run: DryRun = False,
    store: Url = URL,
    tenant: Tenant = "",
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Compact a session when its budget is due or somebody asked for it. Exit 3 when it cannot fit.

    A dry run changes nothing: it shows what would be done to what the model sees now.
    """
    chosen = configuration.policy(policy)
    if dry_run:
        place = Place(store, tenant, key_file)
        _preview(place, id, budget, model=model, policy=chosen, instructions=instructions, force=force, as_json=as_json)
        return

    async def work(session: Session) -> SessionCompaction:
        wish = Marker(auto=False, instructions=instructions)
        if force and wish not in (await session.pending()).values():
            await session.request_compaction(auto=False, instructions=instructions)
        said = None if force else instructions
        return await session.compact(budget, model=model, policy=chosen, instructions=said)

    with resumable():
        done = with_session(Place(store, tenant, key_file), id, work)
    if as_json:
        numbers = {"tokens_before": done.tokens_before, "tokens_after": done.tokens_after}
        put({"session": read_id(id), "id": done.id, "changed": done.changed, **numbers})
    elif done.report is None:
        typer.echo(f"nothing to do: {done.tokens_after:,} tokens are within the budget", err=True)
    else:
        show_report(done.report)
        typer.echo(done.id)


def _preview(
    place: Place,
    id: str,
    budget: int | None,
    *,
    model: str | None,
    policy: str | Policy,
    instructions: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Compact what the model sees of a session, and write nothing to the store."""

    async def work(session: Session) -> tuple[api.Compaction, str | None]:
        shown, reader = await session.project(model=model), await session.reader()
        chosen = model or shown.history.model
        limit = min(budget or shown.tokens, shown.tokens // 2) if force else budget
        done = await api.acompact(
            shown.history, limit, model=chosen, policy=policy, pins=reader.timeline.pins, instructions=instructions
        )
        return done, chosen

    done, chosen = with_session(place, id, work)
    cost = cost_of(done.report, chosen)
    if as_json:
        put({"session": read_id(id), "changed": done.changed, "report": done.report, "cost": cost})
        return
    typer.echo((done.report.told or NOTHING_LEAVES).encode("utf-8", "replace"))
    show_report(done.report, actions=True, cost=cost)


# --- verify ------------------------------------------------------------------------------------------------------

SomeId = Annotated[str | None, typer.Argument(metavar="[ID]", help="A session; all of them when not given.")]


def verify(
    id: SomeId = None, store: Url = URL, tenant: Tenant = "", key_file: KeyFile = None, as_json: AsJson = False
) -> None:
    """Derive sessions again from what is kept and list what differs, one a line. Exit 1 when anything does."""

    problems: list[tuple[str, str]] = []

    async def work(store: Store) -> int:
        if id is not None:
            heads = [await (await store.session(read_id(id))).head()]
        else:
            heads = [head async for head in store.heads()]
        await _verify(store, heads, problems)
        return len(heads)

    sessions = within(Place(store, tenant, key_file), work)
    if as_json:
        found = [{"session": session, "problem": problem} for session, problem in problems]
        put({"sessions": sessions, "problems": found})
    else:
        for session, problem in problems:
            typer.echo(f"{written(session)}: {problem}")
    verdict = f"{len(problems)} problems" if problems else "no problems"
    typer.echo(f"{sessions} {'session' if sessions == 1 else 'sessions'}, {verdict}", err=True)
    raise typer.Exit(1 if problems else 0)


async def _verify(store: Store, heads: list[Head], problems: list[tuple[str, str]]) -> None:
    """Verify sessions one by one; what is wrong is added to ``problems``, with its session."""
    seen, total = 0, sum(head.messages for head in heads)
    with progress(total, "verifying") as bar:
        for head in heads:
            session = await store.session(head.id.decode("utf-8", "surrogatepass"))
            try:
                found = await session.verify()
            except StoreDamaged as error:
                found = [str(error)]
            problems += [(session.id, problem) for problem in found]
            seen += head.messages
            if bar is not None:
                bar(seen, total)


for _name, _command in {
    "import": import_file,
    "list": list_all,
    "show": show,
    "compact": compact,
    "undo": traveling.undo,
    "revert": traveling.revert,
    "replay": traveling.replay,
    "fork": traveling.fork,
    "export": traveling.export,
    "edit": traveling.edit,
    "pin": traveling.pin,
    "verify": verify,
    "delete": removing.delete,
    "purge": removing.purge,
    "gc": removing.gc,
}.items():
    app.command(_name)(_command)
