"""The pivot: a question and an answer that replace hidden messages.

The answer has the narrative of a summarizer, if there is one, and the ledger of what is hidden. It is the assistant's
own text, never "the user said". It is written on first use, not when groups are hidden: a replay that rewrites a
hundred times writes one ledger. It describes the history as of that rewriting, so later messages leave its bytes alone.

The answer is sealed. A caller may send a compacted history back with more appended to it. A later pass recognizes its
own texts by their seal, in their fixed place and role, and nothing that only looks like one, in a tool output or in the
user's words. It hides them and folds their text into the next summary. A seal without a key is a checksum that anybody
can compute, so the quotes in such a text are compared with the originals as far as they are available. The key of an
encrypted store makes the seal a proof: an imported history cannot forge a pivot, and a text with another seal stays an
ordinary message.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from kompakt.engine.ledger.items import ledgers_of, narrated, quoted_sentences, without_false_quotes
from kompakt.engine.ledger.ledger import LedgerRequest
from kompakt.model.budget import Usage
from kompakt.model.messages import Message, Part, Text
from kompakt.model.phrases import (
    ASSISTANT_LINE,
    RUNTIME_LINE,
    is_pivot_question,
    is_transcript,
    noted_summary,
    pivot_question,
    seal,
    unseal,
)

if TYPE_CHECKING:
    from kompakt.engine.context.archive import ContextGroup
    from kompakt.engine.context.context import Context


_log = logging.getLogger("kompakt.compaction")


class PivotFrame(msgspec.Struct, frozen=True):
    """What surrounds the text of a pivot. A pivot keeps its frame until the next one replaces it."""

    key: bytes = b""
    """The key of the seal; empty for a checksum only."""
    question: str = ""
    """The application's own words for the question; empty for the usual ones."""


PLAIN = PivotFrame()


def render(text: str, frame: PivotFrame = PLAIN) -> tuple[Message, Message]:
    """Write a summary as a question of the user and an answer of the assistant."""
    question = Message("user", (Text(pivot_question(frame.question)),))
    return question, Message("assistant", (Text(seal(text, frame.key)),), is_summary=True)


def resealed(answer: Message, key: bytes) -> Message:
    """Seal the answer of a pivot with another key; any other message stays as it is."""
    body = unseal(answer.text) if len(answer.parts) == 1 and type(answer.parts[0]) is Text else None
    return answer if body is None else answer.with_parts((Text(seal(body, key)),))


def find_newest(messages: Sequence[Message], key: bytes = b"") -> tuple[int, str] | None:
    """Find the newest pivot of an earlier pass: the index of its answer, and its summary."""
    for index in range(len(messages) - 1, 0, -1):
        answer = messages[index]
        if answer.role != "assistant" or len(answer.parts) != 1 or type(answer.parts[0]) is not Text:
            continue
        asked = messages[index - 1].parts[-1:] if messages[index - 1].role == "user" else ()
        if not asked or type(asked[0]) is not Text or not is_pivot_question(asked[0].text):
            continue
        body = unseal(answer.parts[0].text, key)
        if body is not None:
            return index, body
    return None


def pivot_text(context: Context) -> str:
    """Return the text of the current pivot; cached until something else is hidden."""
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
    if context.pivot_cache is None or context.pivot_cache[0] != state:
        context.pivot_cache = (state, _written(context, shown))
    return context.pivot_cache[1]


def _written(context: Context, shown: list[int]) -> str:
    summary = context.summary_text
    assert summary is not None
    frame = context.counter.tokens(summary.text) if summary.text else 0
    ledger = _ledger(context, shown, summary.room - frame, summary.upto, narrative=summary.text)
    return "\n\n".join(filter(None, [summary.text, ledger])) or RUNTIME_LINE


def _ledger(
    context: Context, shown: Collection[int], room: int, upto: int, *, narrative: str | None, prose: bool | None = None
) -> str:
    """Write the ledger of what is hidden of the first messages.

    ``narrative`` is a summarizer's text beside the ledger; ``None`` for one that is yet to be written. With one, the
    ledger omits the narratives of earlier passes, and the assistant's prose unless ``prose`` is set.
    """
    narrates = narrative != ""
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
        narrative=narrative or "",
    )
    return context.ledger.write(request)


def full_ledger(context: Context, room: int) -> str:
    """Write a ledger of everything hidden, in far more room than a pivot has."""
    narrative = context.summary_text.text if context.summary_text is not None else ""
    shown = context.shown_indices()
    return _ledger(context, shown, room, len(context.messages), narrative=narrative, prose=True)


def facts_beside(context: Context, groups: Iterable[ContextGroup], room: int) -> str:
    """Write the ledger that goes next to a narrative once these groups are hidden too."""
    hidden = {index for group in groups for index in group.indices}
    shown = [index for index in context.shown_indices() if index not in hidden]
    return _ledger(context, shown, room, len(context.messages), narrative=None)


def pivot_tokens(context: Context, text: str, room: int, frame: PivotFrame) -> int:
    """Count a pivot with a text, or with a text and ledger that use all of ``room``."""
    return (
        sum(tokens for _, tokens in pivot_messages(context, "" if room else text, frame)) + room + _line_tokens(context)
    )


def pivot_messages(context: Context, text: str, frame: PivotFrame) -> list[tuple[Message, int]]:
    """Return the messages of a pivot with their tokens; one line if there is nothing but the runtime line.

    The text was counted when it was written, so only what the seal adds is counted here.
    """
    counter = context.counter
    if text == RUNTIME_LINE:
        line = Message("user", (Text(text),))
        return [(line, counter.message(line))]
    messages = render(text, frame)
    counter.longer(text, messages[-1].text[len(text) :])
    return [(message, counter.message(message)) for message in messages]


def _line_tokens(context: Context) -> int:
    """Count the lines that a pivot may need around it where roles must alternate."""
    contract = context.contract
    if contract is None or not contract.alternates:
        return 0
    tokens = context.counter.message(Message("user", (Text(RUNTIME_LINE),)))
    if not contract.merges_results:
        tokens += context.counter.message(Message("assistant", (Text(ASSISTANT_LINE),)))
    return tokens


def resize(context: Context, room: int | None = None) -> None:
    """Write the ledger again for all messages so far, in the same or another number of tokens; 0 removes the pivot."""
    summary = context.summary_text
    if summary is not None and summary.room:
        given = summary.room if room is None else room
        tokens, upto = pivot_tokens(context, summary.text, given, summary.frame), len(context.messages)
        context.summary_text = msgspec.structs.replace(summary, room=given, tokens=tokens, upto=upto)
        context.visibility.touch()


def count_exactly(context: Context) -> None:
    """Write the ledger now and count its tokens instead of the room reserved for it."""
    summary = context.summary_text
    if summary is not None and summary.room:
        tokens = pivot_tokens(context, pivot_text(context), 0, summary.frame)
        context.summary_text = msgspec.structs.replace(summary, tokens=tokens)


FOLDED = "folded into a newer summary"
"""Why the pivot of an earlier pass is not shown."""


def adopt_pivots(context: Context) -> str | None:
    """Hide the visible pivots of earlier passes; return their texts, for the next summary to fold in."""
    while _adopt_one(context):
        pass
    return context.inherited


def _adopt_one(context: Context) -> bool:
    found = find_newest(context.visibility.shown_messages(), context.seal_key)
    if found is None:
        return False
    position, text = found
    indices = context.shown_indices()
    question, answer = indices[position - 1], indices[position]
    text = _verified(context, text, question)
    context.inherited = "\n".join([text, *([context.inherited] if context.inherited else [])])
    context.visibility.hide((context.group_at(answer),), FOLDED)
    asked = context.shown(question)
    if len(asked.parts) == 1:
        context.visibility.hide((context.group_at(question),), FOLDED)
    else:
        context.visibility.put(question, asked.with_parts(asked.parts[:-1]))
    return True


def _verified(context: Context, text: str, before: int) -> str:
    """Drop quotes of the user that the messages before a pivot contradict, because a checksum proves no origin.

    A quote whose reference names none of these messages stays: its original is not available.
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
    """Remove from the user's messages what an earlier pass added to them or merged with them.

    Transcripts of open rounds are folded into the next summary. Of requests that were merged with the first one, only
    the newest stays, and only until the user makes another.
    """
    key = context.seal_key
    for index, message in zip(context.shown_indices(), context.visibility.shown_messages(), strict=True):
        if message.role != "user" or not any(_is_boundary(part, key) for part in message.parts):
            continue
        texts = [part.text for part in message.parts if type(part) is Text]
        summaries = [_verified(context, body, index) for text in texts if (body := noted_summary(text, key))]
        transcripts = [unseal(text) for text in texts if is_transcript(text, key)]
        context.inherited = "\n".join(filter(None, [*summaries, context.inherited, *transcripts])) or None
        parts = _released(message, key, keeps_last=index == context.archive.newest_request)
        if parts != message.parts:
            context.visibility.put(index, message.with_parts(parts))
            context.unsummarized = True


def _is_boundary(part: Part, key: bytes) -> bool:
    if type(part) is not Text:
        return False
    text = part.text
    is_line = text == RUNTIME_LINE or is_pivot_question(text)
    return is_line or is_transcript(text, key) or noted_summary(text, key) is not None


def _released(message: Message, key: bytes, *, keeps_last: bool) -> tuple[Part, ...]:
    """Return the parts of the first request in a joined message, and those of the last one if it is still the newest.

    The question of a pivot stays if its answer follows in the next message; ``adopt_pivots`` removes both.
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


# --- the narrative of a summarizer ---------------------------------------------------------------------------------

TRIES = 3
"""How often a summarizer is asked before the pivot has the ledger alone."""

MAX_FAULT = 1_000
"""Characters of an error that are kept."""


class NarrativeAccount(msgspec.Struct):
    """What a narrative cost, and what the comparison with the history found. A summarizer that knows fills it in."""

    model: str = ""
    requests: int = 0
    usage: Usage = Usage()
    """Billed tokens of all requests, those with an unusable answer included."""
    sentences: int = 0
    """Sentences that were used."""
    marked: tuple[str, ...] = ()
    """Sentences used with a note, because a part of them was not found in the history."""
    dropped: tuple[str, ...] = ()
    """Sentences left out, because the history does not support them."""


def combined(accounts: Sequence[NarrativeAccount]) -> NarrativeAccount | None:
    """Add up accounts; ``None`` if no model was asked."""
    asked = [account for account in accounts if account.requests]
    if not asked:
        return None
    return NarrativeAccount(
        model=asked[-1].model,
        requests=sum(account.requests for account in asked),
        usage=sum((account.usage for account in asked), Usage()),
        sentences=asked[-1].sentences,
        marked=tuple(sentence for account in asked for sentence in account.marked),
        dropped=tuple(sentence for account in asked for sentence in account.dropped),
    )


class Material(msgspec.Struct, frozen=True):
    """What leaves the context, for a summarizer to describe."""

    messages: tuple[Message, ...]
    """The messages, oldest first, as they were."""
    references: tuple[str, ...]
    """Their references, in the same order."""
    earlier: str | None
    """The narrative of an earlier pass, to be updated."""
    max_tokens: int
    """Tokens that the narrative may take."""
    count: Callable[[str], int]
    instructions: str | None = None
    facts: str = ""
    """What code writes next to the narrative; the narrative need not repeat it."""
    kept: tuple[Message, ...] = ()
    """The messages that stay in the context, oldest first."""
    kept_references: tuple[str, ...] = ()
    account: NarrativeAccount = msgspec.field(default_factory=NarrativeAccount)
    """Where a summarizer reports its cost and what it left out."""


Summarizer: TypeAlias = Callable[[Material], str | Awaitable[str]]
"""Turns what is to be left out into text; may await. An empty answer is a failure, and it is asked again."""


async def ask_summarizer(summarizer: Summarizer, material: Material, failures: list[str]) -> str:
    """Ask a summarizer until its text is usable, a bounded number of times; return an empty text if none is.

    A text that is empty or too long is a failure like an exception. Failures are appended to ``failures``.
    """
    for number in range(1, TRIES + 1):
        try:
            made = summarizer(material)
            text = narrated((made if isinstance(made, str) else await made).strip())
        except Exception as error:  # noqa: BLE001 — a summarizer may be anybody's code; the run must outlive it
            fault, logged = repr(error)[:MAX_FAULT], type(error).__name__
            if getattr(error, "is_final", False):
                failures.append(fault)
                _log.warning("the summarizer failed and is not asked again: %s", logged)
                return ""
        else:
            fault = logged = _fault(text, material)
            if not fault:
                return text
        failures.append(fault)
        _log.warning("the summarizer failed, try %d of %d: %s", number, TRIES, logged)
    return ""


def _fault(text: str, material: Material) -> str:
    if not text:
        return "the summary is empty"
    if material.count(text) > material.max_tokens:
        return f"the summary has more than the {material.max_tokens} tokens it may have"
    return ""
