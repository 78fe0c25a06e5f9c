"""Run every measure on every session in several processes, and store each result as it is finished.

A result is stored under a hash of session, measure, policy and code. An interrupted run continues where it stopped, and
a run after a code change measures again. Unreadable files and failing measures are reported and skipped.
"""

from __future__ import annotations

import hashlib
import logging
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import msgspec

from kompakt import api
from kompakt.errors import DoesNotFit, KompaktError, UsageError
from kompakt.evals.case import BUDGET_SHARE, Recording, cut_at, record
from kompakt.evals.measures.attack import measure_attacks
from kompakt.evals.measures.bills import measure_bills
from kompakt.evals.measures.retention import measure_chains, measure_compression, measure_evidence, measure_retention
from kompakt.evals.measures.score import ResultRow
from kompakt.evals.session_files import RecordedSession, sessions
from kompakt.version import __version__

FEWEST_TOKENS = 8_000
"""Sessions with fewer tokens are not compacted, because they fit every window."""

ROWS = "rows"
"""Folder of the stored results, below the output folder."""

FAULTS = (KompaktError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of a measure on a recording of an unexpected shape."""

LATENCY_TOKENS = 200_000
LATENCY_RUNS = 5

_log = logging.getLogger("kompakt.evals")

_CACHED = msgspec.json.Decoder(list[ResultRow])


class EvalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a run."""

    data: Path
    out: Path
    policy: str = "default"
    admission: str | None = None
    """The policy whose savings without pressure are measured, if any."""
    bill: bool = False
    """Whether to replay and price whole sessions."""
    limit: int | None = None
    """Maximum number of sessions."""
    jobs: int = 2


class EvalJob(msgspec.Struct, frozen=True):
    """One measure on one session."""

    measure: str
    session: RecordedSession
    policy: str
    admission: str | None
    key: str


def run(
    settings: EvalSettings,
    progress: Callable[[int, int, str], None] | None = None,
    report: Callable[[str], None] = _log.warning,
) -> list[ResultRow]:
    """Run all measures without a stored result and return the rows of all results.

    ``report`` is called with one line for each skipped file and each failed measure.

    Raises:
        UsageError: the directory has no readable session.
    """
    chosen = list(sessions(settings.data, report))[: settings.limit]
    if not chosen:
        raise UsageError(f"{str(settings.data)!r} holds no sessions; --data takes a directory of recordings")
    folder = settings.out / ROWS
    folder.mkdir(parents=True, exist_ok=True)
    jobs = list(_jobs(chosen, settings))
    done = {one.key: rows for one in jobs if (rows := _stored(folder, one.key)) is not None}
    pending = [one for one in jobs if one.key not in done]
    if progress is not None:
        progress(len(done), len(jobs), "measuring")
    for one, outcome in _run_jobs(pending, settings.jobs):
        if isinstance(outcome, str):
            report(outcome)
        else:
            (folder / f"{one.key}.json").write_bytes(msgspec.json.encode(outcome))
        done[one.key] = [] if isinstance(outcome, str) else outcome
        if progress is not None:
            progress(len(done), len(jobs), f"{one.measure} {one.session.name}")
    timed = _latency_rows(chosen, settings.policy)
    if isinstance(timed, str):
        report(timed)
        timed = []
    return [row for one in jobs for row in done[one.key]] + timed


def _jobs(chosen: Sequence[RecordedSession], settings: EvalSettings) -> Iterator[EvalJob]:
    code = _code()
    for session in chosen:
        measures = ["evidence"] if session.questions else ["retention", "chains", "attack"]
        if settings.admission is not None and not session.questions:
            measures.append("compression")
        if settings.bill and not session.questions:
            measures.append("bill")
        data = msgspec.json.encode(session, order="deterministic")
        for measure in measures:
            text = f"{measure}\0{settings.policy}\0{settings.admission}\0{code}\0"
            key = hashlib.blake2b(text.encode() + data, digest_size=12).hexdigest()
            yield EvalJob(measure, session, settings.policy, settings.admission, key)


def _code() -> str:
    """Return the version and a hash of all source files."""
    hasher = hashlib.blake2b(digest_size=12)
    for path in sorted(Path(__file__).parent.parent.rglob("*.py")):
        hasher.update(path.read_bytes())
    return f"{__version__} {hasher.hexdigest()}"


def _stored(folder: Path, key: str) -> list[ResultRow] | None:
    try:
        return _CACHED.decode((folder / f"{key}.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def _run_jobs(pending: list[EvalJob], jobs: int) -> Iterator[tuple[EvalJob, list[ResultRow] | str]]:
    """Yield results or error lines as they finish; the largest sessions start first."""
    pending = sorted(pending, key=lambda one: -len(str(one.session.body)))
    if jobs < 2 or len(pending) < 2:
        for one in pending:
            yield one, attempt(one)
        return
    pool = ProcessPoolExecutor(jobs, initializer=_ignore_traceback)
    try:
        futures = {pool.submit(attempt, one): one for one in pending}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _ignore_traceback() -> None:
    """End a worker on an interrupt without a traceback; the main process prints the message."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def attempt(job: EvalJob) -> list[ResultRow] | str:
    """Run one job; return its rows or an error line."""
    try:
        return perform(job)
    except FAULTS as error:
        return f"{job.session.name}: {job.measure} failed: {type(error).__name__}: {error}"


_recorded: dict[str, Recording] = {}
"""The last recording of this process. The next job is often on the same session."""


def perform(job: EvalJob) -> list[ResultRow]:
    name = f"{job.session.source} {job.session.name}"
    if name not in _recorded:
        _recorded.clear()
        _recorded[name] = record(job.session)
    recording = _recorded[name]
    if job.measure == "evidence":
        return list(measure_evidence(recording))
    if sum(recording.weight) < FEWEST_TOKENS:
        return []
    match job.measure:
        case "retention":
            return list(measure_retention(recording, job.policy))
        case "chains":
            return list(measure_chains(recording, job.policy))
        case "attack":
            return list(measure_attacks(recording, job.policy))
        case "bill":
            return list(measure_bills(recording, job.policy))
        case _:
            return list(measure_compression(recording, job.admission or job.policy))


def _latency_rows(chosen: Sequence[RecordedSession], policy: str) -> list[ResultRow] | str:
    """Time the longest session while no other job runs."""
    longest = max(chosen, key=lambda session: len(str(session.body)))
    try:
        return list(measure_latency(record(longest), policy))
    except FAULTS as error:
        return f"{longest.name}: latency failed: {type(error).__name__}: {error}"


def measure_latency(recording: Recording, policy: str) -> Iterator[ResultRow]:
    """Time compactions of a session, cut at 200,000 tokens."""
    reached, at = 0, 0
    while at < len(recording.weight) and reached < LATENCY_TOKENS:
        reached += recording.weight[at]
        at += 1
    cut = cut_at(recording.history, recording.weight, at)
    prefix = recording.history.with_messages(recording.history[:at])
    session = recording.session
    for run in range(LATENCY_RUNS):
        began = time.perf_counter()
        try:
            api.compact(prefix, budget=cut.budget(BUDGET_SHARE), policy=policy)
            note = ""
        except DoesNotFit as error:
            note = str(error)
        seconds = time.perf_counter() - began
        yield ResultRow(
            measure="latency", mode=f"run {run + 1}", session=session.name, source=session.source,
            at=at, tokens=cut.tokens, seconds=seconds, note=note,
        )  # fmt: skip
