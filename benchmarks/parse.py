"""Reading a long history: parse, group and check after `json.loads`, as a multiple of `json.loads` itself.

A stateless caller resends everything at every step, so this is paid on each request. The history is an OpenAI Chat body
of 10,000 messages with a mean of 1 KB; grouping alone is also timed up to a million messages, to see that it is linear.
"""

from __future__ import annotations

import gc
import json
from functools import cache
from typing import Any

from tests.histories.plain import build

import kompakt
from benchmarks.measurement import Row, Spread, compare_runs, row, time_runs
from kompakt.model.groups import groups
from kompakt.model.messages import Message, Text, ToolCall, ToolResult

MESSAGES = 10_000
OUTPUT_CHARS = 1_700
"""Mean size of a tool output at which a message has 1 KB on average: every other message is a short call."""

SIZES = (10_000, 100_000, 1_000_000)


@cache
def body_bytes() -> bytes:
    """Return the history as it travels."""
    return json.dumps(build("openai-chat", messages=MESSAGES, mean_chars=OUTPUT_CHARS)).encode()


@cache
def body() -> dict[str, Any]:
    """Return the history as it is handed to kompakt."""
    return json.loads(body_bytes())


def time_json_loads() -> None:
    """Decode the body: the yardstick."""
    json.loads(body_bytes())


def time_parse() -> None:
    """Parse the decoded body."""
    kompakt.parse(body())


def time_parse_group_check() -> None:
    """Parse, group and check the decoded body."""
    history = kompakt.parse(body())
    kompakt.groups(history)
    kompakt.check(history)


def time_mistral_common() -> None:
    """Read and validate the decoded body with mistral-common, which knows the same pairing rules."""
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.protocol.instruct.validator import MistralRequestValidatorV13, ValidationMode

    request = ChatCompletionRequest.from_openai(messages=body()["messages"], model="any")
    MistralRequestValidatorV13(mode=ValidationMode.serving).validate_request(request)


@cache
def parsed(messages: int) -> tuple[Message, ...]:
    """Return a parsed history of calls and results, two calls a round, with a request every 50 messages."""
    text = "x" * 1000
    built: list[Message] = []
    for i in range(messages // 5):
        if i % 10 == 0:
            built.append(Message("user", (Text(text),)))
        calls = (ToolCall(f"call_{i}_a", "read", "{}"), ToolCall(f"call_{i}_b", "read", "{}"))
        built.append(Message("assistant", (Text("Looking."), *calls)))
        built += [Message("tool", (ToolResult(call.id, text),)) for call in calls]
        built.append(Message("assistant", (Text("Seen."),)))
    while len(built) < messages:
        built.append(Message("user", (Text(text),)))
    return tuple(built[:messages])


def track_grouping_microseconds(messages: int) -> Spread:
    """Time grouping per message."""
    history = parsed(messages)
    gc.collect()
    return time_runs(lambda: groups(history), runs=max(5, 300_000 // messages)).scaled(1e6 / messages)


def measure() -> list[Row]:
    """Measure the area: kompakt first, before peers and large histories fill the memory."""
    size = len(body_bytes())
    count = len(body()["messages"])
    whole = compare_runs(time_parse_group_check, time_json_loads, runs=15)
    alone = compare_runs(time_parse, time_json_loads, runs=15)
    yardstick = time_runs(time_json_loads)
    time_mistral_common()  # pays for its imports
    peer = compare_runs(time_mistral_common, time_json_loads)
    per_message = {size: track_grouping_microseconds(size) for size in SIZES}
    parsed.cache_clear()
    note = f"{count:,} messages, {size / 1e6:.1f} MB, {size / count:,.0f} bytes a message"
    growth = per_message[SIZES[-1]].value / per_message[SIZES[0]].value
    return [
        row("json.loads of 10,000 messages", yardstick.scaled(1000), "ms"),
        row("parse + group + check, over json.loads", whole, "×", at_most=2, note=note),
        row("parse alone, over json.loads", alone, "×"),
        row("mistral-common: read + validate, over json.loads", peer, "×", peer=True),
        *[row(f"grouping, {n:,} messages", cost, "µs a message") for n, cost in per_message.items()],
        Row(name="grouping, 1,000,000 over 10,000, a message", value=growth, unit="×", at_most=2),
    ]
