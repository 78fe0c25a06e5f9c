"""The command line: data on standard output, everything else on standard error.

Exit codes: 0 success, 1 problems found, 2 wrong usage or unreadable input, 3 does not fit. Each command has its own
module and calls one library function. This module registers the commands and prints errors as one line.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from kompakt.cli import check, compact, config, count, demo, doctor, recall, repair, serve, session
from kompakt.cli.eval import evaluate
from kompakt.errors import DoesNotFit, KompaktError
from kompakt.version import __version__


class _Commands(TyperGroup):
    """Reports an interruption, which Typer would end without a message."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("kompakt: interrupted; nothing was written", err=True)
            raise typer.Exit(130) from None


app = typer.Typer(
    name="kompakt",
    cls=_Commands,
    help="Keep LLM agents inside the context window: check, repair, count, compact and search their histories.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("check")(check.check)
app.command("repair")(repair.repair)
app.command("count")(count.count)
app.command("compact")(compact.compact)
app.command("recall", context_settings={"ignore_unknown_options": True})(recall.recall)  # a query may start with "-"
app.command("doctor")(doctor.doctor)
app.command("demo")(demo.demo)
app.command("eval")(evaluate)
app.command("serve", cls=serve.ServeCommand)(serve.serve)
app.add_typer(session.app)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"kompakt {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", callback=_show_version),
) -> None:
    del version
    if context.invoked_subcommand != "doctor":  # doctor reports the problems of the file itself
        context.default_map = config.defaults(context.command)


def main() -> None:
    """Run the command line. Errors are printed as one line, without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # histories may contain lone surrogates
    try:
        app(prog_name="kompakt")
    except DoesNotFit as error:
        typer.echo(f"kompakt: {error}", err=True)
        raise SystemExit(3) from None
    except KompaktError as error:
        typer.echo(f"kompakt: {error}", err=True)
        raise SystemExit(2) from None
    except BrokenPipeError:
        # The reader has closed the pipe. Redirect stdout, so that the flush at exit does not fail as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        typer.echo(f"kompakt: cannot write the output: {error.strerror or error}", err=True)
        raise SystemExit(2) from None
