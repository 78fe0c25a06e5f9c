"""What the MCP server needs of sessions: one session to read, and a directory that finds it for a caller.

This module imports nothing heavy, so that the server answers its first request quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from kompakt.engine.recall import Recalled
    from kompakt.view.status import SessionStatus


class Caller(NamedTuple):
    """Who sent a request."""

    client: str = ""
    """The name that the client gave itself, such as ``claude-code``."""
    request: Any = None
    """The HTTP request, if there is one."""
    tool: str = ""
    """The tool that was called; empty for a resource or a prompt."""
    arguments: Mapping[str, Any] = {}
    """The arguments of the call."""


class ListedSession(NamedTuple):
    """A session in the list of sessions."""

    id: str
    kind: str
    """The agent that wrote the transcript, or the format of a stored session."""
    modified: str
    """The time of the last change, in UTC."""


Action = Literal["pin", "unpin", "compact", "undo"]


class ServedSession(Protocol):
    """A session that the server reads, and changes where it is allowed to."""

    @property
    def id(self) -> str:
        """The id by which a caller names the session."""
        ...

    @property
    def origin(self) -> str:
        """Where the text comes from, in words."""
        ...

    async def status(self) -> SessionStatus:
        """Return the numbers of the session."""
        ...

    async def recall(self, query: str, tokens: int) -> Recalled:
        """Search or restore."""
        ...

    async def ledger(self, tokens: int, sections: frozenset[str] | None) -> str:
        """Write the ledger of the whole session, or some of its sections."""
        ...

    async def summary(self, number: int) -> str:
        """Return the text of a compaction, counted from 1.

        Raises:
            UsageError: there is no such compaction.
        """
        ...

    async def manage(self, action: Action, text: str | None, budget: int | None) -> str:
        """Change the session and return what was done.

        Raises:
            UsageError: the session cannot be changed in this way.
        """
        ...


class SessionDirectory(Protocol):
    """Finds the sessions that a caller may see."""

    async def find(self, id: str | None, caller: Caller) -> ServedSession:
        """Return a session by its id, or the one that the caller is in.

        Raises:
            UsageError: there is no such session.
        """
        ...

    async def list(self, caller: Caller) -> list[ListedSession]:
        """List the sessions that the caller may see, newest first."""
        ...

    async def close(self) -> None:
        """Release what the directory opened."""
        ...


class LateDirectory:
    """A directory that is created on first use: importing the engine takes longer than a client's first request."""

    def __init__(self, create: Callable[[], SessionDirectory]) -> None:
        self._create = create
        self._made: SessionDirectory | None = None

    def _directory(self) -> SessionDirectory:
        if self._made is None:
            self._made = self._create()
        return self._made

    async def find(self, id: str | None, caller: Caller) -> ServedSession:
        """Return a session by its id, or the one that the caller is in."""
        return await self._directory().find(id, caller)

    async def list(self, caller: Caller) -> list[ListedSession]:
        """List the sessions that the caller may see, newest first."""
        return await self._directory().list(caller)

    async def close(self) -> None:
        """Release what was opened."""
        if self._made is not None:
            await self._made.close()
