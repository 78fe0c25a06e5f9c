"""The run: every measure of every session, on several processes, each result written as it is made.

One invariant: a result is kept under a hash of its session, the measure, the policy and the code, so a run that was
stopped continues where it was, and one after a change measures again. A file that cannot be read and a measure that
fails are reported; the run continues without them.
"""

from __future__ import annotations

import hashlib
import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import msgspec

from kompakt.errors import KompaktError, UsageError
from kompakt.evals.measures.attack import attack
from kompakt.evals.measures.bills import bills
from kompakt.evals.measures.chains import chains
from kompakt.evals.measures.context import told
from kompakt.evals.measures.recall import evidence
from kompakt.evals.measures.speed import compression, latency
from kompakt.evals.reports.row import Row
from kompakt.evals.sources.case import Recording, record
from kompakt.evals.sources.data import sessions
from kompakt.evals.sources.session import Session
from kompakt.version import __version__

FEWEST_TOKENS = 8_000
"""Of a session that is cut and compacted: shorter ones fit every window."""

ROWS = "rows"
"""The folder of single results below the output folder."""

FAULTS = (KompaktError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What a measure may raise on a recording of a shape that nobody thought of."""

_log = logging.getLogger("kompakt.evals")

_CACHED = msgspec.json.Decoder(list[Row])


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure, and how."""

    data: Path
    out: Path
    policy: str = "default"
    admission: str | None = None
    """The policy whose savings without pressure are measured; none: not measured."""
    bill: bool = False
    """Whether whole sessions are replayed and priced."""
    limit: int | None = None
    """Sessions at most."""
    jobs: int = 2


class Work(msgspec.Struct, frozen=True):
    """One measure of one session."""

    measure: str
    session: Session
    policy: str
    admission: str | None
    key: str


def run(
    settings: Settings,
    progress: Callable[[int, int, str], None] | None = None,
    report: Callable[[str], None] = _log.warning,
) -> list[Row]:
    """Measure everything that has not been measured; the rows of all of it come back.

    ``report`` is called with a line for each file that was skipped and each measure that failed.

    Raises:
        UsageError: the directory holds no session that can be read.
    """
    chosen = list(sessions(settings.data, report))[: settings.limit]
    if not chosen:
        raise UsageError(f"{str(settings.data)!r} holds no sessions; --data takes a directory of recordings")
    folder = settings.out / ROWS
    folder.mkdir(parents=True, exist_ok=True)
    todo = list(_planned(chosen, settings))
    done = {one.key: rows for one in todo if (rows := _kept(folder, one.key)) is not None}
    waiting = [one for one in todo if one.key not in done]
    if progress is not None:
        progress(len(done), len(todo), "measuring")
    for one, outcome in _performed(waiting, settings.jobs):
        if isinstance(outcome, str):
            report(outcome)
        else:
            (folder / f"{one.key}.json").write_bytes(msgspec.json.encode(outcome))
        done[one.key] = [] if isinstance(outcome, str) else outcome
        if progress is not None:
            progress(len(done), len(todo), f"{one.measure} {one.session.name}")
    timed = _timed(chosen, settings.policy)
    if isinstance(timed, str):
        report(timed)
        timed = []
    return [row for one in todo for row in done[one.key]] + timed


def _planned(chosen: Sequence[Session], settings: Settings) -> Iterator[Work]:
    code = _code()
    for session in chosen:
        measures = ["evidence"] if session.questions else ["told", "chains", "attack"]
        if settings.admission is not None and not session.questions:
            measures.append("compression")
        if settings.bill and not session.questions:
            measures.append("bill")
        data = msgspec.json.encode(session, order="deterministic")
        for measure in measures:
            text = f"{measure}\0{settings.policy}\0{settings.admission}\0{code}\0"
            key = hashlib.blake2b(text.encode() + data, digest_size=12).hexdigest()
            yield Work(measure, session, settings.policy, settings.admission, key)


def _code() -> str:
    """Name the code that measures and is measured: its version and a hash of its files."""
    hasher = hashlib.blake2b(digest_size=12)
    for path in sorted(Path(__file__).parent.parent.rglob("*.py")):
        hasher.update(path.read_bytes())
    return f"{__version__} {hasher.hexdigest()}"


def _kept(folder: Path, key: str) -> list[Row] | None:
    try:
        return _CACHED.decode((folder / f"{key}.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def _performed(waiting: list[Work], jobs: int) -> Iterator[tuple[Work, list[Row] | str]]:
    """Yield results, or why there is none, in the order they are made, the largest sessions first."""
    waiting = sorted(waiting, key=lambda one: -len(str(one.session.body)))
    if jobs < 2 or len(waiting) < 2:
        for one in waiting:
            yield one, attempt(one)
        return
    pool = ProcessPoolExecutor(jobs, initializer=_end_quietly)
    try:
        futures = {pool.submit(attempt, one): one for one in waiting}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _end_quietly() -> None:
    """Let an interrupt end a worker without a traceback; the main process says what was done."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def attempt(work: Work) -> list[Row] | str:
    """Do one piece of work, or say why it cannot be done."""
    try:
        return perform(work)
    except FAULTS as error:
        return f"{work.session.name}: {work.measure} failed: {type(error).__name__}: {error}"


_recorded: dict[str, Recording] = {}
"""The recording a process measured last: the next measure is often of the same session."""


def perform(work: Work) -> list[Row]:
    """Do one piece of work."""
    name = f"{work.session.source} {work.session.name}"
    if name not in _recorded:
        _recorded.clear()
        _recorded[name] = record(work.session)
    recording = _recorded[name]
    if work.measure == "evidence":
        return list(evidence(recording))
    if sum(recording.weight) < FEWEST_TOKENS:
        return []
    match work.measure:
        case "told":
            return list(told(recording, work.policy))
        case "chains":
            return list(chains(recording, work.policy))
        case "attack":
            return list(attack(recording, work.policy))
        case "bill":
            return list(bills(recording, work.policy))
        case _:
            return list(compression(recording, work.admission or work.policy))


def _timed(chosen: Sequence[Session], policy: str) -> list[Row] | str:
    """Time the longest session alone, when nothing else runs."""
    longest = max(chosen, key=lambda session: len(str(session.body)))
    try:
        return list(latency([record(longest)], policy))
    except FAULTS as error:
        return f"{longest.name}: latency failed: {type(error).__name__}: {error}"
