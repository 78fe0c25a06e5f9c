"""Run a job: list the inputs, leave out finished work, give the rest to an engine, and write its rows."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from kompakt.engine.compaction.policies import BUILT_IN, AnyPolicy, Policy
from kompakt.errors import UsageError, nearest
from kompakt.fleet.jobs import FleetSettings, FleetTask, Variant, pickled
from kompakt.fleet.local import run_local
from kompakt.fleet.output import LIGHT, FleetManifest, FleetOutput, FleetRun, arrow, now, read_rows, versions
from kompakt.fleet.rows import FleetRow, JobName, RowKey
from kompakt.fleet.sources import FleetItem, StoreSelection, digest_of, items_in, items_stored
from kompakt.fleet.summary import FleetSummary, draw_sizes, error_examples, summarize_variants
from kompakt.store import find_store
from kompakt.version import __version__

DEFAULT_WINDOW = 8_192
"""Tokens of a training window by default."""

Progress = Callable[[int, int, int], None]
"""Called with the finished inputs of this run, their total, and the errors so far."""


def run(
    job: JobName,
    source: str | Path | StoreSelection,
    out: str | Path,
    *,
    policies: Sequence[str | Policy] | str | Policy = ("default",),
    budgets: Sequence[int | None] | int | None = (None,),
    engine: Literal["local", "ray"] = "local",
    workers: int | None = None,
    address: str | None = None,
    model: str | None = None,
    format: str | None = None,
    strict: bool = False,
    payloads: bool = True,
    write_back: bool = False,
    retry_errors: bool = False,
    progress: Progress | None = None,
) -> FleetSummary:
    """Run a job on many sessions and write one row for each to Parquet files in the folder ``out``.

    The jobs are ``compact``, ``evaluate``, ``check`` and ``samples``. ``source`` is a folder of sessions, a file, or a
    ``StoreSelection``; the URL of a store selects all of its sessions. Every session runs with all ``policies`` and
    ``budgets``. For ``samples`` a budget is the size of a training window, 8,192 tokens by default.

    ``engine`` is ``local`` (processes on this machine, as many as it has cores by default) or ``ray``, where
    ``address`` names a running cluster; without it Ray is started on this machine. Both give the same rows.

    ``strict`` adds the rules of compatible servers to ``check``. Without ``payloads`` the rows contain only numbers.
    With ``write_back``, ``compact`` compacts the sessions of the store themselves, each under its lock.

    A session that fails becomes a row with an error. A job that was interrupted continues when it is run again with the
    same folder: inputs whose rows are there and that did not change are skipped. ``retry_errors`` runs those that
    failed again. ``progress`` is called with finished inputs, their total, and the errors so far.

    Raises:
        UsageError: an argument is not possible, a policy cannot be pickled, the folder has rows of another job, or
            pyarrow is not installed.
    """
    if job not in get_args(JobName):
        raise UsageError(f"unknown job {job!r}; {nearest(str(job), get_args(JobName))}")
    if engine not in ("local", "ray"):
        raise UsageError(f"unknown engine {engine!r}; use local or ray")
    if address is not None and engine != "ray":
        raise UsageError("address=… needs engine='ray'")
    if workers is not None and workers < 1:
        raise UsageError(f"workers={workers!r} is not possible; pass 1 or more")
    folder = Path(out)
    selection = _selection(source)
    if write_back and (job != "compact" or selection is None):
        raise UsageError("write_back needs the job 'compact' and a store as source")
    if selection is not None and selection.is_file and address is not None:
        raise UsageError("a SQLite store is a file on this machine; on a cluster use PostgreSQL or Redis")
    named = _policies(policies) if job in ("compact", "evaluate") else {}
    settings = FleetSettings(
        job=job,
        policies={name: policy for name, policy in named.items() if policy != name},
        model=model,
        format=format,
        strict=strict,
        payloads=payloads,
        write_back=write_back,
        store=selection,
    )
    pickled(settings)  # before anything is written
    variants = _variants(job, list(named), budgets)
    if engine == "ray":
        from kompakt.fleet import ray_engine  # late: importing Ray takes seconds

        ray_engine.require()
    record = FleetRun(started=now(), engine=engine, workers=_workers(engine, workers), versions=versions(engine))
    label = selection.label if selection is not None else str(Path(str(source)).resolve())
    began = time.monotonic()
    arrow()
    items = items_stored(selection) if selection is not None else items_in(Path(str(source)), without=folder)
    output = FleetOutput(folder, _manifest(settings, label), record)
    interrupted = True
    try:
        tasks = pending(items, variants, output.finished(retry_errors=retry_errors))
        record.inputs, record.skipped = len(items), len(items) - len(tasks)
        if engine == "ray":
            from kompakt.fleet import ray_engine

            batches = ray_engine.run_ray(tasks, settings, workers=workers, address=address)
        else:
            batches = run_local(tasks, settings, record.workers)
        with closing(batches):
            _collect(batches, output, len(tasks), progress)
        interrupted = False
    finally:
        output.close(interrupted=interrupted)
    return summarize(folder, output, time.monotonic() - began)


def _workers(engine: str, given: int | None) -> int:
    """Return the number of workers; 0 where Ray decides by the CPUs of its cluster."""
    return given or (0 if engine == "ray" else os.cpu_count() or 1)


def _collect(batches: Iterable[Sequence[FleetRow]], output: FleetOutput, total: int, progress: Progress | None) -> None:
    done = 0
    if progress is not None:
        progress(0, total, 0)
    for rows in batches:
        output.add(rows)
        done += len({row.source for row in rows})
        if progress is not None:
            progress(done, total, output.run.errors)


def summarize(folder: Path, output: FleetOutput, seconds: float) -> FleetSummary:
    """Summarise all rows of a folder and draw their sizes."""
    rows = read_rows(folder, columns=LIGHT)
    plot = draw_sizes(rows, folder)
    record = output.run
    return FleetSummary(
        job=output.manifest.job,
        out=str(folder),
        inputs=record.inputs,
        skipped=record.skipped,
        new_rows=record.rows,
        rows=len(rows),
        errors=sum(row.error is not None for row in rows),
        problems=sum(bool(row.problems) for row in rows),
        seconds=round(seconds, 3),
        variants=summarize_variants(rows),
        examples=error_examples(rows),
        plot=str(plot) if plot is not None else None,
    )


def pending(items: Sequence[FleetItem], variants: Sequence[Variant], finished: set[RowKey]) -> list[FleetTask]:
    """Return the tasks that are not finished, the largest inputs first; only inputs with rows are hashed."""
    known = {key.source for key in finished}
    tasks: list[tuple[int, FleetTask]] = []
    for item in items:
        left = tuple(variants)
        if item.source in known:
            digest = digest_of(item)
            left = tuple(one for one in variants if RowKey(item.source, digest, *one) not in finished)
        if left:
            tasks.append((item.size, FleetTask(item, left)))
    tasks.sort(key=lambda entry: -entry[0])
    return [task for _, task in tasks]


def _selection(source: str | Path | StoreSelection) -> StoreSelection | None:
    if isinstance(source, StoreSelection):
        return source
    url = find_store(str(source))
    return None if url is None else StoreSelection(url=url)


def _policies(given: Sequence[str | Policy] | str | Policy) -> dict[str, AnyPolicy]:
    found: dict[str, AnyPolicy] = {}
    for policy in [given] if isinstance(given, str | Policy) else given:
        if isinstance(policy, str) and policy not in BUILT_IN:
            raise UsageError(f"unknown policy {policy!r}; {nearest(policy, BUILT_IN)}")
        name = policy if isinstance(policy, str) else policy.name
        if name in found:
            raise UsageError(f"two policies have the name {name!r}")
        found[name] = policy
    if not found:
        raise UsageError("policies=… is empty; pass at least one policy")
    return found


def _variants(job: JobName, policies: Sequence[str], given: Sequence[int | None] | int | None) -> list[Variant]:
    budgets = [given] if isinstance(given, int | None) else list(given)
    for budget in budgets:
        if budget is not None and budget < 1:
            raise UsageError(f"budget {budget!r} is not possible; pass 1 token or more")
    if job == "samples":
        budgets = [DEFAULT_WINDOW if budget is None else budget for budget in budgets]
    names: Sequence[str | None] = policies or [None]
    found = [Variant(policy, budget) for policy in names for budget in dict.fromkeys(budgets)]
    if not found:
        raise UsageError("budgets=… is empty; pass at least one budget, or None for that of the model")
    return found


def _manifest(settings: FleetSettings, source: str) -> FleetManifest:
    known: dict[str, Any] = {
        name: getattr(settings, name) for name in ("model", "format", "strict", "payloads", "write_back")
    }
    if settings.store is not None:
        known["tenant"] = settings.store.tenant
    known["policies"] = fingerprints(settings.policies)
    return FleetManifest(kompakt=__version__, job=settings.job, source=source, settings=known)


def fingerprints(policies: Mapping[str, AnyPolicy]) -> dict[str, str]:
    """Return a hash of each policy that is not built in, so that rows of a changed policy are not mixed."""
    return {name: _fingerprint(policy) for name, policy in sorted(policies.items())}


def _fingerprint(value: object) -> str:
    return hashlib.blake2b(_described(value).encode(), digest_size=8).hexdigest()


def _described(value: object) -> str:
    """Describe a value by its type and fields; unlike ``repr``, without addresses and in a fixed order."""
    if isinstance(value, str | int | float | bool | None):
        return repr(value)
    if isinstance(value, frozenset | set):
        return f"{{{', '.join(sorted(map(_described, value)))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_described, value))}]"
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
    else:
        fields = {**vars(value)} if hasattr(value, "__dict__") and not callable(getattr(value, "__get__", None)) else {}
    named = getattr(value, "__qualname__", type(value).__qualname__)
    return f"{named}({', '.join(f'{name}={_described(fields[name])}' for name in sorted(fields))})"
