"""All commands of ``kompakt``, registered. Each has its own module and calls one library function."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from kompakt.cli import check, compact, config, count, demo, doctor, install, mcp, recall, repair, serve, session
from kompakt.cli.eval import evaluate
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
app.command("install")(install.install)
app.command("hook", hidden=True)(install.hook)
app.command("doctor")(doctor.doctor)
app.command("demo")(demo.demo)
app.command("eval")(evaluate)
app.command("serve", cls=serve.ServeCommand)(serve.serve)
app.command("mcp")(mcp.mcp)
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
