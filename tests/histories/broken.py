"""Broken request bodies: one or more by hand for each contract code, and a strategy that breaks valid ones.

The one invariant is that the judge of its format rejects every body in here.

Codes that no body can show on its own, and why:

- OC-9, AN-16, MI-2: nothing is rejected (an unconfirmed report; dropped silently; accepted by current versions).
- AN-11, AN-14, AN-15, AN-27, BR-8 for edited prefixes, OR-6 and AN-13 for edited blobs, GE-5, GE-6: only a comparison
  with the original shows an edit; see ``tests.judges.prefix``. Empty or missing blobs are in here.
- AN-20: the provider combines neighbours of one role, so they are valid; ``judge_alternation`` is stricter.
- OR-11 for a pruned server conversation, OR-12 for an unknown response id, AN-19 for unnamed models' true abilities:
  the server's state decides.
- MI-5 for nine characters: held against old tokenizers only; the installed validator refuses just "" and "null".
"""

from __future__ import annotations

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from tests.histories import bodies
from tests.histories.broken_anthropic import ANTHROPIC
from tests.histories.broken_bedrock import BEDROCK
from tests.histories.broken_chat import CHAT, DEEPSEEK, MISTRAL
from tests.histories.broken_gemini import GEMINI
from tests.histories.broken_responses import RESPONSES
from tests.histories.faults import FAULTS
from tests.histories.ingredients import Draw
from tests.judges import judge

BROKEN: dict[str, list[tuple[str, dict[str, Any]]]] = {
    **CHAT,
    **MISTRAL,
    **DEEPSEEK,
    **RESPONSES,
    **ANTHROPIC,
    **GEMINI,
    **BEDROCK,
}
LONE = "caf\ud83d"
"""A text that was cut in the middle of an emoji."""

HALF_CHARACTERS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "openai-chat": [
        ("in a message", {"model": "gpt-5.4", "messages": [{"role": "user", "content": LONE}]}),
        (
            "in a call and its result",
            {
                "model": "gpt-5.4",
                "messages": [
                    {"role": "user", "content": "go"},
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"id": LONE, "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                    },
                    {"role": "tool", "tool_call_id": LONE, "content": LONE},
                ],
            },
        ),
    ],
    "openai-responses": [
        (
            "in the instructions",
            {"model": "gpt-5.4", "instructions": LONE, "input": [{"role": "user", "content": "go"}]},
        ),
        ("in the whole input", {"model": "gpt-5.4", "input": LONE}),
    ],
    "anthropic": [
        (
            "in signed thinking",
            {
                "model": "claude-opus-5-5",
                "max_tokens": 64,
                "messages": [
                    {"role": "user", "content": "go"},
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "thinking", "thinking": LONE, "signature": "EqQB"},
                            {"type": "text", "text": "done"},
                        ],
                    },
                    {"role": "user", "content": "on"},
                ],
            },
        ),
        (
            "in the name of a field",
            {
                "model": "claude-opus-5-5",
                "max_tokens": 64,
                "messages": [
                    {"role": "user", "content": "go"},
                    {
                        "role": "assistant",
                        "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {LONE: 1}}],
                    },
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "ok"}]},
                ],
            },
        ),
    ],
    "gemini": [
        (
            "in the arguments of a signed call",
            {
                "model": "gemini-3-pro-preview",
                "contents": [
                    {"role": "user", "parts": [{"text": "go"}]},
                    {
                        "role": "model",
                        "parts": [{"functionCall": {"name": "f", "args": {"x": LONE}}, "thoughtSignature": "AAEC"}],
                    },
                    {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "ok"}}}]},
                ],
            },
        ),
    ],
    "bedrock": [
        (
            "in the system prompt",
            {
                "modelId": "anthropic.claude-opus-5-5-v1:0",
                "system": [{"text": LONE}],
                "messages": [{"role": "user", "content": [{"text": "go"}]}],
            },
        ),
    ],
}
"""Bodies that break TX-1, by format: the rule is the same for all."""

FORMAT_OF = {
    "OC": "openai-chat",
    "DS": "openai-chat",
    "MI": "openai-chat",
    "OR": "openai-responses",
    "AN": "anthropic",
    "GE": "gemini",
    "BR": "bedrock",
}


@st.composite
def broken(draw: Draw, format: str) -> tuple[str, dict[str, Any]]:
    """Draw a valid body, make one fault in it, and return the fault's name with the broken body."""
    body = draw(bodies(format, max_turns=2, max_steps=2))
    possible = [(fault, sites) for fault in FAULTS[format] if (sites := fault.sites(format, body))]
    assume(possible)
    fault, sites = draw(st.sampled_from(possible))
    fault.apply(format, body, draw(st.sampled_from(sites)))
    assume(judge(format, body))
    return fault.name, body
