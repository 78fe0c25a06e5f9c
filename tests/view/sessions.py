"""Sessions for the tests of the inspector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kompakt.session.session import Session
from kompakt.session.store import Store, open_store

REQUEST = "Fix the parser in src/parser.py. Never touch the tests."

SECOND_REQUEST = "Please keep all names of functions in lower case from now on."

THIRD_REQUEST = "Continue with the rest."

TOOLS = [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}]


def step(number: int, *, words: int = 60) -> list[dict[str, Any]]:
    """Return one call and its result."""
    name = "bash" if number % 3 == 0 else "read_file"
    call = {"name": name, "arguments": json.dumps({"path": f"src/f{number}.py"})}
    output = f"line {number} failed with E{number:03} " + " ".join(f"w{number * at % 97}" for at in range(words))
    return [
        {
            "role": "assistant",
            "content": f"I decided to look at file {number}, because it fails.",
            "tool_calls": [{"id": f"c{number}", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": f"c{number}", "content": output},
    ]


def messages(steps: int, **options: int) -> list[dict[str, Any]]:
    """Return a conversation of this many steps."""
    opening = [{"role": "system", "content": "You are a coding agent."}, {"role": "user", "content": REQUEST}]
    made = [*opening, *(message for number in range(steps) for message in step(number, **options))]
    if steps > 10:
        made[28:28] = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": THIRD_REQUEST}]
        made[8:8] = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": SECOND_REQUEST}]
    return made


def body(steps: int, **options: int) -> dict[str, Any]:
    """Return a request of this many steps."""
    return {"model": "gpt-4o", "messages": messages(steps, **options), "tools": TOOLS}


async def compacted(store: Store, id: str = "work") -> Session:
    """Store a session with 60 steps and two compactions."""
    session = await store.session(id)
    await session.save(body(30))
    await session.compact(3_500)
    for number in range(30, 45):
        await session.append(step(number))
    await session.compact(3_500)
    for number in range(45, 60):
        await session.append(step(number))
    return session


async def stored(path: Path) -> str:
    """Make a store with two sessions in a file; return its URL."""
    return await filled(f"sqlite:///{path}")


async def filled(url: str) -> str:
    """Add two sessions to a store."""
    async with await open_store(url) as store:
        await compacted(store)
        await (await store.session("small")).save(body(3))
    return url


def claude_code(path: Path, *, steps: int = 6, summary: bool = True) -> Path:
    """Write a Claude Code transcript, with a compaction by the agent in the middle."""
    records: list[dict[str, Any]] = []
    uuid = ""

    def add(kind: str, message: dict[str, Any], **more: Any) -> None:
        nonlocal uuid
        parent, uuid = uuid or None, f"u{len(records)}"
        time = f"2026-03-01T10:{len(records) // 60:02}:{len(records) % 60:02}.000Z"
        records.append(
            {"type": kind, "uuid": uuid, "parentUuid": parent, "timestamp": time, "sessionId": "cc", "message": message}
            | more
        )

    def work(number: int) -> None:
        used = {"input_tokens": 10, "cache_read_input_tokens": 20_000 + 500 * number}
        usage = {**used, "cache_creation_input_tokens": 300, "output_tokens": 40}
        call = {"type": "tool_use", "id": f"t{number}", "name": "Read", "input": {"file_path": f"/w/f{number}.py"}}
        answer = {"role": "assistant", "id": f"a{number}", "model": "claude-sonnet-4-5", "usage": usage}
        add("assistant", {**answer, "type": "message", "content": [{"type": "text", "text": f"step {number}"}, call]})
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": f"content of f{number} " * 30}
        add("user", {"role": "user", "content": [result]})

    add("user", {"role": "user", "content": REQUEST})
    for number in range(steps):
        work(number)
    if summary:
        records.append({"type": "system", "subtype": "compact_boundary", "uuid": "b", "parentUuid": None})
        add("user", {"role": "user", "content": "Summary: the parser was read."}, isCompactSummary=True)
        for number in range(steps, 2 * steps):
            work(number)
    path.write_text("\n".join(map(json.dumps, records)) + "\n")
    return path
