"""The history in a request: where each message is in the body, how many tokens it has, and the hash of every prefix.

Bodies are large and repeat most of the previous request, so messages are not decoded: only the position of each item is
recorded, and items that are not replaced are forwarded byte for byte.

Clients send the whole history with every request and no id of the conversation. So the content identifies it: the key
of a prefix is the hash of the previous key and of its last message, starting from a root made of tenant, format and
policy. A pivot is stored under the key of the prefix that it replaces. A replica that has never seen a conversation
finds its pivot with these keys, and a client that edits its history matches a shorter prefix. System messages at the
start are left out, because clients put dates and reminders there.

A ``HashChain`` is a parsed request with the token count and key of every prefix. Successive requests of a conversation
start with the same bytes, so most of a chain is taken from the previous one, at the cost of a byte comparison. The
cache of recent chains affects only speed.

A message is hashed in a canonical form. Real clients move cache marks, send the same text as a string or as a block,
and change their reminders from request to request. If any of that changed the hash, the next request would not match
the stored pivot, and the whole history would be compacted again.
"""

from __future__ import annotations

import hashlib
import re
import time
from bisect import bisect, bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, cast

import msgspec

from kompakt.errors import InputError
from kompakt.gateway.concurrency import off_loop
from kompakt.gateway.outcomes import Untouched
from kompakt.model.json import MAX_DEPTH, MAX_DIGITS, decode, plain
from kompakt.model.lru import Lru
from kompakt.model.messages import Json, JsonObject, Media, Message, Reasoning, Text, ToolResult
from kompakt.model.references import digest
from kompakt.model.tokens import Counter, counter_for
from kompakt.wire.registry import WIRES

# --- Body ---

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


# --- Hash chain ---

MAX_DIGESTS = 20_000
"""Items in the cache: about 7 MB."""

_REMINDER = re.compile(r"\s*<(system[-_]reminder)>.*</\1>\s*", re.DOTALL)
"""A text that the client's runtime added and may change in the next request."""


class MessageDigest(msgspec.Struct, frozen=True, gc=False):
    """What the gateway needs to know of an item without decoding it again."""

    digest: bytes
    """Hash of the message without reminders. An item that holds only reminders still counts as an item."""
    tokens: int
    is_system: bool
    is_answer: bool
    """Whether it is from the model."""
    has_reasoning: bool


class DigestCache:
    """Digests by the raw bytes of items. Threads may share it."""

    def __init__(self, limit: int = MAX_DIGESTS) -> None:
        self._digests = Lru[bytes, MessageDigest](limit)

    def of(self, raw: bytes, format: str, counter: Counter) -> MessageDigest:
        """Return the digest of an item.

        Raises:
            InputError: the item is not a message of this format.
        """
        key = hashlib.sha256(raw).digest() + f"{format} {counter.name}".encode()
        found = self._digests.get(key)
        if found is None:
            found = _digest(decode_item(raw), format, counter)
            self._digests.put(key, found)
        return found


def _digest(item: Json, format: str, counter: Counter) -> MessageDigest:
    (message,) = parse_items([item], format)
    kept = [part for part in message.parts if type(part) is not Text or not _REMINDER.fullmatch(part.text)]
    hashed = digest(message if len(kept) == len(message.parts) else msgspec.structs.replace(message, parts=tuple(kept)))
    has_reasoning = any(type(part) is Reasoning for part in message.parts)
    role = message.role
    return MessageDigest(hashed, counter.message(message), role == "system", role == "assistant", has_reasoning)


MAX_BYTES = 128 * 1024 * 1024
"""Bytes of recent requests in the cache."""

IDLE = 90.0
"""Seconds after which a request without a successor leaves the cache, so memory follows the active conversations."""

MAX_RECENT = 4_096
"""Recent requests in the cache."""

SHORT = 16 * 1024
"""Bytes of a request below which parsing all of it is faster than comparing."""

MAX_BACK = 8
"""Newest items that a client may have changed (a cache mark, a reminder) while the rest is still reused."""

NEAR = 64
"""Newest items that may each be the end of an earlier request."""

MAX_ENDS = 2_048
"""Older ends of requests that are searched."""

PER_ITEM = 300
"""Bytes of memory per item besides its own bytes: position, key, token count."""

_SAMPLE = 400
"""Bytes of the first message by which the recent requests of a conversation are found."""

_HASH = 16
"""Bytes of a key."""


class HashChain(msgspec.Struct):
    """A request and the keys of its prefixes."""

    request: RequestBody
    lead: int
    """Number of leading system messages; they are not part of the chain."""
    keys: list[bytes]
    """Key of the prefix of each length, from 0; leading system messages do not change it."""
    sums: list[int]
    """Tokens of the prefix of each length, from 0."""
    root: bytes
    counter: str
    answers: list[int]
    """Indices of the items from the model."""
    reasons: list[int]
    """Indices of the items with reasoning."""

    @property
    def length(self) -> int:
        return len(self.keys) - 1

    @property
    def key(self) -> bytes:
        """Key of the whole request."""
        return self.keys[-1]

    @property
    def size(self) -> int:
        """Estimated bytes of memory."""
        return len(self.request.body) + PER_ITEM * self.length

    def tips(self) -> list[int]:
        """List the lengths of the conversation's earlier requests, and of this one."""
        pairs = zip([-1, *self.answers], self.answers, strict=False)
        return [*(at for before, at in pairs if at > self.lead and at - 1 != before), self.length]

    def ends(self, above: int) -> Iterator[list[int]]:
        """List the possible lengths of earlier requests above ``above``, longest first, in growing pages.

        The first page nearly always suffices. It has every length near the end, since a client may extend a request
        that was not answered; further pages have only lengths that an answer follows. The total is limited, so an
        unknown long history costs no more store reads than a shorter one.
        """
        above = max(above, self.lead)
        near = max(above, self.length - NEAR)
        yield list(range(self.length, near, -1))
        answers, left, size = self.answers, MAX_ENDS, NEAR
        index = bisect_left(answers, near + 1) - 1
        while index >= 0 and left > 0 and answers[index] > above:
            page = list[int]()
            while index >= 0 and answers[index] > above and len(page) < min(size, left):
                at = answers[index]
                index -= 1
                if index < 0 or answers[index] != at - 1:
                    page.append(at)
            left -= len(page)
            size *= 4
            yield page

    def all_ends(self) -> Iterator[int]:
        """Iterate over the possible lengths of earlier requests, longest first."""
        return (at for page in self.ends(self.lead) for at in page)

    def cut(self, items: int) -> HashChain:
        answers, reasons = ([at for at in found if at < items] for found in (self.answers, self.reasons))
        return msgspec.structs.replace(
            self,
            request=msgspec.structs.replace(self.request, spans=self.request.spans[:items]),
            keys=self.keys[: items + 1],
            sums=self.sums[: items + 1],
            answers=answers,
            reasons=reasons,
        )

    def cost(self, start: int, end: int | None = None) -> int:
        """Return the tokens of the items from ``start`` up to ``end``."""
        return self.sums[self.length if end is None else end] - self.sums[start]


def root_of(tenant: str, format: str, policy: str) -> bytes:
    """Return the key of the empty prefix. Chains with different roots share no keys."""
    hasher = hashlib.blake2b(digest_size=_HASH, person=b"kompakt chain")
    for part in (tenant, format, policy):
        data = part.encode("utf-8", "surrogatepass")
        hasher.update(len(data).to_bytes(8, "big") + data)
    return hasher.digest()


class _Attempt(NamedTuple):
    """A way to read a request."""

    size: int
    """Bytes that have to be parsed."""
    work: Callable[[], HashChain | None]


class _Start(NamedTuple):
    """Where the sample of the first message is in a body."""

    at: int
    end: int


class _Recent(NamedTuple):
    chain: HashChain
    read_at: float
    start: _Start


class RecentChains:
    """The newest chain of each conversation, found by the start of its first message.

    A new request is compared with chains of the same root only, and only with those whose first message starts alike,
    so the cost of a request does not grow with the number of conversations.
    """

    def __init__(self, max_bytes: int, idle: float) -> None:
        self._max_bytes, self._idle = max_bytes, idle
        self._size = 0
        self._entries: OrderedDict[bytes, _Recent] = OrderedDict()
        """Chains by the keys of their first two messages, least recently used first."""
        self._starts: dict[bytes, dict[_Start, dict[bytes, dict[bytes, None]]]] = {}
        """Keys of the entries by root, by place of the sample and by the sample, oldest first."""

    def __len__(self) -> int:
        return len(self._entries)

    def like(self, body: bytes, root: bytes) -> list[HashChain]:
        """List the chains that a body may continue, newest first."""
        found: list[HashChain] = []
        for start, samples in self._starts.get(root, {}).items():
            keys = samples.get(body[start.at : start.end])
            if keys:
                found += [self._entries[key].chain for key in reversed(keys)]
        return found

    def put(self, chain: HashChain) -> None:
        """Add a chain in place of the one that it continues, and remove those that are old or too many."""
        first, second = (chain.keys[min(chain.lead + items, chain.length)] for items in (1, 2))
        at, end = chain.request.spans[min(chain.lead, chain.length - 1)]
        now, key, start = time.monotonic(), first + second, _Start(at, min(end, at + _SAMPLE))
        self._remove(key)
        self._entries[key] = _Recent(chain, now, start)
        self._size += chain.size
        sample = chain.request.body[start.at : start.end]
        self._starts.setdefault(chain.root, {}).setdefault(start, {}).setdefault(sample, {})[key] = None
        while len(self._entries) > 1:
            oldest, recent = next(iter(self._entries.items()))
            is_full = len(self._entries) > MAX_RECENT or self._size > self._max_bytes
            if not is_full and now - recent.read_at <= self._idle:
                break
            self._remove(oldest)

    def _remove(self, key: bytes) -> None:
        recent = self._entries.pop(key, None)
        if recent is None:
            return
        chain, start = recent.chain, recent.start
        self._size -= chain.size
        starts = self._starts[chain.root]
        sample = chain.request.body[start.at : start.end]
        del starts[start][sample][key]
        if not starts[start][sample]:
            del starts[start][sample]
        if not starts[start]:
            del starts[start]
        if not starts:
            del self._starts[chain.root]


class HashChains:
    """Reads requests, each from where an earlier request of its conversation ends."""

    def __init__(
        self,
        digests: DigestCache | None = None,
        *,
        max_bytes: int = MAX_BYTES,
        short: int = SHORT,
        idle: float = IDLE,
        max_messages: int | None = None,
    ) -> None:
        self._digests = digests or DigestCache()
        self._max_messages = max_messages
        self._short = short
        self._recent = RecentChains(max_bytes, idle)

    @property
    def cached(self) -> int:
        """Number of recent requests in the cache."""
        return len(self._recent)

    def read(self, body: bytes, format: str, root: bytes, *, named: str | None = None) -> HashChain | None:
        """Read a request; ``None`` when it has no history.

        Raises:
            InputError: the body is not a JSON object, or an item is not a message.
            TooManyMessages: there are more messages than the limit.
        """
        chains = (attempt.work() for attempt in self._attempts(body, format, root, named))
        return self._cache(next((chain for chain in chains if chain is not None), None))

    async def read_off_loop(
        self, body: bytes, format: str, root: bytes, *, named: str | None = None
    ) -> HashChain | None:
        """Like ``read``, in a worker thread when much of the request is new."""
        chain = None
        for attempt in self._attempts(body, format, root, named):
            chain = await off_loop(attempt.work, size=attempt.size)
            if chain is not None:
                break
        return self._cache(chain)

    def _attempts(self, body: bytes, format: str, root: bytes, named: str | None) -> Iterator[_Attempt]:
        """List the ways to read a request: as a continuation of recent ones, then as a whole."""
        if len(body) >= self._short:
            for chain in self._recent.like(body, root):
                items = _shared(body, chain) if (chain.request.format, chain.request.named) == (format, named) else 0
                if items > chain.lead:
                    size = len(body) - chain.request.spans[items - 1][1]
                    yield _Attempt(size, partial(self._continued, body, chain, items))
        yield _Attempt(len(body), partial(self._whole, body, format, root, named))

    def _continued(self, body: bytes, earlier: HashChain, items: int) -> HashChain | None:
        request = read_continuation(body, earlier.request, items=items, limit=self._max_messages)
        counter = None if request is None else counter_for(request.model)
        if request is None or counter is None or counter.name != earlier.counter:
            return None
        return self._extended(request, counter, earlier.root, earlier, items)

    def _whole(self, body: bytes, format: str, root: bytes, named: str | None) -> HashChain | None:
        request = read(body, format, named=named, limit=self._max_messages)
        return None if request is None else self._extended(request, counter_for(request.model), root, None, 0)

    def _extended(
        self, request: RequestBody, counter: Counter, root: bytes, earlier: HashChain | None, items: int
    ) -> HashChain:
        """Compute the chain from the first ``items`` items of an earlier one and the digests of the others."""
        new = range(items, len(request.spans))
        digests = [self._digests.of(request.item(index), request.format, counter) for index in new]
        if earlier is None:
            lead = next((at for at, one in enumerate(digests) if not one.is_system), len(digests))
            keys, sums, answers, reasons = [root], [0], list[int](), list[int]()
        else:
            lead, keys = earlier.lead, earlier.keys[: items + 1]
            sums, answers = earlier.sums[: items + 1], earlier.answers[: bisect_left(earlier.answers, items)]
            reasons = earlier.reasons[: bisect_left(earlier.reasons, items)]
        for index, one in enumerate(digests, items):
            key = keys[-1]
            keys.append(key if index < lead else hashlib.blake2b(key + one.digest, digest_size=_HASH).digest())
        answers += [index for index, one in enumerate(digests, items) if one.is_answer]
        reasons += [index for index, one in enumerate(digests, items) if one.has_reasoning]
        sums += list(accumulate((one.tokens for one in digests), initial=sums[-1]))[1:]
        return HashChain(request, lead, keys, sums, root, counter.name, answers, reasons)

    def _cache(self, chain: HashChain | None) -> HashChain | None:
        """Cache a chain in place of the one that it continues."""
        if chain is None or len(chain.request.body) < self._short:
            return chain
        self._recent.put(chain)
        return chain


def _shared(body: bytes, chain: HashChain) -> int:
    """Count the leading items that a body shares byte for byte with an earlier one, all but at most ``MAX_BACK``."""
    earlier = chain.request
    length = bisect(earlier.spans, len(body), key=lambda span: span[1])  # the new body may be shorter
    least = max(0, length - MAX_BACK)
    if not body.startswith(earlier.body[: earlier.spans[least][1]] if least < length else b"\0"):
        return 0
    items = least + 1
    while items < length:
        start, end = earlier.spans[items - 1][1], earlier.spans[items][1]
        if body[start:end] != earlier.body[start:end]:
            break
        items += 1
    return items
