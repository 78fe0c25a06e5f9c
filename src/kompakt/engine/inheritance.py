"""What a context takes over from an earlier pass: its pivots, and transcripts it put beside the user's words.

A caller may send a compacted history back with more behind it. kompakt knows its own texts by their seal, in their
fixed place and role, takes them out, and keeps what they say to be folded into the next summary.
"""

from __future__ import annotations

from kompakt.engine import pivot
from kompakt.engine.context import Context
from kompakt.model.messages import Text
from kompakt.model.phrases import is_transcript

_REASON = "folded into a newer summary"


def adopt_pivots(context: Context) -> str | None:
    """Hide the pivots of earlier passes that are shown and return what all of them said, to be folded in."""
    while _adopt_one(context):
        pass
    return context.inherited


def _adopt_one(context: Context) -> bool:
    found = pivot.earlier(context.view.shown_messages())
    if found is None:
        return False
    position, text = found
    indices = context.shown_indices()
    context.inherited = "\n".join([text, *([context.inherited] if context.inherited else [])])
    question, answer = indices[position - 1], indices[position]
    context.view.hide(context.group_at(answer), _REASON)
    asked = context.shown(question)
    if len(asked.parts) == 1:
        context.view.hide(context.group_at(question), _REASON)
    else:
        context.view.put(question, asked.with_parts(asked.parts[:-1]))
    return True


def release_notes(context: Context) -> None:
    """Take transcripts of open rounds out of the user's messages again."""
    for index, message in zip(context.shown_indices(), context.view.shown_messages(), strict=True):
        if message.role != "user":
            continue
        told = [part for part in message.parts if type(part) is Text and is_transcript(part.text)]
        if told:
            context.inherited = "\n".join(filter(None, [context.inherited, *[part.text for part in told]]))
            context.view.put(index, message.with_parts(part for part in message.parts if part not in told))
