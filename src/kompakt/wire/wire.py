"""The five wire formats by name, each as one value with the same six abilities.

Whoever needs a provider's knowledge asks for it here by format name; nothing else imports a provider's module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from kompakt.model.budget import Usage
from kompakt.model.contract import Contract
from kompakt.model.messages import History, Json, JsonObject, Message
from kompakt.wire.anthropic import messages as anthropic
from kompakt.wire.anthropic import repair as anthropic_repair
from kompakt.wire.anthropic import rules as anthropic_rules
from kompakt.wire.bedrock import messages as bedrock
from kompakt.wire.bedrock import rules as bedrock_rules
from kompakt.wire.gemini import contents as gemini
from kompakt.wire.gemini import rules as gemini_rules
from kompakt.wire.openai_chat import messages as openai_chat
from kompakt.wire.openai_chat import rules as openai_chat_rules
from kompakt.wire.openai_responses import items as openai_responses
from kompakt.wire.openai_responses import rules as openai_responses_rules
from kompakt.wire.overflow import Overflow, overflow
from kompakt.wire.problems import Change, Problem
from kompakt.wire.usage import normalize


class Problems(Protocol):
    """Lists where a provider would refuse a history."""

    def __call__(self, items: Sequence[Json], body: JsonObject | None, *, strict: bool = False) -> list[Problem]:
        """Look at the messages as they would be sent."""
        ...


class Mend(Protocol):
    """Mends the messages of a history and says what was done."""

    def __call__(self, history: History, *, strict: bool = False) -> tuple[list[Message], list[Change]]:
        """Return the mended messages and the changes."""
        ...


class MendBody(Protocol):
    """Mends what stands beside the messages, given the messages as they are now."""

    def __call__(self, history: History, messages: Sequence[Message]) -> tuple[JsonObject | None, list[Change]]:
        """Return the mended body, or the same one, and the changes."""
        ...


def _leave_body(history: History, messages: Sequence[Message]) -> tuple[JsonObject | None, list[Change]]:
    del messages
    return history.body, []


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """All that kompakt knows of one format."""

    format: str
    messages_key: str
    """The field of a request body that holds the messages."""
    contract: Contract
    parse: Callable[[Sequence[Json], JsonObject | None], History]
    render: Callable[[Message], list[Json]]
    problems: Problems
    repair: Mend
    repair_body: MendBody = _leave_body
    usage: Callable[[Mapping[str, Any] | None], Usage]
    overflow: Callable[..., Overflow | None] = overflow


WIRES: dict[str, Wire] = {
    wire.format: wire
    for wire in (
        Wire(
            format=openai_chat.FORMAT,
            messages_key=openai_chat.MESSAGES,
            contract=openai_chat.CONTRACT,
            parse=openai_chat.parse,
            render=openai_chat.render,
            problems=openai_chat_rules.problems,
            repair=openai_chat_rules.repair,
            usage=partial(normalize, format=openai_chat.FORMAT),
        ),
        Wire(
            format=openai_responses.FORMAT,
            messages_key=openai_responses.MESSAGES,
            contract=openai_responses.CONTRACT,
            parse=openai_responses.parse,
            render=openai_responses.render,
            problems=openai_responses_rules.problems,
            repair=openai_responses_rules.repair,
            usage=partial(normalize, format=openai_responses.FORMAT),
        ),
        Wire(
            format=anthropic.FORMAT,
            messages_key=anthropic.MESSAGES,
            contract=anthropic.CONTRACT,
            parse=anthropic.parse,
            render=anthropic.render,
            problems=anthropic_rules.problems,
            repair=anthropic_repair.repair,
            repair_body=anthropic_repair.repair_body,
            usage=partial(normalize, format=anthropic.FORMAT),
        ),
        Wire(
            format=gemini.FORMAT,
            messages_key=gemini.MESSAGES,
            contract=gemini.CONTRACT,
            parse=gemini.parse,
            render=gemini.render,
            problems=gemini_rules.problems,
            repair=gemini_rules.repair,
            usage=partial(normalize, format=gemini.FORMAT),
        ),
        Wire(
            format=bedrock.FORMAT,
            messages_key=bedrock.MESSAGES,
            contract=bedrock.CONTRACT,
            parse=bedrock.parse,
            render=bedrock.render,
            problems=bedrock_rules.problems,
            repair=bedrock_rules.repair,
            repair_body=bedrock_rules.repair_body,
            usage=partial(normalize, format=bedrock.FORMAT),
        ),
    )
}
