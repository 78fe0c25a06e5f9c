"""What became of each file: one line a file, with what changed most, and the newest changes first.

Edits that a later edit took back, and lines that only moved, say nothing about the file as it is now. A file that the
session itself created and deleted again is not stated.
"""

from __future__ import annotations

import math
import os.path
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice

import msgspec

from kompakt.engine.ledger.excerpts import harmless, one_line
from kompakt.engine.ledger.extract.tool_calls import snake_case
from kompakt.engine.ledger.items import CHANGES, Item, ItemList
from kompakt.model.messages import Json

FILE_VALUE = 12
"""Value of the line that says that a file was changed, without what changed in it."""

MAX_NOTES = 8
"""Longest notes on the changes of one file; others are worth less than a line."""

NEW_NOTES = 3
"""Newest notes on a file, the longest of which is given first."""

MAX_UNDONE = 50
"""Newest edits of a file that a later one may take back. All of them would take quadratic time."""

SCRATCH_VALUE = 0.08
"""Value of a file in a folder for temporary files, relative to others; it leaves out all but those edited often."""

_SCRATCH = ("/tmp/", "/var/tmp/", "/private/tmp/")

ROOTED = "Paths are relative to "
"""Starts the line that names the folder of the files that were changed."""

_NOT_IN_ROOT = ("/", "~", "./", "../")
"""Starts a path that is not relative to that folder; ``./`` one that is relative to a folder that is not known."""

ALSO = "also in "
"""Starts a line with further changes of a file."""

_MIN_ROOTED = 3
"""Files from which naming their folder once saves room."""

_EARLIER_FILE = re.compile(
    r"""(?P<path>[^:`"]{1,400}):[ ](?P<how>created,[ ]then[ ]edited|created|edited|rewritten|deleted)
        (?:[ ](?P<count>\d{1,9})[ ]times)?(?:;[ ](?P<note>.*))?""",
    re.VERBOSE,
)


class FileChanges(msgspec.Struct):
    """What became of one file."""

    path: str
    how: str
    count: int = 0
    """Number of edits."""
    at: float = -1
    reference: str = ""
    is_new: bool = False
    """Whether the session created the file."""
    notes: dict[str, tuple[str, ...]] = {}
    """The note of each edit, with the text that the edit inserted and the lines of it that the note quotes."""

    def text(self) -> str:
        """Return what happened to the file, without the changes in it."""
        times = f" {self.count} times" if self.count > 1 and self.how.endswith("edited") else ""
        return f"{harmless(self.path)}: {self.how}{times}"


class ChangedFiles:
    """The files that calls of a session created, edited or deleted."""

    def __init__(self, items: ItemList) -> None:
        self._items = items
        self._files: dict[str, FileChanges] = {}
        self._in_full: dict[str, str] = {}
        """The newest absolute path of each file name."""
        self._folder = ""
        """The folder in which commands run, once a file was named both ways."""
        self._earlier_folder = ""
        """The folder to which the paths of an earlier ledger are relative."""

    def __bool__(self) -> bool:
        return bool(self._files)

    @property
    def names(self) -> set[str]:
        """Names of all files, without their folders."""
        return {path.rpartition("/")[2] for path in self._files}

    @property
    def last_edit(self) -> float:
        """Position of the newest change; -1 if there was none."""
        return max((file.at for file in self._files.values()), default=-1)

    @property
    def changed_at(self) -> dict[str, float]:
        """When each file was last changed."""
        return {path: file.at for path, file in self._files.items()}

    @property
    def edited(self) -> list[tuple[float, str]]:
        """When each file that still exists was last changed, with its path as it is written."""
        return [(file.at, file.path) for file in self._files.values() if not self._is_gone(file)]

    def _is_gone(self, file: FileChanges) -> bool:
        """Return whether a file was deleted, by itself or with a folder that it is in."""
        folder = file.path
        while folder := folder.rpartition("/")[0]:
            deleted = self._files.get(folder)
            if deleted is not None and deleted.how == "deleted" and deleted.at > file.at:
                return True
        return file.how == "deleted"

    def read_line(self, text: str, reference: str, at: float) -> bool:
        """Read a line that an earlier pass wrote; return whether it is about a file."""
        if text.startswith(ROOTED):
            self._earlier_folder = text[len(ROOTED) :]
            return True
        file = _earlier_file(text, reference, at)
        if file is None:
            return False
        if not file.path.startswith(_NOT_IN_ROOT):
            file.path = self._earlier_folder + file.path
        file.path = file.path.removeprefix("./")
        self._files[file.path] = file
        return True

    def _located(self, path: str) -> str:
        """Return the absolute form of a relative path, if another call named the same file in full."""
        path = path.removeprefix("./")
        if path.startswith(_NOT_IN_ROOT):
            return path
        _, folder, name = path.rpartition("/")
        known = self._in_full.get(name, "")
        if folder and known.endswith(f"/{path}"):
            self._folder = known.removesuffix(path)
        return self._folder + path

    def note(self, at: int, how: str, path: str, edit: FileEdit, *, looked: Mapping[str, Mapping[str, None]]) -> None:
        """Note a change; ``looked`` has the names of the files in each folder that were looked at before."""
        path = self._located(path)
        if path.startswith("/"):
            self._in_full[path.rpartition("/")[2]] = path
        file = self._files.get(path)
        words = {"modified": "edited"}.get(how, how)
        if file is None:
            folder, _, name = path.rpartition("/")
            if words == "created" and name in looked.get(folder or ".", {}):
                words = "rewritten"  # the file existed
            file = self._files[path] = FileChanges(path, words, is_new=words == "created")
        elif words == "deleted" or file.how == "deleted":
            file.how = words
        elif words == "edited" and file.how == "created":
            file.how = "created, then edited"
        file.count += words == "edited"
        file.at, file.reference = at, self._items.reference(at)
        is_moved = False
        if edit.removed:  # an edit that was taken back says nothing about the file
            removed, added = edit.removed, edit.added
            is_moved = _is_moved(edit.note, islice(reversed(file.notes.values()), MAX_UNDONE))
            newest = islice(reversed(file.notes.items()), MAX_UNDONE)
            for note in {note for note, texts in newest for text in texts if text in removed and text not in added}:
                del file.notes[note]
        if edit.note and not is_moved:
            file.notes.setdefault(edit.note, _inserted(edit.note, edit.added.strip()))

    def finish(self) -> None:
        """Add what became of each file that existed before or exists now."""
        files = [file for file in self._files.values() if not (file.is_new and self._is_gone(file))]
        root = _common_folder([file.path for file in files if file.path.startswith("/")])
        if root:
            self._items.all.append(Item(CHANGES, -2, f"{ROOTED}{harmless(root)}", 100, is_note=True))
        all_scratch = all(file.path.startswith(_SCRATCH) for file in files)
        for file in files:
            inside = file.path.removeprefix(root)
            if root and inside == file.path and not inside.startswith(_NOT_IN_ROOT):
                file.path = f"./{inside}"
            elif not inside.startswith(_NOT_IN_ROOT):  # a later pass would read it as a path outside
                file.path = inside
            notes = _ordered_notes(file.notes) if file.how != "deleted" else []
            scale = SCRATCH_VALUE if file.path.startswith(_SCRATCH) and not all_scratch else 1
            self._items.all.append(Item(CHANGES, file.at, file.text(), FILE_VALUE * scale, file.reference))
            if notes:
                value = (5 + 2 * math.log2(1 + file.count)) * scale
                text = f"{file.text()}; {notes[0]}"
                self._items.all.append(Item(CHANGES, file.at, text, value, file.reference, extends=file.text()))
            short = file.path.rsplit("/", 1)[-1]
            more = [note for note in notes[1:] if tells_much(note) and not _is_part(note, notes[0])]
            for rank, note in enumerate(more[: MAX_NOTES - 1], 1):
                text = f"{ALSO}{harmless(short)}: {note}"
                value = 2.5 / (1 + 0.2 * rank)
                self._items.all.append(Item(CHANGES, file.at + rank / 1_000, text, value, is_note=True))


def _earlier_file(text: str, reference: str, at: float) -> FileChanges | None:
    found = _EARLIER_FILE.fullmatch(text)
    if found is None:
        return None
    notes = {found["note"]: _inserted(found["note"], "")} if found["note"] else {}
    how, count = found["how"], int(found["count"] or found["how"].endswith("edited"))
    return FileChanges(found["path"], how, count, at, reference, how.startswith("created"), notes)


def _common_folder(paths: Sequence[str]) -> str:
    """Return the folder that all of several files are in, with a slash at its end; empty for few files or none."""
    if len(paths) < _MIN_ROOTED:
        return ""
    folder = os.path.commonpath([path.rpartition("/")[0] or "/" for path in paths])
    return f"{folder}/" if folder.count("/") > 1 else ""


def _is_part(note: str, other: str) -> bool:
    """Return whether a note on a change quotes only lines that another one quotes."""
    return all(line in other for line in note.split("`")[1::2])


def _inserted(note: str, text: str) -> tuple[str, ...]:
    """Return the text that an edit inserted, and the inserted lines that the note on it quotes."""
    quoting = "" if note.startswith("removed ") else note.partition(", replacing ")[0]
    return (text, *quoting.split("`")[1::2])


def _is_moved(note: str, earlier: Iterable[tuple[str, ...]]) -> bool:
    """Return whether an earlier edit added the lines that a note calls removed.

    The calls do not show whether the lines were deleted or only moved to another place in the file.
    """
    if not note.startswith("removed "):
        return False
    lines, added = note.split("`")[1::2], [text for text, *_ in earlier]
    return bool(lines) and all(any(line in text for text in added) for line in lines)


def _ordered_notes(notes: Mapping[str, object]) -> list[str]:
    """Order the notes on one file: the longest of the newest first, because it says how the file is now."""
    newest = list(notes)[: -NEW_NOTES - 1 : -1]
    first = max(newest, key=lambda note: (not note.startswith("removed "), len(note)), default="")
    return [first, *sorted((note for note in notes if note != first), key=len, reverse=True)] if first else []


# --- what one edit changed ----------------------------------------------------------------------------------------

MAX_LINE = 110
"""Characters kept of a changed line."""

MAX_TEXT = 40_000
"""Characters of a text that are compared."""

_SIGNATURE = re.compile(
    r"(?:export |default |pub(?:\(\w+\))? |async |static |private |public |protected |abstract |final |override )*"
    r"(?:func|def|class|type|interface|struct|fn|function|enum|trait|impl|module|namespace)\b|@\w|#{1,4} \w"
)
_SAYS_LITTLE = re.compile(r"#!|//|#|/?\*|--|package \w+;?$|['\"]use |<[!?]")
"""Lines that say less than others about what a file is for or what changed in it: comments, names of packages."""

_TRIVIAL = re.compile(
    r"\W*(?:const|var|let|else|try|finally|return|break|continue|pass|end|begin|default|if err != nil"
    r"|return (?:nil|err|nil, err|None|null|true|false|undefined))?\W*"
)
"""Lines that any code has."""

MAX_TRIVIAL = 24
"""Characters of a line that may be one of them."""

_IMPORT = re.compile(r"(?:import|from|use|using|#include|require)\b|\"[\w./-]+\",?$")
_OLD = ("old_string", "old_str", "old_text", "old", "search", "find")
_NEW = ("new_string", "new_str", "new_text", "new", "replace", "replacement", "insert_text", "text_to_insert")
_WHOLE = ("content", "contents", "file_text", "text", "data", "body", "file_content", "code")
_PATCH = ("patch", "diff", "input")


class FileEdit(msgspec.Struct, frozen=True, gc=False):
    """What one call changed in a file, as far as the call shows it."""

    note: str = ""
    removed: str = ""
    """The text that an edit removed."""
    added: str = ""
    """The text that it inserted."""


def edit_of(fields: Mapping[str, Json], path: str) -> FileEdit:
    """Describe what a call wrote into a file."""
    fields = {snake_case(key): value for key, value in fields.items()}
    old, new = _first(fields, _OLD), _first(fields, _NEW)
    note = _note(fields, path, old, new)
    return FileEdit(note, (old or "")[:MAX_TEXT], (new or "")[:MAX_TEXT]) if note else FileEdit()


def _note(fields: Mapping[str, Json], path: str, old: str | None, new: str | None) -> str:
    edits = fields.get("edits")
    if isinstance(edits, list):
        tables = [{snake_case(key): value for key, value in one.items()} for one in edits if isinstance(one, dict)]
        notes = [note for one in tables if (note := _replaced(_first(one, _OLD), _first(one, _NEW)))]
        return "; ".join(notes[:3]) + (f"; {len(notes) - 3} more edits" if len(notes) > 3 else "")
    for key in _PATCH:
        value = fields.get(key)
        if isinstance(value, str) and ("*** " in value or "+++ " in value):
            return _compared(*_patched_lines(value[:MAX_TEXT], path))
    if note := _replaced(old, new):
        return note
    whole = _first(fields, _WHOLE)
    if whole is None:
        return ""
    lines = whole[:MAX_TEXT].split("\n")
    signatures = [line for line in lines if _SIGNATURE.match(line.strip())]
    shown = signatures[:6] or [line for line in _telling(lines) if not _SAYS_LITTLE.match(line)][:3]
    size = f"{len(whole.splitlines())} lines"
    return f"{size}: {', '.join(f'`{_cut(line)}`' for line in shown)}" if shown else size


_SETS_VALUE = re.compile(r"\w\W{0,3}[=:]\W*(?:[\d\"'`#\[{]|true\b|false\b)", re.IGNORECASE)
"""A line that sets a name to a literal value."""


def tells_much(note: str) -> bool:
    """Return whether a note on a change quotes a signature, a value, or what the change replaced or removed."""
    if note.startswith("removed ") or ", replacing `" in note:
        return True
    return any(_SIGNATURE.match(line) or _SETS_VALUE.search(line) for line in note.split("`")[1::2])


def _replaced(old: str | None, new: str | None) -> str:
    if old is None and new is None:
        return ""
    return _compared((old or "")[:MAX_TEXT].split("\n"), (new or "")[:MAX_TEXT].split("\n"))


def _first(fields: Mapping[str, Json], keys: tuple[str, ...]) -> str | None:
    for key in keys:
        value = fields.get(key)
        if isinstance(value, str):
            return value
    return None


def _compared(old: list[str], new: list[str]) -> str:
    """Name the most telling lines that are new, else those that are gone."""
    before, after = {line.strip() for line in old}, {line.strip() for line in new}
    added = [line for line in _telling(new) if line not in before]
    removed = sorted((line for line in _telling(old) if line not in after), key=_rank)
    if not added:
        more = f" and {len(removed) - 2} more lines" if len(removed) > 2 else ""
        return "removed " + ", ".join(f"`{_cut(line)}`" for line in removed[:2]) + more if removed else ""
    signatures = [line for line in added if _SIGNATURE.match(line)][:2]
    chosen = [*signatures, *sorted((line for line in added if line not in signatures), key=_rank)][:3]
    note = ", ".join(f"`{_cut(line)}`" for line in chosen)
    if len(added) > len(chosen):
        note += f" and {len(added) - len(chosen)} more lines"
    return f"{note}, replacing `{_cut(removed[0])}`" if removed and len(added) <= 2 else note


def _rank(line: str) -> int:
    """Order the lines of a change: signatures first, comments last."""
    return 0 if _SIGNATURE.match(line) else 2 if _SAYS_LITTLE.match(line) else 1


def _telling(lines: list[str]) -> Iterator[str]:
    """Yield the lines with content: no brackets, empty lines or imports."""
    for line in lines:
        text = line.strip()
        if len(text) > 3 and not _IMPORT.match(text) and not (len(text) < MAX_TRIVIAL and _TRIVIAL.fullmatch(text)):
            yield text


def _patched_lines(patch: str, path: str) -> tuple[list[str], list[str]]:
    """Return the lines that a patch removes from a file and those that it adds."""
    files = _patched_files(patch)
    name = path.removeprefix("./").lstrip("/")
    while name not in files and "/" in name:  # a patch may name files from a folder on
        name = name.partition("/")[2]
    return files.get(name, ([], []))


@lru_cache(maxsize=4)
def _patched_files(patch: str) -> dict[str, tuple[list[str], list[str]]]:
    """Return the lines that a patch removes and adds, by file. It is asked once for each of its files."""
    files: dict[str, tuple[list[str], list[str]]] = {}
    old, new = list[str](), list[str]()
    for line in patch.split("\n"):
        if header := _PATCHED.match(line):
            old, new = files.setdefault(header[1].rstrip().removeprefix("./").lstrip("/"), ([], []))
        elif line.startswith("-") and not line.startswith("--- "):
            old.append(line[1:])
        elif line.startswith("+"):
            new.append(line[1:])
    return files


_PATCHED = re.compile(r"(?:\*\*\* (?:Update|Add|Delete) File: |\+\+\+ (?:b/)?)([^\t\n]+)")
"""The line of a patch that names the file of the lines after it."""

_PATH_END = re.compile(r"[\s'\"`:,;()\[\]\u2018\u2019]+")


def _is_path(name: str, path: str) -> bool:
    """Return whether a text is a path, or the end of it from a folder on."""
    name = name.removeprefix("./")
    return bool(name) and f"/{path.removeprefix('./')}".endswith(f"/{name.lstrip('/')}")


def names_path(line: str, path: str) -> bool:
    """Return whether a line of an output names a path, or the end of it from a folder on."""
    return any(_is_path(name.rstrip("."), path) for name in _PATH_END.split(line)) or f"'{path}'" in line


def _cut(line: str) -> str:
    return harmless(one_line(line, MAX_LINE)).replace("`", "'")
