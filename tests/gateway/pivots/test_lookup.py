"""The cache of pivots."""

from __future__ import annotations

from kompakt.engine.pivot.saved_state import SavedContext
from kompakt.gateway.pivots.lookup import Pivot, PivotHead, RenderedPivot, VisibleMessage
from kompakt.gateway.storage.recorder import encode_note
from kompakt.gateway.storage.storage import decode_note
from kompakt.store.codec import ValueCodec


def test_a_cached_pivot_takes_little_more_memory_than_it_sends() -> None:
    """The messages for the next pivot are kept packed, so that the cache holds many conversations."""
    items = [{"role": "user", "content": f"message {number} " + "about the queue " * 20} for number in range(100)]
    pivot = Pivot(
        id="c1",
        session="s",
        covers=200,
        items=list(items),
        tokens=9_000,
        state=SavedContext(),
        view=tuple(VisibleMessage(at, item, f"m{at}") for at, item in enumerate(items)),
        policy="default",
        reason="over 12000 tokens",
        tokens_before=18_000,
        tokens_after=9_000,
        due=201,
    )
    codec = ValueCodec()
    rendered = RenderedPivot.of(pivot, encode_note(pivot, codec), is_stored=True)
    assert rendered.size < 1.5 * sum(map(len, rendered.sent))
    assert type(rendered.pivot) is PivotHead and (rendered.pivot.id, rendered.pivot.due) == ("c1", 201)
    assert decode_note(rendered.packed, codec, Pivot) == pivot
