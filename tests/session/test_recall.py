"""Recall in a stored session."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import kompakt

OUTPUT = "".join(f"row {number}: depth {number % 13} m\n" for number in range(900))
CALL = {"id": "a", "type": "function", "function": {"name": "read", "arguments": '{"path": "tide/depths.csv"}'}}
MESSAGES = [
    {"role": "user", "content": "Read the depths."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "a", "content": OUTPUT},
    {"role": "assistant", "content": "Deep enough."},
]


@pytest.mark.parametrize("query", ["{}", "{}:78-78", '{} "row 77"'])
def test_the_reference_of_a_call_brings_its_result(query: str) -> None:
    """The result is a separate row; it is found whole, by lines and by words."""

    async def run() -> str:
        store = await kompakt.open_store("memory:")
        try:
            session = await store.session("one")
            await session.append(MESSAGES, format="openai-chat")
            (hit, *_) = (await session.recall("depths.csv")).hits
            call = kompakt.recall(MESSAGES, "depths.csv").hits
            name = next(one.reference for one in call if one.label == "assistant calls")
            assert hit.reference
            return (await session.recall(query.format(name), tokens=4_000 if query == "{}" else 300)).text
        finally:
            await store.close()

    assert "row 77: depth 12 m" in asyncio.run(run())


def test_a_question_about_rules_finds_demands_in_a_store_with_an_index(tmp_path: Path) -> None:
    """They share no word with the question, so the index of the store does not find them by its words."""
    rule = "Now the cache. No new dependency, and never hold the lock."
    talk = [{"role": "assistant" if at % 2 else "user", "content": f"The user guide, page {at}."} for at in range(900)]

    async def run() -> str:
        async with await kompakt.open_store(f"sqlite:///{tmp_path / 'kompakt.db'}") as store:
            session = await store.session("one")
            await session.append([{"role": "user", "content": rule}, *talk[1:]], format="openai-chat")
            return (await session.recall("what did the user forbid")).text

    assert rule in asyncio.run(run())
