"""Path and operation: which files were read, created, changed or deleted, by the shapes of calls.

A call that names a file and carries what goes in or out of it changes it; one that carries a whole content makes it;
one that carries nothing and is answered with content reads it. A path that a search merely printed is no fact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kompakt.evals.facts.fact import Fact, Kind, words
from kompakt.evals.facts.shell import command_of, operations
from kompakt.evals.sources.trail import Call, Event

_CHANGED = ("modif", "edit", "chang", "wrote", "writ")

WORDS: dict[str, str] = {
    "modified": rf"{words(*_CHANGED)}|\bstr_replace\b|\bapply_patch\b",
    "read": words("read", "view", "examin", "inspect", "open", *_CHANGED),
    "created": rf"{words('creat', 'new', 'add', 'wrote', 'writ', 'copied', 'cp', 'mv', 'moved', 'touch', 'tee')}|>",
    "deleted": words("delet", "remov", "rm", "unlink", "moved", "mv", "renam"),
}
"""How people and tools say that a file was touched; who changed a file has read it."""

_PATH_KEYS = re.compile(
    r"(?:.*_)?(?:path|file|filename|file_name|notebook_path|uri)|filePath|fileName|absolutePath", re.I
)
_SEARCH_KEYS = frozenset(["pattern", "query", "regex", "glob", "search", "search_term"])
_OLD = re.compile(r"old_?(?:str|string|text|content)|search|find|insert_line|diff|patch|edits?|line_range", re.I)
_WHOLE = re.compile(r"(?:new_?|file_?)?(?:content|contents|text|source|file_text)", re.I)
_PATCH = re.compile(r"^\*\*\* (Add|Update|Delete) File: (.+)$", re.M)
_COMMANDS = {"view": "read", "create": "created", "str_replace": "modified", "insert": "modified", "write": "created"}
_FILE = re.compile(r"[^\n*?<>|]*[\w)\]-]")


def path_facts(pairs: Iterable[Call]) -> Iterator[Fact]:
    """Yield what calls did to files; calls that failed did nothing."""
    known: set[str] = set()
    for call in pairs:
        if not call.worked:
            continue
        for operation, path in _operations(call):
            key = short(path)
            kind: Kind = "modified" if operation == "created" and key in known else operation  # type: ignore[assignment]
            known.add(key)
            yield Fact(kind, key, kind, WORDS[kind], (call.event.id,))


def short(path: str) -> str:
    """Return the last two components of a path."""
    names = [name for name in path.rstrip("/").split("/") if name not in ("", ".")]
    return "/".join(names[-2:])


def _operations(call: Call) -> Iterator[tuple[str, str]]:
    command = command_of(call.event)
    if command is not None:
        yield from operations(command)
        yield from _patched(command)
        return
    for text in call.event.input.values():
        if isinstance(text, str):
            yield from _patched(text)
    path = named_file(call.event)
    if path is not None:
        operation = _operation(call)
        if operation is not None:
            yield operation, path


def named_file(event: Event) -> str | None:
    """Return the one file that the input of a call names."""
    for key, value in event.input.items():
        if isinstance(value, str) and _PATH_KEYS.fullmatch(key) and _FILE.fullmatch(value) and len(value) < 300:
            return value
    return None


def _operation(call: Call) -> str | None:
    given = call.event.input
    order = given.get("command")
    if isinstance(order, str):
        return _COMMANDS.get(order)
    if any(key in _SEARCH_KEYS for key in given):
        return None
    if any(_OLD.fullmatch(key) for key in given):
        return "modified"
    if any(_WHOLE.fullmatch(key) and isinstance(value, str) for key, value in given.items()):
        return "created"
    return "read" if _shows_content(call) else None


def _shows_content(call: Call) -> bool:
    """Tell whether a result can be the content of the file that was named."""
    assert call.result is not None
    path = named_file(call.event) or ""
    named = "." in path.rsplit("/", 1)[-1]
    return named and bool(call.result.text.strip())


def _patched(text: str) -> Iterator[tuple[str, str]]:
    names = {"Add": "created", "Update": "modified", "Delete": "deleted"}
    if "*** Begin Patch" in text:
        yield from ((names[found[1]], found[2].strip()) for found in _PATCH.finditer(text))
