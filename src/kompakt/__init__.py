"""kompakt keeps long-running LLM agents inside their context window.

It takes the history an agent would send to a model and gives back one that fits, that the provider accepts, and from
which nothing is lost.
"""

from importlib import import_module
from typing import TYPE_CHECKING

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
    WrongKey,
)
from kompakt.version import __version__

if TYPE_CHECKING:
    from kompakt import admission, evals, events, strategies, triggers
    from kompakt.agent.agent import Agent
    from kompakt.agent.clients import AnthropicMessages, Gemini, OpenAIChat, OpenAIResponses
    from kompakt.agent.configuration import CompactionConfig
    from kompakt.agent.prompts import Prompts
    from kompakt.agent.protocol import ChatClient, Delta, Reply, ToolSpec
    from kompakt.agent.summarizing import LLMSummarizer, SummaryFault
    from kompakt.agent.wrapping import wrap
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
    from kompakt.engine.annotation import Annotation
    from kompakt.engine.context import Context
    from kompakt.engine.policies import Policy, load_policies
    from kompakt.engine.recall import Recalled
    from kompakt.engine.report import Report
    from kompakt.engine.telemetry import on_compaction
    from kompakt.files import load
    from kompakt.model.budget import Budget, Usage
    from kompakt.model.groups import Group, Round, Turn
    from kompakt.model.limits import Limits, UnknownModelWarning, limits
    from kompakt.model.messages import History, Marker, Media, Message, Opaque, Reasoning, Text, ToolCall, ToolResult
    from kompakt.model.tokens import Counter, TokenCount
    from kompakt.session.compacting import SessionCompaction
    from kompakt.session.providers import ContextProvider, HistoryProvider, Run
    from kompakt.session.session import Session
    from kompakt.session.store import Store, open_store
    from kompakt.wire.conversion import Drop
    from kompakt.wire.overflow import Overflow, overflow
    from kompakt.wire.problem import Change, Problem, Repair

__all__ = [
    "Agent",
    "AmbiguousFormat",
    "Annotation",
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
    "SessionCompaction",
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
    "WrongKey",
    "__version__",
    "acompact",
    "admission",
    "check",
    "compact",
    "count",
    "evals",
    "events",
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
    "triggers",
    "turns",
    "wrap",
]

_LATE = {
    "Agent": "kompakt.agent.agent",
    "Annotation": "kompakt.engine.annotation",
    "AnthropicMessages": "kompakt.agent.clients",
    "Budget": "kompakt.model.budget",
    "Change": "kompakt.wire.problem",
    "ChatClient": "kompakt.agent.protocol",
    "Compaction": "kompakt.api",
    "CompactionConfig": "kompakt.agent.configuration",
    "Context": "kompakt.engine.context",
    "ContextProvider": "kompakt.session.providers",
    "Counter": "kompakt.model.tokens",
    "Delta": "kompakt.agent.protocol",
    "Drop": "kompakt.wire.conversion",
    "Gemini": "kompakt.agent.clients",
    "Group": "kompakt.model.groups",
    "History": "kompakt.model.messages",
    "HistoryProvider": "kompakt.session.providers",
    "LLMSummarizer": "kompakt.agent.summarizing",
    "Limits": "kompakt.model.limits",
    "Marker": "kompakt.model.messages",
    "Media": "kompakt.model.messages",
    "Message": "kompakt.model.messages",
    "Opaque": "kompakt.model.messages",
    "OpenAIChat": "kompakt.agent.clients",
    "OpenAIResponses": "kompakt.agent.clients",
    "Overflow": "kompakt.wire.overflow",
    "Policy": "kompakt.engine.policies",
    "Problem": "kompakt.wire.problem",
    "Prompts": "kompakt.agent.prompts",
    "Reasoning": "kompakt.model.messages",
    "Recalled": "kompakt.engine.recall",
    "Repair": "kompakt.wire.problem",
    "Reply": "kompakt.agent.protocol",
    "Report": "kompakt.engine.report",
    "Round": "kompakt.model.groups",
    "Run": "kompakt.session.providers",
    "Session": "kompakt.session.session",
    "SessionCompaction": "kompakt.session.compacting",
    "Store": "kompakt.session.store",
    "SummaryFault": "kompakt.agent.summarizing",
    "Text": "kompakt.model.messages",
    "TokenCount": "kompakt.model.tokens",
    "ToolCall": "kompakt.model.messages",
    "ToolResult": "kompakt.model.messages",
    "ToolSpec": "kompakt.agent.protocol",
    "Turn": "kompakt.model.groups",
    "UnknownModelWarning": "kompakt.model.limits",
    "Usage": "kompakt.model.budget",
    "acompact": "kompakt.api",
    "admission": "kompakt.admission",
    "check": "kompakt.api",
    "compact": "kompakt.api",
    "count": "kompakt.api",
    "evals": "kompakt.evals",
    "events": "kompakt.events",
    "groups": "kompakt.api",
    "limits": "kompakt.model.limits",
    "load": "kompakt.files",
    "load_policies": "kompakt.engine.policies",
    "on_compaction": "kompakt.engine.telemetry",
    "open_store": "kompakt.session.store",
    "overflow": "kompakt.wire.overflow",
    "parse": "kompakt.api",
    "recall": "kompakt.api",
    "recall_tool": "kompakt.api",
    "render": "kompakt.api",
    "repair": "kompakt.api",
    "rounds": "kompakt.api",
    "split": "kompakt.api",
    "strategies": "kompakt.strategies",
    "triggers": "kompakt.triggers",
    "turns": "kompakt.api",
    "wrap": "kompakt.agent.wrapping",
}
"""Names that are imported on first use: loading every wire and strategy takes a quarter of a second, and a hook or a
program that only uses some of them should not pay for the rest."""


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_LATE[name])
    found = module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
