"""Chat Completions: one message for all rounds, its texts one behind the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kompakt.gateway.recall.protocols.openai_chat_stream import CUT, ChatStream, fitting
from kompakt.gateway.recall.turn import GAP, Call, Round, Stream, Turn, as_list, as_object
from kompakt.gateway.recall.usage import plus, summed
from kompakt.model.messages import Json, JsonObject

_SENT = ("tool_calls", "refusal", "reasoning_content", "reasoning", "reasoning_details", "extra_content")
"""Fields of an answer that are sent back; others are told to clients only."""

_TEXTS = ("content", "reasoning_content", "reasoning")
"""Fields of an answer that hold a text."""


class Chat:
    """The dialect."""

    format = "openai-chat"

    def turn(self, response: JsonObject, name: str, body: JsonObject) -> Turn:
        """Read an answer."""
        choice = as_object((as_list(response.get("choices")) or [None])[0])
        return turn_of(as_object(choice.get("message")), choice.get("finish_reason"), name)

    def whole(self, responses: Sequence[JsonObject], name: str) -> JsonObject:
        """Make one answer of all."""
        last = responses[-1]
        choices = as_list(last.get("choices"))
        if not choices:
            return last
        said = [as_object(as_object(choice).get("message")) for one in responses for choice in one["choices"][:1]]
        message = visible(said[-1], name)
        for field in _TEXTS:
            texts = [one[field] for one in said if isinstance(one.get(field), str) and one[field]]
            if texts:
                message[field] = (GAP if field == "content" else "").join(texts)
        reason = fitting(choices[0].get("finish_reason"), bool(message.get("tool_calls")))
        first = {**choices[0], "message": message, "finish_reason": reason}
        whole = {**last, "id": responses[0].get("id"), "choices": [first, *choices[1:]]}
        usages = [self.usage(one) for one in responses]
        return {**whole, "usage": summed(usages)} if any(usages) else whole

    def results(self, calls: Sequence[Call], texts: Sequence[str]) -> list[Json]:
        """Write a message for each answer."""
        return [
            {"role": "tool", "tool_call_id": call.id, "content": text} for call, text in zip(calls, texts, strict=True)
        ]

    def rest(self, items: Sequence[Json], shown: Sequence[Json]) -> tuple[int, list[Json]] | None:
        """Take the texts of earlier rounds off a message."""
        item = as_object(items[0])
        if not any(_joined(shown, field) for field in _TEXTS):
            return 0, []
        left = {**item, "content": _text_left(item.get("content"), _joined(shown, "content"))}
        for field in _TEXTS[1:]:
            if isinstance(item.get(field), str):
                left[field] = _text_left(item[field], _joined(shown, field)) or ""
        if left["content"] is None:
            return None
        if not left["content"]:
            if not item.get("tool_calls"):
                return None
            left["content"] = None
        return 1, [left]

    def merged(self, kept: Round, following: Json) -> list[Json] | None:
        """Leave the client's messages alone: results stand in messages of their own."""
        if as_object(following).get("role") != "tool":
            return None
        return [*kept.results, following]

    def usage(self, response: JsonObject) -> Mapping[str, Json]:
        """Return what was used."""
        return as_object(response.get("usage"))

    def raised(self, response: JsonObject, tokens: int) -> JsonObject:
        """Raise the prompt, and the total with it."""
        usage = response.get("usage")
        if not isinstance(usage, dict):
            return response
        return {**response, "usage": plus(as_object(usage), tokens, "prompt_tokens", "total_tokens")}

    def stream(self, name: str, body: JsonObject, raised: int) -> Stream:
        """Begin to read a stream."""
        return ChatStream(name, raised, turn_of)


def turn_of(message: JsonObject, reason: Json, name: str) -> Turn:
    """Read a message of the model."""
    more = {key: message[key] for key in _SENT if message.get(key) is not None}
    sent: JsonObject = {"role": "assistant", "content": message.get("content") or None, **more}
    functions = [as_object(call) for call in as_list(message.get("tool_calls"))]
    calls = tuple(
        Call(str(call.get("id") or ""), str(inner.get("name") or ""), inner.get("arguments"))
        for call in functions
        for inner in [as_object(call.get("function") or call.get("custom"))]
    )
    seen = visible(sent, name)
    return Turn(items=[sent], calls=calls, ends=reason not in CUT, shown=[seen])


def visible(message: JsonObject, name: str) -> JsonObject:
    """Return a message without calls of the tool."""
    left = [call for call in as_list(message.get("tool_calls")) if as_object(call.get("function")).get("name") != name]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "tool_calls": left} if left else rest


def _joined(shown: Sequence[Json], field: str) -> str:
    texts = [as_object(one).get(field) for one in shown]
    return (GAP if field == "content" else "").join(text for text in texts if isinstance(text, str) and text)


def _text_left(content: Json, seen: str) -> Json:
    """Take a text off the beginning of a content; ``None`` when it does not begin with it."""
    if not seen:
        return content if content is not None else ""
    if isinstance(content, str):
        return content.removeprefix(seen).removeprefix(GAP) if content.startswith(seen) else None
    parts = as_list(content)
    text = as_object(parts[0]).get("text") if parts else None
    if not isinstance(text, str) or not text.startswith(seen):
        return None
    left = text.removeprefix(seen).removeprefix(GAP)
    return [{**parts[0], "text": left}, *parts[1:]] if left else parts[1:]
