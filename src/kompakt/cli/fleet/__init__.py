"""``kompakt fleet …``: run a job on many sessions, on the cores of this machine or on a Ray cluster."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from kompakt.cli import config
from kompakt.cli.fleet.progress import FleetProgress, show_summary
from kompakt.cli.input import AsJson, Format, ModelName, Strict, option
from kompakt.cli.store_options import (
    AGE,
    KeyFile,
    OtherStore,
    Tenant,
    print_json,
    read_age,
    read_id,
    read_key,
    refuse_both,
)
from kompakt.errors import UsageError

if TYPE_CHECKING:
    from kompakt.fleet import StoreSelection
    from kompakt.fleet.rows import JobName


app = typer.Typer(
    name="fleet",
    help="Run a job on many sessions: compact, evaluate, check, or cut training samples.\n\n"
    "\b\nExamples:\n  kompakt fleet check ~/.claude/projects --out audit\n"
    "  kompakt fleet compact --store kompakt.db --out compacted --budget 50000",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def _options(context: typer.Context) -> None:
    settings = context.default_map or {}
    context.default_map = {command.name or "": settings for command in app.registered_commands}


class EngineName(StrEnum):
    """Where a job runs."""

    LOCAL = "local"
    RAY = "ray"


Source: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="SOURCE",
        show_default=False,
        help="A folder of sessions in any format that `kompakt check` reads, a file, or a JSONL file with one request "
        "body per line. With --store: nothing.",
    ),
]
OutFolder: TypeAlias = Annotated[
    Path, typer.Option("-o", "--out", metavar="DIR", help="Folder for the rows. Run again with it to continue.")
]
Engine: TypeAlias = Annotated[
    EngineName, typer.Option("--engine", help="local: processes on this machine; ray: a Ray cluster.")
]
Address: TypeAlias = Annotated[
    str | None,
    option("address", "A", "Address of a Ray cluster, or auto. Default: start Ray on this machine."),
]
Workers: TypeAlias = Annotated[
    int | None, option("workers", "N", "Number of workers. Default: one for each core.", min=1)
]
Policies: TypeAlias = Annotated[
    str,
    option(
        "policy",
        "P[,P…]",
        "Compaction policies: default, conservative, aggressive, window, or those in kompakt.toml.",
        envvar="KOMPAKT_POLICY",
    ),
]
Budgets: TypeAlias = Annotated[
    str | None,
    option("budget", "N[,N…]", "Token budgets. Default: that of each model.", envvar="KOMPAKT_BUDGET"),
]
CheckedBudget: TypeAlias = Annotated[
    str | None, option("budget", "N", "Also report which sessions have more tokens than this.")
]
WindowSize: TypeAlias = Annotated[str | None, option("budget", "N", "Tokens of a window at most. Default: 8192.")]
NoPayloads: TypeAlias = Annotated[
    bool, typer.Option("--no-payloads", help="Write only the numbers, not the resulting payloads.")
]
WriteBack: TypeAlias = Annotated[
    bool,
    typer.Option("--write-back", help="Compact the sessions of the store themselves. Undo with `session undo`."),
]
RetryErrors: TypeAlias = Annotated[
    bool, typer.Option("--retry-errors", help="Run sessions again that have a row with an error.")
]
FirstId: TypeAlias = Annotated[str | None, option("from", "ID", "Only sessions of a store from this id on.")]
LastId: TypeAlias = Annotated[str | None, option("to", "ID", "Only sessions of a store up to this id.")]
OlderThan: TypeAlias = Annotated[
    str | None, option("older-than", "AGE", f"Only sessions of a store without a write for this long, {AGE}.")
]
NewerThan: TypeAlias = Annotated[
    str | None, option("newer-than", "AGE", f"Only sessions of a store with a write within this time, {AGE}.")
]


@app.command("compact")
def compact(
    context: typer.Context,
    out: OutFolder,
    source: Source = None,
    store: OtherStore = None,
    budget: Budgets = None,
    policy: Policies = "default",
    model: ModelName = None,
    write_back: WriteBack = False,
    no_payloads: NoPayloads = False,
    engine: Engine = EngineName.LOCAL,
    address: Address = None,
    workers: Workers = None,
    format: Format = None,
    retry_errors: RetryErrors = False,
    tenant: Tenant = "",
    key_file: KeyFile = None,
    first: FirstId = None,
    last: LastId = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    as_json: AsJson = False,
) -> None:
    """Compact every session of SOURCE and write the results to DIR.

    Sessions of a store are read whole, and the store is not changed. With --write-back each one is compacted in the
    store instead, under its lock, if it is over the budget.

    Exit 1 if a session failed or does not fit.

    \b
    Examples:
      kompakt fleet compact ~/.claude/projects --out compacted --budget 50000
      kompakt fleet compact --store postgresql://db/agents --out log --write-back
    """
    chosen = _source(context, source, store, tenant, key_file, first, last, older_than, newer_than)
    _run(
        "compact",
        chosen,
        out,
        as_json=as_json,
        policies=[config.policy(name) for name in _names(policy)],
        budgets=_numbers(budget),
        model=model,
        write_back=write_back,
        payloads=not no_payloads,
        engine=engine.value,
        address=address,
        workers=workers,
        format=format,
        retry_errors=retry_errors,
    )


@app.command("evaluate")
def evaluate(
    context: typer.Context,
    out: OutFolder,
    source: Source = None,
    store: OtherStore = None,
    budget: Budgets = None,
    policy: Policies = "default",
    model: ModelName = None,
    engine: Engine = EngineName.LOCAL,
    address: Address = None,
    workers: Workers = None,
    format: Format = None,
    retry_errors: RetryErrors = False,
    tenant: Tenant = "",
    key_file: KeyFile = None,
    first: FirstId = None,
    last: LastId = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    as_json: AsJson = False,
) -> None:
    """Compare policies and budgets on the sessions of SOURCE.

    Compacts the first 70 % of every session with each policy and budget, and measures which facts are still stated, and
    what the agent needed later. No model is called.

    \b
    Examples:
      kompakt fleet evaluate sessions --out eval --budget 16000,32000
      kompakt fleet evaluate sessions --out eval --policy default,aggressive
    """
    chosen = _source(context, source, store, tenant, key_file, first, last, older_than, newer_than)
    _run(
        "evaluate",
        chosen,
        out,
        as_json=as_json,
        policies=[config.policy(name) for name in _names(policy)],
        budgets=_numbers(budget),
        model=model,
        engine=engine.value,
        address=address,
        workers=workers,
        format=format,
        retry_errors=retry_errors,
    )


@app.command("check")
def check(
    context: typer.Context,
    out: OutFolder,
    source: Source = None,
    store: OtherStore = None,
    budget: CheckedBudget = None,
    model: ModelName = None,
    strict: Strict = False,
    engine: Engine = EngineName.LOCAL,
    address: Address = None,
    workers: Workers = None,
    format: Format = None,
    retry_errors: RetryErrors = False,
    tenant: Tenant = "",
    key_file: KeyFile = None,
    first: FirstId = None,
    last: LastId = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    as_json: AsJson = False,
) -> None:
    """List what a provider would reject in any session of SOURCE.

    Exit 1 if there are problems or unreadable files.

    \b
    Examples:
      kompakt fleet check ~/.codex/sessions --out audit
      kompakt fleet check --store kompakt.db --out audit --newer-than 24h
    """
    chosen = _source(context, source, store, tenant, key_file, first, last, older_than, newer_than)
    _run(
        "check",
        chosen,
        out,
        as_json=as_json,
        budgets=_numbers(budget),
        model=model,
        strict=strict,
        engine=engine.value,
        address=address,
        workers=workers,
        format=format,
        retry_errors=retry_errors,
    )


@app.command("samples")
def samples(
    context: typer.Context,
    out: OutFolder,
    source: Source = None,
    store: OtherStore = None,
    budget: WindowSize = None,
    model: ModelName = None,
    engine: Engine = EngineName.LOCAL,
    address: Address = None,
    workers: Workers = None,
    format: Format = None,
    retry_errors: RetryErrors = False,
    tenant: Tenant = "",
    key_file: KeyFile = None,
    first: FirstId = None,
    last: LastId = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    as_json: AsJson = False,
) -> None:
    """Cut the sessions of SOURCE into training windows.

    Every window is a valid request of at most N tokens: calls have their results, and it starts with a request of the
    user. Its row has the role of each message and a mask of those that the model wrote. Messages that are larger than a
    window get a row with an error instead. Exit 1 if a session could not be read.

    \b
    Examples:
      kompakt fleet samples sessions --out windows --budget 16384
      kompakt fleet samples --store kompakt.db --out windows --older-than 7d
    """
    chosen = _source(context, source, store, tenant, key_file, first, last, older_than, newer_than)
    _run(
        "samples",
        chosen,
        out,
        as_json=as_json,
        budgets=_numbers(budget),
        model=model,
        engine=engine.value,
        address=address,
        workers=workers,
        format=format,
        retry_errors=retry_errors,
    )


# --- options -----------------------------------------------------------------------------------------------------


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text: str | None) -> list[int | None]:
    """Read budgets.

    Raises:
        UsageError: one of them is not a number.
    """
    if text is None:
        return [None]
    found = [name.replace("_", "") for name in _names(text)]
    if not found or not all(name.isdecimal() and int(name) for name in found):
        raise UsageError(f"--budget {text!r}: give numbers of tokens, separated by commas")
    return [int(name) for name in found]


def _source(
    context: typer.Context,
    source: str | None,
    store: str | None,
    tenant: str,
    key_file: str | None,
    first: str | None,
    last: str | None,
    older_than: str | None,
    newer_than: str | None,
) -> str | StoreSelection:
    from kompakt.fleet.sources import StoreSelection  # late: `--help` does not need it
    from kompakt.store import find_store, store_url

    refuse_both(context, source, name="SOURCE")
    source = source or (store_url(store) if store else None)
    if source is None:
        raise UsageError("name the sessions: SOURCE, a file or folder, or --store STORE")
    url = find_store(source)  # a store in place of SOURCE is accepted as well
    if url is None:
        for name, value in (("from", first), ("to", last), ("older-than", older_than), ("newer-than", newer_than)):
            if value is not None:
                raise UsageError(f"--{name} needs --store STORE")
        return source
    return StoreSelection(
        url=url,
        tenant=tenant,
        key=read_key(key_file),
        first=None if first is None else read_id(first),
        last=None if last is None else read_id(last),
        older_than=None if older_than is None else read_age(older_than, "older-than"),
        newer_than=None if newer_than is None else read_age(newer_than, "newer-than"),
    )


# --- run ---------------------------------------------------------------------------------------------------------


def _run(job: JobName, source: str | StoreSelection, out: Path, *, as_json: bool, **options: Any) -> None:
    from kompakt.fleet import run  # late: `--help` does not need it

    with FleetProgress(out) as progress:
        summary = run(job, source, out, progress=progress, **options)
    if as_json:
        print_json(summary)
    else:
        show_summary(summary)
    # Most archives have results of tools that are larger than a training window.
    expected = sum(one.unfit for one in summary.variants) if job == "samples" else 0
    if summary.errors > expected or (summary.problems and job != "evaluate"):
        raise typer.Exit(1)
