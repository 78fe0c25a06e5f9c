"""Which facts are told when not all of them fit: the weightiest, and of those the newest.

Facts are kept by weight, in the order of their last news, so choosing looks at about as many as there is room for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from kompakt.engine.ledger import format as lines
from kompakt.engine.ledger.events import perhaps
from kompakt.engine.ledger.extract.user_words import STRICT
from kompakt.engine.ledger.facts import Fact, joined
from kompakt.engine.ledger.path_roots import Roots

REMARKS_SHARE = 0.08
"""Largest share of the room for what the assistant told along the way."""

CALLS_SHARE = 0.06
"""Largest share of the room for calls that neither touched a file nor ran a command nor failed."""

NARRATIVE_SHARE = 0.3
"""Largest share of the room for what earlier passes told in words."""

WORDS_SHARE = 0.25
"""Largest share of the room for what the user demanded, so that a pasted document cannot take it all."""

LEAST_WORDS = 160
"""Tokens that the user's words may take in any room that has them."""

SAME_REFERENCE = 3
"""Tokens that a line saves whose reference stands in the line before."""

SAVED: dict[str, int] = {"test": 7}
"""The same where lines are joined to one."""

HEADING = 6
"""Tokens of the heading of a section."""

_WEIGHTS = 7
_MISSES = 40
"""Facts too large for what is left that are passed over before the lighter ones are tried."""

Place = tuple[str, str]


class Facts:
    """Facts by weight, joined as they come."""

    __slots__ = ("_by_weight", "_news", "_numbers", "_weights", "roots")

    def __init__(self) -> None:
        self.roots = Roots()
        self._by_weight: list[dict[Place, Fact]] = [{} for _ in range(_WEIGHTS)]
        self._weights: dict[Place, int] = {}
        self._numbers: dict[Place, int] = {}
        self._news = 0

    def __len__(self) -> int:
        return len(self._weights)

    def add(self, facts: Iterable[Fact]) -> None:
        """Join facts to what is known."""
        weights, by_weight, numbers = self._weights, self._by_weight, self._numbers
        for fact in facts:
            place = (fact.kind, fact.key)
            weight = weights.get(place)
            if weight is not None:
                fact = joined(by_weight[weight].pop(place), fact)
            elif fact.kind == "file":
                self.roots.add(fact.key)
            weight = weights[place] = weight_of(fact)
            by_weight[weight][place] = fact
            numbers[place] = self._news
            self._news += 1

    def chosen(
        self,
        room: int,
        whole: int,
        root: str,
        count: Callable[[str], int],
        is_told: Callable[[Fact], bool],
        *,
        fits: Callable[[str, int], bool] = perhaps,
        spare: int = 0,
    ) -> tuple[list[Fact], int]:
        """Take what fits into the room, in the order of its last news; return it and about what it takes.

        ``fits`` may say of a line that it has more tokens than so many, so that it need not be counted.
        ``spare`` is what names left of their room: what has only a small share may have that too.
        """
        shares = _shares(whole, spare)
        taken: list[Fact] = []
        named: set[tuple[str, str, str]] = set()
        kinds: set[str] = set()
        spent = 0
        for bucket in self._by_weight:
            misses = 0
            for fact in _in_turn(bucket):
                if misses > _MISSES or spent >= room:
                    break
                if not is_told(fact):
                    continue
                same = (fact.kind, fact.reference, fact.relation if fact.kind == "test" else "")
                saved = SAVED.get(fact.kind, SAME_REFERENCE) if same in named else 0
                frame = 1 - saved + (HEADING if fact.kind not in kinds else 0)
                kind = fact.kind if fact.reference else ""
                most = min(room - spent, shares.get(kind, room - spent)) - frame
                line = lines.line_of(fact, root)
                if not fits(line, most) or (tokens := count(line)) > most:
                    misses += 1
                    continue
                spent += frame + tokens
                named.add(same)
                kinds.add(fact.kind)
                taken.append(fact)
                if kind in shares:
                    shares[kind] -= frame + tokens
        taken.sort(key=lambda fact: self._numbers[fact.kind, fact.key])
        return taken, spent


def _shares(whole: int, spare: int) -> dict[str, int]:
    """Say how many tokens the kinds may take that could take too many; nothing stands for an earlier narrative."""
    return {
        "word": max(int(whole * WORDS_SHARE), LEAST_WORDS),
        "call": int(whole * CALLS_SHARE) + spare,
        "remark": int(whole * REMARKS_SHARE) + spare,
        "": int(whole * NARRATIVE_SHARE),
    }


def _in_turn(bucket: dict[Place, Fact]) -> Iterator[Fact]:
    """Go through facts from the newest on; of one message's words the outer ones before the inner ones.

    So a document that somebody pasted waits, line by line, until every other message has had its say.
    """
    said: dict[str, list[Fact]] = {}
    for fact in bucket.values():
        if fact.kind != "word":
            break
        said.setdefault(fact.reference, []).append(fact)
    else:
        depth = {id(fact): min(k, len(here) - 1 - k) for here in said.values() for k, fact in enumerate(here)}
        newest = list(reversed(bucket.values()))
        yield from sorted(newest, key=lambda fact: depth[id(fact)])
        return
    yield from reversed(bucket.values())


def weight_of(fact: Fact) -> int:
    """Weigh a fact by how much it would be missed; the lightest goes first."""
    if fact.kind == "word":
        return 0 if STRICT.search(fact.key) else 2
    if fact.kind in ("task", "file"):
        return 4 if fact.relation in ("done", "read") else 1
    if fact.kind == "remark":
        return 6 if fact.reference else 3
    if fact.kind == "test":
        return 4 if fact.relation == "failed" else 5
    if fact.kind == "command":
        return 5  # a line each, and as dear as three files that were read
    return 6 if fact.kind in ("question", "call") else 4
