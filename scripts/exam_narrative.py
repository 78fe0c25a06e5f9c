#!/usr/bin/env python3
"""Contexts with a model's narrative for an exam, when the model is not reachable from here.

    exam_narrative.py prompts CASES OUT     write OUT/caseN.prompt.txt: the request that LLMSummarizer sends
    exam_narrative.py contexts CASES OUT    read OUT/caseN.narrative.txt, write OUT/narrative/caseN.txt

CASES is an exam as ``kompakt eval --exam`` reads it, with a summary in each case. Between the two commands a model
answers each prompt. The second command checks the answers as LLMSummarizer does and falls back to code alone where one
cannot be used. With a reachable model, ``--writer MODEL`` does the same in one step.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kompakt
from kompakt.agent.client import Delta, Reply, ToolSpec
from kompakt.evals.exam.contexts import context
from kompakt.evals.exam.questions import read_exam
from kompakt.model.budget import Usage
from kompakt.model.messages import JsonObject


class RecordedClient:
    """Keeps the requests it gets and answers each with the same text."""

    format = "anthropic"
    model = "claude-sonnet-4-5"
    output_limit = 16_000
    context_window = 200_000

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.bodies: list[JsonObject] = []

    def envelope(self, *, system: str | None, tools: Sequence[ToolSpec]) -> JsonObject:
        """Return the request without its messages."""
        return {"model": self.model, **({"system": system} if system else {})}

    def opening(self, system: str | None) -> list[Any]:
        """Return no messages: the system prompt is in the envelope."""
        return []

    async def send(
        self,
        body: JsonObject,
        *,
        on_delta: Callable[[Delta], None] | None = None,
        changes: JsonObject | None = None,
    ) -> Reply:
        """Record a request and answer it."""
        self.bodies.append(body)
        item = {"role": "assistant", "content": [{"type": "text", "text": self.answer}]}
        return Reply((item,), "end", Usage(), Usage())

    async def close(self) -> None:
        """Do nothing."""


async def run(what: str, cases: Path, out: Path) -> None:
    """Write the prompts or the contexts of all cases."""
    (out / "narrative").mkdir(parents=True, exist_ok=True)
    for case in read_exam(cases):
        answer = out / f"{case.name}.narrative.txt"
        if what == "contexts" and not answer.exists():
            print(case.name, "has no narrative:", answer)
            continue
        client = RecordedClient(answer.read_text() if what == "contexts" else "")
        made = await context(case, "narrative", policy="default", summarizer=kompakt.LLMSummarizer(client))
        if what == "contexts":
            (out / "narrative" / f"{case.name}.txt").write_text(made.text)
            print(case.name, f"{made.tokens} tokens")
        elif client.bodies:
            history = kompakt.parse(client.bodies[0], "anthropic")
            text = "\n\n".join(f"[{one.role}]\n{one.text}" for one in (*history.system, history[0])) + "\n"
            (out / f"{case.name}.prompt.txt").write_text(text)
            print(case.name, f"{len(text)} characters")
        else:
            print(case.name, "needs no narrative")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["prompts", "contexts"])
    parser.add_argument("cases", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    asyncio.run(run(given.what, given.cases, given.out))


if __name__ == "__main__":
    main()
