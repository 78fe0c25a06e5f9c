"""Where an inspection finds its sessions: in a store, or in a transcript file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from kompakt import api, files
from kompakt.errors import AmbiguousFormat, InputError, StoreDamaged, UsageError, WrongKey
from kompakt.model.json import prepare
from kompakt.model.messages import History
from kompakt.session.session import Session, label_name
from kompakt.session.store import Store
from kompakt.store.records import LONGEST_NAME, Head
from kompakt.view.sources import Source, StoredSource, TranscriptSource, version_of
from kompakt.view.values import ACTIONS, ActionName
from kompakt.wire.transcripts import Transcript

MAX_SESSIONS = 20_000
"""Sessions of a store that are listed, in the order of the store."""


class MissingSession(UsageError):
    """There is no such session, message, step or compaction, or the caller may not see it."""


class DirectoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a directory knows of a session without reading its messages."""

    key: str
    """Identifies the session among those of all callers."""
    id: str
    version: tuple[float, int, int]
    format: str
    messages: int
    touched: float
    title: str = ""
    client: str | None = None
    open: Callable[[], Awaitable[Source]]
    """Returns the session."""


class Directory(Protocol):
    """Finds sessions."""

    async def listed(self) -> Sequence[DirectoryEntry]:
        """List all sessions that the caller may see."""
        ...

    async def find(self, id: str) -> Source:
        """Return a session.

        Raises:
            MissingSession: there is no such session, or the caller may not see it.
        """
        ...

    @property
    def actions(self) -> tuple[ActionName, ...]:
        """The actions that the sessions allow."""
        ...

    async def writable(self, id: str) -> Session:
        """Return a session to change it.

        Raises:
            MissingSession: there is no such session, or the caller may not see it.
            UsageError: it cannot be changed.
        """
        ...

    async def close(self) -> None:
        """Close what the directory opened."""
        ...


class StoreDirectory:
    """The sessions of one tenant in a store."""

    actions = ACTIONS

    def __init__(self, store: Store) -> None:
        self._store = store

    async def listed(self) -> Sequence[DirectoryEntry]:
        heads: list[Head] = []
        async for head in self._store.heads():
            heads.append(head)
            if len(heads) == MAX_SESSIONS:
                break
        return await entries_of(heads, self._store)

    async def find(self, id: str) -> Source:
        session = await self._store.session(id) if id else None
        if session is None or not await session.exists():
            raise MissingSession(f"there is no session {id!r}; the list has the sessions of this store")
        label = (await _labels([id], self._store)).get(id, SessionLabel())
        return StoredSource(session, client=label.client, model=label.model)

    async def writable(self, id: str) -> Session:
        await self.find(id)
        return await self._store.session(id)

    async def close(self) -> None:
        await self._store.close()


class SessionLabel(msgspec.Struct, frozen=True):
    """What a gateway noted at the first request of a session. The note may have more fields."""

    title: str = ""
    model: str | None = None
    client: str | None = None


prepare(SessionLabel)


async def entries_of(heads: Sequence[Head], store: Store) -> list[DirectoryEntry]:
    """Return the entries of stored sessions, with the labels of those that a gateway recorded."""
    labels = await _labels([head.name for head in heads], store)
    return [
        entry_of(head, store, title=label.title, client=label.client, model=label.model)
        for head in heads
        for label in [labels.get(head.name, SessionLabel())]
    ]


async def _labels(ids: Sequence[str], store: Store) -> dict[str, SessionLabel]:
    """Read the labels of sessions that have one; one that cannot be read is left out."""
    names = {label_name(id): id for id in ids if id.isascii()}
    labels: dict[str, SessionLabel] = {}
    notes = await store.records.notes(store.tenant, [name for name in names if len(name) <= LONGEST_NAME])
    for name, data in notes.items():
        with suppress(StoreDamaged, WrongKey, msgspec.ValidationError):
            value = store.value_codec.unpack(data, where="label of a session")
            labels[names[name]] = msgspec.convert(value, SessionLabel)
    return labels


def entry_of(
    head: Head, store: Store, *, title: str = "", client: str | None = None, model: str | None = None
) -> DirectoryEntry:
    """Return the entry of a stored session."""
    id = head.name

    async def open() -> Source:
        return StoredSource(await store.session(id), client=client, model=model)

    return DirectoryEntry(
        key=head.key,
        id=id,
        version=version_of(head),
        format=head.format,
        messages=head.messages,
        touched=head.last_write,
        title=title,
        client=client,
        open=open,
    )


class FileDirectory:
    """The sessions of a transcript file. The file is read again when it changes."""

    actions: tuple[ActionName, ...] = ()

    def __init__(self, path: str, name: str | None = None) -> None:
        self._path = path
        self._name = name
        """The session to show, if the file has several."""
        self._stamp: tuple[int, int] | None = None
        self._sources: dict[str, TranscriptSource] = {}
        self._reading = asyncio.Lock()

    async def _read(self) -> dict[str, TranscriptSource]:
        async with self._reading:
            stamp = await asyncio.to_thread(_stamp, self._path)
            if stamp is None or stamp != self._stamp:
                self._sources = await asyncio.to_thread(self._load, stamp)
                self._stamp = stamp
            return self._sources

    def _load(self, stamp: tuple[int, int] | None) -> dict[str, TranscriptSource]:
        if self._sources and stamp is None:  # standard input, or a file that is gone: what was read stays
            return self._sources
        modified = stamp[0] / 1e9 if stamp is not None else time.time()
        sources: dict[str, TranscriptSource] = {}
        source = self._path if self._name is None else f"{self._path}#{self._name}"
        loaded = files.load(source)
        found = [loaded.transcript] if loaded.transcript is not None else []
        if len(loaded.sessions) > 1 and self._name is None:
            found = files.load_all(self._path)
        stem = Path(self._path).stem if self._path != "-" else "standard input"
        if not found:
            sources[stem] = TranscriptSource(stem, _parsed(loaded), None, modified=modified, read_only=FILE_ONLY)
        for transcript in found:
            _add_transcript(sources, transcript.name or stem, transcript, modified, None)
        for id, one in sources.items():
            one.key = f"{self._path}#{id}"
        return sources

    async def listed(self) -> Sequence[DirectoryEntry]:
        return [await _entry_of_source(source) for source in (await self._read()).values()]

    async def find(self, id: str) -> Source:
        sources = await self._read()
        if id not in sources:
            raise MissingSession(f"there is no session {id!r} in {self._path}")
        return sources[id]

    async def writable(self, id: str) -> Session:
        await self.find(id)
        raise UsageError(FILE_ONLY)

    async def close(self) -> None:
        pass


FILE_ONLY = (
    "a transcript is only read; import it into a store with `kompakt session import FILE` and inspect the store with "
    "--write to change the session"
)


async def _entry_of_source(source: TranscriptSource) -> DirectoryEntry:
    moment = await source.moment()

    async def open() -> Source:
        return source

    return DirectoryEntry(
        key=source.key,
        id=source.id,
        version=moment.version,
        format=moment.envelope.format,
        messages=moment.rows,
        touched=moment.touched,
        client=source.client,
        open=open,
    )


def _add_transcript(
    sources: dict[str, TranscriptSource], id: str, transcript: Transcript, modified: float, parent: str | None
) -> None:
    """Add a conversation and its side chains."""
    while id in sources:
        id += "'"
    history = files.history(transcript)
    sources[id] = TranscriptSource(id, history, transcript, modified=modified, parent=parent, read_only=FILE_ONLY)
    for number, side in enumerate(transcript.sidechains, 1):
        _add_transcript(sources, f"{id}/side-{number}", side, modified, id)


def _parsed(loaded: files.Loaded) -> History:
    try:
        return api.parse(loaded.payload, loaded.format)
    except AmbiguousFormat as error:  # the text is the same in all candidates
        return api.parse(loaded.payload, error.candidates[0])
    except InputError as error:
        raise InputError(f"{loaded.name}: {error}") from None


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size
