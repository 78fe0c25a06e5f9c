"""A result may come any time after its call: no page, revert, fork or export separates the two."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.session.builders import fresh, run

import kompakt
from kompakt.session import reader, session
from kompakt.session.session import Session

Item = dict[str, Any]


def user(text: str) -> Item:
    return {"role": "user", "content": text}


def call(id: str) -> Item:
    return {"type": "function_call", "call_id": id, "name": "look", "arguments": "{}"}


def result(id: str) -> Item:
    return {"type": "function_call_output", "call_id": id, "output": f"what {id} found"}


@st.composite
def interleaved(draw: st.DrawFn) -> list[Item]:
    """Draw turns with calls, some of which are answered in a later turn, some never."""
    items: list[Item] = []
    open_calls: list[str] = []
    for turn in range(draw(st.integers(1, 8))):
        items.append(user(f"request {turn}"))
        for step in range(draw(st.integers(0, 3))):
            id = f"call_{turn}_{step}"
            items.append(call(id))
            open_calls.append(id)
            for late in draw(st.lists(st.sampled_from(open_calls), unique=True, max_size=2)):
                items.append(result(late))
                open_calls.remove(late)
    return items


async def stored(items: list[Item]) -> Session:
    made = await fresh()
    await made.save(items, format="openai-responses")
    return made


def straddled(items: list[Item], at: int) -> bool:
    """Return whether a result after a position answers a call before it."""
    before = {item["call_id"] for item in items[:at] if item.get("type") == "function_call"}
    return any(item.get("type") == "function_call_output" and item["call_id"] in before for item in items[at:])


@settings(max_examples=120)
@given(items=interleaved(), size=st.integers(1, 6))
def test_no_message_separates_a_late_result_from_its_call(items: list[Item], size: int) -> None:
    """Pages end where nothing is torn; all is read; a turn is gone back to only where that tears nothing."""

    async def work() -> None:
        kept = await stored(items)
        pages = [page async for page in kept.pages()]
        assert [message.raw for page in pages for message in page] == items
        at = 0
        for page in pages:
            at += len(page)
            assert not straddled(items, at)
        assert await kept.verify() == []
        starts = [n for n, item in enumerate(items) if item.get("role") == "user"]
        for turn, start in enumerate(starts[1:], 1):
            tail = await kept.replay(turn + 1)
            assert items[-len(tail) :] == tail and len(tail) >= len(items) - start
            assert not straddled(items, len(items) - len(tail))
            if straddled(items, start):
                with pytest.raises(kompakt.UsageError, match="answers a call"):
                    await kept.fork(turn=turn)
                with pytest.raises(kompakt.UsageError, match="answers a call"):
                    await kept.revert(turn)
            else:
                assert await (await kept.fork(turn=turn)).export() == items[:start]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "PAGE", size)
        patch.setattr(session, "BATCH", size)
        run(work())
