"""What a context takes over from an earlier pass: its pivots, and transcripts it put beside the user's words.

A caller may send a compacted history back with more appended to it. kompakt recognizes its own texts by their seal, in
their fixed place and role, takes them out, and keeps what they say to be folded into the next summary. In a store with
a key only seals made with this key count; a text with another seal stays an ordinary message. Without a key anybody can
compute the seal, so the quotes in such a text are compared with the originals as far as they are at hand.
"""

from __future__ import annotations

from itertools import groupby

from kompakt.engine.context.annotations import FOLDED
from kompakt.engine.context.context import Context
from kompakt.engine.ledger.items import quoted_sentences, without_false_quotes
from kompakt.engine.pivot import pivot
from kompakt.model.messages import Message, Part, Text
from kompakt.model.phrases import RUNTIME_LINE, is_pivot_question, is_transcript, noted_summary, unseal


def adopt_pivots(context: Context) -> str | None:
    """Hide the pivots of earlier passes that are shown and return what all of them said, to be folded in."""
    while _adopt_one(context):
        pass
    return context.inherited


def _adopt_one(context: Context) -> bool:
    found = pivot.earlier(context.visibility.shown_messages(), context.seal_key)
    if found is None:
        return False
    position, text = found
    indices = context.shown_indices()
    question, answer = indices[position - 1], indices[position]
    text = _verified(context, text, question)
    context.inherited = "\n".join([text, *([context.inherited] if context.inherited else [])])
    context.visibility.hide(context.group_at(answer), FOLDED)
    asked = context.shown(question)
    if len(asked.parts) == 1:
        context.visibility.hide(context.group_at(question), FOLDED)
    else:
        context.visibility.put(question, asked.with_parts(asked.parts[:-1]))
    return True


def _verified(context: Context, text: str, before: int) -> str:
    """Drop quotes of the user that the messages before a pivot contradict: a seal proves no more than a checksum does.

    A reference that names none of these messages is left alone: its original is not at hand.
    """
    originals = {context.reference(index): index for index in range(before)}

    def is_said(reference: str, words: str) -> bool:
        index = originals.get(reference.partition(".")[0])
        if index is None:
            return True
        texts = [part.text for part in context.messages[index].parts if type(part) is Text]
        said = " ".join(" ".join(texts).split())
        return context.is_request_at(index) and all(sentence in said for sentence in quoted_sentences(words))

    return without_false_quotes(text, is_said)


def release_notes(context: Context) -> None:
    """Take out of the user's messages what an earlier pass added to them or joined with them.

    Transcripts of open rounds are folded into the next summary. Requests that had to share a message with the first one
    are history like any other: only the newest of them stays, and only while the user has not made another.
    """
    key = context.seal_key
    for index, message in zip(context.shown_indices(), context.visibility.shown_messages(), strict=True):
        if message.role != "user" or not any(_is_boundary(part, key) for part in message.parts):
            continue
        texts = [part.text for part in message.parts if type(part) is Text]
        summaries = [_verified(context, told, index) for text in texts if (told := noted_summary(text, key))]
        transcripts = [unseal(text) for text in texts if is_transcript(text, key)]
        context.inherited = "\n".join(filter(None, [*summaries, context.inherited, *transcripts])) or None
        parts = _released(message, key, keeps_last=index == context.archive.newest_request)
        if parts != message.parts:
            context.visibility.put(index, message.with_parts(parts))
            context.untold = True


def _is_boundary(part: Part, key: bytes) -> bool:
    if type(part) is not Text:
        return False
    text = part.text
    is_line = text == RUNTIME_LINE or is_pivot_question(text)
    return is_line or is_transcript(text, key) or noted_summary(text, key) is not None


def _released(message: Message, key: bytes, *, keeps_last: bool) -> tuple[Part, ...]:
    """Return the parts of the first request in a joined message, and those of the last one if it is still the newest.

    The pivot's question stays where its answer follows in the next message: whoever adopts the pivot takes it out.
    """
    parts = message.parts
    asked = parts[-1:] if type(parts[-1]) is Text and is_pivot_question(parts[-1].text) else ()
    spoken = groupby(parts[: len(parts) - len(asked)], lambda part: _is_boundary(part, key))
    requests = [list(found) for splits, found in spoken if not splits]
    if not requests:
        return asked or (Text(RUNTIME_LINE),)
    if len(requests) == 1:
        return (*requests[0], *asked)
    last = [Text(RUNTIME_LINE), *requests[-1]] if keeps_last else []
    return (*requests[0], *last, *asked)
