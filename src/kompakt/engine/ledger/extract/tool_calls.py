"""What a tool call does, recognised by the shape of its input and not by one agent's names for its tools.

A call with a file and old and new text changes the file; with the whole text it writes it; with neither it reads it,
unless it has a pattern and so searches, or its name says that it does something else. A command is the value of a key
such as ``command``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

import msgspec

from kompakt.engine.ledger.extract.shell import file_operations
from kompakt.model.json import decode_text
from kompakt.model.messages import Json, ToolCall

_PATCHED = re.compile(r"^\*\*\* (Update|Add|Delete) File: (.*\S)", re.MULTILINE)
_PATCH_WORDS = {"Update": "modified", "Add": "created", "Delete": "deleted"}
_DIFFED = re.compile(r"^\+\+\+ (?:b/)?(\S+)", re.MULTILINE)

_PATH_KEY = re.compile(r"(?:^|_)(?:path|file|file_?name|filepath|notebook)s?$")
_COMMAND_KEYS = ("command", "cmd", "commands", "script", "bash", "shell_command")
_COMMANDS = frozenset(_COMMAND_KEYS)
_CHANGE_KEY = re.compile(r"^(?:old|new|replace|insert|edit|patch|diff|hunk|substitut|search_replace|code_edit)")
_WHOLE_KEYS = frozenset({"content", "contents", "file_text", "text", "data", "body", "file_content", "code"})
_SEARCH_KEYS = frozenset({"pattern", "query", "regex", "regexp", "search", "search_term", "glob", "keyword", "q"})
_VERBS = {
    "view": "read", "read": "read", "open": "read", "cat": "read",
    "create": "created", "write": "created", "add": "created",
    "str_replace": "modified", "insert": "modified", "edit": "modified", "update": "modified", "append": "modified",
    "undo_edit": "modified", "replace": "modified",
    "delete": "deleted", "remove": "deleted", "unlink": "deleted",
}  # fmt: skip
_DELETES = re.compile(r"(?:^|[_\W])(?:delete|remove|unlink|rm)(?:$|[_\W])|^(?:delete|remove)")
_LISTS = re.compile(
    r"(?:^|[_\W])(?:ls|list|tree|glob|grep|search|find|mkdir|dir|directory|folder)(?:$|[_\W])|^(?:list|search|find)"
)
_MOVES = re.compile(r"(?:^|[_\W])(move|mv|rename|copy|cp)(?:$|[_\W])")
_ACTS = re.compile(
    r"(?:^|[_\W])(?:run|exec|execute|test|tests|build|lint|format|check|compile|deploy|upload|download|chmod|start|stop|debug|"
    r"commit|push|stage|restore|lock|watch|play|send|import|export|convert|validate|analy[sz]e)(?:$|[_\W])"
)

TASK_KEYS = frozenset(["status", "state", "subject", "activeForm", "active_form"])
"""Keys of calls that create a task or change its state."""

_WORDS = 256
"""Entries of the caches for keys and for shapes of calls."""

_LONG = 1_000
"""Total length of keys from which a call is not cached."""

_LONGEST_END = 40
"""Characters at the end of a key that are read; words for paths are shorter."""


class Effect(msgspec.Struct, frozen=True, gc=False):
    """What one call does."""

    files: tuple[tuple[str, str], ...] = ()
    """Operation and path."""
    command: str | None = None
    url: str | None = None
    searches: bool = False
    fields: Mapping[str, Json] = {}

    @property
    def sought(self) -> str | None:
        """What a search looks for."""
        return next((value for key, value in self.fields.items() if key in _SEARCH_KEYS and type(value) is str), None)

    @property
    def reads(self) -> bool:
        """Return whether the answer is the text of a file or the result of a search in files."""
        return self.searches or (bool(self.files) and all(how == "read" for how, _ in self.files))


def effect_of(call: ToolCall, fields: Mapping[str, Json] | None = None) -> Effect:
    """Return what a call does; ``fields`` is its input as a table, if that is known already."""
    fields = fields_of(call) if fields is None else fields
    command = _command(fields)
    if command is None and isinstance(call.input, str) and not fields:
        if "*** " in call.input:
            return Effect(files=tuple(_patched(call.input)))
        return Effect(command=None if call.input.lstrip()[:1] in ("{", "[") else call.input.strip() or None)
    if command is not None:
        files = _patched(command) if "*** Begin Patch" in command else file_operations(command)
        return Effect(files=tuple(files), command=command, fields=fields)
    files = tuple(_files(call.name, fields))
    url = fields.get("url") or fields.get("uri")
    searches = not files and not _SEARCH_KEYS.isdisjoint(fields)
    return Effect(files=files, url=url if isinstance(url, str) else None, searches=searches, fields=fields)


def fields_of(call: ToolCall) -> dict[str, Json]:
    """Return the input of a call as an object; empty if it is not one."""
    given = call.input
    if isinstance(given, str):
        if not given.startswith("{"):
            return {}
        try:
            given = decode_text(given)
        except ValueError:
            return {}
    return given if isinstance(given, dict) else {}


def _command(fields: Mapping[str, Json]) -> str | None:
    if _COMMANDS.isdisjoint(fields):
        return None
    for key in _COMMAND_KEYS:
        value = fields.get(key)
        if isinstance(value, list):
            words = [word for word in value if isinstance(word, str)]
            wrapped = len(words) == 3 and words[1] in ("-c", "-lc")
            value = words[-1] if wrapped else ("\n" if key == "commands" else " ").join(words)
        if isinstance(value, str) and value.strip() and not _is_verb(value, fields):
            return value.strip()
    return None


def _is_verb(value: str, fields: Mapping[str, Json]) -> bool:
    """Return whether a command is a verb for the file in the same input, such as ``view``."""
    return value in _VERBS and bool(_paths(fields))


def _paths(fields: Mapping[str, Json]) -> list[str]:
    """Return the paths that a call names."""
    found: list[str] = []
    for key, value in fields.items():
        if _is_path(key[-_LONGEST_END:]):
            given = value if type(value) is list else (value,)
            found += [one for one in given if type(one) is str and 0 < len(one) < 500 and "\n" not in one]
    return found


@lru_cache(maxsize=_WORDS)
def _is_path(end: str) -> bool:
    """Return whether the value of a key is a path, by the end of the key."""
    return _PATH_KEY.search(snake_case(end)) is not None


def snake_case(key: str) -> str:
    """Write a key in snake case."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower() if not key.islower() else key


def _files(name: str, fields: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Yield what a call does to the files it names."""
    for key in ("patch", "diff", "input"):
        value = fields.get(key)
        if isinstance(value, str) and "*** " in value:
            yield from _patched(value)
        elif isinstance(value, str) and "+++ " in value:
            yield from (("modified", path) for path in _DIFFED.findall(value))
    name = snake_case(name)
    if moved := _MOVES.search(name):
        yield from _moved(moved[1], _paths(fields))
        return
    how = _operation(name, fields)
    if how is not None:
        for path in _paths(fields):
            yield how, path


def _operation(name: str, fields: Mapping[str, Json]) -> str | None:
    verb = fields.get("command") or fields.get("action") or fields.get("operation")
    if isinstance(verb, str) and verb in _VERBS:
        return _VERBS[verb]
    shaped = _shaped if len("".join(fields)) < _LONG else _shaped.__wrapped__
    return shaped(name, tuple(fields))


@lru_cache(maxsize=_WORDS)
def _shaped(name: str, given: tuple[str, ...]) -> str | None:
    """Return what a call does to the files it names, by its name and keys; ``None`` if nothing."""
    keys = [key for key in map(snake_case, given) if not _PATH_KEY.search(key)]
    if any(_CHANGE_KEY.match(key) for key in keys):
        return "modified"
    if not _SEARCH_KEYS.isdisjoint(keys) or _LISTS.search(name):
        return None
    if not _WHOLE_KEYS.isdisjoint(keys):
        return "created"
    if _DELETES.search(name):
        return "deleted"
    return None if _ACTS.search(name) else "read"


def only_reads_files(call: ToolCall) -> bool:
    """Return whether a call reads or searches files, of which a ledger names no more than the path."""
    fields = fields_of(call)
    return only_looks(call.name, fields) and (not _SEARCH_KEYS.isdisjoint(fields) or bool(_paths(fields)))


def only_looks(name: str, fields: Mapping[str, Json]) -> bool:
    """Return whether a call plainly changes no file and keeps no list of tasks, by its name and keys alone."""
    if not fields or list in map(type, fields.values()):
        return False
    looks = _only_looks if len("".join(fields)) < _LONG else _only_looks.__wrapped__
    return looks(name, tuple(fields))


@lru_cache(maxsize=_WORDS)
def _only_looks(name: str, given: tuple[str, ...]) -> bool:
    name = snake_case(name)
    return _ACTIVE_KEYS.isdisjoint(given) and not _MOVES.search(name) and _shaped(name, given) in (None, "read")


_ACTIVE_KEYS = frozenset([*_COMMAND_KEYS, *TASK_KEYS, "patch", "diff", "input", "action", "operation"])
"""Keys of calls whose effect depends on the value under the key."""


def _moved(verb: str, paths: list[str]) -> Iterator[tuple[str, str]]:
    """Yield what happens to the two files of a move or a copy."""
    if len(paths) == 2:
        if verb not in ("copy", "cp"):
            yield "deleted", paths[0]
        yield "created", paths[1]


def _patched(text: str) -> Iterator[tuple[str, str]]:
    for word, path in _PATCHED.findall(text):
        yield _PATCH_WORDS[word], path


def input_text(call: ToolCall) -> str:
    """Return the words and numbers of a call's input, those of inner tables with their keys.

    The outer keys are the tool's own, and its definition says them.
    """
    given = fields_of(call) or call.input
    if isinstance(given, str):
        return given.replace("\\n", "\n").replace("\\t", "\t")
    found: list[str] = []
    stack: list[tuple[str, Json]] = (
        [("", value) for value in given.values()] if isinstance(given, dict) else [("", given)]
    )
    while stack:
        key, value = stack.pop()
        if isinstance(value, dict):
            stack += value.items()
        elif isinstance(value, list):
            stack += [(key, item) for item in value]
        elif value is not None:
            found.append(f"{key}: {value}" if key else str(value))
    return "\n".join(found)
