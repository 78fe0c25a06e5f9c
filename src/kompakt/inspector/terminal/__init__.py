"""Sessions in a terminal: an interactive inspector, and the same tables for pipes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kompakt.errors import UsageError
from kompakt.version import install_command

if TYPE_CHECKING:
    from rich.console import Console

    from kompakt.view.inspection import Inspection

MOST_SESSIONS = 1_000
"""Sessions that a printed list has at most."""


async def run(inspection: Inspection, *, session: str | None = None) -> None:
    """Run the interactive inspector until the person quits.

    Raises:
        UsageError: Textual is not installed.
    """
    try:
        from kompakt.inspector.terminal.app import InspectorApp  # late: the extra may be missing
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed; run: {install_command('tui')}") from None
    await InspectorApp(inspection, session or await inspection.only()).run_async()


async def print_tables(inspection: Inspection, *, session: str | None = None, console: Console | None = None) -> None:
    """Print the list of sessions; of one session its size, growth, context, and every compaction."""
    from rich.console import Console  # late: only needed to print

    from kompakt.inspector.terminal import report

    if console is None:
        console = Console(highlight=False)
    session = session or await inspection.only()
    if session is None:
        await report.print_list(inspection, console, MOST_SESSIONS)
    else:
        await report.print_session(inspection, session, console)
