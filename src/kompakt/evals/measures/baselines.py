"""Baselines: other ways to fill the same number of tokens.

Each takes a case and a token count and returns text. Sizes are measured in characters, at the rate of the prefix, so
that the tokenizer does not affect a baseline.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable

from kompakt.evals.case import EvalCase
from kompakt.evals.history_events import text_of
from kompakt.evals.measures.needs import names
from kompakt.evals.measures.score import ShownText

_SENTENCES = re.compile(r"(?<=[.!?])\s+|\n+")
_WORDS = re.compile(r"[A-Za-z_]\w{2,}")
_MASK = "[output hidden]"
_LONGEST_SENTENCE = 400


def tail(case: EvalCase, tokens: int) -> str:
    return case.text[-_characters(case, tokens) :]


def head_and_tail(case: EvalCase, tokens: int) -> str:
    half = _characters(case, tokens) // 2
    return f"{case.text[:half]}\n{case.text[-half:]}"


def masked(case: EvalCase, tokens: int) -> str:
    """Hide every tool output, then keep the end."""
    shown = [_MASK if event.kind == "result" else event.text for event in case.events]
    return "\n".join(shown)[-_characters(case, tokens) :]


def extractive(case: EvalCase, tokens: int) -> str:
    """Keep the sentences with the rarest words, in order."""
    sentences = [one.strip()[:_LONGEST_SENTENCE] for one in _SENTENCES.split(case.text)]
    bags = [set(_WORDS.findall(sentence)) for sentence in sentences]
    spread = Counter(word for bag in bags for word in bag)
    weight = [sum(math.log(len(bags) / spread[word]) for word in bag) / (len(bag) + 4) for bag in bags]
    kept = _fill(sorted(range(len(bags)), key=lambda at: -weight[at]), sentences, _characters(case, tokens))
    return "\n".join(sentences[at] for at in sorted(kept))


def identifiers(case: EvalCase, tokens: int) -> str:
    """List every identifier, newest first, without context."""
    listed = list(dict.fromkeys(name for event in reversed(case.events) for name in names(event.text)))
    kept = _fill(range(len(listed)), listed, _characters(case, tokens))
    return "\n".join(listed[at] for at in kept)


BASELINES: dict[str, Callable[[EvalCase, int], str]] = {
    "tail": tail,
    "head and tail": head_and_tail,
    "masked outputs": masked,
    "extractive": extractive,
    "bare identifiers": identifiers,
}


def projections(case: EvalCase, tokens: int) -> Iterable[tuple[str, ShownText]]:
    for name, baseline in BASELINES.items():
        yield name, ShownText(baseline(case, tokens))


def everything(case: EvalCase) -> ShownText:
    """Show the whole prefix: the upper bound."""
    return ShownText(text_of(case.events), frozenset(event.id for event in case.events if event.kind == "result"))


def _characters(case: EvalCase, tokens: int) -> int:
    return max(2, int(len(case.text) * tokens / max(1, case.cut.tokens)))


def _fill(order: Iterable[int], texts: list[str], room: int) -> list[int]:
    """Take texts in order until the room is used up."""
    kept: list[int] = []
    for at in order:
        if not texts[at]:
            continue
        room -= len(texts[at]) + 1
        if room < 0:
            break
        kept.append(at)
    return kept
