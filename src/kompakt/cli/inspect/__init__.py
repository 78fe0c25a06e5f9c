"""``kompakt inspect``: show sessions in the browser, in the terminal, as an HTML file or as JSON."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kompakt.cli.input import AsJson, option
from kompakt.cli.output import wrapped
from kompakt.cli.store_options import (
    KeyFile,
    OtherStore,
    Tenant,
    own_stores,
    print_json,
    read_id,
    read_key,
    refuse_both,
)
from kompakt.errors import UsageError
from kompakt.version import install_command, own_program

if TYPE_CHECKING:
    from kompakt.view.inspection import Inspection

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="FILE",
        show_default=False,
        help="A transcript or request body that kompakt reads. With --store: nothing.",
    ),
]
Port = Annotated[int, option("port", "P", "Port on 127.0.0.1; 0 selects a free one.", min=0, max=65_535)]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Print the URL only; open no browser.")]
Write = Annotated[bool, typer.Option("--write", help="Allow changes: pin, undo, redo, compact, edit, delete.")]
Terminal = Annotated[bool, typer.Option("--terminal", help="Show the sessions in the terminal.")]
Once = Annotated[bool, typer.Option("--once", help="Print the tables of --terminal once, as into a pipe.")]
Html = Annotated[str | None, option("html", "OUT", "Write one self-contained HTML file.")]
Redact = Annotated[bool, typer.Option("--redact", help="With --html: leave out texts; keep sizes, kinds and tools.")]
SessionId = Annotated[str | None, option("session", "ID", "Show this session.")]


def inspect(
    context: typer.Context,
    target: Target = None,
    store: OtherStore = None,
    port: Port = 0,
    no_browser: NoBrowser = False,
    write: Write = False,
    terminal: Terminal = False,
    once: Once = False,
    html: Html = None,
    redact: Redact = False,
    session: SessionId = None,
    as_json: AsJson = False,
    tenant: Tenant = "",
    key_file: KeyFile = None,
) -> None:
    """Show what sessions consist of, and what their compactions removed.

    Opens a page in the browser that only this machine can read, with the URL that is printed. Sessions are only read
    unless --write is given.

    \b
    Examples:
      kompakt inspect ~/.claude/projects/app/ID.jsonl
      kompakt inspect --store kompakt.db --session ID --terminal
      kompakt inspect request.json --html session.html --redact
    """
    refuse_both(context, target)
    shown = store if target is None else target  # a store in place of FILE is accepted as well
    if not shown:
        command = f"{own_program()} inspect --store"
        examples = [f"; for the sessions of {owner}: {command} {own}" for owner, own in own_stores().items()]
        raise UsageError(
            f"name a file or a store: kompakt inspect FILE, or kompakt inspect --store STORE{''.join(examples)}"
        )
    terminal = terminal or once
    chosen = [name for name, given in (("--terminal", terminal), ("--html", html), ("--json", as_json)) if given]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} cannot be combined; choose one")
    if redact and html is None:
        raise UsageError("--redact needs --html OUT: the other forms are not meant to be passed on")
    key = read_key(key_file)
    id = None if session is None else read_id(session)

    async def work() -> None:
        from kompakt.store import store_url  # late: `--help` does not need these
        from kompakt.view.inspection import open_inspection

        opened = shown if target else store_url(shown)
        async with await open_inspection(opened, write=write, tenant=tenant, key=key) as inspection:
            if id is not None:
                await inspection.version(id)  # a wrong id is reported now
            if as_json:
                print_json(await _as_json(inspection, id))
            elif html is not None:
                await _extra("export", "inspector").write_html(inspection, html, session=id, redact=redact)
                typer.echo(f"{html} written", err=True)
            elif terminal and (once or not (sys.stdin.isatty() and sys.stdout.isatty())):
                await _extra("terminal", "tui").print_tables(inspection, session=id)
            elif terminal:
                await _extra("terminal", "tui").run(inspection, session=id)
            else:
                first = id or await inspection.only()
                await _serve(inspection, port, first, browse=not no_browser and sys.stdout.isatty())

    try:
        asyncio.run(work())
    except KeyboardInterrupt:
        typer.echo("", err=True)
        raise typer.Exit(130 if terminal or html or as_json else 0) from None


def _extra(module: str, extra: str) -> Any:
    """Import a part of the inspector that needs an extra."""
    try:
        return import_module(f"kompakt.inspector.{module}")
    except ImportError as error:
        raise UsageError(f"this needs {error.name}; install it with: {install_command(extra)}") from None


async def _serve(inspection: Inspection, port: int, session: str | None, *, browse: bool) -> None:
    server = _extra("server", "inspector").InspectorServer(inspection, port=port)
    url = server.url_of(session)

    def started() -> None:
        typer.echo(url)
        mode = "Changes are allowed." if inspection.write else "Read only; --write allows changes."
        typer.echo(
            wrapped(f"Only this machine can open it, with this URL. {mode} Ctrl-C ends the inspector."), err=True
        )
        if browse:
            import webbrowser

            webbrowser.open(url)

    await server.run(started)


async def _as_json(inspection: Inspection, session: str | None) -> Any:
    """Return what the pages show, as values: of one session, or the list of all."""
    if session is None:
        return await inspection.sessions(limit=500)
    detail = await inspection.session(session)
    compactions = [await inspection.compaction(session, one.id) for one in detail.compactions]
    return {
        "session": detail,
        "growth": await inspection.growth(session),
        "context": await inspection.context(session),
        "compactions": compactions,
    }
