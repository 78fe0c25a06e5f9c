"""The storage format: no duplicates, encryption, redaction, unusual values and broken histories."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.histories.broken import BROKEN, FORMAT_OF, broken
from tests.session.builders import FORMATS, answered, asked, called, fresh, run, said, text, turn, turns

import kompakt
from kompakt.errors import InputError, StoreDamaged, StoreError, UsageError, WrongKey
from kompakt.model.json import MAX_DEPTH
from kompakt.session.session import Session
from kompakt.session.store import Store
from kompakt.store.codec import LONG, ValueCodec
from kompakt.store.memory import MemoryRecords

KEY, OTHER = b"k" * 32, b"o" * 32
SECRET = "sk-live-0123456789"
CASES = [
    pytest.param(FORMAT_OF[code[:2]], body, id=f"{code}: {said}")
    for code, cases in BROKEN.items()
    for said, body in cases
]


def kept(records: MemoryRecords) -> bytes:
    """Join all bytes and texts of a store in memory, as they would be on disk."""
    found: list[bytes] = list(records._blobs.values())
    for session in records._sessions.values():
        found += [session.head.envelope, session.head.format.encode()]
        found += [part for row in session.rows.values() for part in (row.item, row.note, row.name.encode())]
        found += [event.data for event in session.events.values()]
    return b"\n".join(found)


class RecordingStore(MemoryRecords):
    """A store that remembers the words it was given for its index."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    async def commit(self, batch: Any, **options: Any) -> Any:
        self.words += [row.words for row in batch.rows]
        return await super().commit(batch, **options)


class TestRepair:
    @pytest.mark.parametrize(("format", "body"), CASES)
    def test_a_broken_history_is_stored_unchanged_and_projected_repaired(
        self, format: str, body: dict[str, Any]
    ) -> None:
        """The projection is accepted by the provider if a repair is possible; the stored history is unchanged."""
        run(self.repaired(format, body))

    @pytest.mark.parametrize("format", FORMATS)
    @settings(max_examples=30)
    @given(data=st.data())
    def test_any_broken_history_is_projected_valid(self, format: str, data: st.DataObject) -> None:
        """The same for a fault anywhere."""
        _, body = data.draw(broken(format))
        run(self.repaired(format, json.loads(json.dumps(body))))

    @staticmethod
    async def repaired(format: str, body: dict[str, Any]) -> None:
        session = await fresh()
        await session.save(body, format=format)
        assert text(await session.export()) == text(body)
        shown = await session.project()
        resting = kompakt.repair(body, format, resting=True)
        sent = kompakt.repair(body, format)
        assert text(shown.payload) in (text(sent.payload), text(resting.payload))
        assert list(shown.repairs) in ([*map(str, sent.changes)], [*map(str, resting.changes)])
        assert text(await session.export()) == text(body)
        faults = await session.verify()
        assert all("without a call" in fault for fault in faults)


class TestIdempotence:
    def test_a_batch_with_a_key_is_written_once(self) -> None:
        """A key identifies a batch for every writer."""

        async def work() -> None:
            records = MemoryRecords()
            names = await (await fresh(records)).append([asked("Hello.")], format="openai-chat", key="a")
            again = await fresh(records)
            assert len(names) == 1
            assert await again.append([asked("Hello.")], key="a") == []
            assert len(await again.append([asked("Hello.")], key="b")) == 1
            assert (await again.head()).rows == 2

        run(work())

    def test_saving_a_long_history_again_writes_nothing(self) -> None:
        """Saving again, and saving what is shorter, adds nothing; one that differs is refused."""

        async def work() -> None:
            messages = turns(800, chars=20, steps=3)[:5733]
            session = await fresh()
            assert len(await session.save(messages, format="openai-chat")) == 5733
            before = await session.head()
            assert await session.save(messages) == []
            assert await session.save(messages[:1234]) == []
            assert await session.head() == before
            with pytest.raises(UsageError, match="differs"):
                await session.save([*messages[:100], asked("Something else.")])
            with pytest.raises(UsageError, match="not in anthropic"):
                await session.save({"messages": messages[:1], "max_tokens": 1}, format="anthropic")
            assert await session.head() == before

        run(work())

    def test_a_new_envelope_around_the_same_messages_is_stored(self) -> None:
        """Tools that changed, and nothing else, are what an export has from then on."""

        async def work() -> None:
            session = await fresh()
            await session.save({"model": "gpt-5.4", "messages": turn(1), "temperature": 1}, format="openai-chat")
            newer = {"messages": turn(1), "temperature": 1.0, "model": "gpt-5.4"}
            assert await session.save(newer, format="openai-chat") == []
            assert text(await session.export()) == text(newer)

        run(work())

    def test_the_format_is_read_from_the_session(self) -> None:
        """A message that could be of several formats is of the session's."""

        async def work() -> None:
            records = MemoryRecords()
            await (await fresh(records)).append({"messages": [asked("Hello.")], "max_tokens": 9}, format="anthropic")
            await (await fresh(records)).append([said("Hello yourself.")])
            await (await fresh(records)).append([kompakt.Message("user", (kompakt.Text("Good."),))])
            assert (await (await fresh(records)).head()).messages == 3

        run(work())

    def test_long_texts_are_stored_once(self) -> None:
        """An output that was read twice, and is in a fork too, takes its room once."""

        async def work() -> None:
            records, output = MemoryRecords(), "many words " * 1000
            session = await fresh(records)
            steps = [message for id in "ab" for message in (called(id), answered(id, output))]
            await session.append([asked("Read it twice."), *steps], format="openai-chat")
            await session.fork("other")
            assert len(records._blobs) == 1
            assert await session.delete()
            other = await fresh(records, "other")
            assert await other.verify() == []
            assert output in text(await other.export()).replace("\\n", "\n")
            assert await other.delete()
            assert records._blobs == {}

        run(work())

    def test_deleting_does_not_scrub(self) -> None:
        """One session is removed without rewriting the whole store; scrub and purge do that."""

        class Counted(MemoryRecords):
            scrubbed = 0

            async def scrub(self) -> None:
                self.scrubbed += 1

        async def work() -> None:
            records = Counted()
            store = Store(records)
            for id in ("a", "b"):
                await (await store.session(id)).append(turns(1), format="openai-chat")
            assert await (await store.session("a")).delete() and await store.delete("b")
            assert records.scrubbed == 0
            await store.scrub()
            assert records.scrubbed == 1
            await store.purge()
            assert records.scrubbed == 2

        run(work())

    def test_the_same_message_after_many_reverts_gets_a_new_reference(self) -> None:
        """Repeated turns have different references, for any number of repetitions."""

        async def work() -> None:
            session, names = await fresh(), list[str]()
            await session.append(turn(1, steps=0), format="openai-chat")
            for _ in range(100):
                names += await session.append([asked("Again.")])
                await session.revert(1)
            assert len(set(names)) == 100
            await session.append([asked("Again.")])
            assert await session.verify() == []

        run(work())


class TestEncryption:
    def test_nothing_is_readable_without_the_key(self) -> None:
        """The store contains no text of a message, summary, pin or request; another key is rejected."""

        async def work() -> None:
            records = RecordingStore()
            session = await fresh(records, key=KEY)
            body = {"model": "gpt-5.4", "messages": [*turns(6, chars=5000), asked(SECRET)], "user": SECRET}
            await session.save(body, format="openai-chat")
            await session.pin(SECRET)
            await session.request_compaction(instructions=SECRET)
            await session.compact(2000, summarizer=lambda _: f"They said {SECRET}.")
            await session.edit_summary(SECRET * 500)
            assert text(await session.export()) == text(body)
            assert await session.verify() == []
            stored = kept(records)
            for words in (SECRET, "Request 1", "c1_0 line", "gpt-5.4", "They said"):
                assert words.encode() not in stored
            assert not any(records.words)
            await self.refused(await fresh(records, key=OTHER))
            await self.refused(await fresh(records), WrongKey, "encrypted and no key was given")

        run(work())

    @staticmethod
    async def refused(session: Session, error: type[StoreError] = StoreDamaged, said: str = "another key") -> None:
        for work in (session.export, session.project, session.count):
            with pytest.raises(error, match=said):
                await work()
        with pytest.raises(error, match=said):
            await session.append([asked("Hello.")])

    def test_a_key_for_a_plain_session_raises(self) -> None:
        """A reader that expects sealed values rejects unsealed ones."""

        async def work() -> None:
            records = MemoryRecords()
            await (await fresh(records)).append([asked("Hello.")], format="openai-chat")
            await self.refused(await fresh(records, key=KEY), WrongKey, "not encrypted and a key was given")

        run(work())


class TestRedaction:
    def test_redacted_text_is_stored_nowhere(self) -> None:
        """Not in messages, names of fields, envelopes, requests, pins, summaries, edits, errors or the index."""

        async def work() -> None:
            records = RecordingStore()
            session = await fresh(records, redact=lambda words: words.replace(SECRET, "[gone]"))
            steps = [called("c", command=SECRET, **{SECRET: SECRET}), answered("c", SECRET * 1000)]
            messages = [*turns(6), asked(f"Use {SECRET}."), *steps, said(SECRET)]
            body = {"model": "gpt-5.4", "messages": messages, "metadata": {SECRET: [SECRET]}}
            await session.save(body, format="openai-chat")
            assert await session.save(body, format="openai-chat") == []
            await session.pin(f"Never tell {SECRET}.")
            await session.request_compaction(instructions=SECRET)
            await session.compact(900, summarizer=lambda _: f"They said {SECRET}.")
            await session.edit_summary(f"The summary has {SECRET}.")
            await session.request_compaction()

            def failing(_: Any) -> str:
                raise ValueError(SECRET)

            await session.compact(900, summarizer=failing)
            assert SECRET.encode() not in kept(records)
            assert not any(SECRET in words for words in records.words)
            assert text(await session.export()) == text(body).replace(SECRET, "[gone]")
            assert await session.verify() == []

        run(work())


class TestUnusualValues:
    @pytest.mark.parametrize(
        "value",
        [
            2**80,
            -(2**70),
            float("inf"),
            1e22,
            -0.0,
            "\ud800",
            {"\udfff": "\ud800", "n": None},
            {"$kompakt-blob": "x"},
            {"$kompakt-blob": {"$kompakt-blob": ["y"]}, "long": "z" * LONG},
            {"$kompakt-blob": "z" * LONG},
            [{"$kompakt-blob": ["z" * LONG]}, None],
            {"k" * LONG: ["v" * LONG, "v" * LONG]},
            ["a" * (LONG - 1), "\0", "é" * LONG, None, True, 2**80],
        ],
    )
    def test_unusual_values_are_restored_exactly(self, value: Any) -> None:
        """Any value anywhere in a payload, with and without a key."""
        for value_codec in (ValueCodec(), ValueCodec(KEY)):
            packed = value_codec.pack(value)
            back = value_codec.unpack(packed.data, packed.blobs or None, where="here")
            assert json.dumps(back) == json.dumps(value)
            assert value_codec.is_whole(back, packed.content)

        async def work() -> None:
            session = await fresh()
            body = {"model": "gpt-5.4", "messages": [*turn(1), {**asked("x"), "odd": value}], "odd": value}
            await session.save(body, format="openai-chat")
            assert text(await session.export()) == text(body)
            assert await session.verify() == []

        run(work())

    @pytest.mark.parametrize("depth", [MAX_DEPTH - 20, MAX_DEPTH + 1, 900, 100_000])
    @pytest.mark.parametrize("inner", ["x", "x" * LONG], ids=["short", "long"])
    def test_a_value_nested_too_deep_is_refused_before_writing(self, depth: int, inner: str) -> None:
        """Values that some store could not return are rejected; accepted values are returned unchanged."""
        value: Any = inner
        for _ in range(depth):
            value = [value]

        async def work() -> None:
            session = await fresh()
            await session.append([asked("Hello.")], format="openai-chat")
            messages = [{**asked("Hello."), "odd": value}]
            if depth < MAX_DEPTH:
                await session.append(messages)
                assert text(await session.export()) == text([asked("Hello."), *messages])
            else:
                with pytest.raises(InputError, match="nested"):
                    await session.append(messages)
            assert await session.verify() == []

        run(work())

    def test_long_pins_and_edits_are_readable(self) -> None:
        """An event of any size leaves the session as readable as before."""

        async def work() -> None:
            session = await fresh()
            await session.save(turns(6), format="openai-chat")
            await session.pin("word " * LONG)
            assert (await session.reader()).timeline.pins == ("word " * LONG,)
            await session.pin("word " * LONG, pinned=False)
            await session.request_compaction()
            await session.compact(900)
            await session.edit_summary("other " * LONG)
            assert "other " * 100 in text(await session.export(view="model"))
            assert await session.verify() == []

        run(work())
