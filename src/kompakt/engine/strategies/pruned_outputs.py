"""Hide old tool outputs behind a placeholder; calls and messages stay. Cost: the messages shown."""

from __future__ import annotations

from collections.abc import Iterable

from kompakt.engine.compaction.triggers import Target, Trigger, whole_number
from kompakt.engine.context.context import Context
from kompakt.engine.strategies.strategy import Deterministic, ToolChoice, names_of, results_of

KEEP_TOKENS = 40_000
"""Newest tool output that always stays: a model rarely looks further back."""

MIN_TOKENS = 20_000
"""Least that is worth a rewriting: it costs a cached prefix."""

_UNFINISHED = ("in_progress", "incomplete")

KEEP_TURNS = 2
"""Newest user turns that are never touched."""


class OutputPruning(Deterministic):
    """Hide completed tool outputs that are old; in batches, never a few at a time.

    With ``tools`` or ``sources`` only the outputs of these are counted and hidden: each may have its own numbers.
    """

    measures = ("tokens", "bytes")

    def __init__(
        self,
        *,
        keep_tokens: int = KEEP_TOKENS,
        min_tokens: int = MIN_TOKENS,
        keep_turns: int = KEEP_TURNS,
        protect_tools: str | Iterable[str] = ("skill",),
        tools: str | Iterable[str] | None = None,
        sources: str | Iterable[str] | None = None,
        when: Trigger | None = None,
        target: int | Target | None = None,
    ) -> None:
        for name, value in (("keep_tokens", keep_tokens), ("min_tokens", min_tokens), ("keep_turns", keep_turns)):
            whole_number(name, value)
        super().__init__(when=when, target=target)
        self.keep_tokens = keep_tokens
        self.min_tokens = min_tokens
        self.keep_turns = keep_turns
        self.protect_tools = names_of(protect_tools)
        self.choice = ToolChoice.of(tools=tools, sources=sources, protected=protect_tools)

    def apply(self, context: Context) -> bool:
        """Hide what is older than the kept tokens and turns, if it is enough."""
        candidates = self._candidates(context)
        if sum(tokens for _, _, tokens in candidates) <= self.min_tokens:
            return False
        return max([context.prune(index, part) for index, part, _ in candidates], default=False)

    def _candidates(self, context: Context) -> list[tuple[int, int, int]]:
        """Walk back from the newest message; stop at an output that was hidden before."""
        found: list[tuple[int, int, int]] = []
        kept = turns = 0
        for index in reversed(context.shown_indices()):
            if context.is_request_at(index):
                turns += 1
            if turns < self.keep_turns or context.group_at(index).pinned or context.is_open(index):
                continue
            for part, result in results_of(context, index):
                if result.status in _UNFINISHED or not self.choice.takes(context, index, result.call_id):
                    continue
                if result.pruned_at is not None:
                    return found
                tokens = context.counter.part(result)
                kept += tokens
                if kept > self.keep_tokens:
                    found.append((index, part, tokens))
        return found
