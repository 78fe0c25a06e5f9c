"""The chain of hashes over a request's messages: the same beginning gives the same keys, wherever it is asked.

A trail is a request that was read: its items, what they cost, the key of every prefix. Requests of one conversation
begin with the same bytes, so a trail is mostly taken from the one before: comparing bytes is all that a known beginning
costs. What is remembered here is not needed to be right, only to be quick.
"""

from __future__ import annotations

import hashlib
import time
from bisect import bisect, bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import msgspec

from kompakt.gateway.concurrency import off_loop
from kompakt.gateway.request.body import RequestBody, read, read_continuation
from kompakt.gateway.request.digests import DigestCache
from kompakt.model.tokens import Counter, counter_for

MAX_BYTES = 128 * 1024 * 1024
"""Bytes of requests kept to compare the next ones with."""

IDLE = 90.0
"""Seconds after which a request that nobody went on from is let go: memory then follows those who are at work."""

MAX_RECENT = 512
"""Requests kept to compare the next ones with: each of them is looked at."""

SHORT = 16 * 1024
"""Bytes of a request below which reading all of it is quicker than comparing."""

MAX_BACK = 8
"""Items from the end in which a client may have changed something (a cache mark, a reminder) and is still known."""

NEAR = 64
"""Newest items of a request, each of which may be the end of an earlier one."""

MAX_ENDS = 2_048
"""Older ends of requests that are looked for."""

PER_ITEM = 300
"""Bytes that an item takes in memory beside its own: its place, its key, its cost."""

_SAMPLE = 400
"""Bytes of the first message that tell conversations apart before all of them are compared."""

_HASH = 16


class HashChain(msgspec.Struct):
    """A request and the keys of its prefixes."""

    request: RequestBody
    lead: int
    """How many system messages it begins with; they are not part of the chain."""
    keys: list[bytes]
    """For each number of items, 0 included, the key of that prefix; equal for system messages at the head."""
    sums: list[int]
    """For each number of items, 0 included, what they cost together."""
    root: bytes
    counter: str
    answers: list[int]
    """The items that the model said."""
    reasons: list[int]
    """Those of them that carry reasoning."""

    @property
    def length(self) -> int:
        """How many items there are."""
        return len(self.keys) - 1

    @property
    def key(self) -> bytes:
        """The key of all of it."""
        return self.keys[-1]

    @property
    def size(self) -> int:
        """Bytes of memory that it takes, about."""
        return len(self.request.body) + PER_ITEM * self.length

    def tips(self) -> list[int]:
        """List the numbers of items with which earlier requests of the conversation ended, and this one."""
        pairs = zip([-1, *self.answers], self.answers, strict=False)
        return [*(at for before, at in pairs if at > self.lead and at - 1 != before), self.length]

    def ends(self, above: int) -> Iterator[list[int]]:
        """List the numbers of items with which earlier requests may have ended, newest first, in pages that grow.

        Nearly always the first page has what is looked for: all of the newest items, since a client may add to a
        request that was not answered. Further back only those that an answer follows. All together are limited, so a
        long history that nobody knows costs no more questions than a shorter one.
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
        """Iterate over all numbers of items with which earlier requests may have ended, newest first."""
        return (at for page in self.ends(self.lead) for at in page)

    def cut(self, items: int) -> HashChain:
        """Return the trail of an earlier request: the first items of this one."""
        request = msgspec.structs.replace(self.request, spans=self.request.spans[:items])
        answers, reasons = ([at for at in found if at < items] for found in (self.answers, self.reasons))
        return msgspec.structs.replace(
            self,
            request=request,
            keys=self.keys[: items + 1],
            sums=self.sums[: items + 1],
            answers=answers,
            reasons=reasons,
        )

    def cost(self, start: int, end: int | None = None) -> int:
        """Count the tokens of items."""
        return self.sums[self.length if end is None else end] - self.sums[start]


def root_of(tenant: str, format: str, policy: str) -> bytes:
    """Begin a chain: what is not the same for all of these is never found by the others."""
    hasher = hashlib.blake2b(digest_size=_HASH, person=b"kompakt chain")
    for part in (tenant, format, policy):
        data = part.encode("utf-8", "surrogatepass")
        hasher.update(len(data).to_bytes(8, "big") + data)
    return hasher.digest()


class _Attempt(NamedTuple):
    """A way to read a request, and how many bytes of it have to be looked at."""

    size: int
    work: Callable[[], HashChain | None]


class _Recent(NamedTuple):
    """A trail, and when it was read."""

    chain: HashChain
    at: float

    @property
    def size(self) -> int:
        return self.chain.size


class HashChains:
    """Reads requests, each from where an earlier one of the same conversation leaves off."""

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
        self._max_bytes = max_bytes
        self._short = short
        self._idle = idle
        self._size = 0
        self._recent: OrderedDict[bytes, _Recent] = OrderedDict()

    @property
    def held(self) -> int:
        """How many requests are kept to compare the next ones with."""
        return len(self._recent)

    def read(self, body: bytes, format: str, root: bytes, *, named: str | None = None) -> HashChain | None:
        """Read a request; ``None`` when it holds no history.

        Raises:
            InputError: the body is not a JSON object, or a message is none.
            TooManyMessages: there are more messages than are read.
        """
        chain = None
        for attempt in self._attempts(body, format, root, named):
            chain = attempt.work()
            if chain is not None:
                break
        return self._remember(chain)

    async def read_off_loop(
        self, body: bytes, format: str, root: bytes, *, named: str | None = None
    ) -> HashChain | None:
        """Read a request like ``read``, without holding the event loop where much of it is new."""
        chain = None
        for attempt in self._attempts(body, format, root, named):
            chain = await off_loop(attempt.work, size=attempt.size)
            if chain is not None:
                break
        return self._remember(chain)

    def _attempts(self, body: bytes, format: str, root: bytes, named: str | None) -> Iterator[_Attempt]:
        """List the ways in which a request can be read: from where earlier ones leave off, or all of it."""
        if len(body) >= self._short:
            for chain, _ in reversed(list(self._recent.values())):
                items = _shared(body, chain) if (chain.root, chain.request.format) == (root, format) else 0
                if items > chain.lead and chain.request.named == named:
                    size = len(body) - chain.request.spans[items - 1][1]
                    yield _Attempt(size, partial(self._continued, body, chain, items))
        yield _Attempt(len(body), partial(self._whole, body, format, root, named))

    def _continued(self, body: bytes, earlier: HashChain, items: int) -> HashChain | None:
        """Read what follows the first items of an earlier request; ``None`` when it does not continue like this."""
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
        """Look at the items after those that are known."""
        digests = [
            self._digests.of(request.item(index), request.format, counter) for index in range(items, len(request.spans))
        ]
        if earlier is None:
            lead = next((at for at, digest in enumerate(digests) if not digest.is_system), len(digests))
            keys, sums, answers, reasons = [root], [0], list[int](), list[int]()
        else:
            lead, keys = earlier.lead, earlier.keys[: items + 1]
            sums, answers = earlier.sums[: items + 1], earlier.answers[: bisect_left(earlier.answers, items)]
            reasons = earlier.reasons[: bisect_left(earlier.reasons, items)]
        for index, digest in enumerate(digests, items):
            keys.append(
                keys[-1] if index < lead else hashlib.blake2b(keys[-1] + digest.digest, digest_size=_HASH).digest()
            )
        answers += [index for index, digest in enumerate(digests, items) if digest.is_answer]
        reasons += [index for index, digest in enumerate(digests, items) if digest.has_reasoning]
        sums += list(accumulate((digest.tokens for digest in digests), initial=sums[-1]))[1:]
        return HashChain(request, lead, keys, sums, root, counter.name, answers, reasons)

    def _remember(self, chain: HashChain | None) -> HashChain | None:
        """Keep a trail to compare with, in the place of the one that it continues."""
        if chain is None or len(chain.request.body) < self._short:
            return chain
        begun = chain.keys[min(chain.lead + 1, chain.length)] + chain.keys[min(chain.lead + 2, chain.length)]
        gone = self._recent.pop(begun, None)
        now = time.monotonic()
        self._recent[begun] = _Recent(chain, now)
        self._size += self._recent[begun].size - (gone.size if gone else 0)
        while len(self._recent) > 1 and self._has_too_many(now):
            _, oldest = self._recent.popitem(last=False)
            self._size -= oldest.size
        return chain

    def _has_too_many(self, now: float) -> bool:
        oldest = next(iter(self._recent.values()))
        return self._size > self._max_bytes or len(self._recent) > MAX_RECENT or now - oldest.at > self._idle


def _shared(body: bytes, chain: HashChain) -> int:
    """Count the items that a body has in common with an earlier one, byte for byte, up to some from the end."""
    earlier = chain.request
    first, end = earlier.spans[min(chain.lead, len(earlier.spans) - 1)]
    if body[first : min(end, first + _SAMPLE)] != earlier.body[first : min(end, first + _SAMPLE)]:
        return 0
    length = bisect(earlier.spans, len(body), key=lambda span: span[1])  # the client may have gone back
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
