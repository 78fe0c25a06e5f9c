"""Ask the agent to go on after a compaction that nobody asked for: in which words, when, and the room that takes."""

from __future__ import annotations

from collections.abc import Sequence

from kompakt.model.contract import Contract
from kompakt.model.groups import groups
from kompakt.model.messages import Message, Opaque, Reasoning, Text
from kompakt.model.pairs import pair
from kompakt.model.phrases import ASSISTANT_LINE, RESUME_PROMPT
from kompakt.model.tokens import Counter
from kompakt.session.row_codec import RESUME_SOURCE


def resuming() -> Message:
    """Make the message that asks the agent to go on."""
    return Message("user", (Text(RESUME_PROMPT),), source_id=RESUME_SOURCE)


def room_for(counter: Counter) -> int:
    """Count that message, with the line that may have to part it from what stands before."""
    return counter.message(resuming()) + counter.message(Message("assistant", (Text(ASSISTANT_LINE),)))


def mid_step(messages: Sequence[Message], contract: Contract | None = None) -> bool:
    """Tell whether a step is not over: nobody may speak between a call and its result, and nobody has to.

    Where the provider takes no words beside results, the results that the model is about to read end nothing either.
    """
    if not messages:
        return False
    last = messages[-1]
    if last.results and contract is not None and contract.alternates and not contract.merges_results:
        return True
    if last.parts and all(type(part) is Opaque for part in last.parts):  # a provider's sign that may have to be last
        return True
    if last.role == "assistant" and all(type(part) is Reasoning for part in last.parts):
        return True
    newest = groups(messages)[-1].messages
    return last in newest and bool(pair(newest).open)
