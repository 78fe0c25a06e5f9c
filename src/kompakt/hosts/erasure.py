"""Erase what the plugin of an agent has written: recorded sessions in the store, and its files in the state folder."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kompakt.errors import UnreadableFile, plural
from kompakt.hosts import places
from kompakt.session.store import open_store
from kompakt.store import sqlite_path

if TYPE_CHECKING:
    from kompakt.store.records import Head


LOCK_SECONDS = 2.0
"""Time to wait for other programs that have the store open: a hook that records a session needs less."""


class ErasurePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is erased, before it is."""

    agent: str
    store: str
    """URL of the store, without credentials."""
    sessions: int
    files: tuple[Path, ...]
    store_file: Path | None = None
    """The file of the default store, if it has no sessions but these."""

    def __bool__(self) -> bool:
        """Return whether there is anything to erase."""
        return bool(self.sessions or self.files or self.store_file)

    def lines(self, erases: str) -> list[str]:
        """Return what is erased, in one line per place; ``erases`` is the verb."""
        if not self:
            return [f"nothing to erase: there are no recorded sessions of {self.agent}, and no files about them"]
        sessions, files = plural(self.sessions, "session"), plural(len(self.files), "file")
        parts = [f"{sessions} of {self.agent}"] if self.sessions else []
        if self.store_file is not None:
            parts.append(f"the store itself, which has no {'other ' if self.sessions else ''}sessions")
        found = [f"{self.store}: {erases} {' and '.join(parts)}"] if parts else []
        log = " and the log of hooks" if Path(places.log_file()) in self.files else ""
        what = f"{places.state_folder()}: {erases} {files}: notes about sessions{log}"
        return [*found, *([what] if self.files else [])]


async def plan_erasure(agent: str) -> ErasurePlan:
    """Return what an agent's plugin has written; the sessions of other agents stay.

    Raises:
        StoreError: the store cannot be read.
    """
    sessions = await _recorded(agent, delete=False)
    return ErasurePlan(
        agent=agent,
        store=places.shown_store(places.store_url()),
        sessions=len(sessions),
        files=tuple(_files(agent)),
        store_file=_default_store_with(len(sessions)),
    )


async def erase(plan: ErasurePlan) -> bool:
    """Delete the sessions and the files, then folders that are empty. The bytes are removed from the store's file.

    Return whether the store was deleted. It stays if another program uses it, or if it has new sessions.

    Raises:
        StoreError: the store cannot be written.
        UnreadableFile: a file cannot be deleted.
    """
    await _recorded(plan.agent, delete=True)
    is_deleted = plan.store_file is not None and _delete_empty_store(plan.store_file)
    for path in plan.files:
        _delete(path)
    folders = [folder for folder, _, _ in os.walk(places.state_folder(), topdown=False)]
    for folder in (*folders, *([places.data_folder()] if is_deleted else [])):
        if not os.listdir(folder):
            os.rmdir(folder)
    return is_deleted


def _default_store_with(sessions: int) -> Path | None:
    """Return the file of the default store if that is all the sessions it has; a store that the user chose stays."""
    path = os.path.join(places.data_folder(), "sessions.db")
    if places.store_url() != f"sqlite:///{path}" or not os.path.exists(path):
        return None
    try:
        with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as db:
            total: int = db.execute("SELECT count(*) FROM kompakt_heads").fetchone()[0]
    except sqlite3.Error:  # a file that cannot be counted is not known to be empty: it stays
        return None
    return Path(path) if total == sessions else None


def _delete_empty_store(path: Path) -> bool:
    """Delete a SQLite store without sessions; return whether that was possible.

    In this locking mode SQLite gives the lock to a connection only while no other has the file open. So no program
    writes to a file that is gone.
    """
    uri = f"{path.absolute().as_uri()}?mode=rw"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=LOCK_SECONDS, isolation_level=None)) as db:
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            db.execute("BEGIN EXCLUSIVE")
            if db.execute("SELECT 1 FROM kompakt_heads LIMIT 1").fetchone():
                return False
            for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
                _delete(name)
    except sqlite3.OperationalError:  # another program has the file open
        return False
    return True


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UnreadableFile(f"cannot delete {path}: {error.strerror or error}") from None


async def _recorded(agent: str, *, delete: bool) -> list[Head]:
    """Return the recorded sessions of an agent; with ``delete``, erase them."""
    url = places.store_url()
    path = sqlite_path(url)
    if path and not os.path.exists(path):
        return []
    prefix = places.session_name(agent, "").encode()
    async with await open_store(url) as store:
        found = [head async for head in store.heads() if head.id.startswith(prefix)]
        if delete:
            await store.records.delete([head.key for head in found])
            await store.scrub()  # also without sessions: an earlier call may have been interrupted before this
    return found


def _files(agent: str) -> list[Path]:
    """List the files about an agent's sessions, and the log of hooks, which all agents share."""
    root = Path(places.state_folder())
    notes = [path for path in sorted((root / "current").glob("*/*.json")) if _agent_in(path) == agent]
    log = Path(places.log_file())
    return [*sorted((root / "sessions").glob(f"{agent}-*")), *notes, *([log] if os.path.exists(log) else [])]


def _agent_in(path: Path) -> object:
    """Return the agent that a note on a running session names."""
    try:
        return json.loads(path.read_bytes())["agent"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
