"""Conversations without tools: who said what, when, spread over the whole history.

Nothing in a chat is a task or a change; what is asked about later are events, plans, preferences and names. A sentence
is worth more the rarer its words are in this conversation, and more with a name, a number or a time in it. Every date
gets a share of the room, so that the oldest day is as present as the newest.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from kompakt.engine.ledger.events import Spoken
from kompakt.engine.ledger.excerpts import harmless
from kompakt.engine.ledger.items import SAID_GAP, TALK, Item

_DATE = re.compile(r"\s*\[([^\]\n]{0,60}\d{4}[^\]\n]{0,40})\]\s*")
_CLOCK = re.compile(
    r"^\d{1,2}[:.]\d\d(?::\d\d)?\s*(?:[ap]\.?m\.?)?\s*(?:on|,)?\s*|[T ]\d\d:\d\d(?::\d\d)?.*$", re.IGNORECASE
)
_FILLER = re.compile(
    r"^(?:(?:i (?:just )?want(?:ed)? to (?:let you know|tell you|say)(?: that)?(?! about)|"
    r"guess what|yeah|yes|well|so|and|but|oh|wow|just|also|actually|anyway|plus|hey|haha|thanks(?: for \w+)?|btw|"
    r"great news|good news)\b[ ,!:-]*)+",
    re.IGNORECASE,
)
_SPEAKER = re.compile(r"\s*([A-Z][\w' -]{0,30}):\s+")
_WORD = re.compile(r"[^\W_][\w']*")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_TIME = re.compile(
    r"\d|\b(?:yesterday|today|tonight|tomorrow|last|next|ago|weekend|week|month|year|since|mon|tues|wednes|thurs|fri|satur|sun)"
    r"(?:day)?\b",
    re.IGNORECASE,
)
_PROPER = re.compile(r"(?<!['\u2019])\b(?!I\b)[A-Z][a-z]+")
"""A capitalised word, to be searched after the beginning of a sentence."""
_PERSONAL = re.compile(r"\b(?:my|i|i'm|i've|i'd|we|we're|our|her|his|their|name)\b", re.IGNORECASE)
_QUALIFIES = re.compile(
    r"\b(?:hopefully|maybe|perhaps|probably|possibly|if|unless|not|never|no|almost|nearly|except|without)\b",
    re.IGNORECASE,
)
_NAMES = re.compile(
    r"\bname(?:'s|d| is| was)?\b|\bcalled\b|"
    r"\bmy (?:\w+ )?(?:wife|husband|son|daughter|friend|colleague|boss|mom|dad)\b",
    re.IGNORECASE,
)
_PREFERS = re.compile(r"\b(?:favou?rite|prefer|love to|hate|allergic|can't stand|never (?:eat|drink))\b", re.IGNORECASE)
_HAPPENED = re.compile(
    r"\b(?:I|we)(?:'ve| have|'m| am| had)? (?:just |recently |also |finally |even |been )*"
    r"(?:\w{2,}(?:ed|ing)|got|took|made|went|ran|bought|met|lost|won|found|gave|began|wrote|saw|built|broke|set up)\b",
    re.IGNORECASE,
)
_PLEASANTRY = re.compile(
    r"(?:wow|thanks|thank you|aww|yeah|yes|great|that's|sounds|awesome|cool|nice|glad|congrat\w*|agree\w*|hey|hi|hello|"
    r"good to|how (?:are|is|was)|sorry|good luck|well done)\b",
    re.IGNORECASE,
)
_ADVICE = re.compile(
    r"(?:don't|stay|keep|take (?:care|it|your)|let me know|let's|you (?:can|should|could|are|have|got|must)|"
    r"you're|you've|remember|enjoy|never give|hope|can't wait|looking forward|hang in)\b",
    re.IGNORECASE,
)
"""Beginning of a sentence that encourages the other one or gives advice: it tells nothing about the speaker."""
_REFERS = re.compile(
    r"(?:it|that|this|these|those|they|he|she|their|its|his|her|there)(?:'s|'re|'ve|'ll|'d)?\b(?! name)", re.IGNORECASE
)
"""Beginning of a sentence that speaks of something that an earlier one names."""

_POINTS_BACK = re.compile(r"(?:[\w']+ ){1,4}(?:it|them|this|that|these|those|there|here)\b", re.IGNORECASE)
_BEGINS = re.compile(
    r"(?:i|we|my|our|the|an?|he|she|they|it|his|her|their|there|this|that|last|next|yesterday|today|tomorrow|some|one|when|while|"
    r"after|before|since|in|on|at|for|but|and|so)\b|[A-Z\"']"
)
"""Beginning of a clause that can begin a sentence."""
_SINCE = re.compile(r"\bsince we last\b|^feels like\b", re.IGNORECASE)

REFERRING_VALUE = 0.5
"""Value of such a sentence, relative to one that stands alone."""

COMMON = 0.03
"""Share of the sentences from which a word is so common here that it says nothing."""

TELLING_WORDS = 5
"""Rarest words of a sentence that count. More would favour long sentences over short ones that say as much."""

_CLAUSE_END = re.compile(r"(?<=[,;!]) | - |- |[–—]")

SCALE = 3
"""Puts sentences on the scale of other items, where 1 is not worth a line."""

MIN_WORDS = 4

MIN_RARE = 2
"""Rare words that a sentence has at least, unless it names a person or reports an event."""

OPENER_WORDS = 3
"""Words of a clause that may be left out at the start of a sentence."""


class _Sentence:
    __slots__ = ("at", "date", "number", "speaker", "text", "words")

    def __init__(self, at: int, number: int, date: str, speaker: str, text: str) -> None:
        self.at, self.number, self.date, self.speaker, self.text = at, number, date, speaker, text
        self.words = {word.lower() for word in _WORD.findall(text)}


def items_of(events: Sequence[Spoken]) -> list[Item]:
    """Return one item for each sentence that says something, in the order in which it was said."""
    sentences = _sentences(events)
    rarities = _rarities(sentences)
    per_date = Counter(sentence.date for sentence in sentences)
    items: list[Item] = []
    spoken: dict[str, float] = {}
    ranked = sorted(((_information(one, rarities), one) for one in sentences), key=lambda pair: -pair[0])
    for information, one in ranked:
        if len(one.words) < MIN_WORDS or _is_empty(one, rarities):
            continue
        # each further sentence of a date is worth less, so that no date takes the room of the others
        taken = spoken.get(one.date, 0.0)
        spoken[one.date] = taken + 1
        share = taken / max(8.0, per_date[one.date] * 0.5)
        value = SCALE * information / (1 + share)
        text = _trimmed(one.text, rarities)
        if len(_WORD.findall(text)) < MIN_WORDS:
            continue
        text = f"{one.speaker}: {text}"
        items.append(Item(TALK, one.at + one.number / 1_000, text, value, label=one.date))
    return items


def _sentences(events: Sequence[Spoken]) -> list[_Sentence]:
    found: list[_Sentence] = []
    date = ""
    for event in events:
        text = event.text
        if dated := _DATE.match(text):
            date, text = harmless(_CLOCK.sub("", dated[1])), text[dated.end() :]
        named = _SPEAKER.match(text)
        speaker = harmless(named[1]) if named else event.role
        text = harmless(" ".join((text[named.end() :] if named else text).split()))
        for number, sentence in enumerate(_SENTENCE_END.split(text)):
            if sentence:
                found.append(_Sentence(event.at, number, date, speaker, sentence))
    return found


def _information(sentence: _Sentence, rarities: Mapping[str, float]) -> float:
    """Sum the rarity of a sentence's rarest words; questions and pleasantries count less."""
    rare = sorted([rarities[word] for word in sentence.words], reverse=True)[:TELLING_WORDS]
    value = sum(rare) / 5
    text = sentence.text
    if _PERSONAL.search(text):
        value *= 1.25
    names = _PROPER.search(text, 1) is not None
    value += 1.0 * names
    if _TIME.search(text):
        value += 0.8
    value += 1.0 * bool(_NAMES.search(text)) + 0.6 * bool(_PREFERS.search(text)) + 0.6 * bool(_HAPPENED.search(text))
    if text.endswith("?"):
        value *= 0.35
    if _PLEASANTRY.match(text):
        value *= 0.7
    if _ADVICE.match(text):
        value *= 0.35
    if _REFERS.match(text) or (not names and _POINTS_BACK.match(text)) or _SINCE.search(text):
        value *= REFERRING_VALUE
    return value


def _is_empty(sentence: _Sentence, rarities: Mapping[str, float]) -> bool:
    """Return whether a sentence has next to nothing that other sentences do not have."""
    if _NAMES.search(sentence.text) or _HAPPENED.search(sentence.text):
        return False
    return sum(rarities[word] > 0 for word in sentence.words) < MIN_RARE


def _rarities(sentences: Sequence[_Sentence]) -> dict[str, float]:
    """Return how rare each word of a conversation is; 0 for common and short ones."""
    seen = Counter(word for sentence in sentences for word in sentence.words)
    total = len(sentences)
    common = max(3.0, total * COMMON)
    return {
        word: 0.0 if len(word) < 3 or count > common else math.log((total + 1) / count) for word, count in seen.items()
    }


def _is_opener(clause: str) -> bool:
    """Return whether a clause only leads over to the next one: "in the meantime", "on another note"."""
    words = _WORD.findall(clause)
    carries = _TIME.search(clause) or _PERSONAL.search(clause) or _QUALIFIES.search(clause)
    return len(words) <= OPENER_WORDS and carries is None


def _trimmed(text: str, rarities: Mapping[str, float]) -> str:
    """Drop the clauses at either end of a sentence that have no rare word in them: greetings, fillers, feelings."""
    clauses = [clause.strip() for clause in _CLAUSE_END.split(text) if clause.strip()]
    telling = [any(rarities[word.lower()] for word in _WORD.findall(clause)) for clause in clauses]
    while len(clauses) > 1 and not telling[-1]:
        clauses.pop()
        telling.pop()
    while len(clauses) > 1 and (not telling[0] or _is_opener(clauses[0])) and _BEGINS.match(clauses[1]):
        clauses.pop(0)
        telling.pop(0)
    # a dash between clauses was removed with the split
    joined = "".join(f"{clause} " if clause[-1] in ",;!" else f"{clause}, " for clause in clauses)
    trimmed = _FILLER.sub("", joined).rstrip(",;-–. ").replace(SAID_GAP, ", ")
    return f"{trimmed[:1].upper()}{trimmed[1:]}"
