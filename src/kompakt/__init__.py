"""kompakt keeps long-running LLM agents inside their context window.

It takes the history an agent would send to a model and gives back one that fits, that the provider accepts, and from
which nothing is lost.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from kompakt import strategies
from kompakt.api import (
    Compaction,
    acompact,
    check,
    compact,
    count,
    groups,
    parse,
    recall,
    recall_tool,
    render,
    repair,
    rounds,
    split,
    turns,
)
from kompakt.engine.context import Context
from kompakt.engine.policies import Policy, load_policies
from kompakt.engine.recall import Recalled
from kompakt.engine.report import Report
from kompakt.engine.telemetry import on_compaction
from kompakt.errors import (
    AmbiguousFormat,
    Busy,
    Conflict,
    DoesNotFit,
    InputError,
    KompaktError,
    MalformedPayload,
    Overflowed,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
    StoreVersion,
    UnknownFormat,
    UnreadableFile,
    UsageError,
)
from kompakt.files import load
from kompakt.model.budget import Budget, Usage
from kompakt.model.groups import Group, Round, Turn
from kompakt.model.limits import Limits, UnknownModelWarning, limits
from kompakt.model.messages import (
    History,
    Marker,
    Media,
    Message,
    Opaque,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from kompakt.model.tokens import Counter, TokenCount
from kompakt.version import __version__
from kompakt.wire.conversion import Drop
from kompakt.wire.overflow import Overflow, overflow
from kompakt.wire.problem import Change, Problem, Repair

if TYPE_CHECKING:
    from kompakt.agent.agent import Agent
    from kompakt.agent.clients import AnthropicMessages, Gemini, OpenAIChat, OpenAIResponses
    from kompakt.agent.configuration import CompactionConfig
    from kompakt.agent.prompts import Prompts
    from kompakt.agent.protocol import ChatClient, Delta, Reply, ToolSpec
    from kompakt.agent.summarizing import LLMSummarizer, SummaryFault
    from kompakt.agent.wrapping import wrap
    from kompakt.session.providers import ContextProvider, HistoryProvider, Run
    from kompakt.session.session import Session
    from kompakt.session.store import Store, open_store

__all__ = [
    "Agent",
    "AmbiguousFormat",
    "AnthropicMessages",
    "Budget",
    "Busy",
    "Change",
    "ChatClient",
    "Compaction",
    "CompactionConfig",
    "Conflict",
    "Context",
    "ContextProvider",
    "Counter",
    "Delta",
    "DoesNotFit",
    "Drop",
    "Gemini",
    "Group",
    "History",
    "HistoryProvider",
    "InputError",
    "KompaktError",
    "LLMSummarizer",
    "Limits",
    "MalformedPayload",
    "Marker",
    "Media",
    "Message",
    "Opaque",
    "OpenAIChat",
    "OpenAIResponses",
    "Overflow",
    "Overflowed",
    "Policy",
    "Problem",
    "Prompts",
    "ProviderError",
    "ProviderRefused",
    "ProviderUnavailable",
    "Reasoning",
    "Recalled",
    "Repair",
    "Reply",
    "Report",
    "Round",
    "Run",
    "Session",
    "Store",
    "StoreDamaged",
    "StoreError",
    "StoreUnavailable",
    "StoreVersion",
    "SummaryFault",
    "Text",
    "TokenCount",
    "ToolCall",
    "ToolResult",
    "ToolSpec",
    "Turn",
    "UnknownFormat",
    "UnknownModelWarning",
    "UnreadableFile",
    "Usage",
    "UsageError",
    "__version__",
    "acompact",
    "check",
    "compact",
    "count",
    "groups",
    "limits",
    "load",
    "load_policies",
    "on_compaction",
    "open_store",
    "overflow",
    "parse",
    "recall",
    "recall_tool",
    "render",
    "repair",
    "rounds",
    "split",
    "strategies",
    "turns",
    "wrap",
]

_LATE = {
    "Agent": "kompakt.agent.agent",
    "AnthropicMessages": "kompakt.agent.clients.anthropic",
    "ChatClient": "kompakt.agent.protocol",
    "CompactionConfig": "kompakt.agent.configuration",
    "ContextProvider": "kompakt.session.providers",
    "Delta": "kompakt.agent.protocol",
    "Gemini": "kompakt.agent.clients.gemini",
    "HistoryProvider": "kompakt.session.providers",
    "LLMSummarizer": "kompakt.agent.summarizing",
    "OpenAIChat": "kompakt.agent.clients.openai_chat",
    "OpenAIResponses": "kompakt.agent.clients.openai_responses",
    "Prompts": "kompakt.agent.prompts",
    "Reply": "kompakt.agent.protocol",
    "Run": "kompakt.session.providers",
    "Session": "kompakt.session.session",
    "Store": "kompakt.session.store",
    "SummaryFault": "kompakt.agent.summarizing",
    "ToolSpec": "kompakt.agent.protocol",
    "open_store": "kompakt.session.store",
    "wrap": "kompakt.agent.wrapping",
}
"""Names that are imported when they are asked for: who only works on payloads does not pay for event loops."""


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATE[name]), name)
