"""Replace old tool outputs by a placeholder; calls and messages stay. Cost: the visible messages."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kompakt.engine.context.context import Context
from kompakt.engine.strategies.strategy import (
    Deterministic,
    Target,
    ToolChoice,
    Trigger,
    names_of,
    results_of,
    whole_number,
)
from kompakt.model.phrases import collapsed_placeholder

KEEP_TOKENS = 40_000
"""Tokens of the newest tool outputs that always stay."""

MIN_TOKENS = 20_000
"""Least tokens that are worth a rewriting, which invalidates the cached prefix."""

_UNFINISHED = ("in_progress", "incomplete")

KEEP_TURNS = 2
"""Newest user turns that are never changed."""


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
        newer = context.fixed_tokens
        for index in reversed(context.shown_indices()):
            if context.drops_oldest and newer > context.goal:
                break  # a later step drops this message and all before it
            newer += context.message_tokens(index)
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
                    newer -= tokens
        return found


_FIRST_LINE = 160
"""Characters kept of the first line: enough for a verdict or a path."""


class OutputCollapsing(Deterministic):
    """Show old tool outputs as one line with a reference, oldest first, where that saves anything.

    With ``tools`` or ``sources`` only the outputs of these; never those of ``protect_tools``.
    """

    measures = ("tokens", "bytes")

    def __init__(
        self,
        *,
        min_keep_groups: int = 4,
        tools: str | Iterable[str] | None = None,
        sources: str | Iterable[str] | None = None,
        protect_tools: str | Iterable[str] = (),
        when: Trigger | None = None,
        target: int | Target | None = None,
    ) -> None:
        whole_number("min_keep_groups", min_keep_groups)
        super().__init__(when=when, target=target)
        self.min_keep_groups = min_keep_groups
        self.choice = ToolChoice.of(tools=tools, sources=sources, protected=protect_tools)

    def apply(self, context: Context) -> bool:
        """Collapse outputs until the target is reached."""
        aim = self.aim(context)
        tools = [group for group in context.droppable() if group.kind == "tool"]
        changed = False
        for group in tools[: max(0, len(tools) - self.min_keep_groups)]:
            for index in group.indices:
                changed |= self._collapse(context, index)
            if aim.reached(context):
                break
        return changed

    def _collapse(self, context: Context, index: int) -> bool:
        changed = False
        for part, result in list(results_of(context, index)):
            if result.pruned_at is not None or not self.choice.takes(context, index, result.call_id):
                continue
            lines = result.output.splitlines()
            first = next((line.strip() for line in lines if line.strip()), "")[:_FIRST_LINE]
            text = collapsed_placeholder(context.reference(index, part), first, len(lines))
            short = msgspec.structs.replace(result, output=text, media=(), edited=True, pruned_at=0.0)
            if context.counter.part(short) < context.counter.part(result):
                context.show(index, part, short, what="shortened", why="old tool output collapsed")
                changed = True
        return changed
