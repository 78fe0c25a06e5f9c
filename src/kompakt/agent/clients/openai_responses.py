"""OpenAI Responses.

A stream ends with the whole response in its last event, so nothing has to be put together here; servers that leave its
output empty have said each item by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kompakt.agent.client import Delta, Managing, Reply, Stop, ToolSpec
from kompakt.agent.clients.base import Answer, fields, is_whole, objects, without_nulls
from kompakt.agent.clients.failures import Failed, failed_in_stream
from kompakt.agent.clients.openai_common import OpenAICaller
from kompakt.model.messages import Json, JsonObject
from kompakt.wire.openai_responses import items as openai_responses
from kompakt.wire.openai_responses.items import CALLS, kind_of

_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})

MIN_THRESHOLD = 1_000
"""Tokens below which the provider does not compact by itself."""

_CUT: dict[str, Stop] = {
    "max_output_tokens": "length",
    "content_filter": "refused",
    "model_context_window_exceeded": "overflow",
}


class OpenAIResponses(OpenAICaller):
    """Talks to a model over ``/responses``."""

    format = openai_responses.FORMAT
    path = "/responses"

    def envelope(self, *, system: str | None, tools: Sequence[ToolSpec]) -> JsonObject:
        """Make a request body with no messages in it: model, output limit, system text, tools."""
        body: JsonObject = {"model": self.model, "max_output_tokens": self.output_limit}
        if system:
            body["instructions"] = system
        if tools:
            body["tools"] = self._tools(tools)
        return {**body, "input": []}

    async def compact(self, body: JsonObject, *, instructions: str | None = None) -> Reply:
        """Have the provider compact: what comes back stands for all that was sent, and goes back as it is.

        The request has to fit the window. ``instructions`` are told beside the system text.
        """
        told = "\n\n".join(filter(None, [body.get("instructions"), instructions]))
        asked = {"model": body.get("model"), "input": body.get("input"), **({"instructions": told} if told else {})}
        return await self._tried(lambda: self._whole(self._post(f"{self.path}/compact", asked, {})), {})

    def managed(self, how: Managing, tokens: int) -> JsonObject | None:
        """Return the parameters that let the provider compact by itself from so many tokens on."""
        if how != "threshold" or tokens < MIN_THRESHOLD:
            return None
        return {"context_management": [{"type": "compaction", "compact_threshold": tokens}]}

    def _assembly(self) -> _Events:
        return _Events()

    def _read(self, answer: JsonObject) -> Answer:
        status = answer.get("status")
        if answer.get("error"):
            raise failed_in_stream({"error": answer["error"]})
        if status not in ("completed", "incomplete", None):
            raise Failed(f"the response is {status}, not completed", again=status == "failed")
        reason = str(fields(answer.get("incomplete_details")).get("reason"))
        stop: Stop = _CUT.get(reason, "length") if status == "incomplete" else "end"
        cut = stop in ("length", "overflow")
        output = [_item(item) for item in objects(answer.get("output"))]
        items = [item for item in output if _is_kept(item, cut=cut, stored=answer.get("store") is not False)]
        if stop == "end":
            stop = "tools" if any(_is_call(item) for item in items) else stop
            stop = "refused" if any(map(_declines, items)) else stop
        return Answer(items, stop, fields(answer.get("usage")) or None)


def _item(item: JsonObject) -> JsonObject:
    return without_nulls(item)


def _is_kept(item: JsonObject, *, cut: bool, stored: bool) -> bool:
    """Leave out what a later request cannot hold: cut calls, empty messages, reasoning that is nowhere kept."""
    kind = kind_of(item)
    if kind == "reasoning":
        return stored or bool(item.get("encrypted_content"))
    if kind == "message":
        return bool(item.get("content"))
    return not (cut and kind == "function_call" and not is_whole(item.get("arguments")))


def _is_call(item: JsonObject) -> bool:
    shape = CALLS.get(kind_of(item))
    return shape is not None and not shape.hosted


def _declines(item: JsonObject) -> bool:
    return any(block.get("type") == "refusal" for block in objects(item.get("content")))


class _Events:
    """Follows a stream to its last event."""

    def __init__(self) -> None:
        self.items: list[Json] = []
        self.response: JsonObject | None = None

    def add(self, event: JsonObject) -> Iterable[Delta]:
        kind = str(event.get("type"))
        said = event.get("delta")
        if kind == "error":
            self.response = {"error": without_nulls({**event, "type": None})}
        elif kind in _ENDS:
            self.response = fields(event.get("response"))
        elif kind == "response.output_item.done":
            self.items.append(event.get("item"))
        elif isinstance(said, str):
            if kind in ("response.output_text.delta", "response.refusal.delta"):
                yield Delta("text", said)
            elif kind.startswith("response.reasoning"):
                yield Delta("reasoning", said)
            elif kind.endswith(("arguments.delta", "input.delta")):
                yield Delta("call", said)

    def answer(self) -> JsonObject | None:
        if self.response is not None and not self.response.get("output"):
            return {**self.response, "output": self.items}
        return self.response
