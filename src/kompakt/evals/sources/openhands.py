"""OpenHands evaluation output: one line a run, its events as Chat messages.

An action that came from a tool call carries the model's whole response, so the call is taken from there; several
actions of one response are one assistant message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kompakt.evals.session import Document, Session
from kompakt.evals.sources.chat import Chat, open_calls
from kompakt.model.messages import JsonObject


def matches(document: Document) -> bool:
    """Tell whether a file is evaluation output with event histories."""
    return bool(document.lines) and isinstance(document.first.get("history"), list) and "instance_id" in document.first


def read(document: Document) -> Iterator[Session]:
    """Yield one session a run."""
    for record in document.records:
        run = _Run()
        for event in record["history"]:
            run.add(event)
        messages = run.chat.finish()
        metadata: JsonObject = record.get("metadata") or {}
        settings: JsonObject = metadata.get("llm_config") or {}
        model = settings.get("model")
        body: JsonObject = {"model": model} if model else {}
        body["messages"] = messages
        if run.tools:
            body["tools"] = run.tools
        silent = [f"{count} {name} events carry no message" for name, count in run.silent.items()]
        yield Session(
            name=f"{document.name}#{record['instance_id']}",
            source="openhands",
            format="openai-chat",
            body=body,
            usages=tuple(run.chat.usages),
            notes=(*document.notes, *silent, *open_calls(messages)),
        )


class _Run:
    """Gathers the events of one run."""

    def __init__(self) -> None:
        self.chat = Chat()
        self.tools: list[JsonObject] = []
        self.silent: Counter[str] = Counter()
        self._responses: set[str] = set()

    def add(self, event: JsonObject) -> None:
        """Take the next event."""
        metadata = event.get("tool_call_metadata")
        if "observation" in event:
            words = _words(event)
            if metadata:
                self.chat.result(metadata["tool_call_id"], words)
            elif words:
                self.chat.say("user", words)
            else:
                self.silent[event["observation"]] += 1
        elif metadata:
            self._add_response(metadata["model_response"])
        else:
            self._add_action(event)

    def _add_response(self, response: JsonObject) -> None:
        if response["id"] in self._responses:
            return
        self._responses.add(response["id"])
        message: JsonObject = response["choices"][0]["message"]
        kept = {"role": "assistant", "content": message.get("content"), "tool_calls": message["tool_calls"]}
        self.chat.call(kept, usage=response.get("usage"))

    def _add_action(self, event: JsonObject) -> None:
        action = event.get("action")
        arguments: JsonObject = event.get("args") or {}
        words: str = arguments.get("content") or arguments.get("thought") or ""
        if action == "system":
            self.tools = arguments.get("tools") or []
            self.chat.say("system", words)
        elif words:
            self.chat.say("user" if event.get("source") == "user" else "assistant", words)
        else:
            self.silent[str(action)] += 1


def _words(event: JsonObject) -> str:
    """Say what the agent was shown of an observation, knowledge that was recalled with it included."""
    extras: JsonObject = event.get("extras") or {}
    frame: JsonObject = extras.get("metadata") or {}
    knowledge: list[JsonObject] = extras.get("microagent_knowledge") or []
    content = f"{frame.get('prefix') or ''}{event.get('content') or ''}{frame.get('suffix') or ''}"
    recalled = [entry["content"] for entry in knowledge if entry.get("content")]
    instructions = [extras[key] for key in ("repo_instructions", "additional_agent_instructions") if extras.get(key)]
    return "\n\n".join([content, *instructions, *recalled])
