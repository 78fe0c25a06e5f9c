"""What a call changed in a file, in a few words: new signatures and lines, and what they replace."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from kompakt.engine.ledger.excerpts import harmless, one_line
from kompakt.engine.ledger.extract.tool_calls import snake_case
from kompakt.model.messages import Json

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
    old: list[str] = []
    new: list[str] = []
    is_here = False
    for line in patch.split("\n"):
        if line.startswith(("*** ", "+++ ", "--- ", "diff ")):
            is_here = path in line or (is_here and not line.startswith(("*** Update", "*** Add", "*** Delete", "+++ ")))
        elif is_here and line.startswith("-"):
            old.append(line[1:])
        elif is_here and line.startswith("+"):
            new.append(line[1:])
    return old, new


def _cut(line: str) -> str:
    return harmless(one_line(line, MAX_LINE)).replace("`", "'")
