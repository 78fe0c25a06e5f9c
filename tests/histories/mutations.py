"""Mutated request bodies: what a careless client, a damaged file or an attacker might send.

A mutation replaces, removes, copies or moves values at random places of a body, with values that readers tend to trip
over. The one invariant is that equal arguments give equal bodies, so that a failure is repeated by its number.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any, NamedTuple, TypeAlias

from hypothesis import HealthCheck, Phase, given, settings
from tests.histories import FORMATS, bodies, plain
from tests.histories.broken import BROKEN, FORMAT_OF

Body: TypeAlias = dict[str, Any]
Place: TypeAlias = tuple[Any, Any]

DRAWN = 25
"""Valid bodies of each format to start from, in addition to the broken ones and two plain sessions."""

# fmt: off
WORDS = (
    "role", "user", "assistant", "model", "system", "tool", "developer", "function", "content", "parts", "text",
    "type", "messages", "input", "contents", "tool_calls", "tool_call_id", "name", "arguments", "id", "call_id",
    "function_call", "function_call_output", "output", "tool_use", "tool_result", "tool_use_id", "thinking",
    "redacted_thinking", "server_tool_use", "mcp_tool_use", "web_search_tool_result", "signature", "toolUse",
    "toolResult", "toolUseId", "functionCall", "functionResponse", "args", "response", "status", "reasoning",
    "summary", "encrypted_content", "cache_control", "source", "data", "media_type", "url", "image", "image_url",
    "mcp_call", "mcp_approval_request", "mcp_approval_response", "approval_request_id", "thoughtSignature",
    "thought", "cachePoint", "toolConfig", "tools", "instructions", "reasoningContent", "reasoningText", "refusal",
    "reasoning_content", "custom", "file", "message", "compaction", "item_reference", "error", "json", "store",
    "previous_response_id", "shell_call", "computer_call", "program", "executableCode", "codeExecutionResult",
)
# fmt: on


def copied(value: Any) -> Any:
    """Copy a value of any depth."""
    root = [value]
    waiting: list[Place] = [(root, 0)]
    while waiting:
        holder, key = waiting.pop()
        if isinstance(holder[key], dict):
            holder[key] = dict(holder[key])
            waiting += [(holder[key], name) for name in holder[key]]
        elif isinstance(holder[key], list):
            holder[key] = list(holder[key])
            waiting += [(holder[key], i) for i in range(len(holder[key]))]
    return root[0]


class Deep(NamedTuple):
    """A placeholder for a value with this many levels."""

    levels: int


VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 1.5, float("nan"), float("inf"), 10**30, -(10**4_400), 10**10_000),
    *("", " ", "\n", "x", "null", "{}", "{", "[1]", '{"a": 1}', "\ud83d", "a\udc00b", "\0", "ü" * 50, "word " * 200),
    *([], {}, [1], ["x"], [None], [[]], [{}], [True], {"x": 1}, {"text": 5}, {"type": "text"}, {"type": 5}, {"": None}),
    *({"type": "text", "text": "hi"}, [{"type": "text", "text": ""}], {"text": ""}, {"role": "user", "content": "hi"}),
    *({1: 2}, b"bytes", ("a", "tuple"), [({"type": "text", "text": "in a tuple"},)]),
    *(Deep(150), Deep(950), Deep(10_000), "[" * 950 + "]" * 950, '{"a":' * 300 + "1" + "}" * 300, "9" * 5_000),
)
"""Values of every type, and those that readers tend to trip over: empty, huge, deep, half characters, foreign types."""


def _value(random: Random, *more: Any) -> Any:
    chosen = random.choice((*VALUES, *more))
    if not isinstance(chosen, Deep):
        return copied(chosen)
    value: Any = "x"
    for _ in range(chosen.levels):
        value = [value]
    return value


@cache
def sources(format: str) -> tuple[Body, ...]:
    """Return the bodies that mutations start from."""
    drawn: list[Body] = []

    @settings(
        max_examples=DRAWN,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(bodies(format, max_turns=2, max_steps=2, max_batch=3))
    def draw(body: Body) -> None:
        drawn.append(copied(body))

    draw()
    broken = [body for code, cases in BROKEN.items() if FORMAT_OF.get(code[:2]) == format for _, body in cases]
    sessions = [plain.build(format, messages=size, mean_chars=200, seed=size) for size in (9, 30)]
    return (*drawn, *broken, *sessions)


def mutated(format: str, number: int) -> Body | list[Any]:
    """Return the mutated body, or bare list of messages, with a number."""
    random = Random(f"{format} {number}")
    body = copied(random.choice(sources(format)))
    for _ in range(random.choice((1, 1, 2, 3, 6))):
        found = _places(body)
        if found:
            random.choice(MUTATIONS)(random, body, found, format)
    key = {"openai-responses": "input", "gemini": "contents"}.get(format, "messages")
    if random.random() < 0.2 and isinstance(body.get(key), list):
        messages: list[Any] = body[key]
        return messages
    return body


def _places(value: Any) -> list[Place]:
    """List every place in a value as its holder and key, without going down values that are only there to be deep."""
    found: list[Place] = []
    level: list[Any] = [value]
    for _ in range(12):
        holders, level = level, []
        for holder in holders:
            for key, inner in holder.items() if isinstance(holder, dict) else enumerate(holder):
                found.append((holder, key))
                if isinstance(inner, dict | list):
                    level.append(inner)
    return found


def _replace(random: Random, body: Body, found: list[Place], format: str) -> None:
    holder, key = random.choice(found)
    holder[key] = _value(random)


def _remove(random: Random, body: Body, found: list[Place], format: str) -> None:
    holder, key = random.choice(found)
    del holder[key]


def _repeat(random: Random, body: Body, found: list[Place], format: str) -> None:
    """Copy an entry of a list to another place of it."""
    lists = [(holder, key) for holder, key in found if isinstance(holder, list)]
    if lists:
        holder, key = random.choice(lists)
        holder.insert(random.randrange(len(holder) + 1), copied(holder[key]))


def _move(random: Random, body: Body, found: list[Place], format: str) -> None:
    """Put a copy of one value in the place of another."""
    (one, key), (other, there) = random.choice(found), random.choice(found)
    other[there] = copied(one[key])


def _swap(random: Random, body: Body, found: list[Place], format: str) -> None:
    """Swap two entries of one list."""
    lists = [holder for holder, _ in found if isinstance(holder, list) and len(holder) > 1]
    if lists:
        holder = random.choice(lists)
        one, other = random.randrange(len(holder)), random.randrange(len(holder))
        holder[one], holder[other] = holder[other], holder[one]


def _rename(random: Random, body: Body, found: list[Place], format: str) -> None:
    """Rename a field, or replace a text."""
    holder, key = random.choice(found)
    if isinstance(holder, dict) and random.random() < 0.5:
        holder[random.choice(WORDS)] = holder.pop(key)
    else:
        holder[key] = random.choice(WORDS)


def _add(random: Random, body: Body, found: list[Place], format: str) -> None:
    """Add a field or an entry."""
    holder, _ = random.choice(found)
    value = _value(random, *WORDS)
    if isinstance(holder, dict):
        holder[random.choice(WORDS)] = value
    else:
        holder.insert(random.randrange(len(holder) + 1), value)


def _wrap(random: Random, body: Body, found: list[Place], format: str) -> None:
    holder, key = random.choice(found)
    holder[key] = [holder[key]] if random.random() < 0.5 else {random.choice(WORDS): holder[key]}


def _graft(random: Random, body: Body, found: list[Place], format: str) -> None:
    """Put a value of another body, perhaps of another format, in the place of one, or into a list."""
    other = random.choice(sources(format if random.random() < 0.7 else random.choice(FORMATS)))
    holder, key = random.choice(found)
    there, name = random.choice(_places(other))
    if isinstance(holder, list):
        holder.insert(key, copied(there[name]))
    else:
        holder[key] = copied(there[name])


def _cut(random: Random, body: Body, found: list[Place], format: str) -> None:
    """Cut the beginning or the end of a list."""
    lists = [holder for holder, _ in found if isinstance(holder, list)]
    if lists:
        holder = random.choice(lists)
        at = random.randrange(len(holder) + 1)
        if random.random() < 0.5:
            del holder[:at]
        else:
            del holder[at:]


MUTATIONS = (_replace, _replace, _remove, _repeat, _move, _swap, _rename, _add, _wrap, _graft, _cut)
