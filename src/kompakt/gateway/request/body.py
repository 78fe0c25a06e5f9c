"""Parse a request body into fields and message items without decoding the messages.

Bodies are large and repeat most of the previous request, so only the position of each item is recorded. Items that are
not replaced are forwarded byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from kompakt.errors import InputError
from kompakt.gateway.outcomes import Untouched
from kompakt.model.json import MAX_DEPTH, MAX_DIGITS, decode, plain
from kompakt.model.messages import Json, JsonObject, Media, Message, ToolResult
from kompakt.wire.registry import WIRES

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_NAME = msgspec.json.Encoder()
_FIELD = re.compile(rb'\s*("(?:[^"\\]|\\.)*")\s*:\s*')
_GAP = re.compile(rb"[\s,]*")

_PROVIDER_HISTORY: dict[str, Untouched] = {
    "previous_response_id": "provider-history",
    "conversation": "provider-history",
    "cachedContent": "provider-cache",
    "cached_content": "provider-cache",
}
"""Fields that refer to history outside the request, which the gateway cannot compact."""

ANTHROPIC_COMPACTS_AT = 150_000
"""Input tokens at which the ``compact_20260112`` edit starts when it names no trigger."""

_STRIDE = MAX_DIGITS // 2
"""Distance between the positions checked for digits. A number over the limit covers at least one whole stride."""


def _compacts_at(edit: Json) -> int | None:
    """Return the input tokens at which an edit compacts history; ``None`` for other edits."""
    if not isinstance(edit, dict):
        return None
    edit = cast("JsonObject", edit)
    kind = edit.get("type")
    if kind == "compaction":  # OpenAI Responses
        at = edit.get("compact_threshold")
        return at if isinstance(at, int) else 0
    if isinstance(kind, str) and kind.startswith("compact_"):
        trigger = edit.get("trigger")
        at = cast("JsonObject", trigger).get("value") if isinstance(trigger, dict) else None
        return at if isinstance(at, int) else ANTHROPIC_COMPACTS_AT
    return None


class InvalidJson(InputError):
    """A body that is not valid JSON for any provider."""


class TooManyMessages(InputError):
    """A request with more messages than the limit."""

    def __init__(self, found: int, limit: int) -> None:
        self.found, self.limit = found, limit
        super().__init__(f"the request has {found:,} messages; the limit is {limit:,}")


class RequestBody(msgspec.Struct):
    """A request with a history that can be compacted."""

    format: str
    body: bytes
    before: dict[str, bytes]
    """The raw fields before the messages."""
    after: dict[str, bytes]
    """The raw fields after the messages."""
    spans: list[tuple[int, int]]
    """Start and end of each item in the body."""
    named: str | None = None
    """The model from the URL, for providers whose body does not name it."""

    @property
    def key(self) -> str:
        """The field that holds the messages."""
        return WIRES[self.format].messages_key

    def field(self, name: str) -> Any:
        """Decode a field other than the messages; ``None`` when it is missing."""
        raw = self.before.get(name, self.after.get(name))
        return None if raw is None else decode(raw)

    @property
    def model(self) -> str | None:
        name = self.named or self.field("model")
        return name if isinstance(name, str) else None

    @property
    def provider_history(self) -> Untouched | None:
        """Why part of the history is at the provider; ``None`` when the request holds all of it."""
        return next(
            (reason for name, reason in _PROVIDER_HISTORY.items() if self.field(name) not in (None, False)), None
        )

    @property
    def provider_compacts_at(self) -> int | None:
        """Input tokens at which the provider compacts this history itself; ``None`` when it never does.

        ``clear_thinking_*`` and ``clear_tool_uses_*`` are not compactions: the first removes no messages, the second
        only tool results (see ``anthropic.cleared_tokens``).
        """
        if self.format == "anthropic" and self.field("compaction"):
            return 0
        context = self.field("context_management")
        edits: Json = cast("JsonObject", context).get("edits") if isinstance(context, dict) else context
        starts = [_compacts_at(edit) for edit in cast("list[Json]", edits)] if isinstance(edits, list) else []
        return min((at for at in starts if at is not None), default=None)

    @property
    def output(self) -> int | None:
        """Output tokens that the request asks for."""
        return WIRES[self.format].stated_output(self.field)

    def item(self, index: int) -> bytes:
        start, end = self.spans[index]
        return self.body[start:end]

    def items(self, start: int = 0) -> list[bytes]:
        return [self.body[first:end] for first, end in self.spans[start:]]

    def envelope(self) -> JsonObject:
        """Decode the request without its messages."""
        fields = {name: decode(raw) for name, raw in (*self.before.items(), *self.after.items())}
        return {**fields, self.key: []}

    def envelope_raw(self) -> bytes:
        """Return the raw fields other than the messages, as a cache key."""
        return b"\0".join([*self.before.values(), b"", *self.after.values()])

    def with_items(self, items: Sequence[bytes]) -> bytes:
        """Return the body with other items and all other fields unchanged."""
        fields = [*self.before.items(), (self.key, b"[" + b",".join(items) + b"]"), *self.after.items()]
        return b"{" + b",".join(_NAME.encode(name) + b":" + raw for name, raw in fields) + b"}"


def read(body: bytes, format: str, *, named: str | None = None, limit: int | None = None) -> RequestBody | None:
    """Parse a body; ``None`` when it has no list of messages.

    Raises:
        InvalidJson: the body is not a JSON object, is nested too deeply, or has an integer that is too long.
        TooManyMessages: there are more messages than ``limit``.
    """
    fields = _fields(body)
    key = WIRES[format].messages_key
    raw = fields.get(key)
    _check((bytes(value) for name, value in fields.items() if name != key), levels=1)
    if raw is None:
        return None
    try:
        listed = _ARRAY.decode(raw)
    except msgspec.MsgspecError:
        return None
    _check_number(len(listed), limit)
    _check(map(bytes, listed), levels=2)
    spans = _spans(body, fields, key, listed)
    if not spans:
        return None
    names = list(fields)
    at = names.index(key)
    before = {name: bytes(fields[name]) for name in names[:at]}
    return RequestBody(format, body, before, {name: bytes(fields[name]) for name in names[at + 1 :]}, spans, named)


def read_continuation(body: bytes, earlier: RequestBody, *, items: int, limit: int | None = None) -> RequestBody | None:
    """Parse a body that starts with the first ``items`` items of an earlier one; only the rest is read.

    Returns ``None`` when the rest is not the end of a valid request.

    Raises:
        TooManyMessages: there are more messages than ``limit``.
    """
    end = earlier.spans[items - 1][1]
    rest = body[end:]
    opening, skipped = rest.lstrip(b" \t\r\n"), len(rest) - len(rest.lstrip(b" \t\r\n"))
    ahead = {b",": (b'{"":[', 1), b"]": (b'{"":[', 0)}.get(opening[:1])
    if ahead is None:
        return None
    glued = ahead[0] + opening[ahead[1] :]
    try:
        fields = _fields(glued)
        raw = fields.pop("")
        listed = _ARRAY.decode(raw)
        _check(map(bytes, fields.values()), levels=1)
        _check(map(bytes, listed), levels=2)
    except (InputError, KeyError, msgspec.MsgspecError):
        return None
    if earlier.key in fields or fields.keys() & earlier.before.keys() or (ahead[1] and not listed):
        return None
    _check_number(items + len(listed), limit)
    shift = end + skipped + ahead[1] - len(ahead[0])
    spans = [(start + shift, stop + shift) for start, stop in _walk(glued, len(ahead[0]), listed)]
    after = {name: bytes(value) for name, value in fields.items()}
    return RequestBody(earlier.format, body, earlier.before, after, [*earlier.spans[:items], *spans], earlier.named)


def _check_number(found: int, limit: int | None) -> None:
    if limit is not None and found > limit:
        raise TooManyMessages(found, limit)


def _fields(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _OBJECT.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidJson("the body is not a JSON object") from None


def _check(values: Iterable[bytes], *, levels: int) -> None:
    """Reject JSON that exceeds kompakt's limits; ``levels`` is the nesting depth of the values in the body.

    Only values with many brackets or a long run of digits are decoded, since both also occur in ordinary text.

    Raises:
        InvalidJson: a value is nested too deeply or has an integer that is too long.
    """
    for raw in values:
        is_deep = raw.count(b"[") + raw.count(b"{") > MAX_DEPTH - levels
        is_long = len(raw) > MAX_DIGITS
        if not is_deep and not (is_long and any(raw[i : i + _STRIDE].isdigit() for i in range(0, len(raw), _STRIDE))):
            continue
        try:
            value: Json = decode(raw)
            for _ in range(levels):
                value = [value]
            plain(value)
        except (InputError, ValueError, RecursionError):
            raise InvalidJson(
                f"the body is nested more than {MAX_DEPTH} levels deep or has an integer with more than "
                f"{MAX_DIGITS:,} digits"
            ) from None


def _spans(
    body: bytes, fields: Mapping[str, msgspec.Raw], key: str, listed: Sequence[msgspec.Raw]
) -> list[tuple[int, int]]:
    """Find the positions of a field's items; none when the field occurs twice and its values are ambiguous."""
    if not listed:
        return []
    at = _value_start(body, fields, key)
    if at is None:  # a field occurs twice
        array = bytes(fields[key])
        at = body.find(array)
        if body.find(array, at + 1) >= 0:
            return []
    return _walk(body, at + 1, listed)


def _value_start(body: bytes, fields: Mapping[str, msgspec.Raw], key: str) -> int | None:
    """Find the start of a field's value from the lengths of the fields before it; ``None`` when a field occurs twice.

    Searching for a long value would be slow.
    """
    at, place = body.index(b"{") + 1, None
    for name, raw in fields.items():
        found = _FIELD.match(body, at)
        if found is None or decode(found[1]) != name:
            return None
        place = found.end() if name == key else place
        at = found.end() + len(memoryview(raw))
        gap = _GAP.match(body, at)
        at = gap.end() if gap is not None else at
    return place if body[at:].strip() == b"}" else None


def _walk(body: bytes, at: int, listed: Sequence[msgspec.Raw]) -> list[tuple[int, int]]:
    """Find the positions of consecutive items, which only commas and whitespace separate."""
    spans: list[tuple[int, int]] = []
    for one in listed:
        gap = _GAP.match(body, at)
        start = gap.end() if gap is not None else at
        at = start + len(memoryview(one))
        spans.append((start, at))
    return spans


# --- Items ---


def decode_item(raw: bytes) -> Json:
    """Decode one raw item.

    Raises:
        InputError: the bytes are not JSON.
    """
    try:
        return decode(raw)
    except (ValueError, RecursionError):
        raise InputError("an item of the request is not JSON") from None


def parse_items(items: Sequence[Json], format: str) -> tuple[Message, ...]:
    """Parse items as messages, one each.

    Raises:
        InputError: an item is not a message of this format.
    """
    messages = WIRES[format].parse(items, None).messages
    if len(messages) != len(items):
        raise InputError("an item of the request is not a separate message")
    return messages


def media_bytes(body: bytes, format: str) -> int:
    """Count the bytes of inline images, audio and documents after base64 decoding; links count as zero."""
    request = read(body, format)
    return 0 if request is None else sum(_item_media(item, format) for item in request.items())


def _item_media(item: bytes, format: str) -> int:
    try:
        messages = parse_items([decode_item(item)], format)
    except InputError:
        return 0
    parts = [part for message in messages for part in message.parts]
    inline = [part for part in parts if type(part) is Media]
    results = [one for part in parts if type(part) is ToolResult for one in part.media or ()]
    return sum(len(one.data or "") * 3 // 4 for one in (*inline, *results))
