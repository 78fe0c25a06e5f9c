"""What the model does: a long run of tool calls. The request and a count per conversation decide the next one.

A conversation is known by the token that ``Script.task`` puts into its first user message, so a compacted history still
gets its next step. Ids of calls hold the step, so a request sent again gets the same step again: the results that it
ends with show the current step. Nothing is random: the same seed, token and step give the same answer.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from tests.provider.answer import Answer, Body, Call, Seen
from tests.provider.signatures import unmarked

TOKEN = re.compile(r"conversation-([0-9a-f]{8})")
NO_TOKEN = "00000000"
WORDS = [
    "check",
    "read",
    "module",
    "parser",
    "cache",
    "index",
    "server",
    "queue",
    "writer",
    "schema",
    "retry",
    "limit",
    "token",
    "shard",
    "replica",
]
PREFIX = {"openai-chat": "call_", "openai-responses": "call_", "anthropic": "toolu_", "gemini": "fc_"}

MakeCalls = Callable[[int, random.Random, list[Body]], Sequence[tuple[str, Body]]]


@dataclass
class Conversation:
    """The state of one conversation."""

    task: str
    step: int = 0
    """The last step that was answered; 0 before the first."""
    calls: dict[int, tuple[Call, ...]] = field(default_factory=dict)
    answered: dict[str, int] = field(default_factory=dict)
    """Requests without results by digest, and the step that each was answered with."""


class Script:
    """A run of ``steps`` answers with tool calls, then an end.

    After every ``turn`` steps comes an answer without calls, so that the user writes again. ``constraints`` are texts
    that every request must hold. ``tools`` limits what is called; ``make`` replaces what is called altogether. The
    recall tool, which the client did not declare, is called only with ``recalls``.
    """

    def __init__(
        self,
        steps: int = 1000,
        *,
        seed: int = 0,
        constraints: Sequence[str] = (),
        parallel: float = 0.2,
        thinking: bool = False,
        turn: int = 0,
        tools: Sequence[str] | None = None,
        make: MakeCalls | None = None,
        recalls: bool = False,
    ) -> None:
        self.steps, self.seed, self.parallel, self.thinking, self.turn = steps, seed, parallel, thinking, turn
        self.constraints, self.tools, self.make, self.recalls = tuple(constraints), tools, make, recalls
        self.conversations: dict[str, Conversation] = {}
        self.violations: list[str] = []

    def task(self, text: str, *, number: int = 0) -> str:
        """Return a task with the token of a new conversation."""
        token = sha256(f"{self.seed}/{number}".encode()).hexdigest()[:8]
        return f"{text} (conversation-{token})"

    def token_of(self, seen: Seen) -> str:
        """Return the conversation that a request belongs to."""
        match = TOKEN.search(self._task_of(seen))
        return match.group(1) if match else NO_TOKEN

    def _task_of(self, seen: Seen) -> str:
        """Return the text with the token, else the first user message. Agents may put their own context before it."""
        return next((leaf for leaf in (seen.first_user, *seen.leaves) if TOKEN.search(leaf)), seen.first_user)

    def answer(self, seen: Seen) -> Answer:
        """Decide what the model says to a request of a conversation."""
        token = self.token_of(seen)
        if token == NO_TOKEN and any(known != NO_TOKEN for known in self.conversations):
            self.violations.append("a request holds no conversation token")
            return Answer(text="I do not know what this is about.")
        known = self.conversations.setdefault(token, Conversation(self._task_of(seen)))
        self._check_texts(token, known, seen)
        if not seen.tools:
            return Answer(text="Without tools there is nothing that I can do.")
        digest = "" if seen.results else sha256(json.dumps(unmarked(seen.items), sort_keys=True).encode()).hexdigest()
        step = self._next(token, known, seen, digest)
        known.step = step
        if digest:
            known.answered[digest] = step
        answer = self._make(token, step, seen)
        known.calls[step] = answer.calls
        return answer

    def step_of(self, task: str) -> int:
        """Return the last step answered in the conversation of a task; steps + 1 when it has ended."""
        match = TOKEN.search(task)
        known = self.conversations.get(match.group(1) if match else NO_TOKEN)
        return known.step if known else 0

    def cut(self, seen: Seen) -> None:
        """Take back the calls of the last answer, which ended before they were made."""
        known = self.conversations[self.token_of(seen)]
        known.calls[known.step] = ()

    def settle(self, seen: Seen) -> None:
        """Take the calls of the last answer for answered: their results went into a compaction."""
        known = self.conversations.get(self.token_of(seen))
        if known is None:
            return
        made = sorted(call.id for call in known.calls.get(known.step, ()))
        if sorted(seen.results) != made:
            self.violations.append(f"step {known.step} made {made}, compacted with: {seen.results}")
        known.calls[known.step] = ()

    def _check_texts(self, token: str, known: Conversation, seen: Seen) -> None:
        if not any(known.task in leaf for leaf in seen.leaves):
            self.violations.append(f"{token}: the task is gone after step {known.step}")
        for constraint in self.constraints:
            if not any(constraint in leaf for leaf in seen.leaves):
                self.violations.append(f"{token}: constraint {constraint!r} is gone after step {known.step}")

    def _next(self, token: str, known: Conversation, seen: Seen, digest: str) -> int:
        """Find the step that follows: after the calls that the request answers, else after the last one."""
        if digest in known.answered:
            return known.answered[digest]
        if seen.results:
            at = next(
                (step for step, calls in reversed(known.calls.items()) if seen.results[0] in {c.id for c in calls}),
                None,
            )
            if at is None:
                self.violations.append(f"{token}: results {seen.results} answer no call of the script")
                return known.step + 1
            made = known.calls[at]
            if sorted(seen.results) != sorted(call.id for call in made):
                self.violations.append(f"{token}: step {at} made {[c.id for c in made]}, answered: {seen.results}")
            elif sorted(seen.last_calls, key=str) != sorted(made, key=str):
                self.violations.append(f"{token}: the calls of step {at} came back changed")
            return at + 1
        if known.calls.get(known.step):
            self.violations.append(f"{token}: the calls of step {known.step} were never answered")
        return known.step + 1

    def _make(self, token: str, step: int, seen: Seen) -> Answer:
        if step > self.steps:
            return Answer(text=f"All {self.steps} steps are done.")
        dice = random.Random(f"{self.seed}/{token}/{step}")
        text = f"Step {step}: " + " ".join(dice.choices(WORDS, k=dice.randint(4, 40))) + "."
        thinking = " ".join(["Consider", *dice.choices(WORDS, k=dice.randint(4, 30))])
        thinking = thinking if self.thinking or seen.thinks else ""
        if self.turn and step % self.turn == 0:
            return Answer(text=text, thinking=thinking)
        known = [tool for tool in seen.tools if self.tools is None or tool["name"] in self.tools]
        if not self.recalls:
            known = [tool for tool in known if tool["name"] not in ("recall", "kompakt_recall")]
        if self.make is not None:
            wanted = list(self.make(step, dice, known))
        else:
            number = dice.randint(2, 3) if dice.random() < self.parallel else 1
            chosen = [dice.choice(known) for _ in range(number)] if known else []
            wanted = [(tool["name"], _arguments(tool["schema"], step, dice)) for tool in chosen]
        prefix = PREFIX[seen.format]
        calls = [Call(f"{prefix}{token}_{step:05d}_{at}", *call) for at, call in enumerate(wanted)]
        return Answer(text=text if dice.random() < 0.8 or not calls else "", calls=tuple(calls), thinking=thinking)


def _arguments(schema: Body, step: int, dice: random.Random) -> Body:
    """Fill in what a schema requires, and half of what it allows."""
    required = schema.get("required") or []
    fields = (schema.get("properties") or {}).items()
    return {name: _value(inner, step, dice) for name, inner in fields if name in required or dice.random() < 0.5}


def _value(schema: Body, step: int, dice: random.Random) -> Any:
    if schema.get("enum"):
        return dice.choice(schema["enum"])
    kind = schema.get("type", "string")
    kind = (kind[0] if isinstance(kind, list) else kind).lower()
    if kind == "object":
        return _arguments(schema, step, dice)
    plain = {"integer": step, "number": step + 0.5, "boolean": dice.random() < 0.5, "array": [], "null": None}
    return plain.get(kind, f"src/{dice.choice(WORDS)}_{step}.py")
