"""Refusals: tool calls that the user did not allow, with the user's reason.

The reason is a fact if there is one, word for word; otherwise the refused command or file is, with a word for the
refusal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kompakt.evals.facts.fact import OperationalFact, words
from kompakt.evals.facts.paths import named_file, short
from kompakt.evals.facts.shell import command_of, first_line
from kompakt.evals.history_events import CallPair, HistoryEvent

WORDS = words("refus", "reject", "declin", "denied", "not allow")

_REFUSED = re.compile(
    r"user (?:doesn't|does not|did not|didn't) want to|(?:rejected|denied|declined) by the user", re.I
)
_REASON = re.compile(r"user (?:said|says|wrote):\s*(.+)", re.I | re.S)
_START = 300
"""Characters at the start of an answer in which a refusal is stated."""


def is_refused(result: HistoryEvent) -> bool:
    """Return whether a result says that the user did not allow the call."""
    return result.failed and _REFUSED.search(result.text[:_START]) is not None


def refusal_facts(pairs: Iterable[CallPair]) -> Iterator[OperationalFact]:
    for call in pairs:
        if call.result is None or not is_refused(call.result):
            continue
        reason = _REASON.search(call.result.text)
        if reason is not None:
            key = " ".join(reason[1].split())
            yield OperationalFact("refusal", key, "the user's reason", "", (call.event.id,))
            continue
        command, path = command_of(call.event), named_file(call.event)
        key = first_line(command) if command else short(path) if path else call.event.name
        yield OperationalFact("refusal", key, "refused", WORDS, (call.event.id,))
