"""The pivot: a question and an answer that stand for what was left out.

The summary is the assistant's own text, never "the user said". It is sealed with a checksum, so that a later pass knows
its own pivot again in its fixed place and role, and nothing that merely looks like one — in a tool output, in the
user's words — is taken for it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from kompakt.engine.wording import PIVOT_QUESTION
from kompakt.model.messages import Message, Text

_SEAL = re.compile(r"\n\[kompakt summary ([0-9a-f]{16})\]\Z")


def render(text: str) -> tuple[Message, Message]:
    """Write a summary as a question of the user's side and an answer of the assistant's."""
    question = Message("user", (Text(PIVOT_QUESTION),))
    return question, Message("assistant", (Text(seal(text)),), is_summary=True)


def seal(text: str) -> str:
    """Mark a summary as kompakt's own."""
    return f"{text}\n[kompakt summary {_checksum(text)}]"


def unseal(text: str) -> str | None:
    """Return the summary inside a sealed text; ``None`` when the seal is missing or wrong."""
    found = _SEAL.search(text)
    if found is None:
        return None
    body = text[: found.start()]
    return body if _checksum(body) == found[1] else None


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


def _checksum(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, person=b"kompakt").hexdigest()
