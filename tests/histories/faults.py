"""Structural faults: small edits that turn a valid body into a broken one.

Real histories break when a list is cut, an item lost or an id rewritten, so each fault does one of these; the one
invariant is that a fault touches only the body it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

Body: TypeAlias = dict[str, Any]
Node: TypeAlias = dict[str, Any]

LIST_KEY = {"openai-responses": "input", "gemini": "contents"}
INNER_KEY = {"anthropic": "content", "gemini": "parts", "bedrock": "content"}
INNER_KINDS = {"functionCall": "call", "toolUse": "call", "functionResponse": "result", "toolResult": "result"}
RESPONSES_CALLS = (
    "function_call",
    "custom_tool_call",
    "local_shell_call",
    "shell_call",
    "computer_call",
    "mcp_approval_request",
)


class Spot(NamedTuple):
    """The position of a node: the index of its message, its list, and its index there."""

    outer: int
    home: list[Any]
    at: int

    @property
    def node(self) -> Node:
        """The node itself."""
        node: Node = self.home[self.at]
        return node


class Fault(NamedTuple):
    """A named edit, with the places of a body where it can be made."""

    name: str
    sites: Callable[[str, Body], list[Any]]
    apply: Callable[[str, Body, Any], None]


def listed(format: str, body: Body) -> list[Any]:
    """Return the list of messages, items or contents; a plain string input has none."""
    found = body[LIST_KEY.get(format, "messages")]
    return found if isinstance(found, list) else []


def _spots(format: str, body: Body) -> Iterator[Spot]:
    messages = listed(format, body)
    for outer, message in enumerate(messages):
        if format in INNER_KEY:
            inner = message[INNER_KEY[format]]
            yield from (Spot(outer, inner, at) for at in range(len(inner)) if isinstance(inner, list))
        else:
            yield Spot(outer, messages, outer)
            calls = message.get("tool_calls") or [] if format == "openai-chat" else []
            yield from (Spot(outer, calls, at) for at in range(len(calls)))


def _kind(format: str, node: Node) -> str:
    if format == "openai-chat":
        return "result" if node.get("role") == "tool" else "call" if "function" in node or "custom" in node else "other"
    if format == "anthropic":
        return {"tool_use": "call", "tool_result": "result"}.get(node["type"], "other")
    if format == "openai-responses":
        kind = node.get("type", "message")
        is_result = kind.endswith("_output") or kind == "mcp_approval_response"
        return "call" if kind in RESPONSES_CALLS else "result" if is_result else "other"
    return next((kind for key, kind in INNER_KINDS.items() if key in node), "other")


def _slot(node: Node) -> tuple[Node, str]:
    """Return the object and key of the id that pairs a call with its result."""
    for key in INNER_KINDS:
        if key in node:
            inner = node[key]
            return inner, "toolUseId" if "toolUseId" in inner else "id" if "id" in inner else "name"
    keys = ("approval_request_id", "call_id", "tool_call_id", "tool_use_id", "id")
    return node, next(key for key in keys if key in node)


def _id(spot: Spot) -> str:
    holder, key = _slot(spot.node)
    name: str = holder[key]
    return name


def _rename(spot: Spot, id_: str) -> None:
    holder, key = _slot(spot.node)
    holder[key] = id_


def calls(format: str, body: Body) -> list[Spot]:
    """Return the places of the client's tool calls."""
    return [spot for spot in _spots(format, body) if _kind(format, spot.node) == "call"]


def results(format: str, body: Body) -> list[Spot]:
    """Return the places of the tool results."""
    return [spot for spot in _spots(format, body) if _kind(format, spot.node) == "result"]


def _user(format: str, *nodes: Node) -> Node:
    if format in ("openai-chat", "openai-responses"):
        return {"role": "user", "content": "And another thing."}
    said = {"type": "text", "text": "And another thing."} if format == "anthropic" else {"text": "And another thing."}
    return {"role": "user", INNER_KEY[format]: list(nodes) or [said]}


def _indices(format: str, body: Body) -> list[int]:
    return list(range(len(listed(format, body))))


def _pop(format: str, body: Body, spot: Spot) -> None:
    spot.home.pop(spot.at)


def _duplicate(format: str, body: Body, spot: Spot) -> None:
    spot.home.insert(spot.at, deepcopy(spot.node))


def _mangle(format: str, body: Body, spot: Spot) -> None:
    _rename(spot, _id(spot)[:-1] + "Q")


def _move_away(format: str, body: Body, spot: Spot) -> None:
    node = spot.home.pop(spot.at)
    messages = listed(format, body)
    if format in INNER_KEY:
        messages.append(_user(format, node))
    else:
        messages.extend((_user(format), node))


def _interrupt(format: str, body: Body, spot: Spot) -> None:
    listed(format, body).insert(spot.outer + 1, _user(format))


def _neighbours(format: str, body: Body) -> list[Spot]:
    """Return the results that directly follow another result."""
    spots = results(format, body)
    return [b for a, b in pairwise(spots) if b.home is a.home and b.at == a.at + 1]


def _split(format: str, body: Body, spot: Spot) -> None:
    messages = listed(format, body)
    if format in INNER_KEY:
        rest = spot.home[spot.at :]
        del spot.home[spot.at :]
        messages.insert(spot.outer + 1, _user(format, *rest))
    else:
        messages.insert(spot.at, _user(format))


def _turn_around(format: str, body: Body, spot: Spot) -> None:
    spot.home[spot.at - 1], spot.home[spot.at] = spot.home[spot.at], spot.home[spot.at - 1]


def _talk_first(format: str, body: Body, spot: Spot) -> None:
    spot.home.insert(0, _user(format)[INNER_KEY[format]][0])


def _texts(format: str, body: Body) -> list[Spot]:
    return [spot for spot in _spots(format, body) if "text" in spot.node]


def _empty(format: str, body: Body, spot: Spot) -> None:
    spot.node["text"] = ""


def _cut_front(format: str, body: Body, at: int) -> None:
    del listed(format, body)[: at + 1]


def _cut_back(format: str, body: Body, at: int) -> None:
    del listed(format, body)[at + 1 :]


def _drop(format: str, body: Body, at: int) -> None:
    del listed(format, body)[at]


def _swap(format: str, body: Body, at: int) -> None:
    messages = listed(format, body)
    messages[at - 1], messages[at] = messages[at], messages[at - 1]


def _misname_role(format: str, body: Body, at: int) -> None:
    message = listed(format, body)[at]
    message |= {"role": "narrator", "type": message.get("type", "message")} if format == "openai-responses" else {}
    message["role"] = "narrator"


def _first_user(format: str, body: Body) -> list[int]:
    roles = [message.get("role") for message in listed(format, body)]
    return [roles.index("user")] if "user" in roles else []


def _pairs_of_calls(format: str, body: Body) -> list[tuple[Spot, Spot]]:
    """Return neighbouring calls; Chat pairs within one message only, so there they share it."""
    spots = calls(format, body)
    pairs = pairwise(spots)
    return [(a, b) for a, b in pairs if format != "openai-chat" or a.outer == b.outer]


def _reuse_id(format: str, body: Body, pair: tuple[Spot, Spot]) -> None:
    first, second = pair
    _rename_pair(format, body, second, _id(first))


def _rename_pair(format: str, body: Body, call: Spot, id_: str) -> None:
    old = _id(call)
    for spot in [call, *(spot for spot in results(format, body) if _id(spot) == old)]:
        _rename(spot, id_)


def _spoil_id(format: str, body: Body, spot: Spot) -> None:
    """Give a call and its result an id that is too long or, where length is free, has a blank in it."""
    _rename_pair(format, body, spot, "no blanks" if format == "anthropic" else "c" * 65)


def _strip(format: str, body: Body, holder: tuple[Node, str]) -> None:
    del holder[0][holder[1]]


def _signatures(format: str, body: Body) -> list[tuple[Node, str]]:
    found: list[tuple[Node, str]] = []
    for spot in _spots(format, body):
        holders = [spot.node, (spot.node.get("reasoningContent") or {}).get("reasoningText") or {}]
        keys = ("signature", "data", "thoughtSignature", "encrypted_content")
        found += [(holder, key) for holder in holders for key in keys if key in holder]
    return found


def _reasoning(format: str, body: Body) -> list[Spot]:
    return [spot for spot in _spots(format, body) if spot.node.get("type") == "reasoning"]


def _hosted(format: str, body: Body) -> list[Spot]:
    """Return the positions of server-side calls and results, which are inside an assistant message."""
    kinds = ("server_tool_use", "web_search_tool_result", "mcp_tool_use", "mcp_tool_result")
    keys = {"executableCode", "codeExecutionResult"}
    return [spot for spot in _spots(format, body) if spot.node.get("type") in kinds or keys & spot.node.keys()]


def _mark_all(format: str, body: Body, at: int) -> None:
    for message in listed(format, body):
        if format == "bedrock":
            message["content"] += [{"cachePoint": {"type": "default"}}] * 5
        elif isinstance(message["content"], list):
            message["content"] += [
                _user(format)["content"][0] | {"cache_control": {"type": "ephemeral"}} for _ in range(5)
            ]


def _add_unknown(format: str, body: Body, at: int) -> None:
    listed(format, body)[at]["x_unknown"] = 1


def _tool_configs(format: str, body: Body) -> list[tuple[Node, str]]:
    return [(body, "toolConfig")] if "toolConfig" in body else []


ANY = (
    Fault("drop a call", calls, _pop),
    Fault("drop a result", results, _pop),
    Fault("duplicate a result", results, _duplicate),
    Fault("mangle the id of a call", calls, _mangle),
    Fault("mangle the id of a result", results, _mangle),
    Fault("move a result away", results, _move_away),
    Fault("let a user speak between call and result", calls, _interrupt),
    Fault("split parallel results", _neighbours, _split),
    Fault("cut the front", _indices, _cut_front),
    Fault("cut the back", _indices, _cut_back),
    Fault("drop the first user message", _first_user, _drop),
    Fault("drop a message", _indices, _drop),
    Fault("swap two messages", _indices, _swap),
    Fault("misname a role", _indices, _misname_role),
)
IDS = (Fault("reuse an id", _pairs_of_calls, _reuse_id), Fault("spoil an id", calls, _spoil_id))
BLOCKS = (
    Fault("put text before the results", results, _talk_first),
    Fault("empty a text", _texts, _empty),
    Fault("strip a signature", _signatures, _strip),
    Fault("add an unknown key", _indices, _add_unknown),
    Fault("drop half of a hosted call", _hosted, _pop),
)
FAULTS: dict[str, tuple[Fault, ...]] = {
    "openai-chat": (*ANY, *IDS),
    "openai-responses": (
        *ANY,
        *IDS,
        Fault("strip a signature", _signatures, _strip),
        Fault("drop reasoning", _reasoning, _pop),
    ),
    "anthropic": (*ANY, *IDS, *BLOCKS, Fault("set too many breakpoints", _indices, _mark_all)),
    "gemini": (*ANY, *BLOCKS, Fault("turn two responses around", _neighbours, _turn_around)),
    "bedrock": (
        *ANY,
        *IDS,
        *BLOCKS,
        Fault("set too many cache points", _indices, _mark_all),
        Fault("drop toolConfig", _tool_configs, _strip),
    ),
}
