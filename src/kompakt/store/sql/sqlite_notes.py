"""Notes read from a SQLite file on the spot: without the pool, and without a thread.

Crossing to a connection's thread and back takes milliseconds when the event loop has other work, since the thread must
wait for the interpreter; three notes take SQLite some twenty microseconds. So they are read right here, by a connection
that never waits: in WAL mode a reader has nobody to wait for, and when the file is busy all the same (somebody has it
for himself, or mends it after a crash) or anything else is wrong, the long way is taken, which is patient and says what
it met. Many names are looked up some at a time, and whoever else has work gets it done in between. What blocks is the
disk alone, when a page is not in memory.
"""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

FEW = 50
"""Names that are looked up without a pause."""


class NoteReader:
    """A connection that only reads notes, opened when it is first needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: sqlite3.Connection | None = None

    async def read(self, tenant: bytes, names: list[bytes]) -> list[tuple[bytes, Any]] | None:
        """Return names and values of those that exist; ``None`` when the file is not ready for it."""
        found: list[tuple[bytes, Any]] = []
        for start in range(0, len(names), FEW):
            if start:
                await asyncio.sleep(0)
            few = names[start : start + FEW]
            marks = ",".join("?" * len(few))
            query = f"SELECT name, data FROM kompakt_notes WHERE tenant = ? AND name IN ({marks})"
            try:
                found += self._connection().execute(query, (tenant, *few)).fetchall()
            except sqlite3.Error:
                self.close()
                return None
        return found

    def _connection(self) -> sqlite3.Connection:
        if self._open is None:
            self._open = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
            self._open.execute("PRAGMA query_only=ON")
        return self._open

    def close(self) -> None:
        """Let go of the file; the next reading opens it again."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.close()
