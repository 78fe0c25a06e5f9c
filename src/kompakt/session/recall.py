"""Recall over a stored session: everything that was ever said in it, byte for byte, also what was reverted.

A reference costs one look; words cost what the store's index finds, or the whole session where there is no index.
"""

from __future__ import annotations

import re

from kompakt.engine.recall import Memory, Recalled
from kompakt.engine.recall.restore import read_reference
from kompakt.errors import UsageError
from kompakt.model.tokens import counter_for
from kompakt.session.reader import SessionReader
from kompakt.session.row_codec import StoredMessage

CANDIDATES = 400
"""Rows of the store's index that are ranked again, with all that is known of questions and answers."""

_WORD = re.compile(r"\w[\w.\-/]*", re.UNICODE)


async def recall(reader: SessionReader, asked: str, *, tokens: int | None) -> Recalled:
    """Return what a reference names, else what a search finds."""
    if not isinstance(asked, str):  # type: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"recall takes words or a reference as text, not {asked!r}")
    read = read_reference(asked)
    places = await reader.records.named(reader.head.key, [read.message]) if read is not None else {}
    seqs = list(places.values())
    found = await _at(reader, seqs) if seqs else await _found(reader, asked)
    return _memory(found).recall(asked, tokens=tokens)


def _memory(found: list[StoredMessage]) -> Memory:
    said = [one for one in found if one.row.kind == "message"]
    references = [one.row.name for one in said]
    return Memory([one.message for one in said], counter=counter_for(None), references=references)


async def _found(reader: SessionReader, asked: str) -> list[StoredMessage]:
    """Find rows by words."""
    if reader.codec.value_codec.is_encrypted:  # no index knows what was said
        return await reader.all()
    parts = [part for word in _WORD.findall(asked) for part in (word, *re.split(r"[._\-/]", word)) if part]
    seqs = await reader.records.search(reader.head.key, list(dict.fromkeys(parts)), limit=CANDIDATES)
    if seqs is None:
        return await reader.all()
    return await _at(reader, [seq for seq in seqs if reader.timeline.is_live(seq)])


async def _at(reader: SessionReader, seqs: list[int]) -> list[StoredMessage]:
    return await reader.stored(await reader.records.rows_at(reader.head.key, seqs))
