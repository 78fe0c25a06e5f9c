#!/usr/bin/env python3
"""Contexts with a model's narrative for an exam, in which readers answer questions from a compacted context alone.

    exam_narrative.py prompts CASES OUT     write OUT/caseN.prompt.txt: the request that LLMSummarizer sends
    exam_narrative.py contexts CASES OUT    read OUT/caseN.narrative.txt, write OUT/narrative/caseN.txt

CASES is a folder of folders ``caseN``, each with ``session.json`` (a request body in the format of Anthropic) and
``summary.txt``, the summary whose size sets the budget. Between the two commands a model answers each prompt. The
second command checks the answers as LLMSummarizer does and falls back to code alone where one cannot be used.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kompakt
from kompakt.agent.client import Delta, Reply, ToolSpec
from kompakt.model.budget import Usage
from kompakt.model.messages import JsonObject

WINDOW = 200_000
"""Window of the model that answers the prompts."""


class RecordedClient:
    """Keeps the requests it gets and answers each with the same text."""

    format = "anthropic"
    output_limit = 16_000
    context_window = WINDOW

    def __init__(self, model: str, answer: str) -> None:
        self.model, self.answer = model, answer
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


def blocks(message: JsonObject) -> list[Any]:
    """Return the content of a message as a list of blocks."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def shown(payload: JsonObject) -> str:
    """Return all that the model reads as text, without the system prompt."""
    out: list[str] = []
    for place, message in enumerate(payload["messages"]):
        for block in blocks(message):
            if block["type"] == "text":
                out.append(f"[{place} {message['role']}]\n{block['text']}")
            elif block["type"] == "tool_use":
                given = json.dumps(block["input"], ensure_ascii=False)
                out.append(f"[{place} assistant calls {block['name']}]\n{given}")
            elif block["type"] == "tool_result":
                inner = block.get("content", "")
                inner = inner if isinstance(inner, str) else "\n".join(b.get("text", "<image>") for b in inner)
                out.append(f"[{place} tool result{' (error)' if block.get('is_error') else ''}]\n{inner}")
    return "\n\n".join(out)


def size(model: str, text: str) -> int:
    """Count the tokens of a text as a message."""
    return kompakt.count({"model": model, "messages": [{"role": "user", "content": text}]}, format="anthropic").total


def budget_of(body: JsonObject, summary: str) -> int:
    """Return the size of the fixed part, the first and the newest request, and the summary together."""
    asked = [b["text"] for m in body["messages"] if m["role"] == "user" for b in blocks(m) if b["type"] == "text"]
    spoken = [{"role": "user", "content": "x"}]
    whole = kompakt.count({**body, "messages": spoken}, format="anthropic").total
    fixed = whole - kompakt.count({"model": body["model"], "messages": spoken}, format="anthropic").total
    return fixed + size(body["model"], asked[0] + asked[-1]) + size(body["model"], summary)


async def compact(body: JsonObject, budget: int, client: RecordedClient) -> kompakt.Compaction[Any]:
    """Compact a session with a summarizer that asks the client."""
    step = kompakt.strategies.Summarization(kompakt.LLMSummarizer(client))
    steps = (kompakt.strategies.Shortening(), kompakt.strategies.SourceAttribution(), step)
    policy = kompakt.Policy("narrative", steps)
    return await kompakt.acompact(body, budget=budget, format="anthropic", policy=policy)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["prompts", "contexts"])
    parser.add_argument("cases", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    (given.out / "narrative").mkdir(parents=True, exist_ok=True)
    for case in sorted(given.cases.glob("case*"), key=lambda path: int(path.name[4:])):
        body = json.loads((case / "session.json").read_text())
        budget = budget_of(body, (case / "summary.txt").read_text())
        answer = given.out / f"{case.name}.narrative.txt"
        if given.what == "contexts" and not answer.exists():
            print(case.name, "has no narrative:", answer)
            continue
        client = RecordedClient(body["model"], answer.read_text() if given.what == "contexts" else "")
        done = asyncio.run(compact(body, budget, client))
        if given.what == "contexts":
            (given.out / "narrative" / f"{case.name}.txt").write_text(shown(done.payload))
            sizes = f"{done.tokens_before} -> {done.tokens_after} of {budget}"
            print(case.name, sizes, f"narrative {size(body['model'], client.answer)}", *done.report.failures)
        elif client.bodies:
            (request, *_) = client.bodies
            text = f"[system]\n{request['system']}\n\n[user]\n{blocks(request['messages'][0])[0]['text']}\n"
            (given.out / f"{case.name}.prompt.txt").write_text(text)
            print(case.name, f"{size(body['model'], text)} tokens;", text.rstrip().rpartition("\n")[2])
        else:
            print(case.name, "needs no narrative")


if __name__ == "__main__":
    main()
