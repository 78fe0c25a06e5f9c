"""A bounded cache that evicts the least recently used entry."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Lru(Generic[Key, Value]):
    """Holds entries up to a total weight, by default their number. Threads may share it.

    The newest entry stays even when it alone exceeds the limit.
    """

    def __init__(self, limit: int, weigh: Callable[[Value], int] = lambda _: 1) -> None:
        self._limit, self._weigh = limit, weigh
        self._entries: OrderedDict[Key, Value] = OrderedDict()
        self._weight = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def get(self, key: Key) -> Value | None:
        """Return a value and mark it as the most recently used."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key]

    def put(self, key: Key, value: Value) -> None:
        """Store a value and evict the least recently used ones while the total exceeds the limit."""
        with self._lock:
            self._remove(key)
            self._entries[key] = value
            self._weight += self._weigh(value)
            while self._weight > self._limit and len(self._entries) > 1:
                self._remove(next(iter(self._entries)))

    def remove(self, key: Key) -> None:
        """Remove an entry if it exists."""
        with self._lock:
            self._remove(key)

    def items(self) -> list[tuple[Key, Value]]:
        """Return a copy of all entries, least recently used first."""
        with self._lock:
            return list(self._entries.items())

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._entries.clear()
            self._weight = 0

    def _remove(self, key: Key) -> None:
        if key in self._entries:
            self._weight -= self._weigh(self._entries.pop(key))
