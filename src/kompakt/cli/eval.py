"""``kompakt eval``: measure what a policy preserves on recorded sessions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kompakt.cli.input import AsJson

if TYPE_CHECKING:
    from kompakt.evals.measures.score import ResultRow
    from kompakt.evals.report import Results
    from kompakt.evals.run import EvalSettings

Data = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="Folder with recorded sessions.", exists=True, file_okay=False)
]
Out = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder for the results; an interrupted run continues there.")
]
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Measure only the first N sessions.")]
Jobs = Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Number of worker processes.")]
Gate = Annotated[bool, typer.Option("--gate", help="Exit 1 if a goal is missed.")]
PolicyName = Annotated[str, typer.Option("--policy", metavar="P", help="Policy to measure.")]
Admission = Annotated[
    str | None,
    typer.Option("--admission", metavar="P", help="Also measure what this policy saves before a compaction is due."),
]

Bill = Annotated[bool, typer.Option("--bill", help="Also calculate the price of whole sessions with a prompt cache.")]


def evaluate(
    data: Data,
    out: Out = Path("eval-out"),
    policy: PolicyName = "default",
    admission: Admission = None,
    bill: Bill = False,
    limit: Limit = None,
    jobs: Jobs = 2,
    gate: Gate = False,
    as_json: AsJson = False,
) -> None:
    """Measure a policy on recorded sessions.

    Reports which facts, names and decisions are still available after compaction, and how many tokens it saves.
    Unreadable files are reported and skipped.
    """
    import msgspec  # late: `--help` does not need these

    from kompakt.evals.report import REPORT, gather, write
    from kompakt.evals.run import ROWS, EvalSettings
    from kompakt.version import __version__

    settings = EvalSettings(data=data, out=out, policy=policy, admission=admission, bill=bill, limit=limit, jobs=jobs)
    state = _Progress()
    try:
        rows = _measured(settings, state)
        results = gather(rows, version=__version__, policy=policy, skipped=state.skipped)
        for path in write(results, rows, out):
            typer.echo(str(path), err=True)
    except KeyboardInterrupt:
        typer.echo(f"kompakt: interrupted; {state.account(out / ROWS)}", err=True)
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(msgspec.json.encode(results))
    else:
        _show(results)
    if state.skipped:
        typer.echo(f"{len(state.skipped)} files or measures were skipped; {out / REPORT} lists them", err=True)
    if gate and any(goal.reached is False for goal in results.goals):
        raise typer.Exit(1)


class _Progress:
    """What a run has completed and skipped so far."""

    def __init__(self) -> None:
        self.done = 0
        self.total = 0
        self.skipped: list[str] = []

    def account(self, folder: Path) -> str:
        if not self.total:
            return "nothing was written"
        return f"{self.done} of {self.total} results are in {folder}; run the command again to continue"


def _measured(settings: EvalSettings, state: _Progress) -> list[ResultRow]:
    """Run with a progress bar on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from kompakt.evals.run import run

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def progress(done: int, total: int, what: str) -> None:
            state.done, state.total = done, total
            bar.update(task, completed=done, total=total, description=what)

        def report(line: str) -> None:
            state.skipped.append(line)
            console.print(f"skipped: {line}", markup=False, highlight=False, soft_wrap=True)

        return run(settings, progress, report)


def _show(results: Results) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("metric", "goal", "measured", "reached", title=f"{results.sessions} sessions, {results.policy}")
    for goal in results.goals:
        table.add_row(goal.name, goal.goal, goal.found, {True: "yes", False: "no", None: ""}[goal.reached])
    Console().print(table)
