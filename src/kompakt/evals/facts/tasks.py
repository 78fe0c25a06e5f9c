"""Tasks and their state: items of a todo tool, told by the shape of its calls.

Two shapes: one call with the whole list (objects with words and a status), or a call a task and later calls that give
its number a status. Only the newest state of a task is a fact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kompakt.evals.facts.fact import Fact, words
from kompakt.evals.sources.trail import Call
from kompakt.model.messages import Json, JsonObject

LIMIT = 60
"""Characters of a task that must stand verbatim."""

DONE = rf"{words('done', 'complet', 'finish')}|\[x\]|✓|✔|✅|☑"
_OPEN = ("open", "pending", "in.progress", "to-?do", "next", "remain", "current", "ongoing")
OPEN = rf"{words(*_OPEN)}|\[ \]|☐"

_WORDS = ("content", "subject", "title", "task", "text", "step", "description")
_NUMBER = re.compile(r"#(\d+)")
_CLOSED = re.compile(r"complet|done|finish|closed", re.I)
_GONE = re.compile(r"delet|cancel|remov", re.I)


def task_facts(pairs: Iterable[Call]) -> Iterator[Fact]:
    """Yield each task with its newest state."""
    states: dict[str, tuple[str, str]] = {}
    numbered: dict[str, str] = {}
    for call in pairs:
        if not call.worked:
            continue
        given = call.event.input
        for item, status in _listed(given):
            states[item] = (status, call.event.id)
        _follow(call, given, states, numbered)
    for item, (status, origin) in states.items():
        if _GONE.search(status):
            continue
        done = bool(_CLOSED.search(status))
        yield Fact("task", item, "done" if done else "open", DONE if done else OPEN, (origin,))


def _follow(call: Call, given: JsonObject, states: dict[str, tuple[str, str]], numbered: dict[str, str]) -> None:
    """Take a call that makes one task, or that gives a known one another status."""
    number = next((str(given[key]) for key in ("taskId", "task_id", "id") if key in given), None)
    status = given.get("status")
    if number is not None and number in numbered and isinstance(status, str):
        states[numbered[number]] = (status, call.event.id)
    elif isinstance(given.get("subject"), str) and call.result is not None:
        made = _NUMBER.search(call.result.text)
        if made is not None:
            item = _shortened(given["subject"])
            numbered[made[1]] = item
            states[item] = ("pending", call.event.id)


def _listed(given: JsonObject) -> Iterator[tuple[str, str]]:
    """Yield the items of a list of objects that have words and a status."""
    for value in given.values():
        items: list[Json] = value if isinstance(value, list) else []
        for item in items:
            if isinstance(item, dict) and isinstance(item.get("status"), str):
                text = next((item[key] for key in _WORDS if isinstance(item.get(key), str)), "")
                if text.strip():
                    yield _shortened(text), item["status"]


def _shortened(text: str) -> str:
    """Keep the beginning of a task, up to a whole word: half a word is never found as a whole one."""
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= LIMIT else (line[:LIMIT].rpartition(" ")[0] or line[:LIMIT]).rstrip()
