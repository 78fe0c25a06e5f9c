"""``kompakt session undo|revert|replay|fork|export|edit|pin``: go back and aside in a stored session."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kompakt.cli.compact import Out
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
    with_session,
    written,
)
from kompakt.errors import UsageError
from kompakt.model.messages import Json

if TYPE_CHECKING:
    from kompakt.session.session import Session


class View(StrEnum):
    """What of a session is shown."""

    FULL = "full"
    MODEL = "model"


CompactionId = Annotated[
    str | None, typer.Option("--compaction", metavar="C", help="The compaction that is meant; else the newest.")
]
Turn = Annotated[int, typer.Option("--turn", metavar="N", help="A turn, counted from 1.")]
To = Annotated[
    str | None,
    typer.Option(
        "--format", help="openai-chat, openai-responses, anthropic, gemini or bedrock; else as it was imported."
    ),
]


def undo(
    id: Id,
    compaction: CompactionId = None,
    store: Url = URL,
    tenant: Tenant = "",
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Take back a compaction, or what was done last: a compaction, a revert or an edit. Print what that was."""

    async def work(session: Session) -> str:
        return await session.undo(compaction)

    undone = with_session(Place(store, tenant, key_file), id, work)
    if as_json:
        put({"session": read_id(id), "undone": undone})
    else:
        typer.echo(undone)


def revert(
    id: Id, turn: Turn, store: Url = URL, tenant: Tenant = "", key_file: KeyFile = None, as_json: AsJson = False
) -> None:
    """Return to where a session stood after N turns. Nothing is removed: undo takes it back."""

    async def work(session: Session) -> int:
        return await session.revert(turn)

    taken = with_session(Place(store, tenant, key_file), id, work)
    if as_json:
        put({"session": read_id(id), "turn": turn, "messages_taken_back": taken})
    typer.echo(f"{taken} messages taken back; the session stands at turn {turn}", err=True)


def replay(
    id: Id,
    turn: Turn,
    to: To = None,
    out: Out = None,
    store: Url = URL,
    tenant: Tenant = "",
    key_file: KeyFile = None,
) -> None:
    """Write a session from turn N on as a request body."""

    async def work(session: Session) -> Json:
        return await session.replay(turn, format=to)

    put(with_session(Place(store, tenant, key_file), id, work), out)


def fork(
    id: Id,
    turn: Annotated[int | None, typer.Option("--turn", metavar="N", help="Take the first N turns only.")] = None,
    new: Annotated[str | None, typer.Option("--id", metavar="NEW", help="The fork's id; else one is made.")] = None,
    store: Url = URL,
    tenant: Tenant = "",
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Begin another session with all of this one, or with its first turns. Print the new id."""

    async def work(session: Session) -> str:
        return (await session.fork(None if new is None else read_id(new), turn=turn)).id

    made = with_session(Place(store, tenant, key_file), id, work)
    if as_json:
        put({"session": read_id(id), "fork": made})
    else:
        typer.echo(written(made))


def export(
    id: Id,
    view: Annotated[View, typer.Option("--view", help="All that was said, or what the model sees.")] = View.FULL,
    to: To = None,
    turns: Annotated[int | None, typer.Option("--turns", metavar="K", min=1, help="The last K turns only.")] = None,
    out: Out = None,
    store: Url = URL,
    tenant: Tenant = "",
    key_file: KeyFile = None,
) -> None:
    """Write a session as a request body. What the model sees is mended where the format asks for it."""

    async def work(session: Session) -> Json:
        return await session.export(view=view.value, format=to, turns=turns)

    put(with_session(Place(store, tenant, key_file), id, work), out)


def edit(
    id: Id,
    summary: Annotated[str | None, typer.Option("--summary", metavar="TEXT", help="The new words.")] = None,
    file: Annotated[str | None, typer.Option("--file", metavar="F", help="A file that has the new words.")] = None,
    compaction: CompactionId = None,
    store: Url = URL,
    tenant: Tenant = "",
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Say the summary of a compaction in other words; undo takes that back."""
    if (summary is None) == (file is None):
        raise UsageError("give the new words with --summary TEXT or with --file F, one of them")
    text = summary if file is None else _text_of(file)

    async def work(session: Session) -> None:
        await session.edit_summary(text or "", compaction)

    with_session(Place(store, tenant, key_file), id, work)
    if as_json:
        put({"session": read_id(id), "summary": text or ""})
    typer.echo("the summary is changed", err=True)


def _text_of(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def pin(
    id: Id,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text that must survive every compaction as it is.")],
    remove: Annotated[bool, typer.Option("--remove", help="Let it go again.")] = False,
    store: Url = URL,
    tenant: Tenant = "",
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Pin a text, or let it go again; list what is pinned."""

    async def work(session: Session) -> tuple[str, ...]:
        if remove and text not in (await session.reader()).timeline.pins:
            raise UsageError(f"{written(text)} is not pinned; `kompakt session show` lists what is")
        await session.pin(text, pinned=not remove)
        return (await session.reader()).timeline.pins

    pins = with_session(Place(store, tenant, key_file), id, work)
    if as_json:
        put({"session": read_id(id), "pins": pins})
        return
    for one in pins:
        typer.echo(written(one))
