"""Precision: what a projection asserts in its own words, compared with the history.

Only lines that no message of the prefix contains are read. There are three kinds of assertion: a path with an
operation, a command with an outcome, and a sentence attributed to the user. Quotes from the history are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from kompakt.evals.case import EvalCase
from kompakt.evals.facts.outcomes import outcome_of
from kompakt.evals.facts.paths import path_facts, short
from kompakt.evals.facts.shell import command_of, first_line
from kompakt.evals.history_events import pair_calls

_OPERATION = re.compile(
    r"(?<![\w./-])(?:(?P<modified>modified|edited|changed)|(?P<created>created)|(?P<deleted>deleted)|(?P<read>read|viewed))"
    r"(?![\w/-]|\.\w)",
    re.IGNORECASE,
)
_PATH = re.compile(r"(?<![\w@:])(?:[\w.@~+-]*/)+[\w.@+-]+\.\w{1,10}\b|(?<![\w/@.-])[\w-]+\.[a-z]{1,5}\b(?![./(])")
_MAX_LINE = 1_000
"""Characters of a line that are searched for paths. Bounds the cost of the pattern."""

_OUTCOME = re.compile(
    r"(?P<bad>\bfailed\b|\bfailure\b|\bexit(?: code| status)? [1-9]\d*|✗)"
    r"|(?P<good>\bok\b|\bsucceeded\b|\bpassed\b|\bexit(?: code)? 0\b|✓)",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"[\"“]([^\"“”\n]{12,240})[\"”]")
_CITED = re.compile(r"[\"“][^\"“”\n]*[\"”]?")
_PIECES = re.compile(r"…|⋯|\.\.\.|[;|\"“”]")
_CONSTRAINTS = re.compile(r"constraint|user (?:said|asked|demand|require)|rules|must be honou?red", re.I)
_HEADING = re.compile(r"^\s*(?:#+ .*|\*\*.*\*\*:?|[A-Z][^.`/]{2,60}:)\s*$")
_REFUSAL = re.compile(r"\s*[-*•] The user (?:refused|rejected|declined) ")
"""A line about a refused call. Its words are those of a tool result and are checked as facts."""
_REFERENCE = re.compile(r"(?:(?<!\s)\s++)?[\[(]?\bm[0-9a-f]{4,40}(?:\.\d+)?\b[\])]?")
_BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+")
_SUPPORT = {"modified": {"modified", "created"}, "created": {"created", "modified"}, "deleted": {"deleted"}}
_CODE = re.compile(r"`([^`\n]*)`")
_DENIED = re.compile(r"\b(?:not|never|failed|failure|error|cannot|could|should|must|to be|will|n't)\b", re.IGNORECASE)
"""A clause about something that did not happen or should happen."""
_BEFORE, _AFTER = 3, 16
"""A word is a quote when the history also has these characters before and after it."""
_NEAR = 40
"""Characters after a command in which its outcome is searched."""


class Assertion(msgspec.Struct, frozen=True):
    """A statement of a projection, and whether the history supports it."""

    kind: str
    text: str
    true: bool


class _History:
    """Lookup tables of what a history supports."""

    def __init__(self, case: EvalCase) -> None:
        self.text = " ".join(case.text.split())
        self.lines = {line.strip() for line in case.text.splitlines()}
        self.user = " ".join(" ".join(event.text for event in case.events if event.kind == "user").split())
        self.operations: dict[str, set[str]] = {}
        pairs = pair_calls(case.events)
        for fact in path_facts(pairs):
            for key in (fact.key, fact.key.rsplit("/", 1)[-1]):
                self.operations.setdefault(key, set()).add(fact.kind)
        self.outcomes: dict[str, set[str]] = {}
        for call in pairs:
            command = command_of(call.event)
            if command is not None and call.result is not None:
                outcome = outcome_of(call) or "either"
                self.outcomes.setdefault(first_line(command), set()).add(outcome)


def assertions(case: EvalCase, fresh: str) -> list[Assertion]:
    """List the assertions in the fresh text of a projection."""
    history = _History(case)
    found: list[Assertion] = []
    heading = ""
    for line in fresh.splitlines():
        if _HEADING.match(line):
            heading = line
            continue
        own = _own(line, history)
        commands = list(_commands(own, history))
        found.extend(commands)
        for clause in [] if commands else _CODE.sub(_without_command, own).split(";"):
            if not _DENIED.search(clause):
                found.extend(_paths(clause, heading, history))
        if _CONSTRAINTS.search(heading):
            found.extend(_constraints(line, history))
    return found


def _own(line: str, history: _History) -> str:
    """Remove what a line quotes from the history."""
    words = _BULLET.sub("", line).strip()
    if line.strip() in history.lines or (words.count(" ") >= 2 and words in history.text):
        return ""
    kept = " ".join(line.split())
    for piece in _PIECES.split(line):
        piece = piece.strip()
        if piece.count(" ") >= 3 and len(piece) >= 25 and piece in history.text:
            kept = kept.replace(piece, " ")
    return kept


def _without_command(code: re.Match[str]) -> str:
    """Remove a command in backquotes: naming a file in a command does not assert an operation."""
    return " " if " " in code[1] else code[0]


def _paths(line: str, heading: str, history: _History) -> Iterator[Assertion]:
    """Yield each path of a line with its operations, stated in the line or in the heading above it."""
    paths = list(_PATH.finditer(line, 0, _MAX_LINE))
    if not paths:
        return
    words = [word for word in _OPERATION.finditer(line) if not _quoted(line, word, history)]
    above = [] if words else list(_OPERATION.finditer(heading))
    if above:
        for path in paths:
            yield from (_path(path[0], str(word.lastgroup), history) for word in above[:1])
    elif words and words[0].start() < paths[0].start():
        for path in paths:
            before = [word for word in words if word.end() <= path.start()]
            yield _path(path[0], str(before[-1].lastgroup), history)
    else:
        ends = [path.start() for path in paths[1:]] + [len(line)]
        for path, end in zip(paths, ends, strict=True):
            stated = [word for word in words if path.end() <= word.start() < end]
            yield from (_path(path[0], str(word.lastgroup), history) for word in stated)


def _quoted(line: str, word: re.Match[str], history: _History) -> bool:
    """Return whether the history has the word between the same neighbours."""
    start = word.start() - _BEFORE
    return start >= 0 and line[start : word.end() + _AFTER].strip() in history.text


def _path(path: str, operation: str, history: _History) -> Assertion:
    known = history.operations.get(short(path), set())
    true = bool(known) if operation == "read" else bool(known & _SUPPORT[operation])
    return Assertion("path", f"{path} {operation}", true)


def _commands(line: str, history: _History) -> Iterator[Assertion]:
    """Yield the commands of a line that have an outcome."""
    for command, outcomes in history.outcomes.items():
        at = line.find(command) if len(command) >= 4 else -1
        if at < 0:
            continue
        after = _CITED.sub(" ", line[at + len(command) :])
        stated = _last(_OUTCOME.finditer(line[max(0, at - 12) : at])) or _OUTCOME.search(after[:_NEAR])
        if stated is not None:
            wanted = "failure" if stated.lastgroup == "bad" else "success"
            yield Assertion("command", f"{command} {stated[0]}", bool(outcomes & {wanted, "either"}))


def _last(found: Iterable[re.Match[str]]) -> re.Match[str] | None:
    return next(reversed(list(found)), None)


def _constraints(line: str, history: _History) -> Iterator[Assertion]:
    """Yield the sentences that a line attributes to the user."""
    if _REFUSAL.match(line):
        return
    quoted = _QUOTED.findall(line)
    item = _REFERENCE.sub("", _BULLET.sub("", line)).strip()
    for sentence in quoted or ([item] if _BULLET.match(line) and len(item) >= 12 else []):
        pieces = [piece.strip() for piece in re.split(r"\[…\]|…|⋯", sentence) if piece.strip()]
        true = all(" ".join(piece.split()) in history.user for piece in pieces)
        yield Assertion("constraint", sentence, true)
