"""One conversation of a framework: its messages go in, what the model should see comes out.

Invariant: a message that kompakt did not change comes out as the object that went in, so ids, usage, signatures and
provider extras survive without the adapter knowing them. Only what kompakt wrote (question and summary of a pivot, a
shortened result) is converted back.

Cost: a step converts, counts and appends what is new. The known part of the list is compared by identity, one pointer
comparison for each message. A framework that copies its messages at every step is compared by content instead: all of
it once something is hidden or shortened. Until then the view is the list that came in, so every change is sent, and a
step compares a part of it. What is compacted or saved was compared in the same step. A list that does not extend the
known one starts over, from the originals in it.
"""

from __future__ import annotations

import asyncio
import logging
import operator
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from threading import Lock
from typing import Any, Generic, TypedDict, TypeVar
from uuid import uuid4

import msgspec

from kompakt import api
from kompakt.agent.clients.failures import failure_from
from kompakt.engine.admission import AdmissionSettings, Seen, admit_message, level_named
from kompakt.engine.compaction.compact import CompactionOrder, compact, proceed, run_sync
from kompakt.engine.compaction.policies import AnyPolicy, Policy, policy_named
from kompakt.engine.compaction.report import Report, announce, build_report
from kompakt.engine.context.context import Context
from kompakt.engine.recall import DEFAULT_TOKENS, Memory, Recalled
from kompakt.engine.recall.answer import TOOL_NAME
from kompakt.engine.strategies import OverflowByRounds
from kompakt.errors import DoesNotFit, Overflowed, StoreError, UsageError
from kompakt.integrations.stores import StoreAccess, recall_saved, record_pins
from kompakt.model.budget import Budget, size_after_refusal
from kompakt.model.lru import Lru
from kompakt.model.messages import History, JsonObject, Message
from kompakt.model.references import digest
from kompakt.model.tokens import Counter, counter_for
from kompakt.session.compaction import record_compaction, record_failure
from kompakt.session.session import Session
from kompakt.session.store import Store, TooManyBranches
from kompakt.session.timeline import RECOVERABLE
from kompakt.version import install_command
from kompakt.wire.overflow import Overflow
from kompakt.wire.registry import WIRES

_log = logging.getLogger("kompakt.integrations")

MAX_CONVERSATIONS = 1_000
"""Conversations that one adapter keeps in memory; the least recently used one is read anew when it returns."""

MAX_MESSAGES = 200_000
"""Messages of all conversations that one adapter keeps in memory, about half a gigabyte. Most frameworks do not say
when a run has ended. A single conversation may have more."""

LOCK_SECONDS, LOCK_PAUSE = 60, 0.005
"""How long a synchronous call waits for another one on its conversation; how often an asynchronous one looks again."""

_Place = tuple[int, int]
"""Position of a message, and of one of its items."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Converter(ABC, Generic[Item]):
    """How the messages of a framework become items of a provider's format, and back."""

    format: str
    compared: int = 2_000
    """Messages that a step compares by content while the view is the list that came in: a quarter are the newest, the
    others are taken in turn. Until its turn comes, a change further back is sent but not counted."""

    @abstractmethod
    def to_wire(self, item: Item) -> Sequence[JsonObject]:
        """Return a message as items of the format; several if the framework puts several results into one."""

    @abstractmethod
    def from_wire(self, item: JsonObject, original: Item | None) -> Item:
        """Return a message for an item that kompakt wrote. ``original`` is the message that it shortens, if any."""

    def stays(self, item: Item) -> bool:
        """Return whether the framework itself reads a message, so that it is never hidden or shortened."""
        return False

    def remember(self, item: Item) -> Any:
        """Return what copies of a message are compared with later, by default the message itself."""
        return item

    def same(self, items: Sequence[Item], known: Sequence[Any]) -> bool:
        """Return whether messages are equal to those that ``remember`` was called with.

        Override both where a framework copies its messages and its own comparison is slow.
        """
        return items == known

    def rebuild(self, original: Item, parts: Mapping[int, JsonObject | None]) -> Sequence[Item]:
        """Return a message of which only some items are shown, or some are shortened.

        ``parts`` has the shown items by their position in ``to_wire(original)``: the item that replaces it, or ``None``
        for an unchanged one. By default, each item becomes a message. Override it to keep what has no item, like media.
        """
        wires = self.to_wire(original)
        return [self.from_wire(wires[at] if one is None else one, original) for at, one in parts.items()]


class WireConverter(Converter[JsonObject]):
    """For frameworks whose messages are items of a provider's format already.

    ``fields`` are those of the format, if the framework adds fields of its own, like usage or files.
    """

    def __init__(self, format: str, fields: Sequence[str] = ()) -> None:
        self.format, self._fields = format, frozenset(fields)

    def to_wire(self, item: JsonObject) -> Sequence[JsonObject]:
        """Return the item, without the fields that the framework added."""
        if not self._fields or item.keys() <= self._fields:
            return (item,)
        return ({name: value for name, value in item.items() if name in self._fields},)

    def from_wire(self, item: JsonObject, original: JsonObject | None) -> JsonObject:
        """Return the item, with the fields that the framework added to the original."""
        if not self._fields or original is None:
            return item
        return {**{name: value for name, value in original.items() if name not in self._fields}, **item}


class AdapterArguments(TypedDict, total=False):
    """The arguments that all adapters take, with the meaning and the defaults of ``AdapterOptions``."""

    budget: int | Budget | None
    policy: AnyPolicy
    pins: Iterable[str]
    on_compaction: Callable[[Report], None] | None
    admission: AdmissionSettings | str | None


class AdapterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What every adapter takes, under the same names."""

    budget: int | Budget | None = None
    """Tokens of a request, or a ``Budget``; by default that of the model."""
    policy: AnyPolicy = "default"
    pins: Iterable[str] = ()
    """Texts that must be kept verbatim."""
    store: Store | str | None = None
    """Where the whole conversation is saved at each compaction: a URL or, in asynchronous frameworks, a store."""
    recall: bool = True
    """Whether the model gets the recall tool; without it ``recall_tool`` raises ``UsageError``."""
    on_compaction: Callable[[Report], None] | None = None
    """Called after each compaction with its report."""
    admission: AdmissionSettings | str | None = None
    """How large tool results are shortened before the model first sees them: ``"gentle"``, ``"firm"``, or settings."""

    def __post_init__(self) -> None:
        """Reject arguments that cannot be meant."""
        if isinstance(self.pins, str):
            raise UsageError(f"pins={self.pins!r} is not a list; pass pins=[{self.pins!r}]")
        msgspec.structs.force_setattr(self, "pins", tuple(self.pins))
        if isinstance(self.budget, int):
            Budget.of(self.budget)
        elif not isinstance(self.budget, Budget | None):  # type: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"budget={self.budget!r} is neither a number of tokens nor a Budget")
        policy_named(self.policy)
        if isinstance(self.admission, str):
            level_named(self.admission)

    def offered(self, recall_tool: Result) -> Result:
        """Return the recall tool of an adapter, as it is given to an agent.

        Raises:
            UsageError: the adapter was made with ``recall=False``.
        """
        if not self.recall:
            raise UsageError("recall_tool is not available with recall=False; do not give it to the agent")
        return recall_tool

    @property
    def admission_settings(self) -> AdmissionSettings | None:
        """The settings of ``admission``; by default those of a policy that always admits."""
        if isinstance(self.admission, str):
            return level_named(self.admission)
        policy = policy_named(self.policy)
        return self.admission or (policy.admission if policy.admits_always else None)


class RequestFrame(msgspec.Struct, frozen=True):
    """What a request has besides its messages."""

    envelope: JsonObject = {}
    """The request body without messages, in the format of the adapter: model, tools, and system where it belongs."""
    system: str = ""
    """A system prompt that the framework sends apart from the messages and the envelope."""
    model: str | None = None
    budget: Budget | None = None
    """The budget of this request, if the framework itself decides on it."""


class LiveConversation(Generic[Item]):
    """The compacted view of one conversation. Threads may share it.

    An id is unique if the host gives it to one conversation only. Other ids are made from the first message. In a
    store, other people's conversations may have such a name too, so recall reads only what this conversation saved.
    """

    def __init__(
        self, id: str, converter: Converter[Item], options: AdapterOptions, *, id_is_unique: bool = True
    ) -> None:
        self.id, self._id_is_unique = id, id_is_unique
        self._converter, self._options = converter, options
        self._store = StoreAccess(options.store) if options.store is not None else None
        self._policy = policy_named(options.policy)
        self._admission = options.admission_settings
        self._wire = WIRES[converter.format]
        self._lock, self._memory_lock = Lock(), Lock()
        self._accepted: int | None = None
        """Tokens that the provider accepts, once it has rejected more."""
        self._sent = 0
        self._saved_as = ""
        """The name to save it under, if too many others have that of the conversation."""
        self._unsaved = False
        """Whether a result was shortened at admission since the conversation was saved."""
        self._pinned_in: set[str] = set()
        """Sessions in which the pins are recorded."""
        self._failure = ""
        """The last failure that was recorded: a framework may try again and again."""
        self._frame: RequestFrame | None = None
        self._restart()

    def _restart(self) -> None:
        self._saved_in: str | None = None
        """The session in which these messages were saved last."""
        self._items: list[Item] = []
        own = type(self._converter).remember is not Converter.remember
        self._known: list[Any] = [] if own else self._items
        """What the messages of the next step are compared with."""
        self._unchecked = False
        """Whether only a part of the list that came in was compared. Then it is the view, and nothing of it is kept."""
        self._next_check = 0
        self._wires: list[Sequence[JsonObject]] = []
        self._wire_count = 0
        self._owners: dict[int, _Place] = {}
        """The place that an item of the format was made from, by the item's ``id``."""
        self._answers: dict[str, _Place] = {}
        """The place of the result of a call."""
        self._callers: dict[str, _Place] = {}
        """The place of a call."""
        self._recalls: set[str] = set()
        """Calls of the recall tool."""
        self._originals: list[Message] = []
        """The messages as they came. Those of the context differ from them after a repair."""
        self._staying: set[int] = set()
        """Positions of the messages of the context that stay; see ``Converter.stays``."""
        self._context: Context | None = None
        self._seen = Seen()
        """What the model was shown of tool results, for admission."""
        self._memory: Memory | None = None
        self._projected: Sequence[Message] = ()
        self._rendered = 0
        self._view: list[Item] = []
        self._view_places: list[int] = []
        """The positions of the messages of the view; -1 for what kompakt wrote."""
        self._last: Sequence[Item] = ()
        """The last view that was returned."""

    # --- view -----------------------------------------------------------------------------------------------------

    def view(self, items: Sequence[Item], frame: RequestFrame, *, refused: Overflow | None = None) -> list[Item]:
        """Return what the model should see of these messages.

        ``refused`` is the provider's answer to the previous view: it was too long, and this one has to be shorter.

        Raises:
            DoesNotFit: what must be kept is larger than the budget.
            UsageError: the policy has to await something and an event loop is running; use ``aview``.
        """
        if not self._lock.acquire(timeout=LOCK_SECONDS):
            raise UsageError(f"conversation {self.id!r} is in use by a call that does not end; use one call at a time")
        try:
            work = self._compacted(items, frame, refused, waits=False)
            return run_sync(work, may_wait=self._policy.awaits)
        finally:
            self._lock.release()

    async def aview(self, items: Sequence[Item], frame: RequestFrame, *, refused: Overflow | None = None) -> list[Item]:
        """Like ``view``, also for policies and stores that have to be awaited."""
        if not self._policy.awaits and self._options.store is None:
            return self.view(items, frame, refused=refused)
        while not self._lock.acquire(blocking=False):  # threads and event loops may share a conversation
            await asyncio.sleep(LOCK_PAUSE)
        try:
            return await self._compacted(items, frame, refused, waits=True)
        finally:
            self._lock.release()

    def send(self, items: Sequence[Item], frame: RequestFrame, call: Callable[[list[Item]], Result]) -> Result:
        """Call the model with the view; shorten a request that the provider rejects as too long, and call once more.

        Raises:
            Overflowed: the provider rejects the shorter request too.
        """
        refused: Overflow | None = None
        while True:
            view = self.view(items, frame, refused=refused)
            try:
                return call(view)
            except Exception as error:  # noqa: BLE001 — each framework has errors of its own; others are raised again
                refused = _next_attempt(error, refused)

    async def asend(
        self,
        items: Sequence[Item],
        frame: RequestFrame,
        call: Callable[[list[Item]], Awaitable[Result]],
        *,
        refused: Overflow | None = None,
    ) -> Result:
        """Like ``send``. ``refused``: the framework itself sent the previous view and it was too long."""
        while True:
            view = await self.aview(items, frame, refused=refused)
            try:
                return await call(view)
            except Exception as error:  # noqa: BLE001 — each framework has errors of its own; others are raised again
                refused = _next_attempt(error, refused)

    async def _compacted(
        self, items: Sequence[Item], frame: RequestFrame, refused: Overflow | None, *, waits: bool
    ) -> list[Item]:
        request = self._wire.parse([], frame.envelope) if frame.envelope else History((), format=self._wire.format)
        model = frame.model or request.model
        for whole in (refused is not None, True):
            context = self._read(items, request, frame, model, whole=whole)
            order = self._order(request, frame, model, context.counter, refused)
            due = order.budget.due(context.projected_tokens) or refused is not None
            compacts = due or (self._policy.has_triggers and self._policy.due(context) is not None)
            if not self._unchecked or not (compacts or self._unsaved or self._hides_or_shortens(context)):
                break
        if compacts or self._unsaved:
            session = await self._save(request.with_messages(self._originals), waits=waits)
            self._unsaved = False
            if compacts:
                try:
                    report = await self._rewrite(context, request, order, forced=refused is not None)
                except DoesNotFit as error:
                    if self._failure != str(error):
                        await self._record(session, partial(record_failure, error=error), waits=waits)
                    self._failure = str(error)
                    raise
                context = self._context or context
                if report is not None:
                    made = partial(record_compaction, context=context, report=report, stored=self._originals)
                    await self._record(session, made, waits=waits)
                    announce(report)
                    if self._options.on_compaction is not None:
                        self._options.on_compaction(report)
        self._sent = context.projected_tokens
        if self._unchecked:
            self._last = ()
            return list(items)
        self._last = self._shown(context)
        return list(self._last)

    def _order(
        self, request: History, frame: RequestFrame, model: str | None, counter: Counter, refused: Overflow | None
    ) -> CompactionOrder:
        given = frame.budget or self._options.budget
        budget = (
            Budget.of(given) if isinstance(given, int) else api.budget_for(given, model, self._policy, request=request)
        )
        policy: Policy = self._policy
        if self._admission is not None:
            policy = msgspec.structs.replace(policy, admission=self._admission, admits_always=True)
        if refused is not None:
            self._accepted, _ = size_after_refusal(
                self._sent,
                limit=None if refused.by_bytes else refused.limit,
                actual=refused.actual,
                output=refused.output,
            )
            policy = msgspec.structs.replace(policy, steps=(OverflowByRounds(), *policy.steps))
            budget = Budget(window=self._accepted + 1, trigger=self._accepted + 1, target=self._accepted)
        elif self._accepted is not None and not 0 < budget.trigger <= self._accepted:
            budget = Budget.of(self._accepted)
        return CompactionOrder(
            budget=budget,
            policy=policy,
            counter=counter,
            pins=(*self._options.pins, *sorted(self._staying)),
            manual_thinking=self._wire.manual_thinking(request.body),
            fixed=self._system_tokens(frame, counter),
        )

    def _system_tokens(self, frame: RequestFrame, counter: Counter) -> int:
        return counter.tokens(frame.system) if frame.system else 0

    # --- read -----------------------------------------------------------------------------------------------------

    def _read(
        self, items: Sequence[Item], request: History, frame: RequestFrame, model: str | None, *, whole: bool
    ) -> Context:
        """Append what is new; start over if the list extends neither the known one nor the last view of it.

        A framework that keeps the view as its own history passes the view with what came after it. ``whole``: compare
        everything by content, if identity does not decide.
        """
        if extends(items, self._items):
            new, self._unchecked = items[len(self._items) :], False
        elif self._last and extends(items, self._last):
            new = items[len(self._last) :]
        else:
            new = self._reread(items, whole=whole)
        if self._frame is not None and self._frame.model != frame.model:
            self._accepted = None  # another model has its own limit
        if self._context is None or self._frame is None or self._frame.model != frame.model:
            messages = self._context.messages if self._context is not None else ()
            self._context, self._seen = Context(request, counter=counter_for(model).own()), Seen()
            self._context.fixed_tokens += self._system_tokens(frame, self._context.counter)
            for message in messages:
                self._add(self._context, message)
        elif frame != self._frame:
            self._context.set_envelope(request)
            self._context.fixed_tokens += self._system_tokens(frame, self._context.counter)
        self._frame = frame
        self._append(new)
        return self._context

    @property
    def size(self) -> int:
        """How many messages the conversation has."""
        return len(self._items)

    @property
    def items(self) -> Sequence[Item]:
        """The messages of the conversation, with those that the view hides."""
        return tuple(self._items)

    def is_extended_by(self, items: Sequence[Item]) -> bool:
        """Return whether a list starts with the messages of this conversation, or equal ones."""
        known = self._items
        return extends(items, known) or (
            len(items) >= len(known)
            and all(
                one is other or self._converter.to_wire(one) == wire
                for one, other, wire in zip(items, known, self._wires, strict=False)
            )
        )

    def _reread(self, items: Sequence[Item], *, whole: bool) -> Sequence[Item]:
        """Compare by content, for frameworks that make new objects at every step; return what is new."""
        known = len(self._items)
        if not whole and not self._hides_or_shortens(self._context) and self._check_part(items):
            self._unchecked = True
            return items[known:]
        given = list(items[:known])
        # Their own equality is much faster than a conversion; messages that cannot be compared are converted.
        if self._converter.same(given, self._known) or self._converted(given) == list(map(list, self._wires)):
            self._items[:], self._unchecked = given, False
            self._view = [one if at < 0 else given[at] for at, one in zip(self._view_places, self._view, strict=True)]
            return items[known:]
        originals = self._with_originals(items)
        self._restart()
        return originals

    def _check_part(self, items: Sequence[Item]) -> bool:
        """Compare the newest messages and the next ones in turn. After an insertion or a removal the newest differ."""
        known, compared = len(self._items), self._converter.compared
        if known <= compared:
            return False
        newest = known - compared // 4
        at = self._next_check if self._next_check < newest else 0
        self._next_check = min(at + compared - compared // 4, newest)
        parts = slice(newest, known), slice(at, self._next_check)
        return all(self._converter.same(list(items[one]), self._known[one]) for one in parts)

    def _hides_or_shortens(self, context: Context | None) -> bool:
        """Return whether the view is another one than the list that came in."""
        return context is None or context.differs or len(context.messages) != self._wire_count

    def _with_originals(self, items: Sequence[Item]) -> Sequence[Item]:
        """Put back what the view hides if a framework keeps the view as its history and changed the end of it."""
        same = sum(1 for _ in takewhile(bool, map(operator.is_, items, self._last)))
        places = {id(one): at for at, one in enumerate(self._items)}
        own = [at for at in range(same) if id(items[at]) in places]
        if not own or extends(self._items, items[: own[-1] + 1]):  # nothing is hidden there
            return items
        return [*self._items[: places[id(items[own[-1]])] + 1], *items[own[-1] + 1 :]]

    def _converted(self, items: Sequence[Item]) -> list[list[JsonObject]]:
        return [list(self._converter.to_wire(item)) for item in items]

    def _append(self, items: Sequence[Item]) -> None:
        assert self._context is not None
        for item in items:
            at, wire = len(self._items), self._converter.to_wire(item)
            messages = self._wire.parse(list(wire), None)  # before anything is kept: it may raise
            if self._known is not self._items:
                self._known.append(self._converter.remember(item))
            self._items.append(item)
            self._wires.append(wire)
            self._wire_count += len(wire)
            self._owners.update((id(one), (at, position)) for position, one in enumerate(wire))
            if self._converter.stays(item):
                self._staying.update(range(len(self._context.messages), len(self._context.messages) + len(messages)))
            self._originals += messages
            for number, message in enumerate(messages):
                place = at, number if len(messages) == len(wire) else 0
                self._answers.update((result.call_id, place) for result in message.results)
                self._callers.update((call.id, place) for call in message.calls)
                self._add(self._context, message)

    def _add(self, context: Context, message: Message) -> None:
        """Append a message; shorten its results if they are large and admission is on. Answers of recall stay whole."""
        context.append(message)
        if len(context.messages) - 1 in self._staying:
            context.pin(context.group_at(len(context.messages) - 1))
        self._recalls.update(call.id for call in message.calls if call.name == TOOL_NAME)
        if self._admission is not None and not any(one.call_id in self._recalls for one in message.results):
            self._unsaved |= admit_message(context, len(context.messages) - 1, self._seen, self._admission)

    # --- compact --------------------------------------------------------------------------------------------------

    async def _rewrite(
        self, context: Context, request: History, order: CompactionOrder, *, forced: bool
    ) -> Report | None:
        """Compact; return the report, or ``None`` if nothing changed."""
        began, shown = time.perf_counter(), len(context.project())
        before = context.projected_tokens
        history = request.with_messages(context.messages)
        problems = () if context.is_rewritten or forced else api.check(history)
        if context.is_rewritten or forced or (self._admission is not None and not problems):
            outcome = await proceed(context, history, order, forced=forced)
        else:
            valid = api.parse(api.repair(history).payload, history.format) if problems else history
            if problems:
                staying = {digest(history.messages[at]) for at in self._staying}
                self._staying = {at for at, message in enumerate(valid) if digest(message) in staying}
                order = msgspec.structs.replace(order, pins=(*self._options.pins, *sorted(self._staying)))
            outcome = await compact(valid, order)
        self._context = made = outcome.context
        if not made.differs or not (outcome.reason is not None or outcome.steps):
            return None
        report = build_report(
            made,
            policy=order.policy.name,
            reason=outcome.reason or f"over {order.budget.trigger} tokens",
            tokens_before=before,
            messages_before=shown,
            messages_after=len(made.project()),
            budget=order.budget.trigger,
            steps=outcome.steps,
            at_message=len(made.messages),
            failures=tuple(made.failures),
            seconds=time.perf_counter() - began,
            session=self.id,
        )
        return report if self._store is None else msgspec.structs.replace(report, recoverable=RECOVERABLE)

    async def _record(
        self, session: str | None, write: Callable[[Session], Coroutine[Any, Any, bool | None]], *, waits: bool
    ) -> None:
        """Record what became of a conversation in the session in which it was saved."""
        if session is None:
            return

        async def record(store: Store) -> bool | None:
            return await write(await store.session(session))

        try:
            if await self._use_store(record, waits=waits) is False:
                _log.warning("compaction of %r not recorded: others write to the session", session)
        except StoreError as error:  # the messages are saved, so nothing is lost
            _log.warning("compaction of %r not recorded: %s", session, error)

    async def _save(self, history: History, *, waits: bool) -> str | None:
        """Save the whole conversation before the view of it shrinks; return the name of its session."""
        if self._store is None:
            return None

        async def save(store: Store) -> str:
            try:
                session = await store.save(self._saved_as or self.id, history)
            except TooManyBranches:  # names that are made from the first messages are not unique
                self._saved_as = f"{self.id}-{uuid4().hex}"
                session = await store.save(self._saved_as, history)
            if session.id not in self._pinned_in:
                await record_pins(session, self._options.pins)
                self._pinned_in.add(session.id)
            self._saved_in = session.id
            return session.id

        return await self._use_store(save, waits=waits)

    async def _use_store(self, work: Callable[[Store], Coroutine[Any, Any, Result]], *, waits: bool) -> Result:
        assert self._store is not None
        return await self._store.run(work) if waits else self._store.run_sync(work)

    def _shown(self, context: Context) -> list[Item]:
        """Return the projection as messages of the framework. Only what is new since the last call is rendered."""
        if not self._hides_or_shortens(context):
            return self._items
        shown = context.project()
        if shown is not self._projected:
            self._projected, self._rendered, self._view, self._view_places = shown, 0, [], []
        run: dict[int, JsonObject | None] = {}
        owner = -1
        for message in shown[self._rendered :]:
            for one in self._wire.render(message):
                unchanged = self._owners.get(id(one))
                place = unchanged or self._place_of(message)
                if run and (place is None or place[0] != owner or place[1] in run):
                    self._flush(owner, run)
                if place is None:
                    self._view.append(self._converter.from_wire(one, None))
                    self._view_places.append(-1)
                else:
                    owner = place[0]
                    run[place[1]] = None if unchanged else one
                    if len(run) == len(self._wires[owner]):
                        self._flush(owner, run)
        self._flush(owner, run)
        self._rendered = len(shown)
        return self._view

    def _flush(self, owner: int, run: dict[int, JsonObject | None]) -> None:
        """Add the message that a run of items was made from; rebuild it if some items are missing or shortened."""
        if run:
            if len(run) == len(self._wires[owner]) and not any(run.values()):
                self._view.append(self._items[owner])
                self._view_places.append(owner)
            else:
                rebuilt = self._converter.rebuild(self._items[owner], run)
                self._view += rebuilt
                self._view_places += [-1] * len(rebuilt)
            run.clear()

    def _place_of(self, message: Message) -> _Place | None:
        """Return the place of the item that a rewritten message shortens, found by the ids of its calls."""
        for result in message.results:
            if result.call_id in self._answers:
                return self._answers[result.call_id]
        for call in message.calls:
            if call.id in self._callers:
                return self._callers[call.id]
        return None

    # --- recall ---------------------------------------------------------------------------------------------------

    @property
    def hides(self) -> bool:
        """Whether something left the view, so that recall has something to return."""
        return self._context is not None and self._context.differs

    def recall(self, query_or_reference: str, tokens: int = DEFAULT_TOKENS) -> Recalled:
        """Find or restore what the model no longer sees; see ``kompakt.recall``.

        A conversation that is not in memory, because another process had it, is read from the store.
        """
        found = self._recall_here(query_or_reference, tokens)
        if found or self._store is None or not self._store.has_url:
            return found
        return self._store.run_sync(self._recall_saved(query_or_reference, tokens)) or found

    async def arecall(self, query_or_reference: str, tokens: int = DEFAULT_TOKENS) -> Recalled:
        """Like ``recall``, also for stores that are given as objects."""
        found = self._recall_here(query_or_reference, tokens)
        if found or self._store is None:
            return found
        return await self._store.run(self._recall_saved(query_or_reference, tokens)) or found

    def _recall_saved(self, query: str, tokens: int) -> Callable[[Store], Coroutine[Any, Any, Recalled | None]]:
        """Return a search of the sessions that belong to this conversation and to no other one."""
        own = (self._saved_in,) if self._saved_in is not None else ()
        return partial(
            recall_saved, own=own, branches_of=self.id if self._id_is_unique else None, query=query, tokens=tokens
        )

    def _recall_here(self, query_or_reference: str, tokens: int) -> Recalled:
        context = self._context  # without the lock: a view may be waiting for a model or a store
        messages = context.messages if context is not None else ()
        with self._memory_lock:
            if self._memory is None or len(self._memory) != len(messages):
                self._memory = Memory(tuple(messages), counter=context.counter if context else counter_for(None))
            return self._memory.recall(query_or_reference, tokens=tokens)


def extends(items: Sequence[object], known: Sequence[object]) -> bool:
    """Return whether a list starts with the same objects as another."""
    return len(items) >= len(known) and all(map(operator.is_, known, items))


class Conversations(Generic[Item]):
    """The conversations of one adapter, by the framework's own id. They never mix."""

    def __init__(self, converter: Converter[Item], options: AdapterOptions) -> None:
        self.converter, self.options = converter, options
        self._known: Lru[str, LiveConversation[Item]] = Lru(MAX_CONVERSATIONS)
        self._lock = Lock()

    def get(self, id: str, *, id_is_unique: bool = True) -> LiveConversation[Item]:
        """Return a conversation; a new one if the id is not known."""
        with self._lock:
            found = self._known.get(id)
            if found is None:
                self._evict()
                found = LiveConversation(id, self.converter, self.options, id_is_unique=id_is_unique)
                self._known.put(id, found)
            return found

    def _evict(self) -> None:
        """Forget the least recently used conversations if all have too many messages."""
        known = self._known.items()
        total = sum(one.size for _, one in known)
        for id, one in known[:-1]:
            if total <= MAX_MESSAGES:
                break
            self._known.remove(id)
            total -= one.size

    def find(self, id: str) -> LiveConversation[Item] | None:
        """Return a conversation if it is in memory."""
        with self._lock:
            return self._known.get(id)


def overflow_of(error: BaseException) -> Overflow | None:
    """Return what a provider said of a request that was too long; ``None`` for any other error.

    Frameworks wrap the errors of providers, so causes and contexts are read too.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, Exception) and (found := failure_from(current).overflow) is not None:
            return found
        if type(current).__name__ in OVERFLOW_ERRORS:
            return Overflow(source=type(current).__name__, message=str(current))
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return None


OVERFLOW_ERRORS = frozenset(
    {
        "ContextOverflowError",
        "ContextWindowExceededError",
        "ContextWindowOverflowException",
        "ModelContextWindowExceededError",
    }
)
"""Errors by which frameworks report an overflow: LangChain, LiteLLM, Strands, Pydantic AI."""


def _next_attempt(error: Exception, earlier: Overflow | None) -> Overflow:
    """Return what the provider rejected; raise any other error, and the second rejection, again."""
    refused = overflow_of(error)
    if refused is None:
        raise error
    if earlier is not None:
        raise Overflowed(f"the request is too long, also after it was shortened: {error}", overflow=refused) from error
    return refused


def missing(extra: str, error: ImportError) -> ImportError:
    """Return the error for a framework that is not installed."""
    return ImportError(f"kompakt.integrations.{extra} needs the framework: {install_command(extra)} ({error})")
