"""What this process wrote lately: for each session the keys of its prefixes, to tell a request that it has already
from one that goes on otherwise. Only remembered; the store knows better.
"""

from __future__ import annotations

from collections import OrderedDict

from kompakt.gateway.trails import Trail

MAX_SESSIONS = 2_000
"""Sessions remembered: about 10 kB each."""

_KEY = 16


class Written:
    """The sessions that were written to."""

    def __init__(self) -> None:
        self._keys: OrderedDict[str, bytes] = OrderedDict()

    def put(self, session: str, trail: Trail) -> None:
        """Remember that a session holds a request, unless it holds more that begins with it."""
        if self.holds(session, trail):
            return
        self._keys.pop(session, None)
        self._keys[session] = b"".join(trail.keys[trail.lead + 1 :])
        if len(self._keys) > MAX_SESSIONS:
            self._keys.popitem(last=False)

    def holds(self, session: str, trail: Trail) -> bool:
        """Tell whether a session holds all of a request."""
        own = trail.length - trail.lead
        return self._key(session, own) == trail.key if own else True

    def differs(self, session: str, trail: Trail) -> bool:
        """Tell whether a session holds something else than a request, as far as both go."""
        both = min(trail.length - trail.lead, len(self._keys.get(session, b"")) // _KEY)
        return both > 0 and self._key(session, both) != trail.keys[trail.lead + both]

    def _key(self, session: str, items: int) -> bytes:
        return self._keys.get(session, b"")[(items - 1) * _KEY : items * _KEY]
