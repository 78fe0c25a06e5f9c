"""Turns events into items: what a reader who continues the work would want to know about each.

Each kind of event has its own collector: ``speech``, ``changed_files``, ``runs``, ``lookups`` and ``extract.tasks``.
All add to one list of items.

Values are relative. The user's words and refusals come first, then open tasks and what changed the world, then
findings and tables of lookups, then runs and failures, last the files that were only read. Newer events are worth more
than older ones of the same kind. The scale was set by letting readers answer questions from the result, not by a count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from kompakt.engine.ledger import conversation
from kompakt.engine.ledger.changed_files import ALSO, ChangedFiles, FileEdit, edit_of, names_path
from kompakt.engine.ledger.events import RECENT_EVENTS, THOUGHT, Event, Spoken, ToolUse, with_actions
from kompakt.engine.ledger.excerpts import PASSAGE, as_code, flat, harmless, one_line, passages, quoted, substance
from kompakt.engine.ledger.extract.outcomes import failure_lines, has_failed, refusal
from kompakt.engine.ledger.extract.tasks import ACTIVE, OPEN, Tasks, is_task
from kompakt.engine.ledger.extract.tool_calls import snake_case
from kompakt.engine.ledger.items import (
    CALLS,
    CHANGES,
    FINDINGS,
    LOOKED,
    RUNS,
    STATE,
    TABULAR,
    TALK,
    USER,
    Earlier,
    Item,
    ItemList,
)
from kompakt.engine.ledger.lookups import CELL_CHARS, TABLE_VALUE, Lookups, only_reads, tells_something
from kompakt.engine.ledger.runs import Runs, WorkState, changes_shared_state
from kompakt.engine.ledger.speech import Speech

UNDONE_VALUE = 9
"""Value of a line that says what was not run, committed or pushed: a reader can only guess it otherwise."""

MAX_REFUSED_CHANGE = 160
"""Characters kept of what an edit that the user refused would have changed."""

MAX_ANSWERS = 400
"""Characters kept of what the user answered to questions of a tool, and of these questions."""

_ASKS_USER = re.compile(r"ask_(?:the_)?(?:user|follow_?up)|request_user_input")
"""Names of tools that put questions to the user."""

MIN_OLD_SPEECH = 200
"""Characters of a text of the assistant that is not among the recent events."""

_EARLIER_VALUE = {USER: 14.0, STATE: 7.0, TALK: 6.0, CHANGES: 7.0, RUNS: 3.0, CALLS: 5.0, LOOKED: 2.0}


class Statements:
    """Collects the items of a session's events."""

    def __init__(
        self, earlier: Earlier, reference: Callable[[int], str], upto: int, *, table_chars: int | None = None
    ) -> None:
        self._items = ItemList(reference, upto)
        self._table_chars = table_chars
        self._tasks = Tasks()
        self._work = WorkState(is_continued=bool(earlier.items or earlier.narrative))
        self._files = ChangedFiles(self._items)
        self._runs = Runs(self._items)
        self._read_earlier(earlier)

    def read(
        self, events: Sequence[Event], is_hidden: Callable[[Event], bool], *, may_be_talk: bool = True
    ) -> list[Item]:
        """Return the items of all hidden events, in no order."""
        events = with_actions(events)
        if may_be_talk and not any(type(event) is ToolUse for event in events) and not self._files:
            spoken = [event for event in events if type(event) is Spoken and event.role != THOUGHT and is_hidden(event)]
            if len(spoken) > 1:
                self._items.all += conversation.items_of(spoken)
                return self._items.all
        speech = Speech(self._items, events, is_hidden, _changes_something)
        lookups = Lookups(self._items, events, table_chars=self._table_chars)
        recent = len(events) - RECENT_EVENTS
        for number, event in enumerate(events):
            lasting = number < recent
            if lasting and _fades(event):
                continue
            if type(event) is Spoken and is_hidden(event):
                speech.read(number, event)
            elif type(event) is ToolUse:
                then = events[number + 1] if number + 1 < len(events) else None
                is_explained = type(then) is Spoken and then.role == "user"
                if self._read_call(event, hidden=is_hidden(event), is_explained=is_explained):
                    self._read_effect(event, speech, lookups, lasting=lasting)
        self._finish(lookups)
        lookups.tabulate()
        speech.discount_repetition()
        return self._items.all

    def _read_call(self, event: ToolUse, *, hidden: bool, is_explained: bool) -> bool:
        """Note a call; return whether it is hidden and was carried out.

        ``is_explained`` if the user's own words follow its answer.
        """
        effect, result = event.effect, event.result
        if is_task(effect.fields):
            self._tasks.update(effect.fields, result, event.at)
            return False
        if result is None:
            return False
        refused = refusal(result)
        if refused is None:
            self._work.note(event)
        if not hidden:
            if effect.command is not None:
                self._runs.note_shown(event, effect.command)
            return False
        if refused is None:
            return True
        path = next((path for _, path in effect.files), None)
        what = effect.command or path or flat(dict(effect.fields), 200)
        change = edit_of(effect.fields, path).note if path is not None and effect.command is None else ""
        if change:
            change = one_line(change, MAX_REFUSED_CHANGE)
            change = f" ({change}{'`' * (change.count('`') % 2)})"
        said = f". The user said: {quoted(refused, 600)}" if refused else "" if is_explained else ", without a reason"
        text = f"The user refused {harmless(event.call.name)} {as_code(what, 160)}{change}{said}"
        self._items.add(USER, event.at, text, 12)
        return False

    def _read_effect(self, event: ToolUse, speech: Speech, lookups: Lookups, *, lasting: bool) -> None:
        """Add what a call did."""
        effect, result = event.effect, event.result
        assert result is not None
        changed = [(how, path) for how, path in effect.files if how != "read"]
        if effect.command is not None:
            if self._runs.note_failed_command(event, effect.command):
                return
            failures = failure_lines(result.output) if changed else []
            for how, path in changed:
                if not any(names_path(line, path) for line in failures):
                    self._files.note(event.at, how, path, FileEdit(), looked=lookups.looked)
            if not self._runs.note_passed_command(event, effect.command, lasting=lasting):
                lookups.note_looked(event)
        elif has_failed(result, effect):
            about = next((path for _, path in effect.files), None) or flat(dict(effect.fields), 120)
            self._runs.note_failed_call(event, about)
        elif changed:
            for how, path in effect.files:
                self._files.note(event.at, how, path, edit_of(effect.fields, path), looked=lookups.looked)
        elif asked := _asked(event):
            said = quoted(one_line(result.output, MAX_ANSWERS), MAX_ANSWERS)
            self._items.add(USER, event.at, f"{said} (answer to {quoted(asked, MAX_ANSWERS)})", 14, partial=True)
        elif effect.files or ((effect.searches or effect.url) and not tells_something(result.output)):
            lookups.note_looked(event)
        else:
            lookups.read(event, lasting=lasting, words=speech.asked_words, facts=speech.asked_facts)

    def _finish(self, lookups: Lookups) -> None:
        """Add what depends on the whole session: tasks and files as they are now, and what still fails."""
        for number, task in enumerate(self._tasks):
            value = 8.0 if task.state in (OPEN, ACTIVE) else 1.5
            self._items.all.append(Item(STATE, -1 + number / 1_000, task.text(), value))
        names, changed_at, last_edit = self._files.names, self._files.changed_at, self._files.last_edit
        self._files.finish()
        for number, line in enumerate(self._work.lines(self._files.edited)):
            self._items.all.append(Item(STATE, self._items.upto + number / 10, line, UNDONE_VALUE))
        self._runs.finish(changed_at, last_edit)
        lookups.finish(names)

    def _read_earlier(self, earlier: Earlier) -> None:
        """Add the items that an earlier pass wrote."""
        total = len(earlier.items) + len(earlier.narrative) + 1
        for number, line in enumerate(earlier.narrative):
            self._items.all.append(Item(FINDINGS, -1 + number / (2 * total) / 2 - 0.5, line.strip(), 6.0))
        for number, (section, text, reference, label) in enumerate(earlier.items):
            at = -0.9 + 0.8 * number / total
            if section == STATE and (self._work.read_line(text) or self._tasks.read_line(text)):
                continue
            if section == CHANGES and self._files.read_line(text, reference, at):
                continue
            parts = [text]
            if section in (USER, FINDINGS) and len(text) > 2 * PASSAGE:
                parts = passages(text, keep_all=True)
            for place, part in enumerate(parts):
                value = 2.6 * substance(part) if section == FINDINGS else _EARLIER_VALUE[section]
                if section in TABULAR and label:
                    value = TABLE_VALUE + len(part) / CELL_CHARS
                item = Item(section, at, part, value, reference, place, len(parts), label=label)
                item.is_note = section == CHANGES and part.startswith(ALSO)
                self._items.all.append(item)


def _fades(event: Event) -> bool:
    """Return whether an event leaves nothing in a ledger once it is old: a look at something, a short remark."""
    if type(event) is ToolUse:
        return event.only_looks and (event.result is None or not event.result.is_error) and not _asked(event)
    return type(event) is Spoken and event.role != "user" and len(event.text) < MIN_OLD_SPEECH


def _asked(event: ToolUse) -> str:
    """Return the questions that a call put to the user; empty for calls of other tools."""
    if _ASKS_USER.search(snake_case(event.call.name)) is None:
        return ""
    given = event.effect.fields.get("questions") or event.effect.fields.get("question")
    questions = given if isinstance(given, list) else [given]
    texts = [one.get("question") if isinstance(one, dict) else one for one in questions]
    return one_line(" ".join(text for text in texts if isinstance(text, str)), MAX_ANSWERS)


def _changes_something(event: ToolUse) -> bool:
    """Return whether a call changes a file, shared state, or an object outside."""
    effect = event.effect
    if any(how != "read" for how, _ in effect.files):
        return True
    if effect.command is not None:
        return changes_shared_state(effect.command)
    return not (effect.files or effect.searches or effect.url or only_reads(event.call.name) or _asked(event))
