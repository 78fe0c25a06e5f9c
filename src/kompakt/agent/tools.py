"""Plain functions as tools: what the model is told of them, and how they are called.

The schema comes from the annotations, the description from the docstring. Arguments are checked against the same types
before the function sees them. Whatever goes wrong becomes a result that the model can read: a tool never ends a run.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast, get_type_hints

import msgspec

from kompakt.agent.client import ToolSpec
from kompakt.errors import UsageError
from kompakt.model.messages import Json, JsonObject, ToolCall, ToolResult
from kompakt.model.phrases import NOT_FINISHED
from kompakt.store.codec import decode, encode

Function = Callable[..., Any]


class Tool:
    """A function that a model may call."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self._arguments = _arguments_of(function)
        schema = _schema_of(self._arguments)
        self.spec = ToolSpec(function.__name__, inspect.getdoc(function) or function.__name__, schema)

    @property
    def name(self) -> str:
        """The name the model calls it by."""
        return self.spec.name

    async def __call__(self, call: ToolCall) -> ToolResult:
        """Answer a call; errors are answers too."""
        try:
            given = msgspec.convert(_input(call), self._arguments, strict=False)
        except (msgspec.ValidationError, ValueError) as error:
            return failed(call, f"the arguments do not fit: {error}")
        named = {name: getattr(given, name) for name in self._arguments.__struct_fields__}
        try:
            made = await _made(self.function, named)
        except (Exception, SystemExit) as error:  # noqa: BLE001 — a tool is anybody's code; the run must outlive it
            return failed(call, f"{type(error).__name__}: {error}")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return failed(call, "the tool gave up: what it waited for was cancelled")
        return ToolResult(call.id, sendable(made if isinstance(made, str) else _text(made)), name=call.name)


async def _made(function: Function, named: dict[str, Any]) -> object:
    """Call a function: one that awaits in this loop, one that does not in a thread of its own."""
    if inspect.iscoroutinefunction(function):
        return await function(**named)
    made = await asyncio.to_thread(function, **named)
    return await made if isinstance(made, Awaitable) else made


def _text(made: object) -> str:
    try:
        return encode(msgspec.to_builtins(made)).decode()
    except (TypeError, ValueError):
        return str(made)


def failed(call: ToolCall, why: str) -> ToolResult:
    """Answer a call with what went wrong."""
    return ToolResult(call.id, sendable(why), name=call.name, is_error=True)


def interrupted(call: ToolCall) -> ToolResult:
    """Answer a call whose run ended before the tool did."""
    return ToolResult(
        call.id, NOT_FINISHED, name=call.name, is_error=True, status="incomplete", finished_at=time.time()
    )


def sendable(text: str) -> str:
    """Write out halves of characters, as names of files may hold: no request could carry them."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _input(call: ToolCall) -> Json:
    """Read the arguments of a call, which some wires carry as text; no text means no arguments."""
    if isinstance(call.input, str):
        return decode(call.input.encode("utf-8", "surrogatepass")) if call.input.strip() else {}
    return {} if call.input is None else call.input


def _arguments_of(function: Function) -> type[msgspec.Struct]:
    """Make a type of a function's parameters.

    Raises:
        UsageError: a parameter cannot be named in a call.
    """
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise UsageError(f"the annotations of tool {function.__name__!r} cannot be read: {error}") from None
    fields: list[Any] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UsageError(f"tool {function.__name__!r}: parameter {name!r} has no name to be called by; give it one")
        hint = hints.get(name, Any)
        fields.append((name, hint) if parameter.default is parameter.empty else (name, hint, parameter.default))
    return msgspec.defstruct(f"{function.__name__}_arguments", fields, kw_only=True, forbid_unknown_fields=True)


def _schema_of(arguments: type[msgspec.Struct]) -> JsonObject:
    """Write the schema of a type as one object, with what it refers to inside."""
    (schema,), inner = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    rest = dict(inner)
    own = cast("JsonObject", rest.pop(schema["$ref"].removeprefix("#/$defs/")))
    own.pop("title", None)
    return {**own, "$defs": rest} if rest else own


def tools_of(functions: Iterable[Function | Tool]) -> dict[str, Tool]:
    """Make tools of functions, by their names.

    Raises:
        UsageError: two have the same name, or one cannot be called by a model.
    """
    found: dict[str, Tool] = {}
    for function in functions:
        tool = function if isinstance(function, Tool) else Tool(function)
        if tool.name in found:
            raise UsageError(f"two tools are named {tool.name!r}; rename one")
        found[tool.name] = tool
    return found
