"""Excerpts of a history: quoted on one line, or split into passages and ranked.

Quoted text is bounded and cannot pass for kompakt's own words. JSON becomes key–value text, which takes the fewest
words.

Passages come from the assistant's prose and from long messages. A reader who takes over needs causes, decisions,
results and open questions, in complete sentences; "let me look at the file" is of no use. The words that mark the
difference are those with which people state reasons, outcomes and choices in any field. A sentence with a number, a
path or code in it is more specific than one without.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from kompakt.model.json import decode_text
from kompakt.model.messages import Json

MAX_JSON = 60_000
"""Longest output that is read as JSON."""

MAX_VALUE = 120
"""Characters kept of one value."""

_CONTROL = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
_OWN = re.compile(r"\[(?=\s*kompakt)", re.IGNORECASE)


def one_line(text: str, limit: int) -> str:
    """Fold a text into one line of at most a number of characters."""
    folded = " ".join(text[: limit * 4].split())
    return folded if len(folded) <= limit else folded[: limit - 1] + "…"


def harmless(text: str) -> str:
    """Remove what could break a line, hide in it or imitate one of kompakt's markers."""
    if not text.isprintable():
        text = _CONTROL.sub(" ", text)
    return _OWN.sub("[ ", text) if "[" in text and "kompakt" in text.lower() else text


def quoted(line: str, limit: int) -> str:
    """Quote the beginning of a line in quotation marks that it does not contain: it is data, whatever it says."""
    text = harmless(line[:limit])
    if '"' not in text:
        return f'"{text}"'
    if "\u201c" in text or "\u201d" in text:
        return '"' + text.replace('"', "'") + '"'
    return f"\u201c{text}\u201d"


def as_code(text: str, limit: int) -> str:
    """Write a command or a name between backticks, on one line."""
    return f"`{harmless(one_line(text, limit)).replace('`', chr(39))}`"


def flat(value: Json, limit: int) -> str:
    """Write a JSON value as ``key value, key (key value; …)``, cut at a number of characters."""
    text = harmless(" ".join(_flat(value).split()))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _flat(value: Json) -> str:
    if isinstance(value, dict):
        pairs = ((key, item) for key, item in value.items() if item not in (None, "", [], {}))
        return ", ".join(
            f"{key} ({_flat(v)})" if isinstance(v, dict | list) else f"{key} {_flat(v)}" for key, v in pairs
        )
    if isinstance(value, list):
        return "; ".join(map(_flat, value))
    return one_line(str(value), MAX_VALUE)


def answer_text(output: str, limit: int) -> str:
    """Say what a tool answered: JSON as key–value text, anything else quoted."""
    stripped = output.strip()
    if stripped[:1] in ("{", "[") and len(stripped) <= MAX_JSON:
        try:
            return flat(decode_text(stripped), limit) or "nothing"
        except ValueError:
            pass
    return quoted(one_line(stripped, limit), limit) if stripped else "no output"


MAX_LINES, MAX_COMPARED = 100, 20_000
"""Lines and characters at the start of an answer in which a line is looked for."""

NUMBER_WEIGHT = 2
"""Weight of a shared number or id, relative to a shared word, when a line is compared with a request."""


def telling_line(output: str, words: set[str], facts: set[str], limit: int) -> str:
    """Quote the line of a plain answer that has most in common with what was asked; otherwise its beginning."""
    start = output[:MAX_COMPARED].split("\n", MAX_LINES)[:MAX_LINES]
    lines = [line.strip() for line in start if line.strip()]
    shared = [len(words_of(line) & words) + NUMBER_WEIGHT * len(_facts_in(line) & facts) for line in lines]
    most = max(shared, default=0)
    if most < NUMBER_WEIGHT or shared[0] == most:
        return answer_text(output, limit)
    return f"… {quoted(one_line(lines[shared.index(most)], limit), limit)} …"


_HYPHENATED, _RUN = re.compile(r"[\w-]+"), re.compile(r"\d[\d.,:-]*")


def _facts_in(line: str) -> set[str]:
    """Return the numbers and ids of a line, also those in a path or after a sign, but no part of a longer number."""
    words = _HYPHENATED.findall(line)
    pieces = [piece for word in words if "-" in word for piece in word.split("-")]
    return {*facts_of(line), *words, *pieces, *(run.strip(".,:-") for run in _RUN.findall(line))}


PASSAGE = 230
"""Characters of a passage, about: two or three sentences that belong together."""

_SETTLES = re.compile(
    r"\b(?:because|since|due to|root cause|the (?:issue|problem|bug|cause|reason|fix|key)|decid\w+|chose|instead|"
    r"rather than|"
    r"found|turns out|option|recommend\w*|conclu\w+|confirm\w*|verified|works?|fixed|done|implemented|summary|so that|"
    r"therefore|means|should|must|cannot|can't|won't|doesn't|didn't|not|only|however|but|actually|now|remaining|next|"
    r"cancel\w*|updated|changed|failed|missing|blocked)\b"
)
"""Searched in lower case: ignoring case takes four times as long."""

_ANNOUNCES = re.compile(
    r"(?:(?:but |so |and |first,? |then |now )?let me|let's|i'll|i will|i'm going to|now i'll|now i need to|next,? i|"
    r"(?:now )?i (?:now )?have (?:all|everything|enough|an? \w+ (?:understanding|picture|view|overview|idea))\b|"
    r"now i (?:understand|see|know|can)\b|"
    r"now (?:run|check|update|let|add|fix|verify|create|also|replace|remove|write|move|implement|build)|"
    r"i can see|i need to|i should(?: also| now| first)?|"
    r"we (?:can|need to)|we(?:'ll| will)|"
    r"now (?:i'm |i am |we're )?"
    r"(?:executing|running|checking|verifying|updating|creating|testing|adding|fixing|reading)|"
    r"(?:looking (?:at|into|for)|reading|checking|opening|searching)\b"
    r"(?!.*\b(?:shows?|showed|fails?|failed|gives?|gave|returns?|returned|found|takes?|took)\b)|"
    r"good|great|perfect|excellent|ok|okay|sure|alright|understood)\b[^.:!?]*[.:!?]?",
    re.IGNORECASE,
)
_LETS_ME = re.compile(r"(?:but |so |and |first,? |then |now )?let me\b", re.IGNORECASE)
_LOOKS = re.compile(
    r"(?:but |so |and |first,? |then |now )?let me (?:also |first |now |quickly )?"
    r"(?:look|check|read|see|search|find|explore|examine|view|grep|understand|investigate)\b"
    r"|step \d+[.:] [A-Z]?[a-z]+ ",
    re.IGNORECASE,
)
"""Beginning of a sentence that says where the assistant looks next, or which step of a plan comes next."""
_OFFERS = re.compile(
    r"(?:(?:if|once) you (?:have|need|would|want|confirm|prefer)|(?:could|would|can|do) you (?:please |like |want )|"
    r"please (?:confirm|let me know|provide|hold|wait)|let me know|is there anything|feel free|no problem|"
    r"thank you for|how can i (?:help|assist)|i(?:'m| am) (?:here|happy|glad) to)\b",
    re.IGNORECASE,
)
"""Beginning of a sentence that offers help or asks for a word. The user's answer is quoted with the question."""

_SYMPATHY = re.compile(
    r"(?:i understand(?: (?:your|the|that this|how)\b|[.!,])|i apologi[sz]e|i'm sorry|sorry (?:for|about)|thank you|"
    r"thanks|of course|certainly|absolutely)\b[^:]*[.!]",
    re.IGNORECASE,
)
"""A short sentence that is only polite."""

_COMPLETES = re.compile(
    r"(?:all|both|the|my|these|this)(?: the| of the| my)? ?"
    r"(?:edits?|updates?|changes?|tasks?|todos?|items?|steps?|work)?"
    r" (?:is|are|was|were|has been|have been) (?:now )?(?:complete|completed|done|successful|applied|made|finished)[.!]"
    r"|no response requested\.?",
    re.IGNORECASE,
)
"""A sentence that says only that something is finished, without what."""

_REASONS = re.compile(
    r"\b(?:because|since|so|instead|but|not|found|fixed|done|is|are|was|were|has|have)\b", re.IGNORECASE
)
_LAST_CLAUSE = re.compile(
    r"(?:,? (?:but|so|and|then)|,|;| [-\u2013\u2014])? (?:now )?"
    r"(?:let me|let's|i'll|i will|i need to|i'm going to) [^,;:]*:$",
    re.IGNORECASE,
)
"""The end of a sentence that leads over to a call, as in "The file is missing, so let me create it:"."""

_LEADS_IN = re.compile(r"(?:continue|then|next|also|another|same|first|finally|here)\b", re.IGNORECASE)
"""Beginning of a short sentence with a colon that leads to the next call, as in "Continue removing the others:"."""

MAX_LEAD_IN = 60

MAX_ANNOUNCEMENT = 140
"""Characters of a sentence that may be an announcement."""

_SPECIFIC = re.compile(r"`|\w[._/]\w|\w\(\)")
_MARKUP = re.compile(r"\*\*|^#{1,6} |^> ")
_THINKING = re.compile(r"</?thinking>")
"""Tags that some models put around their reasoning in a plain text."""

_DEPENDENT = re.compile(
    r"(?:this|that|these|those|it|they|he|she|its|their|both|neither|either|such|but|so|then|however|also|instead|otherwise|"
    r"and|or|which|because|since|therefore|thus|still)\b",
    re.IGNORECASE,
)
"""Beginning of a sentence that needs the one before it."""

_PRONOUN = re.compile(
    r"(?:but |so |and |also |however,? |actually,? )?(?:(?:this|that|these|those|it|they|he|she)"
    r"(?:'s|'re|'ll|'d| (?:is|are|was|were|has|have|had|will|would|should|could|can|may|might|must|does|do|did))\b"
    r"|(?:it|they|he|she) \w+(?:s|ed)\b|(?:this|that) \w+ed\b)",
    re.IGNORECASE,
)
"""Beginning of a sentence whose subject is only a pronoun."""

_LIST_ITEM = re.compile(r"\d{1,2}[.)]|[-*] ")
_NUMBER = re.compile(r"\d{1,2}[.)]")

MOST_JOINED = 2.2
"""Length of a passage, relative to the usual one, up to which it takes in sentences that depend on it."""

_SENTENCE_END = re.compile(
    r"(?<=[.!?\u061f\u3002\uff01\uff1f])\s+"
    r"(?=[A-Z\"'`(*\[\d\u00c0-\u00de\u0391-\u03a9\u0410-\u042f\u0590-\u0eff\u3040-\u9fff\uac00-\ud7a3])"
)
"""The space between two sentences. The next one begins with a capital, or with a letter of a script without them."""


def passages(
    text: str, size: int = PASSAGE, *, keep_all: bool = False, is_spent: Callable[[str], bool] | None = None
) -> list[str]:
    """Split a text into passages of whole sentences and lines, without announcements of what comes next.

    Pass ``keep_all`` for the words of a user: "let's fix it" announces something when the assistant says it, and is a
    request when the user does. Sentences for which ``is_spent`` holds are left out, and what depends on them.
    """
    found: list[str] = []
    current = ""
    spent, is_numbered = "", False
    sentences = map(_bounded, _SENTENCE_END.split(text)) if keep_all else _sentences(text)
    for sentence in sentences:
        if not keep_all:
            if is_spent is not None:
                belongs = _LIST_ITEM if spent.endswith(":") else _PRONOUN
                if is_spent(sentence):
                    spent, is_numbered = sentence, False
                    continue
                if spent and (is_numbered or belongs.match(sentence)):
                    is_numbered = _NUMBER.fullmatch(sentence) is not None
                    continue
                spent, is_numbered = "", False
            if _announces(sentence):
                continue
            if sentence.endswith(":") and (led := _LAST_CLAUSE.search(sentence)) and led.start():
                sentence = sentence[: led.start()]
        length = len(current) + len(sentence)
        if current and (len(current) >= size or length > size * 1.4):
            depends = current.endswith(":") or _DEPENDENT.match(sentence) is not None
            if not depends or length > size * MOST_JOINED:
                found.append(current)
                current = ""
        current = f"{current} {sentence}" if current else sentence
    if current:
        found.append(current)
    if found and not keep_all:
        found[-1] = found[-1].rstrip(":")  # what followed was a call
    return found


MIN_OUTLINED, MIN_TITLES, MAX_TITLES = 1_500, 4, 40
"""Characters of a text from which an outline is worth its room, and titles that it has at least and at most."""

TITLE_WORDS = 4
"""Words of a title that says something by itself, unlike "Summary" or "Step two"; most titles have as many."""

_TITLE = re.compile(
    r"\s*(?:#{1,6}\s+|[-*]\s+)?(?:\*\*)?(?P<number>\d{1,3})[.)]\s+(?:\*\*)?(?P<title>[^*:]{3,120}?)(?:\*\*|:|$)"
)
"""A numbered heading or item."""


def outline(text: str) -> list[str]:
    """Return the titles of the numbered items of a long text, such as the findings of a review."""
    if len(text) < MIN_OUTLINED:
        return []
    titles: dict[str, None] = {}
    for line in text.split("\n"):
        is_title = "**" in line or line.lstrip().startswith("#")
        if is_title and (found := _TITLE.match(line)):
            titles[f"{found['number']}. {found['title'].strip()}"] = None
    telling = sum(len(title.split()) > TITLE_WORDS for title in titles)
    return list(titles)[:MAX_TITLES] if telling >= MIN_TITLES and 2 * telling > len(titles) else []


def lacks_subject(passage: str) -> bool:
    """Return whether a passage is short and speaks of "it" or "this", which only the text before it names."""
    return len(passage) < MAX_ANNOUNCEMENT and _PRONOUN.match(passage) is not None


_ASKS = re.compile(r"[?\uff1f\u061f\u037e][\"')\u201d\u300d]?$|(?:\u304b|\u5417|\u55ce|\uae4c)[\u3002.]?$")
"""The end of a question: a question mark, or a particle of Japanese, Chinese or Korean."""

_STOP = re.compile(r"(?<=[\u3002\uff01\uff1f])")


def is_question(text: str) -> bool:
    """Return whether a text ends with a question, in any language that marks it."""
    return _ASKS.search(text[-4:]) is not None


def last_question(line: str) -> str:
    """Return the last sentence of a line if it is a question."""
    sentence = _SENTENCE_END.split(_MARKUP.sub("", line))[-1].strip(" *_")
    sentence = next((part for part in reversed(_STOP.split(sentence)) if part), "")
    return sentence if is_question(sentence) else ""


_OTHER_SCRIPT = re.compile(r"[^\W\d_a-zA-Z\u00aa-\u02ff]")


def is_latin(text: str) -> bool:
    """Return whether a text has no letters of other scripts, of which no single words are known here."""
    return text.isascii() or _OTHER_SCRIPT.search(text) is None


def _announces(sentence: str) -> bool:
    """Return whether a sentence only announces what comes next."""
    if _ANNOUNCES.fullmatch(sentence) or (sentence[:4].lower() == "now " and sentence.endswith(":")):
        return True
    if _LOOKS.match(sentence) and not _REASONS.search(sentence):
        return True
    if len(sentence) < MAX_LEAD_IN and _SYMPATHY.match(sentence) and not _SPECIFIC.search(sentence):
        return True
    if _COMPLETES.fullmatch(sentence):
        return True
    if len(sentence) < MAX_ANNOUNCEMENT and _OFFERS.match(sentence):
        return not _SPECIFIC.search(sentence) and not any(map(str.isdigit, sentence))
    if sentence.endswith(":") and len(sentence) < MAX_LEAD_IN and not _SPECIFIC.search(sentence):
        return _LEADS_IN.match(sentence) is not None
    if not _ANNOUNCES.match(sentence):
        return False
    if _LETS_ME.match(sentence) and len(sentence) < MAX_ANNOUNCEMENT and " - " not in sentence and ": " not in sentence:
        return True
    return sentence.endswith(":") or (len(sentence) < MAX_ANNOUNCEMENT and not _REASONS.search(sentence))


def _sentences(text: str) -> Iterator[str]:
    in_code = False
    for line in text.split("\n"):
        stripped = line.strip()
        if stripped.startswith("```"):
            in_code = not in_code
        elif _DRAWN.search(stripped) and (in_code or _is_drawing(stripped)):
            continue
        elif in_code and stripped:
            yield _bounded(stripped)
        elif stripped and not set(stripped) <= set("-|=:+ *#"):
            if "thinking>" in stripped:
                stripped = _THINKING.sub("", stripped).strip()
            yield from filter(None, map(_bounded, _SENTENCE_END.split(_MARKUP.sub("", stripped))))


_DRAWN = re.compile("[\u2500-\u257f][ \u2500-\u257f]*[\u2500-\u257f]|^[\u2500-\u257f]")
"""A line that may be one of a drawing: a tree, a frame, a screen. In a code block it is one."""

_BRANCH = re.compile("[\u2502\u2503 ]*[\u251c\u2514\u2570]")
"""Beginning of an entry of a tree, such as a folder with its files."""


def _is_drawing(line: str) -> bool:
    """Return whether a line of prose is an entry of a tree, or has more lines than words, unlike a row of a table."""
    drawn = sum("\u2500" <= sign <= "\u257f" for sign in line)
    return _BRANCH.match(line) is not None or 2 * drawn > len(line) - line.count(" ")


MAX_SENTENCE = 600
"""Characters kept of a sentence or of a line of code."""


def _bounded(sentence: str) -> str:
    return sentence if len(sentence) <= MAX_SENTENCE else sentence[: MAX_SENTENCE - 1] + "…"


_FENCED = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_TAG = re.compile(r"<([a-z][\w-]{0,40})>[^<\n]{0,40}</\1>|</?[a-z][\w-]{0,40}>")
_NOT_PROSE = re.compile(
    r"\s*(?:\{|\[Tool|\}|//|#!|-{2,} ?[A-Z ]+ ?-{2,}\s*$|(?:REMINDER|IMPORTANT): |[a-z]+(?:_[a-z]+|[A-Z][a-z]+)+: \d)"
)
"""Lines of a report that are not its prose: data, logged calls, counts of tokens, rules with a title, orders."""

_PROSE_LINE = re.compile(r"\s*+(?:[-*>]|\d{1,3}[.)]|#{1,6})?+\s*+(?:\*\*)?[A-Z][^{};=]{30}")

MIN_REPORT = 600
"""Characters of an answer that may be a report."""

MAX_REPORT = 60_000
"""Characters that are read of a report."""

REPORT_LINES = 5
"""Lines of prose that a report has at least."""


def is_report(output: str) -> bool:
    """Return whether a tool answered with prose, as a sub-agent or a search of the web does."""
    if len(output) < MIN_REPORT or output.lstrip()[:1] in ("{", "["):
        return False
    lines = [line for line in output[:20_000].split("\n") if line.strip()]
    prose = sum(_PROSE_LINE.match(line) is not None for line in lines)
    return prose >= min(REPORT_LINES, len(lines)) and prose * 5 >= len(lines)


def report_text(output: str) -> str:
    """Return the prose of a report: without tags, code blocks, and lines that log calls of tools."""
    prose = _FENCED.sub("", _TAG.sub(" ", output[:MAX_REPORT]))
    return "\n".join(line for line in prose.split("\n") if not _NOT_PROSE.match(line) and '[{"' not in line)


_COURTESY = re.compile(
    r"(?:i can (?:help|assist)|i understand|i apologi[sz]e|thank you|you're (?:welcome|right)|of course|certainly|"
    r"(?:could|would|can) you (?:please )?(?:confirm|provide|let me know)|please (?:confirm|let me know|provide)|"
    r"let me know|it seems|it looks like|is there anything|no problem|please hold|if you (?:have|need|would like))\b",
    re.IGNORECASE,
)


def words_of(passage: str) -> set[str]:
    """Return the words by which a passage is compared with others."""
    return set(re.findall(r"\w{4,}", passage.lower()))


_TOKEN = re.compile(r"[\w./:#@%-]+")
_DIGIT = re.compile(r"\d")


def facts_of(passage: str) -> set[str]:
    """Return the numbers, ids and names with digits that a passage states."""
    return {token.strip("./:%-") for token in _TOKEN.findall(passage) if _DIGIT.search(token)}


def substance(passage: str) -> float:
    """Estimate how much a passage settles: about 1 for plain narration, 3 for a finding with its reason."""
    value = 1.0 + 0.6 * len(_SETTLES.findall(passage[:2_000].lower())) ** 0.5
    if any(map(str.isdigit, passage)):
        value += 0.3
    if _SPECIFIC.search(passage):
        value += 0.3
    if passage.endswith("?"):
        value -= 0.3
    if len(passage) < 25:
        value -= 0.6
    if _COURTESY.match(passage):
        value *= 0.5
    return max(value, 0.2)
