"""The description of one provider format: everything provider-specific is a field of its ``Wire``.

Each provider package exports one value named ``WIRE``. ``kompakt.wire.registry`` lists them. To add a provider, add a
package and one line in the registry. ``Problem``, ``Change`` and ``Repair`` are the results of checking and repairing:
a problem has the code of the rule it breaks, and a change states its action and place, so a repair can be reviewed.

One rule (TX-1) applies to every format and to every text of a request, including field names: no lone surrogates.
Programs that cut text by UTF-16 units leave these halves of a pair behind. JSON can write them as an escape, but
providers reject the whole request. Sources: Anthropic answers 400 "The request body is not valid JSON: no low surrogate
in string", DeepSeek "lone leading surrogate in hex escape". Python cannot encode such a request as UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, cast

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


# --- lone surrogates -----------------------------------------------------------------------------------------------

_SIGNATURES = ("signature", "thoughtSignature", "thought_signature")
"""Signatures of the text beside or inside them; a changed text makes them invalid."""

_BATCH = 256
"""Messages that are checked in one call: fewer calls are faster, and a batch takes little memory."""

_ENCODER = msgspec.json.Encoder(enc_hook=repr)


def surrogate_problems(items: Sequence[Json], body: JsonObject | None, key: str) -> list[Problem]:
    """List the texts of a request that contain a lone surrogate; ``key`` is the field of the messages."""
    message = "a lone surrogate is not a character; every provider rejects the request"
    return [Problem("TX-1", path, message) for path in _paths(items, body, key)]


def replace_surrogates(
    items: Sequence[Json], body: JsonObject | None, key: str
) -> tuple[Sequence[Json], JsonObject | None, list[Change]]:
    """Join adjacent halves and replace the others with U+FFFD; a changed text loses its signature."""
    changes = [
        Change("TX-1", "replaced", path, "a lone surrogate is now a replacement character")
        for path in _paths(items, body, key)
    ]
    if not changes:
        return items, body, changes
    repaired = [_repaired(item) if _is_broken(item) else item for item in items]
    if body is None:
        return repaired, None, changes
    beside = {_joined(name): value if name == key else _repaired(value) for name, value in body.items()}
    if isinstance(beside.get(key), str):  # the whole input may be one string
        beside[key] = repaired[0]
    return repaired, beside, changes


def _paths(items: Sequence[Json], body: JsonObject | None, key: str) -> Iterator[str]:
    is_text = isinstance((body or {}).get(key), str)
    for start in range(0, len(items), _BATCH):
        if not _is_broken(items[start : start + _BATCH]):
            continue
        for i, item in enumerate(items[start : start + _BATCH], start):
            if _is_broken(item):
                yield from _places(item, key if is_text else f"{key}[{i}]")
    beside = {name: value for name, value in (body or {}).items() if name != key}
    if _is_broken(beside):
        yield from (path.removeprefix(".") for path in _places(beside, ""))


def _is_broken(value: Json | Sequence[Json]) -> bool:
    try:
        _ENCODER.encode(value)
    except UnicodeEncodeError:
        return True
    return False


def _places(value: Json, path: str) -> Iterator[str]:
    if isinstance(value, str):
        if _joined(value) != value:
            yield path
    elif isinstance(value, dict):
        for name, inner in cast("dict[str, Any]", value).items():
            if _joined(name) != name:
                yield f"{path}.{_joined(name)}"
            yield from _places(inner, f"{path}.{_joined(name)}")
    elif isinstance(value, list):
        for i, inner in enumerate(cast("list[Any]", value)):
            yield from _places(inner, f"{path}[{i}]")


def _repaired(value: Json) -> Json:
    """Return a value without lone surrogates; unchanged parts stay the same objects."""
    if isinstance(value, str):
        return value if value.isascii() else _joined(value)
    if isinstance(value, list):
        entries = cast("list[Any]", value)
        listed = [_repaired(inner) for inner in entries]
        return value if all(one is other for one, other in zip(listed, entries, strict=True)) else listed
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    made = {_joined(name): _repaired(inner) for name, inner in fields.items()}
    if made.keys() == fields.keys() and all(made[name] is inner for name, inner in fields.items()):
        return value
    return {name: inner for name, inner in made.items() if name not in _SIGNATURES}


def _joined(text: str) -> str:
    """Return a text without lone surrogates; the same object when it has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
