"""Recall for one request: only what lies on its own chain, whatever else the session holds."""

from __future__ import annotations

from collections.abc import Sequence

from kompakt.engine.recall import Recalled
from kompakt.gateway.storage.recorder import RecordedBranch
from kompakt.session import recall as recalling
from kompakt.session.reader import SessionReader
from kompakt.session.row_codec import StoredMessage
from kompakt.session.store import Store
from kompakt.store.records import StoredRow


class _Upto(SessionReader):
    """Reads a session up to a row."""

    last = 0

    async def stored(self, rows: Sequence[StoredRow]) -> list[StoredMessage]:
        """Read rows, but none behind the last."""
        return await super().stored([row for row in rows if row.seq <= self.last])


async def recalled(store: Store, line: RecordedBranch, query: str, *, tokens: int) -> Recalled:
    """Find or restore what was said on a line.

    Raises:
        StoreError: the store cannot be asked now.
    """
    reader = await (await store.session(line.session)).reader()
    narrow = _Upto(reader.records, reader.head, reader.codec, reader.timeline)
    narrow.last = line.rows
    return await recalling.recall(narrow, query, tokens=tokens)
