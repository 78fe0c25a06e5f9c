"""kompakt keeps long-running LLM agents inside their context window.

It takes the history an agent would send to a model and gives back one that fits, that the provider accepts, and from
which nothing is lost.
"""

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

TYPE_CHECKING = False  # a hook runs at every tool call, and importing typing takes longer than all of this
if TYPE_CHECKING:
    from kompakt import admission, evals, events, fleet, strategies, triggers
    from kompakt.agent.agent import Agent
    from kompakt.agent.client import ChatClient, Delta, Reply, ToolSpec
    from kompakt.agent.clients import AnthropicMessages, Gemini, OpenAIChat, OpenAIResponses
    from kompakt.agent.config import CompactionConfig
    from kompakt.agent.summarizer.llm import LLMSummarizer, SummaryFault
    from kompakt.agent.summarizer.prompts import Prompts
    from kompakt.agent.wrap import wrap
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
    from kompakt.engine.compaction.policies import Policy, load_policies
    from kompakt.engine.compaction.report import Report, on_compaction
    from kompakt.engine.context.context import Annotation, Context
    from kompakt.engine.recall import Recalled
    from kompakt.files import load
    from kompakt.model.budget import Budget, Usage
    from kompakt.model.groups import Group, Round, Turn
    from kompakt.model.limits import Limits, UnknownModelWarning, limits
    from kompakt.model.messages import History, Marker, Media, Message, Opaque, Reasoning, Text, ToolCall, ToolResult
    from kompakt.model.tokens import Counter, TokenCount
    from kompakt.session.compaction import SessionCompaction
    from kompakt.session.providers import ContextProvider, HistoryProvider, Run
    from kompakt.session.session import Session
    from kompakt.session.store import Store, open_store
    from kompakt.wire.overflow import Overflow, overflow
    from kompakt.wire.translate import Drop
    from kompakt.wire.wire import Change, Problem, Repair

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
    "fleet",
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
    "Annotation": "kompakt.engine.context.context",
    "AnthropicMessages": "kompakt.agent.clients",
    "Budget": "kompakt.model.budget",
    "Change": "kompakt.wire.wire",
    "ChatClient": "kompakt.agent.client",
    "Compaction": "kompakt.api",
    "CompactionConfig": "kompakt.agent.config",
    "Context": "kompakt.engine.context.context",
    "ContextProvider": "kompakt.session.providers",
    "Counter": "kompakt.model.tokens",
    "Delta": "kompakt.agent.client",
    "Drop": "kompakt.wire.translate",
    "Gemini": "kompakt.agent.clients",
    "Group": "kompakt.model.groups",
    "History": "kompakt.model.messages",
    "HistoryProvider": "kompakt.session.providers",
    "LLMSummarizer": "kompakt.agent.summarizer.llm",
    "Limits": "kompakt.model.limits",
    "Marker": "kompakt.model.messages",
    "Media": "kompakt.model.messages",
    "Message": "kompakt.model.messages",
    "Opaque": "kompakt.model.messages",
    "OpenAIChat": "kompakt.agent.clients",
    "OpenAIResponses": "kompakt.agent.clients",
    "Overflow": "kompakt.wire.overflow",
    "Policy": "kompakt.engine.compaction.policies",
    "Problem": "kompakt.wire.wire",
    "Prompts": "kompakt.agent.summarizer.prompts",
    "Reasoning": "kompakt.model.messages",
    "Recalled": "kompakt.engine.recall",
    "Repair": "kompakt.wire.wire",
    "Reply": "kompakt.agent.client",
    "Report": "kompakt.engine.compaction.report",
    "Round": "kompakt.model.groups",
    "Run": "kompakt.session.providers",
    "Session": "kompakt.session.session",
    "SessionCompaction": "kompakt.session.compaction",
    "Store": "kompakt.session.store",
    "SummaryFault": "kompakt.agent.summarizer.llm",
    "Text": "kompakt.model.messages",
    "TokenCount": "kompakt.model.tokens",
    "ToolCall": "kompakt.model.messages",
    "ToolResult": "kompakt.model.messages",
    "ToolSpec": "kompakt.agent.client",
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
    "fleet": "kompakt.fleet",
    "groups": "kompakt.api",
    "limits": "kompakt.model.limits",
    "load": "kompakt.files",
    "load_policies": "kompakt.engine.compaction.policies",
    "on_compaction": "kompakt.engine.compaction.report",
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
    "wrap": "kompakt.agent.wrap",
}
"""Names that are imported on first use: loading every wire and strategy takes a quarter of a second, and a hook or a
program that only uses some of them should not pay for the rest."""


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # late: see TYPE_CHECKING

    module = import_module(_LATE[name])
    found = module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
