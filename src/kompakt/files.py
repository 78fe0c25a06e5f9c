"""Read a history from a file of any known kind, and write files atomically.

Known kinds: JSON request bodies and message lists, one message per line, and the recordings of ``wire.transcripts``. An
unreadable file raises one error that names the file and the position.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import msgspec

from kompakt.errors import UnreadableFile
from kompakt.model.json import decode_loosely, plain
from kompakt.model.messages import History, Json, JsonObject
from kompakt.wire.registry import WIRES
from kompakt.wire.transcripts import WRITERS, Document, Transcript, TranscriptLine, kind_of, opencode, read
from kompakt.wire.transcripts import decode as decode_lines
from kompakt.wire.transcripts.transcript import decode_value

SQLITE = b"SQLite format 3\0"

MAX_NAMES = 20
"""Names of sessions that an error lists."""

MAX_HEAD = 200
"""Lines checked to recognise the kind of a file."""


class Loaded(msgspec.Struct, frozen=True):
    """The content of a file."""

    name: str
    payload: Json
    """A request body, a list of messages, or a ``History`` for a transcript."""
    format: str | None = None
    transcript: Transcript | None = None
    sessions: tuple[str, ...] = ()
    """Names of all sessions if the file has more than one; ``FILE#NAME`` selects one."""
    data: bytes = b""
    """The bytes of a transcript that can be written back."""


def load(source: str | Path) -> Loaded:
    """Read a file, or standard input for ``-``; ``FILE#NAME`` selects one session of several.

    Raises:
        UnreadableFile: the file contains no history; the message names file and position.
    """
    name, session = _split(source)
    shown = "standard input" if name == "-" else name
    if name != "-" and _begins(name, SQLITE):
        one = _database(name, session) if session else None
        found = read(Document(value=one or _database(name)))
        return _chosen(shown, found, None if one else session)
    return decode(_bytes(name, shown), shown, session=session)


def load_all(source: str | Path) -> list[Transcript]:
    """Read every session of a recording; the list is empty when the file is a request body.

    Raises:
        UnreadableFile: the file cannot be read; the message names file and position.
    """
    name, _ = _split(source)
    if _begins(name, SQLITE):
        return read(Document(value=_database(name)))
    return decode_all(_bytes(name, name), name)


def decode_all(data: bytes, name: str) -> list[Transcript]:
    """Decode every session of a recording; the list is empty when the data is a request body.

    Raises:
        UnreadableFile: the data cannot be read; the message names file and position.
    """
    document = _document(data, name)
    return read(document) if kind_of(document) is not None else []


def decode(data: bytes, name: str, *, session: str | None = None) -> Loaded:
    """Decode the content of a file; errors call it ``name``, and ``session`` selects one of several.

    Raises:
        UnreadableFile: the data contains no history; the message names file and position.
    """
    document = _document(data, name)
    if kind_of(document) is not None:
        loaded = _chosen(name, read(document), session)
        return msgspec.structs.replace(loaded, data=data)
    if session is not None:
        raise UnreadableFile(f"{name}: contains one history and no sessions, so {session!r} cannot be selected")
    if not document.is_lines:
        return Loaded(name, document.value)
    messages: list[Json] = []
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            messages.append(_decode_line(line, number, name))
    return Loaded(name, messages)


def is_writable(loaded: Loaded) -> bool:
    """Return whether a file is a transcript that can be written back."""
    return loaded.transcript is not None and loaded.transcript.kind in WRITERS


def rewrite(loaded: Loaded, body: Json, *, compacted: bool = False) -> bytes:
    """Return the bytes of a transcript that match its repaired or compacted body.

    Raises:
        UnreadableFile: the file is not a transcript, or one of a kind that is only read.
    """
    transcript = loaded.transcript
    if transcript is None or transcript.kind not in WRITERS:
        raise UnreadableFile(
            f"{loaded.name}: not a transcript that can be written back; write the request body instead"
        )
    raw = loaded.data.removeprefix(b"\xef\xbb\xbf").splitlines(keepends=True)
    writer = WRITERS[transcript.kind]
    write = writer.write_compacted if compacted else writer.write
    return write(raw, decode_lines(raw), transcript, cast("JsonObject", body))


def _split(source: str | Path) -> tuple[str, str | None]:
    """Split the session name off a path; an existing file with ``#`` in its name takes precedence."""
    name, separator, session = str(source).rpartition("#")
    if not separator or not session or not name or Path(str(source)).exists():
        return str(source), None
    return name, session


def _chosen(name: str, found: list[Transcript], session: str | None) -> Loaded:
    """Select a session by name or number; by default the first one."""
    names = [one.name for one in found]
    if session is None:
        index = 0
    elif session in names:
        index = names.index(session)
    elif session in (numbers := [str(number) for number in range(1, len(found) + 1)]):
        index = numbers.index(session)
    else:
        some = ", ".join(names[:MAX_NAMES]) + (" …" if len(names) > MAX_NAMES else "")
        listed = f"the file has {len(names)}: {some}" if len(names) > 1 else "the file has one session without a name"
        raise UnreadableFile(f"{name}: no session {session!r}; {listed}")
    chosen = found[index]
    return Loaded(name, history(chosen), chosen.format, chosen, tuple(names) if len(names) > 1 else ())


_JSON_START = re.compile(rb'\s*(?:[{\["\d-]|true|false|null|NaN|Infinity)')


def _document(data: bytes, name: str) -> Document:
    """Decode a file into lines or one value."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not data.strip():
        raise UnreadableFile(f"{name}: the file is empty")
    if b"\0" in data[:4096].partition(b"\n")[0] or data[:4] in (b"\x89PNG", b"%PDF"):
        at = max(data.find(b"\0"), 0)
        raise UnreadableFile(f"{name}: byte {at}: a binary file or not UTF-8; expected JSON")
    if not _JSON_START.match(data):
        raise UnreadableFile(f"{name}: not JSON; expected a request body, a list of messages or a transcript")
    if _is_lines(data):
        if kind_of(decode_lines(_head(data, MAX_HEAD))) is not None:
            return decode_lines(data.splitlines())
        return Document(is_lines=True)
    value, exact = _decode(data, name)
    document = Document(value=value, replaced=() if exact else (1,))
    if kind_of(document) is None and isinstance(value, dict):  # a transcript of one record
        single = Document(
            lines=(TranscriptLine(1, cast("JsonObject", value)),), is_lines=True, replaced=document.replaced
        )
        return single if kind_of(single) is not None else document
    return document


def _begins(name: str, magic: bytes) -> bool:
    try:
        with Path(name).open("rb") as file:
            return file.read(len(magic)) == magic
    except (OSError, ValueError):  # reading the file reports the error
        return False


def opencode_session(path: str, session: str) -> JsonObject | None:
    """Read one session of an opencode database in the shape of ``opencode export``; ``None`` if it is not there.

    Raises:
        UnreadableFile: the file is not a database of opencode.
    """
    found = cast("list[JsonObject]", _database(path, session))
    return found[0] if found else None


def _database(name: str, session: str | None = None) -> Json:
    """Read all sessions of an opencode database, or one."""
    import sqlite3  # late: only this kind of file needs it

    try:
        with closing(sqlite3.connect(f"{Path(name).resolve().as_uri()}?mode=ro", uri=True)) as connection:
            rows = opencode.rows(connection, session)
    except sqlite3.Error as error:
        raise UnreadableFile(f"{name}: {error}") from None
    if rows is None:
        raise UnreadableFile(
            f"{name}: a SQLite database, but not of opencode; open a store of kompakt as sqlite:///{name}"
        )
    return rows


def _bytes(source: str, name: str) -> bytes:
    try:
        if source == "-":
            return sys.stdin.buffer.read()
        return Path(source).read_bytes()
    except IsADirectoryError:
        raise UnreadableFile(f"{name}: is a directory; name a file in it") from None
    except OSError as error:
        raise UnreadableFile(f"{name}: {error.strerror or error}") from None
    except ValueError as error:  # an invalid path, such as one with a NUL byte
        raise UnreadableFile(f"{name!r}: {error}") from None


def _decode(data: bytes, name: str) -> tuple[Json, bool]:
    """Decode one JSON value and return whether all characters were valid; only recordings may have others."""
    try:
        value, exact = decode_value(data)
        if exact or kind_of(Document(value=value)) is not None:
            return value, exact
    except (ValueError, RecursionError):  # reported below with its position
        pass
    try:
        return _decoded(data), True
    except RecursionError:
        raise UnreadableFile(f"{name}: nested too deeply to be a provider's request") from None
    except ValueError as error:
        raise UnreadableFile(f"{name}: {_position(data, str(error))}") from None


def _decoded(data: bytes) -> Json:
    """Decode JSON; lone surrogates stay, so that ``check`` reports them.

    Raises:
        ValueError: the data is not JSON.
        RecursionError: the data is nested too deeply.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        try:
            return decode_loosely(data)
        except ValueError:
            raise error from None


def _position(data: bytes, reason: str) -> str:
    """Return the line and column where JSON is invalid."""
    found = re.search(r"\(byte (\d+)\)", reason)
    if found:
        return f"{_line_and_column(data, int(found[1]))}: {reason}"
    try:
        json.loads(data)
    except json.JSONDecodeError as error:
        is_open = error.msg.startswith("Unterminated string")
        problem = "the file ends inside a string (truncated?)" if is_open else error.msg
        return f"line {error.lineno} column {error.colno}: {problem}"
    except UnicodeDecodeError as error:
        return f"{_line_and_column(data, error.start)}: not UTF-8"
    except (ValueError, RecursionError):
        return reason
    return reason


def _line_and_column(data: bytes, at: int) -> str:
    number = data.count(b"\n", 0, at) + 1
    line_start = data.rfind(b"\n", 0, at) + 1
    return f"line {number} column {at - line_start + 1}"


# --- one record per line -------------------------------------------------------------------------------------------


def _is_lines(data: bytes) -> bool:
    """Return whether the first line is a complete JSON object and another follows."""
    first, _, rest = data.lstrip().partition(b"\n")
    if not rest.strip() or not first.startswith(b"{"):
        return False
    if not _whole(first):
        return rest.lstrip().startswith(b"{") and _whole(rest.lstrip().partition(b"\n")[0])
    return rest.lstrip().startswith(b"{") or not _whole(data)


def _whole(data: bytes) -> bool:
    """Return whether the data is one JSON value; invalid characters are allowed."""
    try:
        decode_value(data)
    except (ValueError, RecursionError):
        return False
    return True


def _head(data: bytes, lines: int) -> Iterator[bytes]:
    start = 0
    for _ in range(lines):
        end = data.find(b"\n", start)
        if end < 0:
            yield data[start:]
            return
        yield data[start:end]
        start = end + 1


def _decode_line(line: bytes, number: int, name: str) -> Json:
    try:
        return _decoded(line)
    except (ValueError, RecursionError) as error:
        raise UnreadableFile(f"{name}: line {number}: {error}") from None


# --- write -------------------------------------------------------------------------------------------------------


def write(path: str | Path, data: bytes) -> None:
    """Write a file atomically; ``-`` is standard output.

    Links are followed, an existing file keeps its mode, and pipes or devices are written directly.

    Raises:
        UnreadableFile: the path cannot be written.
    """
    if str(path) == "-":
        sys.stdout.buffer.write(data)
        return
    try:
        target = Path(path).resolve()
        if target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            _replace(target, data)
    except OSError as error:
        raise UnreadableFile(f"{path}: {error.strerror or error}") from None


def _replace(target: Path, data: bytes) -> None:
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    mode = target.stat().st_mode & 0o777 if target.exists() else None
    # The copy of a private file is private from the start; a new file gets the mode that the umask allows.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            if mode is not None:
                temporary.chmod(mode)
            file.write(data)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def history(transcript: Transcript) -> History:
    """Parse the request body of a transcript; messages keep ids and flags that a request does not have.

    Raises:
        InputError: the body is nested too deeply.
    """
    wire = WIRES[transcript.format]
    body = plain(transcript.body, "transcript").value
    parsed = wire.parse(body[wire.messages_key], body)
    return parsed.with_messages(
        msgspec.structs.replace(message, id=transcript.ids[i], is_summary=i in transcript.summaries)
        for i, message in enumerate(parsed)
    )
