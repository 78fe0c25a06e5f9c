"""OpenHands recordings: events as Chat messages, from evaluation output, exported trajectories and event logs.

An action that came from a tool call carries the model's response, so the call is taken from there; several actions of
one response are one assistant message. Version 1 writes events with a ``kind``, version 0 with ``action`` and
``observation``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from kompakt.model.messages import JsonObject, text_of
from kompakt.wire.transcripts.chat import Chat
from kompakt.wire.transcripts.transcript import (
    Document,
    Transcript,
    as_object,
    as_text,
    objects,
    open_calls,
    seconds,
)

MAX_LOOKED_AT = 50
"""Events looked at to tell what a list is."""

_KINDS = ("MessageEvent", "ActionEvent", "ObservationEvent", "SystemPromptEvent", "AgentErrorEvent")


def matches(document: Document) -> bool:
    """Tell whether a document is evaluation output with event histories, or a list of events."""
    return bool(_runs(document))


def _runs(document: Document) -> list[tuple[JsonObject, list[JsonObject]]]:
    """List the runs of a document, each with its events."""
    values = [line.record for line in document.lines] if document.is_lines else [as_object(document.value)]
    runs = [(value, objects(value.get("history"))) for value in values if isinstance(value.get("history"), list)]
    if runs:
        # SWE-agent calls the list of its messages a history, too: those have roles.
        events = [event for _, found in runs for event in found[:MAX_LOOKED_AT]]
        return runs if any(map(_is_event, events)) or any("instance_id" in run for run, _ in runs) else []
    events = (
        values if document.is_lines else objects(document.value) or objects(as_object(document.value).get("events"))
    )
    return [({}, events)] if any(map(_is_event, events[:MAX_LOOKED_AT])) else []


def _is_event(event: JsonObject) -> bool:
    if event.get("kind") in _KINDS:
        return True
    return "source" in event and ("action" in event or "observation" in event) and "role" not in event


def read(document: Document) -> Iterator[Transcript]:
    """Yield one session a run."""
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
        silent = [f"{count} {name} events carry no message" for name, count in run.silent.items()]
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
            left_out=dict(run.silent),
            notes=(*silent, *open_calls(messages)),
            records=len(events),
        )


class _Run:
    """Gathers the events of one run."""

    def __init__(self) -> None:
        self.chat = Chat()
        self.tools: list[JsonObject] = []
        self.silent: Counter[str] = Counter()
        self._responses: dict[str, JsonObject] = {}

    def add(self, event: JsonObject) -> None:
        """Take the next event."""
        if isinstance(event.get("kind"), str):
            self._add_kind(event)
            return
        metadata = as_object(event.get("tool_call_metadata"))
        if "observation" in event:
            words = _words(event)
            if isinstance(metadata.get("tool_call_id"), str):
                self.chat.result(metadata["tool_call_id"], words)
            elif words:
                self.chat.say("user", words)
            else:
                self.silent[str(event["observation"])] += 1
        elif not self._add_response(as_object(metadata.get("model_response")), seconds(event.get("timestamp"))):
            self._add_action(event)

    # --- version 0 ---

    def _add_response(self, response: JsonObject, time: float | None) -> bool:
        """Add the model's answer that an action came from, once; say whether there is one."""
        choices = objects(response.get("choices"))
        message = as_object(choices[0].get("message")) if choices else {}
        calls = objects(message.get("tool_calls"))
        if not calls:
            return False
        name = str(response.get("id") or calls[0].get("id"))
        if name in self._responses:
            return True
        self._responses[name] = message
        kept: JsonObject = {"role": "assistant", "content": message.get("content"), "tool_calls": calls}
        usage = response.get("usage")
        self.chat.call(kept, usage=usage if isinstance(usage, dict) else None, time=time)
        return True

    def _add_action(self, event: JsonObject) -> None:
        action = event.get("action")
        arguments = as_object(event.get("args"))
        words = text_of(arguments.get("content")) or as_text(arguments.get("thought")) or as_text(event.get("message"))
        if action == "system":
            self.tools = objects(arguments.get("tools"))
            self.chat.say("system", words)
        elif words:
            self.chat.say("user" if event.get("source") == "user" else "assistant", words)
        else:
            self.silent[str(action)] += 1

    # --- version 1 ---

    def _add_kind(self, event: JsonObject) -> None:
        call_id = event.get("tool_call_id")
        match event["kind"]:
            case "SystemPromptEvent":
                self.chat.say("system", text_of(event.get("system_prompt")))
                self.tools = [tool for tool in objects(event.get("tools")) if tool.get("type") == "function"]
            case "MessageEvent":
                message = as_object(event.get("llm_message"))
                added = [text_of(message.get("content")), text_of(event.get("extended_content"))]
                self.chat.say(as_text(message.get("role")) or "user", "\n\n".join(filter(None, added)))
            case "ActionEvent":
                self._add_call(event)
            case "Condensation" | "CondensationSummaryEvent" if isinstance(event.get("summary"), str):
                self.chat.summarize("user", event["summary"])
            case _ if isinstance(call_id, str):
                self.chat.result(call_id, _answer(event))
            case kind:
                self.silent[str(kind)] += 1

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
        self.chat.call(message, time=seconds(event.get("timestamp")))


def _answer(event: JsonObject) -> str:
    """Say what a tool answered: an observation, an error or a refusal."""
    observation = as_object(event.get("observation"))
    words = [
        text_of(observation.get("content")) or as_text(observation.get("output")),
        text_of(event.get("extended_content")),
        as_text(event.get("error")),
    ]
    if isinstance(event.get("rejection_reason"), str):
        words.append(f"Action rejected: {event['rejection_reason']}")
    return "\n\n".join(filter(None, words))


def _words(event: JsonObject) -> str:
    """Say what the agent was shown of an observation, knowledge that was recalled with it included."""
    extras = as_object(event.get("extras"))
    frame = as_object(extras.get("metadata"))
    content = f"{as_text(frame.get('prefix'))}{text_of(event.get('content'))}{as_text(frame.get('suffix'))}"
    recalled = _texts(objects(extras.get("microagent_knowledge")), "content")
    instructions = [as_text(extras.get(key)) for key in ("repo_instructions", "additional_agent_instructions")]
    return "\n\n".join([content, *filter(None, instructions), *recalled])


def _texts(entries: Sequence[JsonObject], key: str) -> list[str]:
    return [entry[key] for entry in entries if isinstance(entry.get(key), str) and entry[key]]
