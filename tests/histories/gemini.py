"""Strategies of valid Gemini generateContent bodies.

They cover both signed and unsigned models, thoughts, parallel calls and code execution; the one invariant is that
user and model contents alternate, from a user content to a user content.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from tests.histories.ingredients import (
    PNG,
    TOOL_NAMES,
    Draw,
    Ids,
    blobs,
    inputs,
    outputs,
    rarely,
    reordered,
    schema,
    texts,
    tool_names,
)

Content = dict[str, Any]
Part = dict[str, Any]
SENTINEL = "skip_thought_signature_validator"
MEDIA: tuple[Part, ...] = (
    {"inlineData": {"mimeType": "image/png", "data": PNG}},
    {"fileData": {"mimeType": "application/pdf", "fileUri": "https://example.com/files/a"}},
)


class Session:
    """Properties of one body: the model, whether it signs its calls, and whether calls have ids."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.model: str = draw(st.sampled_from(("gemini-3-pro-preview", "gemini-2.5-pro", "models/gemini-3-flash")))
        self.signs = "gemini-3" in self.model
        self.ids = Ids("{prefix}{n}") if draw(st.booleans()) else None

    def named(self, value: Part) -> Part:
        """Add an id where this body uses them."""
        return {"id": self.ids.new("fc-"), **value} if self.ids else value


@st.composite
def bodies(draw: Draw, *, max_turns: int, max_steps: int, max_batch: int) -> dict[str, Any]:
    """Draw a whole request body."""
    session = Session(draw)
    contents: list[Content] = []
    turns = draw(st.integers(1, max_turns))
    for turn in range(turns):
        contents.append({"role": "user", "parts": _asked(draw)})
        last_turn = turn + 1 == turns
        for _ in range(draw(st.integers(0, max_steps))):
            contents += _round(session, max_batch, current=last_turn)
        if not last_turn:
            contents.append({"role": "model", "parts": _answer(session)})
    return _request(session, contents)


def _request(session: Session, contents: list[Content]) -> dict[str, Any]:
    draw = session.draw
    body: dict[str, Any] = {"model": session.model, "contents": contents}
    if draw(st.booleans()):
        body["systemInstruction"] = {"parts": [{"text": draw(texts)} for _ in range(draw(st.integers(1, 3)))]}
    body["tools"] = [{"functionDeclarations": [schema(name) for name in TOOL_NAMES]}, {"codeExecution": {}}]
    if rarely(draw):
        body |= {"generationConfig": {"temperature": 0.1, "thinkingConfig": {"includeThoughts": True}}}
    return reordered(draw, body)


def _asked(draw: Draw) -> list[Part]:
    parts = [{"text": draw(texts)} for _ in range(draw(st.integers(1, 2)))]
    if rarely(draw, one_in=4):
        parts.append(dict(draw(st.sampled_from(MEDIA))))
    return parts


def _thoughts(session: Session) -> list[Part]:
    draw = session.draw
    parts: list[Part] = []
    if rarely(draw, one_in=3):
        parts.append({"text": draw(texts), "thought": True})
    if rarely(draw, one_in=3):
        said: Part = {"text": draw(texts)}
        parts.append({**said, "thoughtSignature": draw(blobs)} if draw(st.booleans()) else said)
    if rarely(draw, one_in=8):
        ran = {"outcome": "OUTCOME_OK", "output": "2\n"}
        parts += [{"executableCode": {"language": "PYTHON", "code": "print(2)"}}, {"codeExecutionResult": ran}]
    return parts


def _round(session: Session, max_batch: int, *, current: bool) -> list[Content]:
    draw = session.draw
    size = 1 if draw(st.booleans()) else draw(st.integers(1, max_batch))
    calls: list[Part] = []
    for _ in range(size):
        call = session.named({"name": draw(tool_names), "args": draw(inputs)})
        calls.append({"functionCall": reordered(draw, call)})
    # Only the first call of a step is signed; earlier turns are not validated and may have lost theirs.
    if session.signs and (current or not rarely(draw)):
        calls[0]["thoughtSignature"] = SENTINEL if rarely(draw, one_in=6) else draw(blobs)
    responses = [{"functionResponse": _response(draw, call["functionCall"])} for call in calls]
    asked = _asked(draw) if rarely(draw, one_in=8) else []
    return [
        {"role": "model", "parts": [*_thoughts(session), *calls]},
        {"role": "user", "parts": [*responses, *asked]},
    ]


def _response(draw: Draw, call: Part) -> Part:
    response: Part = {"name": call["name"], "response": {}}
    kind = draw(st.sampled_from(("result", "output", "error", "empty", "object", "media")))
    if kind in ("result", "output", "error"):
        response["response"] = {kind: draw(outputs)}
    elif kind == "object":
        response["response"] = draw(inputs)
    elif kind == "media":
        response["response"] = {"result": ""}
        response["parts"] = [{"inlineData": {"mimeType": "image/png", "data": PNG}}]
    return {"id": call["id"], **response} if "id" in call else response


def _answer(session: Session) -> list[Part]:
    draw = session.draw
    parts = [*_thoughts(session), {"text": draw(texts)}]
    if rarely(draw):
        # A streamed answer may bring its signature last, on an empty text.
        parts.append({"text": "", "thoughtSignature": draw(blobs)})
    return parts
