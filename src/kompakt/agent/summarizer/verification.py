"""Verification of a narrative: each sentence is compared with the history that it describes.

A model may invent a path, an id, a value or a quotation, or report that something passed which failed. What a sentence
states in such terms is looked up in the messages, word for word where that is possible. A sentence without support is
dropped. A sentence with more supported than unsupported statements is kept, and names what was not found. Statements
in other terms (reasons, plans) cannot be looked up and are kept.

Linear in the history for each statement that is looked up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

import msgspec

from kompakt.engine.context.archive import speaks
from kompakt.engine.ledger.extract.outcomes import has_failed, refusal
from kompakt.engine.ledger.extract.tool_calls import effect_of
from kompakt.engine.pivot.pivot import Material
from kompakt.model.json import decode_text
from kompakt.model.messages import Text, ToolCall, ToolResult

MIN_QUOTE = 8
"""Characters of a quotation that is looked up; shorter ones are more often names than quotations."""

MIN_STEM = 6
"""Characters of a file's name, up to its extension, that is looked up without it."""

MIN_NUMBER = 100
"""Smallest whole number without a unit that is looked up: smaller ones are often counted by the model itself."""

MAX_DIGITS = 18
"""Characters of the longest number that is read; a longer one is an id and no count."""

MIN_MEASURE = 10
"""Smallest whole number with a unit that is looked up, for the same reason."""

_HEADING = re.compile(r"#{1,6} ")
_BULLET = re.compile(r"\s*(?:[-*+•]|\d{1,3}[.)])\s+")
_SENTENCE = re.compile(
    r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bvs\.)(?<!\bcf\.)(?<!\bNo\.)[\"')\]\u201d]*\s+(?=[\"'(\[*\u201c]*[A-Z\d`])"
    r"|(?<=[。！？])"
)
_FENCE = re.compile(r"\s*(?:```|~~~)")

_CODE = re.compile(r"`([^`\n]{2,300})`")
_QUOTE = re.compile(r'(?<![\w"])"(?=[^\s"])([^"\n]{3,600})(?<=\S)"(?![\w"])|\u201c([^\u201c\u201d\n]{3,600})\u201d')
_OMISSION = re.compile(r"…|(?<!\.)\.{3,}|⋯|\[[^\[\]]{1,200}\]")
"""What a quotation leaves out, or puts in for the reader."""
_URL = re.compile(r"\bhttps?://[^\s\"'<>)\]`]+")
_PATH = re.compile(
    r"(?<![\w/.~@+-])(?:~?/|\.{1,2}/)?(?:[\w@+.-]++/)+[\w@+.*-]*+|(?<![\w/.~@-])[\w-]++\.[a-z][a-z0-9]{0,7}\b(?![(/])"
)
_EXTENSION = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,7}$")
_IDENTIFIER = re.compile(r"(?<![\w./-])[A-Za-z]\w*_\w+(?:\(\))?|(?<![\w./-])[A-Za-z_]\w{2,}\(\)")
_ID = re.compile(
    r"(?<![\w/.-])(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{6,64}(?:-[A-Za-z0-9]{2,40}){0,6}(?![\w/-])"
    r"|(?<![\w/.-])[A-Z]{2,10}-\d{1,10}\b|(?<![\w/])#\d{2,10}\b"
)
_NUMBER = re.compile(
    r"(?<![\w./:#-])(?P<currency>[$€£¥]\s?)?(?P<number>\d[\d,]*(?:\.\d+)?)(?![\w:/]|[.,]\d|-\d)"
    r"(?P<unit>\s?(?:%|percent\b|ms\b|s\b|sec(?:onds?)?\b|min(?:utes?)?\b|hours?\b|days?\b|weeks?\b|months?\b|years?\b|[KMGT]i?B\b"
    r"|bytes?\b|tokens?\b|lines?\b|px\b|dollars?\b|euros?\b|USD\b|EUR\b|GBP\b|km\b|kg\b|miles?\b|°[CF]?))?"
)
_ANY_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_ROUNDED = re.compile(
    r"(?:about|around|approximately|roughly|nearly|almost|some|over|under|[~≈<>])\s*[$€£]?$", re.IGNORECASE
)
_USER_SAID = re.compile(
    r"\b(?:user|customer|client)\b(?:'s words)?(?:\s+(?:then|also|first|later|explicitly|finally|again))?\s*"
    r"(?::|,|said|says|asked|asks|wrote|answered|replied|wants|wanted|requested|insisted|told|confirmed|refused|"
    r"instructed|stated|demanded|decided|corrected)[^.\"\u201c]{0,40}$",
    re.IGNORECASE,
)
_COMPUTED = re.compile(
    r"\b(?:total\w*|sum|sav(?:es?|ed|ings?)|differen\w+|together|combined|average|mean|net|remain\w*|altogether|refund\w*|"
    r"per|each|left|more|less|fewer|faster|slower|increase\w*|decrease\w*)\b|[=×+−≈]",
    re.IGNORECASE,
)
"""Signs that a number was worked out: it need not occur in the record."""
_PASSED = re.compile(r"\b(?:pass(?:ed|es|ing)?|succeed(?:ed|s)?|successful(?:ly)?|green)\b", re.IGNORECASE)
_FAILED = re.compile(r"\bfail(?:ed|s|ing|ure|ures)?\b", re.IGNORECASE)
_UNSURE = re.compile(
    r"\b(?:not|no|never|without|until|unless|if|should|must|would|could|may|might|before|after|then|first|earlier|"
    r"previously|once|was to|to be|will|expect\w*|n't)\b|n't\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"\w+")
_SIGNS = str.maketrans(
    dict.fromkeys("\u2018\u2019\u201c\u201d'\"`*")
    | {"\u00a0": " ", "\u2010": "-", "\u2011": "-", "\u2013": "-", "\u2014": "-"}
)


class Verified(msgspec.Struct, frozen=True):
    """A narrative after verification."""

    text: str
    kept: int
    """Sentences without an unsupported statement."""
    marked: tuple[str, ...] = ()
    """Sentences in which something was not found, as the model wrote them."""
    dropped: tuple[str, ...] = ()


def verify(text: str, evidence: Evidence) -> Verified:
    """Drop or mark the sentences of a narrative that the history does not support."""
    kept, marked, dropped = 0, list[str](), list[str]()

    def checked(sentence: str) -> str:
        nonlocal kept
        verdict = evidence.verdict(sentence)
        if not verdict.unsupported and not verdict.is_false:
            kept += 1
            return sentence
        if verdict.is_false or not (verdict.is_computed or verdict.supported > len(verdict.unsupported)):
            dropped.append(sentence)
            return ""
        marked.append(sentence)
        return _marked(sentence, verdict)

    lines = [[line.lead, *filter(None, map(checked, line.sentences))] for line in _lines(text)]
    made = _joined(_Line(lead, sentences) for lead, *sentences in lines)
    return Verified(made, kept, tuple(marked), tuple(dropped))


def shorten(text: str, limit: int, count: Callable[[str], int]) -> str:
    """Drop whole sentences until a narrative fits: each time the last one of the longest section."""
    lines = list(_lines(text))
    while count(made := _joined(lines)) > limit:
        sections = list[list[_Line]]()
        for line in lines:
            if not sections or _HEADING.match(line.lead):
                sections.append([])
            sections[-1].append(line)
        longest = max(sections, key=lambda section: sum(len(one) for line in section for one in line.sentences))
        last = next((line for line in reversed(longest) if line.sentences), None)
        if last is None:
            return ""
        last.sentences.pop()
    return made


class _Line(msgspec.Struct):
    """A line of a narrative: what precedes its sentences (a bullet, or a whole heading), and the sentences."""

    lead: str
    sentences: list[str] = []


def _lines(text: str) -> Iterator[_Line]:
    in_code = False
    for line in text.split("\n"):
        if _FENCE.match(line):
            in_code = not in_code
            yield _Line(line)
        elif not line.strip() or _HEADING.match(line):
            yield _Line(line)
        elif in_code:
            yield _Line("", [line])
        else:
            bullet = _BULLET.match(line)
            lead = bullet[0] if bullet else ""
            yield _Line(lead, [one for one in _SENTENCE.split(line[len(lead) :].strip()) if one])


def _joined(lines: Iterable[_Line]) -> str:
    """Write lines again, without those that have lost all their sentences, and without empty sections."""
    written: list[str] = []
    for line in lines:
        if line.sentences:
            written.append(line.lead + " ".join(line.sentences))
            continue
        if _HEADING.match(line.lead):
            while written and (_HEADING.match(written[-1]) or not written[-1].strip()):
                written.pop()
            written += ["", line.lead] if written else [line.lead]
        elif not line.lead.strip() or _FENCE.match(line.lead):
            written.append(line.lead)
    while written and (_HEADING.match(written[-1]) or not written[-1].strip()):
        written.pop()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(written)).strip()


def _marked(sentence: str, verdict: Verdict) -> str:
    if verdict.is_computed:
        return f"{sentence} (computed, not in the record)"
    return f"{sentence} (not found in the record: {', '.join(dict.fromkeys(verdict.unsupported))})"


# --- the evidence ------------------------------------------------------------------------------------------------


class Verdict(msgspec.Struct):
    """What of a sentence the history supports."""

    supported: int = 0
    unsupported: list[str] = []
    is_false: bool = False
    """Whether the history contradicts it: an outcome that was another, words that the user did not say."""
    is_computed: bool = False
    """Whether all that was not found are numbers that may have been worked out."""


class _Ran(msgspec.Struct, frozen=True):
    """A call whose outcome is known."""

    text: str
    """Its command or input, folded."""
    failed: bool


class Evidence:
    """The history as something to look statements up in."""

    def __init__(self, material: Material, others: Iterable[str] = ()) -> None:
        texts = [material.earlier or "", material.facts, material.instructions or "", *others]
        texts += [*material.references, *material.kept_references]
        said: list[str] = []
        calls: dict[str, ToolCall] = {}
        self._runs: list[_Ran] = []
        for message in (*material.messages, *material.kept):
            own = speaks(message)
            for part in message.parts:
                if type(part) is Text:
                    texts.append(part.text)
                    if own:
                        said.append(part.text)
                elif type(part) is ToolCall:
                    calls[part.id] = part
                    texts += [part.name, *_leaves(part.input)]
                elif type(part) is ToolResult:
                    texts.append(part.output)
                    if refusal(part) is not None:
                        said.append(part.output)
                    if (call := calls.get(part.call_id)) is not None:
                        effect = effect_of(call)
                        given = effect.command or " ".join(_leaves(call.input))
                        self._runs.append(_Ran(fold(given), has_failed(part, effect)))
        self._texts = "\n".join(texts)
        self._all = fold(self._texts)
        self._said = fold("\n".join([*said, material.earlier or "", material.facts]))

    @cached_property
    def _unescaped(self) -> str:
        """The same with the escapes of JSON and of string literals resolved."""
        return fold(self._texts.replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"').replace("\\/", "/"))

    @cached_property
    def _packed(self) -> str:
        """The same without any space, for quotations that lay it out differently."""
        return "".join(self._unescaped.split())

    @cached_property
    def _numbers(self) -> frozenset[str]:
        return frozenset(map(_canonical, _ANY_NUMBER.findall(self._texts)))

    def has(self, text: str) -> bool:
        """Return whether a text occurs in the history, apart from case, space and typographic signs."""
        wanted = fold(text)
        return wanted in self._all or wanted in self._unescaped

    def verdict(self, sentence: str) -> Verdict:
        """Look up what a sentence states."""
        verdict = Verdict()
        for claim, found in self._looked_up(sentence):
            if found:
                verdict.supported += 1
            else:
                verdict.unsupported.append(claim)
        verdict.is_false = self._misquotes(sentence) or self._misreports(sentence)
        numbers = all(_NUMBER.fullmatch(claim) for claim in verdict.unsupported)
        verdict.is_computed = bool(verdict.unsupported) and numbers and _COMPUTED.search(sentence) is not None
        return verdict

    def _looked_up(self, sentence: str) -> Iterator[tuple[str, bool]]:
        """Yield the statements in a sentence that can be looked up, and whether each was found."""
        rest = sentence
        for pattern, has in ((_QUOTE, self._has_quote), (_CODE, self._has_code), (_URL, self._has_path)):
            for found in pattern.finditer(rest):
                words = next(group for group in (*found.groups(), found[0]) if group)
                if pattern is not _QUOTE or len(words) >= MIN_QUOTE:
                    yield words, has(words.rstrip(".,;:") if pattern is _URL else words)
            rest = pattern.sub(" ", rest)
        for found in _PATH.finditer(rest):
            path = found[0].rstrip(".,;:")
            if _is_path(path):
                yield path, self._has_path(path)
        rest = _PATH.sub(" ", rest)
        for pattern in (_IDENTIFIER, _ID):
            for found in pattern.finditer(rest):
                name = found[0].removesuffix("()")
                yield found[0], self.has(name) or (name[0] == "#" and name[1:] in self._numbers)
            rest = pattern.sub(" ", rest)
        for found in _NUMBER.finditer(rest):
            if _is_measured(found, rest):
                yield found[0].strip(), _canonical(found["number"]) in self._numbers

    def _has_quote(self, words: str) -> bool:
        """Look up a quotation; where it omits something, its parts."""
        parts = [part.strip(" .,;:!?'\"") for part in _OMISSION.split(words)]
        return all(self.has(part) or "".join(fold(part).split()) in self._packed for part in parts if part)

    def _has_code(self, code: str) -> bool:
        """Look up a path, a name, or a piece of code whose words all occur."""
        if _is_path(code) and " " not in code:
            return self._has_path(code)
        if self.has(code) or self.has(code.strip(".,;:()[]{}…")):
            return True
        words = [word for word in _WORD.findall(code) if len(word) > 2 or word.isdigit()]
        return bool(words) and all(word.casefold() in self._all for word in words)

    def _has_path(self, path: str) -> bool:
        """Look up a path; the record may name its folder in one place and the rest of it in another."""
        path = path.rstrip("/*") or path
        if self.has(path) or "*" in path:
            return True
        folder, _, name = path.rpartition("/")
        if not path.startswith(("/", "~", ".")) and (not _EXTENSION.search(name) or _EXTENSION.search(folder)):
            return all(map(self.has, filter(None, path.split("/"))))  # names side by side: "passed/failed", "a.c/b.c"
        cuts = [at for at, sign in enumerate(path) if sign == "/" and 0 < at < len(path) - 1]
        if any(self.has(path[:at]) and self.has(path[at + 1 :]) for at in cuts):
            return True
        stem = _EXTENSION.sub(".", name)  # a source file may be imported under the extension of what it compiles to
        return bool(folder) and len(stem) > MIN_STEM and self.has(folder) and self.has(stem)

    def _misquotes(self, sentence: str) -> bool:
        """Return whether a sentence puts words into the user's mouth."""
        for found in _QUOTE.finditer(sentence):
            words = found[1] or found[2]
            if len(words) < MIN_QUOTE or _USER_SAID.search(sentence[: found.start()]) is None:
                continue
            parts = [fold(part.strip(" .,;:!?'\"")) for part in _OMISSION.split(words)]
            if not all(part in self._said for part in parts if part):
                return True
        return False

    def _misreports(self, sentence: str) -> bool:
        """Return whether a sentence reports an outcome of a command that none of its runs had."""
        passed, failed = bool(_PASSED.search(sentence)), bool(_FAILED.search(sentence))
        if passed == failed or _UNSURE.search(sentence):
            return False
        for found in _CODE.finditer(sentence):
            command = fold(found[1])
            outcomes = {run.failed for run in self._runs if command in run.text} if " " in command else set[bool]()
            if len(outcomes) == 1 and passed in outcomes:
                return True
        return False


def fold(text: str) -> str:
    """Return a text in a form in which equal words are equal: without case, layout and typography."""
    return " ".join(text.translate(_SIGNS).casefold().split())


def _leaves(value: object) -> Iterator[str]:
    """Yield the keys and values of an input."""
    if isinstance(value, str):
        yield value
        if value.lstrip()[:1] in ("{", "["):
            decoded = decode_text(value)
            if not isinstance(decoded, str):
                yield from _leaves(decoded)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner)
    elif value is not None:
        yield str(value)


def _is_path(text: str) -> bool:
    """Return whether a text is a path and not two words with a slash between them."""
    if "/" not in text:
        return _EXTENSION.search(text) is not None and text.count(".") == 1 and len(text.partition(".")[0]) > 1
    if re.search(r"[^\w@+.*~/:-]", text):
        return False
    return text.startswith(("/", "~", ".")) or text.count("/") > 1 or _EXTENSION.search(text) is not None


def _is_measured(found: re.Match[str], text: str) -> bool:
    """Return whether a number is one that a model takes from the record, and not a small count or a rounded value."""
    if _ROUNDED.search(text[: found.start()].rstrip(" ")):
        return False
    number = found["number"].replace(",", "")
    if "." in number or found["currency"] or len(number) > MAX_DIGITS:
        return True
    return int(number) >= (MIN_MEASURE if found["unit"] else MIN_NUMBER)


def _canonical(number: str) -> str:
    plain = number.replace(",", "")
    return plain.rstrip("0").rstrip(".") if "." in plain else plain.lstrip("0") or "0"
