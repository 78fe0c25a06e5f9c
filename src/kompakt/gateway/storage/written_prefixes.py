"""What this process wrote lately: for each session the keys of its prefixes, to tell a request that it has already
from one that continues differently. Only a cache; the store knows better.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

from kompakt.gateway.request.hash_chain import HashChain

MAX_BYTES = 32 * 1024 * 1024
"""Bytes of keys that are kept: those of about 2,000 long sessions."""

_KEY = 16

Place: TypeAlias = tuple[str, str]
"""A tenant and the id of a session."""


class WrittenPrefixes:
    """The sessions that were written to."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._keys: OrderedDict[Place, bytes] = OrderedDict()
        self._max_bytes = max_bytes
        self._size = 0

    def put(self, place: Place, chain: HashChain) -> None:
        """Remember that a session holds a request, unless it holds more that begins with it."""
        if self.holds(place, chain):
            return
        self.forget(place)
        self._keys[place] = b"".join(chain.keys[chain.lead + 1 :])
        self._size += len(self._keys[place])
        while self._size > self._max_bytes and len(self._keys) > 1:
            self.forget(next(iter(self._keys)))

    def forget(self, place: Place) -> None:
        """Forget a session."""
        self._size -= len(self._keys.pop(place, b""))

    def holds(self, place: Place, chain: HashChain) -> bool:
        """Tell whether a session holds all of a request."""
        own = chain.length - chain.lead
        return self._key(place, own) == chain.key if own else True

    def differs(self, place: Place, chain: HashChain) -> bool:
        """Tell whether a session holds something else than a request, as far as both go."""
        both = min(chain.length - chain.lead, len(self._keys.get(place, b"")) // _KEY)
        return both > 0 and self._key(place, both) != chain.keys[chain.lead + both]

    def _key(self, place: Place, items: int) -> bytes:
        return self._keys.get(place, b"")[(items - 1) * _KEY : items * _KEY]
