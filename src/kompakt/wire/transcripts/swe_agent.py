"""SWE-agent trajectories, read as Chat messages.

A history ends with the last request to the model. The answer of the environment to the last action is only in the
trajectory and is added from there. A file without a history is read from its trajectory alone. Files of mini-swe-agent
contain the messages themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kompakt.model.json import as_object, as_objects, as_text
from kompakt.model.messages import JsonObject, text_of
from kompakt.wire.transcripts.transcript import ChatBuilder, Document, Transcript, open_calls

LABEL = "SWE-agent"

_ROLES = ("system", "user", "assistant")


def matches(document: Document) -> bool:
    """Return whether a document is one trajectory of SWE-agent or mini-swe-agent."""
    value = as_object(document.value)
    if as_text(value.get("trajectory_format")).startswith("mini-swe-agent"):
        return True
    steps, history = as_objects(value.get("trajectory")), as_objects(value.get("history"))
    if any("action" in step or "observation" in step or "response" in step for step in steps):
        return True
    return "instance_id" not in value and any("role" in entry and "parts" not in entry for entry in history)


def read(document: Document) -> Iterator[Transcript]:
    """Yield the session of a file."""
    value = as_object(document.value)
    steps = as_objects(value.get("trajectory"))
    history = as_objects(value.get("history")) or as_objects(value.get("messages"))
    chat = ChatBuilder()
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


def _add_history(chat: ChatBuilder, history: Sequence[JsonObject], steps: Sequence[JsonObject]) -> None:
    for entry in history:
        _add_entry(chat, entry)
    last = as_text(steps[-1].get("observation")) if steps else ""
    if last and history[-1].get("role") == "assistant":
        _add_observation(chat, history[-1], last)


def _add_steps(chat: ChatBuilder, steps: Sequence[JsonObject]) -> None:
    """Rebuild the conversation from its steps; the query of the first step holds the prompt."""
    prompt = as_objects(steps[0].get("query")) or as_objects(steps[0].get("messages")) if steps else []
    for entry in prompt:
        _add_entry(chat, entry)
    for step in steps:
        calls = as_objects(step.get("tool_calls"))
        answer = as_text(step.get("response")) or "\n\n".join(
            filter(None, (as_text(step.get("thought")), as_text(step.get("action"))))
        )
        _add_entry(chat, {"role": "assistant", "content": answer, "tool_calls": calls})
        if observation := as_text(step.get("observation")):
            _add_observation(chat, step, observation)


def _unsent(steps: Sequence[JsonObject], messages: Sequence[JsonObject]) -> list[str]:
    """Describe answers that the agent discarded before it continued."""
    sent = "\n".join(text_of(message.get("content")) for message in messages)
    discarded = [number for number, step in enumerate(steps) if as_text(step.get("response")) not in sent]
    return [f"the answer of step {number} is not in the history" for number in discarded]


def _add_entry(chat: ChatBuilder, entry: JsonObject) -> None:
    content = text_of(entry.get("content"))
    calls = as_objects(entry.get("tool_calls"))
    role = entry.get("role")
    if calls:
        chat.add_calls({"role": "assistant", "content": content or None, "tool_calls": calls})
    elif role in ("tool", "function"):
        ids = entry.get("tool_call_ids")
        for call_id in ids if isinstance(ids, list) and ids else [entry.get("tool_call_id")]:
            chat.add_result(as_text(call_id), content)
    elif content or role != "assistant":
        chat.add(role if role in _ROLES else "user", content)


def _add_observation(chat: ChatBuilder, entry: JsonObject, observation: str) -> None:
    """Add the answer of the environment to an action."""
    calls = as_objects(entry.get("tool_calls"))
    for call in calls:
        chat.add_result(as_text(call.get("id")), observation)
    if not calls:
        chat.add("user", observation)
