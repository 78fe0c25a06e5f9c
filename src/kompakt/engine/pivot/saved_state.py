"""A compacted context as a value, and a context from such a value: what a store keeps between two steps.

The messages that are shown, what is shown instead of some, and the pivot. What is hidden is not needed to go on: its
facts are in the full ledger, which knows more than the pivot had room for, so nothing fades from pass to pass. The
projection of a resumed context is, byte for byte, that of the context it was taken from.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kompakt.engine.context.annotations import Annotation
from kompakt.engine.context.context import Context
from kompakt.engine.context.values import Load, Summary
from kompakt.engine.pivot.pivot import PivotFrame
from kompakt.engine.pivot.text import frame_tokens, retell, told_in_full
from kompakt.model.messages import History, Message, ToolResult
from kompakt.model.tokens import Counter

FULL_LEDGER = 40_000
"""Tokens of the ledger that is kept for the next pass: several times what any pivot shows."""


class Kept(msgspec.Struct, frozen=True):
    """A message that is shown."""

    index: int
    instead: Message | None = None
    """What is shown in its place."""
    pruned: tuple[int, ...] = ()
    """Its parts whose output is hidden."""
    pruned_at: tuple[float, ...] = ()
    """When each of them was hidden, in seconds since 1970."""


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a context shows, but for the messages themselves."""

    summary: str = ""
    """What the pivot says; empty when there is none."""
    covers: int = 0
    """How many of the kept messages stand before the pivot."""
    number: int = 0
    hidden: int = 0
    weight: int = 0
    ledger: str = ""
    """All facts, for the next pass to go on from."""
    stripped: int = 0
    """How many of the kept messages are shown without signed reasoning."""
    breaks: tuple[int, ...] = ()
    """Those of the kept messages before which something is missing."""
    missing_pins: tuple[str, ...] = ()
    rounds: int = 0
    """How often the model had answered when it was taken."""
    keyed: bool = False
    """Whether the pivot is sealed with the key of the store. Earlier versions had seals without a key."""
    question: str = ""
    """The application's own words for the question of the pivot."""


def state_of(context: Context) -> tuple[State, list[Kept]]:
    """Say what a context shows."""
    indices = context.shown_indices()
    kept = [_kept(context, index) for index in indices]
    earlier = zip([-1, *indices], indices, strict=False)
    summary = context.summary_text
    state = State(
        stripped=sum(index < context.stripped_to for index in indices),
        breaks=tuple(n for n, (one, other) in enumerate(earlier) if other != one + 1 or other in context.breaks),
        missing_pins=tuple(context.missing_pins),
        ledger=told_in_full(context, FULL_LEDGER),
        rounds=context.rounds,
    )
    if summary is None:
        return state, kept
    return msgspec.structs.replace(
        state,
        summary=retell(context),
        covers=sum(index <= summary.covers_to for index in indices),
        number=summary.number,
        hidden=summary.load.hidden,
        weight=summary.load.weight,
        keyed=bool(summary.frame.key),
        question=summary.frame.question,
    ), kept


def _kept(context: Context, index: int) -> Kept:
    shown = context.shown(index)
    results = [(j, part.pruned_at) for j, part in enumerate(shown.parts) if type(part) is ToolResult]
    pruned = [(j, at) for j, at in results if at is not None]
    times = tuple(at for _, at in pruned)
    return Kept(index, None if shown is context.messages[index] else shown, tuple(j for j, _ in pruned), times)


def resume(
    history: History,
    state: State,
    *,
    counter: Counter,
    references: Sequence[str] = (),
    annotations: Sequence[Annotation] = (),
    seal_key: bytes = b"",
) -> Context:
    """Make the context again from the kept messages as they are shown; what came later is appended by the caller."""
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
        tokens = frame_tokens(context, state.summary, 0, frame)
        context.summary_text = Summary(
            state.number, state.summary, (), state.covers - 1, tokens, load=load, frame=frame
        )
    context.visibility.touch()
    context.visibility.rewritten_to = max(0, len(history) - 1)  # what comes next stands behind the last as it comes
    return context
