"""Turns events into items: what a reader who continues the work would want to know about each.

Values are relative. The user's words and refusals come first, then open tasks and what changed the world, then
findings and tables of lookups, then runs and failures, last the files that were only read. Newer events are worth more
than older ones of the same kind. The scale was set by letting readers answer questions from the result, not by a count.
"""

from __future__ import annotations

import math
import os.path
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, pairwise

import msgspec

from kompakt.engine.ledger import conversation
from kompakt.engine.ledger.events import THOUGHT, Event, Spoken, ToolUse, with_actions
from kompakt.engine.ledger.excerpts import (
    PASSAGE,
    answer_text,
    as_code,
    facts_of,
    flat,
    harmless,
    is_report,
    lacks_subject,
    last_question,
    one_line,
    outline,
    passages,
    quoted,
    report_text,
    substance,
    telling_line,
    words_of,
)
from kompakt.engine.ledger.extract.changes import FileEdit, edit_of, tells_much
from kompakt.engine.ledger.extract.outcomes import failure_lines, has_failed, refusal, speaks_of_tests, test_totals
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
from kompakt.engine.ledger.extract.shell import only_prints, quotes
from kompakt.engine.ledger.extract.tasks import ACTIVE, OPEN, Tasks, is_task
from kompakt.engine.ledger.extract.tool_calls import Effect, input_text, snake_case
from kompakt.engine.ledger.extract.user_words import STRICT, is_notice, user_message
from kompakt.engine.ledger.items import CHANGES, FINDINGS, LOOKED, OUTLINE, RUNS, STATE, TALK, USER, Earlier, Item
from kompakt.engine.ledger.work_state import REPOSITORY, WorkState, repository_state

MAX_COMMAND = 180
"""Characters kept of a command."""

MAX_ANSWER = 420
"""Characters kept of what a call that changed something answered."""

MAX_LOOKUP = 400
"""Characters kept of what a lookup answered."""

MAX_QUOTE = 120
"""The same of a lookup that answered with plain text."""

MAX_FAILURE = 220
"""Characters kept of a line that reports a failure."""

MAX_STATUS = 300
"""Characters kept of the state of a repository."""

FAILURE_LINES = 4

MAX_REPLY = 60
"""Characters of a message that is quoted with the question it answers."""

MAX_QUESTION = 200
"""Characters kept of that question."""

LITTLE_VALUE = 0.9
"""Value of an older message of the user that does not say what it is about: not worth a line."""

SPENT_VALUE = 2.0
"""Value of a short message after which nothing was changed, such as a question that was answered at once."""

FINAL_VALUE = 1.3
"""Value of a text with which the assistant ended a turn, relative to what it said between calls: it is its report."""

ANSWERED_VALUE = 2.0
"""Value of the text that the newest message of the user replies to: "yes, do that" says nothing without it."""

MIN_REMARK, MIN_SETTLED = 300, 1.7
"""An old text between calls is kept if it has as many characters, or ``substance`` of at least this value."""

MAX_SPENT_QUESTION = 120
"""Characters of a question of the user that was answered at once; the answer is among the findings."""

MAX_REQUEST_WORDS = 4_000
"""Characters of a request whose words count as known."""

MIN_ID = 4
"""Digits of a number that is unlikely to be in a text by chance."""

ABOUT_WORDS = 2
"""Words by which a question says what it is about; with fewer it only asks whether to go on."""

MAX_FAILURES = 50
"""Newest failures that are compared with later runs."""

NEW_REQUESTS = 12
"""Newest messages of the user that count more than older ones. Demands count alike, however old."""

MIN_SUMMARY = 1_000
"""Characters from which a notice in a user message is taken for a summary."""

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

CELL_CHARS = 12
"""The value of a row grows by 1 for this many characters, because each cell is a fact of its own."""

REPORT_VALUE = 1.7
"""Value of a passage of a report, for each unit of what it settles."""

TITLE_VALUE = 1.0
"""Value of each title in the outline of a long text."""

MAX_REPORTED = 12
"""Passages of one report that may be quoted."""

MAX_NAMED_TOOLS = 6

MAX_STARTED = 12
"""Newest tasks given to other agents that are named."""

MAX_LISTED = 40
"""Newest files of one folder that are named as looked at."""

FOREIGN_VALUE = 0.7
"""Value of what another agent's summary says, relative to the assistant's own words."""

FILE_VALUE = 12
"""Value of the line that says that a file was changed, without what changed in it."""

MAX_NOTES = 8
"""Longest notes on the changes of one file; others are worth less than a line."""

NEW_FAILURES, NEW_FAILURE_VALUE, OLD_FAILURE_VALUE = 6, 5.0, 2.5
"""Newest failures, their value, and that of older ones; half of it if a later run passed."""

REPEATED_FAILURE = 3
"""Failures of one call from which they are worth a line even if it then succeeded: the next call may fail alike."""

MAX_REASONS = 3
"""Other reasons for which a call failed that are given beside the newest one."""

OTHER_REASON = 0.7
"""Value of such a reason, relative to the newest one."""

NEW_NOTES = 3
"""Newest notes on a file, the longest of which is given first."""

UNDONE_VALUE = 9
"""Value of a line that says what was not run, committed or pushed: a reader can only guess it otherwise."""

REPOSITORY_VALUE = 6
"""Value of the newest state of the repository that a command showed."""

MAX_UNDONE = 50
"""Newest edits of a file that a later one may take back. All of them would take quadratic time."""

SCRATCH_VALUE = 0.08
"""Value of a file in a folder for temporary files, relative to others; it leaves out all but those edited often."""

_SCRATCH = ("/tmp/", "/var/tmp/", "/private/tmp/")

NEW_SPEECHES = 5
"""Newest texts of the assistant that count more than older ones."""

MIN_OLD_SPEECH = 200
"""Characters of a text of the assistant that is not among the recent events."""

RECENT_EVENTS = 400
"""Newest events from which everything is taken; from older ones only what lasts."""

UNNAMED_VALUE = 0.3
"""Value of a text that begins with "it" or "this" and names nothing, relative to others."""

SHORT_STATEMENT, SHORT_VALUE, SHORT_VALUE_WITH_FACTS = 90, 0.4, 0.8
"""Characters of a short older text, and its value relative to others: without and with a number or an id in it."""

NEW_FACT = 0.8
"""Least share of its value that a statement keeps if it names a number or an id that no newer one names."""

REJECTED_VALUE = 0.4
"""Value of what the assistant said if the user's next words reject it, relative to other findings."""

_REJECTS = re.compile(
    r"(?:no\b(?! (?:need|problem|worries|rush|idea))|nope\b|wrong\b|incorrect\b|you(?:'re| are) wrong\b"
    r"|(?:that|this|it)(?:'s| is) (?:wrong|incorrect|false|not (?:right|true|correct|it|what|how))\b)",
    re.IGNORECASE,
)
"""Beginning of a message in which the user rejects what the assistant just said."""

CONFIRMED_VALUE = 1.6
"""Value of what the assistant said if the user's next words confirm it, relative to other findings."""

_CONFIRMS = re.compile(
    r"\W*(?:\w+\W+){0,3}?(?:that(?:'s|s| is| was) (?:it|right|correct|true|exactly)\b"
    r"|(?:it|this|that) (?:worked|fixed it)\b|(?:it|this|that|now) works\b"
    r"|you(?:'re| are) (?:\w+ )?right\b|(?:exactly|correct|confirmed)\b)",
    re.IGNORECASE,
)
"""Beginning of a message in which the user confirms what the assistant just said, such as the cause of a failure."""

_CONCEDES = re.compile(
    r"(?:you(?:'re| are) (?:\w+ )?right\W{1,3}(?:\w+ ){0,3})?"
    r"(?:i was wrong|my mistake|i apologi[sz]e|i made a mistake|i misread|i misunderstood)\b",
    re.IGNORECASE,
)
"""Beginning of an answer in which the assistant takes back what it said before the user's message."""

_SAYS_NOTHING = re.compile(
    r"(?:\W*(?:y|yes|yep|yeah|ok|okay|k|sure|thanks|thank you|please|great|good|nice|cool|perfect|continue|proceed"
    r"|go|go on|go ahead|next|hi|hello|hey)\b)*\W*",
    re.IGNORECASE,
)
"""A message that only agrees or greets."""

_ASKS_NOTHING = words_of(
    "about again anything before changes confirm continue correct could does else feel free good have help here know"
    " let like look looks make match more need next okay other please prefer proceed provide questions ready right"
    " sense shall should start that there these this understanding want what which will with would your"
)
"""Words of a question that do not say what it is about."""

_NAMES_CODE = re.compile(r"[`/_]|\w\.\w|\w\(\)|[a-z][A-Z]|\"")
_VALUE = re.compile(r"[/\d]")
_SHORT_WORD = re.compile(r"\w{3,}")
_POINTS = _ASKS_NOTHING | set(
    _SHORT_WORD.findall(
        "again all also and are both but can did done fine for had has idea just not now really same seems still the"
        " them then thing things those was were works yes you"
    )
)
"""Words of a message that only point at something."""
_RESTATES = re.compile(
    r"The user (?:is (?:asking|saying|telling|right)|asks|asked|says|said|wants|wanted|would like)\b"
    r"|The (?:task|request|goal|issue described) (?:involves|requires|asks|is (?:to|about|related to))\b"
)
"""Beginning of a text that repeats the user's message, which is quoted anyway."""

_READ_VERBS = re.compile(
    r"(?:[a-z0-9]+[_.:-]{1,2})*(?:get|list|read|search|find|grep|glob|view|look|lookup|fetch|query|show|describe|check|count|"
    r"think|calculate|estimate|compare|ls|cat|web|open|inspect|status|output|history|info|screenshot|snapshot)(?![a-z])",
    re.IGNORECASE,
)
_CALCULATES = re.compile(r"(?:[a-z0-9]+[_.:-]{1,2})*(?:calculate|calculator|think|sleep|wait)(?![a-z])", re.IGNORECASE)
"""Names of tools whose answers follow from their input."""

_SHARED_STATE = re.compile(
    r"\bgit (?:-C \S+ )?(?:commit|push|merge|rebase|cherry-pick|checkout|switch|reset|revert|stash|tag|pull|am|clone"
    r"|branch -[dDmM]|worktree (?:add|remove))\b"
    r"|\bgh (?:pr|issue|release) (?:create|merge|close|comment|edit|review|checkout)\b"
    r"|\b(?:npm|cargo|twine|poetry|uv) (?:publish|upload)\b"
    r"|\b(?:kubectl|helm|terraform|docker|systemctl|aws|gcloud|az) "
    r"(?:apply|create|delete|install|upgrade|push|run|restart|start|stop|rm|deploy|s3 (?:cp|rm|sync))\b"
    r"|\bcurl\b[^|;]*-X ?(?:POST|PUT|PATCH|DELETE)"
)
_NOISE_IN_KEY = re.compile(r"^(?:cd [^ &;]+ ?(?:&&|;) ?)+| ?2>&1| ?\| ?(?:tail|head|grep|cat|tee)\b.*$")
_NOISE = re.compile(r"\s*(?:Shell cwd was reset\b|\$ |\[\w+\] \$ |\W?The command completed with exit code 0\b)")
"""Lines of an output that say nothing about the outcome: notes of the agent, echoes of commands."""

_BARE_FAILURE = re.compile(
    r"\W*(?:error: )?(?:the command (?:completed|finished|failed|exited) with )?"
    r"(?:exit(?:ed with)?(?: code| status)?:? \d+|FAIL|failed|error)\W*",
    re.IGNORECASE,
)
_LOCATED = re.compile(r"\s*\S+?:\d+(?::\d+)?: \S")
_AD_HOC = re.compile(r"\b(?:python3?|node|ruby|perl|php|awk) -\w*[ce]\b|<<")
"""A script in the command itself. Its failure says little about the work, and it is seldom run again."""

_NOT_RUN = re.compile(r"\s*(?:Sibling tool call errored|Cancelled: parallel tool call|Command aborted\s*$)")
"""Answers of calls that were not made, because another call of the same answer failed, or that were broken off."""

_PREPARES = re.compile(
    r"\s*(?:cd [^&;|]+(?:&&|;)\s*)?(?:mkdir|touch|chmod|sleep|true|export|source|cd|git add)\b[^&;|]*$"
)
"""Commands that only prepare something."""

_NO_OUTPUT = re.compile(r"\W*no (?:output|content|matches|results)(?: found)?\W*", re.IGNORECASE)

_ERROR_TAG = re.compile(r"</?(?:tool_use_)?error>")

_CONTINUED = re.compile(
    r"\s*This session is being continued from a previous conversation[^.]{0,200}\."
    r"(?:\s*The (?:summary|conversation) [^.]{0,200}\.)?\s*(?:Analysis|Summary)?:?"
)
"""First sentences of a summary that Claude Code wrote. They say nothing about the session."""

_DELEGATES = re.compile(r"(?:^|_)(?:task|agent|subagent|delegate|dispatch|spawn|skill)(?:$|_)")
"""Names of tools that start another agent, whose report comes later, or load instructions."""

_ABOUT = ("description", "title", "name", "task", "prompt")
_THINKS = frozenset(["thought", "thinking", "reasoning"])


class FileChanges(msgspec.Struct):
    """What became of one file."""

    path: str
    how: str
    count: int = 0
    """Number of edits."""
    at: float = -1
    reference: str = ""
    notes: dict[str, str] = {}
    """The note of each edit, with the text that the edit inserted."""

    def text(self) -> str:
        """Return what happened to the file, without the changes in it."""
        times = f" {self.count} times" if self.count > 1 and self.how.endswith("edited") else ""
        return f"{harmless(self.path)}: {self.how}{times}"


class Statements:
    """Collects the items of a session's events."""

    def __init__(
        self, earlier: Earlier, reference: Callable[[int], str], upto: int, *, table_chars: int | None = None
    ) -> None:
        self.items: list[Item] = []
        self._reference = reference
        self._upto = max(1, upto)
        self._table_chars = table_chars
        """Characters from which the rows of a table become narrow."""
        self._tasks = Tasks()
        self._work = WorkState(is_continued=bool(earlier.items or earlier.narrative))
        self._files: dict[str, FileChanges] = {}
        self._in_full: dict[str, str] = {}
        """The newest absolute path of each file name."""
        self._folder = ""
        """The folder in which commands run, once a file was named both ways."""
        self._runs: dict[str, tuple[int, bool]] = {}
        """When a command last ran, and whether it failed."""
        self._failures: list[tuple[str, Item]] = []
        self._tool_failures: Counter[str] = Counter()
        """How often each call of a tool failed that is not a command."""
        self._passes: dict[str, Item] = {}
        self._repository: dict[str, tuple[int, str, str]] = {}
        """When a command last showed the state of the repository, the command, and what it printed."""
        self._looked: dict[str, dict[str, None]] = {}
        self._started: dict[str, dict[str, None]] = {}
        """What was given to tools that start another agent."""
        self._objects: dict[str, Record] = {}
        """Objects outside by their id, as they were last seen."""
        self._changed: dict[str, Record] = {}
        """Those that a call changed."""
        self._made: dict[str, Record] = {}
        """What the newest call of each tool made."""
        self._lookups: list[tuple[ToolUse, list[Record]]] = []
        """Calls that answered with records."""
        self._reports = 0
        self._records_from = 0
        """Position from which answers in JSON are read: only the newest, up to an amount of text."""
        self._newest_user = -1
        """Position from which on messages of the user count more than older ones."""
        self._last_user = -1
        """Position of the last one."""
        self._asked_words: set[str] = set()
        """Words of the first request and of the newest one, which are always shown."""
        self._asked_facts: set[str] = set()
        """Ids in them, such as "db-3", and long numbers."""
        self._read_earlier(earlier)

    def read(self, events: Sequence[Event], is_hidden: Callable[[Event], bool]) -> list[Item]:
        """Return the items of all hidden events, in no order."""
        events = with_actions(events)
        if not any(type(event) is ToolUse for event in events) and not self._files:
            spoken = [event for event in events if type(event) is Spoken and event.role != THOUGHT and is_hidden(event)]
            if len(spoken) > 1:
                self.items += conversation.items_of(spoken)
                return self.items
        recent = len(events) - RECENT_EVENTS
        speeches = [event for event in events if type(event) is Spoken and event.role == "assistant"]
        ages = {id(event): age for age, event in enumerate(reversed(speeches[-NEW_SPEECHES:]), 1)}
        asked = [number for number, event in enumerate(events) if type(event) is Spoken and event.role == "user"]
        self._records_from = _records_from(events)
        self._newest_user = events[asked[-NEW_REQUESTS]].at if len(asked) >= NEW_REQUESTS else -1
        self._last_user = events[asked[-1]].at if asked else -1
        for event in (events[asked[0]], events[asked[-1]]) if asked else ():
            if type(event) is Spoken:
                self._asked_words |= words_of(event.text[:MAX_REQUEST_WORDS])
                facts = facts_of(event.text[:MAX_REQUEST_WORDS])
                self._asked_facts |= {fact for fact in facts if not fact.isdigit() or len(fact) >= MIN_ID}
        rejected, confirmed = _rejected(events), _confirmed(events)
        final = _final_texts(events)
        answered = _answered_text(events, is_hidden)
        for number, event in enumerate(events):
            lasting = number < recent
            if lasting and _fades(event):
                continue
            if type(event) is ToolUse:
                then = events[number + 1] if number + 1 < len(events) else None
                is_explained = type(then) is Spoken and then.role == "user"
                self._read_call(event, hidden=is_hidden(event), lasting=lasting, is_explained=is_explained)
            elif type(event) is Spoken and is_hidden(event):
                if event.role == "user":
                    question = _question(events[number - 1]) if number else ""
                    self._read_user(event, question, is_spent=_is_spent(events, number))
                else:
                    age = 1 if event is answered else ages.get(id(event), NEW_SPEECHES + 1)
                    scale = ANSWERED_VALUE if event is answered else FINAL_VALUE if id(event) in final else 1.0
                    scale = max(scale, CONFIRMED_VALUE) if id(event) in confirmed else scale
                    is_remark = bool(final) and scale == 1.0 and age > NEW_SPEECHES and event.role != THOUGHT
                    if not is_remark or not _is_spent_remark(event.text):
                        self._read_assistant(event, age, scale=scale, is_rejected=id(event) in rejected)
        self._finish()
        if self._lookups:
            self._tabulate(events)
            self._note_lookups(events)
        self._discount_repetition()
        return self.items

    # --- what was said --------------------------------------------------------------------------------------------

    def _read_user(self, event: Spoken, question: str, *, is_spent: bool = False) -> None:
        if is_notice(event.text):
            if len(event.text) > MIN_SUMMARY:  # a summary that another agent wrote: findings, but not the user's words
                opening = _CONTINUED.match(event.text)
                said = event.text[opening.end() :] if opening else event.text
                self._read_assistant(Spoken(event.at, "assistant", said), NEW_SPEECHES + 1, scale=FOREIGN_VALUE)
            return
        text = user_message(event.text)
        is_new = event.at >= self._newest_user
        if question and 0 < len(text) <= MAX_REPLY and not text.endswith("?"):  # "yes" says nothing by itself
            if len(words_of(question) - _ASKS_NOTHING) >= ABOUT_WORDS:
                text = f"{text} (reply to {quoted(question, MAX_QUESTION)})"
                self._add(USER, event.at, text, 14.0 if is_new else 8.0)
                return
        if len(text) <= MAX_REPLY and _SAYS_NOTHING.fullmatch(text):
            return
        parts = passages(text, 400, keep_all=True)
        last = len(parts) - 1
        for number, part in enumerate(parts):
            if STRICT.search(part):
                value = 16.0
            elif number == 0:
                value = 14.0 if is_new else 8.0
                if last == 0 and event.at < self._last_user:
                    value = LITTLE_VALUE if _says_little(part) else SPENT_VALUE if is_spent else value
            else:
                value = 6.0 if number == last else 3.0
            self._add(USER, event.at, part, value, passage=number, passages=last + 1)

    def _read_assistant(self, event: Spoken, age: int, *, scale: float = 1.0, is_rejected: bool = False) -> None:
        text = event.text
        if _RESTATES.match(text):
            text = text.partition(". ")[2] or text.partition("\n")[2]
        parts = passages(text)
        is_report = len(text) > 300
        recency = 1.9 if age <= 2 else 1.5 if age <= NEW_SPEECHES else 1.0
        scale *= 0.5 if event.role == THOUGHT else REJECTED_VALUE if is_rejected else 1.0
        remark = " (the user disagreed)" if is_rejected else ""
        if len(parts) > 1 and scale != FOREIGN_VALUE and (titles := outline(text)):
            value = TITLE_VALUE * len(titles) * recency * scale
            listed = f"The text lists: {harmless('; '.join(titles))}."
            self._add(FINDINGS, event.at, listed, value, passage=OUTLINE, passages=len(parts))
        for number, part in enumerate(parts):
            value = (2.2 * substance(part) + (1.2 if is_report else 0)) * recency * (1.25 if number == 0 else 1.0)
            if not is_report and len(part) < SHORT_STATEMENT and age > 2 and event.role != THOUGHT:
                value *= SHORT_VALUE_WITH_FACTS if facts_of(part) else SHORT_VALUE
            if number == 0 and lacks_subject(part):
                value *= UNNAMED_VALUE
            if event.role == THOUGHT and part.endswith("?") and len(part) < PASSAGE:
                continue  # the answer follows
            said = harmless(part).removeprefix("- ") + remark
            self._add(FINDINGS, event.at, said, value * scale, passage=number, passages=len(parts))

    # --- what was done --------------------------------------------------------------------------------------------

    def _read_call(self, event: ToolUse, *, hidden: bool, lasting: bool, is_explained: bool = False) -> None:
        """Add what a call did; ``is_explained`` if the user's own words follow its answer."""
        effect, result = event.effect, event.result
        if is_task(effect.fields):
            self._tasks.update(effect.fields, result, event.at)
            return
        refused = refusal(result) if result is not None else None
        if result is not None and refused is None:
            self._work.note(event)
        if result is None or not hidden:
            if result is not None and effect.command is not None:
                self._runs[_key(effect.command)] = (event.at, has_failed(result, effect))
            return
        if refused is not None:
            what = effect.command or next((path for _, path in effect.files), None) or flat(dict(effect.fields), 200)
            said = (
                f". The user said: {quoted(refused, 600)}" if refused else "" if is_explained else ", without a reason"
            )
            self._add(USER, event.at, f"The user refused {harmless(event.call.name)} {as_code(what, 160)}{said}", 12)
        elif effect.command is not None:
            self._read_command(event, effect, effect.command, lasting=lasting)
        elif has_failed(result, effect):
            about = next((path for _, path in effect.files), None) or flat(dict(effect.fields), 120)
            key = f"{event.call.name} {about}"[:200]
            self._tool_failures[key] += 1
            self._note_failure(event, f"{event.call.name} {about}", key)
        elif any(how != "read" for how, _ in effect.files):
            for how, path in effect.files:
                self._note_file(event, how, path, edit_of(effect.fields, path))
        elif effect.files or ((effect.searches or effect.url) and not _tells_something(result.output)):
            self._note_looked(event, effect)
        else:
            self._read_other(event, effect, lasting=lasting)

    def _read_command(self, event: ToolUse, effect: Effect, command: str, *, lasting: bool) -> None:
        assert event.result is not None
        output, key = event.result.output, _key(command)
        failed = has_failed(event.result, effect)
        self._runs[key] = (event.at, failed)
        if failed:
            self._note_failure(event, command, key)
            return
        for how, path in effect.files:
            if how != "read" and not any(path in line for line in failure_lines(output)):
                self._note_file(event, how, path, FileEdit())
        recency = event.at / self._upto
        if _SHARED_STATE.search(command):
            self._repository.clear()  # what was shown before no longer holds
            lines = [line for line in output.split("\n")[-8:] if line.strip() and not _NO_OUTPUT.fullmatch(line)]
            answer = f" → {quoted(one_line(lines[-1], 140), 140)}" if lines else ""
            self._add(STATE, event.at, as_code(command, MAX_COMMAND) + answer, 6 + 2 * recency, partial=True)
        elif lasting:
            return
        elif asked := REPOSITORY.match(command):
            self._repository[asked[1]] = (event.at, command, output)
        elif speaks_of_tests(output) and (totals := test_totals(output)):
            text = f"Passed: {as_code(command, MAX_COMMAND)} → {quoted(one_line(totals[-1], 140), 140)}"
            self._passes[key] = self._item(RUNS, event.at, text, 1.5 + 2 * recency, partial=True)
        else:
            if quotes(command):
                self._note_looked(event, effect)
                return
            lines = [line.strip() for line in output[-600:].split("\n") if line.strip() and not _NOISE.match(line)]
            cut = "… " if len(lines) > 2 or len(output) > 600 else ""
            is_silent = not lines or _NO_OUTPUT.fullmatch(lines[-1]) is not None
            if is_silent:
                lines = []
            if is_silent and (_PREPARES.match(command) or any(how != "read" for how, _ in effect.files)):
                return  # what became of the files is stated elsewhere
            if only_prints(command, is_cut=bool(cut) or is_silent):
                return  # the end of a listing says nothing
            answer = quoted(cut + one_line(" / ".join(lines[-2:]), 180), 182) if lines else "no output"
            text = f"Ran {as_code(command, MAX_COMMAND)} → {answer}"
            self._passes[key] = self._item(RUNS, event.at, text, 1.0 + 2 * recency, partial=True)

    def _read_other(self, event: ToolUse, effect: Effect, *, lasting: bool) -> None:
        """Add the input and the answer of a tool of unknown kind."""
        assert event.result is not None
        name, recency = event.call.name, event.at / self._upto
        thought = next((value for key, value in effect.fields.items() if key in _THINKS), None)
        if isinstance(thought, str):
            for number, part in enumerate(parts := passages(thought)):
                self._add(
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
        reads = _READ_VERBS.match(snake_case(name)) is not None
        if (reads and lasting) or _CALCULATES.match(snake_case(name)):
            return
        if reads and event.at < self._records_from and event.result.output.lstrip()[:1] in ("{", "["):
            return
        if reads and (records := decoded_records(event.result.output)) is not None:
            self._lookups.append((event, records))
            if len(records) == 1 and (id := identity(record := with_arguments(records[0], effect.fields))):
                self._objects[id] = record
            return
        if not reads and (record := decoded_object(event.result.output)) is not None:
            id = identity(record)
            before, other = self._objects.get(id), self._made.get(name)
            text = change_text(harmless(name), effect.fields, record, before=before, other=other)
            if id:
                self._objects[id] = self._changed[id] = record
                if before is None:
                    self._made[name] = record
            value = CHANGE_VALUE + len(text) / CELL_CHARS
            self._add(STATE, event.at, text, value, partial=len(text) >= MAX_CHANGE)
            return
        given = flat(dict(effect.fields), 220) if effect.fields else one_line(str(event.call.input or ""), 220)
        is_data = event.result.output.lstrip()[:1] in ("{", "[")
        if reads and not is_data:
            answer = telling_line(event.result.output, self._asked_words, self._asked_facts, MAX_QUOTE)
        else:
            answer = answer_text(event.result.output, MAX_LOOKUP if reads else MAX_ANSWER)
        text = f"{harmless(name)}({given}) → {answer}"
        if reads:
            self._add(LOOKED, event.at, text, (5 if is_data else 1) + 2 * recency, partial=True)
        else:
            self._add(CHANGES, event.at, text, 8, partial=True)

    def _read_report(self, event: ToolUse) -> None:
        """Add the most informative passages of prose that a tool returned, such as a report of a sub-agent."""
        assert event.result is not None
        self._reports += 1
        parts = passages(report_text(event.result.output))
        if not parts:
            return
        values = [REPORT_VALUE * substance(part) * (1.3 if number == 0 else 1.0) for number, part in enumerate(parts)]
        least = sorted(values, reverse=True)[:MAX_REPORTED][-1]
        reference = self._reference(event.answered_at)
        at = event.at + self._reports / 1_000
        origin = f"{harmless(event.call.name)} reported"
        for number, (part, value) in enumerate(zip(parts, values, strict=True)):
            if value >= least:
                item = Item(FINDINGS, at, harmless(part), value, reference, number, len(parts), origin=origin)
                self.items.append(item)

    def _tabulate(self, events: Sequence[Event]) -> None:
        """Write lookups as tables, one for each tool; a lookup that is the only one of its kind as key–value text."""
        focus = _focus(events)
        tables: dict[str, list[tuple[ToolUse, Record]]] = {}
        alone: list[ToolUse] = []
        for event, records in self._lookups:
            fields, name = event.effect.fields, event.call.name
            assert event.result is not None
            if event.result.output.lstrip()[:1] == "{" and len(records) == 1:
                record = with_arguments(records[0], fields)
                alone.append(event)
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
                value = TABLE_VALUE + len(line) / CELL_CHARS + 2 * event.at / self._upto
                if event in alone:
                    value *= OWN_LOOKUP_VALUE
                if identity(record) in self._changed:  # what was changed in it is stated elsewhere
                    value *= TOLD_VALUE
                at = event.at + number / (10 * len(rows))
                reference = "" if identifiers(line.partition(" ")[0]) else self._reference(event.at)
                self.items.append(Item(LOOKED, at, line, value, reference, label=label))

    def _note_lookups(self, events: Sequence[Event]) -> None:
        """Add that no call changed anything, if the names of all calls imply it."""
        names = Counter(event.call.name for event in events if type(event) is ToolUse)
        if any(item.section in (CHANGES, STATE) for item in self.items):
            return
        if all(_READ_VERBS.match(snake_case(name)) for name in names):
            calls = ", ".join(f"{harmless(name)} ({count})" for name, count in names.most_common(MAX_NAMED_TOOLS))
            self.items.append(Item(STATE, -1, f"{ONLY_LOOKUPS}: {calls}", 16.0))

    def _add_lookup(self, event: ToolUse) -> None:
        assert event.result is not None
        given = flat(dict(event.effect.fields), 220)
        text = f"{harmless(event.call.name)}({given}) → {answer_text(event.result.output, MAX_LOOKUP)}"
        self._add(LOOKED, event.at, text, 5 + 2 * event.at / self._upto, partial=True)

    def _located(self, path: str) -> str:
        """Return the absolute form of a relative path, if another call named the same file in full."""
        path = path.removeprefix("./")
        if path.startswith(("/", "~", "..")):
            return path
        _, folder, name = path.rpartition("/")
        known = self._in_full.get(name, "")
        if folder and known.endswith(f"/{path}"):
            self._folder = known.removesuffix(path)
        return self._folder + path

    def _note_file(self, event: ToolUse, how: str, path: str, edit: FileEdit) -> None:
        path = self._located(path)
        if path.startswith("/"):
            self._in_full[path.rpartition("/")[2]] = path
        file = self._files.get(path)
        words = {"modified": "edited"}.get(how, how)
        if file is None:
            folder, _, name = path.rpartition("/")
            if words == "created" and name in self._looked.get(folder or ".", {}):
                words = "rewritten"  # the file existed
            file = self._files[path] = FileChanges(path, words)
        elif words == "deleted" or file.how == "deleted":
            file.how = words
        elif words == "edited" and file.how == "created":
            file.how = "created, then edited"
        file.count += words == "edited"
        file.at, file.reference = event.at, self._reference(event.at)
        is_moved = False
        if edit.removed:  # an edit that was taken back says nothing about the file
            removed, added = edit.removed, edit.added
            newest = list(islice(reversed(file.notes.items()), MAX_UNDONE))
            is_moved = _is_moved(edit.note, [text for _, text in newest])
            for note in [note for note, text in newest if _is_taken_back(note, text, removed, added)]:
                del file.notes[note]
        if edit.note and not is_moved:
            file.notes.setdefault(edit.note, edit.added.strip())

    def _note_looked(self, event: ToolUse, effect: Effect) -> None:
        for how, path in effect.files:
            if how != "read":
                continue
            folder, _, name = path.rpartition("/")
            names = self._looked.setdefault(folder or ".", {})
            names.pop(name, None)
            names[name] = None
        if not effect.files and effect.url:
            self._looked.setdefault("", {})[f"{event.call.name} {effect.url}"] = None

    def _note_failure(self, event: ToolUse, what: str, key: str) -> None:
        assert event.result is not None
        output = _untagged_error(event.result.output)
        if _NOT_RUN.match(output):  # another call of the same answer failed
            return
        lines = [line for line in failure_lines(output) if not _BARE_FAILURE.fullmatch(line)]
        located = [line.strip() for line in output.split("\n")[:400] if _LOCATED.match(line)][:FAILURE_LINES]
        lines = list(dict.fromkeys([*located, *lines]))
        if not lines:
            said = [line.strip() for line in output[-2_000:].split("\n") if line.strip()]
            reasons = [line for line in said if not _BARE_FAILURE.fullmatch(line)]
            if event.effect.command is None and len(output) <= 2_000:  # tools state the reason first, then their input
                is_quoting = bool(reasons) and reasons[0].count("`") % 2 == 1
                lines = [" ".join(reasons)] if is_quoting else reasons[:1] or said[:1]
            else:
                lines = reasons[-2:] or said[-1:]
        chosen = lines if len(lines) <= FAILURE_LINES else [*lines[:2], *lines[2 - FAILURE_LINES :]]
        chosen = [line if line.count("`") % 2 == 0 else line.rpartition("`")[0].rstrip() or line for line in chosen]
        said = " ".join(quoted(one_line(line, MAX_FAILURE), MAX_FAILURE) for line in chosen) or "no output"
        item = self._item(RUNS, event.at, f"{as_code(what, MAX_COMMAND)}: {said}", 3.5, partial=True)
        self._failures.append((key, item))

    # --- the whole ------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Add what depends on the whole session: tasks and files as they are now, and what still fails."""
        for number, task in enumerate(self._tasks):
            value = 8.0 if task.state in (OPEN, ACTIVE) else 1.5
            self.items.append(Item(STATE, -1 + number / 1_000, task.text(), value))
        last_edit = max((file.at for file in self._files.values()), default=-1)
        for at, command, output in self._repository.values():
            if state := repository_state(output, is_current=at > last_edit):
                text = f"{as_code(command, MAX_COMMAND)} showed: {quoted(one_line(state, MAX_STATUS), MAX_STATUS)}"
                self._add(STATE, at, text, REPOSITORY_VALUE, partial=True)
        self._note_files()
        self._note_failures()
        for key, item in self._passes.items():
            if not self._runs[key][1]:
                self.items.append(item)
        for name, given in self._started.items():
            text = f"Started {harmless(name)}: {'; '.join(list(given)[-MAX_STARTED:])}"
            self.items.append(Item(LOOKED, self._upto, text, 2.0))
        changed = {path.rpartition("/")[2] for path in self._files}
        for folder, names in self._looked.items():
            listed = [name for name in names if name not in changed][-MAX_LISTED:]
            if not listed:
                continue
            if folder:
                text = f"{harmless(folder)}: {harmless(', '.join(listed))}"
            else:
                text = "; ".join(as_code(name, 90) for name in listed[-6:])
            self.items.append(Item(LOOKED, self._upto, text, 2.0))

    def _note_files(self) -> None:
        """Add what became of each file, and which of them were not run or committed since."""
        root = _common_folder([path for path in self._files if path.startswith("/")])
        if root:
            self.items.append(Item(CHANGES, -2, f"{ROOTED}{harmless(root)}", 100))
        all_scratch = all(path.startswith(_SCRATCH) for path in self._files)
        for file in self._files.values():
            in_root = file.path.startswith(root)
            file.path = file.path.removeprefix(root)
            if root and not in_root and not file.path.startswith(("/", "~", ".")):
                file.path = f"./{file.path}"  # relative to a folder that is not known
            notes = _ordered_notes(file.notes)
            scale = SCRATCH_VALUE if file.path.startswith(_SCRATCH) and not all_scratch else 1
            self.items.append(Item(CHANGES, file.at, file.text(), FILE_VALUE * scale, file.reference))
            if notes:
                value = (5 + 2 * math.log2(1 + file.count)) * scale
                text = f"{file.text()}; {notes[0]}"
                self.items.append(Item(CHANGES, file.at, text, value, file.reference, extends=file.text()))
            short = file.path.rsplit("/", 1)[-1]
            more = [note for note in notes[1:] if tells_much(note) and not _is_part(note, notes[0])]
            for rank, note in enumerate(more[: MAX_NOTES - 1], 1):
                text = f"also in {harmless(short)}: {note}"
                self.items.append(Item(CHANGES, file.at + rank / 1_000, text, 2.5 / (1 + 0.2 * rank)))
        edited = [(file.at, file.path) for file in self._files.values() if file.how != "deleted"]
        for number, line in enumerate(self._work.lines(edited)):
            self.items.append(Item(STATE, self._upto + number / 10, line, UNDONE_VALUE))

    def _note_failures(self) -> None:
        """Add what failed and whether it still does."""
        changed_at = {path: file.at for path, file in self._files.items()}
        newest = {key if key in self._tool_failures else item.text: (key, item) for key, item in self._failures}
        for age, (key, item) in enumerate(sorted(newest.values(), key=lambda pair: -pair[1].at)):
            times = self._tool_failures[key]
            succeeded = times > 0 and changed_at.get(key.partition(" ")[2], -1) > item.at
            if succeeded and times < REPEATED_FAILURE:
                continue  # an edit that failed and then succeeded is of no interest
            passed = age < MAX_FAILURES and self._passed_later(key, item.at)
            state = f"Failed {times} times" if times > 1 else "Failed"
            state += " (a later run passed)" if passed else " (a later call succeeded)" if succeeded else ""
            value = NEW_FAILURE_VALUE if age < NEW_FAILURES else OLD_FAILURE_VALUE
            value *= 0.5 if passed or succeeded or _AD_HOC.search(key) else 1
            self.items.append(msgspec.structs.replace(item, text=f"{state}: {item.text}", value=value))
            if times > 1:
                for reason in self._other_reasons(key, item) if age < MAX_FAILURES else ():
                    what = f"{key.partition(' ')[0]} {key.rpartition('/')[2] if '/' in key else key.partition(' ')[2]}"
                    text = f"{as_code(what, MAX_COMMAND)} also failed: {reason.text.partition('`: ')[2]}"
                    self.items.append(msgspec.structs.replace(reason, text=text, value=value * OTHER_REASON))

    def _other_reasons(self, key: str, newest: Item) -> list[Item]:
        """Return earlier failures of the same call that give another reason, the newest of each."""
        found = {_reason(newest.text): newest}
        for other, item in reversed(self._failures):
            if other == key and len(found) <= MAX_REASONS:
                found.setdefault(_reason(item.text), item)
        return list(found.values())[1:]

    def _discount_repetition(self) -> None:
        """Lower the value of findings that newer ones repeat, or the user's words: a request is quoted or shown."""
        said, stated = self._asked_words, set[str]()
        findings = [item for item in self.items if item.section == FINDINGS]
        for item in sorted(findings, key=lambda item: (-item.at, item.passage)):
            words, facts = words_of(item.text), facts_of(item.text)
            if words:
                novelty = 0.3 + 0.7 * len(words - said) / len(words)
                item.value *= max(novelty, NEW_FACT) if facts - stated else novelty
            said |= words
            stated |= facts

    def _passed_later(self, key: str, at: float) -> bool:
        """Return whether a command, or the last one of a chain, passed after it had failed."""
        last = _chained(key)[-1]
        runs = self._runs.items()
        return any(ran > at and not failed and last in _chained(one) for one, (ran, failed) in runs)

    def _read_earlier(self, earlier: Earlier) -> None:
        """Add the items that an earlier pass wrote."""
        total = len(earlier.items) + len(earlier.narrative) + 1
        root = ""
        for number, line in enumerate(earlier.narrative):
            self.items.append(Item(FINDINGS, -1 + number / (2 * total) / 2 - 0.5, line.strip(), 6.0))
        for number, (section, text, reference, label) in enumerate(earlier.items):
            at = -0.9 + 0.8 * number / total
            if section == STATE and (self._work.read_line(text) or self._tasks.read_line(text)):
                continue
            if section == CHANGES and text.startswith(ROOTED):
                root = text[len(ROOTED) :]
                continue
            if section == CHANGES and (file := _earlier_file(text, reference, at)) is not None:
                file.path = file.path if file.path.startswith(("/", "~", ".")) else root + file.path
                self._files[file.path] = file
                continue
            parts = [text]
            if section in (USER, FINDINGS) and len(text) > 2 * PASSAGE:
                parts = passages(text, keep_all=True)
            for place, part in enumerate(parts):
                value = 2.6 * substance(part) if section == FINDINGS else _EARLIER_VALUE[section]
                if section == LOOKED and label:
                    value = TABLE_VALUE + len(part) / CELL_CHARS
                self.items.append(Item(section, at, part, value, reference, place, len(parts), label=label))

    def _item(self, section: str, at: int, text: str, value: float, *, partial: bool = False) -> Item:
        return Item(section, at, text, value, self._reference(at) if partial else "")

    def _add(
        self,
        section: str,
        at: int,
        text: str,
        value: float,
        *,
        partial: bool = False,
        passage: int = 0,
        passages: int = 1,
    ) -> None:
        reference = self._reference(at) if partial or passages > 1 else ""
        self.items.append(Item(section, at, text, value, reference, passage, passages))


def _is_part(note: str, other: str) -> bool:
    """Return whether a note on a change quotes only lines that another one quotes."""
    return all(line in other for line in note.split("`")[1::2])


def _is_taken_back(note: str, text: str, removed: str, added: str) -> bool:
    """Return whether a later edit removes the text of an earlier one, or a line that the note on it quotes."""
    if text and text in removed and text not in added:
        return True
    if note.startswith("removed "):
        return False
    return any(line in removed and line not in added for line in note.partition(", replacing ")[0].split("`")[1::2])


def _is_moved(note: str, texts: Iterable[str]) -> bool:
    """Return whether an earlier edit added the lines that a note calls removed.

    The calls do not show whether the lines were deleted or only moved to another place in the file.
    """
    lines = note.split("`")[1::2] if note.startswith("removed ") else []
    return bool(lines) and all(any(line in text for text in texts) for line in lines)


def _reason(failure: str) -> str:
    """Return the words of a failure by which it differs from others of the same call: without values and quotations."""
    said = " ".join(failure.partition("`: ")[2].split("`")[::2]).lower()
    plain = [word.strip("\"'.,:;()[]") for word in said.split() if word.isascii() and not _VALUE.search(word)]
    return " ".join(plain[:8])


def _ordered_notes(notes: Mapping[str, str]) -> list[str]:
    """Order the notes on one file: the longest of the newest first, because it says how the file is now."""
    newest = list(notes)[: -NEW_NOTES - 1 : -1]
    first = max(newest, key=lambda note: (not note.startswith("removed "), len(note)), default="")
    return [first, *sorted((note for note in notes if note != first), key=len, reverse=True)] if first else []


def _untagged_error(output: str) -> str:
    return _ERROR_TAG.sub("", output) if "error>" in output else output


def _says_little(text: str) -> bool:
    """Return whether a short message of the user names nothing, as in "do that again"."""
    if len(text) > MAX_REPLY or any(map(str.isdigit, text)) or _NAMES_CODE.search(text):
        return False
    return set(_SHORT_WORD.findall(text.lower())) <= _POINTS


def _is_spent_remark(text: str) -> bool:
    """Return whether a short text between calls settles nothing that a reader would miss once the step is done."""
    return len(text) < MIN_REMARK and substance(text) < MIN_SETTLED


def _final_texts(events: Sequence[Event]) -> set[int]:
    """Return the texts after which the assistant waited for the user, in a session with more than one turn."""
    said = [event for event in events if type(event) is not Spoken or event.role != THOUGHT]
    return {
        id(event)
        for event, then in pairwise(said)
        if type(event) is Spoken and event.role == "assistant" and type(then) is Spoken and then.role == "user"
    }


def _answered_text(events: Sequence[Event], is_hidden: Callable[[Event], bool]) -> Spoken | None:
    """Return the hidden text of the assistant that the newest message of the user, which is shown, replies to."""
    said = [event for event in events if type(event) is not Spoken or event.role != THOUGHT]
    for before, event in pairwise(reversed(said)):
        if type(before) is Spoken and before.role == "user" and not is_notice(before.text):
            if type(event) is Spoken and event.role == "assistant" and is_hidden(event) and not is_hidden(before):
                return event
            return None
    return None


def _is_spent(events: Sequence[Event], number: int) -> bool:
    """Return whether a short message of the user led to no change: it was answered, or tried out, and that was it."""
    event = events[number]
    if type(event) is not Spoken or _REJECTS.match(event.text):
        return False
    if len(event.text) > (MAX_SPENT_QUESTION if event.text.rstrip().endswith("?") else MAX_REPLY):
        return False
    for later in islice(events, number + 1, None):
        if type(later) is Spoken and later.role == "user":
            return True
        if type(later) is ToolUse and _changes_something(later):
            return False
    return False


def _changes_something(event: ToolUse) -> bool:
    """Return whether a call changes a file, shared state, or an object outside."""
    effect = event.effect
    if any(how != "read" for how, _ in effect.files):
        return True
    if effect.command is not None:
        return _SHARED_STATE.search(effect.command) is not None
    only_reads = effect.files or effect.searches or effect.url or _READ_VERBS.match(snake_case(event.call.name))
    return not only_reads


def _rejected(events: Sequence[Event]) -> set[int]:
    """Return the texts of the assistant that the user's next words reject, or that it then takes back itself."""
    spoken = [event for event in events if type(event) is Spoken and event.role != THOUGHT]
    found = {id(said) for said, reply in pairwise(spoken) if _is_rejected(said, reply)}
    for said, reply, answer in zip(spoken, spoken[1:], spoken[2:], strict=False):
        if (said.role, reply.role, answer.role) == ("assistant", "user", "assistant") and _CONCEDES.match(answer.text):
            found.add(id(said))
    return found


def _confirmed(events: Sequence[Event]) -> set[int]:
    """Return the texts of the assistant that the user's next words confirm."""
    spoken = [event for event in events if type(event) is Spoken and event.role != THOUGHT]
    return {
        id(said)
        for said, reply in pairwise(spoken)
        if (said.role, reply.role) == ("assistant", "user") and _CONFIRMS.match(user_message(reply.text))
    }


def _is_rejected(said: Spoken, reply: Spoken) -> bool:
    """Return whether the user's next words reject what the assistant said. A short "no" may answer a question."""
    if (said.role, reply.role) != ("assistant", "user") or is_notice(reply.text):
        return False
    text = user_message(reply.text)
    return _REJECTS.match(text) is not None and (len(text) > MAX_REPLY or not _question(said))


def _question(event: Event) -> str:
    """Return the question with which the assistant ended a text, if it did."""
    if type(event) is not Spoken or event.role != "assistant":
        return ""
    lines = [line.strip() for line in event.text[-1_000:].split("\n") if line.strip()]
    return next((found for line in reversed(lines[-3:]) if (found := last_question(line))), "")


def _fades(event: Event) -> bool:
    """Return whether an event leaves nothing in a ledger once it is old: a look at something, a short remark."""
    if type(event) is ToolUse:
        return event.only_looks and (event.result is None or not event.result.is_error)
    return type(event) is Spoken and event.role != "user" and len(event.text) < MIN_OLD_SPEECH


def _tells_something(output: str) -> bool:
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


_EARLIER_VALUE = {USER: 14.0, STATE: 7.0, TALK: 6.0, CHANGES: 7.0, RUNS: 3.0, LOOKED: 2.0}
_EARLIER_FILE = re.compile(
    r"""(?P<path>[^:`"]{1,400}):[ ](?P<how>created,[ ]then[ ]edited|created|edited|rewritten|deleted)
        (?:[ ](?P<count>\d+)[ ]times)?(?:;[ ](?P<note>.*))?""",
    re.VERBOSE,
)


def _earlier_file(text: str, reference: str, at: float) -> FileChanges | None:
    found = _EARLIER_FILE.fullmatch(text)
    if found is None:
        return None
    notes = {found["note"]: ""} if found["note"] else {}
    return FileChanges(
        found["path"], found["how"], int(found["count"] or found["how"].endswith("edited")), at, reference, notes
    )


ONLY_LOOKUPS = "All calls so far were lookups and changed nothing"
"""Starts the line which says so."""

ROOTED = "Paths are relative to "
"""Starts the line that names the folder of the files that were changed."""

_MIN_ROOTED = 3
"""Files from which naming their folder once saves room."""


def _common_folder(paths: Sequence[str]) -> str:
    """Return the folder that all of several files are in, with a slash at its end; empty for few files or none."""
    if len(paths) < _MIN_ROOTED:
        return ""
    folder = os.path.commonpath([path.rpartition("/")[0] or "/" for path in paths])
    return f"{folder}/" if folder.count("/") > 1 else ""


def _chained(key: str) -> list[str]:
    return [part.strip() for part in re.split(r"&&|;", key)]


def _key(command: str) -> str:
    """Name a command so that later runs of it are known: without the directory before it and the filter after it."""
    return _NOISE_IN_KEY.sub("", one_line(command, 200)).strip()[:80]
