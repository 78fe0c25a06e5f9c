"""The pivot: a question and an answer that stand for what was left out.

The summary is the assistant's own text, never "the user said". It is sealed, so that a later pass recognizes its own
pivot in its fixed place and role, and nothing that only looks like one, in a tool output or in the user's words. A seal
without a key is a checksum. The key of an encrypted store makes it a proof: an imported history cannot forge a pivot.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kompakt.model.messages import Message, Text
from kompakt.model.phrases import is_pivot_question, pivot_question, seal, unseal


class PivotFrame(msgspec.Struct, frozen=True):
    """What surrounds the text of a pivot. A pivot keeps its frame until the next one replaces it."""

    key: bytes = b""
    """The key of the seal; empty for a checksum only."""
    question: str = ""
    """The application's own words for the question; empty for the usual ones."""


PLAIN = PivotFrame()


def render(text: str, frame: PivotFrame = PLAIN) -> tuple[Message, Message]:
    """Write a summary as a question of the user's side and an answer of the assistant's."""
    question = Message("user", (Text(pivot_question(frame.question)),))
    return question, Message("assistant", (Text(seal(text, frame.key)),), is_summary=True)


def resealed(answer: Message, key: bytes) -> Message:
    """Seal the answer of a pivot with another key; any other message stays as it is."""
    body = unseal(answer.text) if len(answer.parts) == 1 and type(answer.parts[0]) is Text else None
    return answer if body is None else answer.with_parts((Text(seal(body, key)),))


def earlier(messages: Sequence[Message], key: bytes = b"") -> tuple[int, str] | None:
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
