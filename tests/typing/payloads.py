"""The types that a caller sees; a type checker reads this file, and nothing runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict, assert_type

import kompakt


class Chat(TypedDict):
    """A message as an SDK declares it."""

    role: str
    content: str


def compacted(
    messages: list[dict[str, Any]],
    body: dict[str, Any],
    pair: tuple[dict[str, Any], ...],
    typed: list[Chat],
    history: kompakt.History,
    words: Callable[[str], int],
) -> None:
    assert_type(kompakt.compact(messages, 1_000), kompakt.Compaction[list[dict[str, Any]]])
    assert_type(kompakt.compact(messages, 1_000).payload, list[dict[str, Any]])
    assert_type(kompakt.compact(body).payload, dict[str, Any])
    assert_type(kompakt.compact(pair, model="gpt-4o").payload, tuple[dict[str, Any], ...])
    assert_type(kompakt.compact(typed, tokenizer=words).payload, list[Chat])
    assert_type(kompakt.compact(history, 1_000).payload, Any)
    assert_type(kompakt.compact(messages).report, kompakt.Report)
    assert_type(kompakt.compact(messages).recall("tide"), kompakt.Recalled)


async def awaited(messages: list[dict[str, Any]], body: dict[str, Any], history: kompakt.History) -> None:
    assert_type((await kompakt.acompact(messages, 1_000)).payload, list[dict[str, Any]])
    assert_type((await kompakt.acompact(body)).payload, dict[str, Any])
    assert_type((await kompakt.acompact(history)).payload, Any)


def repaired(messages: list[dict[str, Any]], body: dict[str, Any], typed: list[Chat], history: kompakt.History) -> None:
    assert_type(kompakt.repair(messages), kompakt.Repair[list[dict[str, Any]]])
    assert_type(kompakt.repair(messages).payload, list[dict[str, Any]])
    assert_type(kompakt.repair(body, strict=True).payload, dict[str, Any])
    assert_type(kompakt.repair(typed).payload, list[Chat])
    assert_type(kompakt.repair(history).payload, Any)
    assert_type(kompakt.repair(messages).remaining, tuple[kompakt.Problem, ...])


def rendered(messages: list[kompakt.Message], history: kompakt.History, dropped: list[kompakt.Drop]) -> None:
    assert_type(kompakt.parse([{"role": "user", "content": "Go."}]), kompakt.History)
    assert_type(kompakt.render(history), Any)
    assert_type(kompakt.render(messages, "anthropic", dropped=dropped), Any)


def split(messages: list[Chat], body: dict[str, Any]) -> None:
    assert_type(kompakt.split(messages), tuple[list[Chat], list[Chat]])
    assert_type(kompakt.split(body), tuple[list[Any], list[Any]])


async def recalled(
    messages: list[dict[str, Any]], compaction: kompakt.Compaction[list[Any]], session: kompakt.Session
) -> None:
    assert_type(kompakt.recall(messages, "tide"), kompakt.Recalled)
    assert_type(kompakt.recall(compaction, "tide"), kompakt.Recalled)
    assert_type(await kompakt.recall(session, "tide"), kompakt.Recalled)
    assert_type(kompakt.count(messages), kompakt.TokenCount)


def unannotated(result: kompakt.Compaction, repair: kompakt.Repair) -> None:
    assert_type(result.payload, Any)
    assert_type(repair.payload, Any)
