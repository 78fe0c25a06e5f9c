"""Recall in Gemini: one candidate for all rounds, with the parts of each round in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kompakt.agent.recall.sse import event, read_data
from kompakt.agent.recall.turn import GAP, ModelTurn, RecallRound, RoundStream, add_tokens, as_list, sum_usages
from kompakt.model.json import as_object
from kompakt.model.messages import Json, JsonObject, ToolCall

_UNSIGNED = "skip_thought_signature_validator"
"""Accepted by the provider in place of a signature. The real signature is on the first call, which may be hidden."""


class GeminiRecall:
    format = "gemini"

    def turn(self, response: JsonObject, name: str, body: JsonObject) -> ModelTurn:
        candidate = _candidate(response)
        return _turn(_parts(candidate), candidate.get("finishReason"), name)

    def merge(self, responses: Sequence[JsonObject], name: str) -> JsonObject:
        last = responses[-1]
        if not as_list(last.get("candidates")):
            return last
        parts: list[Json] = []
        for one in responses:
            visible = _VisibleParts(name).of(_parts(_candidate(one)))
            parts += _with_gap(visible) if _text(parts) else visible
        merged = _without_quote(_with_parts(last, parts), name)
        if "responseId" in responses[0]:
            merged["responseId"] = responses[0]["responseId"]
        usages = [self.usage(one) for one in responses]
        return {**merged, "usageMetadata": sum_usages(usages)} if any(usages) else merged

    def results(self, calls: Sequence[ToolCall], texts: Sequence[str]) -> list[Json]:
        parts: list[Json] = []
        for call, text in zip(calls, texts, strict=True):
            named = {"id": call.id} if call.id else {}
            parts.append({"functionResponse": {**named, "name": call.name, "response": {"output": text}}})
        return [{"role": "user", "parts": parts}]

    def without_shown(self, items: Sequence[Json], shown: Sequence[Json]) -> tuple[int, list[Json]] | None:
        texts = [_text(as_list(as_object(one).get("parts"))) for one in shown]
        seen = GAP.join(text for text in texts if text)
        if not seen:
            return 0, []
        left = list(as_list(as_object(items[0]).get("parts")))
        while left and seen:
            part = as_object(left[0])
            text = part.get("text")
            if part.get("thought"):
                del left[0]
            elif isinstance(text, str) and text.startswith(seen):
                text, seen = text.removeprefix(seen).removeprefix(GAP), ""
                left[:1] = [{**part, "text": text}] if text else []
            elif isinstance(text, str) and text and seen.startswith(text):
                seen = seen.removeprefix(text).removeprefix(GAP)
                del left[0]
            else:
                return None
        return (1, [{**as_object(items[0]), "parts": left}]) if left and not seen else None

    def with_results(self, kept: RecallRound, following: Json) -> list[Json] | None:
        """Put all responses into the client's content, in the order of the calls."""
        item = as_object(following)
        parts = list(as_list(item.get("parts")))
        calls = [part["functionCall"] for part in as_list(kept.turn[0].get("parts")) if "functionCall" in part]
        own = as_list(kept.results[0].get("parts"))
        if item.get("role") not in ("user", "function", None) or len(calls) > len(own) + len(parts):
            return None
        results = iter(own)
        name = own[0]["functionResponse"]["name"]
        for at, call in enumerate(calls):
            if call.get("name") == name:
                parts.insert(at, next(results))
        return [{**item, "parts": parts}]

    def usage(self, response: JsonObject) -> Mapping[str, Json]:
        return as_object(response.get("usageMetadata"))

    def with_more_input(self, response: JsonObject, tokens: int) -> JsonObject:
        usage = response.get("usageMetadata")
        if not isinstance(usage, dict):
            return response
        return {**response, "usageMetadata": _add_input(as_object(usage), tokens)}

    def stream(self, name: str, body: JsonObject, extra_input: int) -> RoundStream:
        return GeminiRecallStream(name, extra_input)


def _add_input(usage: JsonObject, tokens: int) -> JsonObject:
    return add_tokens(usage, tokens, "promptTokenCount", "totalTokenCount")


def _candidate(response: JsonObject) -> JsonObject:
    return as_object((as_list(response.get("candidates")) or [None])[0])


def _parts(candidate: JsonObject) -> list[Json]:
    return [part for part in as_list(as_object(candidate.get("content")).get("parts")) if isinstance(part, dict)]


def _with_parts(response: JsonObject, parts: list[Json]) -> JsonObject:
    candidate = _candidate(response)
    content = {key: value for key, value in as_object(candidate.get("content")).items() if key != "parts"}
    content = {"role": "model", **content, **({"parts": parts} if parts else {})}
    return {**response, "candidates": [{**candidate, "content": content}, *response["candidates"][1:]]}


def _without_quote(response: JsonObject, name: str) -> JsonObject:
    """Drop the message about a malformed or truncated call where it quotes a call of the recall tool."""
    candidate = _candidate(response)
    if not name or name not in str(candidate.get("finishMessage", "")):
        return response
    rest = {key: value for key, value in candidate.items() if key != "finishMessage"}
    return {**response, "candidates": [rest, *response["candidates"][1:]]}


def _turn(parts: list[Json], reason: Json, name: str) -> ModelTurn:
    called = [as_object(part["functionCall"]) for part in parts if "functionCall" in part]
    calls = tuple(ToolCall(str(call.get("id") or ""), str(call.get("name")), call.get("args")) for call in called)
    sent = [part for part in parts if not part.get("thought") or part.get("thoughtSignature")]
    seen = _VisibleParts(name).of(parts)
    return ModelTurn(
        items=[{"role": "model", "parts": sent}],
        calls=calls,
        is_complete=reason in ("STOP", None),
        shown=[{"role": "model", "parts": seen}] if seen else [],
    )


class _VisibleParts:
    """Removes calls of the recall tool from the parts of one answer.

    When the removed call had the signature, which only the first of several calls has, the next call gets a
    placeholder.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._needs_signature = self._has_call = False

    def of(self, parts: list[Json]) -> list[Json]:
        """Return the visible ones of the next parts."""
        left: list[Json] = []
        for part in parts:
            call = part.get("functionCall")
            if call is None:
                left.append(part)
            elif self._name and call.get("name") == self._name:
                is_signed = bool(part.get("thoughtSignature")) and not self._has_call
                self._needs_signature = self._needs_signature or is_signed
            else:
                signs = self._needs_signature and not part.get("thoughtSignature")
                left.append({**part, "thoughtSignature": _UNSIGNED} if signs else part)
                self._needs_signature, self._has_call = False, True
        return left


def _text(parts: Sequence[Json]) -> str:
    return "".join(part["text"] for part in parts if isinstance(part.get("text"), str) and not part.get("thought"))


def _with_gap(parts: list[Json]) -> list[Json]:
    """Separate the first text of a later round from the texts before it."""
    for at, part in enumerate(parts):
        if part.get("text") and not part.get("thought"):
            return [*parts[:at], {**part, "text": GAP + part["text"]}, *parts[at + 1 :]]
    return parts


class GeminiRecallStream:
    """Reads the chunks of all rounds; each chunk is a response of its own."""

    def __init__(self, name: str, extra_input: int) -> None:
        self._name, self._extra_input = name, extra_input
        self._earlier_usages: list[JsonObject] = []
        self._id: Json = None
        self._has_text = False
        self._needs_gap = False
        self._start_round()

    def _start_round(self) -> None:
        self.is_over = self.has_failed = False
        self._received: list[JsonObject] = []
        self._visible = _VisibleParts(self._name)
        self._usage: JsonObject = {}
        self._reason: Json = None
        self._end: JsonObject | None = None

    def feed(self, data: bytes, raw: bytes) -> list[bytes]:
        chunk = read_data(data) or {}
        if not chunk or "error" in chunk:
            self.has_failed = self.has_failed or "error" in chunk
            return [raw]
        self._id = self._id if self._id is not None else chunk.get("responseId")
        made = self._with_totals(chunk)
        candidate = _candidate(chunk)
        parts = _parts(candidate)
        self._received += parts
        passed = self._pass_on(parts)
        reason = candidate.get("finishReason")
        if reason is None and self._end is None:
            if passed == parts and made == chunk:
                return [raw]
            has_more = passed or candidate.keys() - {"content", "index"}
            return [event(_with_parts(made, passed))] if has_more and candidate else []
        self._reason, self.is_over = reason or self._reason, True
        self._end = _without_quote(_with_parts({**(self._end or {}), **made}, []), self._name) if candidate else made
        bare = {"index": candidate.get("index", 0), "content": {"role": "model"}}
        return [event(_with_parts({**made, "candidates": [bare]}, passed))] if passed else []

    def _with_totals(self, chunk: JsonObject) -> JsonObject:
        """Give a chunk the id of the first round and the usage of all rounds."""
        made = {**chunk, "responseId": self._id} if "responseId" in chunk else chunk
        if isinstance(chunk.get("usageMetadata"), dict):
            self._usage = as_object(chunk["usageMetadata"])
            usage = sum_usages([*self._earlier_usages, self._usage]) if self._earlier_usages else self._usage
            made = {**made, "usageMetadata": _add_input(usage, self._extra_input) if self._extra_input else usage}
        return made

    def _pass_on(self, parts: list[Json]) -> list[Json]:
        visible = self._visible.of(parts)
        if self._needs_gap:
            visible = _with_gap(visible)
        if _text(visible):
            self._has_text, self._needs_gap = True, False
        return visible

    def turn(self) -> ModelTurn:
        parts = [part for part in _joined_texts(self._received) if part.get("text") != "" or len(part) > 1]
        return _turn(parts, self._reason, self._name)

    def next_round(self) -> None:
        self._earlier_usages.append(self._usage)
        self._needs_gap = self._has_text
        self._start_round()

    def end(self) -> list[bytes]:
        return [event(self._end)] if self._end is not None else []

    def error(self, body: JsonObject) -> list[bytes]:
        return [event(body)]


def _joined_texts(parts: Sequence[JsonObject]) -> list[JsonObject]:
    """Join consecutive deltas of one text into one part; join each text once, in linear time."""
    joined: list[JsonObject] = []
    texts: list[list[str]] = []
    for part in parts:
        is_text = part.keys() <= {"text", "thought"} and isinstance(part.get("text"), str)
        if is_text and texts and texts[-1] and bool(joined[-1].get("thought")) == bool(part.get("thought")):
            texts[-1].append(part["text"])
        else:
            joined.append(part)
            texts.append([part["text"]] if is_text else [])
    return [{**part, "text": "".join(pieces)} if pieces else part for part, pieces in zip(joined, texts, strict=True)]
