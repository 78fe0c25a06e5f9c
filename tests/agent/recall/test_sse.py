"""The parser of server-sent events gives the same events for any chunks, and searches every byte once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kompakt.agent.recall import sse
from kompakt.agent.recall.sse import EventParser

bits = st.sampled_from([b"data: a", b"data:", b"event: b", b": c", b"\n", b"\r", b"\r\n", b"\n\n", b"\r\n\r\n", b"x"])
streams = st.lists(bits, max_size=20).map(b"".join)


def fed(pieces: list[bytes]) -> list[tuple[bytes, bytes]]:
    made = EventParser()
    return [event for piece in [*pieces, b"\n\n"] for event in made.feed(piece)]


@given(streams, st.data())
def test_chunks_give_the_same_events_as_the_whole(whole: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    pieces = [whole[start:end] for start, end in pairwise([0, *cuts, len(whole)])]
    found = fed(pieces)
    assert found == fed([whole])
    assert (whole + b"\n\n").startswith(b"".join(raw for _, raw in found))


class Counting:
    """A pattern that counts the bytes it searches."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._pattern, self.searched = pattern, 0

    def finditer(self, data: bytes) -> Iterator[re.Match[bytes]]:
        self.searched += len(data)
        return self._pattern.finditer(data)


def work_for(size: int, monkeypatch: pytest.MonkeyPatch) -> int:
    counting = Counting(re.compile(rb"\r\n\r\n|\n\n|\r\r"))
    monkeypatch.setattr(sse, "_END", counting)
    piece = b"x" * 1_024
    made = EventParser()
    assert [event for piece in [b"data: ", *[piece] * size] for event in made.feed(piece)] == []
    ((data, raw),) = made.feed(b"\n\n")
    assert data == piece * size and raw == b"data: " + data + b"\n\n"
    return counting.searched


def test_one_long_event_takes_work_in_proportion_to_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the length means twice the searched bytes, not four times."""
    small, large = work_for(500, monkeypatch), work_for(1_000, monkeypatch)
    assert large <= 2.1 * small
    assert large <= 1.1 * 1_000 * 1_024


def test_an_event_over_the_limit_is_passed_on_unparsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT", 10)
    pieces = [b"data: 1\n\n", b"data: 12345", b"6789\nda", b"ta: 0\n", b"\ndata: 2\n\n"]
    found = fed(pieces)
    assert b"".join(raw for _, raw in found) == b"".join(pieces) + b"\n\n"
    assert [data for data, _ in found if data] == [b"1", b"2"]
