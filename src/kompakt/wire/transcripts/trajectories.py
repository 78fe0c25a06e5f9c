"""Trajectories of benchmarks and research agents, read as Chat messages: OpenHands, SWE-agent, tau-bench.

OpenHands writes events: evaluation output, exported trajectories and event logs. An action that came from a tool call
contains the model's response, so the call is read from there; several actions of one response are one assistant
message. Version 1 writes events with a ``kind``, version 0 with ``action`` and ``observation``.

A history of SWE-agent ends with the last request to the model. The answer of the environment to the last action is only
in the trajectory and is added from there. A file without a history is read from its trajectory alone. Files of
mini-swe-agent contain the messages themselves.

Files of tau-bench contain Chat messages of many sessions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from kompakt.model.json import as_object, as_objects, as_text
from kompakt.model.messages import JsonObject, text_of
from kompakt.wire.transcripts.transcript import ChatBuilder, Document, Transcript, open_calls, seconds

# --- OpenHands ---------------------------------------------------------------------------------------------------

_EVENTS_CHECKED = 50
"""Events checked to identify a list of events."""

_EVENT_KINDS = ("MessageEvent", "ActionEvent", "ObservationEvent", "SystemPromptEvent", "AgentErrorEvent")


def is_openhands(document: Document) -> bool:
    """Return whether a document is evaluation output with event histories, or a list of events."""
    return bool(_openhands_runs(document))


def _openhands_runs(document: Document) -> list[tuple[JsonObject, list[JsonObject]]]:
    """Return the runs of a document, each with its events."""
    values = [line.record for line in document.lines] if document.is_lines else [as_object(document.value)]
    runs = [(value, as_objects(value.get("history"))) for value in values if isinstance(value.get("history"), list)]
    if runs:
        # SWE-agent also has a list named history; its entries have roles.
        events = [event for _, found in runs for event in found[:_EVENTS_CHECKED]]
        return runs if any(map(_is_event, events)) or any("instance_id" in run for run, _ in runs) else []
    events = (
        values
        if document.is_lines
        else as_objects(document.value) or as_objects(as_object(document.value).get("events"))
    )
    return [({}, events)] if any(map(_is_event, events[:_EVENTS_CHECKED])) else []


def _is_event(event: JsonObject) -> bool:
    if event.get("kind") in _EVENT_KINDS:
        return True
    return "source" in event and ("action" in event or "observation" in event) and "role" not in event


def read_openhands(document: Document) -> Iterator[Transcript]:
    """Yield one session per run."""
    runs = _openhands_runs(document)
    for number, (record, events) in enumerate(runs):
        run = _OpenHandsRun()
        for event in events:
            run.add(event)
        messages = run.chat.finish()
        if not messages:
            continue
        metadata = as_object(record.get("metadata"))
        settings = as_object(metadata.get("llm_config") or metadata.get("llm"))
        body: JsonObject = {"model": settings["model"]} if isinstance(settings.get("model"), str) else {}
        body["messages"] = messages
        if run.tools:
            body["tools"] = run.tools
        silent = [f"{count} {name} events carry no message" for name, count in run.without_message.items()]
        named = str(record.get("instance_id") or number)
        yield Transcript(
            kind="openhands",
            format="openai-chat",
            name=named if "instance_id" in record or len(runs) > 1 else "",
            body=body,
            ids=(None,) * len(messages),
            summaries=frozenset(run.chat.summaries),
            usages=tuple(run.chat.usages),
            times=tuple(run.chat.times),
            skipped=document.skipped if number == 0 else (),
            replaced=document.replaced if number == 0 else (),
            left_out=dict(run.without_message),
            notes=(*silent, *open_calls(messages)),
            records=len(events),
        )


class _OpenHandsRun:
    """Collects the events of one run."""

    def __init__(self) -> None:
        self.chat = ChatBuilder()
        self.tools: list[JsonObject] = []
        self.without_message: Counter[str] = Counter()
        self._responses: dict[str, JsonObject] = {}

    def add(self, event: JsonObject) -> None:
        if isinstance(event.get("kind"), str):
            self._add_kind(event)
            return
        metadata = as_object(event.get("tool_call_metadata"))
        if "observation" in event:
            words = _shown_text(event)
            if isinstance(metadata.get("tool_call_id"), str):
                self.chat.add_result(metadata["tool_call_id"], words)
            elif words:
                self.chat.add("user", words)
            else:
                self.without_message[str(event["observation"])] += 1
        elif not self._add_response(as_object(metadata.get("model_response")), seconds(event.get("timestamp"))):
            self._add_action(event)

    # --- version 0 ---

    def _add_response(self, response: JsonObject, time: float | None) -> bool:
        """Add the model's answer that an action came from, once; return whether there is one."""
        choices = as_objects(response.get("choices"))
        message = as_object(choices[0].get("message")) if choices else {}
        calls = as_objects(message.get("tool_calls"))
        if not calls:
            return False
        name = str(response.get("id") or calls[0].get("id"))
        if name in self._responses:
            return True
        self._responses[name] = message
        kept: JsonObject = {"role": "assistant", "content": message.get("content"), "tool_calls": calls}
        usage = response.get("usage")
        self.chat.add_calls(kept, usage=usage if isinstance(usage, dict) else None, time=time)
        return True

    def _add_action(self, event: JsonObject) -> None:
        action = event.get("action")
        arguments = as_object(event.get("args"))
        words = text_of(arguments.get("content")) or as_text(arguments.get("thought")) or as_text(event.get("message"))
        if action == "system":
            self.tools = as_objects(arguments.get("tools"))
            self.chat.add("system", words)
        elif words:
            self.chat.add("user" if event.get("source") == "user" else "assistant", words)
        else:
            self.without_message[str(action)] += 1

    # --- version 1 ---

    def _add_kind(self, event: JsonObject) -> None:
        call_id = event.get("tool_call_id")
        match event["kind"]:
            case "SystemPromptEvent":
                self.chat.add("system", text_of(event.get("system_prompt")))
                self.tools = [tool for tool in as_objects(event.get("tools")) if tool.get("type") == "function"]
            case "MessageEvent":
                message = as_object(event.get("llm_message"))
                added = [text_of(message.get("content")), text_of(event.get("extended_content"))]
                self.chat.add(as_text(message.get("role")) or "user", "\n\n".join(filter(None, added)))
            case "ActionEvent":
                self._add_call(event)
            case "Condensation" | "CondensationSummaryEvent" if isinstance(event.get("summary"), str):
                self.chat.add_summary("user", event["summary"])
            case _ if isinstance(call_id, str):
                self.chat.add_result(call_id, _observation_text(event))
            case kind:
                self.without_message[str(kind)] += 1

    def _add_call(self, event: JsonObject) -> None:
        """Add a call; calls of one response are one message."""
        given = as_object(event.get("tool_call"))
        function = as_object(given.get("function")) or given
        arguments = function.get("arguments")
        call: JsonObject = {
            "id": str(given.get("id") or event.get("tool_call_id")),
            "type": "function",
            "function": {
                "name": as_text(function.get("name")) or as_text(event.get("tool_name")),
                "arguments": arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode(),
            },
        }
        response = event.get("llm_response_id")
        message = self._responses.get(response) if isinstance(response, str) else None
        if message is not None and self.chat.is_waiting(message):
            message["tool_calls"].append(call)
            self.chat.expect(call["id"])
            return
        message = {"role": "assistant", "content": text_of(event.get("thought")) or None, "tool_calls": [call]}
        if isinstance(response, str):
            self._responses[response] = message
        self.chat.add_calls(message, time=seconds(event.get("timestamp")))


def _observation_text(event: JsonObject) -> str:
    """Return the result of a tool: an observation, an error or a rejection."""
    observation = as_object(event.get("observation"))
    words = [
        text_of(observation.get("content")) or as_text(observation.get("output")),
        text_of(event.get("extended_content")),
        as_text(event.get("error")),
    ]
    if isinstance(event.get("rejection_reason"), str):
        words.append(f"Action rejected: {event['rejection_reason']}")
    return "\n\n".join(filter(None, words))


def _shown_text(event: JsonObject) -> str:
    """Return the text of an observation as the agent saw it, with recalled knowledge."""
    extras = as_object(event.get("extras"))
    frame = as_object(extras.get("metadata"))
    content = f"{as_text(frame.get('prefix'))}{text_of(event.get('content'))}{as_text(frame.get('suffix'))}"
    recalled = _texts(as_objects(extras.get("microagent_knowledge")), "content")
    instructions = [as_text(extras.get(key)) for key in ("repo_instructions", "additional_agent_instructions")]
    return "\n\n".join([content, *filter(None, instructions), *recalled])


def _texts(entries: Sequence[JsonObject], key: str) -> list[str]:
    return [entry[key] for entry in entries if isinstance(entry.get(key), str) and entry[key]]


# --- SWE-agent ---------------------------------------------------------------------------------------------------

_SWE_ROLES = ("system", "user", "assistant")


def is_swe_agent(document: Document) -> bool:
    """Return whether a document is one trajectory of SWE-agent or mini-swe-agent."""
    value = as_object(document.value)
    if as_text(value.get("trajectory_format")).startswith("mini-swe-agent"):
        return True
    steps, history = as_objects(value.get("trajectory")), as_objects(value.get("history"))
    if any("action" in step or "observation" in step or "response" in step for step in steps):
        return True
    return "instance_id" not in value and any("role" in entry and "parts" not in entry for entry in history)


def read_swe_agent(document: Document) -> Iterator[Transcript]:
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
        chat.add(role if role in _SWE_ROLES else "user", content)


def _add_observation(chat: ChatBuilder, entry: JsonObject, observation: str) -> None:
    """Add the answer of the environment to an action."""
    calls = as_objects(entry.get("tool_calls"))
    for call in calls:
        chat.add_result(as_text(call.get("id")), observation)
    if not calls:
        chat.add("user", observation)


# --- tau-bench ---------------------------------------------------------------------------------------------------


def is_tau_bench(document: Document) -> bool:
    """Return whether a document is a list of trajectories, or one."""
    return not document.is_lines and any(isinstance(entry.get("traj"), list) for entry in _tau_entries(document))


def _tau_entries(document: Document) -> list[JsonObject]:
    return as_objects(document.value if isinstance(document.value, list) else [document.value])


def read_tau_bench(document: Document) -> Iterator[Transcript]:
    """Yield one session per trajectory; its messages are used unchanged."""
    for number, entry in enumerate(_tau_entries(document)):
        messages = as_objects(entry.get("traj"))
        if not messages:
            continue
        yield Transcript(
            kind="tau-bench",
            format="openai-chat",
            name=f"task-{entry.get('task_id', number)}.trial-{entry.get('trial', 0)}",
            body={"messages": messages},
            ids=(None,) * len(messages),
            notes=tuple(open_calls(messages)),
            records=len(messages),
        )
