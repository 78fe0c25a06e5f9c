"""The time that a framework adapter adds to one step of a long conversation: ``python -m benchmarks.adapters``."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from kompakt.integrations.conversation import AdapterOptions, LiveConversation, RequestFrame, WireConverter

RESULT = Path(__file__).parent / "results" / "adapters.json"
SIZES = (1_000, 5_000, 20_000)
STEPS = 200


def step(number: int) -> list[Any]:
    """Return one small call and its result."""
    call = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": f'{{"row": {number}}}'}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": f"row {number} is complete"},
    ]


def measure(size: int) -> dict[str, float]:
    """Return CPU milliseconds of a step at this number of messages."""
    conversation = LiveConversation("c", WireConverter("openai-chat"), AdapterOptions(budget=200_000))
    messages: list[Any] = [{"role": "user", "content": "Read all rows."}]
    messages += [one for number in range(size // 2) for one in step(number)]
    conversation.view(messages, RequestFrame())
    seconds: list[float] = []
    for number in range(STEPS):
        messages += step(size + number)
        began = time.process_time()
        conversation.view(messages, RequestFrame())
        seconds.append(time.process_time() - began)
    return {"messages": size, "median_ms": round(1_000 * statistics.median(seconds), 3)}


def main() -> None:
    """Measure and write the result."""
    rows = [measure(size) for size in SIZES]
    RESULT.write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        sys.stdout.write(f"{row['messages']:>7} messages: {row['median_ms']} ms per step\n")


if __name__ == "__main__":
    main()
