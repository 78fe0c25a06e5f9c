"""``kompakt mcp``: serve the session of a coding agent to that agent over MCP."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kompakt.cli.store_options import STORE, KeyFile, Tenant, print_json, read_id, read_key, require_store
from kompakt.errors import UsageError
from kompakt.version import install_command

if TYPE_CHECKING:
    from kompakt.hosts.mcp.directory import SessionDirectory

Write = Annotated[bool, typer.Option("--write", help="Also offer the tool `manage`: pin, unpin, compact, undo.")]
Http = Annotated[
    int | None,
    typer.Option("--http", metavar="PORT", help="Serve over HTTP on 127.0.0.1 instead of stdio; 0 selects a port."),
]
StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="STORE",
        show_default=False,
        help=f"Serve sessions of this store, not the transcripts of this folder: {STORE}",
    ),
]
SessionId = Annotated[
    str | None,
    typer.Option("--session", metavar="ID", envvar="KOMPAKT_SESSION", help="Serve only this session."),
]
TranscriptPath = Annotated[
    str | None, typer.Option("--transcript", metavar="FILE", help="Serve only the session in this file.")
]
Show = Annotated[bool, typer.Option("--show", help="Print which session would be served, with its status, and exit.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON with --show.")]


def mcp(
    write: Write = False,
    http: Http = None,
    store: StoreUrl = None,
    session: SessionId = None,
    transcript: TranscriptPath = None,
    show: Show = False,
    as_json: AsJson = False,
    tenant: Tenant = "",
    key_file: KeyFile = None,
) -> None:
    """Serve the session of a coding agent over MCP: recall, ledger, status.

    An agent starts this command and talks to it over stdio. The session is the newest transcript of the agent for the
    working directory, unless an option names another. Sessions are only read, except with --write.

    \b
    Examples:
      claude mcp add kompakt -- kompakt mcp
      codex mcp add kompakt -- kompakt mcp
      kompakt mcp --show
      kompakt mcp --store agent.db --session task-7 --write
      kompakt mcp --http 8485
    """
    folder = Path.cwd()
    if transcript is not None and session is not None:
        raise UsageError("--transcript and --session name different sessions; give one of them")
    if transcript is not None:
        transcript = os.path.abspath(transcript)
        if not os.path.exists(transcript) and not os.path.exists(transcript.rpartition("#")[0]):
            raise UsageError(f"there is no file {transcript!r}")

    def create_directory() -> SessionDirectory:
        from kompakt.hosts.mcp.sessions import LocalSessions, ServedStore  # late: the engine is slow to import

        return LocalSessions(
            folder=folder,
            environ=os.environ,
            store=ServedStore(store, tenant, read_key(key_file)) if store is not None else None,
            session=read_id(session) if session is not None else None,
            transcript=transcript,
        )

    if show:
        if store is not None:
            require_store(store)
        _show(create_directory, as_json=as_json)
    else:
        _serve(create_directory, write=write, port=http)


def _serve(create_directory: Any, *, write: bool, port: int | None) -> None:
    gc.disable()  # the library creates thousands of objects when it is imported; collecting takes a tenth of that time
    try:
        from kompakt.hosts.mcp.server import create_server
        from kompakt.hosts.mcp.transports import run_http, run_stdio
    except ImportError as error:
        raise UsageError(f"the MCP server needs {error.name}; install it with: {install_command('mcp')}") from None
    finally:
        gc.enable()
    from kompakt.hosts.mcp.directory import LateDirectory

    def create() -> Any:
        return create_server(LateDirectory(create_directory), write=write)

    if port is not None:
        run_http(create, port, ready=lambda url: typer.echo(f"kompakt: MCP server at {url}", err=True))
        return
    if sys.stdin.isatty():
        typer.echo("kompakt: MCP server on standard input; an agent starts it. Press Ctrl-C to stop.", err=True)
    run_stdio(create)


def _show(create_directory: Any, *, as_json: bool) -> None:
    import asyncio  # late: serving imports its own

    from kompakt.hosts.mcp.directory import Caller

    async def work() -> tuple[str, Any]:
        directory: SessionDirectory = create_directory()
        try:
            session = await directory.find(None, Caller())
            return session.origin, await session.status()
        finally:
            await directory.close()

    origin, status = asyncio.run(work())
    if as_json:
        import msgspec

        print_json({"origin": origin, **msgspec.to_builtins(status), "fullness": status.fullness})
        return
    window = f" of {status.window:,} ({status.fullness:.0%})" if status.window else ""
    typer.echo(
        f"{origin}: {status.tokens:,} tokens{window}, {status.messages:,} messages, {status.recallable:,} to recall"
    )


app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command()(mcp)
