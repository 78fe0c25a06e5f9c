"""Labels by which people recognise a session: title, model, client and purpose.

Agents also send requests for titles, quotas and loop checks. Those start sessions of their own; the purpose tells them
from conversations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import takewhile
from typing import Literal, TypeAlias

import msgspec

from kompakt.engine.context.archive import speaks
from kompakt.engine.ledger.extract.user_words import is_injected, without_leading_tags
from kompakt.errors import InputError
from kompakt.gateway.request.history import HashChain, RequestBody, decode_item, parse_items
from kompakt.gateway.storage.recorder import RecordedBranch, encode_note
from kompakt.gateway.storage.storage import GatewayStorage, Owner
from kompakt.model.json import prepare
from kompakt.model.lru import Lru
from kompakt.model.messages import Message, Text
from kompakt.session.session import label_name

Purpose: TypeAlias = Literal["title", "quota-check", "loop-check", "next-speaker-check", "compaction", "auxiliary"]

MAX_TITLE = 80
"""Characters of a title."""

MAX_KNOWN = 10_000
"""Sessions known to be labelled. A session that is evicted is labelled again; the store keeps its first label."""

_SEARCHED = 20_000
"""Bytes of a text searched for a purpose, which is near its start."""

_TITLE_MESSAGES = 6
"""User messages searched for a title; agents put their own context before the task."""

_SCANNED = 200
"""Messages of any role among which those are searched."""

_CLIENTS = (
    ("claude-cli/", "Claude Code"),
    ("codex", "Codex"),
    ("opencode/", "opencode"),
    ("GeminiCLI", "Gemini CLI"),
    ("QwenCode", "Qwen Code"),
    ("pi/", "pi"),
    ("aider", "aider"),
    ("litellm/", "LiteLLM"),
    ("OpenAI/", "OpenAI SDK"),
    ("AsyncOpenAI/", "OpenAI SDK"),
    ("Anthropic/", "Anthropic SDK"),
    ("AsyncAnthropic/", "Anthropic SDK"),
    ("google-genai-sdk/", "Google Gen AI SDK"),
    ("ai-sdk/", "AI SDK"),
)
"""Start of the user-agent header, and the name of the client."""

_VERSION = re.compile(r"[^/\s]*/v?(\d[\w.+-]{0,30})")
_PRODUCT = re.compile(r"[A-Za-z][\w.-]{0,40}(?:/[\w.+-]{1,30})?")

_PHRASES: tuple[tuple[bytes, Purpose], ...] = (
    (b"You are naming a coding session", "title"),  # Claude Code
    (b"sentence-case title", "title"),  # Claude Code before 2.1
    (b"indicates a new conversation topic", "title"),  # Claude Code 1
    (b"You are a title generator", "title"),  # opencode
    (b"you will generate a short title", "title"),  # crush
    (b"Generate a concise, 3-5 word title", "title"),  # Open WebUI
    (b"identifying when a conversational AI is stuck in an unproductive state", "loop-check"),  # Gemini CLI, Qwen Code
    (b"determine who should logically speak next", "next-speaker-check"),  # Gemini CLI, Qwen Code
)
"""Phrases of agents in requests that are not part of a conversation. None of these requests has tools."""

_CLASSES: dict[str, Purpose] = {"auxiliary": "auxiliary", "compaction": "compaction"}
"""Values of Claude Code's ``x-claude-code-request-class`` header."""

_TITLE_TEXT = 100_000
"""Characters of a text searched for a title."""


class Label(msgspec.Struct, frozen=True, omit_defaults=True):
    """The label of a session. The field names are stored."""

    title: str = ""
    model: str | None = None
    client: str | None = None
    purpose: Purpose | None = None


class Labels:
    """Labels sessions at their first request."""

    def __init__(self, storage: GatewayStorage) -> None:
        self._storage = storage
        self._known = Lru[tuple[str, str], bool](MAX_KNOWN)
        self._losses = storage.losses

    def put(self, owner: Owner, branch: RecordedBranch, chain: HashChain, headers: Mapping[str, str]) -> None:
        """Label the session of a request in the background, unless it is labelled."""
        place = (owner.tenant, branch.session)
        if self._losses != self._storage.losses:
            self._known.clear()
            self._losses = self._storage.losses
        if place in self._known:
            return
        self._known.put(place, True)
        label = Label(
            title_of(chain),
            chain.request.model,
            client_of(headers.get("user-agent", "")),
            purpose_of(chain.request, headers),
        )
        note = {label_name(branch.session): encode_note(label, self._storage.value_codec)}
        self._storage.write_notes_later(
            owner, branch.session, note, on_failure=lambda: self._known.remove(place)
        )  # then the next request labels it


def client_of(agent: str) -> str | None:
    """Return the name and version of the client with this user agent."""
    for begins, name in _CLIENTS:
        if agent.startswith(begins):
            version = _VERSION.match(agent)
            return f"{name} {version[1]}" if version else name
    product = _PRODUCT.match(agent)
    return product[0] if product else None


def purpose_of(request: RequestBody, headers: Mapping[str, str]) -> Purpose | None:
    """Return the purpose of a request; ``None`` when it is part of a conversation."""
    named = _CLASSES.get(headers.get("x-claude-code-request-class", ""))
    tools = request.before.get("tools", request.after.get("tools", b""))
    if named is not None or tools.strip() not in (b"", b"[]", b"null"):
        return named
    first, last = request.item(0)[:_SEARCHED], request.item(len(request.spans) - 1)[:_SEARCHED]
    if len(request.spans) == 1 and request.output == 1 and b'"quota"' in first:
        return "quota-check"
    beside = (request.before | request.after).items()
    texts = [raw[:_SEARCHED] for name, raw in beside if name in ("system", "instructions", "systemInstruction")]
    return next(
        (purpose for phrase, purpose in _PHRASES if any(phrase in text for text in (*texts, first, last))), None
    )


def title_of(chain: HashChain) -> str:
    """Return the first words that a person wrote."""
    spoken, end = 0, min(chain.length, chain.lead + _SCANNED)
    answers = set(takewhile(lambda at: at < end, chain.answers))
    for index in range(chain.lead, end):
        if index in answers:
            continue
        try:
            (message,) = parse_items([decode_item(chain.request.item(index))], chain.request.format)
        except InputError:
            continue
        if not speaks(message):
            continue
        title = _words(message)
        spoken += 1
        if title or spoken == _TITLE_MESSAGES:
            return title
    return ""


def _words(message: Message) -> str:
    """Return the first line that is not context added by the agent."""
    for part in message.parts:
        if type(part) is not Text or is_injected(part.text[:_TITLE_TEXT]):
            continue
        text = " ".join(without_leading_tags(part.text[:_TITLE_TEXT]).partition("\n")[0].split())
        if text:
            return text if len(text) <= MAX_TITLE else text[: MAX_TITLE - 1].rstrip() + "…"
    return ""


prepare(Label)
