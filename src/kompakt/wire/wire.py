"""The description of one provider format: everything provider-specific is a field of its ``Wire``.

Each provider package exports one value named ``WIRE``. ``kompakt.wire.registry`` lists them. To add a provider, add a
package and one line in the registry. ``Problem``, ``Change`` and ``Repair`` are the results of checking and repairing:
a problem has the code of the rule it breaks, and a change states its action and place, so a repair can be reviewed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias

import msgspec

from kompakt.model.budget import Usage
from kompakt.model.contract import Contract
from kompakt.model.messages import History, Json, JsonObject, Message

if TYPE_CHECKING:  # a default makes ``Repair`` alone a type; Python supports defaults from 3.13 on
    from typing_extensions import TypeVar

    Shape = TypeVar("Shape", bound=Sequence[Any] | Mapping[str, Any], default=Any)
else:
    from typing import TypeVar

    Shape = TypeVar("Shape")
    """The type of a payload: what comes back has the type of what was given."""


Action: TypeAlias = Literal["added", "dropped", "merged", "moved", "renamed", "replaced", "stripped"]


class Problem(msgspec.Struct, frozen=True):
    """One place where a history breaks its provider's contract."""

    code: str
    path: str
    message: str
    repairable: bool = True

    def __str__(self) -> str:
        return f"{self.code} {self.path}: {self.message}" + ("" if self.repairable else " (not repairable)")


class Change(msgspec.Struct, frozen=True):
    """One change that a repair made."""

    code: str
    action: Action
    path: str
    """The path in the given payload."""
    message: str

    def __str__(self) -> str:
        return f"{self.code} {self.action} {self.path}: {self.message}"


class Repair(msgspec.Struct, Generic[Shape], frozen=True):
    """A repaired payload and its changes; the given payload is not modified."""

    payload: Shape
    changes: tuple[Change, ...]
    remaining: tuple[Problem, ...] = ()
    """Problems that cannot be repaired without guessing."""

    @property
    def changed(self) -> bool:
        """Return whether the repair changed anything."""
        return bool(self.changes)


class FindProblems(Protocol):
    """Lists every place where the provider would reject a request."""

    def __call__(self, items: Sequence[Json], body: JsonObject | None, *, strict: bool = False) -> list[Problem]: ...


class RepairMessages(Protocol):
    """Repairs the messages of a history and lists the changes."""

    def __call__(self, history: History, *, strict: bool = False) -> tuple[list[Message], list[Change]]: ...


class RepairBody(Protocol):
    """Repairs the request body around already repaired messages and lists the changes."""

    def __call__(self, history: History, messages: Sequence[Message]) -> tuple[JsonObject | None, list[Change]]: ...


class BuildError(Protocol):
    """Builds the body of an error response."""

    def __call__(self, status: int, message: str, *, code: str) -> JsonObject: ...


class DefineTool(Protocol):
    """Builds one entry of a request's ``tools``."""

    def __call__(self, *, name: str, description: str, schema: JsonObject) -> JsonObject: ...


def _keep_body(history: History, messages: Sequence[Message]) -> tuple[JsonObject | None, list[Change]]:
    del messages
    return history.body, []


def _no_manual_thinking(body: JsonObject | None) -> bool:
    del body
    return False


class Clues(msgspec.Struct, frozen=True, kw_only=True):
    """Features of a payload that occur in this format; ``kompakt.wire.registry.detect`` compares them.

    A feature may occur in several formats. Then it rules out only the formats that do not list it.
    """

    body_keys: frozenset[str] = frozenset()
    item_keys: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()
    """Roles beyond user and assistant."""
    block_types: frozenset[str] = frozenset()
    """Values of ``type`` of a content block."""
    untyped_blocks: frozenset[str] = frozenset()
    """Keys of content blocks that have no ``type``."""
    tool_keys: frozenset[str] = frozenset()
    """Keys of a tool definition."""
    flat_tools: bool = False
    """A function tool is ``{"type": "function", "name": …}``."""
    text_content: bool = False
    """The content of a message may be a string."""
    typed_items: bool = False
    """Items may have a ``type`` and no role."""
    models: tuple[str, ...] = ()
    """Substrings of model names that servers of this format offer."""
    own_models: frozenset[str] = frozenset()
    """Those of ``models`` whose own provider uses this format."""


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that kompakt knows about one provider format."""

    format: str
    messages_key: str
    """The field of a request body that holds the messages."""
    model_key: str = "model"
    """The field of a request body that holds the model name."""
    output_keys: tuple[str, ...]
    """Fields that limit the length of the answer, in order of precedence; a dot reaches into an object."""
    contract: Contract
    clues: Clues
    parse: Callable[[Sequence[Json], JsonObject | None], History]
    render: Callable[[Message], list[Json]]
    problems: FindProblems
    repair: RepairMessages
    repair_body: RepairBody = _keep_body
    define_tool: DefineTool
    system_fields: Callable[[str], JsonObject]
    """Builds the body fields that carry a system prompt; empty where the prompt is a message."""
    error_body: BuildError
    """Builds an error response as the provider's SDK expects it."""
    manual_thinking: Callable[[JsonObject | None], bool] = _no_manual_thinking
    """Whether a request enables thinking with a fixed budget, so an open turn must keep its thinking blocks."""
    read_usage: Callable[[Mapping[str, object]], Usage]
    """Reads a usage object as the size of the context after the step."""
    read_billed_usage: Callable[[Mapping[str, object]], Usage] | None = None
    """Reads a usage object as what is paid for, where that differs from the size of the context."""

    def usage(self, usage: Mapping[str, object] | None) -> Usage:
        """Read a provider's usage object as the size of the context after the step."""
        return Usage() if usage is None else self.read_usage(usage)

    def billed_usage(self, usage: Mapping[str, object] | None) -> Usage:
        """Read a provider's usage object as what is paid for, server-side compactions included."""
        return Usage() if usage is None else (self.read_billed_usage or self.read_usage)(usage)

    def stated_output(self, field: Callable[[str], object]) -> int | None:
        """Return the output limit in tokens that a request states; ``field`` reads one field of its body."""
        for path in self.output_keys:
            name, _, inner = path.partition(".")
            value = field(name)
            if inner:
                value = value.get(inner) if isinstance(value, dict) else None
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        return None
