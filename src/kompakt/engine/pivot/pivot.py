"""The pivot: a question and an answer that stand for what was left out.

The summary is the assistant's own text, never "the user said". It is sealed with a checksum, so that a later pass knows
its own pivot again in its fixed place and role, and nothing that merely looks like one — in a tool output, in the
user's words — is taken for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kompakt.model.messages import Message, Text
from kompakt.model.phrases import PIVOT_QUESTION, seal, unseal


def render(text: str) -> tuple[Message, Message]:
    """Write a summary as a question of the user's side and an answer of the assistant's."""
    question = Message("user", (Text(PIVOT_QUESTION),))
    return question, Message("assistant", (Text(seal(text)),), is_summary=True)


def earlier(messages: Sequence[Message]) -> tuple[int, str] | None:
    """Find the newest pivot of an earlier pass: the index of its answer, and its summary."""
    for index in range(len(messages) - 1, 0, -1):
        answer = messages[index]
        if answer.role != "assistant" or len(answer.parts) != 1 or type(answer.parts[0]) is not Text:
            continue
        asked = messages[index - 1].parts[-1:] if messages[index - 1].role == "user" else ()
        if not asked or type(asked[0]) is not Text or asked[0].text != PIVOT_QUESTION:
            continue
        body = unseal(answer.parts[0].text)
        if body is not None:
            return index, body
    return None
