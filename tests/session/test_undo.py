"""Any sequence of operations on a session, compared with a list of messages as the model."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.session.builders import fresh, run, text, turn

import kompakt
from kompakt.session.session import Session
from kompakt.store.memory import MemoryRecords

FORMAT = "openai-chat"
Body = dict[str, Any]


class ModelSession:
    """The expected state of one session."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.turns: list[list[Body]] = []
        self.references: dict[str, Body] = {}
        self.undoable: list[tuple[str, Any]] = []
        """The operations that can be undone, newest last: the kind, and the state before it."""
        self.appended = 0
        """Messages ever appended, by which a revert knows whether it can still be taken back."""

    @property
    def messages(self) -> list[Body]:
        return [message for one in self.turns for message in one]


class UndoRedo(RuleBasedStateMachine):
    """One store, a few sessions, operations in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.records = MemoryRecords()
        self.made = [ModelSession("s0")]
        self.at = 0
        self.numbers = 0

    @property
    def model(self) -> ModelSession:
        return self.made[self.at]

    async def session(self) -> Session:
        return await fresh(self.records, self.model.id)

    def new_turn(self, steps: int) -> list[Body]:
        self.numbers += 1
        return turn(self.numbers, chars=200, steps=steps)

    # --- rules ------------------------------------------------------------------------------------------------------

    @rule(steps=st.integers(0, 3), key=st.booleans(), whole=st.booleans())
    def say(self, steps: int, key: bool, whole: bool) -> None:
        """Append a turn: alone, twice with one key, or as part of the whole history."""
        new, model = self.new_turn(steps), self.model

        async def work() -> None:
            session = await self.session()
            if whole:
                names = await session.save([*model.messages, *new], format=FORMAT)
                assert await session.save([*model.messages, *new], format=FORMAT) == []
            else:
                name = f"turn {self.numbers}" if key else None
                names = await session.append(new, format=FORMAT, key=name)
                assert not key or await session.append(new, format=FORMAT, key=name) == []
            model.references |= dict(zip(names, new, strict=True))

        run(work())
        model.turns.append(new)
        model.appended += 1

    @precondition(lambda self: self.model.turns)
    @rule(share=st.floats(0.2, 1.2), asked=st.booleans(), words=st.booleans())
    def compact(self, share: float, asked: bool, words: bool) -> None:
        """Compact; all messages stay."""

        async def work() -> None:
            session = await self.session()
            before = text(await session.export(view="model"))
            budget = max(1, int(await session.count() * share))
            pending = bool(await session.pending())
            if asked:
                await session.request_compaction(instructions="be short")
            try:
                done = await session.compact(budget, summarizer=(lambda _: "In words.") if words else None)
            except kompakt.DoesNotFit:
                assert text(await session.export(view="model")) == before
                return
            assert done.changed or not (asked or pending)
            assert await session.pending() == {}
            assert await session.count() <= budget
            if done.changed:
                self.model.undoable.append(("compaction", before))

        run(work())

    @precondition(lambda self: self.model.turns)
    @rule()
    def ask(self) -> None:
        """Leave a request for later."""

        async def work() -> None:
            session = await self.session()
            before = text(await session.export(view="model"))
            seq = await session.request_compaction(auto=True)
            assert seq in await session.pending()
            assert text(await session.export(view="model")) == before

        run(work())

    @precondition(lambda self: self.model.turns)
    @rule(text=st.text(min_size=1, max_size=20))
    def pin(self, text: str) -> None:
        """Pin a text and let it go."""

        async def work() -> None:
            session = await self.session()
            await session.pin(text)
            assert text in (await session.reader()).timeline.pins
            await session.pin(text, pinned=False)
            assert text not in (await session.reader()).timeline.pins

        run(work())

    @precondition(lambda self: self.model.turns)
    @rule(words=st.text("abc \n", min_size=1, max_size=9000))
    def edit(self, words: str) -> None:
        """Say the newest summary in other words, where there is one."""

        async def work() -> None:
            session = await self.session()
            before = text(await session.export(view="model"))
            compacted = any(not one.undone for one in await session.compactions())
            try:
                await session.edit_summary(words)
            except kompakt.UsageError:
                assert not compacted or not words.strip()
                return
            assert compacted
            reader = await session.reader()
            assert reader.timeline.pivot is not None
            assert (await reader.frame(reader.timeline.pivot)).state.summary == words
            self.model.undoable.append(("edit", before))

        run(work())

    @precondition(lambda self: self.model.turns)
    @rule(data=st.data())
    def revert(self, data: st.DataObject) -> None:
        """Return to an earlier turn; what came after it is still recalled."""
        left, model = data.draw(st.integers(0, len(self.model.turns) - 1)), self.model

        async def work() -> None:
            session = await self.session()
            taken = await session.revert(left)
            assert taken == sum(map(len, model.turns[left:]))

        before = run(self.seen())
        run(work())
        rows = run(self.rows())
        model.undoable.append(("revert", (rows, model.turns, before)))
        model.turns = model.turns[:left]

    async def rows(self) -> int:
        return (await (await self.session()).head()).rows

    async def seen(self) -> str:
        return text(await (await self.session()).export(view="model"))

    @precondition(lambda self: self.model.appended)
    @rule()
    def undo(self) -> None:
        """Take back what was done last."""
        model = self.model

        async def work() -> None:
            session = await self.session()
            if not model.undoable:
                try:
                    await session.undo()
                except kompakt.UsageError:
                    return
                raise AssertionError("there was nothing to undo")
            kind, before = model.undoable[-1]
            if kind == "revert" and before[0] != await self.rows():
                try:
                    await session.undo()
                except kompakt.UsageError:
                    return
                raise AssertionError("something replaces what was reverted")
            assert kind in await session.undo()
            model.undoable.pop()
            if kind == "revert":
                _, model.turns, view = before
                assert await self.seen() == view

        run(work())

    @precondition(lambda self: self.model.turns and len(self.made) < 4)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        """Go on with another session, from here or from an earlier turn."""
        model = self.model
        upto = data.draw(st.one_of(st.none(), st.integers(1, len(model.turns))))

        async def work() -> ModelSession:
            session = await self.session()
            other = await session.fork(turn=upto)
            if upto in (None, len(model.turns)):
                assert text(await other.export(view="model")) == await self.seen()
                assert len(await other.pending()) == len(await session.pending())
            made = ModelSession(other.id)
            made.turns = model.turns[:upto]
            made.appended = 1
            made.undoable = [("compaction", "") for one in await other.compactions() if not one.undone]
            return made

        self.made.append(run(work()))
        self.at = len(self.made) - 1

    @precondition(lambda self: len(self.made) > 1)
    @rule()
    def change(self) -> None:
        """Turn to another session."""
        self.at = (self.at + 1) % len(self.made)

    @precondition(lambda self: self.model.turns)
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        """Export from a turn on, and the last turns."""
        model = self.model
        first = data.draw(st.integers(1, len(model.turns)))
        last = data.draw(st.integers(1, len(model.turns) + 1))

        async def work() -> None:
            session = await self.session()
            said = [message for one in model.turns[first - 1 :] for message in one]
            assert text(await session.replay(first)) == text(said)
            said = [message for one in model.turns[-last:] for message in one]
            assert text(await session.export(turns=last)) == text(said)

        run(work())

    @precondition(lambda self: self.model.references)
    @rule(data=st.data())
    def recall(self, data: st.DataObject) -> None:
        """Recall every message by its reference, reverted or not."""
        name = data.draw(st.sampled_from(sorted(self.model.references)))
        message = self.model.references[name]

        async def work() -> None:
            found = await (await self.session()).recall(name, tokens=None)
            assert (message["content"] or message["tool_calls"][0]["function"]["arguments"]) in found.text

        run(work())

    @precondition(lambda self: self.model.appended and len(self.made) > 1)
    @rule()
    def delete(self) -> None:
        """Remove a session; its forks live on."""

        async def work() -> None:
            session = await self.session()
            assert await session.delete()
            assert not await session.exists()

        run(work())
        self.made[self.at] = ModelSession(self.model.id)

    @invariant()
    def is_well(self) -> None:
        """Nothing is broken, and all that should be there is."""

        async def work() -> None:
            for model in self.made:
                session = await fresh(self.records, model.id)
                if not model.appended:
                    assert not await session.exists()
                    continue
                assert await session.verify() == []
                assert text(await session.export()) == text(model.messages)
                head = await session.head()
                assert (head.turn, head.messages) == (len(model.turns), len(model.messages))
                assert (await session.project()).repairs == ()

        run(work())


TestUndoRedo = UndoRedo.TestCase
TestUndoRedo.settings = settings(max_examples=60, stateful_step_count=25)
