"""A compacted context as a value, for a store to keep between two steps.

It has the visible messages, their replacements and the pivot. Hidden messages are not needed to continue: their facts
are in the full ledger, which is several times larger than the pivot, so facts do not fade from pass to pass. A resumed
context has the same projection, byte for byte, as the saved one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kompakt.engine.context.context import Annotation, Context
from kompakt.engine.context.projection import Load, Summary
from kompakt.engine.pivot.pivot import PivotFrame, full_ledger, pivot_text, pivot_tokens
from kompakt.model.messages import History, Message, ToolResult
from kompakt.model.tokens import Counter

FULL_LEDGER = 40_000
"""Tokens of the ledger that is saved for the next pass."""


class SavedMessage(msgspec.Struct, frozen=True):
    """A visible message."""

    index: int
    instead: Message | None = None
    """Its replacement."""
    pruned: tuple[int, ...] = ()
    """Its parts whose output is hidden."""
    pruned_at: tuple[float, ...] = ()
    """When each of them was hidden, in seconds since 1970."""


class SavedContext(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a context shows, without the messages."""

    summary: str = ""
    """The text of the pivot; empty if there is none."""
    covers: int = 0
    """How many of the visible messages are before the pivot."""
    number: int = 0
    hidden: int = 0
    weight: int = 0
    ledger: str = ""
    """All facts, for the next pass to continue from."""
    stripped: int = 0
    """How many of the visible messages are shown without signed reasoning."""
    breaks: tuple[int, ...] = ()
    """The visible messages before which something is hidden."""
    missing_pins: tuple[str, ...] = ()
    rounds: int = 0
    """How often the model had answered when the context was saved."""
    keyed: bool = False
    """Whether the pivot is sealed with the key of the store. Earlier versions had seals without a key."""
    question: str = ""
    """The application's own words for the question of the pivot."""


def save_context(context: Context) -> tuple[SavedContext, list[SavedMessage]]:
    indices = context.shown_indices()
    kept = [_kept(context, index) for index in indices]
    earlier = zip([-1, *indices], indices, strict=False)
    summary = context.summary_text
    state = SavedContext(
        stripped=sum(index < context.stripped_to for index in indices),
        breaks=tuple(n for n, (one, other) in enumerate(earlier) if other != one + 1 or other in context.breaks),
        missing_pins=tuple(context.missing_pins),
        ledger=full_ledger(context, FULL_LEDGER),
        rounds=context.rounds,
    )
    if summary is None:
        return state, kept
    return msgspec.structs.replace(
        state,
        summary=pivot_text(context),
        covers=sum(index <= summary.covers_to for index in indices),
        number=summary.number,
        hidden=summary.load.hidden,
        weight=summary.load.weight,
        keyed=bool(summary.frame.key),
        question=summary.frame.question,
    ), kept


def _kept(context: Context, index: int) -> SavedMessage:
    shown = context.shown(index)
    results = [(j, part.pruned_at) for j, part in enumerate(shown.parts) if type(part) is ToolResult]
    pruned = [(j, at) for j, at in results if at is not None]
    times = tuple(at for _, at in pruned)
    return SavedMessage(index, None if shown is context.messages[index] else shown, tuple(j for j, _ in pruned), times)


def resume(
    history: History,
    state: SavedContext,
    *,
    counter: Counter,
    references: Sequence[str] = (),
    annotations: Sequence[Annotation] = (),
    seal_key: bytes = b"",
) -> Context:
    """Rebuild a context from its visible messages; the caller appends what came later."""
    context = Context(history, counter=counter, references=references, annotations=annotations, seal_key=seal_key)
    context.inherited, context.is_resumed = state.ledger or None, True
    context.question = state.question
    context.breaks = frozenset(state.breaks)
    context.stripped_to = state.stripped
    context.missing_pins = list(state.missing_pins)
    context.earlier_rounds = max(0, state.rounds - context.archive.rounds)
    context.rewritten_at = state.rounds
    if state.summary:
        load = Load(state.hidden, state.weight)
        frame = PivotFrame(seal_key if state.keyed else b"", state.question)
        tokens = pivot_tokens(context, state.summary, 0, frame)
        context.summary_text = Summary(
            state.number, state.summary, (), state.covers - 1, tokens, load=load, frame=frame
        )
    context.visibility.touch()
    context.visibility.rewritten_to = max(0, len(history) - 1)  # later messages extend the prefix
    return context
