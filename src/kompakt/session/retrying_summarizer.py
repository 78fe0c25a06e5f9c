"""Summarizers of a policy, with what they say redacted before anything is stored."""

from __future__ import annotations

from collections.abc import Awaitable

import msgspec

from kompakt.engine.compaction.policies import Policy
from kompakt.engine.pivot.summarizer import Material, Summarizer
from kompakt.engine.strategies import Strategy, Summarization
from kompakt.session.row_codec import RowCodec


def with_summarizer(policy: Policy, summarizer: Summarizer | None, codec: RowCodec) -> Policy:
    """Let the summarisation steps of a policy ask this summarizer, else their own; what it says is redacted."""
    steps = tuple(_asking(step, summarizer, codec) for step in policy.steps)
    return policy if steps == policy.steps else msgspec.structs.replace(policy, steps=steps)


def _asking(step: Strategy, summarizer: Summarizer | None, codec: RowCodec) -> Strategy:
    if not isinstance(step, Summarization) or (chosen := summarizer or step.summarizer) is None:
        return step

    async def ask(material: Material) -> str:
        made = chosen(material)
        return codec.cleaned((await made if isinstance(made, Awaitable) else made).strip())

    return Summarization(ask, share=step.share, when=step.when, target=step.target)
