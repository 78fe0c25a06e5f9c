"""Narratives by what they describe, for callers that compact the same history again with each request.

A stateless caller finds the same boundary each time until the next compaction is due. The narrative before that
boundary is therefore asked for once, and the prefix of the requests stays the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable

from kompakt.engine.pivot.pivot import TRIES, Material, Summarizer

SIZE = 256
"""Narratives kept: one for each conversation in progress, with room for a few passes of each."""


class NarrativeCache:
    """Keeps the newest narratives; one that failed as often as it may is not asked for again."""

    def __init__(self, size: int = SIZE) -> None:
        self._size = size
        self._made: OrderedDict[object, str] = OrderedDict()
        self._failed: OrderedDict[object, int] = OrderedDict()

    def over(self, summarizer: Summarizer) -> Summarizer:
        """Return a summarizer that asks another one for what is not in the cache."""

        async def summarize(material: Material) -> str:
            key = (material.references, material.earlier, material.instructions, material.max_tokens)
            if key in self._made:
                self._made.move_to_end(key)
                return self._made[key]
            if self._failed.get(key, 0) >= TRIES:
                return ""
            text = ""
            try:
                made = summarizer(material)
                text = (await made if isinstance(made, Awaitable) else made).strip()
            finally:
                if text:
                    self._made[key] = text
                else:
                    self._failed[key] = self._failed.get(key, 0) + 1
                for kept in (self._made, self._failed):
                    if len(kept) > self._size:
                        kept.popitem(last=False)
            return text

        return summarize
