"""The context: groups, counts and states after any operation."""

from __future__ import annotations

import copy
import gc
import weakref

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.sessions import LONG, exact, outputs, resolve, rounds, session
from tests.histories import bodies, plain
from tests.histories.messages import assistant, call, malformed, result, system, tool, user
from tests.judges import FORMATS

import kompakt
from kompakt.engine.context.archive import ContextGroup, byte_size
from kompakt.engine.context.context import Annotation, Context
from kompakt.errors import UsageError
from kompakt.model.groups import groups
from kompakt.model.messages import Media, Message, Text, ToolCall, ToolResult
from kompakt.model.references import References, _ascii_form, _form
from kompakt.model.tokens import Counter, Family


def state(context: Context) -> tuple[object, ...]:
    """Take down all that can be seen of a context."""
    return list(context.project()), context.tokens, context.bytes, context.shown_messages, context.projected_tokens


class TestAppend:
    @given(malformed, st.integers(0, 14))
    def test_equals_a_context_built_at_once(self, messages: list[Message], cut: int) -> None:
        """One by one, in two parts or at once: the same groups, totals and projection, also of malformed histories."""
        whole, parted, single = Context(messages), Context(messages[:cut]), Context()
        parted.project()
        parted.extend(messages[cut:])
        for message in messages:
            single.append(message)
            single.project()
        assert state(whole) == state(parted) == state(single)
        expected = [(group.kind, list(group.indices)) for group in groups(messages)]
        for context in (whole, parted, single):
            assert sorted((g.kind, g.indices) for g in context.groups) == sorted(expected)

    @pytest.mark.parametrize("format", FORMATS)
    @given(data=st.data())
    def test_totals_equal_those_of_count(self, format: str, data: st.DataObject) -> None:
        """The total of an untouched context is that of the request: messages, system, tools and media."""
        body = data.draw(bodies(format))
        context = Context(kompakt.parse(body, format))
        assert context.tokens == kompakt.count(body, format=format).total == context.projected_tokens

    def test_projection_is_extended_in_place(self) -> None:
        """While messages are only appended the projection is one list and earlier messages are the same objects."""
        context = Context(session(1, 3))
        shown = context.project()
        before = list(shown)
        context.extend(rounds(2, start=10))
        assert context.project() is shown
        assert len(shown) == len(before) + 4
        assert all(one is other for one, other in zip(before, shown, strict=False))
        assert all(one is other for one, other in zip(shown, context.messages, strict=True))

    def test_extended_after_a_rewriting_too(self) -> None:
        """Excluded groups stay excluded, and the projection is extended, not rebuilt."""
        context = Context(session(2, 3))
        context.exclude(context.droppable()[0], reason="test")
        shown = context.project()
        before = list(shown)
        context.extend(rounds(1, start=10))
        assert context.project() is shown
        assert shown[: len(before)] == before and len(shown) == len(before) + 2

    def test_source_id_is_noted_on_message_and_group(self) -> None:
        """A group knows the source of its messages; the caller's object is unchanged."""
        context = Context([user("task")])
        added = user("It is noon.")
        context.append(added, source_id="clock")
        assert context.messages[1].source_id == context.groups[1].source_id == "clock"
        assert context.annotations()[1].source_id == "clock"
        assert added.source_id is None and context.groups[0].source_id is None


class TestProtection:
    def test_protected_groups_cannot_be_excluded(self) -> None:
        """System, first and newest request, pins and the newest group stay: trying otherwise is an error."""
        history = [
            system(),
            user("first"),
            *rounds(2),
            user("middle"),
            *rounds(1, start=5),
            user("newest"),
            *rounds(1, start=9),
        ]
        context = Context(history)
        pinned = context.group_at(2)
        context.pin(pinned)
        protected = [context.group_at(i) for i in (0, 1, 2, 9, 11)]
        assert [context.is_protected(group) for group in protected] == [True] * 5
        for group in protected:
            with pytest.raises(UsageError, match="protected"):
                context.exclude(group, reason="test")
        assert [group.indices[0] for group in context.droppable()] == [4, 6, 7]
        assert context.shown_messages == len(history)

    @given(malformed)
    def test_a_request_remains_after_any_exclusions(self, messages: list[Message]) -> None:
        """Excluding all that may go leaves the newest message and every protected group."""
        context = Context(messages)
        kept = [group for group in context.groups if context.is_protected(group)]
        context.exclude_all(context.droppable(), reason="all")
        assert context.live == kept
        assert not messages or context.project()


class TestExclusion:
    @pytest.mark.parametrize("format", FORMATS)
    @given(data=st.data())
    def test_including_again_restores_the_bytes(self, format: str, data: st.DataObject) -> None:
        """Excluding and including gives the payload back byte for byte."""
        body = data.draw(bodies(format))
        history = kompakt.parse(body, format)
        context = Context(history)
        given_body = copy.deepcopy(body)
        before = state(context)
        gone: list[ContextGroup] = (
            data.draw(st.lists(st.sampled_from(context.droppable()), unique_by=id)) if context.droppable() else []
        )
        assert context.exclude_all(gone, reason="test") == bool(gone)
        context.project()
        for group in data.draw(st.permutations(gone)):
            assert context.include(group)
        assert state(context) == before
        assert kompakt.render(history.with_messages(context.project())) == given_body == body

    def test_says_whether_anything_changed(self) -> None:
        """Twice the same is once a change; the reason is kept."""
        context = Context(session(2, 2))
        group = context.droppable()[0]
        assert context.exclude(group, reason="why") and not context.exclude(group, reason="other")
        assert group.excluded == "why"
        assert context.include(group) and not context.include(group)
        assert [action.what for action in context.actions()] == ["excluded", "included"]
        assert sum(action.tokens for action in context.actions()) == 0

    def test_counts_all_and_included(self) -> None:
        """The summary counts groups, messages, tool calls and tokens: all of them, and those shown."""
        context = Context(
            [user("go"), assistant(call("a"), call("b")), tool(result("a")), tool(result("b")), assistant("Done.")]
        )
        whole = context.summary()["all"]
        assert whole == context.summary()["included"]
        assert (whole["groups"], whole["messages"], whole["tool_calls"]) == (3, 5, 2)
        group = context.group_at(1)
        context.exclude(group, reason="test")
        left = context.summary()["included"]
        assert context.summary()["all"] == whole
        assert (left["groups"], left["messages"], left["tool_calls"]) == (2, 2, 0)
        assert left["tokens"] == whole["tokens"] - group.tokens == context.tokens - context.fixed_tokens


class TestPruning:
    def test_hides_the_output_and_keeps_the_original(self) -> None:
        """A pruned output is a placeholder with a reference to the whole; restoring brings the same bytes back."""
        history = session(2, 2)
        context = Context(history)
        before = state(context)
        assert context.prune(2, 0) and not context.prune(2, 0)
        placeholder = outputs(context.project())[0]
        assert resolve(history, context.reference(2, 0)) == history[2].results[0].output
        assert context.reference(2, 0) in placeholder and len(placeholder) < 100
        assert context.messages[2] is history[2]
        assert context.tokens == exact(context) < before[1]
        assert context.restore(2) and not context.restore(2)
        assert state(context) == before

    def test_drops_media_with_the_output(self) -> None:
        """Pictures of a hidden result are hidden too."""
        picture = Media("image", "image/png", "iVBORw0KGgo" * 200)
        seen = ToolResult("a", "a screenshot " * 40, media=(picture,))
        context = Context([user("go"), assistant(call("a")), tool(seen), user("on")])
        assert context.prune(2, 0)
        assert [part.media for part in context.project()[2].results] == [()]
        assert context.bytes < 200

    def test_bytes_do_not_depend_on_when_they_are_asked_for(self) -> None:
        """Messages are measured on demand: before, between or after they are hidden, replaced and shown again."""
        messages = list(session(1, 6))

        def measured(asks: set[int]) -> int:
            context = Context(messages[:4])
            steps = (
                lambda: context.exclude(context.droppable()[0], reason="test"),
                lambda: context.extend(messages[4:]),
                lambda: [context.prune(index, 0) for index in range(len(messages)) if context.messages[index].results],
                lambda: [context.exclude(group, reason="test") for group in context.droppable()[:2]],
                lambda: [context.include(group) for group in context.groups[1:]],
            )
            for number, step in enumerate(steps):
                if number in asks:
                    assert context.bytes == sum(map(byte_size, context.visibility.shown_messages()))
                step()
            return context.bytes

        found = [measured(asks) for asks in (set[int](), {0}, {1}, {2, 3}, {0, 1, 2, 3, 4})]
        assert len(set(found)) == 1

    def test_skips_messages_that_would_grow(self) -> None:
        """An output shorter than its placeholder stays as it is."""
        context = Context([user("go"), assistant(call("a")), tool(result("a", "ok")), user("on")])
        assert not context.prune(2, 0)
        assert not context.is_rewritten

    def test_leaves_outputs_that_cannot_be_replaced(self) -> None:
        """A result marked fixed is never replaced."""
        fixed = ToolResult("a", LONG, fixed=True)
        context = Context([user("go"), assistant(call("a")), tool(fixed), user("on")])
        assert not context.prune(2, 0)


class TestState:
    def test_rollback_with_messages_appended_in_between(self) -> None:
        """The changes are undone; appended messages stay unchanged."""
        history = session(3, 3)
        context, beside = Context(history), Context(history)
        for one in (context, beside):
            one.exclude(one.group_at(1), reason="before")
        snapshot = context.snapshot()
        context.replace(context.droppable()[:3], "a summary", reason="summarized")
        context.prune(16, 0)
        more = rounds(2, start=50)
        context.extend(more)
        context.strip_reasoning()
        context.rollback(snapshot)
        beside.extend(more)
        assert state(context) == state(beside)
        assert context.summary_text is None and not any(g.summarized_by is not None for g in context.groups)
        assert [action.what for action in context.actions()] == ["excluded"]

    def test_rollback_hides_what_was_hidden_after_the_newest_group(self) -> None:
        """A group that started after the newest one, which a late result made the newest, is hidden again."""
        context = Context([user("go"), assistant(call("a")), assistant("aside", id="z"), tool(result("a"))])
        context.exclude(context.group_at(2), reason="before")
        before, snapshot = state(context), context.snapshot()
        context.include(context.group_at(2))
        context.rollback(snapshot)
        assert state(context) == before

    def test_rollback_undoes_a_pin_of_what_was_hidden(self) -> None:
        """A group pinned since then is neither shown nor pinned afterwards."""
        context = Context(session(2, 2))
        group = context.droppable()[0]
        context.exclude(group, reason="before")
        before, snapshot = state(context), context.snapshot()
        context.pin(group)
        context.rollback(snapshot)
        assert state(context) == before and not group.pinned

    def test_a_summary_links_both_ways_and_folds_the_earlier_one(self) -> None:
        """Groups know their summary, the newest summary knows all groups, and they cannot be included apart from it."""
        context = Context(session(4, 2))
        first, second = context.droppable()[:2], context.droppable()[2:4]
        context.replace(first, "early", reason="summarized")
        made = context.replace(second, "early and later", reason="summarized")
        assert made.covers == tuple(group.number for group in (*first, *second))
        assert [group.summarized_by for group in (*first, *second)] == [0, 0, made.number, made.number]
        assert made.earlier is not None and made.earlier.text == "early"
        assert not context.include(first[0])
        assert context.tokens == exact(context)
        shown = [message.text for message in context.project()]
        assert sum("early" in text for text in shown) == 1
        context.drop_summary()
        assert context.include(first[0])


def stored(context: Context) -> list[Annotation]:
    """Send annotations through JSON, as a store does."""
    return msgspec.json.decode(msgspec.json.encode(context.annotations()), type=list[Annotation])


class TestAnnotations:
    def test_restore_exclusions_pins_and_pruning(self) -> None:
        """A context made from messages and their stored annotations shows what the first one showed."""
        history = session(3, 3)
        first = Context(history)
        first.exclude(first.group_at(1), reason="old")
        first.prune(4, 0)
        first.pin(first.group_at(8))
        second = Context(history, annotations=stored(first))
        assert state(second) == state(first)
        assert second.group_at(1).excluded == "old" and second.group_at(8).pinned
        assert second.annotations() == first.annotations()

    def test_stored_token_counts_are_reused(self) -> None:
        """With stored annotations no message is counted again."""
        history = session(2, 2)
        asked: list[str] = []

        def count(text: str) -> int:
            asked.append(text)
            return len(text)

        first = Context(history, counter=Counter(count=count))
        annotations = stored(first)
        asked.clear()
        assert Context(history, counter=Counter(count=count), annotations=annotations).tokens == first.tokens
        assert asked == []

    def test_an_edited_message_is_counted_again_and_loses_its_state(self) -> None:
        """An annotation belongs to one content."""
        history = session(3, 2)
        first = Context(history)
        first.exclude(first.group_at(1), reason="old")
        first.prune(4, 0)
        edited = [*history]
        edited[1] = assistant("Step 0, edited.", call("c0"))
        edited[2] = tool(result("c0", "other"))
        edited[4] = tool(result("c1", LONG * 2))
        second = Context(edited, annotations=stored(first))
        assert second.tokens == Context(edited).tokens
        assert second.group_at(1).excluded is None and not second.is_rewritten

    def test_another_counter_counts_again(self) -> None:
        """An annotation belongs to one counter."""
        history = session(2, 2)
        annotations = stored(Context(history))
        double = Counter(Family("double", factor=2.0))
        assert (
            Context(history, counter=double, annotations=annotations).tokens == Context(history, counter=double).tokens
        )


class TestReferences:
    @given(malformed)
    def test_the_fast_form_of_a_message_is_the_canonical_one(self, messages: list[Message]) -> None:
        """Names are stored, so both ways to put a message together give the same bytes, also around 1,024 of them."""
        lengths = (0, 127, 128, 255, 1_023, 1_024, 1_025, 70_000)
        texts = [text for n in lengths for text in ("a" * n, "a" * n + "\x7f", "ä" * n, "\ud800" * n)]
        plain = [Message("tool", (ToolResult(text[:200], text),)) for text in texts]
        plain += [Message("assistant", (Text(text), ToolCall(text, "run", text))) for text in texts]
        for message in (*messages, *plain):
            fast = _ascii_form(message)
            assert not fast or fast == _form(message)
        assert sum(map(bool, map(_ascii_form, plain))) >= len(plain) // 2

    def test_are_stable_unique_and_chained(self) -> None:
        """The same history has the same names on every pass and fork; another past gives other names."""
        history = kompakt.parse(plain.build("anthropic", messages=200, seed=4))
        names = References(history).names
        assert len(set(names)) == len(names) and names == References(history).names
        assert References(history[:50]).names == names[:50]
        other = References([user("another past"), *history]).names[1:]
        assert sum(one == two for one, two in zip(names, other, strict=True)) < 3
        context = Context(history)
        assert [context.reference(index) for index in range(len(history))] == names
        assert context.reference(3, 1) == f"{names[3]}.1"

    def test_a_colliding_reference_becomes_longer(self) -> None:
        """If two messages have the same short prefix, the later one gets more digits."""
        first = user("first")
        taken = References([first]).names[0]
        for number in range(2_000_000):
            second = user(f"second {number}")
            names = References([first, second])
            if len(names.names[1]) > len(taken):
                break
        assert names.names[0] == taken and names.names[1].startswith(taken)
        assert names.find(taken) == 0 and names.find(names.names[1]) == 1 == names.find(f"{names.names[1]}.0")

    def test_do_not_depend_on_how_a_message_is_written(self) -> None:
        """A string equals its single text block, cache marks and key order are ignored."""
        plainly = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "t", "input": {"x": 1, "y": 2}}]},
        ]
        marked = [
            {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "t", "input": {"y": 2, "x": 1}}]},
        ]
        assert (
            References(kompakt.parse(plainly, "anthropic")).names
            == References(kompakt.parse(marked, "anthropic")).names
        )


class TestCallersObjects:
    def test_are_never_written_to(self) -> None:
        """Messages and their wire form are the same after everything was done to the context."""
        body = plain.build("openai-chat", messages=40, seed=2)
        before = copy.deepcopy(body)
        history = kompakt.parse(body)
        messages = list(history)
        context = Context(history)
        context.prune(3, 0)
        context.replace(context.droppable()[:4], "summary", reason="test")
        context.exclude_all(context.droppable(), reason="test")
        context.strip_reasoning()
        context.project()
        assert body == before
        assert all(one is other for one, other in zip(context.messages, messages, strict=True))
        assert not any(isinstance(part, Text) and part.edited for message in messages for part in message.parts)


class TestMemory:
    def test_a_context_is_freed_without_the_garbage_collector(self) -> None:
        """A long history in a cycle would wait for a full collection, which blocks every thread."""
        history = kompakt.parse(
            [{"role": ("user", "assistant")[n % 2], "content": f"part {n} of it"} for n in range(201)], "openai-chat"
        )
        enabled = gc.isenabled()
        gc.disable()
        try:
            result = kompakt.compact(history, 500)
            context = Context(history)
            context.project()
            freed = weakref.ref(context)
            del context
            assert result.changed and freed() is None
            before = [one for one in gc.get_objects() if type(one) is Context]
            kompakt.compact(history, 600)
            assert [one for one in gc.get_objects() if type(one) is Context] == before
        finally:
            if enabled:
                gc.enable()


@pytest.mark.parametrize(
    "context",
    [
        "<environment_context>\n  <cwd>/work</cwd>\n</environment_context>",
        "<user_instructions>\nUse tabs.\n</user_instructions>\n<environment_context>x</environment_context>",
        "# AGENTS.md instructions for /work\n\nUse tabs.",
        "This is the Gemini CLI. We are setting up the context for our chat.",
    ],
)
def test_context_that_an_agent_puts_before_the_task_is_not_the_first_request(context: str) -> None:
    """Else it would stay in every view, and the task of the user would not."""
    messages = [user(context), user("Rename the module heron."), assistant("Done."), user("Thanks.")]
    first, _ = Context(messages).archive.requests()
    assert first is not None and first.indices == [1]


def test_a_request_in_tags_of_the_user_is_the_first_request() -> None:
    """Some people write whole prompts in tags of their own."""
    messages = [user("<task>Rename the module heron.</task>"), user("Go."), assistant("Done."), user("Thanks.")]
    first, _ = Context(messages).archive.requests()
    assert first is not None and first.indices == [0]
