"""Long agent sessions built without Hypothesis, for benchmarks and for tests that need one known history.

A coding session is scripted once and then written in each wire format; the one invariant is that equal arguments give
equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

Item = dict[str, Any]

SYSTEM = "You are a careful coding agent. Work in small steps, run the tests, and never push to main."
TASK = (
    "The nightly import of supplier invoices fails for some tenants. Find the cause and fix it. "
    "Do not touch the migration files, and keep the public API of billing/api.py as it is."
)
REQUESTS = (
    "Good. Now also cover the empty invoice in a test.",
    "Please make sure that the retry never runs more than 3 times.",
    "Wait: only tenants on the new plan should see this. Check the flag first.",
    "Run the whole suite again and tell me what is left.",
)
TOOLS = {
    "read_file": "Read a file.",
    "edit_file": "Replace text in a file.",
    "run_command": "Run a shell command.",
    "search": "Search the tree.",
}
MODULES = ("billing/api.py", "billing/retry.py", "imports/nightly.py", "imports/parse.py", "tests/test_retry.py")
ROUNDS_PER_REQUEST = 12


@dataclass(frozen=True)
class Call:
    """One tool call and its result."""

    id: str
    name: str
    input: dict[str, Any]
    output: str
    failed: bool


@dataclass(frozen=True)
class Round:
    """One model step: a blob for its reasoning, a line of text and its calls."""

    blob: str
    text: str
    calls: tuple[Call, ...]


def build(format: str, *, messages: int, seed: int = 0, mean_chars: int = 1000, parallel: int = 1) -> dict[str, Any]:
    """Return a request body of at least ``messages`` wire messages, ending right after a finished tool round.

    The list is longer than asked by less than one round. ``mean_chars`` is the mean size of a tool output.
    """
    if format not in WRITERS:
        raise ValueError(f"unknown format {format!r}; known: {', '.join(WRITERS)}")
    return WRITERS[format](_script(Random(seed), mean_chars, parallel), messages)


def _script(random: Random, mean_chars: int, parallel: int) -> Iterator[str | Round]:
    """Yield the task, then rounds without end, with a further request every dozen."""
    yield TASK
    numbers = count(1)
    for step in count(1):
        calls = tuple(_call(random, next(numbers), mean_chars) for _ in range(parallel))
        blob = f"{random.getrandbits(256):064x}"
        yield Round(blob, f"Step {step}: looking at {random.choice(MODULES)}.", calls)
        if step % ROUNDS_PER_REQUEST == 0:
            yield random.choice(REQUESTS)
            yield Round(blob[::-1], "On it.", (_call(random, next(numbers), mean_chars),))


def _call(random: Random, number: int, mean_chars: int) -> Call:
    name = random.choice(tuple(TOOLS))
    path = random.choice(MODULES)
    given: dict[str, Any] = {"path": path}
    if name == "edit_file":
        given |= {"old": f"limit = {number}", "new": f"limit = {number + 1}"}
    elif name == "run_command":
        given = {"command": f"pytest -q {path} -k case_{number % 17}"}
    elif name == "search":
        given |= {"pattern": f"retry_{number % 23}"}
    chars = max(20, int(random.expovariate(1 / mean_chars)))
    return Call(f"call_{number:06d}", name, given, _output(random, name, chars), random.random() < 0.08)


def _output(random: Random, name: str, chars: int) -> str:
    """Return about ``chars`` characters that look like what the tool would print."""
    lines: list[str] = []
    size = 0
    while size < chars:
        lines.append(LINES[name](random, len(lines)))
        size += len(lines[-1]) + 1
    return "\n".join(lines)[:chars]


def _code(random: Random, line: int) -> str:
    return f"{line + 1:5d}\t    value_{random.randrange(900)} = fetch(tenant_id, retries={random.randrange(5)})"


def _log(random: Random, line: int) -> str:
    level = random.choice(("INFO", "INFO", "WARNING", "ERROR"))
    return f"2026-11-15T08:{line % 60:02d}:{random.randrange(60):02d}Z {level} import tenant={random.randrange(10**6)}"


def _hit(random: Random, line: int) -> str:
    return f"{random.choice(MODULES)}:{random.randrange(1, 800)}:    raise ImportFailed(code={line})"


def _row(random: Random, line: int) -> str:
    return json.dumps({"id": random.getrandbits(48), "ok": random.random() < 0.9, "line": line})


LINES: dict[str, Callable[[Random, int], str]] = {
    "read_file": _code,
    "run_command": _log,
    "search": _hit,
    "edit_file": _row,
}


def _parameters() -> dict[str, Any]:
    return {"type": "object", "properties": {"path": {"type": "string"}, "command": {"type": "string"}}}


def _openai_chat(script: Iterator[str | Round], messages: int) -> dict[str, Any]:
    listed: list[Item] = [{"role": "system", "content": SYSTEM}]
    while len(listed) < messages or listed[-1]["role"] != "tool":
        event = next(script)
        if isinstance(event, str):
            listed.append({"role": "user", "content": event})
            continue
        calls = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.dumps(c.input)}}
            for c in event.calls
        ]
        listed.append({"role": "assistant", "content": event.text, "tool_calls": calls})
        listed += [{"role": "tool", "tool_call_id": c.id, "content": c.output} for c in event.calls]
    tools = [
        {"type": "function", "function": {"name": name, "description": said, "parameters": _parameters()}}
        for name, said in TOOLS.items()
    ]
    return {"model": "gpt-5.4", "messages": listed, "tools": tools}


def _openai_responses(script: Iterator[str | Round], messages: int) -> dict[str, Any]:
    items: list[Item] = []
    while len(items) < messages or items[-1].get("type") != "function_call_output":
        event = next(script)
        if isinstance(event, str):
            items.append({"role": "user", "content": event})
            continue
        reasoning = {"type": "reasoning", "id": f"rs_{event.blob[:24]}", "summary": [], "encrypted_content": event.blob}
        said = {"type": "output_text", "text": event.text, "annotations": []}
        message = {"type": "message", "id": f"msg_{event.blob[:24]}", "role": "assistant", "status": "completed"}
        items += [reasoning, {**message, "content": [said]}]
        items += [
            {"type": "function_call", "call_id": c.id, "name": c.name, "arguments": json.dumps(c.input)}
            for c in event.calls
        ]
        items += [{"type": "function_call_output", "call_id": c.id, "output": c.output} for c in event.calls]
    tools = [
        {"type": "function", "name": name, "description": said, "parameters": _parameters()}
        for name, said in TOOLS.items()
    ]
    return {"model": "gpt-5.4", "instructions": SYSTEM, "input": items, "tools": tools, "store": False}


def _anthropic(script: Iterator[str | Round], messages: int) -> dict[str, Any]:
    listed: list[Item] = []
    while len(listed) < messages or listed[-1]["content"][0]["type"] != "tool_result":
        event = next(script)
        if isinstance(event, str):
            # The request joins the results before it: the roles of this session always alternate.
            asked = {"type": "text", "text": event}
            if listed:
                listed[-1]["content"].append(asked)
            else:
                listed.append({"role": "user", "content": [asked]})
            continue
        content: list[Item] = [
            {"type": "thinking", "thinking": "Next step.", "signature": event.blob},
            {"type": "text", "text": event.text},
        ]
        content += [{"type": "tool_use", "id": c.id, "name": c.name, "input": c.input} for c in event.calls]
        results: list[Item] = [
            {"type": "tool_result", "tool_use_id": c.id, "content": c.output, "is_error": c.failed} for c in event.calls
        ]
        listed += [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
    tools = [{"name": name, "description": said, "input_schema": _parameters()} for name, said in TOOLS.items()]
    head = {"model": "claude-opus-5-5", "max_tokens": 8192, "thinking": {"type": "adaptive"}}
    return {**head, "system": SYSTEM, "messages": listed, "tools": tools}


def _gemini(script: Iterator[str | Round], messages: int) -> dict[str, Any]:
    contents: list[Item] = []
    while len(contents) < messages or "functionResponse" not in contents[-1]["parts"][0]:
        event = next(script)
        if isinstance(event, str):
            if contents:
                contents.append({"role": "model", "parts": [{"text": "Done so far."}]})
            contents.append({"role": "user", "parts": [{"text": event}]})
            continue
        calls: list[Item] = [{"functionCall": {"id": c.id, "name": c.name, "args": c.input}} for c in event.calls]
        calls[0]["thoughtSignature"] = event.blob
        answers = [{"functionResponse": _gemini_response(c)} for c in event.calls]
        contents.append({"role": "model", "parts": [{"text": event.text}, *calls]})
        contents.append({"role": "user", "parts": answers})
    declared = [{"name": name, "description": said, "parameters": _parameters()} for name, said in TOOLS.items()]
    body = {"model": "gemini-3-pro-preview", "systemInstruction": {"parts": [{"text": SYSTEM}]}}
    return {**body, "contents": contents, "tools": [{"functionDeclarations": declared}]}


def _gemini_response(call: Call) -> Item:
    return {"id": call.id, "name": call.name, "response": {"error" if call.failed else "output": call.output}}


def _bedrock(script: Iterator[str | Round], messages: int) -> dict[str, Any]:
    listed: list[Item] = []
    while len(listed) < messages or "toolResult" not in listed[-1]["content"][0]:
        event = next(script)
        if isinstance(event, str):
            if listed:
                listed[-1]["content"].append({"text": event})
            else:
                listed.append({"role": "user", "content": [{"text": event}]})
            continue
        reasoning = {"reasoningText": {"text": "Next step.", "signature": event.blob}}
        content: list[Item] = [{"reasoningContent": reasoning}, {"text": event.text}]
        content += [{"toolUse": {"toolUseId": c.id, "name": c.name, "input": c.input}} for c in event.calls]
        results: list[Item] = [_bedrock_result(c) for c in event.calls]
        listed += [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
    specs = [
        {"toolSpec": {"name": name, "description": said, "inputSchema": {"json": _parameters()}}}
        for name, said in TOOLS.items()
    ]
    body = {"modelId": "anthropic.claude-opus-5-5-v1:0", "system": [{"text": SYSTEM}]}
    return {**body, "messages": listed, "toolConfig": {"tools": specs}}


def _bedrock_result(call: Call) -> Item:
    status = "error" if call.failed else "success"
    return {"toolResult": {"toolUseId": call.id, "content": [{"text": call.output}], "status": status}}


WRITERS: dict[str, Callable[[Iterator[str | Round], int], dict[str, Any]]] = {
    "openai-chat": _openai_chat,
    "openai-responses": _openai_responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "bedrock": _bedrock,
}
