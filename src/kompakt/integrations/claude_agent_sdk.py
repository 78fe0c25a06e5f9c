"""Claude Agent SDK: a session store on any kompakt store, and a tool to search all its sessions.

The SDK mirrors transcripts to the store and resumes from it. An entry with a message is stored as that message, so
recall and ``kompakt session`` work on it; what else the entry has, and entries without a message, are stored beside it.
The SDK gives no access to the requests of the agent, so nothing is compacted here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from hashlib import sha256
from typing import Any, cast
from urllib.parse import quote, unquote

from kompakt.engine.recall.answer import TOOL_DESCRIPTION, TOOL_NAME, Recalled
from kompakt.integrations.conversation import missing
from kompakt.integrations.stores import StoreAccess
from kompakt.model.json import encode
from kompakt.model.lru import Lru
from kompakt.model.messages import JsonObject
from kompakt.session.session import Session
from kompakt.session.store import Store
from kompakt.store.records import Head
from kompakt.wire.registry import WIRES

try:
    from claude_agent_sdk import (
        SessionKey,
        SessionListSubkeysKey,
        SessionStore,
        SessionStoreEntry,
        SessionStoreListEntry,
        create_sdk_mcp_server,
        tool,
    )
except ImportError as error:
    raise missing("claude_agent_sdk", error) from error

__all__ = ["KompaktSessionStore"]

PREFIX = "claude-agent"
"""First part of the names of all sessions; the others are project, session and subpath."""

FORMAT = "anthropic"

ENTRY = "claude_code"
"""Where a stored message has the rest of its entry. Also the role of entries without a message."""

MAX_SESSIONS = 1_000
"""Sessions whose entry ids are kept in memory."""


class KompaktSessionStore(SessionStore):
    """Keeps transcripts in a kompakt store: ``ClaudeAgentOptions(session_store=KompaktSessionStore(store=…))``.

    ``store`` is a store or its URL. Entries are idempotent by their ``uuid``. ``recall_server`` is an MCP server for
    ``ClaudeAgentOptions(mcp_servers={"kompakt": store.recall_server})`` with a tool that searches all sessions.
    """

    def __init__(self, *, store: Store | str) -> None:
        self._store = StoreAccess(store)
        self._stored: Lru[str, set[str]] = Lru(MAX_SESSIONS)
        """Ids of the stored entries, by session."""
        self._locks: Lru[str, asyncio.Lock] = Lru(MAX_SESSIONS)

        @tool(TOOL_NAME, TOOL_DESCRIPTION, {"query": str})
        async def recall(arguments: dict[str, Any]) -> dict[str, Any]:
            found = await self.recall(str(arguments.get("query") or ""))
            return {"content": [{"type": "text", "text": found.text}]}

        self.recall_tool = recall
        self.recall_server = create_sdk_mcp_server("kompakt", tools=[recall])

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Append entries. An entry whose ``uuid`` is stored already is skipped."""
        if entries:
            await self._store.run(lambda store: self._append(store, key, entries))

    async def _append(self, store: Store, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        name = _name(key)
        lock = self._locks.get(name)
        if lock is None:
            lock = asyncio.Lock()
            self._locks.put(name, lock)
        async with lock:
            session = await store.session(name)
            is_new = not await session.exists()
            stored = self._stored.get(name)
            if stored is None:
                stored = {str(entry["uuid"]) async for entry in _entries(session) if "uuid" in entry}
                self._stored.put(name, stored)
            new: list[JsonObject] = []
            ids: list[str] = []
            for entry in entries:
                id = entry.get("uuid")
                if id is None or (id not in stored and id not in ids):
                    new.append(_item(cast("JsonObject", entry)))
                    ids += [id] if id is not None else []
            if new:
                whole = len(ids) == len(new)  # without ids, equal entries are different ones
                batch = sha256(encode(ids)).hexdigest() if whole else None
                await session.append(new, format=FORMAT, key=batch)
                stored.update(ids)
            if is_new and "subpath" in key:
                parent = await store.session(_name(_main(key)))
                if await parent.exists():
                    await session.link(parent.id)

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return all entries in order; ``None`` if there are none."""

        async def read(store: Store) -> list[SessionStoreEntry] | None:
            entries = [entry async for entry in _entries(await store.session(_name(key)))]
            return cast("list[SessionStoreEntry]", entries) or None

        return await self._store.run(read)

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the sessions of a project with the times of their last entries."""
        found = await self._store.run(lambda store: _heads(store, project_key))
        return [
            SessionStoreListEntry(session_id=parts[1], mtime=int(head.touched * 1_000))
            for parts, head in found
            if len(parts) == 2
        ]

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the subpaths of a session."""
        found = await self._store.run(lambda store: _heads(store, key["project_key"], key["session_id"]))
        return [parts[2] for parts, _ in found if len(parts) == 3]

    async def delete(self, key: SessionKey) -> None:
        """Delete a session and the transcripts of its sub-agents; with a subpath, only that transcript."""

        async def remove(store: Store) -> None:
            names = [_name(key)]
            if "subpath" not in key:
                found = await _heads(store, key["project_key"], key["session_id"])
                names += [head.name for parts, head in found if len(parts) == 3]
            for name in names:
                await store.delete(name)
                self._stored.remove(name)

        await self._store.run(remove)

    async def recall(self, query: str) -> Recalled:
        """Search all sessions, the most recently written first; return the first answer."""

        async def search(store: Store) -> Recalled:
            nothing = Recalled(text="Nothing is stored yet.")
            found = await _heads(store)
            for _, head in sorted(found, key=lambda one: one[1].touched, reverse=True):
                nothing = await (await store.session(head.name)).recall(query)
                if nothing:
                    return nothing
            return nothing

        return await self._store.run(search)


def _name(key: Mapping[str, Any]) -> str:
    parts = [PREFIX, key["project_key"], key["session_id"], *([key["subpath"]] if "subpath" in key else [])]
    return "/".join(quote(part, safe="") for part in parts)


def _main(key: SessionKey) -> SessionKey:
    return SessionKey(project_key=key["project_key"], session_id=key["session_id"])


async def _heads(store: Store, *parts: str) -> list[tuple[list[str], Head]]:
    """Return project, session and subpath of all stored transcripts that start with these parts, with their heads."""
    found: list[tuple[list[str], Head]] = []
    async for head in store.heads():
        prefix, *names = map(unquote, head.name.split("/"))
        if prefix == PREFIX and names[: len(parts)] == list(parts):
            found.append((names, head))
    return found


def _item(entry: JsonObject) -> JsonObject:
    """Return an entry as a message of Anthropic."""
    message: Any = entry.get("message")
    if not isinstance(message, dict) or not {"role", "content"} <= message.keys() or ENTRY in message:
        return {"role": ENTRY, "content": "", ENTRY: entry}
    rest = {name: value for name, value in entry.items() if name != "message"}
    return {**cast("JsonObject", message), ENTRY: rest}


async def _entries(session: Session) -> AsyncIterator[JsonObject]:
    if not await session.exists():
        return
    render = WIRES[FORMAT].render
    async for page in session.pages():
        for message in page:
            for item in render(message):
                rest = dict(item[ENTRY])
                if item["role"] != ENTRY:
                    rest["message"] = {name: value for name, value in item.items() if name != ENTRY}
                yield rest
