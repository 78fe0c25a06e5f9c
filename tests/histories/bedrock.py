"""Strategies of valid Bedrock Converse bodies, as JSON: blobs are base64 strings.

They cover Claude with reasoning and cache points, and models that take no text beside results; the one invariant is
that user and assistant messages alternate, from a user message to a user message.
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
    shuffled,
    texts,
    tool_names,
)

Message = dict[str, Any]
Block = dict[str, Any]
CLAUDE = "anthropic.claude-opus-5-5-v1:0"
MODELS = (CLAUDE, CLAUDE, "amazon.nova-pro-v1:0", "meta.llama3-3-70b-instruct-v1:0")
CACHE_POINT: Block = {"cachePoint": {"type": "default"}}
IMAGE: Block = {"image": {"format": "png", "source": {"bytes": PNG}}}
DOCUMENT: Block = {"document": {"format": "pdf", "name": "paper", "source": {"bytes": "JVBERi0="}}}


class Session:
    """Properties of one body: the model, what it accepts, and its thinking."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.ids = Ids(draw(st.sampled_from(("tooluse_{n:022d}", "functions.shell:{n}"))))
        self.model: str = draw(st.sampled_from(MODELS))
        self.is_claude = self.model == CLAUDE
        self.mixes = "llama" not in self.model
        self.thinking: str = draw(st.sampled_from(("none", "adaptive", "enabled"))) if self.is_claude else "none"


@st.composite
def bodies(draw: Draw, *, max_turns: int, max_steps: int, max_batch: int) -> dict[str, Any]:
    """Draw a whole request body."""
    session = Session(draw)
    messages: list[Message] = []
    turns = draw(st.integers(1, max_turns))
    for turn in range(turns):
        messages.append({"role": "user", "content": _asked(draw)})
        for _ in range(draw(st.integers(0, max_steps))):
            if session.is_claude and rarely(draw, one_in=12):
                messages.append({"role": "system", "content": [{"text": draw(texts)}]})
            messages += _round(session, max_batch)
        if turn + 1 < turns:
            messages.append({"role": "assistant", "content": [*_thoughts(session), {"text": draw(texts)}]})
    body = _request(session, messages)
    if session.mixes:
        _mark(draw, body)
    return reordered(draw, body)


def _request(session: Session, messages: list[Message]) -> dict[str, Any]:
    draw = session.draw
    body: dict[str, Any] = {"modelId": session.model, "messages": messages}
    if draw(st.booleans()):
        body["system"] = [{"text": draw(texts)} for _ in range(draw(st.integers(1, 3)))]
    if any("toolUse" in block for message in messages for block in message["content"]) or draw(st.booleans()):
        body["toolConfig"] = {"tools": [_tool(name) for name in TOOL_NAMES]}
    if session.thinking == "enabled":
        body["additionalModelRequestFields"] = {"thinking": {"type": "enabled", "budget_tokens": 2048}}
    if rarely(draw):
        body |= {"inferenceConfig": {"maxTokens": 512, "temperature": 0.5}, "requestMetadata": {"team": "a"}}
    return body


def _tool(name: str) -> dict[str, Any]:
    described = schema(name)
    spec = {"name": name, "description": described["description"], "inputSchema": {"json": described["parameters"]}}
    return {"toolSpec": spec}


def _asked(draw: Draw) -> list[Block]:
    blocks: list[Block] = [{"text": draw(texts)} for _ in range(draw(st.integers(1, 2)))]
    if rarely(draw, one_in=4):
        blocks.append(dict(draw(st.sampled_from((IMAGE, DOCUMENT)))))
    return blocks


def _thoughts(session: Session) -> list[Block]:
    """Draw the head of an assistant message; under manual thinking there always is one."""
    draw = session.draw
    if session.thinking == "none" or (session.thinking == "adaptive" and draw(st.booleans())):
        return []
    if rarely(draw):
        return [{"reasoningContent": {"redactedContent": draw(blobs)}}]
    return [{"reasoningContent": {"reasoningText": {"text": draw(texts), "signature": draw(blobs)}}}]


def _round(session: Session, max_batch: int) -> list[Message]:
    draw = session.draw
    content = _thoughts(session)
    if draw(st.booleans()):
        content.append({"text": draw(texts)})
    if not session.is_claude and session.mixes and rarely(draw):
        content += _served(session)
    size = 1 if draw(st.booleans()) else draw(st.integers(1, max_batch))
    uses: list[Block] = []
    for _ in range(size):
        use = {"toolUseId": session.ids.new(""), "name": draw(tool_names), "input": draw(inputs)}
        uses.append({"toolUse": reordered(draw, use)})
    results = [{"toolResult": _result(draw, use["toolUse"]["toolUseId"])} for use in shuffled(draw, uses)]
    asked = _asked(draw) if session.mixes and rarely(draw) else []
    return [{"role": "assistant", "content": content + uses}, {"role": "user", "content": results + asked}]


def _result(draw: Draw, id_: str) -> Block:
    result: Block = {"toolUseId": id_, "content": []}
    kind = draw(st.sampled_from(("text", "json", "image", "empty", "error")))
    if kind in ("text", "error"):
        result["content"] = [{"text": draw(outputs)}]
    elif kind == "json":
        result["content"] = [{"json": draw(inputs)}]
    elif kind == "image":
        result["content"] = [{"text": draw(texts)}, dict(IMAGE)]
    if kind == "error":
        result["status"] = "error"
    elif rarely(draw):
        result["status"] = "success"
    return reordered(draw, result)


def _served(session: Session) -> list[Block]:
    """Draw a hosted tool use and its result, which are in one assistant message."""
    id_ = session.ids.new("")
    use = {"toolUseId": id_, "name": "nova_grounding", "input": {}, "type": "server_tool_use"}
    result = {"toolUseId": id_, "content": [{"text": session.draw(outputs)}], "type": "nova_grounding_result"}
    return [{"toolUse": use}, {"toolResult": result}]


def _mark(draw: Draw, body: dict[str, Any]) -> None:
    """Append up to four cache points, each to its own list of blocks."""
    places = [message["content"] for message in body["messages"]]
    places += [body["system"]] if "system" in body else []
    places += [body["toolConfig"]["tools"]] if "toolConfig" in body else []
    for at in draw(st.sets(st.integers(0, len(places) - 1), max_size=4)):
        places[at].append(dict(CACHE_POINT))
