"""Tasks and their states, as the agent keeps them with a todo or task tool.

Two shapes are known: a list of all tasks, restated at every call, and single tasks that are created, then changed by
the id that the answer to their creation gave.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from kompakt.engine.ledger.excerpts import harmless, one_line
from kompakt.engine.ledger.extract.tool_calls import TASK_KEYS
from kompakt.model.messages import Json, ToolResult

MAX_TITLE = 200
MAX_DESCRIPTION = 300
"""Characters kept of a task's title and of its description."""

OPEN, ACTIVE, DONE, DROPPED = "[ ]", "[>]", "[x]", "[-]"
_STATES = {
    "pending": OPEN, "todo": OPEN, "open": OPEN, "not_started": OPEN, "queued": OPEN, "blocked": OPEN,
    "in_progress": ACTIVE, "in-progress": ACTIVE, "active": ACTIVE, "doing": ACTIVE,
    "completed": DONE, "complete": DONE, "done": DONE, "finished": DONE, "closed": DONE,
    "cancelled": DROPPED, "canceled": DROPPED, "deleted": DROPPED, "dropped": DROPPED,
}  # fmt: skip
_TITLES = ("content", "subject", "title", "task", "step", "text", "description", "name")
_DESCRIPTIONS = ("description", "details", "notes")
_BLOCKERS = ("addBlockedBy", "blockedBy", "blocked_by", "depends_on", "dependencies")
_CREATES = frozenset(["subject", "activeForm", "active_form"])
"""Keys that only a call has which creates a task."""

_NUMBER = re.compile(r"#\s?(\w+)|\bid\W{1,4}(\w+)", re.IGNORECASE)
_WRITTEN = re.compile(r"(\[[ >x-]\]) (?:#(\S+) )?(.*)")


class Task(msgspec.Struct):
    """One task as it was last seen."""

    title: str
    state: str
    id: str = ""
    description: str = ""
    blockers: tuple[str, ...] = ()
    at: int = -1

    def text(self) -> str:
        """Write the task on one line: state, id, title, and what else is known while it is not done."""
        line = f"{self.state} {f'#{self.id} ' if self.id else ''}{self.title}"
        if self.state in (DONE, DROPPED):
            return line
        if self.description and self.description != self.title:
            line += f": {self.description}"
        return line + (f" (blocked by {', '.join(f'#{one}' for one in self.blockers)})" if self.blockers else "")


class Tasks:
    """The tasks of a session, in the order in which they were created."""

    __slots__ = ("_listed", "_tasks")

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}
        self._listed: set[str] = set()

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks.values())

    def read_line(self, line: str) -> bool:
        """Read a task that an earlier pass wrote; return whether the line is one."""
        found = _WRITTEN.fullmatch(line)
        if found is not None:
            self._tasks[found[2] or found[3]] = Task(found[3], found[1], found[2] or "")
        return found is not None

    def update(self, fields: Mapping[str, Json], result: ToolResult | None, at: int) -> None:
        """Apply a call. One that failed changes nothing."""
        if result is not None and result.is_error:
            return
        for value in fields.values():
            items = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
            stated = [(state, title, item) for item in items if (state := _state(item)) and (title := _title(item))]
            if stated:
                self._replace_list(stated, at)
        state, id = _state(fields), _id(fields)
        blockers = _blockers(fields)
        if id in self._tasks and (state or blockers):
            task = self._tasks[id]
            self._tasks[id] = msgspec.structs.replace(
                task, state=state or task.state, blockers=(*task.blockers, *blockers), at=at
            )
        elif (state or not _CREATES.isdisjoint(fields)) and (title := _title(fields)):
            answered = _NUMBER.search(result.output[:MAX_TITLE]) if result is not None and not id else None
            id = id or (answered[1] or answered[2] if answered else "")
            task = Task(title, state or OPEN, id, _description(fields), blockers, at)
            self._tasks[id or title] = task

    def _replace_list(self, stated: list[tuple[str, str, dict[str, Json]]], at: int) -> None:
        """Replace the list; tasks that it no longer contains are removed."""
        titles = {title for _, title, _ in stated}
        for key in self._listed - titles:
            self._tasks.pop(key, None)
        for state, title, item in stated:
            self._tasks[title] = Task(title, state, "", _description(item), _blockers(item), at)
        self._listed = titles


def is_task(fields: Mapping[str, Json]) -> bool:
    """Return whether a call is about tasks."""
    if TASK_KEYS.isdisjoint(fields) and list not in map(type, fields.values()):
        return False
    lists = [item for value in fields.values() if isinstance(value, list) for item in value if isinstance(item, dict)]
    return any(_state(one) and _title(one) for one in lists) or (
        bool((_state(fields) or _blockers(fields)) and _id(fields)) or not _CREATES.isdisjoint(fields)
    )


def _state(fields: Mapping[str, Json]) -> str | None:
    value = fields.get("status") or fields.get("state")
    return _STATES.get(value.lower()) if isinstance(value, str) else None


def _title(fields: Mapping[str, Json]) -> str:
    for key in _TITLES:
        value = fields.get(key)
        if isinstance(value, str) and value.strip():
            return harmless(one_line(value, MAX_TITLE))
    return ""


def _description(fields: Mapping[str, Json]) -> str:
    value = next((value for key in _DESCRIPTIONS if isinstance(value := fields.get(key), str)), "")
    return harmless(one_line(value, MAX_DESCRIPTION))


def _blockers(fields: Mapping[str, Json]) -> tuple[str, ...]:
    for key in _BLOCKERS:
        value = fields.get(key)
        if isinstance(value, list):
            return tuple(harmless(str(one))[:40] for one in value[:8])
    return ()


def _id(fields: Mapping[str, Json]) -> str:
    for key, value in fields.items():
        if key.lower().endswith("id") and isinstance(value, str | int):
            return str(value)
    return ""
