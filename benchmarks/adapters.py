"""The time that a framework adapter adds to one step of a long conversation.

    python -m benchmarks.adapters           with plain dictionaries
    python -m benchmarks.adapters FRAMEWORK with the messages of a framework, in its environment

Run the second in the environments of scripts/test_integrations.py. Some frameworks give the same objects at every step,
others make new ones, which the adapter has to compare; here they are made by the frameworks' own functions. A framework
is measured twice: while everything fits, and with a budget that hides most of the conversation.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import kompakt
from kompakt.integrations.conversation import AdapterOptions, Converter, LiveConversation, RequestFrame, WireConverter

RESULT = Path(__file__).parent / "results" / "adapters.json"
SIZES = (1_000, 5_000, 20_000)
SIZE = 5_000
STEPS = 200
BUDGET, SMALL_BUDGET = AdapterOptions(budget=200_000), AdapterOptions(budget=20_000)

Messages = list[Any]


def same(messages: Messages) -> Messages:
    """Return the objects of the step before."""
    return messages


def rebuilt(messages: Messages) -> Messages:
    """Return new messages with the same contents, as OpenAI Agents makes them from its run items."""
    return [dict(one) for one in messages]


def adk_copies(messages: Messages) -> Messages:
    """Return what ADK makes of the contents in its events: new contents and parts, and calls without ADK's own ids."""
    module: Any = importlib.import_module("google.adk.flows.llm_flows.contents")
    return [module._copy_content_for_request(one, strip_client_function_call_ids=True) for one in messages]


def litellm_copies(messages: Messages) -> Messages:
    """Return what LiteLLM makes of messages for other models than Gemini: new messages and calls."""
    module: Any = importlib.import_module("litellm.utils")
    return module._remove_thought_signatures_from_messages(messages, "__thought__")


def parsed(messages: Messages) -> Messages:
    """Return what the proxy of LiteLLM reads from the body of a request."""
    return json.loads(json.dumps(messages))


class Framework(NamedTuple):
    """What an adapter gets from its framework."""

    converter: str | tuple[str, Sequence[str]]
    """The name of its converter, or a format and the fields of the framework's messages."""
    given: Callable[[Messages], Messages] = same
    objects: str = "same"
    """What the framework gives at every step, in one word."""


CHAT = ("openai-chat", ())

FRAMEWORKS = {
    "adk": Framework("_GeminiConverter", adk_copies, "copied"),
    "agent_framework": Framework("_ContentConverter"),
    "autogen": Framework("_MessageConverter"),
    "crewai": Framework(("openai-chat", ("role", "content", "tool_calls", "tool_call_id", "name"))),
    "haystack": Framework("_ChatConverter"),
    "langchain": Framework("_ChatConverter"),
    "litellm": Framework(CHAT, litellm_copies, "copied"),
    "litellm_proxy": Framework(CHAT, parsed, "parsed"),
    "llama_index": Framework("_BlockConverter"),
    "openai_agents": Framework(("openai-responses", ()), rebuilt, "new"),
    "pydantic_ai": Framework("_PartConverter"),
    "strands": Framework(("bedrock", ("role", "content"))),
}


def steps(count: int) -> Messages:
    """Return a request, small calls and their results."""
    found: Messages = [{"role": "user", "content": "Read all rows."}]
    for number in range(count):
        call = {"name": "read", "arguments": f'{{"row": {number}}}'}
        calls = [{"id": f"adk-{number}", "type": "function", "function": call}]
        found.append({"role": "assistant", "content": None, "tool_calls": calls})
        found.append({"role": "tool", "tool_call_id": f"adk-{number}", "content": f"row {number} is complete"})
    return found


def measure(
    size: int,
    converter: Converter[Any] | None = None,
    given: Callable[[Messages], Messages] = same,
    *,
    count: int = STEPS,
    options: AdapterOptions = BUDGET,
) -> dict[str, float]:
    """Return CPU milliseconds of a step at this number of messages."""
    converter = converter or WireConverter("openai-chat")
    wires = kompakt.render(kompakt.parse(steps(size // 2 + count), "openai-chat"), format=converter.format)
    known = [wires] if not isinstance(wires, dict) else list(wires.values())
    items = next(one for one in known if isinstance(one, list))
    own = [one if isinstance(converter, WireConverter) else converter.from_wire(one, None) for one in items]
    conversation = LiveConversation("c", converter, options)
    conversation.view(given(own[: size + 1]), RequestFrame())
    seconds: list[float] = []
    alive: list[Messages] = []  # the framework frees its copies, not the adapter
    for number in range(1, count + 1):
        messages = given(own[: size + 1 + 2 * number])
        alive.append(messages)
        began = time.process_time()
        conversation.view(messages, RequestFrame())
        seconds.append(time.process_time() - began)
    return {"messages": size, "median_ms": round(1_000 * statistics.median(seconds), 3)}


def measure_framework(name: str) -> dict[str, Any]:
    """Return the time of a step with the messages of a framework, which has to be installed."""
    chosen = FRAMEWORKS[name]
    if isinstance(chosen.converter, str):
        converter = getattr(importlib.import_module(f"kompakt.integrations.{name}"), chosen.converter)()
    else:
        converter = WireConverter(*chosen.converter)
    whole, hidden = (measure(SIZE, converter, chosen.given, count=20, options=one) for one in (BUDGET, SMALL_BUDGET))
    return {**whole, "hidden_median_ms": hidden["median_ms"], "objects": chosen.objects}


def main(names: Sequence[str]) -> None:
    """Measure and write the result."""
    results: dict[str, Any] = json.loads(RESULT.read_text())  # what is not measured now stays
    results["frameworks"].update({name: measure_framework(name) for name in names})
    if not names:
        results["sizes"] = {str(size): measure(size) for size in SIZES}
    RESULT.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    rows = {name: results["frameworks"][name] for name in names} or results["sizes"]
    for name, row in rows.items():
        sys.stdout.write(f"{name}: {row['median_ms']} ms per step at {row['messages']} messages\n")


if __name__ == "__main__":
    main(sys.argv[1:])
