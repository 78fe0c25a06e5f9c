"""Ask a summariser as a stranger is asked: again when it fails, never believed when it says nothing or too much.

What goes wrong is noted and told; where nothing comes of it, the ledger speaks alone.
"""

from __future__ import annotations

from collections.abc import Awaitable

import msgspec

from kompakt.engine.policies import Policy
from kompakt.engine.strategies import Strategy, Summarization
from kompakt.engine.summary import Material, Summarizer
from kompakt.session.coding import Coding

TRIES = 3
"""How often a summariser is asked before the ledger speaks alone."""

MAX_FAULT = 1_000
"""Characters of an error that are kept."""


class Asked:
    """A summariser with patience: asked again when it fails, never believed when it says nothing or too much."""

    def __init__(self, summarizer: Summarizer, coding: Coding) -> None:
        self._summarizer = summarizer
        self._coding = coding
        self.failures: list[str] = []

    async def __call__(self, material: Material) -> str:
        """Ask, as often as it takes and is worth; an empty text when nothing can be used."""
        for _ in range(TRIES):
            try:
                made = self._summarizer(material)
                text = self._coding.cleaned((await made if isinstance(made, Awaitable) else made).strip())
            except Exception as error:  # noqa: BLE001 — a summariser is anybody's code; the session must outlive it
                self.failures.append(self._coding.cleaned(repr(error))[:MAX_FAULT])
                continue
            fault = _fault(text, material)
            if fault is None:
                return text
            self.failures.append(fault)
        return ""


def _fault(text: str, material: Material) -> str | None:
    if not text:
        return "the summary is empty"
    if material.count(text) > material.max_tokens:
        return f"the summary has more than the {material.max_tokens} tokens it may have"
    return None


def with_summarizer(policy: Policy, asked: Asked | None) -> Policy:
    """Let the policy's summarisation ask this summariser."""
    if asked is None:
        return policy
    return msgspec.structs.replace(policy, steps=tuple(_asking(step, asked) for step in policy.steps))


def _asking(step: Strategy, asked: Asked) -> Strategy:
    if not isinstance(step, Summarization):
        return step
    return Summarization(asked, share=step.share, when=step.when, target=step.target)
