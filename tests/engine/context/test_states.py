"""A context beside a simple model of it, through any sequence of changes."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule
from tests.engine.sessions import exact
from tests.histories.messages import assistant, call, malformed, result, tool, user

from kompakt.engine.context.archive import ContextGroup, byte_size
from kompakt.engine.context.context import Context
from kompakt.engine.context.projection import Snapshot
from kompakt.model.messages import Message, ToolResult
from kompakt.model.tokens import PRIMING

LONG = "some words that take a while to read " * 8

Seen = tuple[list[Message], int, int, int]


class ContextMachine(RuleBasedStateMachine):
    """Appends, excludes, includes, prunes, restores, summarizes, pins, reverts; recomputes everything after each."""

    snapshots = Bundle("snapshots")

    def __init__(self) -> None:
        super().__init__()
        self.context = Context()
        self.given: list[Message] = []
        self.calls = 0

    def seen(self) -> Seen:
        return list(self.context.project()), self.context.tokens, self.context.bytes, self.context.shown_messages

    def add(self, *messages: Message) -> None:
        self.given += messages
        self.context.extend(messages)

    def choose(self, data: st.DataObject, groups: list[ContextGroup]) -> ContextGroup | None:
        return data.draw(st.sampled_from(groups)) if groups else None

    @initialize(messages=malformed)
    def begin(self, messages: list[Message]) -> None:
        self.add(*messages, user("task"))

    @rule(count=st.integers(1, 3))
    def append_round(self, count: int) -> None:
        ids = [f"n{self.calls + number}" for number in range(count)]
        self.calls += count
        self.add(assistant("doing", *map(call, ids)), *[tool(result(id, LONG)) for id in ids])

    @rule(data=st.data())
    def append_late_result(self, data: st.DataObject) -> None:
        made = [f"n{number}" for number in range(self.calls)]
        self.add(tool(result(data.draw(st.sampled_from(["a", "b", *made])), LONG)))

    @rule(text=st.sampled_from(("go on", "")))
    def append_request(self, text: str) -> None:
        self.add(user(text))

    @rule(data=st.data())
    def exclude(self, data: st.DataObject) -> None:
        group = self.choose(data, self.context.droppable())
        if group is not None:
            before = self.context.tokens
            assert self.context.exclude(group, reason="drawn")
            assert self.context.tokens == before - group.tokens

    @rule(data=st.data())
    def include(self, data: st.DataObject) -> None:
        hidden = [group for group in self.context.groups if group.excluded is not None]
        group = self.choose(data, hidden)
        if group is not None:
            assert self.context.include(group) == (group.summarized_by is None)

    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        group = self.choose(data, self.context.groups)
        if group is not None:
            self.context.pin(group)
            assert self.context.is_protected(group)

    @rule(data=st.data())
    def prune(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.given) - 1))
        for part in range(len(self.given[index].parts)):
            before = self.context.message_tokens(index)
            changed = self.context.prune(index, part)
            assert (self.context.message_tokens(index) < before) == changed

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.given) - 1))
        self.context.restore(index)
        assert self.context.shown(index) is self.given[index]

    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        groups = self.context.droppable()
        taken = groups[: data.draw(st.integers(0, len(groups)))]
        if taken:
            made = self.context.replace(taken, "what happened", reason="summarized")
            assert set(made.covers) >= {group.number for group in taken}

    @precondition(lambda self: self.context.summary_text is not None)
    @rule()
    def drop_summary(self) -> None:
        self.context.drop_summary()

    @rule(target=snapshots)
    def remember(self) -> tuple[Snapshot, Seen, int]:
        return self.context.snapshot(), self.seen(), len(self.given)

    @rule(saved=consumes(snapshots))
    def go_back(self, saved: tuple[Snapshot, Seen, int]) -> None:
        snapshot, seen, length = saved
        if length == len(self.given):
            self.context.rollback(snapshot)
            assert self.seen() == seen

    @invariant()
    def totals_are_those_of_what_is_shown(self) -> None:
        context = self.context
        groups = [group for group in context.groups if group.excluded is None]
        indices = sorted(index for group in groups for index in group.indices)
        shown = [context.shown(index) for index in indices]
        summary = context.summary_text.tokens if context.summary_text else 0
        assert context.shown_indices() == indices
        assert context.live == sorted(groups, key=lambda group: group.number)
        assert context.shown_messages == len(indices)
        assert context.tokens == PRIMING + summary + sum(map(context.counter.message, shown))
        assert context.bytes == sum(map(byte_size, shown))
        assert context.projected_tokens == exact(context) == context.tokens

    @invariant()
    def nothing_is_lost(self) -> None:
        assert all(one is other for one, other in zip(self.context.messages, self.given, strict=True))
        assert sorted(index for group in self.context.groups for index in group.indices) == list(range(len(self.given)))

    @invariant()
    def pairs_stay_whole(self) -> None:
        shown = [self.context.shown(index) for index in self.context.shown_indices()]
        called = {part.id for message in shown for part in message.calls}
        ever = {part.id for message in self.given for part in message.calls}
        answers = [part for message in shown for part in message.parts if isinstance(part, ToolResult)]
        assert all(part.call_id in called for part in answers if part.call_id in ever and part.call_id.startswith("n"))


TestContextStates = ContextMachine.TestCase
TestContextStates.settings = settings(stateful_step_count=30)
