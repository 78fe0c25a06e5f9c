"""The command line: data on standard output, everything else on standard error.

Exit 0 good, 1 problems found, 2 wrong usage or unreadable input, 3 does not fit. One module a command, each of which
calls one library function; this module only gathers them and turns errors into one line.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from kompakt.cli import (
    check as checking,
)
from kompakt.cli import (
    compact as compacting,
)
from kompakt.cli import (
    config as configuration,
)
from kompakt.cli import (
    count as counting,
)
from kompakt.cli import (
    demo as demonstration,
)
from kompakt.cli import (
    doctor as doctoring,
)
from kompakt.cli import (
    eval as evaluating,
)
from kompakt.cli import (
    recall as recalling,
)
from kompakt.cli import (
    repair as repairing,
)
from kompakt.cli import (
    serve as serving,
)
from kompakt.cli.session import manage as sessions
from kompakt.errors import DoesNotFit, KompaktError
from kompakt.version import __version__


class _Commands(TyperGroup):
    """The commands; Typer itself would end an interrupted one without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("kompakt: interrupted; nothing was written", err=True)
            raise typer.Exit(130) from None


app = typer.Typer(
    name="kompakt",
    cls=_Commands,
    help="Keep LLM agent histories inside the context window: check, repair, count and compact them.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("check")(checking.check)
app.command("repair")(repairing.repair)
app.command("count")(counting.count)
app.command("compact")(compacting.compact)
app.command("recall")(recalling.recall)
app.command("doctor")(doctoring.doctor)
app.command("demo")(demonstration.demo)
app.command("eval")(evaluating.evaluate)
app.command("serve")(serving.serve)
app.add_typer(sessions.app)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"kompakt {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Show the version and stop.", callback=_show_version),
) -> None:
    del version
    if context.invoked_subcommand != "doctor":  # doctor itself reports what is wrong with the file
        context.default_map = configuration.defaults(context.command)


def main() -> None:
    """Run the command line; end with one line and an exit code, never with a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # histories may hold what no encoding can write
    try:
        app(prog_name="kompakt")
    except DoesNotFit as error:
        typer.echo(f"kompakt: {error}", err=True)
        raise SystemExit(3) from None
    except KompaktError as error:
        typer.echo(f"kompakt: {error}", err=True)
        raise SystemExit(2) from None
    except BrokenPipeError:
        # The reader of our output has gone; point it at nothing so that Python's own flush stays quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        typer.echo(f"kompakt: cannot write the result: {error.strerror or error}", err=True)
        raise SystemExit(2) from None
