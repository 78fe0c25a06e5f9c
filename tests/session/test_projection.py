"""A growing session with compactions: between two of them the projection only grows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st
from tests.histories import bodies, plain
from tests.session.builders import FORMATS, Body, faults, fresh, items_of, run, text, total, with_items

import kompakt
from kompakt.engine.compaction.compact import Outcome
from kompakt.model.phrases import RESUME_PROMPT
from kompakt.session import compaction
from kompakt.session.session import Session
from kompakt.store.memory import MemoryRecords
from kompakt.wire.registry import WIRES

Step = tuple[int, str]


@st.composite
def runs(draw: st.DrawFn, format: str) -> tuple[Body, list[Step], float]:
    """Draw a history, where it is cut into batches, what is done after each, and a budget as a share."""
    if draw(st.integers(0, 3)) == 0:
        body = draw(bodies(format, max_turns=4, max_steps=3))
    else:
        size, seed, chars = draw(st.integers(8, 50)), draw(st.integers(0, 50)), draw(st.integers(50, 1000))
        body = plain.build(format, messages=size, seed=seed, mean_chars=chars, parallel=draw(st.integers(1, 3)))
    last = len(items_of(format, body))
    drawn = sorted(draw(st.sets(st.integers(1, max(1, last - 1)), max_size=8)))
    roles = [message.role for message in kompakt.parse(body, format)]
    cuts = [*(at for at in drawn if roles[at - 1 : at + 1] != ["assistant", "assistant"]), last]  # an answer is whole
    deeds = st.sampled_from(("nothing", "compact", "compact", "ask and compact", "undo", "reopen"))
    return body, [(cut, draw(deeds)) for cut in dict.fromkeys(cuts)], draw(st.floats(0.15, 0.9))


class GrowingSession:
    """One session that grows, and what is known of it."""

    def __init__(self, format: str, body: Body, budget: int) -> None:
        self.format, self.body, self.budget = format, body, budget
        self.records = MemoryRecords()
        self.stored: list[Any] = []
        self.shown: list[Any] | None = None
        """The last projection that the model saw; empty while it is not valid."""
        self.before: list[str] = []
        """The projections before each effective compaction, with nothing appended since."""
        self.outcomes: list[Outcome] = []
        """The results of compactions, before they were stored."""

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        proceed = compaction.proceed

        async def watched(*args: Any, **options: Any) -> Outcome:
            self.outcomes.append(await proceed(*args, **options))
            return self.outcomes[-1]

        patch.setattr(compaction, "proceed", watched)

    async def grow(self, session: Session, items: list[Any]) -> None:
        await session.append(with_items(self.format, self.body, items), format=self.format)
        self.stored = [*self.stored, *items]
        self.before = []
        await self.look(session)

    async def look(self, session: Session) -> None:
        """Check that the projection is valid and extends the previous one."""
        view = await session.project()
        whole = with_items(self.format, self.body, self.stored)
        assert text(await session.export()) == text(whole)
        assert await session.verify() == []
        assert self.is_valid(view.payload)
        # With manual thinking the whole history may be rendered as one message, which then grows.
        if not self.is_valid(whole) or WIRES[self.format].manual_thinking(self.body):
            self.shown = None
            return
        assert [one for one in view.repairs if not one.startswith("OR-10")] == []  # a server's trigger must be last
        if kompakt.parse(view.payload, self.format).messages[-1].role != "assistant":
            assert [fault for fault in faults(self.format, view.payload) if not fault.startswith("BR-5")] == []
        items = items_of(self.format, view.payload)
        if self.shown is not None:
            assert text(items[: len(self.shown)]) == text(self.shown)
        if RESUME_PROMPT in text(items[-1:]):  # the next user text may have to be in the same message
            items = items[:-1]
        self.shown = items

    def is_valid(self, payload: Any) -> bool:
        """Return whether a provider accepts a request, now or after the next user message."""
        return any(kompakt.check(payload, self.format, resting=resting) == [] for resting in (False, True))

    async def compact(self, session: Session, *, asked: bool) -> None:
        before = text(await session.export(view="model"))
        self.outcomes.clear()
        if asked:
            await session.request_compaction()
        try:
            done = await session.compact(self.budget)
        except kompakt.DoesNotFit:
            assert text(await session.export(view="model")) == before
            return
        assert asked <= done.changed
        assert text(await session.export(view="model")) == before or done.changed
        view = await session.project()
        assert view.tokens <= self.budget
        if done.changed:
            live = list(self.outcomes[-1].context.project())
            while (
                live and live[-1].role == "system"
            ):  # the line that asks to continue goes into the user message before it
                live.pop()
            as_if = [item for message in live[:-1] for item in WIRES[self.format].render(message)]
            assert text(items_of(self.format, kompakt.render(view.history))[: len(as_if)]) == text(as_if)
            self.shown, self.before = None, [*self.before, before]
        await self.look(session)

    async def undo(self, session: Session) -> None:
        if self.before:
            await session.undo()
            assert text(await session.export(view="model")) == self.before.pop()
            self.shown = None
            await self.look(session)


@pytest.mark.parametrize("format", FORMATS)
class TestGrowth:
    @settings(max_examples=50)
    @given(data=st.data())
    def test_the_projection_only_grows(self, format: str, data: st.DataObject) -> None:
        """Valid at each step, extended between two compactions, within budget after one, undone without trace."""
        body, steps, share = data.draw(runs(format))
        note(f"{format}: {steps} share {share}")
        assume(items_of(format, body))
        growing = GrowingSession(format, body, max(1, int(total(format, body) * share)))

        async def work() -> None:
            session, at = await fresh(growing.records), 0
            for cut, deed in steps:
                await growing.grow(session, items_of(format, body)[at:cut])
                at = cut
                if deed == "undo":
                    await growing.undo(session)
                elif deed == "reopen":
                    session = await fresh(growing.records)
                elif deed != "nothing":
                    await growing.compact(session, asked=deed == "ask and compact")

        with pytest.MonkeyPatch.context() as patch:
            growing.watch(patch)
            run(work())
