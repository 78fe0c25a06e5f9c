"""The values and helpers that the readers and writers of session files share.

Invariant: reading never fails on a record. A line or record that cannot be used is skipped and reported with its
number, so one torn write does not lose a session.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias, cast

import msgspec

from kompakt.model.json import as_objects
from kompakt.model.messages import Json, JsonObject
from kompakt.wire.wire import Action, Problem

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
"""The rules of a transcript file, whatever provider its messages are for."""

ACTIONS: dict[str, Action] = {
    NOT_A_RECORD: "dropped",
    REPLACED_CHARACTERS: "replaced",
    REPEATED_RECORD: "dropped",
    UNUSABLE_RECORD: "dropped",
    MISSING_PARENT: "replaced",
}
"""What writing a transcript back does about each fault."""

_PLACE = re.compile(r"(?:messages|input)\[(\d+)\](?:\.content\[(\d+)\])?")
"""The message and block index in the path of a problem of an Anthropic or Responses body."""


class Skipped(msgspec.Struct, frozen=True):
    """A line that should be part of the history but cannot be used."""

    line: int
    reason: str
    code: str = NOT_A_RECORD


class TranscriptLine(msgspec.Struct, frozen=True):
    """A record and its line number, from 1."""

    number: int
    record: JsonObject


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded file: one record per line for JSON lines, otherwise one JSON value."""

    lines: tuple[TranscriptLine, ...] = ()
    value: Json = None
    is_lines: bool = False
    skipped: tuple[Skipped, ...] = ()
    replaced: tuple[int, ...] = ()
    """Lines with replaced characters: lone surrogates, bytes that are not UTF-8."""

    @property
    def first(self) -> JsonObject:
        """Return the first record, or its first entry if it is a list; it shows the shape of the file."""
        record: Json = self.lines[0].record if self.lines else self.value
        if isinstance(record, list):
            record = cast("list[Json]", record)[0] if record else None
        return cast("JsonObject", record) if isinstance(record, dict) else {}


class Origin(NamedTuple):
    """The line that a part of a message comes from."""

    line: int
    block: int
    """The index in the content of the record; -1 where the record is the part, or its content is a string."""


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation of a file, as a request body that would continue it."""

    kind: Kind
    format: Literal["anthropic", "gemini", "openai-chat", "openai-responses"]
    body: JsonObject
    name: str = ""
    """The name of this conversation within its file; empty when it is the only one."""
    ids: tuple[str | None, ...] = ()
    """The assistant id of each wire message where the file has it; rounds are counted by it."""
    summaries: frozenset[int] = frozenset()
    """Wire messages that are summaries which the agent made of earlier messages."""
    usages: tuple[tuple[int, JsonObject], ...] = ()
    """Index of an assistant message, and the usage that its provider reported."""
    times: tuple[tuple[int, float], ...] = ()
    """Index of an assistant message, and its start time in seconds where the file has it."""
    origins: tuple[tuple[Origin, ...], ...] = ()
    """The origin of each part of each wire message, for formats that can be written back."""
    sidechains: tuple[Transcript, ...] = ()
    """Sub-agents, and branches that the user abandoned."""
    skipped: tuple[Skipped, ...] = ()
    replaced: tuple[int, ...] = ()
    """Lines with replaced characters."""
    faults: tuple[Problem, ...] = ()
    """Other problems of the file itself."""
    left_out: dict[str, int] = {}
    """Number of records without a message, by type."""
    notes: tuple[str, ...] = ()
    """Remarks for a reader: truncated answers, calls without a result."""
    records: int = 0

    @property
    def problems(self) -> list[Problem]:
        """List the problems of the file itself."""
        found = [Problem(one.code, f"line {one.line}", one.reason) for one in self.skipped]
        found += [
            Problem(REPLACED_CHARACTERS, f"line {line}", "invalid characters were replaced") for line in self.replaced
        ]
        return [*found, *self.faults]

    def with_problems(self, found: Iterable[Problem]) -> list[Problem]:
        """Return the problems of the file and those of its history, each with the line that it comes from."""
        located = (Problem(one.code, self.located(one.path), one.message, one.repairable) for one in found)
        return [*self.problems, *located]

    def located(self, path: str) -> str:
        """Prefix a path in the body with the line that it comes from, where the file has lines."""
        found = _PLACE.match(path)
        if found is None or int(found[1]) >= len(self.origins) or not self.origins[int(found[1])]:
            return path
        origins = self.origins[int(found[1])]
        part = int(found[2] or 0)
        return f"line {origins[part if part < len(origins) else 0].line}: {path}"


# --- decoding ----------------------------------------------------------------------------------------------------


def decode(lines: Iterable[bytes | str]) -> Document:
    """Decode JSON lines; blank lines only count."""
    found: list[TranscriptLine] = []
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
            skipped.append(Skipped(number, f"expected a JSON object, got {type(record).__name__}"))
            continue
        if not exact:
            replaced.append(number)
        found.append(TranscriptLine(number, cast("JsonObject", record)))
    return Document(lines=tuple(found), is_lines=True, skipped=tuple(skipped), replaced=tuple(replaced))


def decode_value(raw: bytes) -> tuple[Json, bool]:
    """Decode JSON and return whether all characters were valid.

    Programs that cut text by UTF-16 units leave lone surrogates. No provider accepts them, so they are replaced.

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
    """Return a line with its line end, or with a new one."""
    return line if line.endswith((b"\n", b"\r")) else line + b"\n"


# --- values of unknown shape -------------------------------------------------------------------------------------


def seconds(stamp: object) -> float | None:
    """Return an ISO 8601 time in seconds since the epoch; ``None`` for any other value."""
    if not isinstance(stamp, str):
        return None
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return None


def open_calls(messages: Iterable[JsonObject]) -> list[str]:
    """Describe the calls of Anthropic or Chat messages that have no result."""
    called: list[tuple[str, int]] = []
    answered: dict[str, int] = {}
    for index, message in enumerate(messages):
        calls = [call.get("id") for call in as_objects(message.get("tool_calls"))]
        results = [message.get("tool_call_id")] if message.get("role") == "tool" else []
        for block in as_objects(message.get("content")):
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


# --- building and editing ----------------------------------------------------------------------------------------


class ChatBuilder:
    """Builds Chat Completions messages from recordings that are not in any provider's format.

    Results directly follow the message with their calls. Other messages wait until the last result has arrived or the
    model writes again.
    """

    def __init__(self) -> None:
        self.messages: list[JsonObject] = []
        self.usages: list[tuple[int, JsonObject]] = []
        self.times: list[tuple[int, float]] = []
        self.summaries: set[int] = set()
        self._open: list[str] = []
        self._waiting: list[JsonObject] = []

    def add(self, role: str, content: Json) -> None:
        """Add a message without calls."""
        message: JsonObject = {"role": role, "content": content}
        if role == "assistant":
            self._flush()
        (self._waiting if self._open else self.messages).append(message)

    def add_summary(self, role: str, content: str) -> None:
        """Add a summary that the agent made of the messages before it."""
        self._flush()
        self.summaries.add(len(self.messages))
        self.messages.append({"role": role, "content": content})

    def add_calls(self, message: JsonObject, *, usage: JsonObject | None = None, time: float | None = None) -> None:
        """Add an assistant message with calls."""
        self._flush()
        self.messages.append(message)
        self._open = [str(call.get("id")) for call in as_objects(message.get("tool_calls"))]
        if usage is not None:
            self.usages.append((len(self.messages) - 1, usage))
        if time is not None:
            self.times.append((len(self.messages) - 1, time))

    def is_waiting(self, message: JsonObject) -> bool:
        """Return whether a message is the newest one and has no result yet, so that a call can be added to it."""
        return bool(self.messages) and self.messages[-1] is message

    def expect(self, call_id: str) -> None:
        """Expect the result of a call that was added to the newest message."""
        self._open.append(call_id)

    def add_result(self, call_id: str, content: Json) -> None:
        """Add the result of a call."""
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
        if call_id in self._open:
            self._open.remove(call_id)
        if not self._open:
            self._flush()

    def finish(self) -> list[JsonObject]:
        """Return all messages."""
        self._flush()
        return self.messages

    def _flush(self) -> None:
        """Append the messages that waited for the last result."""
        self.messages.extend(self._waiting)
        self._waiting = []
        self._open = []


_CALL_TYPES = ("tool_use", "function_call", "custom_tool_call", "local_shell_call")
_CONTENT_KEYS = ("text", "thinking", "data", "content", "output", "summary", "encrypted_content", "input", "arguments")
_ID_KEYS = ("id", "call_id", "tool_use_id")


def match_parts(before: Sequence[JsonObject], after: Sequence[JsonObject]) -> list[int | None]:
    """Return for each part after a repair the index of the part it came from; ``None`` for a new part.

    Parts that the repair left alone are the same objects. Others are matched by content, by id, or by position.
    """
    found: list[int | None] = [None] * len(after)
    taken: set[int] = set()
    places = {id(part): index for index, part in enumerate(before)}
    for index, part in enumerate(after):
        place = places.get(id(part))
        if place is not None and place not in taken:
            found[index] = place
            taken.add(place)
    for keys in (_encoded, _content_of, _ids_of):
        waiting: defaultdict[Hashable, deque[int]] = defaultdict(deque)
        for place, part in enumerate(before):
            if place not in taken and (key := keys(part)) is not None:
                waiting[key].append(place)
        for index, part in enumerate(after):
            if found[index] is None and (key := keys(part)) is not None and waiting[key]:
                place = waiting[key].popleft()
                found[index] = place
                taken.add(place)
    _match_by_position(before, after, found, taken)
    return found


def match_kept(before: Sequence[tuple[str, JsonObject]], after: Sequence[tuple[str, JsonObject]]) -> list[int | None]:
    """Return for each part after a compaction the index of the original part; ``None`` for a part that it wrote.

    Parts come with the role of their message, because a record has one role. A shortened result is matched by its id.
    Of equal parts the newest ones are matched, because a compaction keeps the end of a history.
    """
    found: list[int | None] = [None] * len(after)
    taken: set[int] = set()
    for keys in (_encoded, _call_of, _content_of):
        waiting: defaultdict[Hashable, list[int]] = defaultdict(list)
        for place, (role, part) in enumerate(before):
            if place not in taken and (key := keys(part)) is not None:
                waiting[role, key].append(place)
        for index in reversed(range(len(after))):
            role, part = after[index]
            if found[index] is None and (key := keys(part)) is not None and waiting.get((role, key)):
                place = waiting[role, key].pop()
                found[index] = place
                taken.add(place)
    return found


def _call_of(part: JsonObject) -> Hashable:
    """Return the type and call id of a call or result."""
    name = (
        part.get("call_id") or part.get("tool_use_id") or (part.get("id") if part.get("type") == "tool_use" else None)
    )
    return (part.get("type"), name) if isinstance(name, str) else None


def _encoded(part: JsonObject) -> Hashable:
    return msgspec.json.encode(part, order="sorted")


def _content_of(part: JsonObject) -> Hashable:
    """Return the type and content of a part; a call with a changed id has the same."""
    content = {key: part[key] for key in _CONTENT_KEYS if part.get(key)}
    return (part.get("type"), part.get("name"), msgspec.json.encode(content, order="sorted")) if content else None


def _ids_of(part: JsonObject) -> Hashable:
    """Return the type and ids of a part; a result with changed content has the same."""
    ids = tuple(str(part[key]) for key in _ID_KEYS if isinstance(part.get(key), str))
    return (part.get("type"), ids) if ids else None


def _match_by_position(
    before: Sequence[JsonObject], after: Sequence[JsonObject], found: list[int | None], taken: set[int]
) -> None:
    """Match the remaining parts between the same neighbours; a part may have got another type."""
    limits: list[int] = []
    limit = len(before)
    for place in reversed(found):
        limits.append(limit)
        limit = place if place is not None else limit
    limits.reverse()
    lower = -1
    for index, part in enumerate(after):
        place = found[index]
        if place is not None:
            lower = place
            continue
        if part.get("type") in _CALL_TYPES or any(part.get(key) for key in ("tool_use_id", "call_id")):
            continue  # a call or result without a match is new
        free = [place for place in range(lower + 1, limits[index]) if place not in taken]
        same = [place for place in free if before[place].get("type") == part.get("type")]
        if same or free:
            place = (same or free)[0]
            found[index] = place
            taken.add(place)
            lower = place
