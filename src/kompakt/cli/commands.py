"""All commands of ``kompakt``. Each has its own module, which is imported when the command is used.

Importing all of them takes half a second, which is too long for ``--help`` and for completion in a shell. So the list
of commands needs no import.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, MutableMapping
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from kompakt.cli import config
from kompakt.errors import UsageError, nearest
from kompakt.version import __version__, own_program

SHELLS = ("bash", "zsh", "fish", "powershell")

EXIT_CODES = (
    "Exit codes: 0 success; 1 problems found, or nothing found; 2 wrong usage or unreadable input; "
    "3 the history cannot fit; 130 interrupted."
)


class CommandEntry(NamedTuple):
    """Where a command is defined, and its line in the list of commands."""

    target: str
    """``module:name`` of a function or of a ``Typer`` object."""
    summary: str
    """The first sentence of its docstring, or the start of it: `--help` shows it on one line of 80 columns."""
    cls: str | None = None
    """Name of its class in the module, if it is not the usual one."""
    ignore_unknown_options: bool = False
    hidden: bool = False

    def load(self, name: str) -> Any:
        """Import the command."""
        module = import_module(self.target.partition(":")[0])
        found = getattr(module, self.target.partition(":")[2])
        if isinstance(found, typer.Typer):
            return get_command(found)
        alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        alone.command(
            name,
            cls=getattr(module, self.cls) if self.cls else None,
            context_settings={"ignore_unknown_options": self.ignore_unknown_options},
            hidden=self.hidden,
        )(found)
        return get_command(alone)


COMMANDS = {
    "install": CommandEntry(
        "kompakt.cli.install:install", "Install kompakt into a coding agent, or remove it with --undo."
    ),
    "serve": CommandEntry(
        "kompakt.cli.serve:serve", "Run the gateway, a compacting proxy for LLM APIs.", cls="ServeCommand"
    ),
    "mcp": CommandEntry("kompakt.cli.mcp:mcp", "Serve the session of a coding agent over MCP."),
    "compact": CommandEntry("kompakt.cli.compact:compact", "Compact FILE so that it fits into a token budget."),
    "recall": CommandEntry(  # a query may start with "-"
        "kompakt.cli.recall:recall", "Search FILE or a store, or restore a reference.", ignore_unknown_options=True
    ),
    "inspect": CommandEntry("kompakt.cli.inspect:inspect", "Show what sessions consist of."),
    "check": CommandEntry("kompakt.cli.check:check", "List what a provider would reject in FILE."),
    "repair": CommandEntry("kompakt.cli.repair:repair", "Repair FILE so that the provider accepts it."),
    "count": CommandEntry("kompakt.cli.count:count", "Count the tokens of FILE by role, kind and tool."),
    "session": CommandEntry("kompakt.cli.session:app", "Manage the sessions in a store."),
    "eval": CommandEntry("kompakt.cli.eval:evaluate", "Measure a policy on recorded sessions."),
    "fleet": CommandEntry("kompakt.cli.fleet:app", "Run a job on many sessions."),
    "doctor": CommandEntry("kompakt.cli.doctor:doctor", "Check packages, configuration, store and providers."),
    "demo": CommandEntry("kompakt.cli.demo:demo", "Show what kompakt does with a session that no longer fits."),
    "completion": CommandEntry(  # hidden: `--install-completion` does what most people want
        "kompakt.cli.commands:completion", "Print the completion script of a shell.", hidden=True
    ),
    "hook": CommandEntry(
        "kompakt.cli.install:hook", "Answer an event of a coding agent, with JSON on standard input.", hidden=True
    ),
}
"""Commands in the order of `kompakt --help`: first those that a new user needs."""


class _LazyCommands(MutableMapping[str, Any]):
    """The commands by name. Reading one imports its module."""

    def __init__(self, commands: dict[str, Any]) -> None:
        self._loaded = dict(commands)
        self._names = list(dict.fromkeys([*COMMANDS, *commands]))

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded and name in COMMANDS:
            self._loaded[name] = COMMANDS[name].load(name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command
        self._names = list(dict.fromkeys([*self._names, name]))

    def __delitem__(self, name: str) -> None:
        self._loaded.pop(name, None)
        self._names.remove(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Commands(TyperGroup):
    """Loads commands when they are used, and reports an interruption, which Typer would end without a message."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _LazyCommands(dict(self.commands))
        self._is_list = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = COMMANDS.get(cmd_name)
        if self._is_list and entry is not None:
            return TyperCommand(cmd_name, help=entry.summary, hidden=entry.hidden, rich_markup_mode=None)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in ("uninstall", "remove"):
            agent = next((name for name in args[1:] if not name.startswith("-")), "AGENT")
            raise UsageError(
                f"there is no command {args[0]!r}; to remove a plugin: {own_program()} install {agent} --undo"
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with self._listing():
            super().format_commands(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        with self._listing():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _listing(self) -> Generator[None]:
        """Let ``get_command`` return names and summaries only."""
        self._is_list = True
        try:
            yield
        finally:
            self._is_list = False

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("kompakt: interrupted; nothing was written", err=True)
            raise typer.Exit(130) from None


app = typer.Typer(
    name="kompakt",
    cls=_Commands,
    help="Keep LLM agents inside the context window.\n\n"
    "\b\nExamples:\n  kompakt demo\n  kompakt install claude-code\n"
    "  kompakt compact request.json --budget 50000 -o small.json",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


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


def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help=f"One of {', '.join(SHELLS)}.")],
) -> None:
    """Print the completion script of a shell.

    `kompakt --install-completion` installs it for the current shell.

    \b
    Examples:
      kompakt completion bash > ~/.local/share/bash-completion/completions/kompakt
      kompakt completion fish > ~/.config/fish/completions/kompakt.fish
    """
    if shell not in SHELLS:
        raise UsageError(f"unknown shell {shell!r}; {nearest(shell, SHELLS)}")
    os.environ["_KOMPAKT_COMPLETE"] = f"source_{shell}"  # Typer prints the script and exits
    app([], prog_name="kompakt")
