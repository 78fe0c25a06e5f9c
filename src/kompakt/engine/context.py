"""The context: an annotated history and what of it the model will see.

The one mutable object. Appending costs what the new message costs; totals are read, not computed; the projection is
extended while nothing else changes and rebuilt from the live groups when something does. Messages themselves are
frozen values of the caller's and are never written to: everything said about them is said here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from kompakt.engine import pivot
from kompakt.engine.annotation import Action, Annotation
from kompakt.engine.projection import Projection
from kompakt.engine.state import ContextGroup, Snapshot, Summary, byte_size, speaks, words_of
from kompakt.engine.wording import pruned_placeholder
from kompakt.errors import UsageError
from kompakt.model.contract import Contract
from kompakt.model.groups import Grouping
from kompakt.model.messages import History, Message, Part, ToolCall, ToolResult
from kompakt.model.references import References, digest
from kompakt.model.tokens import PRIMING, Counter, counter_for, tool_tokens


class Context:
    """The annotated history of one conversation."""

    def __init__(
        self,
        messages: Iterable[Message] = (),
        *,
        counter: Counter | None = None,
        contract: Contract | None = None,
        annotations: Sequence[Annotation] = (),
    ) -> None:
        history = messages if isinstance(messages, History) else None
        self.counter = counter or counter_for(None if history is None else history.model)
        self.contract = contract if contract is not None or history is None else history.contract
        self.goal = 0
        """Tokens that strategies without a target of their own come down to; set by the policy that runs them."""
        self.summary_text: Summary | None = None
        self.stripped_to = 0
        """Messages before this index are shown without signed reasoning."""
        self.single_message = False
        """Whether the whole projection is one user message (manual thinking with an open round)."""
        self.pinned_texts: list[str] = []
        self.instructions: str | None = None
        """What the caller asks of a summary."""
        self.fixed_tokens = PRIMING
        """What the envelope costs: system, tools, the beginning of the answer."""
        self._messages: list[Message] = []
        self._shown: dict[int, Message] = {}
        """Messages that are shown otherwise than they are: pruned, shortened."""
        self._counts: list[int] = []
        self._sizes: list[int] = []
        self._grouping = Grouping()
        self._groups: dict[int, ContextGroup] = {}
        self._live: list[int] = []
        self._done: list[tuple[int, int | None, str, str, int]] = []
        self._inherited: str | None = None
        self._rewritten_to = 0
        self._projection = Projection(self)
        self._references = References()
        self._first_request: int | None = None
        self._newest_request: int | None = None
        self._tokens = 0
        self._bytes = 0
        self._shown_messages = 0
        self._rounds = 0
        self._version = 0
        self._known = {annotation.content: annotation for annotation in annotations}
        if history is not None:
            self._charge_envelope(history)
        self.extend(messages)
        if annotations:
            self._restore(annotations)

    def _charge_envelope(self, history: History) -> None:
        self.fixed_tokens += sum(map(self.counter.message, history.system))
        if history.tools:
            self.fixed_tokens += tool_tokens(history.tools, self.counter)

    # --- append ---------------------------------------------------------------------------------------------------

    def append(self, message: Message, *, source_id: str | None = None) -> None:
        """Add a message: group it, count it, nothing else."""
        if source_id is not None:
            message = msgspec.structs.replace(message, source_id=source_id)
        index = len(self._messages)
        self._messages.append(message)
        tokens = self._count(message)
        self._counts.append(tokens)
        size = byte_size(message)
        self._sizes.append(size)
        if message.role == "assistant":
            self._rounds += 1
        group = self._group_of(index, message)
        group.indices.append(index)
        group.tokens += tokens
        if group.excluded is None:
            self._tokens += tokens
            self._bytes += size
            self._shown_messages += 1
        if speaks(message):
            if self._first_request is None:
                self._first_request = index
            self._newest_request = index

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

    def _group_of(self, index: int, message: Message) -> ContextGroup:
        """Find or begin the group of the newest message, and follow a merge of two."""
        grouping = self._grouping
        number = grouping.root(grouping.add(message))
        group = self._groups.get(number)
        if group is None:
            group = self._groups[number] = ContextGroup(number, grouping.kinds[number])
            group.source_id = message.source_id
            self._live.append(number)
        group.kind = grouping.kinds[number]
        if grouping.merges:
            self._follow_merges(group)
        return group

    def _follow_merges(self, group: ContextGroup) -> None:
        for number in self._grouping.take_merges():
            other = self._groups.pop(number, None)
            if other is None or other is group:
                continue
            self._live.remove(number)
            self._set_excluded(other, None)
            self._set_excluded(group, None)
            group.indices = sorted([*group.indices, *other.indices])
            group.tokens += other.tokens
            group.pinned = group.pinned or other.pinned
            self._touch()

    def _restore(self, annotations: Sequence[Annotation]) -> None:
        """Take exclusions, pruning and pins over from annotations whose content still stands at their place."""
        for index, annotation in enumerate(annotations[: len(self._messages)]):
            if digest(self._messages[index]).hex() != annotation.content:
                continue
            group = self.group_at(index)
            if annotation.pinned:
                group.pinned = True
            if annotation.excluded is not None and group.excluded is None and not self.is_protected(group):
                self.exclude(group, reason=annotation.excluded)
            for part in annotation.pruned:
                self.prune(index, part)

    # --- what is there --------------------------------------------------------------------------------------------

    @property
    def messages(self) -> Sequence[Message]:
        """The full history, whatever is shown of it."""
        return self._messages

    @property
    def groups(self) -> list[ContextGroup]:
        """All groups, in the order they began."""
        return list(self._groups.values())

    @property
    def live(self) -> list[ContextGroup]:
        """The groups that are shown, in order; costs time in these only."""
        self._live = [number for number in self._live if self._groups[number].excluded is None]
        return [self._groups[number] for number in self._live]

    @property
    def tokens(self) -> int:
        """Tokens of the request as it is shown, before roles are made to alternate."""
        return self._tokens + self.fixed_tokens + (self.summary_text.tokens if self.summary_text else 0)

    @property
    def bytes(self) -> int:
        """Bytes of text and media shown."""
        return self._bytes

    @property
    def shown_messages(self) -> int:
        """How many messages are shown."""
        return self._shown_messages

    @property
    def rounds(self) -> int:
        """How many assistant messages there are: the steps of the run."""
        return self._rounds

    @property
    def version(self) -> int:
        """A number that changes whenever something other than an append happens."""
        return self._version

    @property
    def is_rewritten(self) -> bool:
        """Tell whether anything is shown otherwise than it came."""
        hidden = self._shown_messages < len(self._messages)
        return hidden or bool(self._shown) or self.summary_text is not None or self.stripped_to > 0

    @property
    def rewritten_to(self) -> int:
        """How many messages there were when something was last rewritten; later ones stand as they came."""
        return self._rewritten_to

    def shown_indices(self) -> list[int]:
        """List the messages that are shown, in order."""
        return sorted(index for group in self.live for index in group.indices)

    def project(self) -> Sequence[Message]:
        """Return what the model will see; extended in place until something is rewritten."""
        return self._projection.refresh()

    @property
    def projected_tokens(self) -> int:
        """Tokens of the projection, exactly."""
        self._projection.refresh()
        return self._projection.tokens

    def group_at(self, index: int) -> ContextGroup:
        """Return the group of a message."""
        return self._groups[self._grouping.root(self._grouping.owners[index])]

    def shown(self, index: int) -> Message:
        """Return a message as it is shown now, reasoning not yet stripped."""
        return self._shown.get(index, self._messages[index])

    def message_tokens(self, index: int) -> int:
        """Return what a message costs as it is shown now."""
        return self._counts[index]

    def reference(self, index: int, part: int | None = None) -> str:
        """Name a message or one of its parts; names are made when first asked for."""
        names = self._references.names
        while len(names) <= index:
            self._references.add(self._messages[len(names)])
        return names[index] if part is None else f"{names[index]}.{part}"

    def summary(self) -> dict[str, dict[str, int]]:
        """Count groups, messages, tool calls and tokens: all, and those shown."""
        shown = self.live
        everything = self.groups
        return {"all": self._tally(everything), "included": self._tally(shown)}

    def _tally(self, groups: list[ContextGroup]) -> dict[str, int]:
        indices = [index for group in groups for index in group.indices]
        calls = sum(type(part) is ToolCall for index in indices for part in self._messages[index].parts)
        tokens = sum(group.tokens for group in groups)
        return {"groups": len(groups), "messages": len(indices), "tool_calls": calls, "tokens": tokens}

    # --- what may go ----------------------------------------------------------------------------------------------

    def is_protected(self, group: ContextGroup) -> bool:
        """Tell whether a group survives every strategy: system, first and newest request, pins, the newest group."""
        return (
            group.pinned
            or group.kind == "system"
            or group.indices[-1] == len(self._messages) - 1
            or group in self.requests()
        )

    def droppable(self) -> list[ContextGroup]:
        """List the shown groups that may go, oldest first."""
        return [group for group in self.live if not self.is_protected(group)]

    def requests(self) -> tuple[ContextGroup | None, ContextGroup | None]:
        """Return the groups of the first and the newest request."""
        first, newest = self._first_request, self._newest_request
        return (
            None if first is None else self.group_at(first),
            None if newest is None else self.group_at(newest),
        )

    def is_request_at(self, index: int) -> bool:
        """Tell whether a message is the user's own request."""
        return speaks(self._messages[index])

    def is_open(self, index: int) -> bool:
        """Tell whether a message belongs to the newest group, which the model has not answered yet."""
        return self.group_at(index).indices[-1] == len(self._messages) - 1

    def shows(self, text: str) -> bool:
        """Tell whether some shown message contains a text as it is."""
        return any(text in words_of(part) for index in self.shown_indices() for part in self.shown(index).parts)

    # --- change ---------------------------------------------------------------------------------------------------

    def exclude(self, group: ContextGroup, *, reason: str) -> bool:
        """Hide a group from the model; return whether that changed anything.

        Raises:
            UsageError: the group is protected.
        """
        if group.excluded is not None:
            return False
        if self.is_protected(group):
            raise UsageError(f"{group!r} is protected and cannot be excluded; unpin it or choose another")
        self._set_excluded(group, reason)
        self._say((group.indices[0], None), "excluded", reason, group.tokens)
        return True

    def exclude_all(self, groups: Iterable[ContextGroup], *, reason: str) -> bool:
        """Hide several groups; return whether that changed anything."""
        return max([self.exclude(group, reason=reason) for group in groups], default=False)

    def include(self, group: ContextGroup) -> bool:
        """Show an excluded group again; return whether that changed anything."""
        if group.excluded is None or group.summarized_by is not None:
            return False
        self._set_excluded(group, None)
        self._say((group.indices[0], None), "included", "asked for", -group.tokens)
        return True

    def _set_excluded(self, group: ContextGroup, reason: str | None) -> None:
        if (group.excluded is None) == (reason is None):
            return
        sign = 1 if reason is None else -1
        if reason is None and group.number not in self._live:
            self._live = sorted([*self._live, group.number])
        group.excluded = reason
        group.reason = reason or group.reason
        self._tokens += sign * group.tokens
        self._bytes += sign * sum(self._sizes[index] for index in group.indices)
        self._shown_messages += sign * len(group.indices)
        self._touch()

    def pin(self, group: ContextGroup) -> None:
        """Make a group part of what always stays."""
        group.pinned = True
        if group.summarized_by is None:
            self._set_excluded(group, None)

    def prune(self, index: int, part: int) -> bool:
        """Hide one tool output behind a placeholder; return whether that changed anything."""
        result = self.shown(index).parts[part]
        if type(result) is not ToolResult or result.pruned_at is not None:
            return False
        tokens = self.counter.part(result)
        text = pruned_placeholder(self.reference(index, part), tokens)
        hidden = msgspec.structs.replace(result, output=text, media=(), edited=True, pruned_at=0.0)
        if self.counter.part(hidden) >= tokens:
            return False
        self.show(index, part, hidden, what="pruned", why="old tool output")
        return True

    def restore(self, index: int) -> bool:
        """Show a message as it is again; return whether that changed anything."""
        if index not in self._shown:
            return False
        before = self._counts[index]
        del self._shown[index]
        self._recount(index)
        self._say((index, None), "restored", "asked for", before - self._counts[index])
        return True

    def show(self, index: int, part: int, instead: Part, *, what: Literal["pruned", "shortened"], why: str) -> None:
        """Show another part in the place of one; the message itself stays what it is."""
        message = self.shown(index)
        before = self._counts[index]
        self._shown[index] = message.with_parts(instead if j == part else p for j, p in enumerate(message.parts))
        self._recount(index)
        self._say((index, part), what, why, before - self._counts[index])

    def _recount(self, index: int) -> None:
        shown = self.shown(index)
        tokens, size = self.counter.message(shown), byte_size(shown)
        group = self.group_at(index)
        change, grown = tokens - self._counts[index], size - self._sizes[index]
        self._counts[index], self._sizes[index] = tokens, size
        group.tokens += change
        if group.excluded is None:
            self._tokens += change
            self._bytes += grown
        self._touch()

    def replace(self, groups: Sequence[ContextGroup], text: str, *, reason: str) -> Summary:
        """Let a summary stand for groups; the groups of an earlier summary stay linked through the new one."""
        earlier = self.summary_text
        covers = (*(earlier.covers if earlier else ()), *[group.number for group in groups])
        last = max([index for group in groups for index in group.indices], default=-1)
        covers_to = max(last, earlier.covers_to if earlier else -1)
        number = earlier.number + 1 if earlier else 0
        for group in groups:
            self.exclude(group, reason=reason)
        for covered in covers:
            self._groups[self._grouping.root(covered)].summarized_by = number
        self.summary_text = Summary(number, text, covers, covers_to, self.counter.scaled(self.counter.text(text)) + 20)
        self._touch()
        return self.summary_text

    def covered_groups(self) -> list[ContextGroup]:
        """List the groups that the present summary stands for."""
        numbers = self.summary_text.covers if self.summary_text else ()
        return [self._groups[self._grouping.root(number)] for number in numbers]

    def drop_summary(self) -> None:
        """Show no summary; what it stood for stays excluded and can be included again."""
        for group in self.covered_groups():
            group.summarized_by = None
        if self.summary_text is not None:
            self.summary_text = None
            self._touch()

    def adopt_pivot(self) -> str | None:
        """Take over the pivot of an earlier pass, if one is shown: hide it and return its summary to be folded in."""
        indices = self.shown_indices()
        found = pivot.earlier([self.shown(index) for index in indices])
        if found is None:
            return self._inherited
        position, self._inherited = found
        question, answer = indices[position - 1], indices[position]
        self._set_excluded(self.group_at(answer), "folded into a newer summary")
        asked = self.shown(question)
        if len(asked.parts) == 1:
            self._set_excluded(self.group_at(question), "folded into a newer summary")
        else:
            self._shown[question] = asked.with_parts(asked.parts[:-1])
            self._recount(question)
        return self._inherited

    def strip_reasoning(self) -> None:
        """Show everything there is now without signed reasoning; what comes later keeps its own."""
        if self.stripped_to != len(self._messages):
            self.stripped_to = len(self._messages)
            self._touch()

    def _touch(self) -> None:
        self._version += 1
        self._rewritten_to = len(self._messages)

    def _say(self, place: tuple[int, int | None], what: str, why: str, tokens: int) -> None:
        self._done.append((*place, what, why, tokens))

    def actions(self) -> list[Action]:
        """List what was done, with references; these are made here and not while it is done."""
        return [Action(self.reference(i, j), what, why, tokens) for i, j, what, why, tokens in self._done]

    # --- state ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Remember the state, to return to when a strategy fails."""
        return Snapshot(
            live=tuple(group.number for group in self.live),
            pinned=frozenset(number for number in self._live if self._groups[number].pinned),
            shown=dict(self._shown),
            summary=self.summary_text,
            inherited=self._inherited,
            stripped_to=self.stripped_to,
            single_message=self.single_message,
            actions=len(self._done),
        )

    def rollback(self, snapshot: Snapshot) -> None:
        """Return to a state; messages appended since then stay, as they were appended."""
        changed = {index for index in self._shown if self._shown[index] is not snapshot.shown.get(index)}
        changed |= snapshot.shown.keys() - self._shown.keys()
        self._shown = dict(snapshot.shown)
        for index in changed:
            self._recount(index)
        self.drop_summary()
        self.summary_text = snapshot.summary
        for group in self.covered_groups():
            group.summarized_by = snapshot.summary.number if snapshot.summary else None
        before = set(snapshot.live)
        for group in self.live:
            if group.number not in before and group.number <= max(before, default=-1):
                self._set_excluded(group, group.reason)
        for number in snapshot.live:
            group = self._groups[self._grouping.root(number)]
            self._set_excluded(group, None)
            group.pinned = number in snapshot.pinned
        self._inherited = snapshot.inherited
        self.stripped_to, self.single_message = snapshot.stripped_to, snapshot.single_message
        del self._done[snapshot.actions :]
        self._touch()

    def annotations(self) -> list[Annotation]:
        """Give what is known of each message, to be stored beside it."""
        return [self._annotation(index) for index in range(len(self._messages))]

    def _annotation(self, index: int) -> Annotation:
        group = self.group_at(index)
        message = self._messages[index]
        hidden = self._shown.get(index)
        pruned = tuple(
            j
            for j, part in enumerate(hidden.parts if hidden else ())
            if type(part) is ToolResult and part.pruned_at is not None
        )
        return Annotation(
            group=group.number,
            tokens=self.counter.message(message),
            counter=self.counter.name,
            content=digest(message).hex(),
            excluded=group.excluded,
            pruned=pruned,
            pinned=group.pinned,
            summarized_by=None if group.summarized_by is None else f"s{group.summarized_by}",
            source_id=message.source_id,
        )
