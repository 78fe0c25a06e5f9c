"""Search: rank the passages of an index for a query.

BM25 with additions for conversations and tool runs. Exact names of the query count several times. A term also counts,
with less weight, for adjacent short passages, because an answer rarely repeats its question. Frequent terms of the best
passages then rank the passages that match the query (pseudo relevance feedback); they find no further ones. Turns of a
named speaker and passages with a time rank higher when the query asks for them, and so do the user's demands when it
asks for rules; outputs of older runs of a command rank lower. Cost: the postings of the terms.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping

from kompakt.engine.recall.index import Index
from kompakt.engine.recall.terms import asked, asks_for_rules, asks_when, exact_names, tally, terms

SATURATION = 1.6
"""BM25's k1: how quickly further occurrences of a term stop counting."""

LENGTH_SHARE = 0.75
"""BM25's b: how much the length of a passage lowers its score."""

SPREAD = ((1, 0.5), (-1, 0.5), (2, 0.25), (-2, 0.25))
"""Share of a term's score that short passages at a distance get."""

WINDOW = 5
"""Passages on either side whose mean score is added to a short passage."""

STRETCH_WEIGHT = 1.0
SPEAKER_WEIGHT = 0.4
DATE_WEIGHT = 3.0
TIME_WEIGHT = 0.2
QUESTION_LOSS = 0.1
"""Share by which the score of a question is reduced, because its answer is wanted."""

NAME_WEIGHT = 4.0
"""Weight of an exact name in the query, such as a file name, relative to an ordinary word. Passages that contain the
name itself rank above those that contain its pieces."""

NAMELESS_SHARE = 0.4
"""Share of the best score from which a passage is found that lacks every exact name of the query. Weaker ones share
only ordinary words with it, like the pages of 59 other berths with a query for "berth C14".
"""

OLDER_RUN = 0.6
"""Factor for the output of a command that ran again later, because the latest output is usually wanted."""

MEANING_WEIGHT = 16.0
"""Score of a full similarity of meaning: about as much as two rare words."""

RULE_WEIGHT = 16.0
"""Score of a demand of the user when the query asks for rules: as much as a full similarity of meaning."""

MIN_LIKENESS = 0.4
"""Similarity from which a turn is found that shares no word with the query."""

MEANING_SPREAD = 0.5
"""Share of the similarity that the next turn gets."""

MAX_TERMS = 40
"""Most terms of a query that are searched for, the rarest first. This bounds queries that are pasted pages."""

FEEDBACK_UP_TO = 12
"""Terms of the longest query to which feedback is added. A longer query is specific enough."""

FEEDBACK_PASSAGES = 8
FEEDBACK_TERMS = 25
FEEDBACK_WEIGHT = 0.3
"""Weight of a term from the best passages that is not in the query."""


def search(index: Index, query: str) -> list[tuple[int, float]]:
    """Return the places of matching passages with their scores, best first; ties are in the order of the history."""
    asked_terms = tally(query)
    if not len(index) or not asked_terms:
        return []
    rarest = sorted(asked_terms, key=lambda term: (len(index.postings.get(term, ())), term))
    weights = dict.fromkeys(rarest[:MAX_TERMS], 1.0)
    names = [term for term in exact_names(query) if term in weights]
    weights.update((term, NAME_WEIGHT) for term in names)
    scores = _matched(index, weights)
    speakers = index.speakers_in(asked_terms)
    _add_dates(index, query, scores)
    leading = _lifted(index, scores, speakers)
    more = _feedback(index, leading, weights, speakers) if len(asked_terms) <= FEEDBACK_UP_TO else {}
    if more:
        scores = [own and own + other for own, other in zip(scores, _matched(index, more), strict=True)]
    _add_meaning(index, query, scores)
    if asks_for_rules(query):
        scores = [score + RULE_WEIGHT * demands for score, demands in zip(scores, index.demands, strict=True)]
    scores = _lifted(index, scores, speakers)
    if asks_when(query):
        scores = [
            score * (1 + TIME_WEIGHT) if timed else score for score, timed in zip(scores, index.timed, strict=True)
        ]
    scores = [
        score * (1 - QUESTION_LOSS) if asks else score for score, asks in zip(scores, index.questions, strict=True)
    ]
    scores = [
        score * OLDER_RUN if score and index.is_superseded(place) else score for place, score in enumerate(scores)
    ]
    named = {posting >> 8 for name in names for posting in index.postings.get(name, ())}
    least = NAMELESS_SHARE * max(scores) if named else 0.0
    found = [place for place, score in enumerate(scores) if score > 0 and (score >= least or place in named)]
    return [(place, scores[place]) for place in sorted(found, key=lambda place: (-scores[place], place))]


def _matched(index: Index, weights: Mapping[str, float]) -> list[float]:
    """Score all passages for weighted terms, including matches in their neighbours."""
    size = len(index)
    scores, own = [0.0] * size, [0.0] * size
    mean = max(1.0, sum(index.lengths) / size)
    norms = [SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * length / mean) for length in index.lengths]
    for term, weight in weights.items():
        postings = index.postings.get(term)
        if postings is None:
            continue
        factor = weight * (SATURATION + 1) * math.log(1 + (size - len(postings) + 0.5) / (len(postings) + 0.5))
        found: dict[int, float] = {}
        for posting in postings:
            place, count = posting >> 8, posting & 255
            found[place] = factor * count / (count + norms[place])
        _spread(found, index.short, own)
        for place, score in found.items():
            scores[place] += score
    return _with_stretches(scores, own, index.short)


def _spread(found: dict[int, float], short: list[bool], own: list[float]) -> None:
    """Add a share of each score to short neighbours; a passage gets the highest share offered to it."""
    size, get = len(short), found.get
    turns = [(place, score) for place, score in found.items() if short[place]]
    for place, score in turns:
        own[place] += score
    for distance, share in SPREAD:
        for place, score in turns:
            near = place + distance
            if 0 <= near < size and short[near] and share * score > get(near, 0.0):
                found[near] = share * score


def _with_stretches(scores: list[float], own: list[float], short: list[bool]) -> list[float]:
    """Add to each short passage the mean score of the passages around it."""
    size, width = len(own), 2 * WINDOW + 1
    running = [0.0]
    total = 0.0
    for score in own:
        total += score
        running.append(total)
    return [
        score + STRETCH_WEIGHT * (running[min(size, i + WINDOW + 1)] - running[max(0, i - WINDOW)]) / width
        if short[i]
        else score
        for i, score in enumerate(scores)
    ]


def _add_dates(index: Index, query: str, scores: list[float]) -> None:
    """Raise the score of passages from a date in the query."""
    dates = asked(query)
    if not dates:
        return
    for place, stamped in enumerate(index.dates):
        if stamped:
            scores[place] += DATE_WEIGHT * len(dates & stamped)


def _add_meaning(index: Index, query: str, scores: list[float]) -> None:
    """Raise the score of turns similar to the query, and of the turns after them."""
    if index.meaning is None:
        return
    near = index.meaning.likeness(query, without=index.names)
    before, last = 0.0, -1
    for place, likeness in zip(index.meaning.places, near, strict=False):
        spread = MEANING_SPREAD * before if place == last + 1 else 0.0
        if scores[place] > 0 or likeness > MIN_LIKENESS:
            scores[place] += MEANING_WEIGHT * max(likeness, spread)
        before, last = likeness, place


def _lifted(index: Index, scores: list[float], speakers: set[str]) -> list[float]:
    """Raise the score of the speaker in the query, if there is exactly one."""
    if len(speakers) != 1:
        return scores
    (speaker,) = speakers
    factor = 1 + SPEAKER_WEIGHT
    return [score * factor if name == speaker else score for score, name in zip(scores, index.speakers, strict=True)]


def _feedback(index: Index, scores: list[float], known: Mapping[str, float], speakers: set[str]) -> dict[str, float]:
    """Return terms that the best passages share with few others, weighted."""
    best = heapq.nsmallest(FEEDBACK_PASSAGES, range(len(scores)), key=lambda place: (-scores[place], place))
    best = [place for place in best if scores[place] > 0]
    if not best:
        return {}
    top = scores[best[0]]
    names = {term for name in speakers for term in terms(name)}
    size = len(index)
    gained: dict[str, float] = {}
    for place in best:
        for term in tally(index.text(place)):
            if term not in known and term not in names:
                rarity = math.log(1 + size / len(index.postings[term]))
                gained[term] = gained.get(term, 0.0) + scores[place] / top * rarity
    chosen = sorted(gained.items(), key=lambda item: (-item[1], item[0]))[:FEEDBACK_TERMS]
    return {term: FEEDBACK_WEIGHT * gain / chosen[0][1] for term, gain in chosen}
