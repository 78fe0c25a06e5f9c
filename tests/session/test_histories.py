"""Any valid history in any format is stored unchanged, projected unchanged, and compacted like a live session."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from tests.histories import bodies, plain
from tests.session.builders import FORMATS, Body, asked, faults, fresh, items_of, run, said, text, total, with_items

import kompakt
from kompakt.engine.compaction.compact import Outcome
from kompakt.model.phrases import RESUME_PROMPT
from kompakt.model.references import References
from kompakt.session import compaction, reader
from kompakt.session import session as sessions
from kompakt.session.reader import mid_step
from kompakt.store.memory import MemoryRecords

every_format = pytest.mark.parametrize("format", FORMATS)


@st.composite
def histories(draw: st.DrawFn, format: str) -> Body:
    """Draw a history: small and strange, or larger and plain."""
    if draw(st.booleans()):
        return draw(bodies(format, max_turns=4, max_steps=3))
    size, seed, chars = draw(st.integers(4, 40)), draw(st.integers(0, 50)), draw(st.integers(10, 1500))
    return plain.build(format, messages=size, seed=seed, mean_chars=chars, parallel=draw(st.integers(1, 4)))


def cut(draw: st.DrawFn, items: list[Any]) -> list[list[Any]]:
    """Cut a list into batches anywhere, also between a call and its result."""
    places = sorted(draw(st.sets(st.integers(1, max(1, len(items) - 1)), max_size=6)))
    return [batch for a, b in zip([0, *places], [*places, len(items)], strict=True) if (batch := items[a:b])]


class Watched:
    """Remembers what a compaction made, before it was stored."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.outcome: Outcome | None = None
        proceed = compaction.proceed

        async def watched(*args: Any, **options: Any) -> Outcome:
            self.outcome = await proceed(*args, **options)
            return self.outcome

        patch.setattr(compaction, "proceed", watched)

    def payload(self, history: kompakt.History, *, auto: bool) -> Any:
        """Render what the compaction itself would show, with the request to continue where one is due."""
        assert self.outcome is not None
        context = self.outcome.context
        if auto:
            context.visibility.touch()
            context.breaks |= {len(context.messages)}
            context.append(kompakt.Message("user", (kompakt.Text(RESUME_PROMPT),)))
        shown = history.with_messages(context.project())
        return kompakt.repair(shown, resting=shown.messages[-1].role == "assistant").payload


def listed(format: str) -> st.SearchStrategy[dict[str, Any]]:
    """Draw requests whose messages are a list, and not one text in its place."""
    return histories(format).filter(lambda body: not isinstance(body.get("input"), str))


def test_a_text_instead_of_items_is_stored() -> None:
    """A single text is read as a single text."""
    body = {"model": "gpt-5.4", "input": "ok"}

    async def work() -> None:
        session = await fresh()
        assert len(await session.save(body)) == 1
        assert await session.export() == body == await session.export(view="model")

    run(work())


@every_format
class TestStored:
    @settings(max_examples=60)
    @given(data=st.data())
    def test_export_is_byte_equal(self, format: str, data: st.DataObject) -> None:
        """Export, projection and references equal those of the payload, for any batches and pages."""
        body = data.draw(listed(format))
        batches = data.draw(st.composite(cut)(items_of(format, body)))
        page = data.draw(st.integers(1, 7))

        async def work() -> None:
            whole, parts = await fresh(), await fresh()
            names = await whole.save(body, format=format)
            appended = [
                name
                for batch in batches or [[]]
                for name in await parts.append(with_items(format, body, batch), format=format)
            ]
            assert appended == names == References(kompakt.parse(body, format)).names
            for session in (whole, parts):
                assert text(await session.export()) == text(body)
                assert await session.verify() == []
                assert text(await session.export(view="model")) == text(body)
                shown = await session.project()
                assert shown.repairs == ()
                assert shown.tokens == total(format, body)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reader, "PAGE", page)
            run(work())

    @settings(max_examples=40)
    @given(data=st.data())
    def test_saving_again_appends_only_new_messages(self, format: str, data: st.DataObject) -> None:
        """The same history, a longer one, a shorter one: nothing is doubled, nothing is lost."""
        body = data.draw(listed(format))
        items = items_of(format, body)
        some = data.draw(st.integers(0, len(items)))

        async def work() -> None:
            session = await fresh()
            saved = await session.save(with_items(format, body, items[:some]), format=format)
            rest = await session.save(body, format=format)
            assert [*saved, *rest] == References(kompakt.parse(body, format)).names
            assert await session.save(body, format=format) == []
            if some:
                assert await session.save(with_items(format, body, items[:some]), format=format) == []
            assert text(await session.export()) == text(body)
            assert (await session.head()).rows == len(items)
            assert await session.verify() == []

        run(work())


class Interrupted(MemoryRecords):
    """Lets another writer commit before the second page of a history."""

    def __init__(self, messages: list[Body]) -> None:
        super().__init__()
        self.messages = messages
        self.commits = 0

    async def commit(self, *args: Any, **options: Any) -> bool:
        self.commits += 1
        if self.commits == 2:
            await (await fresh(self)).append(self.messages, format="openai-chat")
        return await super().commit(*args, **options)


class TestConcurrentSaves:
    @pytest.mark.parametrize("others", [1, 4, 6], ids=["a part of a page", "a page", "the rest"])
    def test_saving_continues_after_another_writer_between_two_pages(
        self, others: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What the other writer has stored is not written again."""
        messages = [(asked, said)[n % 2](f"Message {n}") for n in range(10)]

        async def work() -> None:
            session = await fresh(Interrupted(messages[4 : 4 + others]))
            await session.save(messages, format="openai-chat")
            assert await session.export() == messages
            assert await session.verify() == []

        monkeypatch.setattr(sessions, "BATCH", 4)
        run(work())

    def test_another_history_that_is_stored_between_two_pages_is_an_error(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Messages are never appended to a history that they do not continue."""
        messages = [(asked, said)[n % 2](f"Message {n}") for n in range(10)]

        async def work() -> None:
            session = await fresh(Interrupted([asked("Something else")]))
            with pytest.raises(kompakt.UsageError, match="does not continue session 's'"):
                await session.save(messages, format="openai-chat")
            assert await session.export() == [*messages[:4], asked("Something else")]

        monkeypatch.setattr(sessions, "BATCH", 4)
        run(work())


@every_format
class TestCompaction:
    @settings(max_examples=60)
    @given(data=st.data())
    def test_a_stored_compaction_equals_one_in_memory(self, format: str, data: st.DataObject) -> None:
        """Valid, within budget, as the live context shows it, the same for who opens it again, undone without trace."""
        body = data.draw(listed(format))
        budget = max(1, int(total(format, body) * data.draw(st.floats(0.1, 1.1))))
        auto = data.draw(st.booleans())
        history = kompakt.parse(body, format)
        asks = auto and not mid_step(history.messages, history.contract)

        async def work(watched: Watched) -> None:
            records = MemoryRecords()
            session = await fresh(records)
            await session.save(body, format=format)
            if not auto:
                await session.request_compaction()
            try:
                done = await session.compact(budget)
            except kompakt.DoesNotFit:
                assert text(await session.export(view="model")) == text(body)
                return
            shown = await session.project()
            note(f"budget {budget}: {done}; {text(shown.payload)}")
            assert shown.repairs == ()
            if done.changed:
                assert watched.outcome is not None
                context = watched.outcome.context
                resumes = asks and context.summary_text is not None and not context.single_message
                assert text(shown.payload) == text(watched.payload(kompakt.parse(body, format), auto=resumes))
                assert text(shown.payload).count(RESUME_PROMPT) == resumes
            self.judged(format, shown.payload, budget, body)
            assert text(await session.export()) == text(body)
            again = await fresh(records)
            assert text((await again.project()).payload) == text(shown.payload)
            assert await again.verify() == []
            if done.changed:
                await again.undo()
                assert text((await again.project()).payload) == text(body)
                assert await again.verify() == []

        with pytest.MonkeyPatch.context() as patch:
            run(work(Watched(patch)))

    @staticmethod
    def judged(format: str, payload: Any, budget: int, body: Body) -> None:
        assert kompakt.check(payload, format) == []
        assert faults(format, payload) == []
        assert total(format, payload) <= budget
