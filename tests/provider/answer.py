"""Answers and requests in a neutral form, before the dialect of a provider."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Body: TypeAlias = dict[str, Any]
Stop: TypeAlias = Literal["end", "length", "refusal", "window"]


@dataclass(frozen=True)
class Call:
    """A tool call as the model makes it."""

    id: str
    name: str
    arguments: Body

    @property
    def text(self) -> str:
        return json.dumps(self.arguments)


@dataclass(frozen=True)
class Answer:
    """What the model says. ``signature`` is filled in by the provider when there is something to sign."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    thinking: str = ""
    stop: Stop = "end"
    signature: str = ""
    compaction: tuple[str, str] | None = None
    """A compaction before the answer: its readable part and its mark."""


@dataclass(frozen=True)
class Usage:
    """Tokens of one step; ``cached`` and ``written`` are parts of ``prompt``, ``reasoning`` is a part of ``output``."""

    prompt: int
    output: int
    cached: int = 0
    written: int = 0
    reasoning: int = 0


@dataclass(frozen=True)
class Seen:
    """A request, read. Ids of results and calls are those after, and in, the model's last turn."""

    format: str
    model: str
    stream: bool
    max_output: int | None
    items: list[Any]
    """The messages, contents or input items as sent."""
    system: Any
    tools: list[Body]
    """Declared functions, each with ``name`` and ``schema``."""
    raw_tools: Any
    first_user: str
    results: list[str]
    last_calls: list[Call]
    leaves: list[str] = field(repr=False)
    """Every string of system and messages."""
    closing: str = ""
    """Text of the last message."""
    thinks: bool = False
    """The request asks for thinking that must be there."""
    caches: bool = False
    """The request asks for all of it to be cached."""


@dataclass(frozen=True)
class Refusal:
    """Why a request is not answered: a status, the provider's code for it, and what it says."""

    status: int
    code: str
    message: str
    param: str | None = None
