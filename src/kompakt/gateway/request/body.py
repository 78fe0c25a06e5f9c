"""A request as bytes, taken apart no further than its messages, and put together again.

Bodies are large and mostly what they were one request ago, so nothing is decoded that need not be: a body is known by
the place of each item in it. What is not replaced goes on byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from kompakt.errors import InputError
from kompakt.gateway.http.outcomes import Untouched
from kompakt.model.json import MAX_DEPTH, MAX_DIGITS, plain
from kompakt.model.messages import Json, JsonObject
from kompakt.store.codec import decode
from kompakt.wire.registry import WIRES

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_NAME = msgspec.json.Encoder()
_FIELD = re.compile(rb'\s*("(?:[^"\\]|\\.)*")\s*:\s*')
_GAP = re.compile(rb"[\s,]*")

_HELD: dict[str, Untouched] = {
    "previous_response_id": "provider-history",
    "conversation": "provider-history",
    "cachedContent": "provider-cache",
    "cached_content": "provider-cache",
}
"""Fields that name history which is not in the request: the gateway cannot compact what it does not see."""

ANTHROPIC_COMPACTS_AT = 150_000
"""Input tokens at which the ``compact_20260112`` edit starts when it names no trigger."""

_STRIDE = MAX_DIGITS // 2
"""Distance of the places where digits are looked for: a number that is too long fills the space between two of them."""


def _compacts_at(edit: Json) -> int | None:
    """Return the input tokens at which one edit replaces history; ``None`` when it does not."""
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


class NoJson(InputError):
    """A body that no provider could read."""


class TooManyMessages(InputError):
    """A request with more messages than are read."""

    def __init__(self, found: int, limit: int) -> None:
        self.found, self.limit = found, limit
        super().__init__(f"the request has {found:,} messages, and {limit:,} are the most")


class RequestBody(msgspec.Struct):
    """A request with a history that can be compacted."""

    format: str
    body: bytes
    before: dict[str, bytes]
    """The fields before the messages, as they came."""
    after: dict[str, bytes]
    """The fields behind the messages, as they came."""
    spans: list[tuple[int, int]]
    """Where each item stands in the body."""
    named: str | None = None
    """The model, where the address names it and not the body."""

    @property
    def key(self) -> str:
        """The field that holds the messages."""
        return WIRES[self.format].messages_key

    def field(self, name: str) -> Any:
        """Read a field beside the messages; ``None`` when it is not there."""
        raw = self.before.get(name, self.after.get(name))
        return None if raw is None else decode(raw)

    @property
    def model(self) -> str | None:
        """The model that is asked."""
        name = self.named or self.field("model")
        return name if isinstance(name, str) else None

    @property
    def streams(self) -> bool:
        """Whether the answer is to come in pieces, as far as the body says."""
        return self.field("stream") is True

    @property
    def held_elsewhere(self) -> Untouched | None:
        """Why the request does not hold the whole history; ``None`` when it does."""
        return next((reason for name, reason in _HELD.items() if self.field(name) not in (None, False)), None)

    @property
    def provider_compacts_at(self) -> int | None:
        """Input tokens from which the provider compacts this history itself; ``None`` when it never does.

        ``clear_thinking_*`` removes no history and ``clear_tool_uses_*`` only outputs of tools, which ``context_edits``
        counts; neither is a compaction.
        """
        if self.format == "anthropic" and self.field("compaction"):
            return 0
        context = self.field("context_management")
        edits: Json = cast("JsonObject", context).get("edits") if isinstance(context, dict) else context
        starts = [_compacts_at(edit) for edit in cast("list[Json]", edits)] if isinstance(edits, list) else []
        return min((at for at in starts if at is not None), default=None)

    @property
    def output(self) -> int | None:
        """Tokens of answer that are asked for."""
        return WIRES[self.format].stated_output(self.field)

    def item(self, index: int) -> bytes:
        """Return an item as it came."""
        start, end = self.spans[index]
        return self.body[start:end]

    def items(self, start: int = 0) -> list[bytes]:
        """Return the items from one on, as they came."""
        return [self.body[first:end] for first, end in self.spans[start:]]

    def envelope(self) -> JsonObject:
        """Return the request without its messages, decoded."""
        fields = {name: decode(raw) for name, raw in (*self.before.items(), *self.after.items())}
        return {**fields, self.key: []}

    def envelope_raw(self) -> bytes:
        """Return what stands beside the messages, to know it again by."""
        return b"\0".join([*self.before.values(), b"", *self.after.values()])

    def with_items(self, items: Sequence[bytes]) -> bytes:
        """Write the request with other items; all else stays as it came."""
        fields = [*self.before.items(), (self.key, b"[" + b",".join(items) + b"]"), *self.after.items()]
        return b"{" + b",".join(_NAME.encode(name) + b":" + raw for name, raw in fields) + b"}"


def read(body: bytes, format: str, *, named: str | None = None, limit: int | None = None) -> RequestBody | None:
    """Take a body apart; ``None`` when it holds no list of messages.

    Raises:
        NoJson: the body is not a JSON object, is nested too deeply, or holds an integer that is too long.
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
    """Take apart what follows the first items of a body that begins like an earlier one, up to these.

    ``None`` where it does not continue as a request does. Costs what is new.

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
        raise NoJson("the body is not a JSON object") from None


def _check(values: Iterable[bytes], *, levels: int) -> None:
    """Refuse JSON that the rest of kompakt does not accept; ``levels`` is how deep the values are in the body.

    Only a value with many brackets or a long run of digits is decoded. Both also occur in ordinary text.

    Raises:
        NoJson: a value is nested too deeply or holds an integer that is too long.
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
            raise NoJson(
                f"the body is nested more than {MAX_DEPTH} levels deep or holds an integer with more than "
                f"{MAX_DIGITS:,} digits"
            ) from None


def _spans(
    body: bytes, fields: Mapping[str, msgspec.Raw], key: str, listed: Sequence[msgspec.Raw]
) -> list[tuple[int, int]]:
    """Find the items of a field in a body; none where it cannot be told which of two lists is meant."""
    if not listed:
        return []
    at = _place(body, fields, key)
    if at is None:  # a field is there twice
        array = bytes(fields[key])
        at = body.find(array)
        if body.find(array, at + 1) >= 0:
            return []
    return _walk(body, at + 1, listed)


def _place(body: bytes, fields: Mapping[str, msgspec.Raw], key: str) -> int | None:
    """Find where the value of a field begins, by the lengths of those before it; ``None`` when a field is there twice.

    Searching for the value itself would take long where it is long.
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
    """Find items one after the other: between them are only commas and blanks."""
    spans: list[tuple[int, int]] = []
    for one in listed:
        gap = _GAP.match(body, at)
        start = gap.end() if gap is not None else at
        at = start + len(memoryview(one))
        spans.append((start, at))
    return spans
