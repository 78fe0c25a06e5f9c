"""Read a history from a file, whatever kind of file it is, and write one without ever leaving half of it.

JSON request bodies and message lists, Claude Code and Codex transcripts, one message a line. What cannot be read
is refused in one line that names the file and the position.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kompakt.errors import UnreadableFile
from kompakt.model.messages import History, Json
from kompakt.wire.formats import WIRES
from kompakt.wire.transcripts import Transcript, is_transcript, read

_LONE_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]")


class Loaded(msgspec.Struct, frozen=True):
    """What a file held."""

    name: str
    payload: Json
    """A request body, a list of messages, or a ``History`` for a transcript."""
    format: str | None = None
    transcript: Transcript | None = None


def load(source: str | Path) -> Loaded:
    """Read a file, or standard input for ``-``.

    Raises:
        UnreadableFile: it holds no history; the text names file and position.
    """
    name = "standard input" if str(source) == "-" else str(source)
    return decode(_bytes(source, name), name)


def decode(data: bytes, name: str) -> Loaded:
    """Read what a file holds; ``name`` is what errors call it.

    Raises:
        UnreadableFile: it holds no history; the text names file and position.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not data.strip():
        raise UnreadableFile(f"{name}: the file is empty")
    if b"\0" in data[:4096] or data[:4] in (b"\x89PNG", b"%PDF"):
        at = max(data.find(b"\0"), 0)
        raise UnreadableFile(f"{name}: byte {at}: a binary file (or not UTF-8), no JSON")
    if _is_lines(data):
        return _load_lines(data, name)
    return Loaded(name, _decode(data, name))


def _bytes(source: str | Path, name: str) -> bytes:
    try:
        if str(source) == "-":
            return sys.stdin.buffer.read()
        return Path(source).read_bytes()
    except IsADirectoryError:
        raise UnreadableFile(f"{name}: is a directory; name a file in it") from None
    except OSError as error:
        raise UnreadableFile(f"{name}: {error.strerror or error}") from None
    except ValueError as error:  # a path that no file can have, such as one with a NUL in it
        raise UnreadableFile(f"{name!r}: {error}") from None


def _decode(data: bytes, name: str) -> Json:
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise UnreadableFile(f"{name}: nested too deeply to be a provider's request") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableFile(f"{name}: {_position(data, str(error))}") from None


def _position(data: bytes, reason: str) -> str:
    """Say where JSON goes wrong, in lines and columns."""
    found = re.search(r"\(byte (\d+)\)", reason)
    if found:
        return f"{_line_and_column(data, int(found[1]))}: {reason}"
    try:
        json.loads(data)
    except json.JSONDecodeError as error:
        return f"line {error.lineno} column {error.colno}: {error.msg}"
    except UnicodeDecodeError as error:
        return f"{_line_and_column(data, error.start)}: not UTF-8"
    except (ValueError, RecursionError):
        return reason
    lone = _LONE_SURROGATE.search(data)
    if lone:
        return f"{_line_and_column(data, lone.start())}: half of a surrogate pair, which is no character"
    return reason


def _line_and_column(data: bytes, at: int) -> str:
    number = data.count(b"\n", 0, at) + 1
    line_start = data.rfind(b"\n", 0, at) + 1
    return f"line {number} column {at - line_start + 1}"


# --- one record a line -------------------------------------------------------------------------------------------


def _is_lines(data: bytes) -> bool:
    """Tell whether the first line is a whole JSON object and another follows."""
    first, _, rest = data.lstrip().partition(b"\n")
    if not rest.strip() or not first.startswith(b"{"):
        return False
    try:
        msgspec.json.decode(first, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return rest.lstrip().startswith(b"{") and _whole(rest.lstrip().partition(b"\n")[0])
    return rest.lstrip().startswith(b"{") or not _whole(data)


def _whole(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _load_lines(data: bytes, name: str) -> Loaded:
    records = _records(data)
    if is_transcript(records[:200]) is not None:
        transcript = read(data.splitlines())
        return Loaded(name, history(transcript), transcript.format, transcript)
    messages: list[Json] = []
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            messages.append(_decode_line(line, number, name))
    return Loaded(name, messages)


def _records(data: bytes) -> list[object]:
    """Decode the first lines leniently, to see what kind of file this is."""
    found: list[object] = []
    for line in _head(data, 200):
        try:
            found.append(msgspec.json.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return found


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
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableFile(f"{name}: line {number}: {error}") from None


# --- write -------------------------------------------------------------------------------------------------------


def encode(value: Json) -> bytes:
    """Write JSON for people to read, with a line end."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def write(path: str | Path, data: bytes) -> None:
    """Put data into a file: all of it or none, whatever interrupts; ``-`` is standard output.

    A link is followed, an existing file keeps its mode, and what is no file (a pipe, a device) is written to as it is.

    Raises:
        UnreadableFile: the place cannot be written to.
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
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        if mode is not None:
            temporary.chmod(mode)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def history(transcript: Transcript) -> History:
    """Parse a transcript's request body; messages keep the ids and flags that no request carries."""
    wire = WIRES[transcript.format]
    parsed = wire.parse(transcript.body[wire.messages_key], transcript.body)
    return parsed.with_messages(
        msgspec.structs.replace(message, id=transcript.ids[i], is_summary=i in transcript.summaries)
        for i, message in enumerate(parsed)
    )
