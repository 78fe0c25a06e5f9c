"""SWE-agent and mini-swe-agent trajectories, as Chat messages.

A history ends where the model was asked last; what the environment answered to its last action is only in the
trajectory, so it is added from there. A file without a history is read from its trajectory alone: each step holds what
the model answered and what the environment said. Files of mini-swe-agent hold the messages themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kompakt.model.messages import JsonObject, text_of
from kompakt.wire.transcripts.chat import Chat
from kompakt.wire.transcripts.transcript import Document, Transcript, as_object, as_text, objects, open_calls

_ROLES = ("system", "user", "assistant")


def matches(document: Document) -> bool:
    """Tell whether a document is one trajectory."""
    value = as_object(document.value)
    if as_text(value.get("trajectory_format")).startswith("mini-swe-agent"):
        return True
    steps, history = objects(value.get("trajectory")), objects(value.get("history"))
    if any("action" in step or "observation" in step or "response" in step for step in steps):
        return True
    return "instance_id" not in value and any("role" in entry and "parts" not in entry for entry in history)


def read(document: Document) -> Iterator[Transcript]:
    """Yield the one session of a file."""
    value = as_object(document.value)
    steps = objects(value.get("trajectory"))
    history = objects(value.get("history")) or objects(value.get("messages"))
    chat = Chat()
    if history:
        _add_history(chat, history, steps)
    else:
        _add_steps(chat, steps)
    messages = chat.finish()
    if messages:
        yield Transcript(
            kind="swe-agent",
            format="openai-chat",
            body={"messages": messages},
            ids=(None,) * len(messages),
            notes=(*_unsent(steps, messages), *open_calls(messages)),
            records=len(history) or len(steps),
        )


def _add_history(chat: Chat, history: Sequence[JsonObject], steps: Sequence[JsonObject]) -> None:
    for entry in history:
        _add(chat, entry)
    last = as_text(steps[-1].get("observation")) if steps else ""
    if last and history[-1].get("role") == "assistant":
        _answer(chat, history[-1], last)


def _add_steps(chat: Chat, steps: Sequence[JsonObject]) -> None:
    """Rebuild the conversation from its steps; the first query holds what the model was asked with."""
    asked = objects(steps[0].get("query")) or objects(steps[0].get("messages")) if steps else []
    for entry in asked:
        _add(chat, entry)
    for step in steps:
        calls = objects(step.get("tool_calls"))
        answer = as_text(step.get("response")) or "\n\n".join(
            filter(None, (as_text(step.get("thought")), as_text(step.get("action"))))
        )
        _add(chat, {"role": "assistant", "content": answer, "tool_calls": calls})
        if observation := as_text(step.get("observation")):
            _answer(chat, step, observation)


def _unsent(steps: Sequence[JsonObject], messages: Sequence[JsonObject]) -> list[str]:
    """Note answers of the model that the agent took back before it continued."""
    sent = "\n".join(text_of(message.get("content")) for message in messages)
    taken_back = [number for number, step in enumerate(steps) if as_text(step.get("response")) not in sent]
    return [f"the answer of step {number} is not in the history" for number in taken_back]


def _add(chat: Chat, entry: JsonObject) -> None:
    content = text_of(entry.get("content"))
    calls = objects(entry.get("tool_calls"))
    role = entry.get("role")
    if calls:
        chat.call({"role": "assistant", "content": content or None, "tool_calls": calls})
    elif role in ("tool", "function"):
        ids = entry.get("tool_call_ids")
        for call_id in ids if isinstance(ids, list) and ids else [entry.get("tool_call_id")]:
            chat.result(as_text(call_id), content)
    elif content or role != "assistant":
        chat.say(role if role in _ROLES else "user", content)


def _answer(chat: Chat, entry: JsonObject, observation: str) -> None:
    """Add what the environment answered to an action."""
    calls = objects(entry.get("tool_calls"))
    for call in calls:
        chat.result(as_text(call.get("id")), observation)
    if not calls:
        chat.say("user", observation)
