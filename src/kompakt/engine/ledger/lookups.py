"""Calls of tools that are no commands and name no files: what was looked up, and what was changed outside.

The name of a tool says whether it looks or changes something; calls of a tool whose name says neither have a section of
their own. Answers in JSON become records. Lookups of one tool share a table whose columns are the values that the
conversation is about. A call that changes something is stated with its arguments and the value before and after. In a
session that changed no files, calls that only looked are named, so that its notes are never empty.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from kompakt.engine.ledger.events import RECENT_EVENTS, Event, Spoken, ToolUse
from kompakt.engine.ledger.excerpts import (
    answer_text,
    as_code,
    flat,
    harmless,
    is_report,
    one_line,
    passages,
    quoted,
    report_text,
    substance,
    telling_line,
)
from kompakt.engine.ledger.extract.record_changes import MAX_CHANGE, change_text, identity
from kompakt.engine.ledger.extract.records import (
    MAX_JSON,
    MIN_ROWS,
    Focus,
    Record,
    decoded_object,
    decoded_records,
    identifiers,
    table,
    with_arguments,
    without_arguments,
)
from kompakt.engine.ledger.extract.tool_calls import input_text, snake_case
from kompakt.engine.ledger.items import CALLS, CHANGES, FINDINGS, LOOKED, STATE, Item, ItemList

MAX_ANSWER = 420
"""Characters kept of what a call that changed something answered."""

MAX_LOOKUP = 400
"""Characters kept of what a lookup answered."""

MAX_QUOTE = 120
"""The same of a lookup that answered with plain text."""

MAX_RECORDS_TEXT = 1_000_000
"""Characters of answers that are read for tables, the newest first, so that a ledger of huge answers stays fast."""

CHANGE_VALUE = 10
"""Value of a change of an object outside, apart from how many values it states."""

TABLE_VALUE = 5
"""Value of a row of a table of lookups, apart from how long and how new it is."""

OWN_LOOKUP_VALUE = 1.3
"""Value of a row about an object that was looked up by itself, relative to one of many results of a search."""

TOLD_VALUE = 0.6
"""Value of a row about an object whose changes are stated, relative to other rows."""

LOOKUP_VALUE = 5
"""Value of one call with what it answered, apart from how new it is."""

CELL_CHARS = 12
"""The value of a row grows by 1 for this many characters, because each cell is a fact of its own."""

REPORT_VALUE = 1.7
"""Value of a passage of a report, for each unit of what it settles."""

MAX_REPORTED = 12
"""Passages of one report that may be quoted."""

MAX_NAMED_TOOLS = 6

MAX_NAMED, MAX_GIVEN, MAX_RESULT, NAMED_VALUE = 8, 90, 40, 1.5
"""Newest calls of one tool that are named, characters of what each was given and of a result, value of the line."""

MAX_STARTED = 12
"""Newest tasks given to other agents that are named."""

MAX_ADDRESSES = 6
"""Newest addresses that are named."""

MAX_LISTED = 40
"""Newest files of one folder that are named as looked at."""

ONLY_LOOKUPS = "All calls so far were lookups and changed nothing"
"""Starts the line which says so."""

_LOOKS = (
    "get list read search find grep glob view look lookup fetch query show describe check count ls cat open inspect"
)
_TELLS = "think calculate estimate compare web status output history info screenshot snapshot"
_READS = frozenset(f"{_LOOKS} {_TELLS}".split())
"""Words of which the first verb of a tool's name is one if the tool only reads."""

_WAITS, _CALCULATES = frozenset(["think", "sleep", "wait"]), frozenset(["calculate", "calculator"])
"""The same of tools that have no answer, and of those whose answer follows from their input."""

_CHANGES = re.compile(
    r"accept|activate|add|allocate|append|apply|approve|archive|assign|attach|build|buy|call|cancel|change|"
    r"charge|clear|click|close|complete|confirm|copy|create|deactivate|delete|deny|deploy|disable|drop|edit|"
    r"enable|exec|execute|export|fill|finalize|finish|fix|grant|hide|import|insert|install|invite|invoke|kill|"
    r"launch|lock|make|mark|merge|modify|move|notify|patch|pause|pay|place|post|press|publish|purchase|push|"
    r"put|rebook|reboot|redeem|refund|register|reject|remove|rename|reopen|reorder|replace|reply|reschedule|"
    r"reserve|reset|resolve|restart|restore|resume|retry|return|revert|revoke|rotate|run|save|schedule|send|"
    r"set|share|ship|sign|start|stop|submit|subscribe|suspend|swap|switch|sync|terminate|toggle|transfer|"
    r"trigger|unassign|unblock|undo|unlock|unsubscribe|update|upgrade|upload|upsert|validate|void|withdraw|"
    r"write"
)
"""Verbs of tools that change something. Other words before the first verb say what a tool belongs to."""

_ACTS = frozenset(
    [
        "bid",
        "block",
        "book",
        "commit",
        "exchange",
        "issue",
        "label",
        "log",
        "order",
        "rate",
        "record",
        "report",
        "request",
        "tag",
        "vote",
    ]
)
"""Words that are such verbs at the beginning of a name, unless it goes on with the name of a value."""

_VALUES = frozenset(
    ["rate", "rates", "status", "history", "info", "list", "output", "price", "details", "state", "number", "id"]
)

_DELEGATES = re.compile(r"(?:^|_)(?:task|agent|subagent|delegate|dispatch|spawn|skill)(?:$|_)")
"""Names of tools that start another agent, whose report comes later, or load instructions."""

_ABOUT = ("description", "title", "name", "task", "prompt")

_THINKS = frozenset(["thought", "thinking", "reasoning"])


class Lookups:
    """What calls of a session looked up, or changed outside."""

    def __init__(self, items: ItemList, events: Sequence[Event], *, table_chars: int | None = None) -> None:
        self._items = items
        self._events = events
        self._table_chars = table_chars
        """Characters from which the rows of a table become narrow."""
        self._records_from = _records_from(events)
        """Position from which answers in JSON are read: only the newest, up to an amount of text."""
        self.looked: dict[str, dict[str, None]] = {}
        """Names of the files that were looked at, by folder; addresses have no folder."""
        self._started: dict[str, dict[str, None]] = {}
        """What was given to tools that start another agent."""
        self._objects: dict[str, Record] = {}
        """Objects outside by their id, as they were last seen."""
        self._changed: dict[str, Record] = {}
        """Those that a call changed."""
        self._named: dict[str, dict[str, None]] = {}
        """What calls that only looked were given, by tool."""
        self._made: dict[str, Record] = {}
        """What the newest call of each tool made."""
        self._lookups: list[tuple[ToolUse, list[Record]]] = []
        """Calls that answered with records."""
        self._reports = 0

    def note_looked(self, event: ToolUse) -> None:
        """Note files that a call read, the address that it fetched, or what it was given."""
        effect = event.effect
        if not effect.files and not effect.url:
            self._name(event.call.name, effect.command or effect.sought or flat(dict(effect.fields), MAX_GIVEN))
            return
        for how, path in effect.files:
            if how != "read":
                continue
            folder, _, name = path.rpartition("/")
            names = self.looked.setdefault(folder or ".", {})
            names.pop(name, None)
            names[name] = None
        if not effect.files and effect.url:
            self.looked.setdefault("", {})[f"{event.call.name} {effect.url}"] = None

    def _name(self, tool: str, given: str) -> None:
        names = self._named.setdefault(tool, {})
        names.pop(given, None)
        names[given] = None

    def read(self, event: ToolUse, *, lasting: bool, words: set[str], facts: set[str]) -> None:
        """Add the input and the answer of a tool of unknown kind; ``words`` and ``facts`` are those of the requests."""
        effect = event.effect
        assert event.result is not None
        name, recency = event.call.name, self._items.recency(event.at)
        thought = next((value for key, value in effect.fields.items() if key in _THINKS), None)
        if isinstance(thought, str):
            for number, part in enumerate(parts := passages(thought)):
                self._items.add(
                    FINDINGS, event.at, harmless(part), 1.6 * substance(part), passage=number, passages=len(parts)
                )
            return
        if is_report(event.result.output):
            self._read_report(event)
            return
        if _DELEGATES.search(snake_case(name)):
            about = next(
                (value for key, value in effect.fields.items() if key in _ABOUT and isinstance(value, str)), ""
            )
            if about:
                self._started.setdefault(name, {})[quoted(one_line(about, MAX_QUOTE), MAX_QUOTE)] = None
            return
        kind = _kind(name)
        if (kind == LOOKED and lasting) or _first_verb(name) in _WAITS:
            return
        if _first_verb(name) in _CALCULATES:
            self._name(name, f"{flat(dict(effect.fields), MAX_GIVEN)} → {one_line(event.result.output, MAX_RESULT)}")
            return
        is_old = event.at < self._records_from
        if kind == LOOKED and is_old and event.result.output.lstrip()[:1] in ("{", "["):
            return
        records = None if kind == CHANGES or is_old else decoded_records(event.result.output)
        if records is not None:
            self._lookups.append((event, records))
            if len(records) == 1 and (id := identity(record := with_arguments(records[0], effect.fields))):
                self._objects[id] = record
            return
        if kind == CHANGES and (record := decoded_object(event.result.output)) is not None:
            id = identity(record)
            before, other = self._objects.get(id), self._made.get(name)
            text = change_text(harmless(name), effect.fields, record, before=before, other=other)
            if id:
                self._objects[id] = self._changed[id] = record
                if before is None:
                    self._made[name] = record
            value = CHANGE_VALUE + len(text) / CELL_CHARS
            self._items.add(STATE, event.at, text, value, partial=len(text) >= MAX_CHANGE)
            return
        given = flat(dict(effect.fields), 220) if effect.fields else one_line(str(event.call.input or ""), 220)
        is_data = event.result.output.lstrip()[:1] in ("{", "[")
        if kind == LOOKED and not is_data:
            answer = telling_line(event.result.output, words, facts, MAX_QUOTE)
        else:
            answer = answer_text(event.result.output, MAX_ANSWER if kind == CHANGES else MAX_LOOKUP)
        looks_value = (1 if kind == LOOKED and not is_data else LOOKUP_VALUE) + 2 * recency
        text = f"{harmless(name)}({given}) → {answer}"
        self._items.add(kind, event.at, text, 8 if kind == CHANGES else looks_value, partial=True)

    def _read_report(self, event: ToolUse) -> None:
        """Add the most informative passages of prose that a tool returned, such as a report of a sub-agent."""
        assert event.result is not None
        self._reports += 1
        parts = passages(report_text(event.result.output))
        if not parts:
            return
        values = [REPORT_VALUE * substance(part) * (1.3 if number == 0 else 1.0) for number, part in enumerate(parts)]
        least = sorted(values, reverse=True)[:MAX_REPORTED][-1]
        reference = self._items.reference(event.answered_at)
        at = event.at + self._reports / 1_000
        origin = f"{harmless(event.call.name)} reported"
        for number, (part, value) in enumerate(zip(parts, values, strict=True)):
            if value >= least:
                item = Item(FINDINGS, at, harmless(part), value, reference, number, len(parts), origin=origin)
                self._items.all.append(item)

    def finish(self, changed_files: set[str]) -> None:
        """Add tasks of other agents, files that were looked at and not changed, and calls that only looked."""
        for name, given in self._started.items():
            text = f"Started {harmless(name)}: {_newest(list(given), MAX_STARTED, '; ')}"
            self._items.all.append(Item(LOOKED, self._items.upto, text, 2.0))
        for folder, names in self.looked.items():
            listed = [name for name in names if name not in changed_files]
            if not listed:
                continue
            if folder:
                text = f"{harmless(folder)}: {harmless(_newest(listed, MAX_LISTED, ', '))}"
            else:
                text = _newest([as_code(name, 90) for name in listed], MAX_ADDRESSES, "; ")
            self._items.all.append(Item(LOOKED, self._items.upto, text, 2.0))

        # Where files were changed, searches on the way to them are of no interest.
        for name, given in () if changed_files else self._named.items():
            calls = _newest([as_code(one, MAX_GIVEN + MAX_RESULT) for one in given], MAX_NAMED, "; ")
            self._items.all.append(Item(LOOKED, self._items.upto, f"{harmless(name)}: {calls}", NAMED_VALUE))

    def tabulate(self) -> None:
        """Write lookups as tables, and say whether all calls were lookups."""
        if self._lookups:
            self._add_tables()
            self._note_only_lookups()

    def _add_tables(self) -> None:
        """Write lookups as tables, one for each tool; a lookup that is the only one of its kind as key–value text."""
        focus = _focus(self._events)
        tables: dict[str, list[tuple[ToolUse, Record]]] = {}
        alone: set[int] = set()
        for event, records in self._lookups:
            fields, name = event.effect.fields, event.call.name
            assert event.result is not None
            if event.result.output.lstrip()[:1] == "{" and len(records) == 1:
                record = with_arguments(records[0], fields)
                alone.add(id(event))
                tables.setdefault(name, []).append((event, self._changed.get(identity(record), record)))
                continue
            linked = [record for record in records if focus.links(record, name)]
            if linked:
                tables.setdefault(name, []).extend((event, without_arguments(record, fields)) for record in linked)
            else:
                self._add_lookup(event)
        for name, rows in tables.items():
            if len(rows) < MIN_ROWS:
                self._add_lookup(rows[0][0])
                continue
            heading, lines = table([record for _, record in rows], focus, max_chars=self._table_chars)
            label = f"{harmless(name)} → {heading}"
            for number, ((event, record), line) in enumerate(zip(rows, lines, strict=True)):
                value = TABLE_VALUE + len(line) / CELL_CHARS + 2 * self._items.recency(event.at)
                if id(event) in alone:
                    value *= OWN_LOOKUP_VALUE
                if identity(record) in self._changed:  # what was changed in it is stated elsewhere
                    value *= TOLD_VALUE
                at = event.at + number / (10 * len(rows))
                reference = "" if identifiers(line.partition(" ")[0]) else self._items.reference(event.at)
                self._items.all.append(Item(_kind(name), at, line, value, reference, label=label))

    def _note_only_lookups(self) -> None:
        """Add that no call changed anything, if the names of all calls imply it."""
        names = Counter(event.call.name for event in self._events if type(event) is ToolUse)
        if any(item.section in (CHANGES, STATE) for item in self._items.all):
            return
        if all(map(only_reads, names)):
            calls = ", ".join(f"{harmless(name)} ({count})" for name, count in names.most_common(MAX_NAMED_TOOLS))
            calls += f" and {len(names) - MAX_NAMED_TOOLS} other tools" if len(names) > MAX_NAMED_TOOLS else ""
            self._items.all.append(Item(STATE, -1, f"{ONLY_LOOKUPS}: {calls}", 16.0))

    def _add_lookup(self, event: ToolUse) -> None:
        assert event.result is not None
        given = flat(dict(event.effect.fields), 220)
        text = f"{harmless(event.call.name)}({given}) → {answer_text(event.result.output, MAX_LOOKUP)}"
        value = LOOKUP_VALUE + 2 * self._items.recency(event.at)
        self._items.add(_kind(event.call.name), event.at, text, value, partial=True)


def _newest(names: Sequence[str], most: int, gap: str) -> str:
    """List the newest names, and say how many others there are."""
    return gap.join([*([f"{len(names) - most} others"] if len(names) > most else []), *names[-most:]])


def only_reads(name: str) -> bool:
    """Return whether the name of a tool says that it only reads."""
    return _kind(name) == LOOKED


def _kind(name: str) -> str:
    """Return the section of a tool's calls: lookups, changes, or calls of which the name does not say either."""
    verb = _first_verb(name)
    return LOOKED if verb in _READS else CHANGES if _CHANGES.fullmatch(verb) or verb in _ACTS else CALLS


@lru_cache(maxsize=256)
def _first_verb(name: str) -> str:
    """Return the first verb in the name of a tool, without that of its server, as in ``mcp__server__get_x``."""
    own = re.split(r"__|[.:/]", name.rstrip("_.:/"))[-1]
    words = re.split(r"[_\W]+", snake_case(own))
    if words[0] in _ACTS and _VALUES.isdisjoint(words[1:]):
        return words[0]
    return next(
        (word for word in words if word in _READS or word in _WAITS | _CALCULATES or _CHANGES.fullmatch(word)), ""
    )


def tells_something(output: str) -> bool:
    """Return whether a search answered with more than places to look at: with records or with prose."""
    return is_report(output) or decoded_records(output) is not None


def _records_from(events: Sequence[Event]) -> int:
    """Return the position from which on the answers of all calls together have an acceptable size."""
    left = MAX_RECORDS_TEXT
    for event in reversed(events):
        if type(event) is ToolUse and event.result is not None:
            left -= min(len(event.result.output), MAX_JSON)
            if left < 0:
                return event.at + 1
    return 0


def _focus(events: Sequence[Event]) -> Focus:
    """Collect what was said, what calls were given and what they answered."""
    spoken: list[str] = []
    given: list[str] = []
    answers: dict[str, list[str]] = {}
    start = _records_from(events)
    for event in events[-RECENT_EVENTS:]:
        if type(event) is Spoken:
            spoken.append(event.text)
        elif type(event) is ToolUse:
            is_thought = not _THINKS.isdisjoint(event.effect.fields)
            (spoken if is_thought else given).append(input_text(event.call))
            if event.result is not None and event.at >= start:
                answers.setdefault(event.call.name, []).append(event.result.output[:MAX_JSON])
    return Focus(answers, spoken, given)
