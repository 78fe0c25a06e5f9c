"""The gate: admits each message once, when it is appended.

The decision depends on the message and the messages before it, never on later ones, so a request that was sent is
repeated byte for byte and prompt caches stay valid. The gate also remembers the arguments of calls: a file that the
agent wrote itself need not be shown again. Cost: the size of the message.
"""

from __future__ import annotations

from functools import partial

import msgspec

from kompakt.engine.admission.admit import admit
from kompakt.engine.admission.calls import heading, texts_of
from kompakt.engine.admission.lines import Seen
from kompakt.engine.admission.settings import DEFAULT, AdmissionSettings
from kompakt.engine.context.context import Context
from kompakt.engine.strategies.strategy import results_of
from kompakt.model.messages import ToolCall

_MIN_LINES = 3
"""Minimum lines of an argument that is remembered."""


class Gate:
    """Admits the messages of one history, each once and in order."""

    __slots__ = ("_passed", "_seen", "settings")

    def __init__(self, settings: AdmissionSettings) -> None:
        self.settings = settings
        self._seen = Seen()
        self._passed = 0

    def admit(self, context: Context) -> bool:
        """Admit new messages; return whether any output was changed."""
        changed = False
        for index in range(self._passed, len(context.messages)):
            changed |= admit_message(context, index, self._seen, self.settings)
        self._passed = len(context.messages)
        return changed


def admit_message(context: Context, index: int, seen: Seen, settings: AdmissionSettings = DEFAULT) -> bool:
    """Admit a message that was just appended; return whether it was changed.

    Call it once for every message, in order, with the same ``seen``. What failed, what is pinned, what comes with a
    picture, what the provider ran and what must stay as it is are left alone.
    """
    for place, part in enumerate(context.messages[index].parts):
        if type(part) is ToolCall and not part.hosted:
            _remember(context.reference(index, place), part, seen)
    changed = False
    for place, result in list(results_of(context, index)):
        reference = context.reference(index, place)
        call = seen.calls.pop(result.call_id, None)
        if result.is_error or result.media or context.group_at(index).pinned:
            seen.add_text(reference, result.output)
            continue
        count = context.counter.text
        given, above = (None, None) if call is None else (call.input, partial(heading, call, result))
        admitted = admit(
            result.output,
            reference=reference,
            settings=settings,
            seen=seen,
            call_input=given,
            count=count,
            above=above,
        )
        if admitted is not None:
            instead = msgspec.structs.replace(result, output=admitted.text, edited=True)
            context.show(index, place, instead, what="admitted", why=f"as {admitted.kind}")
            changed = True
    return changed


def _remember(reference: str, call: ToolCall, seen: Seen) -> None:
    """Remember a call for its result, and its texts for outputs that repeat them."""
    seen.calls[call.id] = call
    for text in texts_of(call.input):
        if text.count("\n") >= _MIN_LINES:
            seen.add(reference, text.split("\n"))
