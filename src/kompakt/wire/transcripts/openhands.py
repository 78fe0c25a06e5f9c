"""OpenHands runs, read as Chat messages: evaluation output, exported trajectories and event logs.

An action that came from a tool call contains the model's response, so the call is read from there; several actions of
one response are one assistant message. Version 1 writes events with a ``kind``, version 0 with ``action`` and
``observation``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from kompakt.model.json import as_object, as_objects, as_text
from kompakt.model.messages import JsonObject, text_of
from kompakt.wire.transcripts.transcript import ChatBuilder, Document, Transcript, open_calls, seconds

LABEL = "OpenHands"

_EVENTS_CHECKED = 50
"""Events checked to identify a list of events."""

_EVENT_KINDS = ("MessageEvent", "ActionEvent", "ObservationEvent", "SystemPromptEvent", "AgentErrorEvent")


def matches(document: Document) -> bool:
    """Return whether a document is evaluation output with event histories, or a list of events."""
    return bool(_runs(document))


def _runs(document: Document) -> list[tuple[JsonObject, list[JsonObject]]]:
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


def read(document: Document) -> Iterator[Transcript]:
    """Yield one session per run."""
    runs = _runs(document)
    for number, (record, events) in enumerate(runs):
        run = _Run()
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


class _Run:
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
