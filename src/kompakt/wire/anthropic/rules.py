"""Rules of Anthropic Messages (AN-1 to AN-27), as far as a request body shows them.

Some rules cannot be checked in a single body: AN-11, AN-14 and AN-15 compare thinking with what the API sent before
(the contract of the engine covers them), AN-16 causes no error, and of AN-27 only signed compaction blocks are visible.
AN-20 is not a problem: the API combines adjacent messages of one role.

Errors and their texts: https://docs.claude.com/en/api/errors
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from kompakt.model.messages import Json, JsonObject
from kompakt.wire.anthropic.messages import CONTRACT, HOSTED_CALLS, MAX_BREAKPOINTS, ROLES
from kompakt.wire.fields import enables_thinking
from kompakt.wire.wire import Problem

Report: TypeAlias = Callable[[Problem], None]

MAX_MEDIA = 600
"""Images and documents in one request (AN-26); 100 for models with a window of 200,000 tokens."""

ID = re.compile(CONTRACT.ids.pattern)

BLOCK_KEYS: dict[str, frozenset[str]] = {
    kind: frozenset({"type", *keys.split()})
    for kind, keys in {
        "text": "text citations cache_control",
        "image": "source transformations cache_control",
        "document": "source title context citations cache_control",
        "thinking": "thinking signature",
        "redacted_thinking": "data",
        "tool_use": "id name input caller toolset_name cache_control",
        "tool_result": "tool_use_id content is_error toolset_name cache_control",
        "server_tool_use": "id name input caller cache_control",
        "mcp_tool_use": "id name input server_name cache_control",
        "mcp_tool_result": "tool_use_id content is_error cache_control",
        "web_search_tool_result": "tool_use_id content caller cache_control",
        "web_fetch_tool_result": "tool_use_id content caller cache_control",
        "code_execution_tool_result": "tool_use_id content cache_control",
        "bash_code_execution_tool_result": "tool_use_id content cache_control",
        "text_editor_code_execution_tool_result": "tool_use_id content cache_control",
        "tool_search_tool_result": "tool_use_id content cache_control",
        "advisor_tool_result": "tool_use_id content cache_control",
        "search_result": "source title content citations cache_control",
        "container_upload": "file_id cache_control",
        "compaction": "content encrypted_content signature tool_changes cache_control",
    }.items()
}
"""Known keys of each block type (anthropic SDK 2.8.0, beta included); other block types are not checked."""

TOOL_CHANGES = ("tool_addition", "tool_removal")

THINKING = ("thinking", "redacted_thinking")

CALLS = frozenset({"tool_use"}) | HOSTED_CALLS

MESSAGE_KEYS = frozenset({"role", "content"})


def problems(items: Sequence[Json], body: JsonObject | None, *, strict: bool = False) -> list[Problem]:
    """List every place where Anthropic would reject these messages."""
    del strict  # the rules of the API are already the strict ones
    found: list[Problem] = []
    report = found.append
    model = (body or {}).get("model")
    seen: set[str] = set()
    for i, raw in enumerate(items):
        if is_foreign(raw):
            report(Problem("AN-22", f"messages[{i}].role", f"unknown role {raw['role']!r}", False))
            continue
        blocks = blocks_of(raw)
        if raw.keys() - MESSAGE_KEYS:
            report(_extra(f"messages[{i}]", raw.keys() - MESSAGE_KEYS))
        why = system_fault(items[i - 1] if i else None, raw, items[i + 1] if i + 1 < len(items) else None, model)
        if why:
            report(Problem("AN-22", f"messages[{i}].role", why))
        _check_blocks(blocks, i, raw["role"], report)
        _check_empty(raw, blocks, i, report)
        _check_ids(blocks, i, seen, report)
    _check_pairs(items, report)
    _check_hosted(items, body, report)
    _check_ends(items, body, report)
    _check_body(items, body, report)
    return found


def is_foreign(raw: JsonObject) -> bool:
    """Return whether the role of a message is unknown; its content is then not checked."""
    return raw["role"] not in ROLES


def blocks_of(raw: JsonObject) -> list[JsonObject]:
    """Return the content of a message as blocks; a string is one text block, an empty string none."""
    content = raw.get("content")
    if is_foreign(raw):
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content or []


def _extra(path: str, keys: Any) -> Problem:
    names = ", ".join(sorted(map(repr, keys)))
    return Problem("AN-25", path, f"unknown fields {names}")


def _check_blocks(blocks: list[JsonObject], i: int, role: str, report: Report) -> None:
    for j, block in enumerate(blocks):
        path = f"messages[{i}].content[{j}]"
        kind = str(block.get("type"))
        known = BLOCK_KEYS.get(kind)
        extra = block.keys() - known if known is not None else frozenset[str]()
        if kind in THINKING and "cache_control" in extra:
            report(Problem("AN-24", path, "a thinking block cannot be a cache breakpoint"))
            extra = extra - {"cache_control"}
        if extra:
            report(_extra(path, extra))
        if kind in CALLS and role != "assistant":
            report(Problem("AN-1", path, f"a {kind} block in a {role} message; it belongs to the assistant"))
        if kind in CALLS and not isinstance(block.get("input"), dict):
            report(Problem("AN-25", f"{path}.input", "the input of a call must be an object"))
        if kind in THINKING and role != "assistant":
            report(Problem("AN-13", path, f"a {kind} block in a {role} message; it belongs to the assistant"))
        if kind == "thinking" and not block.get("signature"):
            report(Problem("AN-13", path, "a thinking block without its signature"))
        if kind == "redacted_thinking" and not block.get("data"):
            report(Problem("AN-13", path, "a redacted thinking block without its data"))
        if kind in TOOL_CHANGES and role != "system":
            report(Problem("AN-23", path, f"a {kind} block must be in a system message"))


def _check_empty(raw: JsonObject, blocks: list[JsonObject], i: int, report: Report) -> None:
    """Check AN-17 as probed: no empty text, no message of white space; an empty assistant message is accepted."""
    path = f"messages[{i}].content"
    for j, block in enumerate(blocks):
        if block.get("type") == "text" and not block.get("text"):
            report(Problem("AN-17", f"{path}[{j}]", "an empty text block"))
    if blocks and all(block.get("type") == "text" and not str(block.get("text")).strip() for block in blocks):
        if any(block.get("text") for block in blocks):
            report(Problem("AN-17", path, "only white space"))
    if not blocks and (raw["role"] != "assistant" or raw.get("content") is None):
        report(Problem("AN-17", path, f"a {raw['role']} message without content"))


def _check_ids(blocks: list[JsonObject], i: int, seen: set[str], report: Report) -> None:
    for j, block in enumerate(blocks):
        if block.get("type") not in CALLS:
            continue
        path = f"messages[{i}].content[{j}].id"
        name = block.get("id") or ""
        if not is_legal(name):
            report(Problem("AN-7", path, f"id {name!r} may only have letters, digits, _ and -"))
        if name in seen:
            report(Problem("AN-6", path, f"an earlier call has the same id {name!r}"))
        seen.add(name)


def is_legal(call_id: str) -> bool:
    """Return whether a call may have this id."""
    return bool(ID.fullmatch(call_id))


# --- pairs -------------------------------------------------------------------------------------------------------


def _check_pairs(items: Sequence[Json], report: Report) -> None:
    calls: dict[str, JsonObject] = {}
    for i, raw in enumerate(items):
        blocks = blocks_of(raw)
        results = [(j, block) for j, block in enumerate(blocks) if block.get("type") == "tool_result"]
        answered = {str(block.get("tool_use_id")) for _, block in results}
        for name in calls.keys() - answered:
            later = _answered_later(items, i, name)
            code = "AN-4" if later else "AN-1"
            why = "has its tool_result in a later message, not in the next one" if later else "has no tool_result"
            report(Problem(code, f"messages[{i - 1}]", f"call {name!r} {why}"))
        _check_results(results, i, calls, raw["role"], report)
        calls = {str(b.get("id")): b for b in blocks if b.get("type") == "tool_use" and raw["role"] == "assistant"}
    for name in calls:
        report(Problem("AN-1", f"messages[{len(items) - 1}]", f"call {name!r} has no tool_result"))


def _answered_later(items: Sequence[Json], i: int, name: str) -> bool:
    """Return whether the result of a call comes later, before the next assistant message."""
    for raw in items[i:]:
        if raw["role"] == "assistant":
            return False
        if any(block.get("tool_use_id") == name for block in blocks_of(raw)):
            return True
    return False


def _check_results(
    results: list[tuple[int, JsonObject]], i: int, calls: dict[str, JsonObject], role: str, report: Report
) -> None:
    seen: set[str] = set()
    for position, (j, block) in enumerate(results):
        path = f"messages[{i}].content[{j}]"
        name = str(block.get("tool_use_id"))
        if name not in calls or role != "user":
            report(Problem("AN-2", path, f"the message before has no tool_use {name!r}"))
        elif name in seen:
            report(Problem("AN-5", path, f"call {name!r} has two results"))
        elif j != position:
            report(Problem("AN-3", path, "tool_result blocks must precede all other content"))
        seen.add(name)
        _check_toolset(calls.get(name), block, path, report)


def _check_toolset(call: JsonObject | None, block: JsonObject, path: str, report: Report) -> None:
    toolset = (call or {}).get("toolset_name")
    if toolset is not None and block.get("toolset_name") != toolset:
        report(Problem("AN-10", path, f"the result of a call of toolset {toolset!r} needs its toolset_name"))


def _check_hosted(items: Sequence[Json], body: JsonObject | None, report: Report) -> None:
    """Check calls that the provider runs itself: each needs its result, and each result its call before it."""
    last = max((i for i, raw in enumerate(items) if raw["role"] == "assistant"), default=-1)
    waiting: dict[str, tuple[int, int, str]] = {}
    names: dict[str, JsonObject] = {}
    for i, j, block in _each_block(items):
        kind = str(block.get("type"))
        if kind in HOSTED_CALLS:
            waiting[str(block.get("id"))] = (i, j, str(block.get("name")))
            names[str(block.get("id"))] = block
        elif kind.endswith("_tool_result"):
            call_id = str(block.get("tool_use_id"))
            if not fits_call(kind, names.get(call_id)):
                path = f"messages[{i}].content[{j}]"
                report(Problem("AN-9", path, f"a server tool result without its call {call_id!r} before it"))
            else:
                waiting.pop(call_id, None)
    for call_id, (i, j, name) in waiting.items():
        if i != last or not _may_stay_open(items, last) or not offers(body, name):
            report(Problem("AN-8", f"messages[{i}].content[{j}]", f"server call {call_id!r} has no result"))


def fits_call(kind: str, call: JsonObject | None) -> bool:
    """Return whether a server result of this type answers that server call."""
    if call is None:
        return False
    if call.get("type") == "mcp_tool_use":
        return kind == "mcp_tool_result"
    name = str(call.get("name"))
    return kind in (f"{name}_tool_result", f"{name.rpartition('_')[0]}_result")


def offers(body: JsonObject | None, name: str) -> bool:
    """Return whether a request offers a server tool; assumed for a list of messages without a body."""
    if body is None or "mcp_servers" in body:
        return True
    return any(isinstance(tool, dict) and tool.get("name") == name for tool in body.get("tools") or ())


def _may_stay_open(items: Sequence[Json], last: int) -> bool:
    """Return whether server calls of the newest answer may be open: only tool results follow it."""
    after = [block for raw in items[last + 1 :] for block in blocks_of(raw)]
    return all(block.get("type") == "tool_result" for block in after)


def _each_block(items: Sequence[Json]) -> Iterator[tuple[int, int, JsonObject]]:
    for i, raw in enumerate(items):
        for j, block in enumerate(blocks_of(raw)):
            yield i, j, block


# --- both ends and the body --------------------------------------------------------------------------------------


def takes_prefill(model: object) -> bool:
    """Return whether a model continues an assistant message at the end (AN-19: not from Claude 4.6 on)."""
    number = version(model) if isinstance(model, str) else None
    return number is None or number < (4, 6)


def takes_system(model: object) -> bool:
    """Return whether a model accepts system messages between others (AN-22); assumed for unknown models."""
    number = version(model) if isinstance(model, str) else None
    if number is None or not isinstance(model, str):
        return True
    return (number >= (5, 0) and "sonnet" not in model and "haiku" not in model) or (
        number >= (4, 8) and "opus" in model
    )


def version(model: str) -> tuple[int, int] | None:
    """Return the version in the name of a Claude model, before or after the family name."""
    found = re.search(r"claude-(?:[a-z]+-)?(\d{1,9})(?:[-.](\d{1,2}))?(?!\d)", model)
    return (int(found[1]), int(found[2] or 0)) if found else None


def system_fault(before: JsonObject | None, raw: JsonObject, after: JsonObject | None, model: object) -> str | None:
    """Return why a system message is not allowed in its place; ``None`` if it is, or for any other message."""
    if raw["role"] != "system":
        return None
    if not takes_system(model):
        return f"{model} accepts no system message between others"
    if before is None or (before["role"] != "user" and not _ends_hosted(before)):
        return "a system message must follow a user message"
    if after is not None and after["role"] != "assistant":
        return "a system message must precede an assistant message or be last"
    return None


def _ends_hosted(raw: JsonObject) -> bool:
    blocks = blocks_of(raw)
    return raw["role"] == "assistant" and bool(blocks) and str(blocks[-1].get("type")).endswith("_tool_result")


def _check_ends(items: Sequence[Json], body: JsonObject | None, report: Report) -> None:
    if not items:
        report(Problem("AN-17", "messages", "there is no message; a request needs at least one", False))
        return
    first = blocks_of(items[0])
    compacted = bool(first) and first[0].get("type") == "compaction"
    if items[0]["role"] == "assistant" and not compacted:
        report(Problem("AN-21", "messages[0].role", "the first message must be the user's"))
    _check_compactions(items, report)
    if items[-1]["role"] != "assistant":
        return
    path = f"messages[{len(items) - 1}]"
    last = blocks_of(items[-1])
    if not takes_prefill((body or {}).get("model")) and not pauses(last):
        report(Problem("AN-19", path, "this model requires a user message at the end"))
    elif last and last[-1].get("type") == "text" and str(last[-1].get("text")) != str(last[-1].get("text")).rstrip():
        report(Problem("AN-18", path, "the last assistant message ends in white space"))


def _check_compactions(items: Sequence[Json], report: Report) -> None:
    """Check that a signed compaction block, which replaces all before it, is the first and only one."""
    for number, (i, j, _) in enumerate(_signed_compactions(items)):
        if (i, j, number) != (0, 0, 0):
            message = "a signed compaction block must be the first block and the only one"
            report(Problem("AN-27", f"messages[{i}].content[{j}]", message, False))


def _signed_compactions(items: Sequence[Json]) -> Iterator[tuple[int, int, JsonObject]]:
    return ((i, j, b) for i, j, b in _each_block(items) if b.get("type") == "compaction" and b.get("signature"))


def pauses(blocks: Sequence[JsonObject]) -> bool:
    """Return whether an answer paused while a server tool runs; such an answer is sent back unchanged as the last."""
    done = {str(block.get("tool_use_id")) for block in blocks}
    return any(block.get("type") in HOSTED_CALLS and str(block.get("id")) not in done for block in blocks)


def _check_body(items: Sequence[Json], body: JsonObject | None, report: Report) -> None:
    marks = [path for path, block in breakpoints(items, body) if block.get("type") not in THINKING]
    if len(marks) > MAX_BREAKPOINTS:
        report(Problem("AN-24", marks[-1], f"{len(marks)} cache breakpoints; the limit is {MAX_BREAKPOINTS}"))
    if len(items) > (CONTRACT.max_messages or 0):
        report(Problem("AN-26", "messages", f"{len(items)} messages; the limit is {CONTRACT.max_messages}", False))
    media = sum(block.get("type") in ("image", "document") for _, _, block in _each_block(items))
    if media > MAX_MEDIA:
        report(Problem("AN-26", "messages", f"{media} images and documents; the limit is {MAX_MEDIA}", False))
    if body is None:
        return
    _check_tool_changes(items, body, report)
    system = body.get("system")
    if isinstance(system, str) and system and not system.strip():
        report(Problem("AN-17", "system", "only white space"))
    if isinstance(system, list):
        for j, block in enumerate(system):
            if block.get("type") == "text" and not str(block.get("text") or "").strip():
                report(Problem("AN-17", f"system[{j}]", "an empty text block"))
    if not starts_thinking(items, body):
        message = "with extended thinking the newest answer must start with its thinking block"
        report(Problem("AN-12", f"messages[{_newest_answer(items)}]", message))


def _check_tool_changes(items: Sequence[Json], body: JsonObject, report: Report) -> None:
    declared: list[object] = [tool.get("name") for tool in body.get("tools") or ()]
    for i, j, block in _each_block(items):
        tool = block.get("tool") if block.get("type") in TOOL_CHANGES else None
        if isinstance(tool, dict) and (tool.get("name") or tool.get("tool_name")) not in declared:
            report(Problem("AN-23", f"messages[{i}].content[{j}]", "the named tool is not declared in tools", False))


def breakpoints(items: Sequence[Json], body: JsonObject | None) -> list[tuple[str, JsonObject]]:
    """List every cache breakpoint in prompt order: tools, system, messages, the automatic one."""
    found: list[tuple[str, JsonObject]] = []
    for key in ("tools", "system"):
        entries = (body or {}).get(key)
        if isinstance(entries, list):
            found += [(f"{key}[{j}]", entry) for j, entry in enumerate(entries) if entry.get("cache_control")]
    for i, j, block in _each_block(items):
        path = f"messages[{i}].content[{j}]"
        inner = block.get("content")
        if str(block.get("type")).endswith("tool_result") and isinstance(inner, list):
            marked = [(f"{path}.content[{k}]", b) for k, b in enumerate(inner) if isinstance(b, dict)]
            found += [(where, b) for where, b in marked if b.get("cache_control")]
        if block.get("cache_control"):
            found.append((path, block))
    if (body or {}).get("cache_control"):
        found.append(("cache_control", body or {}))
    return found


def _newest_answer(items: Sequence[Json]) -> int:
    """Return the index of the first assistant message of the open turn; -1 when the user wrote last."""
    start = -1
    for i in range(len(items) - 1, -1, -1):
        if items[i]["role"] == "assistant":
            start = i
        elif items[i]["role"] != "system" and not _has_result(items[i]):
            break
    return start


def _has_result(item: JsonObject) -> bool:
    return any(block.get("type") == "tool_result" for block in blocks_of(item))


def starts_thinking(items: Sequence[Json], body: JsonObject) -> bool:
    """Return whether extended thinking, if enabled, finds its thinking block (AN-12)."""
    if not enables_thinking(body):
        return True
    blocks = blocks_of(items[_newest_answer(items)]) if items and _newest_answer(items) >= 0 else []
    return not blocks or blocks[0].get("type") in ("thinking", "redacted_thinking")
