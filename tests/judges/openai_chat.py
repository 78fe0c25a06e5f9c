"""Strict judge of OpenAI Chat Completions requests, with a second opinion from Mistral's own validator.

The one invariant: a body without faults here has every tool call answered at once, by exactly one result
each, and nothing that the published schema refuses.

Choices where the documents are silent: parallel results may come in any order; a call id may return in
a later turn (pairing looks only at the previous assistant message); the last role is free; empty strings are
content. A second result for one call is refused, as Mistral does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
Body: TypeAlias = dict[str, Any]

MAX_ID = 40
ROLES = ("developer", "system", "user", "assistant", "tool", "function")
PARTS: dict[str, tuple[str, ...]] = {
    "developer": ("text",),
    "system": ("text",),
    "user": ("text", "image_url", "input_audio", "file"),
    "assistant": ("text", "refusal"),
    "tool": ("text",),
    "function": (),
}
PAYLOAD_KEY = {"function": "arguments", "custom": "input"}


def judge(payload: Body | list[Any]) -> list[str]:
    """Return every fault of a Chat Completions request; an empty list means accepted."""
    body: Body = payload if isinstance(payload, dict) else {"messages": payload}
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return ["OC-6 messages: at least one message is needed"]
    shape = [fault for index, message in enumerate(messages) for fault in _shape(f"messages[{index}]", message)]
    if shape:
        return shape
    return [*_pairing(messages), *_function_pairing(messages), *_deepseek(body)]


def judge_mistral(messages: Body | list[Any]) -> list[str]:
    """Return the first complaint of mistral-common about the messages, if any."""
    from mistral_common.exceptions import MistralCommonException
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.protocol.instruct.validator import MistralRequestValidatorV13, ValidationMode

    listed = messages["messages"] if isinstance(messages, dict) else messages
    try:
        request = ChatCompletionRequest.from_openai(messages=listed, model="any")
        MistralRequestValidatorV13(mode=ValidationMode.serving).validate_request(request)
    except (MistralCommonException, ValueError, KeyError, TypeError) as refusal:
        return [f"MI messages: {type(refusal).__name__}: {refusal}"]
    return []


def _shape(path: str, message: Any) -> Iterator[str]:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        yield f"OC-7 {path}.role: expected one of {ROLES}"
        return
    role = message["role"]
    yield from _content_shape(path, message)
    if role == "tool" and not (isinstance(message.get("tool_call_id"), str) and message["tool_call_id"]):
        yield f"OC-3 {path}.tool_call_id: required"
    if role == "function" and not message.get("name"):
        yield f"OC-7 {path}.name: required on a function message"
    if message.get("tool_calls") is None:
        return
    if role != "assistant":
        yield f"OC-7 {path}.tool_calls: only an assistant message may call"
    elif not isinstance(message["tool_calls"], list) or not message["tool_calls"]:
        yield f"OC-6 {path}.tool_calls: at least one call is needed"
    else:
        for at, call in enumerate(message["tool_calls"]):
            yield from _call_shape(f"{path}.tool_calls[{at}]", call)


def _content_shape(path: str, message: Message) -> Iterator[str]:
    content, role = message.get("content"), message["role"]
    if content is None:
        calls = role == "assistant" and (message.get("tool_calls") or message.get("function_call"))
        if not calls and role != "function":
            yield f"OC-5 {path}.content: expected a string, got null"
    elif isinstance(content, list):
        if not content:
            yield f"OC-6 {path}.content: at least one part is needed"
        for at, part in enumerate(content):
            kind = part.get("type") if isinstance(part, dict) else None
            if kind not in PARTS[role]:
                yield f"OC-6 {path}.content[{at}]: part type {kind!r} is not allowed for role {role}"
            elif not isinstance(part.get(kind), str if kind in ("text", "refusal") else dict):
                yield f"OC-6 {path}.content[{at}].{kind}: missing or of the wrong type"
    elif not isinstance(content, str):
        yield f"OC-5 {path}.content: expected a string or a list of parts"


def _call_shape(path: str, call: Any) -> Iterator[str]:
    kind = call.get("type", "function") if isinstance(call, dict) else None
    if kind not in PAYLOAD_KEY:
        yield f"OC-8 {path}.type: expected function or custom"
        return
    if not isinstance(call.get("id"), str) or not call["id"]:
        yield f"OC-4 {path}.id: required"
    elif len(call["id"]) > MAX_ID:
        yield f"OC-4 {path}.id: {len(call['id'])} characters, at most {MAX_ID}"
    named = call.get(kind)
    if not isinstance(named, dict) or not isinstance(named.get("name"), str) or not named["name"]:
        yield f"OC-8 {path}.{kind}.name: required"
    elif not isinstance(named.get(PAYLOAD_KEY[kind]), str):
        yield f"OC-8 {path}.{kind}.{PAYLOAD_KEY[kind]}: expected a string"


def _pairing(messages: list[Message]) -> Iterator[str]:
    """Walk the list with the calls still owed; only tool messages may come while any is."""
    owed: list[str] = []
    answered: set[str] = set()
    in_round = False
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            yield from _result_faults(f"messages[{index}]", message["tool_call_id"], owed, answered, in_round)
            continue
        if owed:
            yield f"OC-1 messages[{index}].role: these calls have no result yet: {owed}"
        calls = [call["id"] for call in message.get("tool_calls") or []]
        for id_, count in Counter(calls).items():
            if count > 1:
                yield f"OC-1 messages[{index}].tool_calls: id {id_!r} is used {count} times"
        owed, answered, in_round = calls, set(), bool(calls)
    if owed:
        yield f"OC-1 messages: these calls have no result at the end: {owed}"


def _result_faults(path: str, id_: str, owed: list[str], answered: set[str], in_round: bool) -> Iterator[str]:
    if not in_round:
        yield f"OC-2 {path}.role: a tool message must respond to a preceding message with tool_calls"
    elif id_ in owed:
        owed.remove(id_)
        answered.add(id_)
    elif id_ in answered:
        yield f"OC-3 {path}.tool_call_id: {id_!r} is answered twice"
    else:
        yield f"OC-3 {path}.tool_call_id: {id_!r} not found in tool_calls of the previous message"


def _function_pairing(messages: list[Message]) -> Iterator[str]:
    """Apply the same rule to the deprecated pair: the function message directly follows its call."""
    for index, message in enumerate(messages):
        if message["role"] != "function":
            continue
        call = (messages[index - 1].get("function_call") if index else None) or {}
        if call.get("name") != message["name"]:
            yield f"OC-2 messages[{index}].role: a function message must follow its function_call"


def _deepseek(body: Body) -> Iterator[str]:
    """Apply the thinking-mode rules to models named deepseek.

    Choice: thinking mode is on when the body says so or when any assistant message carries reasoning. DS-2 was
    written for a deepseek-reasoner that had no tools, so there it binds only the messages without calls.
    """
    model = str(body.get("model", "")).rsplit("/", 1)[-1].lower()
    if not model.startswith("deepseek"):
        return
    assistants = [(i, m) for i, m in enumerate(body["messages"]) if m["role"] == "assistant"]
    thinking_enabled = (body.get("thinking") or {}).get("type") == "enabled"
    thinks = (
        thinking_enabled
        or model.startswith("deepseek-reasoner")
        or any("reasoning_content" in m for _, m in assistants)
    )
    for index, message in assistants:
        if message.get("tool_calls"):
            if thinks and not isinstance(message.get("reasoning_content"), str):
                yield f"DS-1 messages[{index}]: reasoning_content must be passed back"
        elif model.startswith("deepseek-reasoner") and message.get("reasoning_content") is not None:
            yield f"DS-2 messages[{index}]: reasoning_content is not accepted here"
