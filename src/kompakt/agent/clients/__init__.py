"""Chat clients on the official SDKs, one for each protocol. Each module is imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kompakt.agent.clients.anthropic import AnthropicMessages
    from kompakt.agent.clients.gemini import Gemini
    from kompakt.agent.clients.openai_chat import OpenAIChat
    from kompakt.agent.clients.openai_responses import OpenAIResponses

__all__ = ["AnthropicMessages", "Gemini", "OpenAIChat", "OpenAIResponses"]

_MODULES = {
    "AnthropicMessages": "anthropic",
    "Gemini": "gemini",
    "OpenAIChat": "openai_chat",
    "OpenAIResponses": "openai_responses",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
