"""SWE-agent trajectories, as Chat messages.

The history ends where the model was asked last; what the environment answered to its last action stands only in the
trajectory, so it is added from there.
"""

from __future__ import annotations

from collections.abc import Iterator

from kompakt.evals.session import Document, Session
from kompakt.evals.sources.chat import Chat, open_calls
from kompakt.model.messages import JsonObject, text_of


def matches(document: Document) -> bool:
    """Tell whether a file is one trajectory with its history."""
    first = document.first
    return not document.lines and isinstance(first.get("history"), list) and isinstance(first.get("trajectory"), list)


def read(document: Document) -> Iterator[Session]:
    """Yield the one session of a file."""
    chat = Chat()
    history: list[JsonObject] = document.first["history"]
    for entry in history:
        _add(chat, entry)
    steps: list[JsonObject] = document.first["trajectory"]
    last = str(steps[-1].get("observation") or "") if steps else ""
    if last and history and history[-1]["role"] == "assistant":
        _answer(chat, history[-1], last)
    messages = chat.finish()
    yield Session(
        name=document.name,
        source="swe-agent",
        format="openai-chat",
        body={"messages": messages},
        notes=(*_unsent(steps, messages), *open_calls(messages)),
    )


def _unsent(steps: list[JsonObject], messages: list[JsonObject]) -> list[str]:
    """Note answers of the model that the agent took back before it went on."""
    sent = "\n".join(message["content"] or "" for message in messages)
    taken_back = [number for number, step in enumerate(steps) if str(step.get("response") or "") not in sent]
    return [f"the answer of step {number} is not in the history" for number in taken_back]


def _add(chat: Chat, entry: JsonObject) -> None:
    content = text_of(entry.get("content"))
    if entry.get("tool_calls"):
        chat.call({"role": "assistant", "content": content or None, "tool_calls": entry["tool_calls"]})
    elif entry["role"] == "tool":
        for call_id in entry.get("tool_call_ids") or [entry.get("tool_call_id") or ""]:
            chat.result(call_id, content)
    else:
        chat.say(entry["role"], content)


def _answer(chat: Chat, entry: JsonObject, observation: str) -> None:
    """Add what the environment answered to an action."""
    calls: list[JsonObject] = entry.get("tool_calls") or []
    for call in calls:
        chat.result(call["id"], observation)
    if not calls:
        chat.say("user", observation)
