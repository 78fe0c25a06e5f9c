"""``kompakt session undo|revert|replay|fork|export|edit|pin``: change and copy stored sessions."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kompakt.cli.compact import Out
from kompakt.cli.input import AsJson
from kompakt.cli.session.store_options import Id, StoreOptions, print_json, printable, read_id, store_command
from kompakt.errors import UsageError
from kompakt.model.messages import Json

if TYPE_CHECKING:
    from kompakt.session.session import Session


class ExportView(StrEnum):
    """Which messages of a session are exported."""

    FULL = "full"
    MODEL = "model"


CompactionId = Annotated[
    str | None, typer.Option("--compaction", metavar="C", help="Compaction id. Default: the newest compaction.")
]
Turn = Annotated[int, typer.Option("--turn", metavar="N", help="Number of a turn, starting at 1.")]
To = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="Output format: openai-chat, openai-responses, anthropic, gemini or bedrock. Default: as imported.",
    ),
]


@store_command
def undo(id: Id, store: StoreOptions, compaction: CompactionId = None, as_json: AsJson = False) -> None:
    """Undo the latest compaction, revert or edit.

    With --compaction, undo that compaction. Prints what was undone.
    """

    async def work(session: Session) -> str:
        return await session.undo(compaction)

    undone = store.run_session(id, work)
    if as_json:
        print_json({"session": read_id(id), "undone": undone})
    else:
        typer.echo(undone)


@store_command
def revert(id: Id, turn: Turn, store: StoreOptions, as_json: AsJson = False) -> None:
    """Return a session to its state after turn N.

    No message is deleted; `undo` reverses it.
    """

    async def work(session: Session) -> int:
        return await session.revert(turn)

    hidden = store.run_session(id, work)
    if as_json:
        print_json({"session": read_id(id), "turn": turn, "messages_taken_back": hidden})
    typer.echo(f"{hidden} messages reverted; the session is at turn {turn}", err=True)


@store_command
def replay(id: Id, turn: Turn, store: StoreOptions, to: To = None, out: Out = None) -> None:
    """Write a session from turn N on as a request body."""

    async def work(session: Session) -> Json:
        return await session.replay(turn, format=to)

    print_json(store.run_session(id, work), out)


@store_command
def fork(
    id: Id,
    store: StoreOptions,
    turn: Annotated[int | None, typer.Option("--turn", metavar="N", help="Copy the first N turns only.")] = None,
    new: Annotated[str | None, typer.Option("--id", metavar="NEW", help="Id of the fork. Default: generated.")] = None,
    as_json: AsJson = False,
) -> None:
    """Copy a session, or its first turns; print the new id."""

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
    """

    async def work(session: Session) -> Json:
        return await session.export(view=view.value, format=to, turns=turns)

    print_json(store.run_session(id, work), out)


@store_command
def edit(
    id: Id,
    store: StoreOptions,
    summary: Annotated[str | None, typer.Option("--summary", metavar="TEXT", help="The new summary.")] = None,
    file: Annotated[str | None, typer.Option("--file", metavar="F", help="File with the new summary.")] = None,
    compaction: CompactionId = None,
    as_json: AsJson = False,
) -> None:
    """Replace the summary of a compaction. `undo` reverses it."""
    if (summary is None) == (file is None):
        raise UsageError("pass the new summary with either --summary TEXT or --file F")
    text = summary if file is None else _read_text(file)

    async def work(session: Session) -> None:
        await session.edit_summary(text or "", compaction)

    store.run_session(id, work)
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
    """Pin a text, or remove a pin. Print all pinned texts."""

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
