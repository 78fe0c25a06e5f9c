"""Annotations of a context: written for a store, and applied again when the history is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from kompakt.engine.pivot.pivot import FOLDED, pivot_text
from kompakt.model.messages import ToolResult
from kompakt.model.phrases import unseal
from kompakt.model.references import digest

if TYPE_CHECKING:
    from kompakt.engine.context.context import Context


class Annotation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one message in a context; serialisable as JSON."""

    group: int
    tokens: int
    counter: str
    """The name of the counter that counted."""
    content: str
    """A hash of the content that was counted."""
    excluded: str | None = None
    """Why the message is not shown to the model."""
    pruned: tuple[int, ...] = ()
    """Parts whose output is hidden."""
    pinned: bool = False
    summarized_by: str | None = None
    """The name of the summary that replaces this message."""
    summary: str | None = None
    """The text of that summary, at the last message it replaces, so that links can be followed both ways."""
    source_id: str | None = None


class Action(msgspec.Struct, frozen=True):
    """One thing done to one message or part, for the report."""

    reference: str
    what: str
    """excluded, included, pruned, restored, shortened, summarized, stripped, pinned."""
    why: str
    tokens: int
    """Tokens it saved; negative when it brought some back."""


def reinstate(context: Context, annotations: Sequence[Annotation]) -> None:
    """Take exclusions, summary, pruning and pins over from annotations whose content is still at its place.

    A summary comes back only when everything it stands for is unchanged; else its messages are shown again.
    """
    known = annotations[: len(context.messages)]
    fresh = [digest(context.messages[index]).hex() == one.content for index, one in enumerate(known)]
    folded: list[str] = []
    for index, annotation in enumerate(known):
        if not fresh[index]:
            continue
        group = context.group_at(index)
        group.pinned = group.pinned or annotation.pinned
        summarized = annotation.summarized_by is not None
        if annotation.excluded is not None and not summarized and not context.is_protected(group):
            context.exclude(group, reason=annotation.excluded)
            text = unseal(context.messages[index].text, context.seal_key) if annotation.excluded == FOLDED else None
            if text is not None:
                folded.append(text)
        for part in annotation.pruned:
            context.prune(index, part)
    context.inherited = "\n".join(folded) or context.inherited
    if all(fresh):
        _restore_summary(context, known)
    if context.is_rewritten:
        context.stripped_to = len(known)
        context.visibility.touch()


def _restore_summary(context: Context, annotations: Sequence[Annotation]) -> None:
    """Restore the summary of the groups that it replaced."""
    text = next((one.summary for one in annotations if one.summary is not None), None)
    if text is None:
        return
    marked = [context.group_at(index) for index, one in enumerate(annotations) if one.summarized_by is not None]
    groups = [group for group in dict.fromkeys(marked) if not context.is_protected(group)]
    reason = next((one.excluded for one in annotations if one.summarized_by is not None and one.excluded), "summarized")
    context.replace(groups, text, reason=reason)


def annotate(context: Context) -> list[Annotation]:
    """Say what is known of each message."""
    found = [_annotation(context, index) for index in range(len(context.messages))]
    summary = context.summary_text
    if summary is not None and found:
        last = max(0, min(summary.covers_to, len(found) - 1))
        found[last] = msgspec.structs.replace(found[last], summary=pivot_text(context))
    return found


def _annotation(context: Context, index: int) -> Annotation:
    group, message = context.group_at(index), context.messages[index]
    parts = enumerate(context.shown(index).parts)
    return Annotation(
        group=group.number,
        tokens=context.counter.message(message),
        counter=context.counter.name,
        content=digest(message).hex(),
        excluded=group.excluded,
        pruned=tuple(j for j, part in parts if type(part) is ToolResult and part.pruned_at is not None),
        pinned=group.pinned,
        summarized_by=None if group.summarized_by is None else f"s{group.summarized_by}",
        source_id=message.source_id,
    )
