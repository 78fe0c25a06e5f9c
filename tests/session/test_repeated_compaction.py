"""Sixteen compactions of one stored session: facts of the first part are still in the last summary."""

from __future__ import annotations

import re

import msgspec
import pytest
from tests.engine.ledger.test_attacks import unique
from tests.engine.ledger.test_passes import RULES, first_stretch, stretch
from tests.session.builders import FORMATS, answered, asked, called, faults, fresh, run, said, text

import kompakt
from kompakt.engine.ledger.items import CHANGES, RUNS, parse
from kompakt.model.messages import Message, ToolResult
from kompakt.session.session import Session
from kompakt.store.memory import MemoryRecords

PASSES = 16
BUDGET = 9_000


def session_of(passes: int) -> list[list[Message]]:
    """Make the stretches of one long session, their calls named apart."""
    parts = [first_stretch(), *(stretch(number) for number in range(passes))]
    whole, cut = named(unique([message for part in parts for message in part])), list[list[Message]]()
    for part in parts:
        cut.append(whole[: len(part)])
        whole = whole[len(part) :]
    return cut


def named(messages: list[Message]) -> list[Message]:
    """Let each result name the tool it is of, as one format wants it."""
    names = {call.id: call.name for message in messages for call in message.calls}
    return [
        message.with_parts(
            msgspec.structs.replace(part, name=names[part.call_id]) if isinstance(part, ToolResult) else part
            for part in message.parts
        )
        for message in messages
    ]


async def known(session: Session) -> tuple[set[str], set[str]]:
    """Return what the newest pivot says about the first stretch, and what the record keeps of it."""
    reader = await session.reader()
    assert reader.timeline.pivot is not None
    state = (await reader.frame(reader.timeline.pivot)).state
    shown, in_full = (first_names(words) for words in (state.summary, state.ledger))
    return shown, in_full


def first_names(words: str) -> set[str]:
    """Return the changed files and the commands of the first stretch that a ledger names."""
    found = [text for section, text, _, _ in parse(words).items if section in (CHANGES, RUNS)]
    return {name for text in found for name in re.findall(r"src/first_\d\.py|make first_\d", text)}


@pytest.mark.parametrize("format", FORMATS)
def test_facts_of_the_first_part_survive_many_compactions(format: str) -> None:
    """Files, commands and rules of the first pass are in the last one; the session is reopened before each pass."""

    async def work() -> None:
        records, kept = MemoryRecords(), list[tuple[set[str], set[str]]]()
        first, *rest = session_of(PASSES)
        await (await fresh(records)).append(kompakt.render(first, format), format=format)
        for number, part in enumerate(rest):
            session = await fresh(records)
            await session.append(kompakt.render(part, format), format=format)
            if number % 2:
                await session.request_compaction()
            done = await session.compact(BUDGET)
            view = await session.project()
            assert view.repairs == ()
            assert view.tokens <= BUDGET
            assert faults(format, {"contents": view.payload} if format == "gemini" else view.payload) == []
            if done.changed and number >= 3:
                shown = text(view.payload)
                assert all(rule in shown for rule in RULES), number
                kept.append(await known(session))
        files = {f"src/first_{number}.py" for number in range(6)}
        assert files | {f"make first_{number}" for number in range(6)} <= kept[0][1]
        assert len(kept) >= 6
        assert all(in_full == kept[0][1] for _, in_full in kept)
        assert all(files <= shown for shown, _ in kept)
        assert len(await session.compactions()) >= PASSES // 2
        assert await session.verify() == []

    run(work())


def test_the_next_pivot_covers_what_a_replacement_left_out() -> None:
    """Facts of messages that were replaced stay known: an edited file is still edited."""

    async def go() -> None:
        session = await fresh()
        call = called("c1", "edit_file", path="billing/rounding.py", old="a", new="b")
        edited = [asked("Fix the rounding."), call, answered("c1", "The file was edited."), said("Done.")]
        await session.append([*edited, asked("Go on.")], format="openai-chat")
        await session.replace([asked("Go on.")], format="openai-chat")
        for number in range(12):
            looked = said(f"Looked at part {number}. " + "It is as expected. " * 40)
            await session.append([looked, asked(f"And part {number + 1}?")], format="openai-chat")
        await session.compact(900)
        assert "billing/rounding.py" in text((await session.project()).payload)

    run(go())
