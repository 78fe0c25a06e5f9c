"""What a prompt cache sees: how much of each request repeats the previous one of the conversation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from tests.provider.answer import Seen
from tests.provider.anthropic import breakpoints
from tests.provider.signatures import unmarked
from tests.provider.token_count import count_head, count_item


@dataclass(frozen=True)
class Break:
    """A request that does not start with the whole previous request."""

    number: int
    conversation: str
    at: int
    """Index of the first message that differs; -1 when system or tools do."""
    before: int
    """Number of messages in the request before."""


@dataclass(frozen=True)
class Sent:
    """A request as the cache remembers it."""

    head: str
    items: list[str]
    marked: int
    """Number of messages up to the last cache mark."""


class Tracker:
    """Compares each accepted request with the one before it in its conversation."""

    def __init__(self) -> None:
        self.sent: dict[str, Sent] = {}
        self.breaks: list[Break] = []

    def see(self, seen: Seen, conversation: str, number: int) -> tuple[int, int]:
        """Return the tokens read from the cache and written to it; note a broken prefix."""
        marks = breakpoints(seen.items) if seen.format == "anthropic" else []
        new = Sent(
            head=json.dumps(unmarked([seen.system, seen.raw_tools]), sort_keys=True),
            items=[json.dumps(_canonical(item, seen.format), sort_keys=True) for item in seen.items],
            marked=len(seen.items) if seen.caches else max(marks, default=-1) + 1,
        )
        old, self.sent[conversation] = self.sent.get(conversation), new
        common = self._compare(old, new, conversation, number)
        if seen.format != "anthropic":
            return (self._tokens(seen, common), 0) if common is not None else (0, 0)
        kept = min(common, old.marked, new.marked) if old is not None and common is not None else 0
        cached = self._tokens(seen, kept) if kept else 0
        written = self._tokens(seen, new.marked) - cached if new.marked else 0
        return cached, written

    def _compare(self, old: Sent | None, new: Sent, conversation: str, number: int) -> int | None:
        """Return the number of common first messages; None for a first request and when the heads differ."""
        if old is None:
            return None
        if old.head != new.head:
            self.breaks.append(Break(number, conversation, -1, len(old.items)))
            return None
        pairs = zip(old.items, new.items, strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if common < len(old.items):
            self.breaks.append(Break(number, conversation, common, len(old.items)))
        return common

    def _tokens(self, seen: Seen, items: int) -> int:
        return count_head(seen.system, seen.raw_tools) + sum(count_item(item) for item in seen.items[:items])


def _canonical(item: Any, format: str) -> Any:
    bare = unmarked(item)
    if format == "anthropic" and isinstance(bare.get("content"), str):
        bare["content"] = [{"type": "text", "text": bare["content"]}]
    return bare
