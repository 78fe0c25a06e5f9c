"""Functions as tools: schema, arguments, results."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest

from kompakt.agent.tools import Tool, tools_of
from kompakt.errors import UsageError
from kompakt.model.messages import ToolCall


class Place(msgspec.Struct):
    path: str
    line: int = 1


@dataclass
class Span:
    start: Place
    end: Place | None = None


class Mode(Enum):
    FAST = "fast"
    SLOW = "slow"


def search(
    query: str,
    limit: int = 10,
    mode: Literal["text", "regex"] = "text",
    within: list[str] | None = None,
    span: Span | None = None,
    pace: Mode = Mode.FAST,
    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5,
) -> list[Place]:
    """Search the repository.

    Gives back places.
    """
    return [Place(f"{query}-{mode}-{pace.value}", limit), *([span.start] if span else [])]


def called(function: Any, given: Any) -> Any:
    return asyncio.run(Tool(function)(ToolCall("a", function.__name__, given)))


def test_the_schema_comes_from_the_annotations() -> None:
    spec = Tool(search).spec
    assert spec.name == "search" and spec.description == "Search the repository.\n\nGives back places."
    fields = spec.schema["properties"]
    assert spec.schema["type"] == "object" and spec.schema["required"] == ["query"]
    assert fields["query"] == {"type": "string"} and fields["limit"] == {"type": "integer", "default": 10}
    assert set(fields["mode"]["enum"]) == {"text", "regex"}
    assert fields["share"]["minimum"] == 0 and fields["share"]["maximum"] == 1
    assert "search_arguments" not in json.dumps(spec.schema)
    assert set(spec.schema["$defs"]) >= {"Place", "Span", "Mode"}


def test_a_function_without_parameters() -> None:
    def now() -> str:
        return "noon"

    tool = Tool(now)
    assert tool.spec.description == "now" and tool.spec.schema["properties"] == {}
    for given in ({}, "", None, "{}"):
        assert called(now, given).output == "noon"


def test_arguments_are_converted_to_the_annotated_types() -> None:
    outcome = called(search, {"query": "q", "limit": "3", "span": {"start": {"path": "p"}}, "pace": "slow"})
    assert not outcome.is_error
    assert json.loads(outcome.output) == [{"path": "q-text-slow", "line": 3}, {"path": "p", "line": 1}]
    assert called(search, '{"query": "q", "mode": "regex"}').output.startswith('[{"path":"q-regex-fast"')


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"query": 1, "limit": {}},
        {"query": "q", "unknown": 1},
        {"query": "q", "mode": "other"},
        '{"query": ',
        "[1]",
        [1],
        "nonsense",
        {"query": "q", "share": 3},
    ],
)
def test_invalid_arguments_are_reported_to_the_model(given: Any) -> None:
    outcome = called(search, given)
    assert outcome.is_error and outcome.output.startswith("invalid arguments: ")


def test_results_of_all_kinds() -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    kinds: list[tuple[Any, str]] = [
        (None, "null"),
        (3, "3"),
        (True, "true"),
        ("text", "text"),
        ({"a": [1, 2.5]}, '{"a":[1,2.5]}'),
        (Place("p"), '{"path":"p","line":1}'),
        (Span(Place("p")), '{"start":{"path":"p","line":1},"end":null}'),
        ((1, 2), "[1,2]"),
        (Odd(), "odd"),
        ("half \ud800", "half \\ud800"),
        ("ünï", "ünï"),
    ]
    for value, text in kinds:

        def make(value: Any = value) -> Any:
            return value

        assert called(lambda_named(make), {}).output == text


def lambda_named(function: Any) -> Any:
    def give() -> Any:
        return function()

    return give


def test_sync_functions_run_in_threads() -> None:
    threads = set[int]()

    together = threading.Barrier(4)

    def wait() -> str:
        threads.add(threading.get_ident())
        together.wait(timeout=120)
        return "waited"

    async def main() -> None:
        tool = Tool(wait)
        calls = [tool(ToolCall(str(number), "wait", {})) for number in range(4)]
        assert [outcome.output for outcome in await asyncio.gather(*calls)] == ["waited"] * 4

    asyncio.run(main())
    assert len(threads) == 4 and threading.get_ident() not in threads


def test_async_functions_and_functions_that_return_awaitables() -> None:
    async def later(text: str) -> str:
        await asyncio.sleep(0)
        return text

    def sooner(text: str) -> Any:
        return later(text)

    assert called(later, {"text": "a"}).output == "a" and called(sooner, {"text": "b"}).output == "b"


@pytest.mark.parametrize("error", [RuntimeError("no \udcff"), SystemExit(2), asyncio.CancelledError(), TimeoutError()])
def test_exceptions_become_results(error: BaseException) -> None:
    async def breaks() -> str:
        raise error

    outcome = called(breaks, {})
    assert outcome.is_error and outcome.output and outcome.output.encode()


def test_cancelling_a_run_cancels_its_tools() -> None:
    async def forever() -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.create_task(Tool(forever)(ToolCall("a", "forever", {})))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_methods_and_partial_hints() -> None:
    class Desk:
        def look(self, at, deep: bool = False) -> str:  # type: ignore[no-untyped-def]
            return f"{at} {deep}"

    desk = Desk()
    assert "self" not in Tool(desk.look).spec.schema["properties"]
    assert called(desk.look, {"at": 3, "deep": "true"}).output == "3 True"


def test_invalid_tools_are_rejected() -> None:
    def rest(*names: str) -> None: ...

    def more(**names: str) -> None: ...

    def first(a: int, /) -> None: ...

    for function in (rest, more, first):
        with pytest.raises(UsageError, match="passed by name"):
            Tool(function)
    with pytest.raises(UsageError, match="two tools"):
        tools_of([search, search])

    def unknown(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(UsageError, match="annotations"):
        Tool(unknown)
