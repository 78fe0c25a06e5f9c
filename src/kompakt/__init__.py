"""kompakt keeps long-running LLM agents inside their context window.

It takes the history an agent would send to a model and gives back one that fits, that the provider accepts, and from
which nothing is lost.
"""

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
    DoesNotFit,
    InputError,
    KompaktError,
    MalformedPayload,
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

__all__ = [
    "AmbiguousFormat",
    "Budget",
    "Change",
    "Compaction",
    "Context",
    "Counter",
    "DoesNotFit",
    "Drop",
    "Group",
    "History",
    "InputError",
    "KompaktError",
    "Limits",
    "MalformedPayload",
    "Marker",
    "Media",
    "Message",
    "Opaque",
    "Overflow",
    "Policy",
    "Problem",
    "Reasoning",
    "Recalled",
    "Repair",
    "Report",
    "Round",
    "Text",
    "TokenCount",
    "ToolCall",
    "ToolResult",
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
]
