"""OpenAI Responses.

The last event of a stream contains the whole response, so nothing has to be assembled. Some servers leave the output of
that event empty; the items then come from the earlier ``output_item.done`` events.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kompakt.agent.client import Delta, Managing, Reply, Stop, ToolSpec
from kompakt.agent.clients.base import Answer, is_complete, without_nulls
from kompakt.agent.clients.failures import AttemptFailed, failure_in_body
from kompakt.agent.clients.openai_chat import OpenAIClient
from kompakt.model.json import as_object, as_objects
from kompakt.model.messages import Json, JsonObject
from kompakt.wire.openai_responses import items as openai_responses
from kompakt.wire.openai_responses.items import CALLS, kind_of

_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})

MIN_THRESHOLD = 1_000
"""Smallest ``compact_threshold`` that the provider accepts, in tokens."""

_CUT: dict[str, Stop] = {
    "max_output_tokens": "length",
    "content_filter": "refused",
    "model_context_window_exceeded": "overflow",
}


class OpenAIResponses(OpenAIClient):
    """A client for ``/responses``."""

    format = openai_responses.FORMAT
    path = "/responses"

    def envelope(self, *, system: str | None, tools: Sequence[ToolSpec]) -> JsonObject:
        """Return a request body without messages: model, output limit, system prompt, tools."""
        body: JsonObject = {"model": self.model, "max_output_tokens": self.output_limit}
        if system:
            body["instructions"] = system
        if tools:
            body["tools"] = self._tools(tools)
        return {**body, "input": []}

    async def compact(self, body: JsonObject, *, instructions: str | None = None) -> Reply:
        """Let the provider compact: the returned items replace everything that was sent.

        They must be sent back unchanged. The request has to fit the window. ``instructions`` are added to the system
        prompt.
        """
        prompt = "\n\n".join(filter(None, [body.get("instructions"), instructions]))
        asked = {"model": body.get("model"), "input": body.get("input"), **({"instructions": prompt} if prompt else {})}
        return await self._retry(lambda: self._whole(self._post(f"{self.path}/compact", asked, {})), {})

    def managed(self, how: Managing, tokens: int) -> JsonObject | None:
        """Return the parameters that make the provider compact automatically above ``tokens``."""
        if how != "threshold" or tokens < MIN_THRESHOLD:
            return None
        return {"context_management": [{"type": "compaction", "compact_threshold": tokens}]}

    def _assembly(self) -> _Events:
        return _Events()

    def _read(self, answer: JsonObject) -> Answer:
        status = answer.get("status")
        if answer.get("error"):
            raise failure_in_body({"error": answer["error"]})
        if status not in ("completed", "incomplete", None):
            raise AttemptFailed(f"the response has status {status!r}, not 'completed'", retryable=status == "failed")
        reason = str(as_object(answer.get("incomplete_details")).get("reason"))
        stop: Stop = _CUT.get(reason, "length") if status == "incomplete" else "end"
        cut = stop in ("length", "overflow")
        output = map(without_nulls, as_objects(answer.get("output")))
        items = [item for item in output if _is_kept(item, cut=cut, stored=answer.get("store") is not False)]
        if stop == "end":
            stop = "tools" if any(_is_call(item) for item in items) else stop
            blocks = (block for item in items for block in as_objects(item.get("content")))
            stop = "refused" if any(block.get("type") == "refusal" for block in blocks) else stop
        return Answer(items, stop, as_object(answer.get("usage")) or None)


def _is_kept(item: JsonObject, *, cut: bool, stored: bool) -> bool:
    """Return whether later requests can contain an item: no truncated calls, empty messages or unstored reasoning."""
    kind = kind_of(item)
    if kind == "reasoning":
        return stored or bool(item.get("encrypted_content"))
    if kind == "message":
        return bool(item.get("content"))
    return not (cut and kind == "function_call" and not is_complete(item.get("arguments")))


def _is_call(item: JsonObject) -> bool:
    shape = CALLS.get(kind_of(item))
    return shape is not None and not shape.hosted


class _Events:
    """Reads a stream up to its last event."""

    def __init__(self) -> None:
        self.items: list[Json] = []
        self.response: JsonObject | None = None

    def add(self, event: JsonObject) -> Iterable[Delta]:
        kind = str(event.get("type"))
        text = event.get("delta")
        if kind == "error":
            self.response = {"error": without_nulls({**event, "type": None})}
        elif kind in _ENDS:
            self.response = as_object(event.get("response"))
        elif kind == "response.output_item.done":
            self.items.append(event.get("item"))
        elif isinstance(text, str):
            if kind in ("response.output_text.delta", "response.refusal.delta"):
                yield Delta("text", text)
            elif kind.startswith("response.reasoning"):
                yield Delta("reasoning", text)
            elif kind.endswith(("arguments.delta", "input.delta")):
                yield Delta("call", text)

    def answer(self) -> JsonObject | None:
        if self.response is not None and not self.response.get("output"):
            return {**self.response, "output": self.items}
        return self.response
