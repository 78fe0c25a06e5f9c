"""``kompakt eval``: measure what a policy preserves on recorded sessions, by counts or by an exam."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kompakt.cli.input import AsJson, folder, option
from kompakt.cli.output import console, table
from kompakt.errors import UsageError, plural
from kompakt.version import own_program

if TYPE_CHECKING:
    from kompakt.agent.client import ChatClient
    from kompakt.evals.exam import ExamScores, ExamSettings
    from kompakt.evals.report import Results
    from kompakt.evals.run import EvalSettings

Data = Annotated[Path | None, folder("data", "DIR", "Folder with recorded sessions.")]
Out = Annotated[
    Path | None,
    option("out", "DIR", "Folder for the results; an interrupted run continues there. Default: eval-out, or exam-out."),
]
Limit = Annotated[int | None, option("limit", "N", "Measure only the first N sessions.", min=1)]
Jobs = Annotated[int, option("workers", "N", "Number of worker processes, or of requests at a time.", min=1)]
Gate = Annotated[bool, typer.Option("--gate", help="Exit 1 if a goal is missed.")]
MeasuredPolicy = Annotated[str, option("policy", "P", "Policy to measure.")]
Admission = Annotated[
    str | None, option("admission", "P", "Also measure what this policy saves before a compaction is due.")
]
Bill = Annotated[bool, typer.Option("--bill", help="Also calculate the price of whole sessions with a prompt cache.")]
Exam = Annotated[
    Path | None, folder("exam", "DIR", "Folder with an exam: let a model answer questions from compacted contexts.")
]
Reader = Annotated[str | None, option("reader", "MODEL", "Model that answers.")]
Grader = Annotated[str | None, option("grader", "MODEL", "Model that grades the answers.")]
Writer = Annotated[str | None, option("writer", "MODEL", "Model that writes the narrative. Default: the reader.")]
ClientName = Annotated[
    str | None,
    option(
        "protocol",
        "NAME",
        "Protocol of the models: openai-chat, openai-responses, anthropic or gemini. Default: by their names.",
    ),
]
BaseUrl = Annotated[str | None, option("base-url", "URL", "Address of the server, for other providers.")]
KeyVariable = Annotated[
    str | None, option("key-variable", "NAME", "Environment variable with the API key for --base-url.")
]
Conditions = Annotated[
    str | None,
    option(
        "conditions",
        "NAMES",
        "Contexts to compare: summary,same,tenth,recall,narrative or shares such as 25%. Default: the first four.",
    ),
]
Cases = Annotated[str | None, option("cases", "NAMES", "Cases of the exam, for example 1,2. Default: all.")]
WriteOnly = Annotated[
    bool, typer.Option("--write-only", help="Only write contexts, questions and instructions, for human readers.")
]
ScoreOnly = Annotated[
    Path | None, folder("score", "OUT", "Score the answers and grades in a folder, or write the grader's sheet.")
]


def evaluate(
    data: Data = None,
    exam: Exam = None,
    out: Out = None,
    policy: MeasuredPolicy = "default",
    admission: Admission = None,
    bill: Bill = False,
    limit: Limit = None,
    jobs: Jobs = 2,
    gate: Gate = False,
    reader: Reader = None,
    grader: Grader = None,
    writer: Writer = None,
    client: ClientName = None,
    base_url: BaseUrl = None,
    key_variable: KeyVariable = None,
    conditions: Conditions = None,
    cases: Cases = None,
    write_only: WriteOnly = False,
    score: ScoreOnly = None,
    as_json: AsJson = False,
) -> None:
    """Measure a policy on recorded sessions.

    With --data: reports which facts, names and decisions are still available after compaction, and how many tokens it
    saves. No model is called. Unreadable files are reported and skipped.

    With --exam: a reader answers questions from compacted contexts, and a blind grader gives points. Both are models,
    or people: --write-only writes what they need, and --score OUT scores what they wrote.

    \b
    Examples:
      kompakt eval --data recordings --limit 20
      kompakt eval --data recordings --gate --json
      kompakt eval --exam exam --reader gpt-5 --grader gpt-5-mini
    """
    if sum(given is not None for given in (data, exam or score)) != 1:
        raise UsageError("pass --data DIR to count facts, or --exam DIR (or --score OUT) for an exam")
    if score is not None:
        _score_exam(score, exam, as_json=as_json)
        return
    if exam is not None:
        from kompakt.evals.exam import ExamSettings

        names = [tuple(filter(None, (text or "").replace(" ", "").split(","))) for text in (conditions, cases)]
        chosen = ExamSettings(
            exam=exam, out=out or Path("exam-out"), conditions=names[0], cases=names[1], policy=policy
        )
        models = ModelClients(client, base_url, key_variable)
        if write_only:
            _write_exam(chosen, models.client(writer) if writer else None)
            return
        if reader is None or grader is None:
            raise UsageError(
                "an exam needs --reader MODEL and --grader MODEL; use --write-only to write it for human readers"
            )
        clients = [models.client(name) for name in (reader, grader, writer or reader)]
        _run_exam(chosen, clients, jobs, as_json=as_json)
        return
    assert data is not None
    from kompakt.evals.run import EvalSettings

    out = out or Path("eval-out")
    settings = EvalSettings(data=data, out=out, policy=policy, admission=admission, bill=bill, limit=limit, jobs=jobs)
    _count(settings, gate=gate, as_json=as_json)


def _count(settings: EvalSettings, *, gate: bool, as_json: bool) -> None:
    import msgspec  # late: `--help` does not need these

    from kompakt.evals.report import REPORT, gather, write
    from kompakt.evals.run import ROWS, run
    from kompakt.version import __version__

    skipped = list[str]()
    with _Progress(settings.out / ROWS) as bar:

        def report(line: str) -> None:
            skipped.append(line)
            bar.print(f"skipped: {line}")

        rows = run(settings, bar, report)
        results = gather(rows, version=__version__, policy=settings.policy, skipped=skipped)
        written = write(results, rows, settings.out)
    for path in written:
        typer.echo(str(path), err=True)
    if as_json:
        typer.echo(msgspec.json.encode(results))
    else:
        _show(results)
    if skipped:
        typer.echo(f"{len(skipped)} files or measures were skipped; {settings.out / REPORT} lists them", err=True)
    if gate and any(goal.reached is False for goal in results.goals):
        raise typer.Exit(1)


class _Progress:
    """A progress bar on standard error. It also reports an interruption and where the results so far are."""

    def __init__(self, results: Path) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._results, self._done, self._total = results, 0, 0
        self._console = Console(stderr=True)
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=self._console, transient=True)
        self._task = self._bar.add_task("reading", total=None)

    def __call__(self, done: int, total: int, what: str) -> None:
        self._done, self._total = done, total
        self._bar.start()  # here, so that an error in the options is one line
        self._bar.update(self._task, completed=done, total=total, description=what)

    def print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar.live.is_started:
            self._bar.stop()
        if kind is KeyboardInterrupt:
            saved = f"{self._done} of {self._total} results are in {self._results}; run the command again to continue"
            typer.echo(f"kompakt: interrupted; {saved if self._total else 'nothing was written'}", err=True)
            raise typer.Exit(130) from None


def _show(results: Results) -> None:
    title = f"{plural(results.sessions, 'session')}, policy {results.policy}"
    shown = table(title, "metric", "goal", "measured", "reached")
    measured = [goal for goal in results.goals if goal.reached is not None]
    for goal in measured:
        shown.add_row(goal.name, goal.goal, goal.found, "yes" if goal.reached else "no")
    console().print(shown)
    if left := len(results.goals) - len(measured):
        typer.echo(f"{plural(left, 'goal')} not measured: these sessions have nothing that counts for them", err=True)


# --- the exam ----------------------------------------------------------------------------------------------------


class ModelClients:
    """Makes the clients of an exam's models."""

    def __init__(self, client: str | None, base_url: str | None, key_variable: str | None) -> None:
        self.name = client
        self.base_url = base_url
        self.key = None
        if key_variable is not None:
            self.key = os.environ.get(key_variable)
            if not self.key:
                raise UsageError(f"--key-variable: the environment variable {key_variable!r} is not set")

    def client(self, model: str) -> ChatClient:
        from kompakt.agent import clients
        from kompakt.model.limits import lookup

        name = self.name
        if name is None:
            named = "" if self.base_url else model.lower()
            name = "anthropic" if "claude" in named else "gemini" if "gemini" in named else "openai-chat"
        window = lookup(model).context
        match name:
            case "anthropic":
                kind = clients.AnthropicMessages
            case "gemini":
                kind = clients.Gemini
            case "openai-responses":
                kind = clients.OpenAIResponses
            case "openai-chat":
                kind = clients.OpenAIChat
            case _:
                raise UsageError(
                    f"--protocol {name!r} is not known; use openai-chat, openai-responses, anthropic or gemini"
                )
        return kind(model, base_url=self.base_url, api_key=self.key, context_window=window)


def _write_exam(settings: ExamSettings, writer: ChatClient | None) -> None:
    import asyncio  # late: `--help` does not need it

    from kompakt.evals.exam import ExamRound

    async def work(bar: _Progress) -> ExamRound:
        try:
            return await ExamRound.write(settings, writer=writer, progress=bar)
        finally:
            if writer is not None:
                await writer.close()

    with _Progress(settings.out) as bar:
        asyncio.run(work(bar))
    typer.echo(
        f"{settings.out}/reader has contexts, questions and instructions. Put the answers into "
        f"{settings.out}/answers/CONDITION.json, then run: {own_program()} eval --score {settings.out}",
        err=True,
    )


def _run_exam(settings: ExamSettings, models: list[ChatClient], jobs: int, *, as_json: bool) -> None:
    import asyncio  # late: `--help` does not need it

    from kompakt.evals.exam import ExamRound
    from kompakt.model.limits import lookup

    reader, grader, writer = models

    async def work(bar: _Progress) -> ExamScores:
        try:
            found = await ExamRound.write(settings, writer=writer, progress=bar)
            count, tokens = found.unanswered()
            price = lookup(reader.model).price
            cost = f", at most ${tokens * price.input:.2f}" if price is not None else ""
            bar.print(f"{count} answers to get by {reader.model}: about {tokens:,} tokens of contexts{cost}")
            await found.answer(reader, bar, jobs=jobs)
            await found.grade(grader, bar, jobs=jobs)
            return found.score()
        finally:
            for model in models:
                await model.close()

    with _Progress(settings.out) as bar:
        scores = asyncio.run(work(bar))
    _show_scores(scores, as_json=as_json)


def _score_exam(out: Path, exam: Path | None, *, as_json: bool) -> None:
    from kompakt.evals.exam import ExamRound

    found = ExamRound.open(out, exam)
    if found.has_answers or not found.has_grades:
        found.write_sheet()
    if not found.has_grades:
        typer.echo(
            f"{out}/grader has a sheet of shuffled answers and instructions. Put the grades into {out}/grades.json, "
            f"then run: {own_program()} eval --score {out}",
            err=True,
        )
        return
    _show_scores(found.score(), as_json=as_json)


def _show_scores(scores: ExamScores, *, as_json: bool) -> None:
    import msgspec

    if as_json:
        typer.echo(msgspec.json.encode(scores))
    else:
        numbers = ("questions", *scores.conditions)
        shown = table(f"{scores.graded} questions, points of 100", "", *numbers, numbers=numbers)
        for row in scores.rows:
            points = (f"{row.scores[name]:.1f}" if name in row.scores else "" for name in scores.conditions)
            shown.add_row(row.part, str(row.questions), *points)
        shown.add_row("false statements", "", *(str(scores.false.get(name, 0)) for name in scores.conditions))
        if any(scores.tokens.values()):
            shown.add_row("tokens of contexts", "", *(f"{scores.tokens[name]:,}" for name in scores.conditions))
        console().print(shown)
    for role, usage in scores.usage.items():
        typer.echo(f"{role} {usage}", err=True)
    if scores.graded < scores.questions:
        typer.echo(f"{scores.questions - scores.graded} of {scores.questions} questions have no grades", err=True)
