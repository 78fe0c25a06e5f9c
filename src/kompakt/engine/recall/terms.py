"""Terms: the normalized words of prose and code that search compares.

A word is lower-cased and reduced to its stem. An identifier or a path counts as a whole and as its pieces, so that both
``parse_row`` and "row" find it. The terms of a word are computed once per process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_STOP = (
    "a about above after again all also am an and any are as at be because been before being below between both "
    "but by can could did do does doing down during each few for from further get got had has have having he her "
    "here hers him his how i if in into is it its itself just me more most my no nor not now of off on once only "
    "or other our out over own s same she should so some such t than that the their them then there these they "
    "this those through to too under until up us very was we were what when where which while who whom why will "
    "with would you your yours d ll m re ve don didn doesn isn wasn"
)

STOP = frozenset(_STOP.split(" "))
"""Words that are too common to be searched for."""

_IRREGULAR = (
    "went:go gone:go bought:buy made:make took:take taken:take ran:run won:win gave:give given:give met:meet "
    "wrote:write written:write taught:teach began:begin begun:begin felt:feel thought:think children:child "
    "feet:foot saw:see seen:see came:come became:become knew:know known:know grew:grow grown:grow threw:throw "
    "thrown:throw flew:fly flown:fly drew:draw drawn:draw drove:drive driven:drive rode:ride ridden:ride "
    "rose:rise risen:rise chose:choose chosen:choose broke:break broken:break spoke:speak spoken:speak "
    "stole:steal stolen:steal woke:wake woken:wake wore:wear worn:wear tore:tear torn:tear swore:swear "
    "sworn:swear sang:sing sung:sing swam:swim swum:swim drank:drink drunk:drink sank:sink sunk:sink rang:ring "
    "rung:ring kept:keep slept:sleep left:leave lost:lose built:build sent:send spent:spend lent:lend bent:bend "
    "held:hold told:tell sold:sell found:find bound:bind wound:wind stood:stand understood:understand "
    "brought:bring caught:catch fought:fight sought:seek paid:pay said:say laid:lay heard:hear led:lead fed:feed "
    "ate:eat eaten:eat fell:fall fallen:fall forgot:forget forgotten:forget hid:hide hidden:hide bit:bite "
    "bitten:bite sat:sit hung:hang stuck:stick struck:strike dug:dig shot:shoot lit:light slid:slide meant:mean "
    "dealt:deal dreamt:dream learnt:learn burnt:burn lain:lie women:woman men:man people:person mice:mouse "
    "teeth:tooth wives:wife lives:life knives:knife leaves:leaf"
)

IRREGULAR = {form: word for form, _, word in (pair.partition(":") for pair in _IRREGULAR.split(" "))}
"""Past forms and plurals, and the word they belong to."""


_WORD = re.compile(r"\w+(?:[-./\\:@]{1,3}\w+)*")
_PIECE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
_POSITION = re.compile(r"(?::\d{1,7}){1,2}\Z")
_FOLDER = re.compile(r"[/\\]+")
_SEPARATOR = re.compile(r"[-./\\:@]+")
_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")

_MAX_WHOLE = 80
"""Longest word that is a term as a whole. Longer ones are usually encoded data."""

_MAX_PIECES = 24
"""Most pieces of one word that are terms, for the same reason."""

_MIN_ROOT = 3
"""Shortest substring, in characters, that a scan searches for."""

_MAX_KNOWN = 200_000
"""Words in the cache of terms, which is cleared when it is full. About 40 MB."""

_ENDINGS = (
    ("ational", "ate"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ously", "ous"),
    ("ly", ""),
    ("ment", ""),
    ("ness", ""),
    ("ful", ""),
    ("tion", "t"),
    ("er", ""),
    ("or", ""),
)
_VOWEL = re.compile("[aeiouy]")


def stem(word: str) -> str:
    """Remove the most common English endings from a lower-case word, so that its forms share one stem."""
    word = IRREGULAR.get(word, word)
    if len(word) < 4 or not word.isascii() or not word.isalpha():
        return word
    word = _without_verb_ending(_singular(word))
    for ending, instead in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            word = word[: -len(ending)] + instead
            break
    if len(word) > 4 and word[-1] == "e":
        word = word[:-1]
    return word[:-1] + "i" if len(word) > 3 and word[-1] == "y" else word


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith("sses"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def _without_verb_ending(word: str) -> str:
    for ending in ("ingly", "edly", "ing", "ed"):
        rest = word[: -len(ending)]
        if word.endswith(ending) and len(rest) >= 3 and _VOWEL.search(rest):
            doubled = len(rest) > 3 and rest[-1] == rest[-2] and rest[-1] not in "lsz"
            return rest[:-1] if doubled else rest
    return word


class _Known(dict[str, tuple[str, ...]]):
    """A cache of the terms of each word."""

    def __missing__(self, word: str) -> tuple[str, ...]:
        if len(self) >= _MAX_KNOWN:
            self.clear()
        found = self[word] = tuple(dict.fromkeys(_terms_of(word)))
        return found


def _terms_of(word: str) -> Iterable[str]:
    """Return the terms of one word: its pieces, the word as a whole and the names inside it."""
    if word.isascii() and word.isalpha() and (word.islower() or word.istitle()):
        lower = word.lower()
        return () if lower in STOP else (stem(lower),)
    if not word.isascii() and _IDEOGRAPH.search(word):
        return [word[i : i + 2] for i in range(max(1, min(len(word) - 1, _MAX_WHOLE)))]
    pieces = _PIECE.findall(word)
    terms = [stem(piece) for piece in (piece.lower() for piece in pieces[:_MAX_PIECES]) if piece not in STOP]
    if len(pieces) > 1 and len(word) <= _MAX_WHOLE:
        terms += names_in(word)
    return terms


def names_in(word: str) -> list[str]:
    """Return the exact names that a path or identifier contains: itself, its file name, identifiers between dots.

    A query for a bare file name or a method then matches the full path or the qualified name by one rare term.
    """
    path = _POSITION.sub("", word)
    names = [word, path, _FOLDER.split(path)[-1]]
    names += [name for name in _SEPARATOR.split(path) if len(_PIECE.findall(name)) > 1]
    return [stem(name.lower().replace("-", "")) for name in names]


def exact_names(query: str) -> list[str]:
    """Return the terms of a query that are exact names: paths, file names, identifiers, numbers with letters."""
    found: list[str] = []
    for word in _WORD.findall(query):
        is_plain = word.isascii() and word.isalpha() and (word.islower() or word.istitle() or word.isupper())
        if not is_plain and len(word) <= _MAX_WHOLE and len(_PIECE.findall(word)) > 1:
            found.append(stem(_POSITION.sub("", word).lower().replace("-", "")))
    return found


def roots(query: str) -> list[str]:
    """Return lower-case substrings, one or two per word, such that a text that matches a word contains one of them."""
    found: list[str] = []
    for word in _WORD.findall(query):
        lower = word.lower()
        if lower in STOP:
            continue
        found.append(lower)
        for term in _known[word]:
            root = term.rstrip("i") if len(term) > 3 else term
            if len(root) >= _MIN_ROOT:
                found.append(root)
    return list(dict.fromkeys(found))


_known = _Known()


def terms(text: str) -> list[str]:
    """Return the terms of a text in order, with repetitions."""
    known = _known
    return [term for word in _WORD.findall(text) for term in known[word]]


def tally(text: str) -> dict[str, int]:
    """Count the terms of a text."""
    counts: dict[str, int] = {}
    for term in terms(text):
        counts[term] = counts.get(term, 0) + 1
    return counts


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(?P<month>Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\b\.?"
)
_YEAR = r"(?P<year>(?:19|20)\d\d)\b"
_WRITTEN = (
    re.compile(rf"\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? {_MONTH},? ?(?:{_YEAR})?"),
    re.compile(rf"\b{_MONTH} (?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b(?:,? {_YEAR})?"),
    re.compile(rf"\b{_MONTH},? (?:of )?{_YEAR}"),
    re.compile(r"\b(?P<year>(?:19|20)\d\d)-(?P<month>\d\d)-(?P<day>\d\d)"),
)
_ALONE = (
    re.compile(rf"\b(?:in|of|since|until|by|during|last|this|early|late|mid) {_MONTH}"),
    re.compile(rf"\b{_YEAR}"),
)

_MAX_STAMP = 80
"""Longest first line that is a time stamp and not a sentence that contains a date."""

_WHEN = re.compile(r"\b(?:when|how long|(?:what|which) (?:year|month|date|day|time|week))\b", re.IGNORECASE)

_TIME_TERMS = (
    "yesterday todai tonight tomorrow ago last next since week weekend month year dai mondai tuesdai wednesdai "
    "thursdai fridai saturdai sundai januari februari march april june juli august septemb octob novemb decemb "
    "recent soon night morn"
)

TIME_TERMS = frozenset(_TIME_TERMS.split(" ")).union(map(str, range(1900, 2100)))
"""Stems of words for times and dates."""


def stamp(text: str) -> frozenset[str]:
    """Return year, month and day of a full date in a short first line, as terms; empty if there is none."""
    line = text[: _MAX_STAMP + 1].partition("\n")[0]
    if len(line) > _MAX_STAMP:
        return frozenset()
    for pattern in _WRITTEN:
        found = pattern.search(line)
        if found is not None and found["year"]:
            return _parts(found)
    return frozenset()


def asked(query: str) -> frozenset[str]:
    """Return the parts of the dates that a query contains, complete or not."""
    found: set[str] = set()
    for pattern in (*_WRITTEN, *_ALONE):
        for one in pattern.finditer(query):
            found |= _parts(one)
    return frozenset(found)


def asks_when(query: str) -> bool:
    """Return whether a query asks for a time."""
    return _WHEN.search(query) is not None


def _parts(found: re.Match[str]) -> frozenset[str]:
    groups = found.groupdict()
    month, day, year = groups.get("month"), groups.get("day"), groups.get("year")
    parts: set[str] = {year} if year else set()
    if month:
        parts.add(_MONTHS[int(month) - 1] if month.isdigit() and 1 <= int(month) <= 12 else month[:3].lower())
    if day:
        parts.add(f"day {int(day)}")
    return frozenset(parts)


# --- questions about the user's rules ----------------------------------------------------------------------------

_RULES = (
    "rule forbid forbidden forbade prohibit ban banned refuse refusal disallow allow allowed constraint demand "
    "requirement insist instruct instruction"
)
_RULE_STEMS = frozenset(map(stem, _RULES.split(" ")))
_USER_WORDS = frozenset(("user", "users", "i", "me", "my"))

DEMAND_WORDS = ("don", "not", "never", "always", "must", "only", "should", "instead", "sure")
"""Words of demands, for an index that has to find them."""


def asks_for_rules(query: str) -> bool:
    """Return whether a query asks what the user demanded or refused; such an answer shares no word with it."""
    words = [word.lower() for word in _WORD.findall(query)]
    return not _USER_WORDS.isdisjoint(words) and not _RULE_STEMS.isdisjoint(map(stem, words))
