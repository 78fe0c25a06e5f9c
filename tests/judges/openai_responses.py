"""Strict judge of OpenAI Responses requests.

The one invariant: a body without faults here has each call followed by its one output with no message between
them, and each reasoning item together with what it produced.

Not decidable from one body, and so left to ``prefix``: OR-6 (tampering) and the exact item a reasoning belongs to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, TypeAlias

Item: TypeAlias = dict[str, Any]
Body: TypeAlias = dict[str, Any]

MAX_CALL_ID = 64
MAX_OUTPUT = 10_485_760
MAX_COMPACTION = 20_971_520

OUTPUTS: dict[str, tuple[str, ...]] = {
    "function_call_output": ("function_call", "local_shell_call"),  # codex answers a local shell this way
    "custom_tool_call_output": ("custom_tool_call",),
    "local_shell_call_output": ("local_shell_call",),
    "shell_call_output": ("shell_call",),
    "apply_patch_call_output": ("apply_patch_call",),
    "computer_call_output": ("computer_call",),
    "tool_search_output": ("tool_search_call",),
    "program_output": ("program",),
    "mcp_approval_response": ("mcp_approval_request",),
}
CALLS = frozenset(call for calls in OUTPUTS.values() for call in calls)
HOSTED = frozenset(
    [
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
    ]
)
OTHER = frozenset(
    [
        "message",
        "reasoning",
        "compaction",
        "compaction_trigger",
        "item_reference",
        "additional_tools",
        "configuration_update",
    ]
)
REQUIRED: dict[str, str] = {
    "function_call": "call_id name arguments",
    "custom_tool_call": "call_id name input",
    "local_shell_call": "call_id action status",
    "shell_call": "call_id action",
    "apply_patch_call": "call_id operation status",
    "computer_call": "id call_id pending_safety_checks status",
    "tool_search_call": "arguments",
    "program": "id call_id code fingerprint",
    "mcp_approval_request": "id name arguments server_label",
    "mcp_approval_response": "approval_request_id approve",
    "mcp_call": "id name arguments server_label",
    "mcp_list_tools": "id server_label tools",
    "web_search_call": "id action status",
    "file_search_call": "id queries status",
    "code_interpreter_call": "id container_id status",
    "image_generation_call": "id result status",
    "reasoning": "id summary",
    "compaction": "encrypted_content",
    "item_reference": "id",
    "function_call_output": "call_id output",
    "custom_tool_call_output": "call_id output",
    "local_shell_call_output": "output",
    "shell_call_output": "call_id output",
    "apply_patch_call_output": "call_id status",
    "computer_call_output": "call_id output",
    "tool_search_output": "tools",
    "program_output": "call_id result status",
}
STRINGS = ("arguments", "input", "name", "call_id", "id", "encrypted_content", "server_label")
# OR-7 names msg, rs and fc; ctc is the same rule for custom calls.
ID_PREFIX = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
PARTS = {
    "assistant": ("output_text", "refusal"),
    "user": ("input_text", "input_image", "input_file", "input_audio"),
    "system": ("input_text", "input_image", "input_file"),
    "developer": ("input_text", "input_image", "input_file"),
}
SERVER_STATE = ("previous_response_id", "conversation", "prompt")


def judge(payload: Body | list[Any]) -> list[str]:
    """Return every fault of a Responses request; an empty list means accepted."""
    body: Body = payload if isinstance(payload, dict) else {"input": payload}
    faults = list(_check_state(body))
    items = body.get("input")
    if isinstance(items, str) and items:
        return faults
    if not isinstance(items, list) or (not items and not _stored(body)):
        return [*faults, "OR-1 input: a string or a list with at least one item is needed"]
    shape = [fault for index, item in enumerate(items) for fault in _shape(f"input[{index}]", item)]
    if shape:
        return [*faults, *shape]
    return faults + [fault for check in CHECKS for fault in check(body, items)]


def type_of(item: Item) -> str:
    """Return the type of an item; one that only has a role is a message."""
    kind: str = item.get("type") or ("message" if "role" in item else "item_reference")
    return kind


def is_model_item(item: Item) -> bool:
    """Return whether the model wrote the item; messages of other roles, outputs and compactions end its run."""
    kind = type_of(item)
    if kind == "message":
        return bool(item["role"] == "assistant")
    return kind in CALLS or kind in HOSTED or kind in ("reasoning", "item_reference")


def _stored(body: Body) -> bool:
    return any(body.get(key) for key in SERVER_STATE)


def _check_state(body: Body) -> Iterator[str]:
    if body.get("previous_response_id") and body.get("conversation"):
        yield "OR-11 previous_response_id: cannot be used with conversation"


def _shape(path: str, item: Any) -> Iterator[str]:
    if not isinstance(item, dict):
        yield f"OR-9 {path}: expected an object"
        return
    kind = type_of(item)
    if kind not in CALLS | HOSTED | OTHER | OUTPUTS.keys():
        yield f"OR-9 {path}.type: unknown item type {kind!r}"
        return
    for key in REQUIRED.get(kind, "").split():
        if key not in item:
            yield f"OR-9 {path}.{key}: required on {kind}"
    for key in STRINGS:
        optional = item.get(key) is None and key not in REQUIRED.get(kind, "").split()
        if key in item and not optional and not isinstance(item[key], str) and kind != "tool_search_call":
            yield f"OR-9 {path}.{key}: expected a string"
    if kind == "message":
        yield from _message_shape(path, item)
    if kind == "reasoning":
        yield from _reasoning_shape(path, item)
    yield from _limits(path, kind, item)


def _message_shape(path: str, item: Item) -> Iterator[str]:
    role, content = item.get("role"), item.get("content")
    if role not in PARTS:
        yield f"OR-9 {path}.role: expected one of {tuple(PARTS)}"
    elif isinstance(content, list):
        if not content:
            yield f"OR-9 {path}.content: at least one part is needed"
        for at, part in enumerate(content):
            kind = part.get("type") if isinstance(part, dict) else None
            if kind not in PARTS[role]:
                yield f"OR-9 {path}.content[{at}].type: {kind!r} is not allowed for role {role}"
    elif not isinstance(content, str):
        yield f"OR-9 {path}.content: expected a string or a list of parts"


def _reasoning_shape(path: str, item: Item) -> Iterator[str]:
    summary = item.get("summary")
    if not isinstance(summary, list) or any(part.get("type") != "summary_text" for part in summary):
        yield f"OR-9 {path}.summary: expected a list of summary_text"
    if item.get("encrypted_content") == "":
        yield f"OR-6 {path}.encrypted_content: may not be empty"


def _limits(path: str, kind: str, item: Item) -> Iterator[str]:
    call_id = item.get("call_id")
    if isinstance(call_id, str) and not 1 <= len(call_id) <= MAX_CALL_ID:
        yield f"OR-8 {path}.call_id: {len(call_id)} characters, expected 1 to {MAX_CALL_ID}"
    if isinstance(item.get("output"), str) and len(item["output"]) > MAX_OUTPUT:
        yield f"OR-8 {path}.output: longer than {MAX_OUTPUT}"
    blob = item.get("encrypted_content")
    if kind == "compaction" and isinstance(blob, str) and not 1 <= len(blob) <= MAX_COMPACTION:
        yield f"OR-8 {path}.encrypted_content: expected 1 to {MAX_COMPACTION} characters"
    prefix, id_ = ID_PREFIX.get(kind), item.get("id")
    if prefix and isinstance(id_, str) and not id_.startswith(prefix):
        yield f"OR-7 {path}.id: expected an id that starts with {prefix!r}"


def call_key(item: Item) -> str | None:
    """Return the id by which a call and its output find each other, or None if the item needs no partner."""
    kind = type_of(item)
    if kind == "mcp_approval_request":
        key: str | None = item["id"]
    elif kind == "mcp_approval_response":
        key = item["approval_request_id"]
    elif kind in CALLS or kind in OUTPUTS:
        # The SDK's local shell output knows only `id`, which holds the call's call_id.
        key = item.get("call_id") or (item.get("id") if kind == "local_shell_call_output" else None)
    else:
        key = None
    return key


def _needs_output(item: Item) -> bool:
    # A tool search that ran on the server carries no call_id and may come without its output item.
    return type_of(item) in CALLS and not (type_of(item) == "tool_search_call" and not item.get("call_id"))


def _check_calls(body: Body, items: list[Item]) -> Iterator[str]:
    calls = {}
    for index, item in enumerate(items):
        if _needs_output(item):
            if call_key(item) in calls:
                yield f"OR-12 input[{index}]: call id {call_key(item)!r} is used twice"
            calls[call_key(item)] = index
    answers = Counter((call_key(item)) for item in items if type_of(item) in OUTPUTS)
    for key, index in calls.items():
        if not answers[key]:
            yield f"OR-1 input[{index}]: no tool output found for call {key!r}"
        if answers[key] > 1:
            yield f"OR-2 input[{index}]: {answers[key]} outputs for call {key!r}"


def _check_outputs(body: Body, items: list[Item]) -> Iterator[str]:
    """Find each output's call before it, of the right type and with no message in between (OR-1)."""
    called: dict[str | None, int] = {}
    last_message = -1
    for index, item in enumerate(items):
        kind, key = type_of(item), call_key(item)
        if kind in ("message", "compaction"):
            last_message = index
        if kind in CALLS:
            called[key] = index
        if kind not in OUTPUTS or (kind == "tool_search_output" and key is None):
            continue
        at = called.get(key)
        if at is None:
            # With server state the call may live in the stored response.
            if not _stored(body):
                yield f"OR-2 input[{index}]: no tool call found for output of {key!r}"
        elif type_of(items[at]) not in OUTPUTS[kind]:
            yield f"OR-2 input[{index}]: a {kind} cannot answer a {type_of(items[at])}"
        elif last_message > at:
            yield f"OR-1 input[{index}]: there is a message between call {key!r} and its output"


def _check_approvals(body: Body, items: list[Item]) -> Iterator[str]:
    requested: set[str] = set()
    for index, item in enumerate(items):
        if type_of(item) == "mcp_approval_request":
            requested.add(item["id"])
        wanted = item.get("approval_request_id") if type_of(item) == "mcp_call" else None
        if wanted and wanted not in requested and not _stored(body):
            yield f"OR-2 input[{index}]: mcp_call refers to an approval request that is not there: {wanted!r}"


def _check_reasoning_followed(body: Body, items: list[Item]) -> Iterator[str]:
    followed = False
    for index in range(len(items) - 1, -1, -1):
        if type_of(items[index]) != "reasoning":
            followed = is_model_item(items[index])
        elif not followed:
            yield f"OR-4 input[{index}]: reasoning without its required following item"


def _check_reasoning_before(body: Body, items: list[Item]) -> Iterator[str]:
    """Server ids of calls and messages need reasoning before them in the same model run (OR-3).

    Choice: a body shows that the model reasons when it holds any reasoning item; then every function call or
    assistant message that still carries its server id must have reasoning earlier in its own run. An item
    reference may replace that reasoning. Without any reasoning item nothing can be decided.
    """
    if not any(type_of(item) == "reasoning" for item in items):
        return
    reasoned = False
    for index, item in enumerate(items):
        kind = type_of(item)
        if not is_model_item(item):
            reasoned = False
        elif kind in ("reasoning", "item_reference"):
            reasoned = True
        elif not reasoned and kind in ("message", "function_call") and str(item.get("id")).startswith(("fc_", "msg_")):
            yield f"OR-3 input[{index}]: {item['id']!r} was provided without its required reasoning item"


def _check_store(body: Body, items: list[Item]) -> Iterator[str]:
    if body.get("store") is not False:
        return
    for index, item in enumerate(items):
        if type_of(item) == "reasoning" and not item.get("encrypted_content"):
            yield f"OR-5 input[{index}]: reasoning without encrypted_content while store is false"
        if type_of(item) == "item_reference":
            yield f"OR-5 input[{index}]: an item reference cannot be resolved while store is false"


def _check_placing(body: Body, items: list[Item]) -> Iterator[str]:
    for index, item in enumerate(items[:-1]):
        if type_of(item) == "compaction_trigger":
            yield f"OR-10 input[{index}]: compaction_trigger must be the final input item"
    ids = Counter(item["id"] for item in items if item.get("id") and type_of(item) != "local_shell_call_output")
    for id_, count in ids.items():
        if count > 1:
            yield f"OR-12 input: item id {id_!r} is used {count} times"


CHECKS = (
    _check_calls,
    _check_outputs,
    _check_approvals,
    _check_reasoning_followed,
    _check_reasoning_before,
    _check_store,
    _check_placing,
)
