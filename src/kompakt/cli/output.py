"""What the commands print besides data: tables, wrapped lines and progress.

Tables and lines fit the terminal, or 80 columns if there is none. Progress is shown on standard error, and only on a
terminal. Rich and `NO_COLOR`, `TERM` and `COLUMNS` decide about colours and width.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID
    from rich.table import Table

MANY_MESSAGES = 2_000
"""Messages from which progress is shown: fewer take less than a second."""

MANY_BYTES = 20_000_000
"""Size of a file from which progress is shown."""

_MIN_DETAIL = 20
"""Fewest columns for the last part of a line, in very narrow terminals."""

_INDENT = 11
"""Columns before a text that begins below its label."""

_PROGRAM = r"(?:pip|uv|pipx|python[\d.]*|kompakt)"
_COMMAND_AT_END = re.compile(rf"(?<=:) ((?:(?:\S*/)?{_PROGRAM}|'[^']*/{_PROGRAM}') [^;]+)$")
"""A command after a colon at the end of a message; its program may have a path, which is quoted if it has spaces."""


def console(*, err: bool = False) -> Console:
    from rich.console import Console  # late: `--help` does not need it

    return Console(stderr=err, highlight=False)


def table(title: str, *columns: str, numbers: tuple[str, ...] = ()) -> Table:
    """Return an empty table, as wide as its title; the columns in ``numbers`` are aligned to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = Text(title)
    made = Table(title=shown, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    made.min_width = min(shown.cell_len, console().width)
    for column in columns:
        is_number = column in numbers
        made.add_column(column, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    return made


def print_line(label: str, detail: str) -> None:
    """Print a label and a text that continues below itself where the line is full.

    A path is never broken, because people copy it. If it does not fit beside the label, or if little would, the text
    begins below and uses the whole line. A command at the end has a line of its own, as in ``wrapped``.
    """
    detail, command = _split_command(with_short_paths(detail))
    columns, longest = shutil.get_terminal_size().columns, max(map(len, detail.split()), default=0)
    beside = max(_MIN_DETAIL, columns - len(label))
    is_beside = len(detail) <= beside or (longest <= beside and len(label) <= columns // 2)
    indent = len(label) if is_beside else max(0, min(_INDENT, columns - longest))
    width = max(_MIN_DETAIL, columns - indent)
    lines = textwrap.wrap(detail, width, break_on_hyphens=False, break_long_words=False) or [""]
    below = textwrap.indent("\n".join(lines), " " * indent)
    typer.echo(label + below.lstrip() if is_beside else f"{label.rstrip()}\n{below}")
    if command:
        typer.echo(f"{' ' * max(0, min(_INDENT, columns - len(command)))}{command}")


def wrapped(text: str) -> str:
    """Wrap a message for the terminal. A command at its end gets a line of its own, which can be copied."""
    before, command = _split_command(with_short_paths(text))
    lines = textwrap.wrap(before, shutil.get_terminal_size().columns, break_on_hyphens=False, break_long_words=False)
    return "\n".join([*lines, *([f"  {command}"] if command else ())])


def _split_command(text: str) -> tuple[str, str]:
    """Return a message and the command at its end; empty if it has none."""
    found = _COMMAND_AT_END.search(text)
    return (text[: found.start()], found[1]) if found else (text, "")


def with_short_paths(text: str) -> str:
    """Write paths in the home folder with ``~``, where a shell reads them like that: not after a quote or ``=``."""
    home = os.path.expanduser("~")
    if home in ("~", os.sep):
        return text
    return re.sub(rf"(?<![^\s(]){re.escape(home)}(?![^/\s,;:)])", "~", text)


# --- progress ----------------------------------------------------------------------------------------------------


@contextmanager
def waiting(what: str, *, when: bool = True) -> Generator[None]:
    """Show progress of unknown duration."""
    if not when or not sys.stderr.isatty():
        yield
        return
    from rich.text import Text

    with console(err=True).status(Text(what)):
        yield


@contextmanager
def progress(messages: int, what: str) -> Generator[Callable[[int, int], None] | None]:
    """Show a progress bar for a long history."""
    if messages < MANY_MESSAGES or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import Progress

    with Progress(console=console(err=True), transient=True) as bar:
        task = bar.add_task(f"{what}: checking", total=None)
        yield lambda seen, total: advance(bar, task, what, seen, total)


def advance(bar: RichProgress, task: TaskID, what: str, seen: int, total: int) -> None:
    """Update a progress bar.

    The checks before the first message and the fitting after the last one take an unknown time, so the bar pulses then.
    """
    if seen < total:
        bar.update(task, total=total, completed=seen, description=what)
    else:
        next(one for one in bar.tasks if one.id == task).total = None  # without a total the bar pulses
        bar.update(task, description=f"{what}: finishing")
