"""The jobs: a function from one input to its rows. Every engine runs this code.

A failure becomes a row with an error, so one bad session never ends a job.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec

from kompakt import api, files
from kompakt.engine.compaction.policies import AnyPolicy
from kompakt.errors import DoesNotFit, KompaktError, UnknownFormat, UsageError
from kompakt.evals.case import EvalCase, case_at, cuts, record
from kompakt.evals.measures.retention import UNFIT, compact_case
from kompakt.evals.measures.score import ResultRow
from kompakt.evals.session_files import RecordedSession
from kompakt.fleet.rows import WINDOW, FleetRow, JobName, printable
from kompakt.fleet.samples import Unfit, windows
from kompakt.fleet.sources import FleetItem, StoreSelection, body_of, digest_of, hash_of, read_item
from kompakt.model.json import compact_json
from kompakt.model.messages import History, Json, JsonObject
from kompakt.session.store import Store
from kompakt.wire.registry import WIRES
from kompakt.wire.transcripts import Transcript

EVALUATED_SHARE = 0.70
"""``evaluate`` compacts this share of a session's tokens. The rest shows what the agent needed later."""

LOST = "the worker process died twice on this session"

T = TypeVar("T")


class Variant(NamedTuple):
    """One policy and budget that a job runs every input with."""

    policy: str | None = None
    budget: int | None = None


class FleetTask(msgspec.Struct, frozen=True):
    """One input and the variants that it has no rows for yet."""

    item: FleetItem
    variants: tuple[Variant, ...]


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a job does with every input."""

    job: JobName
    policies: dict[str, AnyPolicy] = {}
    """The policies by the names in the variants."""
    model: str | None = None
    format: str | None = None
    """The format of request bodies whose format cannot be detected."""
    strict: bool = False
    payloads: bool = True
    """Whether rows contain payloads."""
    write_back: bool = False
    """Whether ``compact`` compacts the sessions of the store itself."""
    store: StoreSelection | None = None

    def policy(self, variant: Variant) -> AnyPolicy:
        """Return the policy of a variant."""
        return self.policies.get(variant.policy or "", variant.policy or "default")


def pickled(settings: FleetSettings) -> bytes:
    """Return settings as a worker process gets them.

    Raises:
        UsageError: a policy cannot be pickled.
    """
    for name, policy in settings.policies.items():
        found = attempt(lambda policy=policy: pickle.dumps(policy))
        if isinstance(found, Failure):
            raise UsageError(
                f"policy {name!r} cannot be sent to worker processes: {found.reason}; use classes and functions at the "
                "top level of a module, not lambdas or local ones"
            )
    return pickle.dumps(settings)


class FleetSession(msgspec.Struct, frozen=True):
    """One session of an input."""

    id: str
    history: History
    transcript: Transcript | None = None


class Failure(NamedTuple):
    """Why something has no result."""

    reason: str


def attempt(work: Callable[[], T]) -> T | Failure:
    """Call a function; any exception becomes a ``Failure``."""
    try:
        return work()
    except KompaktError as error:
        return Failure(printable(str(error)))
    except Exception as error:  # noqa: BLE001 — hostile input may raise anything, and it must not end the job
        return Failure(printable(f"{type(error).__name__}: {error}"))


class JobRunner:
    """Runs the tasks of a job, one after the other, with one connection to the store."""

    def __init__(self, settings: FleetSettings) -> None:
        self.settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._store: Store | None = None
        self._make = {
            "compact": self._write_back if settings.write_back else self._compact,
            "evaluate": self._evaluate,
            "check": self._check,
            "samples": self._samples,
        }[settings.job]

    def close(self) -> None:
        """Close the connection to the store."""
        if self._loop is not None:
            if self._store is not None:
                self._loop.run_until_complete(self._store.close())
            self._loop.close()
        self._loop = self._store = None

    def run(self, task: FleetTask) -> list[FleetRow]:
        """Return all rows of a task, variant by variant; each variant has at least one."""
        item = task.item
        began = time.perf_counter()
        read = attempt(lambda: self._read(item))
        if isinstance(read, Failure):
            return failed_rows(task, self.settings, read.reason, seconds=time.perf_counter() - began)
        digest, sessions = read
        found: list[list[FleetRow]] = [[] for _ in task.variants]
        for session in sessions:
            for place, variant in enumerate(task.variants):
                found[place] += self._rows(item, digest, session, variant)
        for rows, variant in zip(found, task.variants, strict=True):
            if not rows:  # a session without an answer has no training window; without a row it would never be finished
                rows.append(_blank_row(item, digest, self.settings, variant))
        return [row for rows in found for row in rows]

    def _rows(self, item: FleetItem, digest: str, session: FleetSession, variant: Variant) -> list[FleetRow]:
        blank = msgspec.structs.replace(
            _blank_row(item, digest, self.settings, variant),
            id=session.id,
            format=session.history.format,
            messages=len(session.history) or None,
        )
        began = time.perf_counter()
        made = attempt(lambda: list(self._make(session, variant, blank)))
        rows = [msgspec.structs.replace(blank, error=made.reason)] if isinstance(made, Failure) else made
        seconds = (time.perf_counter() - began) / max(1, len(rows))
        return [msgspec.structs.replace(row, seconds=seconds) for row in rows]

    # --- read -----------------------------------------------------------------------------------------------------

    def _read(self, item: FleetItem) -> tuple[str, list[FleetSession]]:
        if item.kind == "stored":
            if self.settings.write_back:
                return item.digest, [FleetSession(item.name, History((), format=""))]
            return item.digest, [self._await(self._exported(item))]
        data = read_item(item)
        return hash_of(data), list(sessions_in(item, data, self.settings.format))

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(work)

    async def _opened(self) -> Store:
        assert self.settings.store is not None
        if self._store is None:
            self._store = await self.settings.store.open()
        return self._store

    async def _exported(self, item: FleetItem) -> FleetSession:
        session = await (await self._opened()).session(item.name)
        payload, format = await session.export(), (await session.head()).format
        return FleetSession(item.source, api.parse(payload, format))

    # --- jobs -----------------------------------------------------------------------------------------------------

    def _compact(self, session: FleetSession, variant: Variant, blank: FleetRow) -> Iterator[FleetRow]:
        history = sendable(session)
        try:
            done = api.compact(history, variant.budget, model=self.settings.model, policy=self.settings.policy(variant))
        except DoesNotFit as error:
            before = api.count(session.history, model=self.settings.model).total
            yield msgspec.structs.replace(blank, tokens_before=before, fits=False, error=str(error))
            return
        yield msgspec.structs.replace(
            blank,
            tokens_before=done.tokens_before,
            tokens_after=done.tokens_after,
            changed=done.changed,
            fits=done.tokens_after <= done.report.budget,
            problems=texts(done.report.problems),
            payload=self._payload(done.payload),
        )

    def _write_back(self, session: FleetSession, variant: Variant, blank: FleetRow) -> Iterator[FleetRow]:
        yield self._await(self._compact_stored(session.id, variant, blank))

    async def _compact_stored(self, id: str, variant: Variant, blank: FleetRow) -> FleetRow:
        session = await (await self._opened()).session(id)
        head = await session.head()
        blank = msgspec.structs.replace(blank, id=blank.source, format=head.format, messages=head.messages)
        try:
            done = await session.compact(
                variant.budget,
                policy=self.settings.policy(variant),
                model=self.settings.model,
                resume=False,  # no agent is waiting to continue
            )
        except DoesNotFit as error:
            before = await session.count(model=self.settings.model)
            return msgspec.structs.replace(blank, tokens_before=before, fits=False, error=str(error))
        budget = done.report.budget if done.report is not None else None
        return msgspec.structs.replace(
            blank,
            tokens_before=done.tokens_before,
            tokens_after=done.tokens_after,
            changed=done.changed,
            fits=True if budget is None else done.tokens_after <= budget,
            problems=texts(done.report.problems) if done.report is not None else (),
            reference=done.id,
        )

    def _evaluate(self, session: FleetSession, variant: Variant, blank: FleetRow) -> Iterator[FleetRow]:
        case = self._case(session)
        if case is None:  # a single round, which cannot be divided
            total = api.count(session.history, model=self.settings.model).total
            yield msgspec.structs.replace(blank, tokens_before=total, tokens_after=total, changed=False)
            return
        model = self.settings.model or case.prefix.model
        budget = variant.budget or api.budget_for(None, model, request=case.prefix).trigger
        unscored = ResultRow(measure="retention", mode="", session=session.id, source="", at=case.cut.at)
        found = compact_case(unscored, case, budget, self.settings.policy(variant))
        measures = {kind: [found.passed.get(kind, 0), total] for kind, total in sorted(found.total.items())}
        unfit = found.note.startswith(UNFIT)
        yield msgspec.structs.replace(
            blank,
            tokens_before=case.cut.tokens,
            tokens_after=None if unfit else found.tokens,
            changed=unfit or found.tokens != case.cut.tokens,
            fits=not unfit and found.tokens <= budget,
            problems=texts(miss.why for miss in found.missed if miss.kind == "valid"),
            measures=compact_json(measures),
            error=printable(found.note.removeprefix(f"{UNFIT}: ")) if unfit else None,
        )

    def _case(self, session: FleetSession) -> EvalCase | None:
        """Return the part of a session that is compacted; the last one is kept for the next variant."""
        known = self.__dict__.get("_last")
        if known is not None and known[0] is session:
            return known[1]
        recording = record(recorded(session, self.settings.model))
        cut = next(iter(cuts(recording.history, recording.weight, (EVALUATED_SHARE,))), None)
        case = None if cut is None else case_at(recording, cut)
        self._last = (session, case)
        return case

    def _check(self, session: FleetSession, variant: Variant, blank: FleetRow) -> Iterator[FleetRow]:
        transcript = session.transcript
        found = api.check(session.history, strict=self.settings.strict, resting=transcript is not None)
        problems = [str(problem) for problem in (found if transcript is None else transcript.with_problems(found))]
        total = api.count(session.history, model=self.settings.model).total
        yield msgspec.structs.replace(
            blank,
            tokens_before=total,
            fits=None if variant.budget is None else total <= variant.budget,
            problems=texts(problems),
        )

    def _samples(self, session: FleetSession, variant: Variant, blank: FleetRow) -> Iterator[FleetRow]:
        assert variant.budget is not None
        before = api.count(session.history, model=self.settings.model).total
        blank = msgspec.structs.replace(blank, tokens_before=before)
        for number, window in enumerate(windows(session.history, variant.budget, model=self.settings.model), start=1):
            row = msgspec.structs.replace(blank, id=f"{session.id}{WINDOW}{number:04}")
            if isinstance(window, Unfit):
                yield msgspec.structs.replace(row, messages=window.messages, fits=False, error=window.reason)
                continue
            yield msgspec.structs.replace(
                row,
                messages=len(window.mask),
                tokens_after=window.tokens,
                fits=True,
                roles=window.roles,
                mask=window.mask,
                payload=self._payload(window.payload),
            )

    def _payload(self, payload: Json) -> str | None:
        return compact_json(payload) if self.settings.payloads else None


def failed_rows(task: FleetTask, settings: FleetSettings, reason: str, *, seconds: float = 0.0) -> list[FleetRow]:
    """Return the rows of a task that has no results."""
    digest = digest_of(task.item)
    blank = (_blank_row(task.item, digest, settings, variant) for variant in task.variants)
    return [msgspec.structs.replace(row, seconds=seconds, error=reason) for row in blank]


def _blank_row(item: FleetItem, digest: str, settings: FleetSettings, variant: Variant) -> FleetRow:
    return FleetRow(
        id=item.source,
        source=item.source,
        input_hash=digest,
        job=settings.job,
        policy=variant.policy,
        budget=variant.budget,
    )


# --- sessions of an input ----------------------------------------------------------------------------------------


def sessions_in(item: FleetItem, data: bytes, format: str | None = None) -> Iterator[FleetSession]:
    """Yield the sessions in the bytes of an item, with the side chains of transcripts.

    Raises:
        InputError: the data contains no history.
    """
    if item.kind != "line":
        transcripts = files.decode_all(data, item.source)
        single = len(transcripts) == 1 or item.kind == "database"
        for number, transcript in enumerate(transcripts, start=1):
            name = printable(transcript.name) or str(number)
            id = item.source if single else f"{item.source}#{name}"
            yield FleetSession(id, files.history(transcript), transcript)
            for place, side in enumerate(transcript.sidechains, start=1):
                yield FleetSession(f"{id}#side-{place}", files.history(side), side)
        if transcripts:
            return
    payload = files.decode(data, item.source).payload
    if item.kind == "line":
        body = body_of(payload)
        if body is None:
            raise UnknownFormat(f"{item.source}: the line is not a request body")
        payload = body
    yield FleetSession(item.source, api.parse(payload, format))


def sendable(session: FleetSession) -> History:
    """Return the history of a session; open calls of a transcript are closed, as the next request would do."""
    if session.transcript is None:
        return session.history
    repaired = api.repair(session.history, resting=True)
    return api.parse(repaired.payload, session.history.format) if repaired.changes else session.history


def recorded(session: FleetSession, model: str | None) -> RecordedSession:
    """Return a session as the measures of ``kompakt.evals`` read it."""
    history, transcript = session.history, session.transcript
    wire = WIRES[history.format]
    rendered: Json = api.render(history)
    body: JsonObject = rendered if isinstance(rendered, dict) else {wire.messages_key: rendered}
    if model is not None:
        body = {**body, "model": model}
    return RecordedSession(
        name=session.id,
        source="request" if transcript is None else transcript.kind,
        format=history.format,
        body=body,
        summaries=frozenset() if transcript is None else transcript.summaries,
    )


def texts(values: Any) -> tuple[str, ...]:
    """Return values as texts that a row can contain."""
    return tuple(printable(str(value)) for value in values)


def quiet() -> None:
    """Silence the log of this worker process; its rows contain the failures."""
    logging.getLogger("kompakt").setLevel(logging.ERROR)
