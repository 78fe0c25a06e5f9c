"""What a recorded session holds once it is read, and the document it is read from.

One invariant: reading never fails on a record. A line or record that cannot be used is skipped and reported with its
number, so one torn write does not cost a session.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import msgspec

from kompakt.model.messages import Json, JsonObject
from kompakt.wire.problems import Action, Problem

Kind: TypeAlias = Literal["claude-code", "codex", "gemini-cli", "opencode", "openhands", "pi", "swe-agent", "tau-bench"]

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

NOT_A_RECORD = "TF-1"
REPLACED_CHARACTERS = "TF-2"
REPEATED_RECORD = "TF-3"
UNUSABLE_RECORD = "TF-4"
MISSING_PARENT = "TF-5"
NO_HEADER = "TF-6"

RULES = {
    NOT_A_RECORD: "Every line of a transcript is one JSON object.",
    REPLACED_CHARACTERS: "Text is valid UTF-8, without half of a surrogate pair.",
    REPEATED_RECORD: "No record is written twice.",
    UNUSABLE_RECORD: "A record of a message holds that message, in the shape that the agent writes.",
    MISSING_PARENT: "The parent that a record names is in the file.",
    NO_HEADER: "The file begins with the header without which the agent does not open it.",
}
"""What a transcript file has to keep to, whatever provider its messages are for."""


ACTIONS: dict[str, Action] = {
    NOT_A_RECORD: "dropped",
    REPLACED_CHARACTERS: "replaced",
    REPEATED_RECORD: "dropped",
    UNUSABLE_RECORD: "dropped",
    MISSING_PARENT: "replaced",
}
"""What writing a transcript back does about each fault."""

_PLACE = re.compile(r"(?:messages|input)\[(\d+)\](?:\.content\[(\d+)\])?")
"""The path of a problem in an Anthropic or Responses body: which message or item, which block of it."""


class Skipped(msgspec.Struct, frozen=True):
    """A line that adds nothing to the history although it should have."""

    line: int
    reason: str
    code: str = NOT_A_RECORD


class Line(msgspec.Struct, frozen=True):
    """One record with the number of its line, counted from 1."""

    number: int
    record: JsonObject


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded file: one record a line for JSON lines, else one JSON value."""

    lines: tuple[Line, ...] = ()
    value: Json = None
    is_lines: bool = False
    skipped: tuple[Skipped, ...] = ()
    replaced: tuple[int, ...] = ()
    """Lines in which characters had to be replaced: half pairs, bytes that are not UTF-8."""

    @property
    def first(self) -> JsonObject:
        """Return what shows the shape of the file: its first record, or the first entry of that."""
        record: Json = self.lines[0].record if self.lines else self.value
        if isinstance(record, list):
            record = cast("list[Json]", record)[0] if record else None
        return cast("JsonObject", record) if isinstance(record, dict) else {}


class Origin(NamedTuple):
    """Where in the file a part of a message comes from."""

    line: int
    block: int
    """The position in the content of the record; -1 where the record is the part, or its content one text."""


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation of a file, as the request body that would continue it."""

    kind: Kind
    format: Literal["anthropic", "gemini", "openai-chat", "openai-responses"]
    body: JsonObject
    name: str = ""
    """What tells this conversation from others in the same file; empty when it is the only one."""
    ids: tuple[str | None, ...] = ()
    """The assistant id of each wire message, where the file knows it: what rounds are counted by."""
    summaries: frozenset[int] = frozenset()
    """Which wire messages are summaries that the agent made of what precedes them."""
    usages: tuple[tuple[int, JsonObject], ...] = ()
    """Assistant wire message to the usage its provider reported."""
    times: tuple[tuple[int, float], ...] = ()
    """Assistant wire message to the second at which it began, where the file says."""
    origins: tuple[tuple[Origin, ...], ...] = ()
    """Where each part of each wire message comes from, for formats that can be written back."""
    sidechains: tuple[Transcript, ...] = ()
    """Sub-agents, and branches that the user left."""
    skipped: tuple[Skipped, ...] = ()
    replaced: tuple[int, ...] = ()
    """Lines that were kept although characters in them had to be replaced."""
    faults: tuple[Problem, ...] = ()
    """What else is wrong with the file itself."""
    left_out: dict[str, int] = {}
    """How many records of which type carry no message."""
    notes: tuple[str, ...] = ()
    """What a reader of this recording should know: answers that were cut off, calls without a result."""
    records: int = 0

    @property
    def problems(self) -> list[Problem]:
        """List what is wrong with the file, whatever its messages say."""
        found = [Problem(one.code, f"line {one.line}", one.reason) for one in self.skipped]
        found += [
            Problem(REPLACED_CHARACTERS, f"line {line}", "characters that no text can hold were replaced")
            for line in self.replaced
        ]
        return [*found, *self.faults]

    def located(self, path: str) -> str:
        """Add to a path in the body the line that it comes from, where the file is known by lines."""
        found = _PLACE.match(path)
        if found is None or int(found[1]) >= len(self.origins) or not self.origins[int(found[1])]:
            return path
        origins = self.origins[int(found[1])]
        part = int(found[2] or 0)
        return f"line {origins[part if part < len(origins) else 0].line}: {path}"


# --- decoding ----------------------------------------------------------------------------------------------------


def decode(lines: Iterable[bytes | str]) -> Document:
    """Decode JSON lines; blank ones only count as lines."""
    found: list[Line] = []
    skipped: list[Skipped] = []
    replaced: list[int] = []
    for number, line in enumerate(lines, start=1):
        data = line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line
        raw = data.strip().removeprefix(BYTE_ORDER_MARK)
        if not raw:
            continue
        try:
            record, exact = decode_value(raw)
        except (ValueError, RecursionError) as error:
            skipped.append(Skipped(number, f"not JSON: {error}"))
            continue
        if not isinstance(record, dict):
            skipped.append(Skipped(number, f"not a record but a {type(record).__name__}"))
            continue
        if not exact:
            replaced.append(number)
        found.append(Line(number, cast("JsonObject", record)))
    return Document(lines=tuple(found), is_lines=True, skipped=tuple(skipped), replaced=tuple(replaced))


def decode_value(raw: bytes) -> tuple[Json, bool]:
    """Decode JSON and say whether every character came through.

    Writers that cut text by UTF-16 units leave half of a pair. No provider takes one, so it is replaced.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return msgspec.json.decode(raw), True
    except (msgspec.DecodeError, UnicodeDecodeError):
        loose = json.loads(raw.decode("utf-8", "replace"))
    text = json.dumps(loose, ensure_ascii=False, allow_nan=False)
    return msgspec.json.decode(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")), False


def encode_line(record: JsonObject) -> bytes:
    """Write a record as a line."""
    return msgspec.json.encode(record) + b"\n"


def ended(line: bytes) -> bytes:
    """Return a line with a line end, its own or a new one."""
    return line if line.endswith((b"\n", b"\r")) else line + b"\n"


# --- reading shapes that may be anything -------------------------------------------------------------------------


def objects(value: object) -> list[JsonObject]:
    """Take the objects of a list; anything else holds none."""
    entries = cast("list[Any]", value) if isinstance(value, list) else []
    return [entry for entry in entries if isinstance(entry, dict)]


def as_object(value: object) -> JsonObject:
    """Take an object; anything else is an empty one."""
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def as_text(value: object) -> str:
    """Take a text; anything else is an empty one."""
    return value if isinstance(value, str) else ""


def seconds(stamp: object) -> float | None:
    """Read a moment as recordings write it."""
    if not isinstance(stamp, str):
        return None
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return None


def open_calls(messages: Iterable[JsonObject]) -> list[str]:
    """Name the calls of Anthropic or Chat messages that nothing answers."""
    called: list[tuple[str, int]] = []
    answered: dict[str, int] = {}
    for index, message in enumerate(messages):
        calls = [call.get("id") for call in objects(message.get("tool_calls"))]
        results = [message.get("tool_call_id")] if message.get("role") == "tool" else []
        for block in objects(message.get("content")):
            calls += [block.get("id")] if block.get("type") == "tool_use" else []
            results += [block.get("tool_use_id")] if block.get("type") == "tool_result" else []
        called += [(str(call_id), index) for call_id in calls]
        for call_id in results:
            answered[str(call_id)] = answered.get(str(call_id), 0) + 1
    missing: list[str] = []
    for call_id, index in called:
        if answered.get(call_id):
            answered[call_id] -= 1
        else:
            missing.append(f"call {call_id} in message {index} has no result")
    return missing
