"""``kompakt eval``: measure a policy on recorded sessions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kompakt.cli.options import AsJson

if TYPE_CHECKING:
    from kompakt.evals.measures.score import ResultRow
    from kompakt.evals.report import Results
    from kompakt.evals.run import EvalSettings

Data = Annotated[Path, typer.Option("--data", metavar="DIR", help="Recorded sessions.", exists=True, file_okay=False)]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where results go; a stopped run continues there.")]
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Measure the first N sessions only.")]
Jobs = Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Processes to measure on.")]
Gate = Annotated[bool, typer.Option("--gate", help="Exit with 1 when a goal is missed.")]
PolicyName = Annotated[str, typer.Option("--policy", metavar="P", help="The policy to measure.")]
Admission = Annotated[
    str | None,
    typer.Option("--admission", metavar="P", help="Also measure what this policy saves when nothing is due."),
]

Bill = Annotated[bool, typer.Option("--bill", help="Also price whole sessions with a prompt cache.")]


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
    """Measure on recorded sessions what compaction still tells: facts, needs, precision, chains and the rest.

    A file that cannot be read is reported and skipped.
    """
    import msgspec  # late: `--help` should not pay for any of these

    from kompakt.evals.report import REPORT, gather, write
    from kompakt.evals.run import ROWS, EvalSettings
    from kompakt.version import __version__

    settings = EvalSettings(data=data, out=out, policy=policy, admission=admission, bill=bill, limit=limit, jobs=jobs)
    kept = _Kept()
    try:
        rows = _measured(settings, kept)
        results = gather(rows, version=__version__, policy=policy, skipped=kept.skipped)
        for path in write(results, rows, out):
            typer.echo(str(path), err=True)
    except KeyboardInterrupt:
        typer.echo(f"kompakt: interrupted; {kept.account(out / ROWS)}", err=True)
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(msgspec.json.encode(results))
    else:
        _show(results)
    if kept.skipped:
        typer.echo(f"{len(kept.skipped)} files or measures were skipped; {out / REPORT} lists them", err=True)
    if gate and any(goal.reached is False for goal in results.goals):
        raise typer.Exit(1)


class _Kept:
    """What a run has written so far, and what it had to skip."""

    def __init__(self) -> None:
        self.done = 0
        self.total = 0
        self.skipped: list[str] = []

    def account(self, folder: Path) -> str:
        """Say what an interrupted run leaves."""
        if not self.total:
            return "nothing was written"
        return f"{self.done} of {self.total} results are in {folder}; run it again to continue"


def _measured(settings: EvalSettings, kept: _Kept) -> list[ResultRow]:
    """Run with a bar on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from kompakt.evals.run import run

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def progress(done: int, total: int, what: str) -> None:
            kept.done, kept.total = done, total
            bar.update(task, completed=done, total=total, description=what)

        def report(line: str) -> None:
            kept.skipped.append(line)
            console.print(f"skipped: {line}", markup=False, highlight=False, soft_wrap=True)

        return run(settings, progress, report)


def _show(results: Results) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("metric", "goal", "measured", "reached", title=f"{results.sessions} sessions, {results.policy}")
    for goal in results.goals:
        table.add_row(goal.name, goal.goal, goal.found, {True: "yes", False: "no", None: ""}[goal.reached])
    Console().print(table)
