"""What the next request consists of: a tree of group, tool and message, the largest messages, and repeated content."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kompakt.model.budget import Budget
from kompakt.model.messages import JsonObject
from kompakt.view.growth import Sizes
from kompakt.view.index import IndexedMessage, SessionIndex, clean, is_path, kind_of
from kompakt.view.sources import Moment, ShownMessage, ShownRequest
from kompakt.view.values import KINDS, ContentKind, ContextNode, ContextView, MessageRow, RepeatedContent

MAX_LEAVES = 100
"""Messages of one node that are shown one by one; the smaller ones are combined."""

MAX_LARGEST = 20
MAX_REPEATED = 20

MIN_REPEATED = 40
"""Tokens from which on repeated content is worth a line."""

_NAMES: dict[ContentKind, str] = {
    "system": "System prompt",
    "tools": "Tool definitions",
    "user": "User",
    "assistant": "Assistant",
    "tool_results": "Tool results",
    "ledger": "Summary",
}


def largest_in(shown: ShownRequest) -> list[int]:
    """Return the numbers of the largest messages of a request, the largest first."""
    return [one.seq for one in sorted(shown.rows, key=lambda one: (-one.tokens, one.seq))[:MAX_LARGEST]]


def context_of(
    moment: Moment,
    index: SessionIndex,
    shown: ShownRequest,
    sizes: Sizes,
    budget: Budget | None,
    largest: Sequence[MessageRow],
) -> ContextView:
    """Return the composition of the next request; ``largest`` are the rows of ``largest_in``."""
    total = sum(sizes.values())
    groups: list[ContextNode] = []
    for kind in KINDS:
        size = sizes.get(kind, 0)
        if size:
            groups.append(_group(kind, size, _leaves(kind, moment, index, shown)))
    window = budget.window if budget is not None else None
    reserve = budget.reserve if budget is not None else 0
    return ContextView(
        total=total,
        window=window,
        reserve=reserve,
        free=None if window is None else max(0, window - reserve - total),
        tokens={kind: sizes.get(kind, 0) for kind in KINDS},
        tree=ContextNode(name="Request", kind="system", tokens=total, children=tuple(groups)),
        largest=tuple(largest),
        repeated=_repeated(index, shown.rows),
    )


def _group(kind: ContentKind, size: int, leaves: Sequence[ContextNode]) -> ContextNode:
    """Return the node of a group. What its leaves do not explain is a leaf of its own."""
    rest = size - sum(leaf.tokens for leaf in leaves)
    if rest > 0 and leaves:
        names: dict[ContentKind, str] = {"system": "Not in the recording", "ledger": "Pins and notes"}
        leaves = [*leaves, ContextNode(name=names.get(kind, "Framing"), kind=kind, tokens=rest)]
    return ContextNode(name=_NAMES[kind], kind=kind, tokens=size, children=tuple(leaves))


def _leaves(kind: ContentKind, moment: Moment, index: SessionIndex, shown: ShownRequest) -> list[ContextNode]:
    own = [one for one in shown.rows if kind_of(one.message) == kind]
    if kind == "tools":
        return _limited(kind, [_definition(tool, moment) for tool in moment.envelope.tools])
    if kind == "tool_results":
        tools: dict[str, list[ShownMessage]] = {}
        for one in own:
            found = index.find(one.seq)
            tools.setdefault((found.tool if found is not None else None) or "unknown", []).append(one)
        nodes = [
            ContextNode(
                name=name,
                kind=kind,
                tokens=sum(one.tokens for one in messages),
                count=len(messages),
                children=tuple(_limited(kind, _messages(kind, messages, index))),
            )
            for name, messages in tools.items()
        ]
        return sorted(nodes, key=lambda node: -node.tokens)
    leaves = list(_messages(kind, own, index))
    if kind == "system":
        leaves += [
            ContextNode(name=clean(message.text)[:120], kind=kind, tokens=moment.counter.message(message))
            for message in moment.envelope.system
        ]
    if kind == "ledger" and shown.pivot:
        summary = moment.now.point.summary if moment.now.point is not None else None
        leaves.append(ContextNode(name="Pivot", kind=kind, tokens=shown.pivot_tokens, seq=summary or None))
    return _limited(kind, leaves)


def _definition(tool: JsonObject, moment: Moment) -> ContextNode:
    inner = tool.get("function") if isinstance(tool.get("function"), dict) else tool
    name = inner.get("name") if isinstance(inner, dict) else None
    tokens = moment.counter.scaled(moment.counter.value(tool))
    return ContextNode(name=clean(str(name or tool.get("type") or "tool")), kind="tools", tokens=tokens)


def _messages(kind: ContentKind, messages: Iterable[ShownMessage], index: SessionIndex) -> Iterable[ContextNode]:
    for one in messages:
        found = index.find(one.seq)
        yield ContextNode(
            name=_label(found) if found is not None else "",
            kind=kind,
            tokens=one.tokens,
            seq=one.seq,
            ref=found.ref if found is not None else None,
        )


def _label(one: IndexedMessage) -> str:
    """Return a name for a small box: the name of a file without its folders, else the title."""
    return one.subject.rstrip("/").rpartition("/")[2] if is_path(one.subject) else one.subject or one.title


def _limited(kind: ContentKind, nodes: Iterable[ContextNode]) -> list[ContextNode]:
    """Sort nodes by size, and combine the smallest of many."""
    ordered = sorted(nodes, key=lambda node: -node.tokens)
    if len(ordered) <= MAX_LEAVES:
        return ordered
    rest = ordered[MAX_LEAVES - 1 :]
    combined = ContextNode(
        name=f"{len(rest):,} smaller ones", kind=kind, tokens=sum(node.tokens for node in rest), count=len(rest)
    )
    return [*ordered[: MAX_LEAVES - 1], combined]


def _repeated(index: SessionIndex, rows: Sequence[ShownMessage]) -> tuple[RepeatedContent, ...]:
    """Find the same content in several messages of a request."""
    found: dict[bytes, list[IndexedMessage]] = {}
    for row in rows:
        one = index.find(row.seq) if not row.shortened and row.tokens >= MIN_REPEATED else None
        if one is not None and one.content:
            found.setdefault(one.content, []).append(one)
    repeated = [
        RepeatedContent(
            title=same[0].title,
            count=len(same),
            tokens=sum(one.tokens for one in same[1:]),
            seqs=tuple(one.seq for one in same),
        )
        for same in found.values()
        if len(same) > 1
    ]
    return tuple(sorted(repeated, key=lambda one: -one.tokens)[:MAX_REPEATED])
