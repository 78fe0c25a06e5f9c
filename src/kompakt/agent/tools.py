"""Functions as tools: their definition for the model, and how they are called.

The schema is made from the annotations, the description from the docstring. Arguments are validated against the
annotations. Every error becomes a result that the model can read: a tool never ends a run.
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
from kompakt.model.json import decode, encode, prepare
from kompakt.model.messages import Json, JsonObject, ToolCall, ToolResult
from kompakt.model.phrases import NOT_FINISHED

Function = Callable[..., Any]


class Tool:
    """A function that a model may call."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self._arguments = _arguments_of(function)
        prepare(self._arguments)
        schema = _schema_of(self._arguments)
        self.spec = ToolSpec(function.__name__, inspect.getdoc(function) or function.__name__, schema)

    @property
    def name(self) -> str:
        return self.spec.name

    async def __call__(self, call: ToolCall) -> ToolResult:
        """Run the function and return its result; errors are results too."""
        try:
            given = msgspec.convert(_input(call), self._arguments, strict=False)
        except (msgspec.ValidationError, ValueError) as error:
            return failed(call, f"invalid arguments: {error}")
        arguments = {name: getattr(given, name) for name in self._arguments.__struct_fields__}
        try:
            value = await _call(self.function, arguments)
        except (Exception, SystemExit) as error:  # noqa: BLE001 — a tool is user code and must not end the run
            return failed(call, f"{type(error).__name__}: {error}")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return failed(call, "cancelled: the tool stopped because something it waited for was cancelled")
        return ToolResult(call.id, sendable(value if isinstance(value, str) else _text(value)), name=call.name)


async def _call(function: Function, arguments: dict[str, Any]) -> object:
    """Call a coroutine function in this event loop and any other function in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    value = await asyncio.to_thread(function, **arguments)
    return await value if isinstance(value, Awaitable) else value


def _text(value: object) -> str:
    try:
        return encode(msgspec.to_builtins(value)).decode()
    except (TypeError, ValueError):
        return str(value)


def failed(call: ToolCall, reason: str) -> ToolResult:
    return ToolResult(call.id, sendable(reason), name=call.name, is_error=True)


def interrupted(call: ToolCall) -> ToolResult:
    """Return the result of a call whose run ended before the tool did."""
    return ToolResult(
        call.id, NOT_FINISHED, name=call.name, is_error=True, status="incomplete", finished_at=time.time()
    )


def sendable(text: str) -> str:
    """Escape lone surrogates, which file names may contain and UTF-8 requests cannot."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _input(call: ToolCall) -> Json:
    """Return the arguments of a call; some formats have them as JSON text, where empty text means none."""
    if isinstance(call.input, str):
        return decode(call.input.encode("utf-8", "surrogatepass")) if call.input.strip() else {}
    return {} if call.input is None else call.input


def _arguments_of(function: Function) -> type[msgspec.Struct]:
    """Return a struct type of a function's parameters.

    Raises:
        UsageError: a parameter cannot be passed by name.
    """
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise UsageError(f"tool {function.__name__!r}: cannot resolve the annotations: {error}") from None
    fields: list[Any] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UsageError(
                f"tool {function.__name__!r}: parameter {name!r} cannot be passed by name; make it a keyword"
            )
        hint = hints.get(name, Any)
        fields.append((name, hint) if parameter.default is parameter.empty else (name, hint, parameter.default))
    return msgspec.defstruct(f"{function.__name__}_arguments", fields, kw_only=True, forbid_unknown_fields=True)


def _schema_of(arguments: type[msgspec.Struct]) -> JsonObject:
    """Return the JSON Schema of a type as one object, with its references in ``$defs``."""
    (schema,), inner = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    rest = dict(inner)
    own = cast("JsonObject", rest.pop(schema["$ref"].removeprefix("#/$defs/")))
    own.pop("title", None)
    return {**own, "$defs": rest} if rest else own


def tools_of(functions: Iterable[Function | Tool]) -> dict[str, Tool]:
    """Return tools by name.

    Raises:
        UsageError: two tools have the same name, or a function cannot be a tool.
    """
    found: dict[str, Tool] = {}
    for function in functions:
        tool = function if isinstance(function, Tool) else Tool(function)
        if tool.name in found:
            raise UsageError(f"two tools are named {tool.name!r}; rename one")
        found[tool.name] = tool
    return found
