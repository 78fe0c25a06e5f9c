"""What else could stand in the context at the same size: the marks to beat.

Each takes a prefix and a number of tokens and gives text. Size is measured in characters at the prefix's own rate, so
that a baseline is never penalised for a tokenizer. All are linear in the prefix, except one sort.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable

from kompakt.evals.measures.measure import Projection
from kompakt.evals.measures.needs import names
from kompakt.evals.sources.case import Case
from kompakt.evals.sources.trail import text_of

_SENTENCES = re.compile(r"(?<=[.!?])\s+|\n+")
_WORDS = re.compile(r"[A-Za-z_]\w{2,}")
_MASK = "[output hidden]"
_LONGEST_SENTENCE = 400


def tail(case: Case, tokens: int) -> str:
    """Keep the end."""
    return case.text[-_characters(case, tokens) :]


def head_and_tail(case: Case, tokens: int) -> str:
    """Keep half of the room from the beginning and half from the end."""
    half = _characters(case, tokens) // 2
    return f"{case.text[:half]}\n{case.text[-half:]}"


def masked(case: Case, tokens: int) -> str:
    """Hide every tool output, then keep the end."""
    shown = [_MASK if event.kind == "result" else event.text for event in case.trail]
    return "\n".join(shown)[-_characters(case, tokens) :]


def extractive(case: Case, tokens: int) -> str:
    """Keep the sentences whose words are rarest, in their order."""
    sentences = [one.strip()[:_LONGEST_SENTENCE] for one in _SENTENCES.split(case.text)]
    bags = [set(_WORDS.findall(sentence)) for sentence in sentences]
    spread = Counter(word for bag in bags for word in bag)
    weight = [sum(math.log(len(bags) / spread[word]) for word in bag) / (len(bag) + 4) for bag in bags]
    kept = _filled(sorted(range(len(bags)), key=lambda at: -weight[at]), sentences, _characters(case, tokens))
    return "\n".join(sentences[at] for at in sorted(kept))


def identifiers(case: Case, tokens: int) -> str:
    """List every name, the newest first, without a word."""
    listed = list(dict.fromkeys(name for event in reversed(case.trail) for name in names(event.text)))
    kept = _filled(range(len(listed)), listed, _characters(case, tokens))
    return "\n".join(listed[at] for at in kept)


BASELINES: dict[str, Callable[[Case, int], str]] = {
    "tail": tail,
    "head and tail": head_and_tail,
    "masked outputs": masked,
    "extractive": extractive,
    "bare identifiers": identifiers,
}


def projections(case: Case, tokens: int) -> Iterable[tuple[str, Projection]]:
    """Yield what each baseline shows."""
    for name, baseline in BASELINES.items():
        yield name, Projection(baseline(case, tokens))


def everything(case: Case) -> Projection:
    """Show the whole prefix: what no compaction can beat."""
    return Projection(text_of(case.trail), frozenset(event.id for event in case.trail if event.kind == "result"))


def _characters(case: Case, tokens: int) -> int:
    return max(2, int(len(case.text) * tokens / max(1, case.cut.tokens)))


def _filled(order: Iterable[int], texts: list[str], room: int) -> list[int]:
    """Take texts in an order until the room is used up."""
    kept: list[int] = []
    for at in order:
        if not texts[at]:
            continue
        room -= len(texts[at]) + 1
        if room < 0:
            break
        kept.append(at)
    return kept
