"""Commands and failures: what passed, what failed with which values, whether it still fails, and what was not done.

A reader who finds no commit in the notes cannot know whether there was none or whether it was left out, and guesses.
So the notes also say what was not done: not run since an edit, not committed, not pushed. For that all events count,
also those that are still shown. Where the originals of an earlier part are gone, what the notes on that part said holds
until a later call changes it; if they said nothing, nothing is assumed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from kompakt.engine.ledger.events import ToolUse
from kompakt.engine.ledger.excerpts import as_code, harmless, one_line, quoted
from kompakt.engine.ledger.extract.outcomes import failure_lines, has_failed, speaks_of_tests, test_totals
from kompakt.engine.ledger.extract.shell import Program, only_looks, only_prints, programs, quotes, runs_something
from kompakt.engine.ledger.items import RUNS, STATE, Item, ItemList

MAX_COMMAND = 180
"""Characters kept of a command."""

MAX_FAILURE = 220
"""Characters kept of a line that reports a failure."""

FAILURE_LINES = 4

MAX_STATUS = 300
"""Characters kept of the state of a repository."""

MAX_FAILURES = 50
"""Newest failures that are compared with later runs."""

NEW_FAILURES, NEW_FAILURE_VALUE, OLD_FAILURE_VALUE = 6, 5.0, 2.5
"""Newest failures, their value, and that of older ones; half of it if a later run passed."""

SHOWN_LINES, SHOWN_FAILURE_VALUE = 2, 2.5
"""Lines on failures that are quoted of a log or a status, and their value: it may not be this work that failed."""

REPEATED_FAILURE = 3
"""Failures of one call from which they are worth a line even if it then succeeded: the next call may fail alike."""

MAX_REASONS = 3
"""Other reasons for which a call failed that are given beside the newest one."""

OTHER_REASON = 0.7
"""Value of such a reason, relative to the newest one."""

REPOSITORY_VALUE = 6
"""Value of the newest state of the repository that a command showed."""

_SHARED_STATE = re.compile(
    r"git (?:commit|push|merge|rebase|cherry-pick|checkout|switch|reset|revert|stash(?! (?:list|show))|tag (?!-[ln])"
    r"|pull|am|clone|branch -[dDmM]|worktree (?:add|remove))(?![\w-])"
    r"|gh (?:pr|issue|release) (?:create|merge|close|comment|edit|review|checkout)\b"
    r"|(?:npm|cargo|twine|poetry|uv) (?:publish|upload)\b"
    r"|(?:kubectl|helm|terraform|docker|systemctl|aws|gcloud|az) "
    r"(?:apply|create|delete|install|upgrade|push|run|restart|start|stop|rm|deploy|s3 (?:cp|rm|sync))\b"
    r"|curl [^\n]*?(?<= )(?:-X ?|--request[ =])(?:POST|PUT|PATCH|DELETE)\b"
)
"""Programs that change what others see, with what they do."""

_SHARED_PROGRAM = re.compile(
    r"git|gh|npm|cargo|twine|poetry|uv|kubectl|helm|terraform|docker|systemctl|aws|gcloud|az|curl"
)
"""Their names. A command without one is not parsed."""

_TRIES = re.compile(r"--(?:dry-run|help|abort)(?:=.*)?")
"""Arguments with which a program changes nothing."""

_SETS = re.compile(
    r"git (?:push|pull|checkout|switch)(?![\w-])|(?:kubectl|terraform) (?:apply|delete)\b|helm upgrade\b"
    r"|(?:docker|systemctl) (?:restart|start|stop)\b|aws s3 sync\b"
    r"|curl [^\n]*?(?<= )(?:-X ?|--request[ =])(?:PUT|DELETE)\b"
)
"""Programs that set a state, so that the same command again adds nothing. Others add something each time."""

_NOISE_IN_KEY = re.compile(r"^(?:cd [^ &;]+ ?(?:&&|;) ?)+| ?2>&1| ?\| ?(?:tail|head|grep|cat|tee)\b.*$")

_NOISE = re.compile(
    r"\s*(?:Shell cwd was reset\b|\$ |\[\w+\] \$ |\W?The command completed with exit code 0\b"
    r"|\((?:Open file|Current directory): |bash-\$|Your command ran successfully and did not produce any output)"
)
"""Lines of an output that say nothing about the outcome: notes of the agent, echoes of commands."""

_BARE_FAILURE = re.compile(
    r"\W*(?:error: )?(?:the command (?:completed|finished|failed|exited) with )?"
    r"(?:exit(?:ed with)?(?: code| status)?:? \d+|FAIL|failed|error)\W*",
    re.IGNORECASE,
)

_LOCATED = re.compile(r"\s*\S+?:\d+(?::\d+)?: \S")

_AD_HOC = re.compile(r"\b(?:python3?|node|ruby|perl|php|awk) -\w*[ce]\b|<<")
"""A script in the command itself. Its failure says little about the work, and it is seldom run again."""

_NOT_RUN = re.compile(r"\s*(?:Sibling tool call errored|Cancelled: parallel tool call)")
_ABORTED = "Command aborted"
"""Answers of calls that were not made, because another call of the same answer failed, or that were broken off."""

_PREPARES = re.compile(
    r"\s*(?:cd [^&;|]+(?:&&|;)\s*)?(?:mkdir|touch|chmod|sleep|true|export|source|cd|git add)\b[^&;|]*$"
)
"""Commands that only prepare something."""

_NO_OUTPUT = re.compile(r"\W*no (?:output|content|matches|results)(?: found)?\W*", re.IGNORECASE)

_ERROR_TAG = re.compile(r"</?(?:tool_use_)?error>")

_VALUE = re.compile(r"[/\d]")
_NUMBERS = re.compile(r"\d+")

_REPOSITORY = re.compile(
    r"\s*(?:cd [^&;|]+(?:&&|;)\s*)?git(?: -C \S+)? (?:--no-pager )?"
    r"(status|branch --show-current|log|stash list)(?: -n \d+| -[\w-]+)*(?: 2>&1)?\s*$"
)
"""Commands that show the state of a repository and nothing else."""

MAX_STATUS_LINES = 12

BRANCH = "branch "
"""Begins the name of the state that a change of the branch changes."""

_SWITCHES = re.compile(r"git (?:checkout|switch) (?![^\n]{0,200}(?<= )(?:--|\.)(?: |$))|gh pr checkout\b")
_MAKES_BRANCH = re.compile(r"git (?:checkout|switch) (?:-[bBcC]|--create|--orphan)\b")
_SWITCHED = re.compile(
    r"Switched to |Already on '|HEAD is now at |Previous HEAD position |Your branch (?:is|and) |set up to track"
)
"""What git answers to a change of the branch, and not when files are restored."""

_BESIDE_SWITCH = re.compile(
    r"(?:cd|echo|pwd|ls|head|tail|gh pr checkout|git (?:checkout|switch|fetch|pull|status|log|diff|show|rev-parse"
    r"|branch(?! -[dDmM])|stash (?:pop|list|show)))\b[^`]*"
)
"""Commands of a chain whose effect is over with the next change of the branch."""

_FOLDER = re.compile(r"\s*cd ([^ &;|]+)|\bgit -C (\S+)")

_STATED = re.compile(r"`(?P<command>[^`]*)` (?:→ |(?P<shows>showed): )(?P<answer>.*)")
"""A line about the state of something outside, as an earlier pass wrote it."""

_HINT = re.compile(r"\s*\(|Author:|Date:|Shell cwd was reset|no(?:thing| changes) added to commit")
"""Lines of git that give advice, or details that nobody asks for."""


class Runs:
    """The commands of a session, and the calls of other tools that failed."""

    def __init__(self, items: ItemList) -> None:
        self._items = items
        self._runs: dict[str, tuple[int, bool]] = {}
        """When a command last ran, and whether it failed."""
        self._failures: list[tuple[str, Item]] = []
        self._tool_failures: Counter[str] = Counter()
        """How often each call of a tool failed that is not a command."""
        self._passes: dict[str, Item] = {}
        self._shown_failures: dict[str, Item] = {}
        """The newest command that showed the same lines on failures, apart from their numbers."""
        self._repository: dict[str, tuple[int, str, str]] = {}
        """When a command last showed the state of the repository, the command, and what it printed."""
        self._states: list[tuple[str, Item]] = []
        """What commands changed, under the name of what a later command changes again."""
        self._newest_state: dict[str, float] = {}
        """When a command last changed what has such a name, also if it is still shown."""

    def note_shown(self, event: ToolUse, command: str) -> None:
        """Note the outcome of a command that is still shown, because earlier runs of it are judged by it."""
        assert event.result is not None
        failed = has_failed(event.result, event.effect)
        self._runs[command_key(command)] = (event.at, failed)
        if not failed and changes_shared_state(command):
            self._repository.clear()
            self._newest_state[""] = self._newest_state[_changed_state(command, event.result.output)] = event.at
        elif not failed and (asked := _REPOSITORY.match(command)):
            self._repository.pop(asked[1], None)
            self._newest_state[asked[1]] = event.at

    def note_failed_call(self, event: ToolUse, about: str) -> None:
        """Note a call of a tool that is not a command."""
        key = f"{event.call.name} {about}"[:200]
        self._tool_failures[key] += 1
        self._note_failure(event, f"{event.call.name} {about}", key)

    def note_failed_command(self, event: ToolUse, command: str) -> bool:
        """Note a command; return whether it failed."""
        assert event.result is not None
        key, failed = command_key(command), has_failed(event.result, event.effect)
        self._runs[key] = (event.at, failed)
        if failed:
            self._note_failure(event, command, key)
        return failed

    def note_passed_command(self, event: ToolUse, command: str, *, lasting: bool) -> bool:
        """Add what a command did that passed, of old ones only what changed shared state.

        Returns whether it did anything but show something.
        """
        assert event.result is not None
        output = event.result.output
        recency = self._items.recency(event.at)
        if changes_shared_state(command):
            self._repository.clear()  # what was shown before no longer holds
            lines = [line for line in output.split("\n")[-8:] if line.strip() and not _NO_OUTPUT.fullmatch(line)]
            name = _changed_state(command, output)
            if name.startswith(BRANCH):  # the line that names the branch
                lines += [line for line in output.split("\n")[:MAX_STATUS_LINES] if _SWITCHED.match(line)][:1]
            answer = f" → {quoted(one_line(lines[-1], 140), 140)}" if lines else ""
            item = self._items.item(
                STATE, event.at, as_code(command, MAX_COMMAND) + answer, 6 + 2 * recency, partial=True
            )
            self._states.append((name, item))
            self._newest_state[""] = self._newest_state[name] = event.at
        elif lasting:
            return True
        elif asked := _REPOSITORY.match(command):
            self._repository[asked[1]] = (event.at, command, output)
            self._newest_state[asked[1]] = event.at
        elif speaks_of_tests(output) and runs_something(command) and (totals := test_totals(output)):
            text = f"Passed: {as_code(command, MAX_COMMAND)} → {quoted(one_line(totals[-1], 140), 140)}"
            self._passes[command_key(command)] = self._items.item(RUNS, event.at, text, 1.5 + 2 * recency, partial=True)
        elif quotes(command):
            return False
        elif answer := _answer(event, command, output):
            text = f"Ran {as_code(command, MAX_COMMAND)} → {answer}"
            self._passes[command_key(command)] = self._items.item(RUNS, event.at, text, 1.0 + 2 * recency, partial=True)
        elif only_looks(command):
            self._note_shown_failure(event, command)
            return False
        return True

    def _note_shown_failure(self, event: ToolUse, command: str) -> None:
        """Add the failures that a log or a status shows, once for equal lines."""
        assert event.result is not None
        lines = [one_line(line, MAX_FAILURE) for line in failure_lines(event.result.output)[:SHOWN_LINES]]
        if lines:
            text = f"{as_code(command, MAX_COMMAND)} showed: {' '.join(quoted(line, MAX_FAILURE) for line in lines)}"
            value = SHOWN_FAILURE_VALUE + self._items.recency(event.at)
            self._shown_failures[_NUMBERS.sub("#", "\n".join(lines))] = self._items.item(
                RUNS, event.at, text, value, partial=True
            )

    def _note_failure(self, event: ToolUse, what: str, key: str) -> None:
        assert event.result is not None
        output = _untagged_error(event.result.output)
        if _NOT_RUN.match(output) or output.rstrip().endswith(_ABORTED):
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
        item = self._items.item(RUNS, event.at, f"{as_code(what, MAX_COMMAND)}: {said}", 3.5, partial=True)
        self._failures.append((key, item))

    def finish(self, changed_at: Mapping[str, float], last_edit: float) -> None:
        """Add the state of the repository, what failed, whether it still does, and what passed."""
        self._items.all = [item for item in self._items.all if not self._is_overtaken(item)]
        self._items.all += [item for name, item in self._states if not name or item.at >= self._newest_state[name]]
        for at, command, output in self._repository.values():
            if state := _repository_state(output, is_current=at > last_edit):
                text = f"{as_code(command, MAX_COMMAND)} showed: {quoted(one_line(state, MAX_STATUS), MAX_STATUS)}"
                self._items.add(STATE, at, text, REPOSITORY_VALUE, partial=True)
        self._add_failures(changed_at)
        self._items.all += self._shown_failures.values()
        for key, item in self._passes.items():
            if not self._runs[key][1]:
                self._items.all.append(item)

    def _is_overtaken(self, item: Item) -> bool:
        """Return whether an earlier pass wrote an item on a state that a later command changed or showed again."""
        if item.section != STATE or item.at >= 0 or (stated := _STATED.fullmatch(item.text)) is None:
            return False
        if not stated["shows"]:
            name = _changed_state(stated["command"], stated["answer"])
            return bool(name) and name in self._newest_state
        asked = _REPOSITORY.match(stated["command"])
        return "" in self._newest_state or (asked is not None and asked[1] in self._newest_state)

    def _add_failures(self, changed_at: Mapping[str, float]) -> None:
        """Add what failed and whether it still does."""
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
            self._items.all.append(msgspec.structs.replace(item, text=f"{state}: {item.text}", value=value))
            if times > 1:
                for reason in self._other_reasons(key, item) if age < MAX_FAILURES else ():
                    what = f"{key.partition(' ')[0]} {key.rpartition('/')[2] if '/' in key else key.partition(' ')[2]}"
                    text = f"{as_code(what, MAX_COMMAND)} also failed: {reason.text.partition('`: ')[2]}"
                    self._items.all.append(msgspec.structs.replace(reason, text=text, value=value * OTHER_REASON))

    def _other_reasons(self, key: str, newest: Item) -> list[Item]:
        """Return earlier failures of the same call that give another reason, the newest of each."""
        found = {_reason(newest.text): newest}
        for other, item in reversed(self._failures):
            if other == key and len(found) <= MAX_REASONS:
                found.setdefault(_reason(item.text), item)
        return list(found.values())[1:]

    def _passed_later(self, key: str, at: float) -> bool:
        """Return whether a command, or the last one of a chain, passed after it had failed."""
        last = _chained(key)[-1]
        runs = self._runs.items()
        return any(ran > at and not failed and last in _chained(one) for one, (ran, failed) in runs)


def _repository_state(output: str, *, is_current: bool) -> str:
    """Return the lines with which git describes a repository, without its advice.

    If files were edited since, the list of changed files no longer holds, and only the branch is named.
    """
    lines = [line.strip() for line in output.split("\n")[: 4 * MAX_STATUS_LINES]]
    lines = [line for line in lines if line and not _HINT.match(line)][:MAX_STATUS_LINES]
    if not is_current:
        files = next((number for number, line in enumerate(lines) if line.endswith(":")), len(lines))
        lines = lines[:files]
    return " / ".join(lines)


def _changed_state(command: str, output: str) -> str:
    """Name what a command changed so that the next change overtakes it: the branch, or the same command again.

    Empty for what lasts, such as a commit or an order.
    """
    if command.endswith("…") or len(command) > MAX_COMMAND:
        return ""
    lines = [one.line for one in programs(command)]
    switches = any(map(_MAKES_BRANCH.match, lines)) or _SWITCHED.search(output) is not None
    if switches and any(map(_SWITCHES.match, lines)):
        if all(map(_BESIDE_SWITCH.fullmatch, lines)):
            folder = _FOLDER.match(command)
            return f"{BRANCH}{folder[1] or folder[2]}" if folder else BRANCH
        return ""
    lasts = any(_SHARED_STATE.match(line) and not _SETS.match(line) for line in lines)
    return "" if lasts else one_line(command, MAX_COMMAND).replace("`", "'")


def changes_shared_state(command: str) -> bool:
    """Return whether a command changes what others see: a repository, a registry, a cluster."""
    if _SHARED_PROGRAM.search(command) is None:
        return False
    return any(_SHARED_STATE.match(one.line) and not _only_tries(one) for one in programs(command))


def _only_tries(program: Program) -> bool:
    return any(map(_TRIES.fullmatch, program.words)) or (program.words[:2] == ["git", "push"] and "-n" in program.words)


def _answer(event: ToolUse, command: str, output: str) -> str:
    """Quote the end of an output; empty if it says nothing, or if what the command did is stated elsewhere."""
    lines = [line.strip() for line in output[-600:].split("\n") if line.strip() and not _NOISE.match(line)]
    cut = "… " if len(lines) > 2 or len(output) > 600 else ""
    is_silent = not lines or _NO_OUTPUT.fullmatch(lines[-1]) is not None
    if is_silent and (_PREPARES.match(command) or any(how != "read" for how, _ in event.effect.files)):
        return ""
    if only_prints(command, is_cut=bool(cut) or is_silent):
        return ""
    return "no output" if is_silent else quoted(cut + one_line(" / ".join(lines[-2:]), 180), 182)


def _reason(failure: str) -> str:
    """Return the words of a failure by which it differs from others of the same call: without values and quotations."""
    said = " ".join(failure.partition("`: ")[2].split("`")[::2]).lower()
    plain = [word.strip("\"'.,:;()[]") for word in said.split() if word.isascii() and not _VALUE.search(word)]
    return " ".join(plain[:8])


def _untagged_error(output: str) -> str:
    return _ERROR_TAG.sub("", output) if "error>" in output else output


def _chained(key: str) -> list[str]:
    return [part.strip() for part in re.split(r"&&|;", key)]


def command_key(command: str) -> str:
    """Name a command so that later runs of it are known: without the directory before it and the filter after it."""
    return _NOISE_IN_KEY.sub("", one_line(command, 200)).strip()[:80]


# --- what was not done --------------------------------------------------------------------------------------------

NO_COMMIT = "The assistant itself made no commit"
NO_PUSH = "The assistant itself pushed nothing"
NOT_RUN = "Edited, and no test, build or other run since: "
NOT_COMMITTED = "Edited after the last commit: "

MAX_NAMED_FILES = 8

_COMMIT = re.compile(r"git (?:commit|merge|cherry-pick|rebase|am|revert|pull)(?![\w-])")
_PUSH = re.compile(r"git push(?![\w-])|gh pr (?:create|merge)\b")

_COMMIT_TOOL = re.compile(r"commit|push|merge|pull_request", re.IGNORECASE)

_NEVER, _UNKNOWN = -2.0, -0.05
"""When something happened last: not at all, or perhaps in a part whose originals are gone. Positions start at 0."""

_OTHERS = " and others"
"""Follows the files that are named if there are more."""


class WorkState:
    """Collects what was run, committed and pushed, over the calls of a session in their order."""

    def __init__(self, *, is_continued: bool) -> None:
        self._has_shell = False
        self._last_run = _NEVER
        self._last_commit = self._last_push = _UNKNOWN if is_continued else _NEVER
        self._not_run: list[str] = []
        self._not_committed: list[str] = []
        """Files that earlier notes name."""
        self._calls: list[ToolUse] = []

    def read_line(self, line: str) -> bool:
        """Read a line that an earlier pass wrote; return whether it is one."""
        if line == NO_COMMIT:
            self._has_shell, self._last_commit, self._last_push = True, _NEVER, _NEVER
        elif line == NO_PUSH:
            self._last_push = _NEVER
        elif line.startswith(NOT_RUN):
            self._not_run = _read_list(line.removeprefix(NOT_RUN))
        elif line.startswith(NOT_COMMITTED):
            self._not_committed = _read_list(line.removeprefix(NOT_COMMITTED))
        else:
            return False
        return True

    def note(self, event: ToolUse) -> None:
        """Note a call that was answered and not refused."""
        self._calls.append(event)

    def lines(self, edited: Sequence[tuple[float, str]]) -> list[str]:
        """Say what was not done, given when each edited file was last edited; before 0 in a part that is gone."""
        if not edited:
            return []
        self._read_calls()
        found: list[str] = []
        if not_run := _joined(self._not_run, [path for at, path in edited if at > max(self._last_run, _UNKNOWN)]):
            found.append(NOT_RUN + _listed(not_run))
        if self._last_commit == _NEVER and self._has_shell:
            found.append(NO_COMMIT)
        since = [path for at, path in edited if at > self._last_commit] if self._last_commit >= 0 else []
        if not_committed := _joined(self._not_committed, since):
            found.append(NOT_COMMITTED + _listed(not_committed))
        if self._last_commit >= 0 and self._last_push == _NEVER:
            found.append(NO_PUSH)
        return found

    def _read_calls(self) -> None:
        """Find the newest run, commit and push. Older ones change nothing, so most calls are never looked at."""
        calls = self._calls
        self._has_shell = self._has_shell or any(event.effect.command is not None for event in calls)
        by_tool = _newest(calls, _uses_commit_tool)
        self._last_run = max(self._last_run, _newest(calls, _runs))
        self._last_commit = max(self._last_commit, by_tool, _newest(calls, _commits))
        self._last_push = max(self._last_push, by_tool, _newest(calls, _pushes))
        if self._last_run >= 0:
            self._not_run = []
        if self._last_commit >= 0:
            self._not_committed = []


def _newest(calls: Sequence[ToolUse], does: Callable[[ToolUse], bool]) -> float:
    """Return the position of the newest call that does something; before 0 if none does."""
    return next((event.at for event in reversed(calls) if does(event)), _NEVER)


def _runs(event: ToolUse) -> bool:
    """Return whether a call runs a program. A tool of another kind may run something, as a sub-agent does."""
    effect = event.effect
    if effect.command is not None:
        return runs_something(effect.command)
    return not effect.files and not effect.searches and not _uses_commit_tool(event)


def _uses_commit_tool(event: ToolUse) -> bool:
    return event.effect.command is None and _COMMIT_TOOL.search(event.call.name) is not None


def _commits(event: ToolUse) -> bool:
    return _may_have_done(event, _COMMIT)


def _pushes(event: ToolUse) -> bool:
    return _may_have_done(event, _PUSH)


def _may_have_done(event: ToolUse, pattern: re.Pattern[str]) -> bool:
    """Return whether a call is a chain with a program of a kind that may have succeeded.

    If a chain failed, so did its last program or one before it. A program that others follow may have succeeded, and
    so may what a program of another kind was given to run, as in ``ssh host "git push"``.
    """
    command, result = event.effect.command, event.result
    if command is None or result is None or not ("git" in command or "gh" in command):
        return False
    chain = programs(command)
    if has_failed(result, event.effect):
        followed = [number for number, one in enumerate(chain) if one.end not in ("", "|")]
        chain = chain[: followed[-1] + 1] if followed else []
    return any((pattern.search if one.runs else pattern.match)(one.line) and not _only_tries(one) for one in chain)


def _joined(earlier: Sequence[str], paths: Sequence[str]) -> list[str]:
    """Join files that earlier notes name with newly edited ones, each once."""
    return list(dict.fromkeys([*(path for path in earlier if path not in paths), *paths]))


def _listed(paths: Sequence[str]) -> str:
    named = [harmless(path) for path in paths if path != _OTHERS]
    return ", ".join(named[-MAX_NAMED_FILES:]) + (_OTHERS if len(named) > MAX_NAMED_FILES or _OTHERS in paths else "")


def _read_list(text: str) -> list[str]:
    return [*([_OTHERS] if text.endswith(_OTHERS) else []), *text.removesuffix(_OTHERS).split(", ")]
