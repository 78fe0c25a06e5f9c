"""Rules of Gemini ``generateContent`` (GE-1 to GE-9) and the repair of histories that break them.

Problems are found in the wire form. Repair works on the parsed messages, so valid contents are not touched. Roles
alternate (GE-7). A prompt is never merged into the function responses before it, because it marks the start of the
current turn (GE-6). So repair puts a short content of the model between the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from kompakt.model.groups import PartPlace, pair
from kompakt.model.messages import (
    History,
    Json,
    JsonObject,
    Message,
    Opaque,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from kompakt.wire.fields import input_object
from kompakt.wire.gemini.contents import (
    CODE,
    CONTRACT,
    KEYS,
    ROLES,
    SIGNATURES,
    build_part,
    hosted_key,
    kind_of,
    output_of,
    signature_of,
)
from kompakt.wire.pair_repair import PairCodes, PairRules
from kompakt.wire.two_sided import SideCodes, Sides, TwoSidedRepair, raw_of
from kompakt.wire.wire import Change, Problem

SENTINEL = "skip_thought_signature_validator"
"""The documented placeholder for a missing signature (GE-4); the Gemini API and Vertex AI accept it.

https://ai.google.dev/gemini-api/docs/thought-signatures
"""

_HOSTED_CALLS = (CODE, "toolCall")
_HOSTED_RESULTS = ("codeExecutionResult", "toolResponse")

_EXTRAS = frozenset(
    [
        *SIGNATURES,
        "thought",
        "videoMetadata",
        "video_metadata",
        "mediaResolution",
        "media_resolution",
        "partMetadata",
        "part_metadata",
    ]
)
"""Fields of a part beside its data."""

_FIELDS = {
    "functionCall": frozenset(["id", "name", "args", "partialArgs", "partial_args", "willContinue", "will_continue"]),
    "functionResponse": frozenset(["id", "name", "response", "parts", "willContinue", "will_continue", "scheduling"]),
}


def needs_signatures(model: str | None) -> bool:
    """Return whether a model requires signed calls: Gemini 3, except its image models (GE-4)."""
    name = (model or "").rpartition("/")[2]
    return name.startswith("gemini-3") and "image" not in name


# --- problems ----------------------------------------------------------------------------------------------------


class _Turn(NamedTuple):
    """A content as the rules see it; ``side`` is empty for an unknown role."""

    side: str
    kinds: list[tuple[str, JsonObject]]
    """The kind and the data of each part; the data of text and unknown kinds is empty."""
    calls: list[JsonObject]
    responses: list[JsonObject]


def problems(items: Sequence[Json], body: JsonObject | None, *, strict: bool = False) -> list[Problem]:
    """List every place where Gemini would reject these contents, rule by rule."""
    if not items:
        return [Problem("GE-7", "contents", "there is no content; a request needs at least one", False)]
    turns = [_read_turn(raw) for raw in items]
    found = [problem for i, raw in enumerate(items) for problem in _content_problems(raw, i, turns[i], len(items))]
    found += _order_problems(turns)
    for i, turn in enumerate(turns):
        if turn.calls or turn.responses:
            found += _pair_problems(turns, i)
        found += _hosted_problems(turn, i)
    model = (body or {}).get("model")
    if type(model) is str and needs_signatures(model):
        found += _signature_problems(items, turns)
    if strict:
        found += [problem for i, raw in enumerate(items) for problem in _replay_problems(raw, i)]
    return found


def _read_turn(raw: JsonObject) -> _Turn:
    role = ROLES.get(raw.get("role") or "user")
    if role is None:
        return _Turn("", [], [], [])
    kinds: list[tuple[str, JsonObject]] = []
    for part in raw.get("parts") or ():
        kind, key = kind_of(part)
        value = part.get(key)
        kinds.append((kind, value if type(value) is dict else {}))
    calls = [value for kind, value in kinds if kind == "functionCall"]
    responses = [value for kind, value in kinds if kind == "functionResponse"]
    return _Turn("model" if role == "assistant" else "user", kinds, calls, responses)


def _content_problems(raw: JsonObject, i: int, turn: _Turn, count: int) -> Iterator[Problem]:
    path = f"contents[{i}]"
    role = raw.get("role")
    if not turn.side:
        yield Problem("GE-7", f"{path}.role", f"unknown role {role!r}; use user or model", False)
        return
    if role not in ("user", "model") and (role or count > 1):
        yield Problem("GE-7", f"{path}.role", f"the role must be user or model, not {role!r}")
    parts = raw.get("parts")
    if not parts:
        yield Problem("GE-7", f"{path}.parts", "a content needs at least one part")
        return
    for j, ((kind, value), part) in enumerate(zip(turn.kinds, parts, strict=True)):
        where = f"{path}.parts[{j}]"
        if part == {} or (kind == "text" and part["text"] == "" and not signature_of(part)):
            yield Problem("GE-7", where, "an empty part")
        elif kind == "functionCall":
            yield from _call_problems(value, where, turn.side, signed=bool(signature_of(part)))
        elif kind == "functionResponse":
            if turn.side == "model":
                yield Problem("GE-2", where, "a function response in a content of the model; it belongs to the user")
            if type(value.get("response")) is not dict:
                yield Problem("GE-8", f"{where}.{kind}.response", "the response of a function must be an object")
        elif kind in _HOSTED_CALLS + _HOSTED_RESULTS and turn.side == "user":
            yield Problem("GE-1", where, f"{kind} in a user content; it belongs to the model")


def _call_problems(call: JsonObject, where: str, side: str, *, signed: bool) -> Iterator[Problem]:
    if side == "user":
        yield Problem("GE-1", where, "a function call in a user content; it belongs to the model")
    if not call.get("name"):
        yield Problem("GE-8", f"{where}.functionCall.name", "a function call needs the name of the function", False)
    if call.get("args") is not None and type(call["args"]) is not dict:
        message = "the arguments must be an object" + (", and a signed part must not be changed" if signed else "")
        yield Problem("GE-8", f"{where}.functionCall.args", message, not signed)


def _order_problems(turns: Sequence[_Turn]) -> Iterator[Problem]:
    if turns[0].side == "model":
        code = "GE-1" if turns[0].calls else "GE-7"
        yield Problem(code, "contents[0].role", "the first content must be the user's")
    for i, (earlier, later) in enumerate(pairwise(turns), start=1):
        if earlier.side == later.side != "":
            code = "GE-1" if later.calls else "GE-7"
            yield Problem(code, f"contents[{i}].role", f"two {later.side} contents in a row; the roles must alternate")
    if turns[-1].side == "model":
        yield Problem("GE-7", f"contents[{len(turns) - 1}].role", "the last content must be the user's")


def _pair_problems(turns: Sequence[_Turn], i: int) -> Iterator[Problem]:
    turn = turns[i]
    if turn.side == "model" and turn.calls:
        follows = turns[i + 1].responses if i + 1 < len(turns) and turns[i + 1].side == "user" else []
        if len(follows) != len(turn.calls):
            message = f"{len(turn.calls)} function calls, but {len(follows)} responses in the next content"
            yield Problem("GE-3", f"contents[{i}]", message)
        elif [_label(call) for call in turn.calls] != [_label(response) for response in follows]:
            message = "the responses must have the names and ids of the calls before them, in the same order"
            yield Problem("GE-8", f"contents[{i + 1}]", message)
    if turn.side != "user" or not turn.responses:
        return
    if i == 0 or turns[i - 1].side != "model" or not turns[i - 1].calls:
        yield Problem("GE-2", f"contents[{i}]", "no function call directly precedes this function response")
    if any(kind != "functionResponse" for kind, _ in turn.kinds[: len(turn.responses)]):
        yield Problem("GE-8", f"contents[{i}]", "function responses must precede all other parts")


def _label(value: JsonObject) -> tuple[str, str]:
    return value.get("id") or "", value.get("name") or ""


def _hosted_problems(turn: _Turn, i: int) -> Iterator[Problem]:
    """Find calls that Gemini ran itself and that have no result, and such results without their call."""
    waiting: dict[str, list[int]] = {}
    for j, (kind, value) in enumerate(turn.kinds):
        if kind in _HOSTED_CALLS:
            waiting.setdefault(hosted_key(kind, value), []).append(j)
        elif kind in _HOSTED_RESULTS:
            calls = waiting.get(hosted_key(kind, value))
            if calls:
                calls.pop(0)
            else:
                yield Problem("GE-2", f"contents[{i}].parts[{j}]", f"{kind} without its call")
    for j in sorted(j for calls in waiting.values() for j in calls):
        yield Problem("GE-3", f"contents[{i}].parts[{j}]", f"{turn.kinds[j][0]} without its result")


def _signature_problems(items: Sequence[Json], turns: Sequence[_Turn]) -> Iterator[Problem]:
    prompts = (i for i, turn in enumerate(turns) if turn.side == "user" and len(turn.kinds) > len(turn.responses))
    for i in range(max(prompts, default=-1) + 1, len(turns)):
        if turns[i].side != "model" or not turns[i].calls:
            continue
        j = next(j for j, (kind, _) in enumerate(turns[i].kinds) if kind == "functionCall")
        if not signature_of(items[i]["parts"][j]):
            message = "the first function call of each step in the current turn needs its thoughtSignature"
            yield Problem("GE-4", f"contents[{i}].parts[{j}]", message)


def _replay_problems(raw: JsonObject, i: int) -> Iterator[Problem]:
    """Find what a replayed history should not contain, although Gemini accepts most of it."""
    if (raw.get("role") or "user") not in ROLES:
        return
    for key in raw:
        if key not in ("role", "parts"):
            yield Problem("GE-9", f"contents[{i}].{key}", "a content has no such field")
    for j, part in enumerate(raw.get("parts") or ()):
        path = f"contents[{i}].parts[{j}]"
        if part.get("thought") is True and kind_of(part)[0] == "text":
            yield Problem("GE-9", path, "a thought of the model is sent back")
        elif _known_fields(part) != part:
            signed = bool(signature_of(part))
            yield Problem("GE-9", path, "a part with fields that Gemini does not know", not signed)


def _known_fields(part: JsonObject) -> JsonObject:
    """Return a part without unknown fields; a part of unknown kind is returned unchanged."""
    kind, key = kind_of(part)
    if not kind:
        return part
    known = {name: value for name, value in part.items() if name in KEYS or name in _EXTRAS}
    if kind in _FIELDS:
        known[key] = {name: value for name, value in part[key].items() if name in _FIELDS[kind]}
    return known


# --- repair ------------------------------------------------------------------------------------------------------


def repair(history: History, *, strict: bool = False) -> tuple[list[Message], list[Change]]:
    """Repair the messages of a history and list the changes."""
    work = TwoSidedRepair(history, _SIDES)
    messages: list[Message] = []
    for i, message in enumerate(history):
        messages += _repair_content(message, i, history, work, strict)
    messages = work.merged(messages, ["assistant"], results_apart=True)
    messages = work.paired(work.without_unpaired_hosted(message) for message in messages)
    messages = work.merged(_align_responses(messages, work), ["assistant", "user"], results_apart=True)
    if history.messages:
        messages = work.with_user_ends(messages, last=True)
    if needs_signatures(history.model):
        messages = _add_signatures(messages, work)
    return messages, work.changes


def _repair_content(
    message: Message, i: int, history: History, work: TwoSidedRepair, strict: bool
) -> Iterator[Message]:
    """Repair one content by itself; yield it, its pieces, or nothing."""
    if work.is_foreign(message):
        yield message
        return

    def repair_part(part: Part, path: str) -> Part | None:
        part = _repair_data(part, path, work)
        if strict:
            part = _strip_unknown_fields(part, path, work)
        return None if _drops(part, path, work, strict) else part

    path = f"contents[{i}]"
    message = _repair_fields(message, path, work, alone=len(history) == 1, strict=strict)
    yield from work.repaired(message, path, repair_part, empty_code="GE-7")


def _repair_fields(message: Message, path: str, work: TwoSidedRepair, *, alone: bool, strict: bool) -> Message:
    if message.role == "system":
        message = msgspec.structs.replace(message, role="user")
    if type(message.raw) is not dict:
        return message
    raw: JsonObject = message.raw
    role = raw.get("role")
    if role not in ("user", "model") and (role or not alone):
        name = "model" if message.role == "assistant" else "user"
        work.report("GE-7", "replaced", f"{path}.role", f"the role is now {name!r}")
        raw = {**raw, "role": name}
    unknown = [key for key in raw if key not in ("role", "parts")] if strict else []
    if unknown:
        work.report("GE-9", "stripped", path, f"unknown fields {', '.join(unknown)}")
        raw = {key: value for key, value in raw.items() if key not in unknown}
    return message if raw is message.raw else msgspec.structs.replace(message, raw=raw)


def _drops(part: Part, path: str, work: TwoSidedRepair, strict: bool) -> bool:
    """Return whether a part is empty or must not be sent back, and report it."""
    if isinstance(part, Text | Reasoning) and not part.text and not (part.raw and signature_of(part.raw)):
        work.report("GE-7", "dropped", path, "an empty text")
    elif type(part) is Opaque and part.raw == {}:
        work.report("GE-7", "dropped", path, "an empty part")
    elif type(part) is Reasoning and strict:
        work.report("GE-9", "stripped", path, "a thought of the model")
    else:
        return False
    return True


def _repair_data(part: Part, path: str, work: TwoSidedRepair) -> Part:
    """Make arguments and responses objects, except in a signed part."""
    if type(part) is ToolCall and part.raw is not None and not part.hosted:
        if part.input is None or type(part.input) is dict or signature_of(part.raw):
            return part
        work.report("GE-8", "replaced", path, "the arguments are now an object")
        return msgspec.structs.replace(part, input=input_object(part.input), edited=True)
    if type(part) is ToolResult and part.raw is not None and not part.hosted:
        _, key = kind_of(part.raw)
        response = part.raw[key].get("response")
        if type(response) is dict:
            return part
        work.report("GE-8", "replaced", path, "the response is now an object")
        given = {} if response is None else {"output": output_of(response)}
        return msgspec.structs.replace(part, raw={**part.raw, key: {**part.raw[key], "response": given}})
    return part


def _strip_unknown_fields(part: Part, path: str, work: TwoSidedRepair) -> Part:
    """Strip fields that Gemini does not know, except from a signed part."""
    raw = raw_of(part)
    if type(raw) is not dict or type(part) in (Reasoning, Opaque) or signature_of(raw):
        return part
    known = _known_fields(raw)
    if known == raw:
        return part
    work.report("GE-9", "stripped", path, "fields that Gemini does not know")
    return msgspec.structs.replace(part, raw=known)


def _align_responses(messages: Sequence[Message], work: TwoSidedRepair) -> list[Message]:
    """Give responses the order, the names and the ids of their calls (GE-8)."""
    out = list(messages)
    answers = pair(messages).answers
    for i, message in enumerate(messages):
        places = [answers[PartPlace(i, j)] for j in range(len(message.parts)) if PartPlace(i, j) in answers]
        places = [place for place in places if place.message == i + 1]
        if not places:
            continue
        calls = [part for part in message.calls if not part.hosted]
        held = messages[i + 1].parts
        results = [_labelled_as(held[place.part], call) for place, call in zip(places, calls, strict=True)]
        parts = (*results, *[part for part in held if type(part) is not ToolResult])
        if any(one is not other for one, other in zip(parts, held, strict=True)):
            work.report("GE-8", "replaced", held[0], "the responses now match their calls one by one")
            out[i + 1] = messages[i + 1].with_parts(parts)
    return out


def _labelled_as(result: Part, call: ToolCall) -> Part:
    """Return a response with the name and id of its call, or without an id where the call has none."""
    if type(result) is not ToolResult or result.raw is None or call.raw is None:
        return result
    value: JsonObject = result.raw[kind_of(result.raw)[1]]
    called: JsonObject = call.raw[kind_of(call.raw)[1]]
    if _label(value) == _label(called):
        return result
    bare = {key: held for key, held in value.items() if key not in ("id", "name")}
    named = {key: called[key] for key in ("id", "name") if called.get(key)}
    raw = {**result.raw, kind_of(result.raw)[1]: {**named, **bare}}
    return msgspec.structs.replace(result, raw=raw, name=call.name, call_id=call.id)


def _add_signatures(messages: Sequence[Message], work: TwoSidedRepair) -> list[Message]:
    """Add the sentinel where the current turn misses a signature (GE-4)."""
    out = list(messages)
    prompts = (i for i, message in enumerate(out) if _is_prompt(message, work))
    for i in range(max(prompts, default=-1) + 1, len(out)):
        first = next((part for part in out[i].calls if not part.hosted), None)
        if first is None or (first.raw is not None and not first.edited and signature_of(first.raw)):
            continue
        wire = build_part(first) or {}
        key = SIGNATURES["function_call" in wire]
        signed = msgspec.structs.replace(first, raw={**wire, key: SENTINEL}, edited=False)
        work.report("GE-4", "added", first, "the documented placeholder for a missing signature")
        out[i] = out[i].with_parts(signed if part is first else part for part in out[i].parts)
    return out


def _is_prompt(message: Message, work: TwoSidedRepair) -> bool:
    ordinary = any(type(part) is not ToolResult for part in message.parts)
    return message.role == "user" and ordinary and not work.is_foreign(message)


def _answer(call: ToolCall, text: str) -> ToolResult:
    """Close a call with an error, in the spelling and with the id of the call."""
    _, key = kind_of(call.raw or {})
    called: JsonObject = call.raw[key] if key else {"id": "" if call.id == call.name else call.id, "name": call.name}
    named = {name: called[name] for name in ("id", "name") if called.get(name)}
    response = {**named, "response": {"error": text}}
    wire = {"function_response" if key == "function_call" else "functionResponse": response}
    return ToolResult(call.id, text, call.name, is_error=True, raw=wire)


_SIDES = Sides(
    items="contents",
    parts="parts",
    roles={**ROLES, "": "user"},
    names={"assistant": "model", "user": "user", "system": "user"},
    codes=SideCodes(call="GE-1", result="GE-2", open_call="GE-3", stray_result="GE-2"),
    order_code=lambda message: "GE-1" if message.calls else "GE-7",
    pairs=PairRules(
        contract=CONTRACT,
        codes=PairCodes(
            open_call="GE-3",
            orphan_result="GE-2",
            duplicate_result="GE-3",
            misplaced_result="GE-2",
            bad_id="GE-8",
            reused_id="GE-8",
        ),
        result_role="user",
        answer=_answer,
    ),
)
