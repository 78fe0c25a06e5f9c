"""The contexts that readers get, one per case and condition.

A system prompt is the same under every condition and is left out. The budget of a compaction is its room, plus what
every condition shows beside it: system prompt, tools, the first and the newest request.
"""

from __future__ import annotations

import re

import msgspec

from kompakt import api
from kompakt.engine.compaction.policies import policy_named, with_summarizer
from kompakt.engine.pivot.pivot import Summarizer
from kompakt.errors import DoesNotFit, UsageError
from kompakt.evals.exam.questions import SUMMARY, ExamCase
from kompakt.model.json import json_text
from kompakt.model.messages import History, Message, Text, ToolCall, ToolResult

CONDITIONS = {
    "summary": "the summary of the recording",
    "same": "kompakt, in as many tokens as the summary",
    "tenth": "kompakt, in 10 % of the session's tokens",
    "recall": "the same as tenth, with up to three recalls per question",
    "narrative": "kompakt with a narrative by a model, in as many tokens as the summary",
}
"""How a context is made. ``N%``, for example ``25%``, is kompakt in that share of the session's tokens."""

_SHARE = re.compile(r"([1-9]\d?)%")

_NEED_SUMMARY = frozenset(["summary", "same", "narrative"])
"""Conditions whose size is that of the summary."""


class ExamContext(msgspec.Struct, frozen=True):
    """What a reader gets."""

    text: str
    tokens: int


def description(condition: str) -> str | None:
    """Describe a condition; ``None`` if there is none of this name."""
    share = _SHARE.fullmatch(condition)
    if share is not None:
        return f"kompakt, in {share[1]} % of the session's tokens"
    return CONDITIONS.get(condition)


def _share(condition: str) -> float:
    """Return the share of the session's tokens that a condition gets."""
    share = _SHARE.fullmatch(condition)
    return int(share[1]) / 100 if share is not None else 0.10


def possible(cases: list[ExamCase], condition: str) -> bool:
    """Return whether every case has what a condition needs."""
    return condition not in _NEED_SUMMARY or all(case.summary is not None for case in cases)


async def context(case: ExamCase, condition: str, *, policy: str, summarizer: Summarizer | None = None) -> ExamContext:
    """Make the context of a case.

    A compaction that does not fit gives a context that says so.

    Raises:
        UsageError: the condition needs a summary that the case does not have, or a writer.
    """
    if condition in _NEED_SUMMARY and case.summary is None:
        raise UsageError(f"condition {condition!r} needs {SUMMARY} in {case.name}; choose others with --conditions")
    asked = _requests(case.history)
    room = int(_share(condition) * api.count(case.history).total)
    if case.summary is not None and condition in _NEED_SUMMARY:
        room = _size(case.history, case.summary)
        if condition == "summary":
            text = f"[first request]\n{asked[0]}\n\n[newest request]\n{asked[-1]}\n\n[summary so far]\n{case.summary}"
            return ExamContext(text, _size(case.history, text))
    budget = _fixed(case.history) + _size(case.history, asked[0] + asked[-1]) + room
    chosen = policy_named(policy)
    if condition == "narrative":
        if summarizer is None:
            raise UsageError("condition 'narrative' needs a model that writes it; pass --writer MODEL")
        chosen = with_summarizer(chosen, summarizer)
    try:
        done = await api.acompact(case.history, budget, policy=chosen)
    except DoesNotFit as error:
        return ExamContext(f"(nothing: {error})", 0)
    text = shown(api.parse(done.payload, case.history.format))
    return ExamContext(text, _size(case.history, text))


def _requests(history: History) -> list[str]:
    """Return the texts of the user, in order."""
    texts = [part.text for message in history if message.role == "user" for part in message.parts if type(part) is Text]
    return texts or [""]


def _fixed(history: History) -> int:
    """Count system prompt and tools."""
    some = (Message("user", (Text("x"),)),)
    bare = History(some, format=history.format, model=history.model, contract=history.contract)
    return api.count(history.with_messages(some)).total - api.count(bare).total


def _size(history: History, text: str) -> int:
    message = Message("user", (Text(text),))
    return api.count(History((message,), format=history.format, model=history.model, contract=history.contract)).total


def shown(history: History) -> str:
    """Write down everything that a model reads of the messages."""
    found: list[str] = []
    for place, message in enumerate(history):
        for part in message.parts:
            match part:
                case Text():
                    found.append(f"[{place} {message.role}]\n{part.text}")
                case ToolCall():
                    given = part.input if isinstance(part.input, str) else json_text(part.input)
                    found.append(f"[{place} assistant calls {part.name}]\n{given}")
                case ToolResult():
                    found.append(f"[{place} tool result{' (error)' if part.is_error else ''}]\n{part.output}")
                case _:
                    pass
    return "\n\n".join(found)
