"""Shorten single oversized texts to head, tail and a reference. Cost: the messages shown, and counting what is cut."""

from __future__ import annotations

import msgspec

from kompakt.engine.context.archive import ContextGroup
from kompakt.engine.context.context import Context
from kompakt.engine.ledger.extract.records import whole_table
from kompakt.engine.strategies.strategy import Deterministic, Target, Trigger, answered_calls, results_of, whole_number
from kompakt.model.json import decode_text, json_text
from kompakt.model.messages import Json
from kompakt.model.phrases import cut_note, hidden_media_note, table_note
from kompakt.model.tokens import Counter

MAX_SHARE = 0.15
"""Largest share of what can change, up to the goal, that one tool result may take."""

LEAST_RESULT = 200
"""Least tokens of a shortened result."""

LEAST_GIVEN = 60
"""Least tokens of a shortened text in the input of a call."""

WHOLE_GIVEN = 2 * LEAST_GIVEN
"""Longest such text that is never shortened: paths and commands stay whole, and shortening would gain little."""

_HEAD = 0.6
"""Share of the remaining text that comes from the beginning; errors and verdicts tend to be at the end."""


class Shortening(Deterministic):
    """Cut tool results that are larger than a share of the goal, or than ``max_tokens``.

    A result that the model has not read yet is cut for ``max_tokens`` only.
    """

    measures = ("tokens",)

    def __init__(
        self, *, max_tokens: int | None = None, when: Trigger | None = None, target: int | Target | None = None
    ) -> None:
        if max_tokens is not None:
            whole_number("max_tokens", max_tokens)
        super().__init__(when=when, target=target)
        self.max_tokens = max_tokens

    def apply(self, context: Context) -> bool:
        """Shorten every shown result over the limit."""
        limit = self.max_tokens
        if limit is None:
            limit = max(LEAST_RESULT, int((self.goal(context) - context.fixed_tokens) * MAX_SHARE))
        changed = False
        newer = context.fixed_tokens
        for group in reversed(context.live):
            if context.drops_oldest and newer > context.goal:
                break  # a later step drops this group and all before it
            if group.tokens > limit and not group.pinned:
                changed |= self._shorten(context, group, limit)
            newer += group.tokens
        return changed

    def _shorten(self, context: Context, group: ContextGroup, limit: int) -> bool:
        unread = context.archive.is_unread(group)
        if unread and self.max_tokens is None:
            return False
        found = [shorten_results(context, index, limit, keep_media=unread) for index in group.indices]
        return any(found)


def shorten_results(context: Context, index: int, limit: int, *, keep_media: bool = False) -> bool:
    """Shorten the results of one message to at most ``limit`` tokens each; return whether anything changed.

    ``keep_media`` leaves results alone that are large for a picture only.
    """
    changed = False
    for part, result in list(results_of(context, index)):
        tokens = context.counter.part(result)
        if tokens <= limit or (keep_media and result.media and len(result.output) <= limit):
            continue
        reference = context.reference(index, part)
        text = shortened(result.output, limit, context.counter, reference=reference)
        short = msgspec.structs.replace(result, output=text, media=(), edited=True)
        if context.counter.part(short) < tokens:
            context.show(index, part, short, what="shortened", why=f"over {limit} tokens")
            changed = True
    return changed


TABLE_SHARE = 0.2
"""Share of what can change from which an unread list of records is worth rewriting."""

TABLE_GAIN = 0.7
"""Largest size of the table, as a share of the JSON; less gain is not worth a changed result."""


def tabulate_unread(context: Context, ceiling: int) -> None:
    """Rewrite large unread lists of JSON records as tables with the same values.

    The model has not read them, so nothing of them may be missing. A table repeats no keys, and what that saves is left
    for the notes about everything else.
    """
    least = int((ceiling - context.fixed_tokens) * TABLE_SHARE)
    for group in context.live:
        if group.tokens <= least or group.pinned or not context.archive.is_unread(group):
            continue
        for index in group.indices:
            for part, result in list(results_of(context, index)):
                size = context.counter.part(result)
                rows = whole_table(result.output) if size > least else None
                if rows is None:
                    continue
                text = f"{table_note(context.reference(index, part))}\n{rows}"
                short = msgspec.structs.replace(result, output=text, edited=True)
                if context.counter.part(short) < size * TABLE_GAIN:
                    context.show(index, part, short, what="shortened", why="a list of records, rewritten as a table")


def shorten_calls(context: Context, index: int, limit: int) -> bool:
    """Shorten the texts given to the answered calls of one message to at most ``limit`` tokens each.

    Paths, commands and whatever else is short stay; the input stays the JSON that it was.
    """
    changed = False
    for part, call in list(answered_calls(context, index)):
        given = _shorter_input(call.input, max(limit, LEAST_GIVEN), context.counter, context.reference(index, part))
        short = msgspec.structs.replace(call, input=given, edited=True)
        if context.counter.part(short) < context.counter.part(call):
            context.show(index, part, short, what="shortened", why="what the newest call was given is too large")
            changed = True
    return changed


def _shorter_input(given: Json, limit: int, counter: Counter, reference: str) -> Json:
    """Shorten what a call was given; JSON text stays JSON text, and what claims to be JSON but is none stays."""
    if not isinstance(given, str) or not given.lstrip().startswith("{"):
        return _shorter(given, limit, counter, reference)
    try:
        return json_text(_shorter(decode_text(given), limit, counter, reference))
    except ValueError:
        return given


def _shorter(given: Json, limit: int, counter: Counter, reference: str) -> Json:
    """Shorten all texts inside a value."""
    if isinstance(given, str):
        is_long = counter.tokens(given) > max(limit, WHOLE_GIVEN)
        return shortened(given, limit, counter, reference=reference) if is_long else given
    if isinstance(given, dict):
        return {key: _shorter(value, limit, counter, reference) for key, value in given.items()}
    if isinstance(given, list):
        return [_shorter(value, limit, counter, reference) for value in given]
    return given


def shortened(text: str, limit: int, counter: Counter, *, reference: str, middle: str = "") -> str:
    """Keep head and tail of a text so that it has at most about ``limit`` tokens; the note alone is the least.

    ``middle`` is the part of the rest that must stay; it follows the note.
    """
    total = counter.tokens(text)
    if total <= limit:
        return f"{text}{hidden_media_note(reference)}"
    note = cut_note(reference, total - max(0, limit)) + middle
    room = limit - counter.tokens(note) - 8
    while room > 0:
        keep = int(len(text) * room / max(1, total))
        head = _safe_end(text, int(keep * _HEAD))
        tail = max(head, _safe_start(text, len(text) - (keep - int(keep * _HEAD))))
        candidate = f"{text[:head]}{note}{text[tail:]}"
        if counter.tokens(candidate) <= limit:
            return candidate
        room = int(room * 0.85) - 1
    return note.strip()


def _safe_end(text: str, at: int) -> int:
    """Move a cut back to the end of a line if one is near."""
    line = text.rfind("\n", max(0, at - 200), at)
    return line if line > 0 else at


def _safe_start(text: str, at: int) -> int:
    """Move a cut forward to the start of a line if one is near."""
    line = text.find("\n", at, at + 200)
    return line + 1 if line > 0 else at
