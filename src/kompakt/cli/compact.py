"""``kompakt compact``: make a history fit into a token budget."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from kompakt import api, files
from kompakt.cli import config
from kompakt.cli.input import (
    AsJson,
    Budget,
    DryRun,
    File,
    Format,
    ModelName,
    Out,
    PolicyName,
    SessionName,
    check_out,
    open_history,
    option,
    skipped_records,
)
from kompakt.cli.output import console, progress, table
from kompakt.engine.compaction.report import Report
from kompakt.model.json import indented_json
from kompakt.model.limits import price_of

NOTHING_LEAVES = "No message is removed, so there is no summary."

IN_WORDS = {
    "Summarization": "old messages replaced by notes",
    "Truncation": "oldest messages hidden",
    "SlidingWindow": "all but the newest messages hidden",
    "ToolCallRemoval": "old tool calls hidden",
    "OutputPruning": "old tool outputs hidden",
    "OutputCollapsing": "old tool outputs as one line each",
    "Shortening": "long tool results cut",
    "SourceAttribution": "messages of ephemeral sources hidden",
    "TokenBudget": "several strategies",
    "OverflowByRounds": "round of the overflow shortened",
    "admission": "tool outputs shortened when they came",
    "repair": "history repaired",
    "fitting": "exact size of notes and pins",
    "floor": "smallest possible context",
}
"""What strategies and other steps do, as tables name them. A strategy of the user has its own name."""

Pins = Annotated[list[str] | None, option("pin", "TEXT", "Text that must be kept verbatim; repeatable.")]
ReportFile = Annotated[
    str | None, option("report", "FILE", "Write the report to this file, as JSON; also with --dry-run.")
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
    session: SessionName = None,
    as_json: AsJson = False,
) -> None:
    """Compact FILE so that it fits into a token budget.

    Exit 3 if it cannot fit. The result goes to standard output or OUT; a table of what was done goes to standard error.
    It is a request body. If FILE is a Claude Code or Codex transcript and OUT ends with .jsonl, it is a transcript that
    the agent can resume, for example with `claude --resume OUT`. FILE itself is never changed.

    With --dry-run the summary that would replace the removed messages is printed instead. With --json the report is
    printed; it contains the payload unless OUT is given.

    \b
    Examples:
      kompakt compact request.json --budget 50000 -o small.json
      kompakt compact request.json --budget 50000 --dry-run
      kompakt compact ~/.claude/projects/app/ID.jsonl -o small.jsonl
      kompakt compact opencode.db --session 2 --budget 50000 --json
    """
    history, loaded = open_history(file, format, session)
    check_out(loaded, file, out)
    with progress(len(history), "compacting") as bar:
        done = api.compact(
            history,
            budget,
            model=model,
            policy=config.policy(policy),
            pins=pin or (),
            progress=bar,
        )
    if report is not None:
        files.write(report, indented_json(done.report))
    cost = cost_of(done.report, model or history.model)
    if not dry_run and out is not None:
        is_file = files.is_writable(loaded) and out.endswith(".jsonl")
        data = files.rewrite(loaded, done.payload, compacted=True) if is_file else indented_json(done.payload)
        files.write(out, data)
    if as_json:
        payload = {} if dry_run or out is not None else {"payload": done.payload}
        shown = {"changed": done.changed, "report": done.report, "cost": cost, **skipped_records(loaded), **payload}
        typer.echo(indented_json(shown), nl=False)
    elif dry_run:
        typer.echo((done.report.notes or NOTHING_LEAVES).encode("utf-8", "replace"))
    elif out is None:
        typer.echo(indented_json(done.payload), nl=False)
    show(done.report, dry_run=dry_run, cost=cost, report_file=report)
    for problem in done.report.problems:
        typer.echo(f"left: {problem}", err=True)
    if done.report.problems:
        raise typer.Exit(1)


class PromptCost(msgspec.Struct, frozen=True):
    """The cost of one request's prompt in US dollars, without prompt cache."""

    model: str
    before: float
    after: float

    def __str__(self) -> str:
        return f"prompt of a request to {self.model}, uncached: ${self.before:.4f} before, ${self.after:.4f} after"


def cost_of(report: Report, model: str | None) -> PromptCost | None:
    """Return the cost before and after compaction, or ``None`` if the price of the model is unknown."""
    price = price_of(model) if model else None
    if model is None or price is None:
        return None
    return PromptCost(model, report.tokens_before * price.input, report.tokens_after * price.input)


def show(
    report: Report, *, dry_run: bool = False, cost: PromptCost | None = None, report_file: str | None = None
) -> None:
    from rich.text import Text  # late: `--help` does not need it

    page = console(err=True)
    numbers = table(
        f"policy {report.policy}: {report.reason}, budget {report.budget:,}",
        "",
        "messages",
        "tokens",
        numbers=("messages", "tokens"),
    )
    numbers.add_row("before", f"{report.messages_before:,}", f"{report.tokens_before:,}")
    for name, (times, saved) in _by_strategy(report).items():
        again = f", {times} times" if times > 1 else ""
        numbers.add_row(Text(f"  {IN_WORDS.get(name, name)}{again}"), "", f"{-saved:+,}")
    numbers.add_row("after", f"{report.messages_after:,}", f"{report.tokens_after:,}", style="bold")
    page.print(numbers)
    for step in report.steps:
        if step.failed:
            page.print(f"{step.strategy} failed and was rolled back: {step.failed}", markup=False)
    for action in report.actions if dry_run else ():
        page.print(f"{action.reference} {action.what}: {action.why}, {action.tokens:,} tokens", markup=False)
    if report.saved:
        saved = f"{report.saved:,} tokens {'would be saved' if dry_run else 'saved'}"
        page.print(f"{saved} in {report.seconds * 1000:.0f} ms; {report.recoverable}.")
    if cost is not None:
        page.print(str(cost), markup=False)
    if dry_run:
        written = "nothing" if report_file is None else f"nothing but the report, {report_file},"
        page.print(f"dry run: {written} was written", markup=False)


def _by_strategy(report: Report) -> dict[str, tuple[int, int]]:
    """Return the number of runs and the saved tokens of each strategy, in the order in which they first ran."""
    sums: dict[str, tuple[int, int]] = {}
    for step in report.steps:
        times, saved = sums.get(step.strategy, (0, 0))
        sums[step.strategy] = (times + 1, saved + step.tokens_before - step.tokens_after)
    return sums
