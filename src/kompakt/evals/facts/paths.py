"""Files that were read, created, modified or deleted, recognised by the shapes of calls.

A call that names a file and has old and new text modifies it. A call with the whole content creates it. A call without
content, whose result has content, reads it. A path in the output of a search is not a fact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kompakt.evals.facts.fact import FactKind, OperationalFact, words
from kompakt.evals.facts.shell import command_of, operations
from kompakt.evals.history_events import CallPair, HistoryEvent

_CHANGED = ("modif", "edit", "chang", "wrote", "writ")

WORDS: dict[str, str] = {
    "modified": rf"{words(*_CHANGED)}|\bstr_replace\b|\bapply_patch\b",
    "read": words("read", "view", "examin", "inspect", "open", "look", "creat", *_CHANGED),
    "created": rf"{words('creat', 'new', 'add', 'wrote', 'writ', 'copied', 'cp', 'mv', 'moved', 'touch', 'tee')}|>",
    "deleted": words("delet", "remov", "rm", "unlink", "moved", "mv", "renam"),
}
"""Words that state an operation. A file that the agent wrote or modified also counts as read."""

_PATH_KEYS = re.compile(
    r"(?:.*_)?(?:path|file|filename|file_name|notebook_path|uri)|filePath|fileName|absolutePath", re.I
)
_SEARCH_KEYS = frozenset(["pattern", "query", "regex", "glob", "search", "search_term"])
_OLD = re.compile(r"old_?(?:str|string|text|content)|search|find|insert_line|diff|patch|edits?|line_range", re.I)
_WHOLE = re.compile(r"(?:new_?|file_?)?(?:content|contents|text|source|file_text)", re.I)
_PATCH = re.compile(r"^\*\*\* (Add|Update|Delete) File: (.+)$", re.M)
_COMMANDS = {"view": "read", "create": "created", "str_replace": "modified", "insert": "modified", "write": "created"}
_FILE = re.compile(r"[^\n*?<>|]*[\w)\]-]")


def path_facts(pairs: Iterable[CallPair]) -> Iterator[OperationalFact]:
    """Yield the file operations of successful calls."""
    known: set[str] = set()
    for call in pairs:
        if not call.succeeded:
            continue
        for operation, path in _operations(call):
            key = short(path)
            kind: FactKind = "modified" if operation == "created" and key in known else operation  # type: ignore[assignment]
            known.add(key)
            yield OperationalFact(kind, key, kind, WORDS[kind], (call.event.id,))


def short(path: str) -> str:
    """Return the last two components of a path."""
    names = [name for name in path.rstrip("/").split("/") if name not in ("", ".")]
    return "/".join(names[-2:])


def _operations(call: CallPair) -> Iterator[tuple[str, str]]:
    command = command_of(call.event)
    if command is not None:
        yield from operations(command)
        yield from _patch_operations(command)
        return
    for text in call.event.input.values():
        if isinstance(text, str):
            yield from _patch_operations(text)
    path = named_file(call.event)
    if path is not None:
        operation = _operation(call)
        if operation is not None:
            yield operation, path


def named_file(event: HistoryEvent) -> str | None:
    """Return the file named in the input of a call."""
    for key, value in event.input.items():
        if isinstance(value, str) and _PATH_KEYS.fullmatch(key) and _FILE.fullmatch(value) and len(value) < 300:
            return value
    return None


def _operation(call: CallPair) -> str | None:
    fields = call.event.input
    subcommand = fields.get("command")
    if isinstance(subcommand, str):
        return _COMMANDS.get(subcommand)
    if any(key in _SEARCH_KEYS for key in fields):
        return None
    if any(_OLD.fullmatch(key) for key in fields):
        return "modified"
    if any(_WHOLE.fullmatch(key) and isinstance(value, str) for key, value in fields.items()):
        return "created"
    return "read" if _shows_content(call) else None


def _shows_content(call: CallPair) -> bool:
    """Return whether a result can be the content of the named file."""
    assert call.result is not None
    path = named_file(call.event) or ""
    named = "." in path.rsplit("/", 1)[-1]
    return named and bool(call.result.text.strip())


def _patch_operations(text: str) -> Iterator[tuple[str, str]]:
    names = {"Add": "created", "Update": "modified", "Delete": "deleted"}
    if "*** Begin Patch" in text:
        yield from ((names[found[1]], found[2].strip()) for found in _PATCH.finditer(text))
