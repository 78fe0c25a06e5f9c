"""Gemini: one candidate for all rounds, its parts one behind the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kompakt.gateway.recall.sse import event, read_data
from kompakt.gateway.recall.turn import GAP, Call, Round, Stream, Turn, as_list, as_object
from kompakt.gateway.recall.usage import plus, summed
from kompakt.model.messages import Json, JsonObject

_UNSIGNED = "skip_thought_signature_validator"
"""What the provider takes in the place of a signature: that of the first call is on a call that nobody sees."""


class Gemini:
    """The dialect."""

    format = "gemini"

    def turn(self, response: JsonObject, name: str, body: JsonObject) -> Turn:
        """Read an answer."""
        candidate = _candidate(response)
        return _turn(_parts(candidate), candidate.get("finishReason"), name)

    def whole(self, responses: Sequence[JsonObject], name: str) -> JsonObject:
        """Make one answer of all."""
        last = responses[-1]
        if not as_list(last.get("candidates")):
            return last
        parts: list[Json] = []
        for one in responses:
            parts += _apart(_visible(_parts(_candidate(one)), name), _has_text(parts))
        whole = _unquoted(_with_parts(last, parts), name)
        if "responseId" in responses[0]:
            whole["responseId"] = responses[0]["responseId"]
        usages = [self.usage(one) for one in responses]
        return {**whole, "usageMetadata": summed(usages)} if any(usages) else whole

    def results(self, calls: Sequence[Call], texts: Sequence[str]) -> list[Json]:
        """Write all answers into one content."""
        parts: list[Json] = []
        for call, text in zip(calls, texts, strict=True):
            named = {"id": call.id} if call.id else {}
            parts.append({"functionResponse": {**named, "name": call.name, "response": {"output": text}}})
        return [{"role": "user", "parts": parts}]

    def rest(self, items: Sequence[Json], shown: Sequence[Json]) -> tuple[int, list[Json]] | None:
        """Take the texts of earlier rounds off a content."""
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

    def merged(self, kept: Round, following: Json) -> list[Json] | None:
        """Put all responses into the client's content, in the order of the calls."""
        item = as_object(following)
        parts = list(as_list(item.get("parts")))
        calls = [part["functionCall"] for part in as_list(kept.turn[0].get("parts")) if "functionCall" in part]
        own = as_list(kept.results[0].get("parts"))
        if item.get("role") not in ("user", "function", None) or len(calls) > len(own) + len(parts):
            return None
        mine = iter(own)
        name = own[0]["functionResponse"]["name"]
        for at, call in enumerate(calls):
            if call.get("name") == name:
                parts.insert(at, next(mine))
        return [{**item, "parts": parts}]

    def usage(self, response: JsonObject) -> Mapping[str, Json]:
        """Return what was used."""
        return as_object(response.get("usageMetadata"))

    def raised(self, response: JsonObject, tokens: int) -> JsonObject:
        """Raise the prompt, and the total with it."""
        usage = response.get("usageMetadata")
        if not isinstance(usage, dict):
            return response
        return {**response, "usageMetadata": _raised(as_object(usage), tokens)}

    def stream(self, name: str, body: JsonObject, raised: int) -> Stream:
        """Begin to read a stream."""
        return GeminiStream(name, raised)


def _raised(usage: JsonObject, tokens: int) -> JsonObject:
    return plus(usage, tokens, "promptTokenCount", "totalTokenCount")


def _candidate(response: JsonObject) -> JsonObject:
    return as_object((as_list(response.get("candidates")) or [None])[0])


def _parts(candidate: JsonObject) -> list[Json]:
    return [part for part in as_list(as_object(candidate.get("content")).get("parts")) if isinstance(part, dict)]


def _with_parts(response: JsonObject, parts: list[Json]) -> JsonObject:
    candidate = _candidate(response)
    content = {key: value for key, value in as_object(candidate.get("content")).items() if key != "parts"}
    content = {"role": "model", **content, **({"parts": parts} if parts else {})}
    return {**response, "candidates": [{**candidate, "content": content}, *response["candidates"][1:]]}


def _unquoted(response: JsonObject, name: str) -> JsonObject:
    """Drop the message of a malformed or cut off call where it quotes a call of the tool."""
    candidate = _candidate(response)
    if not name or name not in str(candidate.get("finishMessage", "")):
        return response
    rest = {key: value for key, value in candidate.items() if key != "finishMessage"}
    return {**response, "candidates": [rest, *response["candidates"][1:]]}


def _turn(parts: list[Json], reason: Json, name: str) -> Turn:
    called = [as_object(part["functionCall"]) for part in parts if "functionCall" in part]
    calls = tuple(Call(str(call.get("id") or ""), str(call.get("name")), call.get("args")) for call in called)
    sent = [part for part in parts if not part.get("thought") or part.get("thoughtSignature")]
    seen = _visible(parts, name)
    return Turn(
        items=[{"role": "model", "parts": sent}],
        calls=calls,
        ends=reason in ("STOP", None),
        shown=[{"role": "model", "parts": seen}] if seen else [],
    )


def _visible(parts: list[Json], name: str) -> list[Json]:
    return _Sight(name).of(parts)


class _Sight:
    """Leaves out calls of the tool; a signature that goes with the first of several is replaced."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_bare = self._has_call = False

    def of(self, parts: list[Json]) -> list[Json]:
        """Return the parts that a client sees of the next ones."""
        left: list[Json] = []
        for part in parts:
            call = part.get("functionCall")
            if call is None:
                left.append(part)
            elif self._name and call.get("name") == self._name:
                self._is_bare = self._is_bare or (bool(part.get("thoughtSignature")) and not self._has_call)
            else:
                signs = self._is_bare and not part.get("thoughtSignature")
                left.append({**part, "thoughtSignature": _UNSIGNED} if signs else part)
                self._is_bare, self._has_call = False, True
        return left


def _text(parts: Sequence[Json]) -> str:
    return "".join(part["text"] for part in parts if isinstance(part.get("text"), str) and not part.get("thought"))


def _has_text(parts: Sequence[Json]) -> bool:
    return bool(_text(parts))


def _apart(parts: list[Json], has_text: bool) -> list[Json]:
    """Begin the first text of a later round apart from those before it."""
    for at, part in enumerate(parts):
        if has_text and part.get("text") and not part.get("thought"):
            return [*parts[:at], {**part, "text": GAP + part["text"]}, *parts[at + 1 :]]
    return parts


class GeminiStream:
    """Reads chunks, each a response of its own."""

    def __init__(self, name: str, raised: int) -> None:
        self._name, self._raised = name, raised
        self._used: list[JsonObject] = []
        self._id: Json = None
        self._has_text = False
        self._needs_gap = False
        self._begin()

    def _begin(self) -> None:
        self.is_over = self.has_failed = False
        self._said: list[JsonObject] = []
        self._sight = _Sight(self._name)
        self._usage: JsonObject = {}
        self._reason: Json = None
        self._end: JsonObject | None = None

    def feed(self, data: bytes, raw: bytes) -> list[bytes]:
        """Take a chunk."""
        chunk = read_data(data) or {}
        if not chunk or "error" in chunk:
            self.has_failed = self.has_failed or "error" in chunk
            return [raw]
        self._id = self._id if self._id is not None else chunk.get("responseId")
        made = self._counted(chunk)
        candidate = _candidate(chunk)
        parts = _parts(candidate)
        self._said += parts
        passed = self._new(parts)
        reason = candidate.get("finishReason")
        if reason is None and self._end is None:
            if passed == parts and made == chunk:
                return [raw]
            keeps = passed or candidate.keys() - {"content", "index"}
            return [event(_with_parts(made, passed))] if keeps and candidate else []
        self._reason, self.is_over = reason or self._reason, True
        self._end = _unquoted(_with_parts({**(self._end or {}), **made}, []), self._name) if candidate else made
        bare = {"index": candidate.get("index", 0), "content": {"role": "model"}}
        return [event(_with_parts({**made, "candidates": [bare]}, passed))] if passed else []

    def _counted(self, chunk: JsonObject) -> JsonObject:
        """Write a chunk as one of all rounds."""
        made = {**chunk, "responseId": self._id} if "responseId" in chunk else chunk
        if isinstance(chunk.get("usageMetadata"), dict):
            self._usage = as_object(chunk["usageMetadata"])
            usage = summed([*self._used, self._usage]) if self._used else self._usage
            made = {**made, "usageMetadata": _raised(usage, self._raised) if self._raised else usage}
        return made

    def _new(self, parts: list[Json]) -> list[Json]:
        """Return the parts that the client gets."""
        new = _apart(self._sight.of(parts), self._needs_gap)
        if _has_text(new):
            self._has_text, self._needs_gap = True, False
        return new

    def turn(self) -> Turn:
        """Return what the model said; pieces of one text are one part again."""
        parts: list[JsonObject] = []
        for part in self._said:
            before = parts[-1] if parts else {}
            glues = part.keys() <= {"text", "thought"} and before.keys() <= {"text", "thought"} and bool(parts)
            if glues and bool(before.get("thought")) == bool(part.get("thought")):
                parts[-1] = {**before, "text": before["text"] + part["text"]}
            else:
                parts.append(part)
        return _turn([part for part in parts if part.get("text") != "" or len(part) > 1], self._reason, self._name)

    def again(self) -> None:
        """Begin the next round."""
        self._used.append(self._usage)
        self._needs_gap = self._has_text
        self._begin()

    def end(self) -> list[bytes]:
        """Return the chunk that says why the answer ended."""
        return [event(self._end)] if self._end is not None else []

    def error(self, body: JsonObject) -> list[bytes]:
        """Say that the provider refused."""
        return [event(body)]
