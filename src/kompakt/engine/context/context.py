"""The context: a history with annotations, and what the model will see of it.

It is the one mutable object. Appending costs only the new message. Totals are maintained incrementally. The projection
is extended after an append and rebuilt from the visible groups after any other change. Messages are frozen; their
annotations are stored here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from kompakt.engine.context.archive import Archive, ContextGroup, speaks, step_size, words_of
from kompakt.engine.context.projection import CachedProjection, Load, Snapshot, Summary, Visibility, pinned_message
from kompakt.engine.ledger.ledger import Ledger
from kompakt.engine.pivot.pivot import FOLDED, NarrativeAccount, PivotFrame, pivot_messages, pivot_text, pivot_tokens
from kompakt.errors import UsageError
from kompakt.model.contract import Contract
from kompakt.model.messages import History, Message, Part, ToolCall, ToolResult
from kompakt.model.phrases import pruned_placeholder, unseal
from kompakt.model.references import digest
from kompakt.model.tokens import PRIMING, Counter, counter_for, tool_tokens

if TYPE_CHECKING:
    from kompakt.engine.strategies.strategy import Target


class Annotation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one message in a context; serialisable as JSON."""

    group: int
    tokens: int
    counter: str
    """The name of the counter that counted."""
    content: str
    """A hash of the content that was counted."""
    excluded: str | None = None
    """Why the message is not shown to the model."""
    pruned: tuple[int, ...] = ()
    """Parts whose output is hidden."""
    pinned: bool = False
    summarized_by: str | None = None
    """The name of the summary that replaces this message."""
    summary: str | None = None
    """The text of that summary, at the last message it replaces, so that links can be followed both ways."""
    source_id: str | None = None


class Action(msgspec.Struct, frozen=True, gc=False):
    """One thing done to one message or part, for the report."""

    reference: str
    what: str
    """excluded, included, pruned, restored, shortened, summarized, stripped, pinned."""
    why: str
    tokens: int
    """Tokens it saved; negative when it brought some back."""


class Context:
    """The annotated history of one conversation."""

    goal = 0
    """Target in tokens of strategies that have none of their own; set by the policy that runs them."""
    manual_thinking = False
    """Whether the request enables signed reasoning explicitly. An open round then needs its own reasoning."""
    instructions: str | None = None
    """The caller's instructions for a summary."""
    question = ""
    """The application's own words for the question of the next pivot; empty for the usual ones."""
    is_replay = False
    """Whether a finished history is replayed. The summarizer then runs once at the end, not at every compaction."""
    is_resumed = False
    """Whether the load of the pivot already includes what was inherited."""
    deferred_summary: Callable[[Context], Awaitable[bool]] | None = None
    """The summarizer call to run when the replay is over."""
    summary_text: Summary | None = None
    earlier_rounds = 0
    """Answers of the model before the first message here."""
    rewritten_at = 0
    """Number of answers when a strategy or a policy last ran."""
    aim: Target | None = None
    """Target of strategies that have none of their own, after a trigger of their policy fired."""
    in_policy = False
    """Whether a policy is running its strategies."""
    drops_oldest = False
    """Whether a later step of the policy drops the oldest groups until the goal is reached."""
    unsummarized = False
    """Whether text was removed from messages that no summary covers yet."""
    breaks: frozenset[int] = frozenset()
    """Messages before which the history has others that this context does not contain."""
    stripped_to = 0
    """Messages before this index are shown without signed reasoning."""

    def __init__(
        self,
        messages: Iterable[Message] = (),
        *,
        counter: Counter | None = None,
        contract: Contract | None = None,
        annotations: Sequence[Annotation] = (),
        references: Sequence[str] = (),
        seal_key: bytes = b"",
    ) -> None:
        history = messages if isinstance(messages, History) else None
        self.counter = counter or counter_for(None if history is None else history.model).own()
        self.contract = contract if contract is not None or history is None else history.contract
        self.seal_key = seal_key
        """Seals pivots; empty where there is no secret. With a key only pivots sealed with it are recognized."""
        self.pinned_texts: list[str] = []
        self.missing_pins: list[str] = []
        """Pinned texts that no visible message contained at the last rewriting."""
        self._counted_pins: tuple[list[str], int] = (self.missing_pins, 0)
        """The missing pins that were counted last, and their tokens."""
        self.fixed_tokens = PRIMING + (0 if history is None else self._envelope_tokens(history))
        """Tokens of the envelope: system, tools, the beginning of the answer."""
        self._system = [] if history is None else [message.text for message in history.system]
        self.archive = Archive(references)
        self.visibility = Visibility(self.archive, self.counter)
        self._done: list[tuple[int, int | None, str, str, int]] = []
        self.inherited: str | None = None
        """The summaries of earlier passes."""
        self.failures: list[str] = []
        """Failures of summarizers, for the report."""
        self.narratives: list[NarrativeAccount] = []
        """The accounts of the narratives that were asked for; reported with the compaction."""
        self.unused = 0
        """Tokens of the budget that a deferred summary may use in addition to its room."""
        self.ledger = Ledger(seal_key)
        self.pivot_cache: tuple[object, str] | None = None
        """The text of the pivot and the state it was written for; see ``pivot_text``."""
        self._projection = CachedProjection()
        self._known = {annotation.content: annotation for annotation in annotations}
        self.extend(messages)
        if annotations:
            _reinstate(self, annotations)

    def set_envelope(self, history: History) -> None:
        """Use another system prompt and other tools from now on."""
        self.fixed_tokens = PRIMING + self._envelope_tokens(history)
        self._system = [message.text for message in history.system]
        self.visibility.touch()

    def _envelope_tokens(self, history: History) -> int:
        tools = tool_tokens(history.tools, self.counter) if history.tools else 0
        return tools + sum(map(self.counter.message, history.system))

    # --- append ---------------------------------------------------------------------------------------------------

    def append(self, message: Message, *, source_id: str | None = None) -> None:
        """Add a message: group it and count it.

        What joins an excluded group, such as the result of a call, brings it back: the newest message is always shown.
        """
        if source_id is not None:
            message = msgspec.structs.replace(message, source_id=source_id)
        self.append_counted(message, self._count(message))

    def append_counted(self, message: Message, tokens: int) -> None:
        """Add a message that has this many tokens."""
        back = self.visibility.add(message, tokens)
        if back is not None:
            self._say(back.indices[0], None, "included", "something that belongs to it arrived", -back.tokens)

    def extend(self, messages: Iterable[Message]) -> None:
        """Add messages."""
        for message in messages:
            self.append(message)

    def _count(self, message: Message) -> int:
        if self._known:
            known = self._known.get(digest(message).hex())
            if known is not None and known.counter == self.counter.name:
                return known.tokens
        return self.counter.message(message)

    # --- what is there --------------------------------------------------------------------------------------------

    @property
    def messages(self) -> Sequence[Message]:
        """The full history, visible or not."""
        return self.archive.messages

    @property
    def groups(self) -> list[ContextGroup]:
        """All groups, in the order they began."""
        return list(self.archive.groups.values())

    @property
    def live(self) -> list[ContextGroup]:
        """The visible groups, in order; the cost depends on these only."""
        return self.visibility.live

    @property
    def tokens(self) -> int:
        """Tokens of the visible request, before roles are made to alternate."""
        pinned = self._pinned_tokens() if self.is_rewritten else 0
        summary = self.summary_text.tokens if self.summary_text else 0
        return self.visibility.tokens + self.fixed_tokens + summary + pinned

    def _pinned_tokens(self) -> int:
        """Return the tokens of the message that carries the missing pins once something is rewritten."""
        texts, tokens = self._counted_pins
        if texts is not self.missing_pins:
            tokens = self.counter.message(pinned_message(self.missing_pins)) if self.missing_pins else 0
            self._counted_pins = self.missing_pins, tokens
        return tokens

    @property
    def bytes(self) -> int:
        """Bytes of visible text and media."""
        return self.visibility.bytes

    @property
    def shown_messages(self) -> int:
        """Number of visible messages of the history."""
        return self.visibility.messages

    @property
    def shown_groups(self) -> int:
        """Number of visible groups of the history."""
        return self.visibility.groups

    @property
    def rounds(self) -> int:
        """Number of answers of the model, including the hidden part of a stored session."""
        return self.archive.rounds + self.earlier_rounds

    def note_run(self) -> None:
        """Restart the count of steps since the last run; a policy does so after its last strategy."""
        if not self.in_policy:
            self.rewritten_at = self.rounds

    @property
    def required_tokens(self) -> int:
        """Tokens that no strategy removes: envelope, first and newest request, pins, messages without an answer.

        The input of a call that was answered is not counted: it may be shortened.
        """
        groups = self.archive.protected(self.live)
        inputs = sum(self._input_tokens(group) for group in groups if not group.pinned)
        return self.fixed_tokens + self._pinned_tokens() + sum(group.tokens for group in groups) - inputs

    def _input_tokens(self, group: ContextGroup) -> int:
        """Count the input of the answered calls of a group."""
        shown = [part for index in group.indices for part in self.shown(index).parts]
        answered = {part.call_id for part in shown if type(part) is ToolResult}
        calls = [part for part in shown if type(part) is ToolCall and part.id in answered]
        return sum(map(self.counter.part, calls))

    @property
    def step_tokens(self) -> int:
        """Tokens of an ordinary step of the run."""
        return step_size(self.messages, self.visibility.counts, len(self.messages))

    @property
    def hides(self) -> bool:
        """Whether any message is hidden."""
        return self.visibility.messages < len(self.messages)

    @property
    def is_rewritten(self) -> bool:
        """Whether anything is shown in another form than it was first sent."""
        rewritten = len(self.visibility.replacements) > len(self.visibility.admitted)
        return self.hides or rewritten or self.summary_text is not None or self.stripped_to > 0

    @property
    def differs(self) -> bool:
        """Whether anything is shown in another form than it was given, admitted outputs included."""
        return self.is_rewritten or bool(self.visibility.replacements)

    @property
    def single_message(self) -> bool:
        """Whether the projection is one user message: an open round whose reasoning must be removed."""
        newest = self.messages[self.archive.newest] if self.archive.newest >= 0 else None
        if newest is None or not self.manual_thinking or (newest.role != "assistant" and not newest.results):
            return False
        return self.is_rewritten

    def project(self) -> Sequence[Message]:
        """Return what the model will see. The cached list is extended until something is rewritten."""
        return self._projection.refresh(self)

    @property
    def projected_tokens(self) -> int:
        """The exact number of tokens of the projection."""
        self._projection.refresh(self)
        return self._projection.tokens

    def group_at(self, index: int) -> ContextGroup:
        """Return the group of a message."""
        return self.archive.group_at(index)

    def shown_indices(self) -> list[int]:
        """List the indices of the visible messages, in order."""
        return self.visibility.indices()

    def shown(self, index: int) -> Message:
        """Return a message as it is shown, before reasoning is stripped."""
        return self.visibility.shown(index)

    def message_tokens(self, index: int) -> int:
        """Return the tokens of a message as it is shown."""
        return self.visibility.counts[index]

    def reference(self, index: int, part: int | None = None) -> str:
        """Return the reference of a message or part."""
        return self.archive.reference(index, part)

    def note_pins(self) -> None:
        """Find the pinned texts that must be added; decided at a rewriting, so the prefix stays stable."""
        pins = self.pinned_texts
        shown = [words_of(part) for one in self.visibility.shown_messages() for part in one.parts] if pins else []
        missing = [pin for pin in pins if not any(pin in text for text in (*self._system, *shown))]
        if missing != self.missing_pins:
            self.missing_pins = missing
            self.visibility.touch()

    def summary(self) -> dict[str, dict[str, int]]:
        """Count groups, messages, tool calls and tokens: all, and those shown.

        ``tool_call_tokens`` are those of tool calls and their results. The pivot counts as shown: one group, two
        messages.
        """
        live = self.live
        tools = sum(group.tokens for group in live if group.kind == "tool")
        included = {
            **self.archive.tally(live, self.counter),
            "tokens": self.visibility.tokens,
            "tool_call_tokens": tools,
        }
        text = pivot_text(self) if self.summary_text is not None else ""
        if text and self.summary_text is not None:
            pivot = pivot_messages(self, text, self.summary_text.frame)
            included["groups"] += 1
            included["messages"] += len(pivot)
            included["tokens"] += sum(tokens for _, tokens in pivot)
        return {"all": self.archive.tally(self.groups, self.counter), "included": included}

    # --- what may go ----------------------------------------------------------------------------------------------

    def is_protected(self, group: ContextGroup) -> bool:
        """Return whether a group survives every strategy."""
        return bool(self.archive.protected((group,)))

    def droppable(self) -> list[ContextGroup]:
        """List the visible groups that may be hidden, oldest first."""
        live = self.live
        protected = {group.number for group in self.archive.protected(live)}
        return [group for group in live if group.number not in protected]

    def is_request_at(self, index: int) -> bool:
        """Return whether a message is a request of the user."""
        return speaks(self.messages[index])

    def is_open(self, index: int) -> bool:
        """Return whether a message belongs to the newest group, which the model has not answered yet."""
        return self.archive.is_newest(self.group_at(index))

    # --- change ---------------------------------------------------------------------------------------------------

    def exclude(self, group: ContextGroup, *, reason: str) -> bool:
        """Hide a group from the model; return whether that changed anything.

        Raises:
            UsageError: the group is protected.
        """
        return self.exclude_all((group,), reason=reason)

    def exclude_all(self, groups: Iterable[ContextGroup], *, reason: str) -> bool:
        """Hide several groups; return whether that changed anything.

        Raises:
            UsageError: one of them is protected; then none is hidden.
        """
        shown = [group for group in groups if group.excluded is None]
        for group in self.archive.protected(shown):
            raise UsageError(f"{group!r} is protected and cannot be excluded; unpin it or choose another")
        if shown:
            self.visibility.hide(shown, reason)
            self._done += [(group.indices[0], None, "excluded", reason, group.tokens) for group in shown]
        return bool(shown)

    def include(self, group: ContextGroup) -> bool:
        """Show an excluded group again; return whether that changed anything."""
        if group.excluded is None or group.summarized_by is not None:
            return False
        self.visibility.unhide(group)
        self._say(group.indices[0], None, "included", "asked for", -group.tokens)
        return True

    def pin(self, group: ContextGroup) -> None:
        """Protect a group from every strategy."""
        group.pinned, group.summarized_by = True, None
        self.visibility.unhide(group)

    def prune(self, index: int, part: int) -> bool:
        """Hide one tool output behind a placeholder; return whether that changed anything."""
        result = self.shown(index).parts[part]
        if type(result) is not ToolResult or result.pruned_at is not None or result.fixed:
            return False
        tokens = self.counter.part(result)
        text = pruned_placeholder(self.reference(index, part), tokens)
        hidden = msgspec.structs.replace(result, output=text, media=(), edited=True, pruned_at=0.0)
        if self.counter.part(hidden) >= tokens:
            return False
        self.show(index, part, hidden, what="pruned", why="old tool output")
        return True

    def restore(self, index: int) -> bool:
        """Restore the original form of a message; return whether that changed anything."""
        if index not in self.visibility.replacements:
            return False
        self._say(index, None, "restored", "asked for", self.visibility.put(index, None))
        return True

    def show(
        self, index: int, part: int, instead: Part, *, what: Literal["admitted", "pruned", "shortened"], why: str
    ) -> None:
        """Show another part in place of one; the stored message does not change."""
        message = self.shown(index)
        parts = [instead if place == part else own for place, own in enumerate(message.parts)]
        fresh = what == "admitted" and index == len(self.messages) - 1
        put = self.visibility.admit if fresh else self.visibility.put
        self._say(index, part, what, why, put(index, message.with_parts(parts)))

    def replace(
        self, groups: Sequence[ContextGroup], text: str, *, reason: str, room: int = 0, load: Load | None = None
    ) -> Summary:
        """Replace groups by a summary; the groups of an earlier summary stay linked through the new one.

        With ``room`` a ledger follows the text, both within these tokens; ``load`` is the size of what is hidden.
        """
        earlier = self.summary_text
        last = max([index for group in groups for index in group.indices], default=self.archive.first_request or -1)
        number = earlier.number + 1 if earlier else 0
        self.exclude_all(groups, reason=reason)
        for group in groups:
            group.summarized_by = number
        frame = PivotFrame(self.seal_key, self.question)
        tokens = pivot_tokens(self, text, room, frame)
        covers_to = max(last, earlier.covers_to if earlier else -1)
        taken = tuple(group.number for group in groups)
        upto = len(self.messages)
        self.summary_text = Summary(
            number, text, taken, covers_to, tokens, earlier, room=room, upto=upto, load=load or Load(), frame=frame
        )
        self.unsummarized = False
        self.visibility.touch()
        return self.summary_text

    def covered_groups(self) -> list[ContextGroup]:
        """List the groups that the current summary replaces."""
        return self.archive.known(self.summary_text.covers) if self.summary_text else []

    def drop_summary(self) -> None:
        """Remove the summary; its groups stay excluded and can be included again."""
        for group in self.covered_groups():
            group.summarized_by = None
        self.summary_text = None
        self.visibility.touch()

    def reword(self, text: str, *, room: int | None = None) -> None:
        """Change the text of the current summary, and optionally its room; its groups stay."""
        if self.summary_text is not None:
            given = self.summary_text.room if room is None else room
            tokens = pivot_tokens(self, text, given, self.summary_text.frame)
            self.summary_text = msgspec.structs.replace(self.summary_text, text=text, room=given, tokens=tokens)
            self.visibility.touch()

    def _return_to(self, summary: Summary | None) -> None:
        """Undo summaries made since this one; link it again if it was dropped."""
        while self.summary_text is not None and self.summary_text is not summary:
            for number in self.summary_text.taken:
                self.archive.group(number).summarized_by = None
            self.summary_text = self.summary_text.earlier
        if summary is not None and self.summary_text is None:
            self.summary_text = summary
            for group in self.covered_groups():
                group.summarized_by = summary.number

    def strip_reasoning(self) -> None:
        """Show all messages so far without signed reasoning; later messages keep theirs."""
        if self.stripped_to != len(self.messages):
            self.stripped_to = len(self.messages)
            self.visibility.touch()

    def _say(self, index: int, part: int | None, what: str, why: str, tokens: int) -> None:
        self._done.append((index, part, what, why, tokens))

    def actions(self) -> list[Action]:
        """List the actions with references. References are computed here, because most callers never ask for them."""
        reference = self.archive.reference
        return [Action(reference(i, j), what, why, tokens) for i, j, what, why, tokens in self._done]

    # --- state ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Save the state, for ``rollback`` when a strategy fails; the cost depends on what is visible."""
        live = self.live
        return Snapshot(
            messages=len(self.messages),
            live=tuple([group.number for group in live]),
            pinned=frozenset([group.number for group in live if group.pinned]),
            shown=dict(self.visibility.replacements),
            summary=self.summary_text,
            inherited=self.inherited,
            unsummarized=self.unsummarized,
            stripped_to=self.stripped_to,
            actions=len(self._done),
        )

    def rollback(self, snapshot: Snapshot) -> None:
        """Return to a saved state; messages appended since then stay as they were given."""
        now, then = self.visibility.replacements, snapshot.shown
        for index in [index for index in {**now, **then} if now.get(index) is not then.get(index)]:
            self.visibility.put(index, then.get(index))
        self._return_to(snapshot.summary)
        known = set(snapshot.live)
        for group in self.live:
            if group.number not in known and group.indices[-1] < snapshot.messages:
                self.visibility.hide((group,), group.reason)
                group.pinned = False
        for number in snapshot.live:
            group = self.archive.group(number)
            self.visibility.unhide(group)
            group.pinned = number in snapshot.pinned
        self.inherited, self.unsummarized = snapshot.inherited, snapshot.unsummarized
        self.stripped_to = snapshot.stripped_to
        del self._done[snapshot.actions :]
        self.visibility.touch()

    def annotations(self) -> list[Annotation]:
        """Return the annotation of each message, to be stored with it."""
        return _annotate(self)


# --- annotations: written for a store, and applied again when the history is loaded ----------------------------------


def _reinstate(context: Context, annotations: Sequence[Annotation]) -> None:
    """Apply exclusions, summary, pruning and pins of annotations whose message is unchanged.

    A summary is restored only if all messages that it replaces are unchanged; otherwise they are shown again.
    """
    known = annotations[: len(context.messages)]
    fresh = [digest(context.messages[index]).hex() == one.content for index, one in enumerate(known)]
    folded: list[str] = []
    for index, annotation in enumerate(known):
        if not fresh[index]:
            continue
        group = context.group_at(index)
        group.pinned = group.pinned or annotation.pinned
        summarized = annotation.summarized_by is not None
        if annotation.excluded is not None and not summarized and not context.is_protected(group):
            context.exclude(group, reason=annotation.excluded)
            text = unseal(context.messages[index].text, context.seal_key) if annotation.excluded == FOLDED else None
            if text is not None:
                folded.append(text)
        for part in annotation.pruned:
            context.prune(index, part)
    context.inherited = "\n".join(folded) or context.inherited
    if all(fresh):
        _restore_summary(context, known)
    if context.is_rewritten:
        context.stripped_to = len(known)
        context.visibility.touch()


def _restore_summary(context: Context, annotations: Sequence[Annotation]) -> None:
    """Restore the summary of the groups that it replaced."""
    text = next((one.summary for one in annotations if one.summary is not None), None)
    if text is None:
        return
    marked = [context.group_at(index) for index, one in enumerate(annotations) if one.summarized_by is not None]
    groups = [group for group in dict.fromkeys(marked) if not context.is_protected(group)]
    reason = next((one.excluded for one in annotations if one.summarized_by is not None and one.excluded), "summarized")
    context.replace(groups, text, reason=reason)


def _annotate(context: Context) -> list[Annotation]:
    """Return the annotation of each message."""
    found = [_annotation(context, index) for index in range(len(context.messages))]
    summary = context.summary_text
    if summary is not None and found:
        last = max(0, min(summary.covers_to, len(found) - 1))
        found[last] = msgspec.structs.replace(found[last], summary=pivot_text(context))
    return found


def _annotation(context: Context, index: int) -> Annotation:
    group, message = context.group_at(index), context.messages[index]
    parts = enumerate(context.shown(index).parts)
    return Annotation(
        group=group.number,
        tokens=context.counter.message(message),
        counter=context.counter.name,
        content=digest(message).hex(),
        excluded=group.excluded,
        pruned=tuple(j for j, part in parts if type(part) is ToolResult and part.pruned_at is not None),
        pinned=group.pinned,
        summarized_by=None if group.summarized_by is None else f"s{group.summarized_by}",
        source_id=message.source_id,
    )
