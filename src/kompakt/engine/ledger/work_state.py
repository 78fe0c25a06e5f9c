"""The state of the work that no single event states: what was edited but not run since, and what was not committed.

A reader who finds no commit in the notes cannot know whether there was none or whether it was left out, and guesses.
So the notes say it. All events count here, also those that are still shown. Where the originals of an earlier part are
gone, what the notes on that part said holds until a later call changes it; if they said nothing, nothing is assumed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kompakt.engine.ledger.events import ToolUse
from kompakt.engine.ledger.excerpts import harmless
from kompakt.engine.ledger.extract.outcomes import has_failed
from kompakt.engine.ledger.extract.shell import runs_something

NO_COMMIT = "The assistant itself made no commit"
NO_PUSH = "The assistant itself pushed nothing"
NOT_RUN = "Edited, and no test, build or other run since: "
NOT_COMMITTED = "Edited after the last commit: "

MAX_NAMED_FILES = 8

_COMMIT = re.compile(r"\bgit(?: -[cC] \S+| --\S+)* (?:commit|merge|cherry-pick|rebase|am|revert|pull)(?![\w-])")
_PUSH = re.compile(r"\bgit(?: -[cC] \S+| --\S+)* push\b|\bgh pr (?:create|merge)\b")
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
        assert event.result is not None
        command = event.effect.command
        if command is None:
            if _COMMIT_TOOL.search(event.call.name):
                self._note_commit(event.at)
                self._last_push = event.at
            elif not event.effect.files and not event.effect.searches:
                self._note_run(event.at)  # a tool of another kind may run something, as a sub-agent does
            return
        self._has_shell = True
        if _COMMIT.search(command) and not has_failed(event.result, event.effect):
            self._note_commit(event.at)
        if _PUSH.search(command) and not has_failed(event.result, event.effect):
            self._last_push = event.at
        if runs_something(command):
            self._note_run(event.at)

    def _note_commit(self, at: int) -> None:
        self._last_commit = at
        self._not_committed = []

    def _note_run(self, at: int) -> None:
        self._last_run = at
        self._not_run = []

    def lines(self, edited: Sequence[tuple[float, str]]) -> list[str]:
        """Say what was not done, given when each edited file was last edited; before 0 in a part that is gone."""
        if not edited:
            return []
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


REPOSITORY = re.compile(
    r"\s*(?:cd [^&;|]+(?:&&|;)\s*)?git(?: -C \S+)? (?:--no-pager )?"
    r"(status|branch --show-current|log|stash list)(?: -n \d+| -{1,2}[\w-]+)*(?: 2>&1)?\s*$"
)
"""Commands that show the state of a repository and nothing else."""

MAX_STATUS_LINES = 12

_HINT = re.compile(r"\s*\(|Author:|Date:|Shell cwd was reset|no(?:thing| changes) added to commit")
"""Lines of git that give advice, or details that nobody asks for."""


def repository_state(output: str, *, is_current: bool) -> str:
    """Return the lines with which git describes a repository, without its advice.

    If files were edited since, the list of changed files no longer holds, and only the branch is named.
    """
    lines = [line.strip() for line in output.split("\n")[: 4 * MAX_STATUS_LINES]]
    lines = [line for line in lines if line and not _HINT.match(line)][:MAX_STATUS_LINES]
    if not is_current:
        files = next((number for number, line in enumerate(lines) if line.endswith(":")), len(lines))
        lines = lines[:files]
    return " / ".join(lines)


def _joined(earlier: Sequence[str], paths: Sequence[str]) -> list[str]:
    """Join files that earlier notes name with newly edited ones, each once."""
    return list(dict.fromkeys([*(path for path in earlier if path not in paths), *paths]))


def _listed(paths: Sequence[str]) -> str:
    named = [harmless(path) for path in paths if path != _OTHERS]
    return ", ".join(named[-MAX_NAMED_FILES:]) + (_OTHERS if len(named) > MAX_NAMED_FILES or _OTHERS in paths else "")


def _read_list(text: str) -> list[str]:
    return [*([_OTHERS] if text.endswith(_OTHERS) else []), *text.removesuffix(_OTHERS).split(", ")]
