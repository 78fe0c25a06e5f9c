"""Tasks and their states, as the agent keeps them with a todo tool.

Two shapes are known: a list of all tasks, restated at every call, and single tasks that are created, then changed by
the id that the answer to their creation gave. That id is told with the task, so a later pass knows it too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from kompakt.engine.ledger.facts import Fact
from kompakt.engine.ledger.quotes import harmless, one_line
from kompakt.model.messages import Json, ToolResult

MAX_TASK = 200
"""Characters kept of a task."""

_STATES = {
    "pending": "open", "todo": "open", "open": "open", "not_started": "open", "queued": "open",
    "in_progress": "in progress", "in-progress": "in progress", "active": "in progress", "doing": "in progress",
    "completed": "done", "complete": "done", "done": "done", "finished": "done", "closed": "done",
    "cancelled": "dropped", "canceled": "dropped", "deleted": "dropped", "dropped": "dropped",
}  # fmt: skip
_TITLES = ("content", "subject", "title", "task", "step", "text", "description", "name")
_MAKING = frozenset(["subject", "activeForm", "active_form"])
"""What only the input of a call has that makes a task."""

_NUMBER = re.compile(r"#\s?(\w+)|\bid\W{1,4}(\w+)", re.IGNORECASE)


class Tasks:
    """Tasks by id, as far as ids were given."""

    __slots__ = ("_titles",)

    def __init__(self) -> None:
        self._titles: dict[str, str] = {}

    def facts(self, fields: Mapping[str, Json], result: ToolResult | None, reference: str, at: int) -> Iterator[Fact]:
        """Say what a call tells about tasks; one that failed tells nothing."""
        if result is not None and result.is_error:
            return
        for value in fields.values():
            if isinstance(value, list):
                yield from (
                    Fact("task", title, state, reference, at=at)
                    for item in value
                    if isinstance(item, dict) and (state := _state(item)) and (title := _title(item))
                )
        state = _state(fields)
        if state is not None:
            id = _id(fields)
            title = self._titles.get(id) or _title(fields)
            if title:
                yield Fact("task", title, state, reference, (id,) if id in self._titles else (), at=at)
        elif not _MAKING.isdisjoint(fields) and not _id(fields):
            title = _title(fields)
            if title and result is not None:
                found = _NUMBER.search(result.output[:MAX_TASK])
                if found:
                    self.learn(found[1] or found[2], title)
                yield Fact("task", title, "open", reference, (found[1] or found[2],) if found else (), at=at)

    def learn(self, id: str, title: str) -> None:
        """Take note of the id of a task."""
        self._titles[id] = title


def is_task(fields: Mapping[str, Json]) -> bool:
    """Tell whether a call is about tasks."""
    lists = [item for value in fields.values() if isinstance(value, list) for item in value if isinstance(item, dict)]
    return any(map(_state, [fields, *lists])) or not _MAKING.isdisjoint(fields)


def _state(fields: Mapping[str, Json]) -> str | None:
    value = fields.get("status") or fields.get("state")
    return _STATES.get(value.lower()) if isinstance(value, str) else None


def _title(fields: Mapping[str, Json]) -> str:
    for key in _TITLES:
        value = fields.get(key)
        if isinstance(value, str) and value.strip():
            return harmless(one_line(value, MAX_TASK))
    return ""


def _id(fields: Mapping[str, Json]) -> str:
    for key, value in fields.items():
        if key.lower().endswith("id") and isinstance(value, str | int):
            return str(value)
    return ""
