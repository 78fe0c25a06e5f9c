"""``kompakt compact``: make a history fit and say what that took."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from kompakt import api, files
from kompakt.cli import config as configuration
from kompakt.cli.input import open_history
from kompakt.cli.options import AsJson, File, Format
from kompakt.engine.compaction.report import Report
from kompakt.model.limits import price_of

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_BIG = 2_000
"""Messages from which a progress bar is worth its line."""

NOTHING_LEAVES = "Nothing leaves the history, so the model gets no text in its place."

Budget = Annotated[
    int | None,
    typer.Option(
        "--budget",
        metavar="N",
        min=1,
        envvar="KOMPAKT_BUDGET",
        help="Tokens to fit into; else the model's. About half of them are used right after a compaction, so that the "
        "next steps fit as well.",
    ),
]
ModelName = Annotated[
    str | None, typer.Option("--model", metavar="M", envvar="KOMPAKT_MODEL", help="Count for this model.")
]
PolicyName = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="P",
        envvar="KOMPAKT_POLICY",
        help="default, conservative, aggressive, window, or one from kompakt.toml.",
    ),
]
Pins = Annotated[list[str] | None, typer.Option("--pin", metavar="TEXT", help="A text that must survive as it is.")]
Out = Annotated[str | None, typer.Option("-o", "--out", metavar="OUT", help="Write the result here instead.")]
ReportFile = Annotated[str | None, typer.Option("--report", metavar="FILE", help="Write the report here, as JSON.")]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Show what would be done, the new text and costs; write no result."),
]


def compact(
    file: File,
    budget: Budget = None,
    model: ModelName = None,
    policy: PolicyName = "default",
    pin: Pins = None,
    out: Out = None,
    report: ReportFile = None,
    dry_run: DryRun = False,
    format: Format = None,
    as_json: AsJson = False,
) -> None:
    """Make FILE fit into a budget. A table on standard error says what was done. Exit 3 when it cannot fit.

    A dry run writes the text that the model would get in the place of what leaves, and what a request costs. With
    --json the report is written; the payload is in it unless it goes to OUT.
    """
    history, _ = open_history(file, format)
    with progress(len(history), "compacting") as bar:
        done = api.compact(
            history,
            budget,
            model=model,
            policy=configuration.policy(policy),
            pins=pin or (),
            progress=bar,
        )
    if report is not None:
        files.write(report, files.encode(done.report))
    cost = cost_of(done.report, model or history.model)
    if not dry_run and out is not None:
        files.write(out, files.encode(done.payload))
    if as_json:
        payload = {} if dry_run or out is not None else {"payload": done.payload}
        typer.echo(files.encode({"changed": done.changed, "report": done.report, "cost": cost, **payload}), nl=False)
    elif dry_run:
        typer.echo((done.report.told or NOTHING_LEAVES).encode("utf-8", "replace"))
    elif out is None:
        typer.echo(files.encode(done.payload), nl=False)
    show(done.report, actions=dry_run, cost=cost)
    for problem in done.report.problems:
        typer.echo(f"left: {problem}", err=True)
    if done.report.problems:
        raise typer.Exit(1)


@contextmanager
def progress(messages: int, what: str) -> Generator[Callable[[int, int], None] | None]:
    """Show a progress bar on standard error for long histories, when somebody is looking."""
    if messages < _BIG or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # late: `--help` should not pay for it
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{what}: checking", total=None)
        yield lambda seen, total: advance(bar, task, what, seen, total)


def advance(bar: RichProgress, task: TaskID, what: str, seen: int, total: int) -> None:
    """Move a bar; before the first message and after the last it only says that work is under way.

    How long it takes to check a history and to fit it at the end is not known, so no share of it is claimed.
    """
    if seen < total:
        bar.update(task, total=total, completed=seen, description=what)
    else:
        next(one for one in bar.tasks if one.id == task).total = None  # a bar without a total pulses
        bar.update(task, description=f"{what}: finishing")


class Cost(msgspec.Struct, frozen=True):
    """What the prompt of one request costs, in US dollars, when no part of it is cached."""

    model: str
    before: float
    after: float

    def __str__(self) -> str:
        return f"prompt of a request to {self.model}, uncached: ${self.before:.4f} before, ${self.after:.4f} after"


def cost_of(report: Report, model: str | None) -> Cost | None:
    """Price a request before and after; ``None`` when the price of the model is not known."""
    price = price_of(model) if model else None
    if model is None or price is None:
        return None
    return Cost(model, report.tokens_before * price.input, report.tokens_after * price.input)


def show(report: Report, *, actions: bool = False, cost: Cost | None = None) -> None:
    """Print before and after, step by step, on standard error."""
    from rich.console import Console  # late: `--help` should not pay for it
    from rich.table import Table

    console = Console(stderr=True, highlight=False)
    table = Table(title=f"{report.policy}: {report.reason}, budget {report.budget:,}", title_justify="left")
    for column in ("", "messages", "tokens"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row("before", f"{report.messages_before:,}", f"{report.tokens_before:,}")
    for name, (times, saved) in _by_strategy(report).items():
        table.add_row(f"  {name} x {times}", "", f"{-saved:+,}")
    table.add_row("after", f"{report.messages_after:,}", f"{report.tokens_after:,}", style="bold")
    console.print(table)
    for step in report.steps:
        if step.failed:
            console.print(f"{step.strategy} failed and was undone: {step.failed}", markup=False)
    for action in report.actions if actions else ():
        console.print(f"{action.reference} {action.what}: {action.why}, {action.tokens:,} tokens", markup=False)
    if report.saved:
        console.print(f"{report.saved:,} tokens saved in {report.seconds * 1000:.0f} ms; {report.recoverable}.")
    if cost is not None:
        console.print(str(cost), markup=False)


def _by_strategy(report: Report) -> dict[str, tuple[int, int]]:
    """Sum the steps up by strategy, in the order they first ran."""
    sums: dict[str, tuple[int, int]] = {}
    for step in report.steps:
        times, saved = sums.get(step.strategy, (0, 0))
        sums[step.strategy] = (times + 1, saved + step.tokens_before - step.tokens_after)
    return sums
