"""Transcripts and stored sessions as the MCP server reads them, and the directory of those on this machine.

A transcript grows while it is read: only appended bytes are decoded, and the index for recall is extended. Where hooks
shortened outputs of an agent, their originals are in a store, and recall searches and restores those.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple, TypeVar

import msgspec

from kompakt import api, files
from kompakt.engine.recall import Memory, Recalled
from kompakt.engine.recall.restore import read_query
from kompakt.errors import InputError, StoreError, UnreadableFile, UsageError
from kompakt.hosts import places
from kompakt.hosts.mcp.directory import Action, Caller, ListedSession, ServedSession
from kompakt.hosts.mcp.discovery import (
    FoundTranscript,
    caller_of,
    claude_code_root,
    codex_root,
    transcripts_of,
)
from kompakt.hosts.notes import originals_in, whole_ledger, with_originals
from kompakt.model.lru import Lru
from kompakt.model.messages import History
from kompakt.model.references import References
from kompakt.model.tokens import counter_for
from kompakt.session.session import Session
from kompakt.session.store import Store, open_store
from kompakt.store import sqlite_path
from kompakt.view.status import SessionStatus, session_status, summary_runs, timestamp, transcript_status
from kompakt.wire.transcripts import Document, Skipped, Transcript, TranscriptLine, decode, kind_of, read

MAX_LISTED = 50
"""Sessions in a list."""

_OPEN_FILES = 4
"""Transcripts that are kept in memory."""

_OVERLAP = 4_096
"""Bytes before the end of what was read that must be unchanged; otherwise the file was rewritten."""


_log = logging.getLogger("kompakt.mcp")

T = TypeVar("T")

NONE: Mapping[str, str] = {}


class ReadTranscript(NamedTuple):
    """The content of a transcript."""

    transcript: Transcript | None
    """``None`` for a request body."""
    history: History
    memory: Memory


class TranscriptFile:
    """A transcript on disk. Reading it again costs what was appended."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._lock = Lock()
        self._stamp: tuple[int, ...] | None = None
        self._originals: Mapping[str, str] = NONE
        self._read: ReadTranscript | None = None
        self.outputs: tuple[int, Mapping[str, str]] = (0, NONE)
        """Rows of the session with the originals of outputs when it was read, and these outputs by call id."""
        self._forget()

    def _forget(self) -> None:
        self._lines: list[TranscriptLine] = []
        self._skipped: list[Skipped] = []
        self._replaced: list[int] = []
        self._end = 0
        """Bytes of the complete lines that were decoded."""
        self._overlap = b""
        self._count = 0

    def use(self, work: Callable[[ReadTranscript], T], originals: Mapping[str, str]) -> T:
        """Read what is new and run ``work`` on the content, one call at a time.

        ``originals`` are outputs, by call id, that the transcript has in a short form.

        Raises:
            UnreadableFile: the file is no transcript.
        """
        with self._lock:
            stamp = self._stat()
            if self._read is None or stamp != self._stamp or originals is not self._originals:
                self._read = self._content(originals)
                self._stamp, self._originals = stamp, originals
            return work(self._read)

    def _stat(self) -> tuple[int, ...]:
        name = self.path if os.path.exists(self.path) else self.path.rpartition("#")[0]
        found: list[int] = []
        for path in (name, f"{name}-wal"):  # a database of an agent grows in its log
            try:
                state = os.stat(path)
            except (OSError, ValueError):
                continue
            found += (state.st_ino, state.st_size, state.st_mtime_ns)
        return tuple(found)

    def _content(self, originals: Mapping[str, str]) -> ReadTranscript:
        document = self._document() if self.path.endswith(".jsonl") else None
        if document is not None and kind_of(document) is not None:
            transcript = read(document)[0]
        else:
            loaded = files.load(self.path)
            transcript = loaded.transcript
            if transcript is None:
                try:
                    history = api.parse(loaded.payload, loaded.format)
                except InputError as error:
                    raise InputError(f"{self.path}: {error}") from None
                return ReadTranscript(None, history, Memory(history, counter=counter_for(history.model)))
        if originals:
            transcript = msgspec.structs.replace(transcript, body=with_originals(transcript.body, originals))
        history = files.history(transcript)
        return ReadTranscript(transcript, history, self._memory(history))

    def _document(self) -> Document:
        """Decode the appended lines. A last line without an end is decoded each time, as far as it is complete."""
        try:
            with open(self.path, "rb") as file:
                rest = self._complete(file)
        except (OSError, ValueError) as error:
            raise UnreadableFile(f"{self.path}: {getattr(error, 'strerror', None) or error}") from None
        last = [TranscriptLine(self._count + 1, line.record) for line in decode([rest]).lines]
        return Document(
            lines=(*self._lines, *last),
            is_lines=True,
            skipped=tuple(self._skipped),
            replaced=tuple(self._replaced),
        )

    def _complete(self, file: io.BufferedReader) -> bytes:
        """Decode the complete lines that are new and return what follows them."""
        start = max(0, self._end - len(self._overlap))
        file.seek(start)
        data = file.read()
        if not data.startswith(self._overlap):
            self._forget()
            file.seek(0)
            data, start = file.read(), 0
        end = data.rfind(b"\n") + 1
        new = data[self._end - start : end]
        if new:
            lines = new.split(b"\n")[:-1]
            document = decode(lines)
            at = self._count
            self._lines += [TranscriptLine(line.number + at, line.record) for line in document.lines]
            self._skipped += [Skipped(one.line + at, one.reason, one.code) for one in document.skipped]
            self._replaced += [number + at for number in document.replaced]
            self._count += len(lines)
            self._end = start + end
            self._overlap = data[max(0, end - _OVERLAP) : end]
        return data[self._end - start :]

    def _memory(self, history: History) -> Memory:
        """Extend the memory of the last reading if the history continues it."""
        known = self._read
        size = len(known.memory) if known is not None else 0
        if known is None or history.messages[:size] != known.history.messages[:size]:
            return Memory(history, counter=counter_for(history.model))
        for message in history.messages[size:]:
            known.memory.add(message)
        return known.memory


class TranscriptSession:
    """The transcript of an agent, with what hooks recorded of the same session."""

    def __init__(self, file: TranscriptFile, found: FoundTranscript | None, store: Store | None) -> None:
        self._file = file
        self._found = found
        self._store = store

    @property
    def id(self) -> str:
        """The agent's id of the session, else the name of the file."""
        return self._found.session if self._found is not None else Path(self._file.path).stem

    @property
    def origin(self) -> str:
        """The agent and its session."""
        kind = f"{self._found.agent} transcript" if self._found is not None else "transcript"
        return f"the {kind} {self.id}"

    async def _use(self, work: Callable[[ReadTranscript], T]) -> T:
        return await asyncio.to_thread(self._file.use, work, await self._originals())

    async def _originals(self) -> Mapping[str, str]:
        """Return the originals of outputs that hooks shortened. Without the store, the transcript alone is served."""
        try:
            return await self._read_originals()
        except StoreError as error:
            _log.warning("store of hooks unavailable: shortened outputs are served in their short form: %s", error)
            return self._file.outputs[1]

    async def _read_originals(self) -> Mapping[str, str]:
        """Read the originals; again only when there are more."""
        session = await self._recorded(places.outputs_name)
        rows = (await session.head()).rows if session is not None else 0
        if session is not None and rows != self._file.outputs[0]:
            self._file.outputs = rows, await originals_in(session)
        return self._file.outputs[1]

    async def _recorded(self, name: Callable[[str, str], str]) -> Session | None:
        """Return a session that hooks recorded."""
        if self._store is None or self._found is None:
            return None
        session = await self._store.session(name(self._found.agent, self._found.session))
        return session if await session.exists() else None

    async def status(self) -> SessionStatus:
        """Return the numbers of the session."""
        return await self._use(lambda read: transcript_status(read.transcript, read.history, id=self.id))

    async def recall(self, query: str, tokens: int) -> Recalled:
        """Search the transcript, or restore a reference of it or of what hooks recorded."""
        found = await self._use(
            lambda read: None if read.memory.lacks(query) else read.memory.recall(query, tokens=tokens)
        )
        if found is not None:
            return found
        with suppress(StoreError):  # already logged
            for name in (places.outputs_name, places.session_name):
                session = await self._recorded(name)
                recorded = await session.recall(query, tokens) if session is not None else None
                if recorded:
                    return recorded
        # References in a compacted copy of the transcript name messages of the repaired history.
        return await self._use(lambda read: api.recall(read.history, query, tokens))

    async def ledger(self, tokens: int, sections: frozenset[str] | None) -> str:
        """Write the ledger of the whole session, or some of its sections."""

        def write(read: ReadTranscript) -> str:
            names = References(read.history).names
            count = counter_for(read.history.model).tokens
            return whole_ledger(read.history.messages, names, room=tokens, count=count, sections=sections)

        return await self._use(write)

    async def summary(self, number: int) -> str:
        """Return a summary that the agent wrote."""

        def text(read: ReadTranscript) -> str:
            runs = summary_runs(read.transcript.summaries) if read.transcript is not None else []
            if not 1 <= number <= len(runs):
                raise UsageError(f"there is no compaction {number}; {self.origin} has {len(runs)}")
            return "\n\n".join(read.history.messages[index].text for index in runs[number - 1])

        return await self._use(text)

    async def manage(self, action: Action, text: str | None, budget: int | None) -> str:
        """Refuse: an agent owns its transcript."""
        del text, budget
        raise UsageError(
            f"cannot {action}: {self.origin} belongs to the agent and is only read; import it into a store with "
            "`kompakt session import FILE` and serve that session with --store URL --session ID"
        )


class StoredSession:
    """A session of a store."""

    def __init__(self, session: Session, id: str | None = None) -> None:
        self.session = session
        self._id = session.id if id is None else id

    @property
    def id(self) -> str:
        """The id by which a caller names the session; by default its id in the store."""
        return self._id

    @property
    def origin(self) -> str:
        """The session in its store."""
        return f"the stored session {self.id}"

    async def status(self) -> SessionStatus:
        """Return the numbers of the session."""
        return msgspec.structs.replace(await session_status(self.session), id=self.id)

    async def recall(self, query: str, tokens: int) -> Recalled:
        """Search or restore."""
        return await self.session.recall(query, tokens)

    async def ledger(self, tokens: int, sections: frozenset[str] | None) -> str:
        """Write the ledger of the whole session, or some of its sections."""
        rows = [one for one in await (await self.session.reader()).all() if one.row.kind == "message"]
        return await asyncio.to_thread(
            whole_ledger,
            [one.message for one in rows],
            [one.row.name for one in rows],
            room=tokens,
            count=counter_for(None).tokens,
            sections=sections,
        )

    async def summary(self, number: int) -> str:
        """Return the text of a compaction as last edited."""
        reader = await self.session.reader()
        records = [record for _, record in reader.timeline.compactions]
        if not 1 <= number <= len(records):
            raise UsageError(f"there is no compaction {number}; {self.origin} has {len(records)}")
        return (await reader.frame(records[number - 1])).state.summary

    async def manage(self, action: Action, text: str | None, budget: int | None) -> str:
        """Pin or unpin a text, compact the session, or undo the newest change."""
        match action:
            case "pin" | "unpin":
                if not text:
                    raise UsageError(f"{action} needs the text")
                if action == "unpin" and text not in (await self.session.reader()).timeline.pins:
                    raise UsageError("this text is not pinned; `status` lists the pinned texts")
                await self.session.pin(text, pinned=action == "pin")
                return f"{action}ned"
            case "compact":
                done = await self.session.compact(budget, instructions=text, reason="requested through MCP")
                if not done.changed:
                    return f"nothing to compact: {done.tokens_after:,} tokens"
                return f"compaction {done.id}: {done.tokens_before:,} tokens before, {done.tokens_after:,} after"
            case "undo":
                return await self.session.undo()


def is_reference(query: str) -> bool:
    """Return whether a query is a reference, with or without words to find inside it."""
    return read_query(query)[0] is not None


# --- sessions on this machine ------------------------------------------------------------------------------------


class ServedStore(NamedTuple):
    """The store that the server was configured with."""

    url: str
    tenant: str = ""
    key: bytes | None = None


class LocalSessions:
    """Finds the session of the client on this machine. The first of these that exists is served:

    the given transcript; the given session; the newest session of the given store; the transcript of the client's agent
    for this folder from which the tool was called, else the newest. No other store is opened: a ``kompakt.db`` in the
    folder may come with a repository and hold anything.
    """

    def __init__(
        self,
        *,
        folder: Path,
        environ: Mapping[str, str],
        store: ServedStore | None = None,
        session: str | None = None,
        transcript: str | None = None,
    ) -> None:
        self.folder = folder
        self.environ = environ
        self._given_store = store
        self._given_session = session
        self._given_transcript = transcript
        self._stores: dict[str, Store] = {}
        self._opening = asyncio.Lock()
        self._files = Lru[str, TranscriptFile](_OPEN_FILES)

    async def close(self) -> None:
        """Close the stores."""
        while self._stores:
            await self._stores.popitem()[1].close()

    async def find(self, id: str | None, caller: Caller) -> ServedSession:
        """Return a session by its id, or the one that the caller is in."""
        fixed = await self._fixed(caller)
        if fixed is not None:
            if id not in (None, fixed.id):
                raise UsageError(f"there is no session {id!r}; this server only serves {fixed.id!r}")
            return fixed
        found = await self._by_id(id, caller) if id is not None else await self._newest(caller)
        if found is not None:
            return found
        if id is not None:
            known = ", ".join(repr(one.id) for one in (await self.list(caller))[:5])
            raise UsageError(f"there is no session {id!r} here; " + (f"known: {known}" if known else "there is none"))
        raise UsageError(
            f"no session found for {self.folder}: no transcript of Claude Code in {claude_code_root(self.environ)}, of "
            f"Codex in {codex_root(self.environ)}, of pi or Gemini CLI; start the server with --transcript FILE or "
            "with --store URL"
        )

    async def list(self, caller: Caller) -> list[ListedSession]:
        """List the sessions of this folder, newest first."""
        fixed = await self._fixed(caller)
        if fixed is not None:
            return [ListedSession(fixed.id, fixed.origin, "")]
        found = await self._transcripts(caller) if self._given_store is None else []
        listed = [ListedSession(one.session, one.agent, timestamp(one.modified)) for one in found]
        store = await self._store()
        if store is not None:
            listed += [
                ListedSession(head.name, head.format, timestamp(head.last_write)) async for head in store.heads()
            ]
        listed.sort(key=lambda one: (one.modified, one.id), reverse=True)
        return listed[:MAX_LISTED]

    async def _fixed(self, caller: Caller) -> ServedSession | None:
        """Return the session that the options name."""
        if self._given_transcript is not None:
            return await self._transcript(self._given_transcript, None)
        if self._given_session is None:
            return None
        found = await self._by_id(self._given_session, caller)
        shared = self.environ.get("KOMPAKT_STORE")
        if found is None and shared and self._given_store is None:
            # Only for the option: this store may hold the sessions of other folders, which a caller may not name.
            found = await self._stored(await self._opened(ServedStore(shared)), self._given_session)
        if found is None:
            raise UsageError(f"there is no session {self._given_session!r} in the store or among the transcripts")
        return found

    async def _by_id(self, id: str, caller: Caller) -> ServedSession | None:
        if self._given_store is None:
            for one in await self._transcripts(caller):
                if one.session == id:
                    return await self._transcript(str(one.path), one)
        return await self._stored(await self._store(), id)

    async def _stored(self, store: Store | None, id: str) -> ServedSession | None:
        session = await store.session(id) if store is not None and id else None
        return StoredSession(session) if session is not None and await session.exists() else None

    async def _newest(self, caller: Caller) -> ServedSession | None:
        found = await self._transcripts(caller) if self._given_store is None else []
        if found:
            calling = None
            if caller.tool and len(found) > 1:
                calling = await asyncio.to_thread(caller_of, found, caller.tool, caller.arguments)
            chosen = calling or found[0]
            return await self._transcript(str(chosen.path), chosen)
        store = await self._store()
        heads = [head async for head in store.heads()] if store is not None else []
        if store is None or not heads:
            return None
        newest = max(heads, key=lambda head: (head.last_write, head.key))
        return StoredSession(await store.session(newest.name))

    async def _transcripts(self, caller: Caller) -> list[FoundTranscript]:
        return await asyncio.to_thread(transcripts_of, self.folder, self.environ, client=caller.client)

    async def _transcript(self, path: str, found: FoundTranscript | None) -> TranscriptSession:
        file = self._files.get(path)
        if file is None:
            file = TranscriptFile(path)
            self._files.put(path, file)
        store = None
        if found is not None:
            try:
                store = await self._opened(ServedStore(found.store or places.store_url()))
            except StoreError as error:
                _log.warning("store of hooks unavailable: %s", error)
        return TranscriptSession(file, found, store)

    async def _store(self) -> Store | None:
        """Open the given store, if there is one.

        Raises:
            UsageError: the given store does not exist.
        """
        if self._given_store is None:
            return None
        store = await self._opened(self._given_store)
        if store is None:
            raise UsageError("the given store does not exist; import a session first, or give another --store URL")
        return store

    async def _opened(self, asked: ServedStore) -> Store | None:
        """Open a store once; ``None`` for a SQLite file that does not exist, which opening would create."""
        path = sqlite_path(asked.url)
        if path and not os.path.exists(path):
            return None
        async with self._opening:
            store = self._stores.get(asked.url)
            if store is None:
                store = await open_store(asked.url, tenant=asked.tenant, key=asked.key)
                self._stores[asked.url] = store
            return store
