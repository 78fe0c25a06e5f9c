"""What a summariser is given and gives back, and how it is asked: again when it fails, a bounded number of times.

A summary that is empty or longer than it may be is a failure like an exception. Failures are reported; when none of the
tries gives a usable text, the ledger speaks alone.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import msgspec

from kompakt.engine.ledger.items import narrated
from kompakt.model.budget import Usage
from kompakt.model.messages import Message

_log = logging.getLogger("kompakt.compaction")

TRIES = 3
"""How often a summariser is asked before the ledger speaks alone."""

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


async def ask(summarizer: Summarizer, material: Material, failures: list[str]) -> str:
    """Ask a summariser for a text that can be used; an empty text when there is none. Failures are appended."""
    for number in range(1, TRIES + 1):
        try:
            made = summarizer(material)
            text = narrated((made if isinstance(made, str) else await made).strip())
        except Exception as error:  # noqa: BLE001 — a summariser is anybody's code; the run must outlive it
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
