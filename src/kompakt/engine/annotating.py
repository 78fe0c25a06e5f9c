"""Annotations of a context: written for whoever stores them, and taken over again when the history comes back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kompakt.engine.annotation import Annotation
from kompakt.model.messages import ToolResult
from kompakt.model.references import digest

if TYPE_CHECKING:
    from kompakt.engine.context import Context


def reinstate(context: Context, annotations: Sequence[Annotation]) -> None:
    """Take exclusions, pruning and pins over from annotations whose content still stands at their place."""
    for index, annotation in enumerate(annotations[: len(context.messages)]):
        if digest(context.messages[index]).hex() != annotation.content:
            continue
        group = context.group_at(index)
        group.pinned = group.pinned or annotation.pinned
        summarized = annotation.summarized_by is not None  # shown again: the summary itself is not at hand here
        if annotation.excluded is not None and not summarized and not context.is_protected(group):
            context.exclude(group, reason=annotation.excluded)
        for part in annotation.pruned:
            context.prune(index, part)


def annotate(context: Context) -> list[Annotation]:
    """Say what is known of each message."""
    return [_annotation(context, index) for index in range(len(context.messages))]


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
