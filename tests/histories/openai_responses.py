"""Strategies of valid OpenAI Responses bodies.

They cover function, custom, shell, computer, hosted and MCP items with approvals, reasoning and compaction; the one
invariant is that each model run is written as a server would have sent it, reasoning first and outputs after.
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

Item = dict[str, Any]
SCREENSHOT = {"type": "computer_screenshot", "image_url": f"data:image/png;base64,{PNG}"}


class Session:
    """Properties of one body: its ids, whether the model reasons, whether items keep server ids, and storage."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.ids = Ids(draw(st.sampled_from(("{prefix}{n:024x}", "{prefix}{n}"))))
        self.reasons = draw(st.booleans())
        self.keeps_ids = draw(st.booleans())
        self.stored = draw(st.booleans())

    def identified(self, item: Item, prefix: str, *, required: bool = False) -> Item:
        """Give the item its server id where this body keeps them or the type demands one."""
        return {"id": self.ids.new(prefix), **item} if required or self.keeps_ids else item


@st.composite
def bodies(draw: Draw, *, max_turns: int, max_steps: int, max_batch: int) -> dict[str, Any]:
    """Draw a whole request body."""
    session = Session(draw)
    if rarely(draw, one_in=25):
        return {"model": "gpt-5.4", "input": draw(texts)}
    items = [_message(draw, draw(st.sampled_from(("system", "developer")))) for _ in range(draw(st.integers(0, 3)))]
    turns = draw(st.integers(1, max_turns))
    for turn in range(turns):
        if rarely(draw, one_in=10):
            items.append(_compaction(session))
        items += [_message(draw, "user") for _ in range(1 + rarely(draw))]
        for _ in range(draw(st.integers(0, max_steps))):
            items += _step(session, max_batch)
        if turn + 1 < turns or rarely(draw):
            items += _answer(session)
    return _request(session, items)


def _request(session: Session, items: list[Item]) -> dict[str, Any]:
    draw = session.draw
    body: dict[str, Any] = {"model": draw(st.sampled_from(("gpt-5.4", "gpt-5.6-sol"))), "input": items}
    body["store"] = session.stored
    if draw(st.booleans()):
        body["instructions"] = draw(texts)
    body["tools"] = [{"type": "function", **schema(name)} for name in TOOL_NAMES] + [{"type": "web_search"}]
    if rarely(draw):
        body |= {"x_unknown": {"kept": True}, "stream": True, "reasoning": {"effort": "low"}}
    if rarely(draw, one_in=15):
        body["previous_response_id"] = "resp_abc"
        # Only the new items are sent, so an output may answer a call that the server stores.
        items.insert(0, {"type": "function_call_output", "call_id": "call_on_server", "output": draw(outputs)})
    if rarely(draw, one_in=20):
        items.append({"type": "compaction_trigger"})
    return reordered(draw, body)


def _message(draw: Draw, role: str) -> Item:
    if draw(st.booleans()):
        return reordered(draw, {"role": role, "content": draw(texts)})
    content: list[Item] = [{"type": "input_text", "text": draw(texts)} for _ in range(draw(st.integers(1, 2)))]
    if role == "user" and rarely(draw, one_in=3):
        content.append({"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"})
    elif role == "user" and rarely(draw):
        content.append({"type": "input_file", "file_id": "file-abc"})
    return {"type": "message", "role": role, "content": content}


def _compaction(session: Session) -> Item:
    return session.identified({"type": "compaction", "encrypted_content": session.draw(blobs)}, "cmp_")


def _reasoning(session: Session) -> list[Item]:
    """Draw the reasoning before a model run; a body that reasons does so in every run."""
    if not session.reasons:
        return []
    draw = session.draw
    summary = [{"type": "summary_text", "text": draw(texts)}] if draw(st.booleans()) else []
    item: Item = {"type": "reasoning", "id": session.ids.new("rs_"), "summary": summary}
    if not session.stored or draw(st.booleans()):
        item["encrypted_content"] = draw(blobs)
    return [reordered(draw, item)]


def _said(session: Session) -> Item:
    draw = session.draw
    if not session.keeps_ids and draw(st.booleans()):
        return {"role": "assistant", "content": draw(texts)}
    content: list[Item] = [{"type": "output_text", "text": draw(texts), "annotations": []}]
    if rarely(draw, one_in=8):
        content = [{"type": "refusal", "refusal": "I can't help with that."}]
    message: Item = {"type": "message", "role": "assistant", "status": "completed", "content": content}
    return session.identified(message, "msg_")


def _answer(session: Session) -> list[Item]:
    hosted = [_hosted(session)] if rarely(session.draw) else []
    return [*_reasoning(session), *hosted, _said(session)]


def _step(session: Session, max_batch: int) -> list[Item]:
    draw = session.draw
    if rarely(draw, one_in=10):
        return _approved(session)
    run = _reasoning(session)
    if rarely(draw, one_in=3):
        run.append(_said(session))
    if rarely(draw):
        run.append(_hosted(session))
    size = 1 if draw(st.booleans()) else draw(st.integers(1, max_batch))
    pairs = [_pair(session) for _ in range(size)]
    # Without server ids a client may also write each output directly after its call.
    if not session.keeps_ids and rarely(draw, one_in=3):
        return run + [item for pair in pairs for item in pair]
    return run + [call for call, _ in pairs] + shuffled(draw, [output for _, output in pairs])


def _pair(session: Session) -> tuple[Item, Item]:
    draw = session.draw
    kind = draw(st.sampled_from(("function", "function", "function", "custom", "local_shell", "computer", "shell")))
    call_id = session.ids.new("call_")
    if kind == "function":
        return _function(session, call_id)
    if kind == "custom":
        call = {"type": "custom_tool_call", "call_id": call_id, "name": draw(tool_names), "input": draw(texts)}
        output = {"type": "custom_tool_call_output", "call_id": call_id, "output": draw(outputs)}
        return session.identified(call, "ctc_"), output
    if kind == "local_shell":
        return _local_shell(session, call_id)
    if kind == "shell":
        call = {"type": "shell_call", "call_id": call_id, "action": {"commands": ["ls"]}, "status": "completed"}
        said = [{"stdout": draw(outputs), "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
        return session.identified(call, "sh_"), {"type": "shell_call_output", "call_id": call_id, "output": said}
    call: Item = {"type": "computer_call", "call_id": call_id, "status": "completed", "pending_safety_checks": []}
    call["action"] = {"type": "click", "button": "left", "x": 1, "y": 2}
    output = {"type": "computer_call_output", "call_id": call_id, "output": SCREENSHOT}
    return session.identified(call, "cu_", required=True), output


def _function(session: Session, call_id: str) -> tuple[Item, Item]:
    draw = session.draw
    arguments = json.dumps(draw(inputs), ensure_ascii=draw(st.booleans()))
    call = {"type": "function_call", "call_id": call_id, "name": draw(tool_names), "arguments": arguments}
    if rarely(draw):
        call["status"] = "completed"
    output: Any = "" if rarely(draw) else draw(outputs)
    if rarely(draw):
        output = [{"type": "input_text", "text": output}, {"type": "input_image", "image_url": SCREENSHOT["image_url"]}]
    answered = {"type": "function_call_output", "call_id": call_id, "output": output}
    if rarely(draw):
        answered |= {"status": "completed", "x_trace": 7}
    return reordered(draw, session.identified(call, "fc_")), reordered(draw, answered)


def _local_shell(session: Session, call_id: str) -> tuple[Item, Item]:
    """Draw a local shell call and one of the three ways in which clients answer it."""
    draw = session.draw
    action = {"type": "exec", "command": ["bash", "-lc", "ls"], "env": {}}
    call = {"type": "local_shell_call", "call_id": call_id, "action": action, "status": "completed"}
    said = json.dumps({"stdout": draw(outputs), "exit_code": 1})
    answer: Item = draw(
        st.sampled_from(
            (
                {"type": "local_shell_call_output", "id": call_id},
                {"type": "local_shell_call_output", "call_id": call_id},
                {"type": "function_call_output", "call_id": call_id},
            )
        )
    )
    return session.identified(call, "lsh_", required=True), {**answer, "output": said}


def _hosted(session: Session) -> Item:
    draw = session.draw
    if draw(st.booleans()):
        searched = {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}}
        return session.identified(searched, "ws_", required=True)
    return session.identified(_mcp_call(session), "mcp_", required=True)


def _mcp_call(session: Session) -> Item:
    draw = session.draw
    called: Item = {"type": "mcp_call", "name": draw(tool_names), "arguments": "{}", "server_label": "db"}
    error = {"type": "http_error", "code": 503, "message": "unavailable"}
    return called | ({"error": error} if rarely(draw) else {"output": draw(outputs)})


def _approved(session: Session) -> list[Item]:
    """Draw requests for approval, the answers to them, and the calls that follow in the next run."""
    draw = session.draw
    asked: list[Item] = []
    answered: list[Item] = []
    called: list[Item] = []
    for _ in range(draw(st.integers(1, 2))):
        id_, approve = session.ids.new("mcpr_"), draw(st.booleans())
        request = {"type": "mcp_approval_request", "id": id_, "name": "query", "arguments": "{}", "server_label": "db"}
        asked.append(request)
        answered.append({"type": "mcp_approval_response", "approval_request_id": id_, "approve": approve})
        if approve:
            call = _mcp_call(session) | {"approval_request_id": id_}
            called.append(session.identified(call, "mcp_", required=True))
    after = [*_reasoning(session), *called] if called else []
    return [*_reasoning(session), *asked, *shuffled(draw, answered), *after]
