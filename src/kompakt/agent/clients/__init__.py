"""Chat clients on the official SDKs, one a protocol; each is imported, with its SDK, when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kompakt.agent.clients.anthropic import AnthropicMessages
    from kompakt.agent.clients.gemini import Gemini
    from kompakt.agent.clients.openai_chat import OpenAIChat
    from kompakt.agent.clients.openai_responses import OpenAIResponses

__all__ = ["AnthropicMessages", "Gemini", "OpenAIChat", "OpenAIResponses"]

_HOMES = {
    "AnthropicMessages": "anthropic",
    "Gemini": "gemini",
    "OpenAIChat": "openai_chat",
    "OpenAIResponses": "openai_responses",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
