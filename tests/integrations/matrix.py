"""Which parts of the contract run for which framework, and why others do not.

The suites leave out what is listed here, and nothing else. ``python -m tests.integrations.matrix`` writes the table of
docs/guides/frameworks.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "frameworks.md"
START, END = "<!-- contract: start -->\n", "<!-- contract: end -->\n"

MODES = ("sync", "async", "stream")

CHECKS = {
    "sync": "sync",
    "async": "async",
    "stream": "streaming",
    "threads": "two threads",
    "shared": "one adapter, many conversations",
    "kept": "own messages unchanged",
    "objects": "same objects",
    "retry": "overflow retried once",
    "unfit": "`DoesNotFit` raised",
    "recall": "`recall`",
    "admission": "admission",
}
"""Parts of the contract, and the heads of their columns."""


class Framework(NamedTuple):
    """A framework, and the parts of the contract that do not apply to it, with the reason."""

    name: str
    without: dict[str, str]
    limits: Mapping[str, str] = MappingProxyType({})
    """What a part of the contract does not cover there."""


FRAMEWORKS = {
    "langchain": Framework("LangChain", {}),
    "pydantic_ai": Framework("Pydantic AI", {}),
    "openai_agents": Framework(
        "OpenAI Agents",
        {"retry": "The filter does not see errors of the model. A wrapped client does."},
    ),
    "agent_framework": Framework(
        "Agent Framework",
        {
            "sync": "The framework is asynchronous.",
            "retry": "A compaction strategy does not see errors of the model.",
        },
    ),
    "litellm": Framework(
        "LiteLLM",
        {
            "sync": "LiteLLM calls the hook in asynchronous calls only.",
            "retry": "The hook runs before a call and does not see its errors.",
            "recall": "LiteLLM runs no tools.",
        },
    ),
    "adk": Framework("Google ADK", {}),
    "strands": Framework(
        "Strands",
        {
            "shared": "An agent has a manager of its own.",
            "kept": "Strands sends the messages it keeps, so they are rewritten.",
        },
    ),
    "haystack": Framework(
        "Haystack",
        {
            "kept": "The hook replaces the messages of the agent's state.",
            "retry": "A compactor does not see errors of the model. A wrapped client does.",
            "unfit": "The hook asks for a size, and what cannot get as small is sent.",
        },
    ),
    "smolagents": Framework(
        "smolagents",
        {
            "async": "The framework is synchronous.",
            "shared": "Each agent is changed by itself.",
            "objects": "smolagents writes new messages for every request.",
            "retry": "The function that writes the messages does not see errors of the model.",
        },
    ),
    "llama_index": Framework(
        "LlamaIndex",
        {
            "sync": "Its agents are asynchronous. Synchronous calls of the model are tested by themselves.",
        },
    ),
    "crewai": Framework(
        "CrewAI",
        {"kept": "CrewAI sends the messages it keeps, so they are rewritten."},
        {"retry": "CrewAI itself recognizes a rejection, by the text of the outermost error. It does not read causes."},
    ),
    "autogen": Framework(
        "AutoGen",
        {
            "sync": "The framework is asynchronous.",
            "shared": "An agent has a model context of its own.",
            "retry": "A model context does not see errors of the model.",
        },
    ),
}


def table() -> str:
    """Return the table and the reasons as Markdown."""
    lines = ["| framework | " + " | ".join(CHECKS.values()) + " |", "|---" * (len(CHECKS) + 1) + "|"]
    for key, (name, without, _) in FRAMEWORKS.items():
        cells = ["–" if check in without else "yes" for check in CHECKS]
        lines.append(f"| [{name}](../integrations/{key}.md) | " + " | ".join(cells) + " |")
    lines.append("")
    for name, without, limits in FRAMEWORKS.values():
        lines += [f"- {name}, {CHECKS[check]}: {reason}" for check, reason in {**without, **limits}.items()]
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the page with the table."""
    before, _, rest = PAGE.read_text().partition(START)
    return before + START + "\n" + table() + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page())
