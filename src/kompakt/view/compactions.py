"""A compaction, made or planned: what was removed, why, what the pivot says about it, and whether recall returns it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence

import msgspec

from kompakt.engine.compaction.report import Report
from kompakt.engine.context.context import Action
from kompakt.engine.recall.passages import exact
from kompakt.model.json import json_text
from kompakt.model.messages import ToolResult
from kompakt.session.compaction import RESUME_SOURCE
from kompakt.view.growth import request_sizes
from kompakt.view.index import SessionIndex, clean, kind_of, title_of
from kompakt.view.sources import (
    Moment,
    PlannedCompaction,
    ShownMessage,
    ShownRequest,
    Source,
    SourceRow,
    ViewPoint,
)
from kompakt.view.status import BY_AGENT, timestamp
from kompakt.view.values import (
    KINDS,
    CompactionMark,
    CompactionPreview,
    CompactionView,
    PivotLine,
    RemovedItem,
)

MAX_REMOVED = 1_000
"""Removed items in one answer; further ones are on the next page."""

MAX_PREVIEWED = 200
"""Removed items of a preview."""

_REFERENCE = re.compile(r"(?<![\w.])(m[0-9a-f]{4,40})(?![\w])")

_MARK = re.compile(r"^\s*(?:[-*]|\d+\.|#+)\s+")
"""The mark at the start of a line."""

MIN_QUOTE = 12
"""Characters of a quote from which on it identifies its message."""

MAX_QUOTED = 5
"""Messages that one line can quote."""

MAX_LISTED = 20
"""Calls that one line can list."""

MAX_SEARCHED = 10_000
"""Newest messages before a compaction that are searched for the originals of its pivot."""

_TASK = re.compile(r"\[[ x>~-]\] ")

_COMMAND = re.compile(r"`([^`]+)`")

_TIDY = ("fitting", "repair", "floor", "admission")
"""Names of steps that are not strategies."""


async def compaction_of(
    source: Source,
    moment: Moment,
    index: SessionIndex,
    point: ViewPoint,
    mark: CompactionMark,
    hidden: int,
) -> CompactionView:
    """Return one compaction with all items that it removed; ``mark`` has its sizes, ``hidden`` as in ``StepSizes``."""
    before = await source.shown(moment, rows=point.tip, events=point.number - 1)
    own = await _summaries(source, moment, index, point)
    after = own or await source.shown(moment, rows=point.tip, events=point.number, edited=True)
    report = await source.report(moment, point)
    pivot = "\n\n".join(row.message.text for row in own.rows) if own is not None else after.pivot
    gone, shortened = _differences(before, after)
    lines = await _lines(source, moment, pivot)
    if not all(line.refs for line in lines):
        messages = await _messages_until(source, moment, point.tip)
        lines = await asyncio.to_thread(_with_originals, lines, messages, index)
    restored = await source.restored(moment, [*(one.seq for one in gone), *shortened])
    pivot_lines = _lines_by_reference(lines)
    reasons = _Reasons(point, report, has_pivot=bool(pivot))
    items = [
        *(_item(one, 0, index, pivot_lines, restored, *reasons.hidden(one)) for one in gone),
        *(_item(one, left, index, pivot_lines, restored, *reasons.changed(one)) for one, left in shortened.values()),
    ]
    items.sort(key=lambda item: item.seq)
    tokens_before = before.total if mark.before is None else mark.before
    tokens_after = after.total if mark.after is None else mark.after
    return CompactionView(
        id=point.id,
        at=timestamp(point.at) if point.at is not None else None,
        reason=point.reason,
        policy=point.policy,
        auto=point.auto,
        undone=point.undone,
        budget=report.budget or None if report is not None else None,
        tokens_before=tokens_before,
        tokens_after=tokens_after,
        by_kind_before=_by_kind(moment, before, tokens_before, hidden),
        by_kind_after=_by_kind(moment, after, tokens_after, hidden),
        strategies=_strategies(report),
        failures=point.failures,
        pivot=lines,
        pivot_tokens=sum(row.tokens for row in own.rows) if own is not None else after.pivot_tokens,
        removed=tuple(items),
        removed_count=len(items),
        removed_tokens=sum(item.tokens - item.tokens_after for item in items),
        kept=len(after.rows) - len(shortened) if own is None else 0,
        named_count=sum(bool(item.pivot_lines) for item in items),
        unrecoverable=tuple(item.ref for item in items if not item.recallable),
    )


async def _summaries(source: Source, moment: Moment, index: SessionIndex, point: ViewPoint) -> ShownRequest | None:
    """Return the summary that an agent wrote into its transcript; ``None`` for a compaction of a stored session."""
    first = index.position(point.tip + 1)
    rows: list[int] = []
    for one in index.rows[first:]:
        if one.stored != "summary" or not one.ref.startswith("m"):
            break
        rows.append(one.seq)
    if not rows:
        return None
    return await source.shown(moment, rows=rows[-1], events=point.number)


def preview_of(planned: PlannedCompaction, index: SessionIndex, *, policy: str, seconds: float) -> CompactionPreview:
    """Return what a planned compaction would do."""
    before, after = planned.before, planned.after
    gone, shortened = _differences(before, after) if planned.due else ([], {})
    why = _reasons_of(planned.actions)
    lines = [
        PivotLine(line=number, text=text, refs=tuple(_REFERENCE.findall(text)))
        for number, text in enumerate(after.pivot.split("\n"), 1)
    ]
    pivot_lines = _lines_by_reference(lines)
    strategies = tuple(name for name in planned.strategies if name not in _TIDY)
    every = sorted([*((one, 0) for one in gone), *shortened.values()], key=lambda pair: pair[0].seq)
    items: list[RemovedItem] = []
    for one, left in every[:MAX_PREVIEWED]:
        found = index.find(one.seq)
        ref = found.ref if found is not None else ""
        reason = why.get(ref, "shortened" if left else "older than what fits")
        strategy = strategies[-1] if strategies else policy
        items.append(_item(one, left, index, pivot_lines, {one.seq}, reason, strategy))
    return CompactionPreview(
        budget=planned.budget,
        policy=policy,
        due=planned.due,
        tokens_before=before.total,
        tokens_after=after.total,
        fits=planned.budget == 0 or after.total <= planned.budget,
        seconds=seconds,
        note=planned.note,
        pivot=after.pivot if planned.due else "",
        removed=tuple(items),
        removed_count=len(every),
        removed_tokens=sum(one.tokens - left for one, left in every),
        strategies=strategies,
        problems=planned.failures,
    )


def _differences(
    before: ShownRequest, after: ShownRequest
) -> tuple[list[ShownMessage], dict[int, tuple[ShownMessage, int]]]:
    """Return the messages that are gone, and by row those that are shortened, with the tokens that are left."""
    kept = {row.seq: row for row in after.rows}
    # A message in which kompakt asked the agent to continue is not part of the conversation.
    gone = [row for row in before.rows if row.seq and row.seq not in kept and row.message.source_id != RESUME_SOURCE]
    shortened = {
        row.seq: (row, kept[row.seq].tokens)
        for row in before.rows
        if row.seq in kept and kept[row.seq].tokens < row.tokens and kept[row.seq].shortened
    }
    return gone, shortened


def _item(
    one: ShownMessage,
    left: int,
    index: SessionIndex,
    pivot_lines: Mapping[str, Sequence[int]],
    restored: Collection[int],
    why: str,
    strategy: str,
) -> RemovedItem:
    found = index.find(one.seq)
    ref = found.ref if found is not None else ""
    return RemovedItem(
        seq=one.seq,
        ref=ref,
        title=found.title if found is not None else title_of(one.message),
        kind=kind_of(one.message),
        tool=found.tool if found is not None else None,
        tokens=one.tokens,
        tokens_after=left,
        why=why,
        strategy=strategy,
        pivot_lines=tuple(pivot_lines.get(ref, ())),
        recallable=one.seq in restored,
    )


async def _lines(source: Source, moment: Moment, pivot: str) -> tuple[PivotLine, ...]:
    """Divide a pivot into lines, each with the messages that it refers to."""
    if not pivot:
        return ()
    texts = pivot.split("\n")
    refs = [tuple(dict.fromkeys(_REFERENCE.findall(text))) for text in texts]
    rows = await source.named(moment, {ref for line in refs for ref in line})
    return tuple(
        PivotLine(
            line=number,
            text=text,
            refs=tuple(ref for ref in line if ref in rows),
            seqs=tuple(rows[ref] for ref in line if ref in rows),
        )
        for number, (text, line) in enumerate(zip(texts, refs, strict=True), 1)
    )


async def _messages_until(source: Source, moment: Moment, tip: int) -> list[SourceRow]:
    """Return the messages among which the originals of a pivot are, up to the row ``tip``."""
    found: list[SourceRow] = []
    async for rows in source.batches(moment, after=max(0, tip - MAX_SEARCHED)):
        found += [row for row in rows if row.seq <= tip and row.stored == "message"]
        if rows and rows[-1].seq >= tip:
            break
    return found


def _with_originals(
    lines: tuple[PivotLine, ...], messages: Sequence[SourceRow], index: SessionIndex
) -> tuple[PivotLine, ...]:
    """Add the messages that lines without a reference are about: what they quote, or the calls that they list."""
    said = [(row.seq, clean(text)) for row in messages if (text := row.message.text)]
    called = [(row.seq, " ".join(exact(call) for call in row.message.calls)) for row in messages if row.message.calls]
    found: list[PivotLine] = []
    for line in lines:
        seqs = [] if line.refs or line.text.startswith("#") else _originals(_MARK.sub("", line.text), said, called)
        named = [one for seq in seqs if (one := index.find(seq)) is not None]
        refs, rows = tuple(one.ref for one in named), tuple(one.seq for one in named)
        found.append(msgspec.structs.replace(line, refs=refs, seqs=rows) if named else line)
    return tuple(found)


def _originals(text: str, said: Sequence[tuple[int, str]], called: Sequence[tuple[int, str]]) -> list[int]:
    """Return the messages that a line is about."""
    task = _TASK.match(text)
    if task is not None:  # its state is that of the newest call about it
        return _containing([_quoted(text[task.end() :])], called)[-1:]
    pieces = [piece.strip() for piece in clean(text).split("[…]") if len(piece.strip()) >= MIN_QUOTE]
    if quoted := _containing(pieces, said):
        return quoted[:MAX_QUOTED]
    folder, colon, names = text.partition(": ")
    if colon and " " not in folder:  # files of a folder
        listed = [f"{folder}/{name}" for name in names.split(", ")]
    else:  # commands, which start with the name of a tool or program
        listed = [_quoted(one.partition(" ")[2] or one) for one in _COMMAND.findall(text)]
    first = [_containing([one], called)[:1] for one in listed if one]
    return list(dict.fromkeys(seq for seqs in first for seq in seqs))[:MAX_LISTED]


def _containing(pieces: Sequence[str], texts: Sequence[tuple[int, str]]) -> list[int]:
    return [seq for seq, text in texts if any(piece in text for piece in pieces)]


def _quoted(text: str) -> str:
    """Return a text as it is inside of JSON."""
    return json_text(text.strip())[1:-1]


def _lines_by_reference(lines: Sequence[PivotLine]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for line in lines:
        for ref in line.refs:
            found.setdefault(ref, []).append(line.line)
    return found


def _by_kind(moment: Moment, shown: ShownRequest, total: int, hidden: int) -> dict[str, int]:
    sizes = request_sizes(moment, shown, total, hidden)
    return {kind: sizes.get(kind, 0) for kind in KINDS}


def _strategies(report: Report | None) -> tuple[str, ...]:
    steps = report.steps if report is not None else ()
    return tuple(dict.fromkeys(step.strategy for step in steps if step.strategy not in _TIDY and not step.failed))


class _Reasons:
    """Why a stored compaction removed something. The store keeps its strategies, not every action of them."""

    def __init__(self, point: ViewPoint, report: Report | None, *, has_pivot: bool) -> None:
        self._names = _strategies(report)
        self._point = point
        self._has_pivot = has_pivot

    def hidden(self, one: ShownMessage) -> tuple[str, str]:
        """Return why a message is gone, and the strategy."""
        del one
        if not self._names:
            by_agent = self._point.reason == BY_AGENT
            why = f"replaced by {BY_AGENT}" if by_agent else f"replaced by the summary ({self._point.reason})"
            return why, self._point.policy
        if self._has_pivot and "Summarization" in self._names:
            return "older than what fits; replaced by the pivot", "Summarization"
        return "older than what fits", self._names[-1]

    def changed(self, one: ShownMessage) -> tuple[str, str]:
        """Return why a message is shortened, and the strategy."""
        others = [name for name in self._names if name != "Summarization"]
        is_output = any(type(part) is ToolResult for part in one.message.parts)
        why = "an old tool output, replaced by a short note" if is_output else "a long text, cut"
        return why, others[0] if others else self._point.policy


def _reasons_of(actions: Sequence[Action]) -> dict[str, str]:
    """Return the newest reason for each message."""
    return {action.reference.partition(".")[0]: f"{action.what}: {action.why}" for action in actions}
