"""Shapes of Anthropic messages and blocks: which keys and types a request may contain.

Split from the judge so that its pairing rules can trust what they read; the one invariant is that a body
without shape faults can be walked without a single type check.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

ROLES = ("user", "assistant", "system")
MESSAGE_KEYS = {"role", "content"}
SYSTEM_MESSAGE_KEYS = MESSAGE_KEYS | {"clear_at", "output_config"}
BODY_KEYS = frozenset(
    [
        "messages",
        "model",
        "max_tokens",
        "system",
        "tools",
        "tool_choice",
        "thinking",
        "stream",
        "metadata",
        "stop_sequences",
        "temperature",
        "top_p",
        "top_k",
        "service_tier",
        "cache_control",
        "compaction",
        "container",
        "context_management",
        "diagnostics",
        "fallback_credit_token",
        "fallbacks",
        "inference_geo",
        "mcp_servers",
        "output_config",
        "output_format",
        "speed",
        "thread",
        "betas",
        "user_profile_id",
        "workspace_id",
        "anthropic_version",
        "anthropic_beta",
    ]
)

# Block type: (required keys, optional keys), from the SDK's request types.
_RESULT = ("tool_use_id content", "caller cache_control")
BLOCKS: dict[str, tuple[str, str]] = {
    "text": ("text", "citations cache_control"),
    "image": ("source", "transformations cache_control"),
    "document": ("source", "title context citations cache_control"),
    "search_result": ("source title content", "citations cache_control"),
    "container_upload": ("file_id", "cache_control"),
    # A breakpoint on thinking is refused by AN-24, not as an unknown key.
    "thinking": ("thinking signature", "cache_control"),
    "redacted_thinking": ("data", "cache_control"),
    "tool_use": ("id name input", "caller toolset_name cache_control"),
    "tool_result": ("tool_use_id", "content is_error toolset_name cache_control"),
    "server_tool_use": ("id name input", "caller cache_control"),
    "mcp_tool_use": ("id name input server_name", "cache_control"),
    "mcp_tool_result": ("tool_use_id", "content is_error cache_control"),
    "web_search_tool_result": _RESULT,
    "web_fetch_tool_result": _RESULT,
    "advisor_tool_result": _RESULT,
    "code_execution_tool_result": _RESULT,
    "bash_code_execution_tool_result": _RESULT,
    "text_editor_code_execution_tool_result": _RESULT,
    "tool_search_tool_result": _RESULT,
    "compaction": ("", "content encrypted_content signature tool_changes cache_control"),
    "tool_addition": ("tool", "cache_control"),
    "tool_removal": ("tool", "cache_control"),
    "mcp_tool_listing": ("mcp_server_name tools", ""),
    "fallback": ("from to", "trigger"),
    "tool_reference": ("tool_name", "cache_control"),
    "browser_state": ("", "state url title content cache_control"),
}
BOTH = {"text"}
USER_ONLY = {"image", "document", "search_result", "container_upload", "tool_result"}
SYSTEM_ONLY = {"tool_addition", "tool_removal"}
NESTED = {"text", "image", "document", "search_result", "tool_reference", "browser_state"}
STRINGS = ("text", "id", "name", "tool_use_id", "thinking", "signature", "data", "server_name")


def blocks_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the content of a message as blocks; a string counts as its single text block."""
    content = message.get("content") or []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    blocks: list[dict[str, Any]] = content
    return blocks


def shape_faults(body: dict[str, Any]) -> Iterator[str]:
    """Yield every fault of key or type; when there is none, the body is safe to walk."""
    yield from (f"AN-25 body.{key}: unknown key" for key in body.keys() - BODY_KEYS)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        yield "AN-17 messages: at least one message is needed"
        return
    for index, message in enumerate(messages):
        yield from _message_faults(f"messages.{index}", message)
    system = body.get("system")
    if isinstance(system, list):
        for index, block in enumerate(system):
            yield from _block_faults(f"system.{index}", block, BOTH)
    elif system is not None and not isinstance(system, str):
        yield "AN-25 system: expected a string or a list of text blocks"


def _message_faults(path: str, message: Any) -> Iterator[str]:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        yield f"AN-25 {path}: expected a message with a role of {ROLES}"
        return
    role = message["role"]
    known = SYSTEM_MESSAGE_KEYS if role == "system" else MESSAGE_KEYS
    yield from (f"AN-25 {path}.{key}: unknown key" for key in message.keys() - known)
    content = message.get("content")
    if isinstance(content, str) or (content is None and message.get("output_config")):
        return
    if not isinstance(content, list):
        yield f"AN-17 {path}.content: expected a string or a list of blocks"
        return
    for at, block in enumerate(content):
        yield from _block_faults(f"{path}.content.{at}", block, _allowed(role))


def _allowed(role: str) -> set[str]:
    if role == "system":
        return BOTH | SYSTEM_ONLY
    if role == "user":
        # AN-23 names the misplaced tool change. A compaction may be the first block of a first message of the user's
        # (compaction-on-demand, "Continue from the summary").
        return BOTH | USER_ONLY | SYSTEM_ONLY | {"compaction"}
    return set(BLOCKS) - USER_ONLY - (NESTED - BOTH)


def _block_faults(path: str, block: Any, allowed: set[str]) -> Iterator[str]:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind not in allowed:
        code = "AN-2" if kind in ("tool_result", "tool_use") else "AN-25"
        yield f"{code} {path}: a block of type {kind!r} is not allowed here"
        return
    required, optional = (set(keys.split()) for keys in BLOCKS[kind])
    for key in required - block.keys():
        code = "AN-13" if kind in ("thinking", "redacted_thinking") else "AN-25"
        yield f"{code} {path}.{key}: required"
    yield from (f"AN-25 {path}.{key}: unknown key" for key in block.keys() - required - optional - {"type"})
    yield from _value_faults(path, block)


def _value_faults(path: str, block: dict[str, Any]) -> Iterator[str]:
    for key in STRINGS:
        if key in block and not isinstance(block[key], str):
            yield f"AN-25 {path}.{key}: expected a string"
    for key in ("signature", "data"):
        if block["type"] in ("thinking", "redacted_thinking") and block.get(key) == "":
            yield f"AN-13 {path}.{key}: may not be empty"
    for key in ("id", "tool_use_id"):
        if block.get(key) == "":
            yield f"AN-7 {path}.{key}: may not be empty"
    if "input" in block and not isinstance(block["input"], dict):
        yield f"AN-25 {path}.input: expected an object"
    if block["type"] in ("tool_result", "mcp_tool_result"):
        yield from _result_content_faults(path, block.get("content"))


def _result_content_faults(path: str, content: Any) -> Iterator[str]:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        yield f"AN-25 {path}.content: expected a string or a list of blocks"
        return
    for at, block in enumerate(content):
        yield from _block_faults(f"{path}.content.{at}", block, NESTED)
