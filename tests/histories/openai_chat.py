"""Strategies of valid OpenAI Chat Completions bodies.

They cover what real clients replay, compatible servers' extras included; the one invariant is that each assistant
message with calls is directly followed by all of its results.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st
from tests.histories.ingredients import (
    PNG,
    TOOL_NAMES,
    Draw,
    Ids,
    inputs,
    outputs,
    rarely,
    reordered,
    schema,
    shuffled,
    texts,
    tool_names,
)

Message = dict[str, Any]
ID_STYLES = ("call_{n:022d}", "a1b2c3{n:03d}", "functions.bash:{n}", "{n:08x}-0000-4000-8000-000000000000")
MODELS = ("gpt-5.4", "gpt-4o", "mistral-large-latest", "deepseek-v4", "kimi-k3")


class Session:
    """Properties of one body: the form of its ids, whether the model reasons, and how far it leaves common ground.

    A portable body keeps to what every compatible server knows: no developer role, no audio, files, refusals, custom
    or legacy calls, instructions only at the start, and an ending that is not the assistant's.
    """

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.ids = Ids(draw(st.sampled_from(ID_STYLES)))
        self.reasons: bool = draw(st.booleans())
        self.portable: bool = draw(st.booleans())

    def strays(self, *, one_in: int) -> bool:
        """Draw whether to use a feature that only OpenAI has; a portable body never does."""
        return not self.portable and rarely(self.draw, one_in=one_in)


@st.composite
def bodies(draw: Draw, *, max_turns: int, max_steps: int, max_batch: int) -> dict[str, Any]:
    """Draw a whole request body."""
    session = Session(draw)
    messages = [_instruction(session) for _ in range(draw(st.integers(0, 3)))]
    turns = draw(st.integers(1, max_turns))
    for turn in range(turns):
        messages += _turn(session, max_steps, max_batch)
        closed = turn + 1 < turns or session.strays(one_in=5)
        if closed:
            messages.append(_answer(session))
        if closed and session.strays(one_in=8):
            messages.append(_instruction(session))
    return _request(draw, messages)


def _request(draw: Draw, messages: list[Message]) -> dict[str, Any]:
    body: dict[str, Any] = {"model": draw(st.sampled_from(MODELS)), "messages": messages}
    if any(message.get("tool_calls") for message in messages):
        body["tools"] = [{"type": "function", "function": schema(name)} for name in TOOL_NAMES]
    if rarely(draw):
        body |= {"x_unknown": {"kept": [1, None]}, "temperature": 0.2, "stream": True}
    return reordered(draw, body)


def _instruction(session: Session) -> Message:
    role = "developer" if session.strays(one_in=2) else "system"
    return {"role": role, "content": _text_content(session.draw)}


def _text_content(draw: Draw) -> str | list[dict[str, Any]]:
    if rarely(draw, one_in=3):
        return [{"type": "text", "text": draw(texts)} for _ in range(draw(st.integers(1, 2)))]
    text: str = draw(texts)
    return text


def _user(session: Session) -> Message:
    draw = session.draw
    content = _text_content(draw)
    if isinstance(content, list) and rarely(draw, one_in=2):
        content.append(draw(st.sampled_from(_media()[: 2 if session.portable else 4])))
    message: Message = {"role": "user", "content": content}
    if rarely(draw):
        message["name"] = "alice"
    return reordered(draw, message)


def _media() -> list[dict[str, Any]]:
    """Return media parts, the portable ones first."""
    return [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "file", "file": {"file_id": "file-abc", "filename": "a.pdf"}},
    ]


def _turn(session: Session, max_steps: int, max_batch: int) -> list[Message]:
    draw = session.draw
    messages = [_user(session) for _ in range(1 + rarely(draw))]
    for _ in range(draw(st.integers(0, max_steps))):
        messages += _legacy_round(draw) if session.strays(one_in=12) else _round(session, max_batch)
    return messages


def _round(session: Session, max_batch: int) -> list[Message]:
    draw = session.draw
    size = 1 if draw(st.booleans()) else draw(st.integers(1, max_batch))
    calls = [_call(session) for _ in range(size)]
    said = draw(st.sampled_from((None, "", "Looking at it.")))
    message: Message = {"role": "assistant", "content": said, "tool_calls": calls}
    if rarely(draw):
        message["content"] = _text_content(draw)
    elif message["content"] is None and rarely(draw):
        del message["content"]
    if session.reasons:
        # Thinking mode wants the field on every calling turn, and an empty string counts.
        message["reasoning_content"] = draw(st.sampled_from(("", "I should look first.")))
    if rarely(draw):
        message |= {"refusal": None, "annotations": [], "x_trace": {"span": 7}}
    results = [_result(draw, call["id"]) for call in shuffled(draw, calls)]
    return [reordered(draw, message), *results]


def _call(session: Session) -> dict[str, Any]:
    draw = session.draw
    name, id_ = draw(tool_names), session.ids.new("call_")
    if session.strays(one_in=10):
        return {"id": id_, "type": "custom", "custom": {"name": name, "input": draw(texts)}}
    arguments = json.dumps(draw(inputs), ensure_ascii=draw(st.booleans()))
    if rarely(draw, one_in=10):
        arguments = draw(st.sampled_from(("", "{not json", '{"cut": "he')))
    return reordered(draw, {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}})


def _result(draw: Draw, id_: str) -> Message:
    content: Any = "" if rarely(draw) else draw(outputs)
    if rarely(draw):
        content = [{"type": "text", "text": content}]
    return reordered(draw, {"role": "tool", "tool_call_id": id_, "content": content})


def _legacy_round(draw: Draw) -> list[Message]:
    name = draw(tool_names)
    call = {"name": name, "arguments": json.dumps(draw(inputs))}
    return [
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": name, "content": draw(outputs)},
    ]


def _answer(session: Session) -> Message:
    draw = session.draw
    message: Message = {"role": "assistant", "content": _text_content(draw)}
    if session.strays(one_in=8):
        message["content"] = [{"type": "refusal", "refusal": "I can't help with that."}]
    elif rarely(draw, one_in=8):
        message |= {"content": "", "refusal": "No."}
    if session.reasons and draw(st.booleans()):
        message["reasoning_content"] = "Done thinking."
    return message
