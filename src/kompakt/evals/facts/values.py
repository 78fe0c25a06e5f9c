"""Numbers with their keys, ids with what they name, and tasks with their state.

A number counts where prose has ``someKey = 12`` or ``some_key: 12``, or where a command prints a line ``some key: 12``.
A line number after a file name does not count. An id counts once it is used by the user or in a call, after it appeared
with words for what it names. Tasks are recognised by the shape of the call: either one call with the whole list, or one
call per task followed by calls that change its status. Only the latest state of a task is a fact, and a new list
replaces the previous one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kompakt.evals.facts.constraints import own_text
from kompakt.evals.facts.fact import OperationalFact, words
from kompakt.evals.facts.shell import command_of
from kompakt.evals.history_events import CallPair, HistoryEvent, strings
from kompakt.model.messages import Json, JsonObject

_IN_PROSE = re.compile(r"(?<![\w./-])([A-Za-z_][\w-]{3,40})[`*\"]*(?: ?= ?|: ?| is )[`*\"]*(\d[\d.,]*\d%?)(?![\w-])")
_PRINTED = re.compile(r"^[ \t]*([A-Za-z_][\w -]{3,40}?)\s*[:=]\s*(\d[\d.,]*\d%?)(?: [A-Za-z%]{1,10})?$", re.M)
_NAMELIKE = re.compile(r"[a-z0-9][A-Z]|_|[A-Z]{2}|-")
_PLACE = re.compile(r"\blines?$|\btime$|\bdate$", re.IGNORECASE)

_ID = re.compile(
    r"(?<![\w./-])(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}|[A-Z]{2,8}-\d{1,6})(?![\w-])"
)
_WORD = re.compile(r"[A-Za-z]{4,}")


def number_facts(events: Iterable[HistoryEvent], pairs: Iterable[CallPair]) -> Iterator[OperationalFact]:
    """Yield numbers with their keys."""
    for event in events:
        if event.kind in ("user", "assistant") and not event.summary:
            found = _numbers(_IN_PROSE, own_text(event.text), "")
            yield from (fact for fact in found if _NAMELIKE.search(fact.relation))
    for call in pairs:
        if call.result is not None and command_of(call.event) is not None and len(call.result.text) < 4000:
            yield from _numbers(_PRINTED, call.result.text, call.event.id)


def _numbers(pattern: re.Pattern[str], text: str, origin: str) -> Iterator[OperationalFact]:
    for found in pattern.finditer(text):
        key = found[1].strip()
        if not _PLACE.search(key):
            yield OperationalFact("number", found[2], key, re.escape(key), (origin,) if origin else ())


def id_facts(events: Iterable[HistoryEvent]) -> Iterator[OperationalFact]:
    """Yield used ids, each with the words next to its first mention."""
    named: dict[str, str] = {}
    used: set[str] = set()
    for event in events:
        uses = event.kind == "call" or (event.kind == "user" and not event.summary)
        text = "\n".join(strings(event.input)) if event.kind == "call" else event.text
        for found in _ID.finditer(text):
            if found[0] in named and uses:
                used.add(found[0])
            name = _words_beside(text, found) if event.kind != "call" else ""
            if name:
                named.setdefault(found[0], name)
    for id in sorted(used):
        yield OperationalFact("id", id, named[id], "|".join(rf"\b{word}\b" for word in named[id].split()))


def _words_beside(text: str, found: re.Match[str]) -> str:
    """Return up to six words on the line of an id."""
    start = text.rfind("\n", 0, found.start()) + 1
    end = text.find("\n", found.end())
    line = (
        text[max(start, found.start() - 60) : found.start()] + " " + text[found.end() : end if end >= 0 else None][:60]
    )
    names = dict.fromkeys(word for word in _WORD.findall(line) if not word.isupper())
    return " ".join(list(names)[:6])


TASK_LIMIT = 60
"""Characters of a task that must be present verbatim."""

DONE = rf"{words('done', 'complet', 'finish')}|\[x\]|✓|✔|✅|☑"
_OPEN = ("open", "pending", "in.progress", "to-?do", "next", "remain", "current", "ongoing")
OPEN = rf"{words(*_OPEN)}|\[ \]|☐"

_TITLE_KEYS = ("content", "subject", "title", "task", "text", "step", "description")
_NUMBER = re.compile(r"#(\d+)")
_CLOSED = re.compile(r"complet|done|finish|closed", re.I)
_GONE = re.compile(r"delet|cancel|remov", re.I)


def task_facts(pairs: Iterable[CallPair]) -> Iterator[OperationalFact]:
    """Yield each task with its latest state."""
    states: dict[str, tuple[str, str]] = {}
    numbered: dict[str, str] = {}
    for call in pairs:
        if not call.succeeded:
            continue
        fields = call.event.input
        if listed := list(_task_list(fields)):
            states = {item: (status, call.event.id) for item, status in listed}
        _apply_update(call, fields, states, numbered)
    for item, (status, origin) in states.items():
        if _GONE.search(status):
            continue
        done = bool(_CLOSED.search(status))
        yield OperationalFact("task", item, "done" if done else "open", DONE if done else OPEN, (origin,))


def _apply_update(
    call: CallPair, fields: JsonObject, states: dict[str, tuple[str, str]], numbered: dict[str, str]
) -> None:
    """Apply a call that creates one task or changes the status of a known one."""
    number = next((str(fields[key]) for key in ("taskId", "task_id", "id") if key in fields), None)
    status = fields.get("status")
    if number is not None and number in numbered and isinstance(status, str):
        states[numbered[number]] = (status, call.event.id)
    elif isinstance(fields.get("subject"), str) and call.result is not None:
        created = _NUMBER.search(call.result.text)
        if created is not None:
            item = _shortened(fields["subject"])
            numbered[created[1]] = item
            states[item] = ("pending", call.event.id)


def _task_list(fields: JsonObject) -> Iterator[tuple[str, str]]:
    """Yield the items of lists of objects with a title and a status."""
    for value in fields.values():
        items: list[Json] = value if isinstance(value, list) else []
        for item in items:
            if isinstance(item, dict) and isinstance(item.get("status"), str):
                text = next((item[key] for key in _TITLE_KEYS if isinstance(item.get(key), str)), "")
                if text.strip():
                    yield _shortened(text), item["status"]


def _shortened(text: str) -> str:
    """Cut a task at a word boundary, because a partial word is never found as a whole one."""
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= TASK_LIMIT else (line[:TASK_LIMIT].rpartition(" ")[0] or line[:TASK_LIMIT]).rstrip()
