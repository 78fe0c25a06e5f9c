"""Real clients: how the same history differs from request to request.

Written from what such clients were seen to send; none of it is known to the gateway.
"""

from __future__ import annotations

import copy
from typing import Any

from tests.gateway.client_sessions import Talk, items_of
from tests.gateway.upstreams import Recorded
from tests.provider.signatures import unmarked

EPHEMERAL = {"cache_control": {"type": "ephemeral"}}
Item = dict[str, Any]


class Shaped(Talk):
    """A client whose requests are views of its history; ``sent`` keeps each view."""

    name = ""

    def __init__(self, url: str, format: str, **options: Any) -> None:
        super().__init__(url, format, **options)
        self.sent: list[list[Any]] = []

    def shape(self, items: list[Any], at: int) -> list[Any]:
        """Return the items of request number ``at``."""
        return items

    def step(self) -> bool:
        """Send a view of the history and add the answer to the history itself."""
        kept = self.items
        self.items = self.shape(copy.deepcopy(kept), len(self.sent))
        size = len(self.items)
        self.sent.append(copy.deepcopy(self.items))
        try:
            made = super().step()
            kept = [*kept, *self.items[size:]]
        finally:
            self.items = kept
        return made


def blocks(message: Item) -> list[Item]:
    """Return content as blocks."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def marked(message: Item) -> Item:
    """Put a cache mark on the last block of a message."""
    found = blocks(message)
    return {**message, "content": [*found[:-1], {**found[-1], **EPHEMERAL}]}


def plain(message: Item) -> Item:
    """Write content that is one block of text as a string."""
    found = blocks(message)
    only = len(found) == 1 and found[0]["type"] == "text"
    return {**message, "content": found[0]["text"]} if only else message


class Claude(Shaped):
    """Marks on the last two messages, a date in the system prompt, reminders that come, change and go, both shapes."""

    name = "claude-code"

    def __init__(self, url: str, format: str = "anthropic", **options: Any) -> None:
        super().__init__(url, format, **options)
        self.model = "claude-opus-4-5"

    def shape(self, items: list[Any], at: int) -> list[Any]:
        self.extra = {"system": self._system(at), "metadata": {"user_id": f"user_{at}"}}
        reminder = {"type": "text", "text": f"<system-reminder>The list has {at} entries.</system-reminder>"}
        if at % 3 == 1:  # only the newest message of a request has it
            items[-1] = {**items[-1], "content": [*blocks(items[-1]), reminder]}
        shaped = [plain(item) if at % 2 else {**item, "content": blocks(item)} for item in items]
        return [*shaped[:-2], *(marked(item) for item in shaped[-2:])] if len(shaped) > 2 else shaped

    def _system(self, at: int) -> list[Item]:
        who = {"type": "text", "text": "You are a coding agent that runs in a terminal.", **EPHEMERAL}
        date = {"type": "text", "text": f"<env>\nToday's date: 2026-09-{1 + at // 4:02d}\n</env>", **EPHEMERAL}
        return [who, date]


class Codex(Shaped):
    """Responses without storage: environment context before the task, encrypted reasoning, no statuses."""

    name = "codex"

    def __init__(self, url: str, format: str = "openai-responses", **options: Any) -> None:
        super().__init__(url, format, **options)
        self.model = "gpt-5-codex"

    def shape(self, items: list[Any], at: int) -> list[Any]:
        self.extra = {
            "instructions": "You are a coding agent.",
            "prompt_cache_key": "0199-conversation",
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "reasoning": {"effort": "medium", "summary": "auto"},
        }
        text = "<environment_context>\n  <cwd>/work</cwd>\n  <shell>bash</shell>\n</environment_context>"
        context = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        return [context, *(self._item(item) for item in items)]

    def _item(self, item: Item) -> Item:
        bare = {key: value for key, value in item.items() if key not in ("id", "status")}
        if item.get("role") == "user" and isinstance(item["content"], str):
            return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": item["content"]}]}
        if item.get("role") == "assistant":
            parts = [{"type": "output_text", "text": part["text"]} for part in item["content"]]
            return {"type": "message", "role": "assistant", "content": parts}
        return item if item.get("type") == "reasoning" else bare


class OpencodeChat(Shaped):
    """Chat with two system messages, of which the second contains the date, and text parts instead of strings."""

    name = "opencode-chat"

    def __init__(self, url: str, format: str = "openai-chat", **options: Any) -> None:
        super().__init__(url, format, **options)

    def shape(self, items: list[Any], at: int) -> list[Any]:
        system = [
            {"role": "system", "content": "You are a coding agent."},
            {"role": "system", "content": f"Today is 2026-09-{1 + at // 5:02d}."},
        ]
        asked = [
            {**item, "content": [{"type": "text", "text": item["content"]}]}
            if item["role"] == "user" and at % 2
            else item
            for item in items
        ]
        return [*system, *asked]


class OpencodeAnthropic(Shaped):
    """Messages with marks on the first and the last messages."""

    name = "opencode-anthropic"

    def __init__(self, url: str, format: str = "anthropic", **options: Any) -> None:
        super().__init__(url, format, **options)
        self.model = "claude-opus-4-5"

    def shape(self, items: list[Any], at: int) -> list[Any]:
        self.extra = {"system": [{"type": "text", "text": "You are a coding agent.", **EPHEMERAL}]}
        return [*items[:-2], *(marked(item) for item in items[-2:])]


SHAPES = (Claude, Codex, OpencodeChat, OpencodeAnthropic)


def canonical(items: list[Any], format: str) -> list[Any]:
    """Return messages without what means nothing: marks, and whether one text is a string or a block."""
    found = unmarked(items)
    if format == "anthropic":
        return [{**item, "content": blocks(item)} for item in found]
    if format == "openai-chat":
        return [
            {**item, "content": item["content"][0]["text"]}
            if isinstance(item.get("content"), list) and len(item["content"]) == 1
            else item
            for item in found
        ]
    return found


def common(one: list[Any], two: list[Any]) -> int:
    """Count the common first messages of two requests."""
    same = 0
    for left, right in zip(one, two, strict=False):
        if left != right:
            break
        same += 1
    return same


def unsteady(provider: Recorded, shaped: Shaped) -> list[str]:
    """Say where a request upstream differs from the one before it earlier than the client's own requests do.

    What the client changed at its end may differ; everything before that must be the same, unless the gateway said
    that it compacted.
    """
    found = []
    ups = [canonical(items_of(raw, shaped.format), shaped.format) for raw in provider.asked]
    downs = [canonical(items, shaped.format) for items in shaped.sent]
    for at in range(1, len(ups)):
        if at in shaped.compacted:
            continue
        changed = len(downs[at - 1]) - common(downs[at - 1], downs[at])
        heads = sum(item.get("role") == "system" for item in downs[at]) if shaped.format == "openai-chat" else 0
        if heads:  # a system message that changed is no part of the history
            ups[at - 1], ups[at] = ups[at - 1], ups[at - 1][:heads] + ups[at][heads:]
            tail = common(downs[at - 1][heads:], downs[at][heads:])
            changed = len(downs[at - 1]) - heads - tail
        same, needed = common(ups[at - 1], ups[at]), len(ups[at - 1]) - changed
        if same < needed:
            found.append(f"request {at}: {same} messages as before, {needed} expected (of {len(ups[at - 1])})")
    return found
