"""What a pivot says: the narrative of a summariser, if there is one, and the ledger of what is no longer shown.

Written when somebody looks, not when groups are left out: a replay that rewrites a hundred times writes one ledger. It
is written as of the rewriting that left the groups out, so what came later does not change its bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import msgspec

from kompakt.engine.ledger.items import ledgers_of
from kompakt.engine.ledger.ledger import LedgerRequest
from kompakt.engine.pivot import pivot
from kompakt.engine.pivot.pivot import PivotFrame
from kompakt.model.messages import Message, Text
from kompakt.model.phrases import ASSISTANT_LINE, RUNTIME_LINE

if TYPE_CHECKING:
    from kompakt.engine.context.context import Context
    from kompakt.engine.context.values import ContextGroup


def retell(context: Context) -> str:
    """Return the text of the present pivot; the same until something else is hidden."""
    summary = context.summary_text
    assert summary is not None
    if not summary.room:
        return summary.text
    shown = [index for index in context.shown_indices() if index < summary.upto]
    state = (
        summary.number,
        summary.text,
        summary.room,
        tuple(shown),
        tuple(context.visibility.replacements),
        context.inherited,
    )
    if context.told is None or context.told[0] != state:
        context.told = (state, _written(context, shown))
    return context.told[1]


def _written(context: Context, shown: list[int]) -> str:
    summary = context.summary_text
    assert summary is not None
    frame = context.counter.scaled(context.counter.text(summary.text)) if summary.text else 0
    ledger = _ledger(context, shown, summary.room - frame, summary.upto, narrates=bool(summary.text))
    return "\n\n".join(filter(None, [summary.text, ledger])) or RUNTIME_LINE


def _ledger(
    context: Context, shown: Collection[int], room: int, upto: int, *, narrates: bool, prose: bool | None = None
) -> str:
    """Write the ledger of what is hidden of the first messages.

    With a narrative, the ledger omits the narratives of earlier passes, and the assistant's prose unless ``prose`` is
    set.
    """
    counter = context.counter
    as_they_were = frozenset(index for index in shown if index not in context.visibility.replacements)
    context.ledger.read(context.messages, upto)
    earlier = context.inherited
    request = LedgerRequest(
        room=room,
        count=counter.tokens,
        is_hidden=lambda index: index not in as_they_were,
        reference=context.archive.reference,
        upto=upto,
        strips=context.contract is not None and context.contract.prefix_rule == "strip-all",
        earlier=ledgers_of(earlier) if narrates and earlier else earlier,  # the new narrative includes the earlier ones
        prose=not narrates if prose is None else prose,
    )
    return context.ledger.write(request)


def told_in_full(context: Context, room: int) -> str:
    """Write a ledger of all that is hidden, in far more room than a pivot has."""
    narrates = context.summary_text is not None and bool(context.summary_text.text)
    shown = context.shown_indices()
    return _ledger(context, shown, room, len(context.messages), narrates=narrates, prose=True)


def facts_beside(context: Context, groups: Iterable[ContextGroup], room: int) -> str:
    """Write the ledger that stands next to a narrative once these groups are hidden too."""
    hidden = {index for group in groups for index in group.indices}
    shown = [index for index in context.shown_indices() if index not in hidden]
    return _ledger(context, shown, room, len(context.messages), narrates=True)


def frame_tokens(context: Context, text: str, room: int, frame: PivotFrame) -> int:
    """Count a pivot around a text, or around a text and ledger that take all the room they have."""
    return sum(tokens for _, tokens in framed(context, "" if room else text, frame)) + room + _line_tokens(context)


def framed(context: Context, text: str, frame: PivotFrame) -> list[tuple[Message, int]]:
    """Write a pivot around a text, each message with its tokens; the text was counted when it was written.

    If the text is empty, one line says that something was left out.
    """
    counter = context.counter
    if text == RUNTIME_LINE:
        line = Message("user", (Text(text),))
        return [(line, counter.message(line))]
    messages = pivot.render(text, frame)
    counter.longer(text, messages[-1].text[len(text) :])
    return [(message, counter.message(message)) for message in messages]


def _line_tokens(context: Context) -> int:
    """Count the lines that may have to stand around a pivot where roles must alternate."""
    contract = context.contract
    if contract is None or not contract.alternates:
        return 0
    tokens = context.counter.message(Message("user", (Text(RUNTIME_LINE),)))
    if not contract.merges_results:
        tokens += context.counter.message(Message("assistant", (Text(ASSISTANT_LINE),)))
    return tokens


def resize(context: Context, room: int | None = None) -> None:
    """Let the ledger know of all there is now, in its own or another number of tokens; with 0 there is no pivot."""
    summary = context.summary_text
    if summary is not None and summary.room:
        given = summary.room if room is None else room
        tokens, upto = frame_tokens(context, summary.text, given, summary.frame), len(context.messages)
        context.summary_text = msgspec.structs.replace(summary, room=given, tokens=tokens, upto=upto)
        context.visibility.touch()


def settle(context: Context) -> None:
    """Write the ledger now and count it as it is, instead of the room that was set aside for it."""
    summary = context.summary_text
    if summary is not None and summary.room:
        tokens = frame_tokens(context, retell(context), 0, summary.frame)
        context.summary_text = msgspec.structs.replace(summary, tokens=tokens)
