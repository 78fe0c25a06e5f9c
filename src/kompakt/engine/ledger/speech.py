"""What was said: the user's messages, and what the assistant found, decided and reported.

The user's demands come first, however old they are. Of what the assistant said, the newest texts and the reports at the
end of a turn count most, then what the user confirmed; what the user rejected is marked and counts little.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, zip_longest

from kompakt.engine.ledger.changed_files import edit_of
from kompakt.engine.ledger.events import THOUGHT, Event, Spoken, ToolUse
from kompakt.engine.ledger.excerpts import (
    PASSAGE,
    facts_of,
    harmless,
    is_latin,
    is_question,
    lacks_subject,
    last_question,
    one_line,
    outline,
    passages,
    quoted,
    substance,
    words_of,
)
from kompakt.engine.ledger.extract.outcomes import has_failed, refusal
from kompakt.engine.ledger.extract.user_words import STRICT, is_notice, user_message
from kompakt.engine.ledger.items import FINDINGS, OUTLINE, USER, ItemList
from kompakt.engine.ledger.runs import command_key

MAX_REPLY = 60
"""Characters of a message that is quoted with the question it answers."""

MAX_ANSWER = 200
"""The same of an answer that leans on its question, as in "yes, but with a limit". Other long ones need no question."""

MAX_QUESTION = 200
"""Characters kept of that question."""

MAX_SKIPPED = 8
"""Events before a message of the user among which the text that it answers is looked for."""

LITTLE_VALUE = 0.9
"""Value of an older message of the user that does not say what it is about: not worth a line."""

SPENT_VALUE = 2.0
"""Value of a short message after which nothing was changed, such as a question that was answered at once."""

MAX_SPENT_QUESTION = 120
"""Characters of a question of the user that was answered at once; the answer is among the findings."""

NEW_REQUESTS = 12
"""Newest messages of the user that count more than older ones. Demands count alike, however old."""

ABOUT_WORDS = 2
"""Words by which a question says what it is about; with fewer it only asks whether to go on."""

MAX_REQUEST_WORDS = 4_000
"""Characters of a request whose words count as known."""

MIN_ID = 4
"""Digits of a number that is unlikely to be in a text by chance."""

MIN_SUMMARY = 1_000
"""Characters from which a notice in a user message is taken for a summary."""

FOREIGN_VALUE = 0.7
"""Value of what another agent's summary says, relative to the assistant's own words."""

FINAL_VALUE = 1.3
"""Value of a text with which the assistant ended a turn, relative to what it said between calls: it is its report."""

ANSWERED_VALUE = 2.0
"""Value of the text that the newest message of the user replies to: "yes, do that" says nothing without it."""

CONFIRMED_VALUE = 1.6
"""Value of what the assistant said if the user's next words confirm it, relative to other findings."""

REJECTED_VALUE = 0.4
"""Value of what the assistant said if the user's next words reject it, relative to other findings."""

NEW_SPEECHES = 5
"""Newest texts of the assistant that count more than older ones."""

MIN_REMARK, MIN_SETTLED = 300, 1.7
"""An old text between calls is kept if it has as many characters, or ``substance`` of at least this value."""

SHORT_STATEMENT, SHORT_VALUE, SHORT_VALUE_WITH_FACTS = 90, 0.4, 0.8
"""Characters of a short older text, and its value relative to others: without and with a number or an id in it."""

UNNAMED_VALUE = 0.3
"""Value of a text that begins with "it" or "this" and names nothing, relative to others."""

TITLE_VALUE = 1.0
"""Value of each title in the outline of a long text."""

NEW_FACT = 0.8
"""Least share of its value that a statement keeps if it names a number or an id that no newer one names."""

MAX_CHOICE, MAX_CHOICES = 90, 4
"""Characters kept of an item of a list that the user chose, and items of a list of which all are named."""

_CHOOSES = re.compile(
    r"(?:(?:ok|okay|yes|no|let's|lets|let us|please|go with|go for|do|take|use|try|i'll take"
    r"|i(?:'d)? (?:prefer|like|choose|want|say))\b[ ,]{0,3})*"
    r"(?:(?P<all>both|all(?: of them| three| four)?)|(?P<the>the )?(?P<nth>(?a:first|second|third|fourth|last))"
    r"(?(the)(?: one| option)?|(?=\W*$))"
    r"|(?:the )?(?:option |number |#)(?P<named>\d{1,2}|[a-h])|(?P<bare>\d{1,2}|[a-h]))"
    r"(?=\W*$|[.,;:!)](?!\w)| (?:please|then|and|but)\b)",
    re.IGNORECASE,
)
"""Beginning of a reply that chooses from a list."""

_NTH = {"first": 0, "second": 1, "third": 2, "fourth": 3, "last": -1}

_LISTED = re.compile(
    r"\s*(?:#{1,4} )?(?:[-*] )?(?:\*\*)?(?:Option )?(?P<label>\d{1,2}|[A-Ha-h])(?:[.):]| [-\u2013\u2014] )(?:\*\*)? ?\S"
)
"""An item of a list with numbers or letters."""

_REFERS_BACK = re.compile(
    r"(?:yes|yep|yeah|no|nope|right|exactly)\b"
    r"|(?:that|this|it)(?:'s| is| was) (?:it|right|wrong|correct|the idea)\b",
    re.IGNORECASE,
)
"""Beginning of a reply that answers a statement."""

THOUGHT_VALUE, REPORTED_THOUGHT_VALUE = 0.5, 0.25
"""Value of reasoning, relative to what was said: in general, and if its turn ended with a report."""

MIN_FINAL = 80
"""Characters of the text at the end of a turn that is taken for its report."""

MIN_SETTLED_BEFORE_REPORT = 2.3
"""The same as ``MIN_SETTLED`` in a turn that ended with a report: the report says what came of it."""

MAX_ANNOUNCED = 140
"""Characters of a remark that leads to an edit and says nothing else."""

MAX_STEPS, MAX_APART = 2, 200
"""Calls after a remark among which the edit is looked for that it leads to, and events before and after a remark among
which a command that failed, and a run of it that passed, are looked for."""

MIN_REPEATED, MAX_ALIKE = 30, 8
"""Characters of a line by which a message of the user repeats an earlier statement, and different lines with the same
beginning of this length that are looked for."""

_INTENDS = re.compile(
    r"(?:(?:ok|okay|so|now|then|next|first|finally|also|and|but|wait|hmm|actually|therefore|good|great)\b[,.!]? ){0,2}"
    r"(?:(?:i|we)(?:'ll| will| should| need to|'m going to| am going to|'re going to| are going to)\b"
    r"|i (?:must|have to)\b|let(?:'s| me| us)\b|(?:to|before) [^.,;]{3,100}, (?:i|we|let's|let me)\b)",
    re.IGNORECASE,
)
"""Beginning of a sentence that says what the assistant does next. "We must" may be a rule for the work."""

_DECIDES = re.compile(
    r"\b(?:because|since|instead|rather|so that|due to|otherwise|not|never|cannot|reason|cause|decid\w+|chose)\b|n't\b",
    re.IGNORECASE,
)
"""A word of a sentence that gives a reason or rules something out."""

_REASONS = re.compile(
    r"\b(?:because|since|instead|rather than|so that|due to|otherwise|never|cannot|root cause|causes? of|reason|"
    r"(?:should|must|will|do|to) not)\b|(?:wo|shouldn|can|don)'?t\b",
    re.IGNORECASE,
)
"""A word of a sentence that gives a reason or rules something out. It holds although what it led to is done."""

_TELLS = re.compile(r"\b(?:summari[sz]e|explain|recap|clarify|list|conclude|answer|note|say|show you)\b", re.IGNORECASE)
"""A word of an intention to tell something: the rest of the text does it."""

MAX_VERB = 40
"""Characters of an intention among which such a word is what is intended, and not what that is for."""

_HESITATES = re.compile(r"(?:but |oh,? )?(?:actually,? )?(?:wait|hmm+|maybe|perhaps|i wonder)\b", re.IGNORECASE)

_FAILS = re.compile(r"\b(?:fails?|failed|failing|failures?|errors?|does(?:n't| not) (?:compile|build|pass|work))\b")

_PASSES = re.compile(
    r"(?:good[,.!]? |great[,.!]? |perfect[,.!]? )?(?:all |the |both |now )*(?:existing |unit |integration |new |lint )?"
    r"(?:tests?|builds?|lint(?:er|ing)?|checks?|it|everything|fix|lint issues|code) "
    r"(?:all |now |also |still )*(?:pass(?:es|ed)?|works?|succeed(?:s|ed)?|compiles?|is clean|(?:is|are) fixed)"
    r"(?: now| successfully| cleanly| as expected)?[.!]",
    re.IGNORECASE,
)
"""A sentence that says only that a run passed. The run is stated with its result."""

_SLIPS = re.compile(
    r"\bindent\w*|\btypos?\b|\bsyntax\b|\bduplicate lines?\b|\bunused (?:import|variable)|\bforgot\b"
    r"|\bnot (?:correctly |properly )?(?:placed|applied)\b|\bmiss(?:ed|ing) (?:an? |the )?import"
    r"|\bedit (?:failed|did not|didn't)\b",
    re.IGNORECASE,
)
"""Words of a remark on a slip of an edit."""

_VALUES = re.compile(r"(?<![:\w.-])(?<!line )(?<!lines )\d{3,}\b(?!-)|\b(?=[a-f]*\d)[0-9a-f]{7,40}\b")
"""A measured number or an id, which the report at the end may not repeat."""

_CODE_NAME = re.compile(r"`([^`\n]{2,80})`|\b([a-z]+[A-Z]\w{2,60}|\w{1,60}_\w{2,60}|\w{2,60}\.[a-z]{1,4})\b")

_RESUMED = re.compile(
    r"^ {0,8}(?:\d{1,2}[.)] ?|#{1,4} )?(?:\*\*)?(?:Pending Tasks|Current Work|(?:Optional )?Next Steps?)\b",
    re.MULTILINE | re.IGNORECASE,
)
"""Headings of a summary by an agent below which it says what it does next."""

MIN_RESUMED = 20
"""Calls after such a summary from which its next steps count as done."""

_REJECTS = re.compile(
    r"(?:no\b(?! (?:need|problem|worries|rush|idea))|nope\b|wrong\b|incorrect\b|you(?:'re| are) wrong\b"
    r"|(?:that|this|it)(?:'s| is) (?:wrong|incorrect|false|not (?:right|true|correct|it|what|how))\b)",
    re.IGNORECASE,
)
"""Beginning of a message in which the user rejects what the assistant just said."""

_CONFIRMS = re.compile(
    r"\W*(?:\w+\W+){0,3}?(?:that(?:'s|s| is| was) (?:it|right|correct|true|exactly)\b"
    r"|(?:it|this|that) (?:worked|fixed it)\b|(?:it|this|that|now) works\b"
    r"|you(?:'re| are) (?:\w+ )?right\b|(?:exactly|correct|confirmed)\b)",
    re.IGNORECASE,
)
"""Beginning of a message in which the user confirms what the assistant just said, such as the cause of a failure."""

_CONCEDES = re.compile(
    r"(?:you(?:'re| are) (?:\w+ )?right\W{1,3}(?:\w+ ){0,3})?"
    r"(?:i was wrong|my mistake|i apologi[sz]e|i made a mistake|i misread|i misunderstood)\b",
    re.IGNORECASE,
)
"""Beginning of an answer in which the assistant takes back what it said before the user's message."""

_SAYS_NOTHING = re.compile(
    r"(?:\W*(?:y|yes|yep|yeah|ok|okay|k|sure|thanks|thank you|please|great|good|nice|cool|perfect|continue|proceed"
    r"|go|go on|go ahead|next|hi|hello|hey)\b)*\W*",
    re.IGNORECASE,
)
"""A message that only agrees or greets."""

_ASKS_NOTHING = words_of(
    "about again anything before changes confirm continue correct could does else feel free good have help here know"
    " let like look looks make match more need next okay other please prefer proceed provide questions ready right"
    " sense shall should start that there these this understanding want what which will with would your"
)
"""Words of a question that do not say what it is about."""

_NAMES_CODE = re.compile(r"[`/_]|\w\.\w|\w\(\)|[a-z][A-Z]|\"")

_REFUSES = re.compile(r"\b(?:no|nope|not|never|none|neither)\b|n['\u2019]?t\b", re.IGNORECASE)
"""A word that makes a short message a decision."""

_SHORT_WORD = re.compile(r"\w{3,}")

_POINTS = _ASKS_NOTHING | set(
    _SHORT_WORD.findall(
        "again all also and are both but can did done fine for had has idea just not now really same seems still the"
        " them then thing things those was were works yes you"
    )
)
"""Words of a message that only point at something."""

_RESTATES = re.compile(
    r"The user (?:is (?:asking|saying|telling|right)|asks|asked|says|said|wants|wanted|would like)\b"
    r"|The (?:task|request|goal) (?:involves|requires|asks|is (?:to|about))\b"
)
"""Beginning of a text that repeats the user's message, which is quoted anyway."""

_CONTINUED = re.compile(
    r"\s*This session is being continued from a previous conversation[^.:]{0,200}\."
    r"(?:\s*The (?:summary|conversation) [^.:]{0,200}[.:])?"
)
_DRAFT = re.compile(r"\s*(?:Analysis:|<analysis>)")
_SUMMARY = re.compile(r"^(?:</analysis>\s*)?(?:Summary:|<summary>)[ \t]*$", re.MULTILINE)
_RESUME = re.compile(
    r"^(?:</summary>\s*)?(?:Please continue the conversation from where (?:we|it) left"
    r"|If you need specific details from before|Continue the conversation from where it left)",
    re.MULTILINE,
)
MAX_RESUME = 1_200
"""Parts of a summary by Claude Code: sentences that say nothing about the session; the model's draft, and the beginning
of the summary after it; an instruction to the model that continues, which ends the text and has at most 1,200
characters.
"""

_TAKEN_OVER = "Another language model started to solve"
"""Beginning of a summary by Codex."""

SUMMARY_ORIGIN = "An earlier summary by the agent says"
"""Names a summary that a coding agent wrote when it compacted the session itself."""


class Speech:
    """Adds what was said in a session, text by text."""

    def __init__(
        self,
        items: ItemList,
        events: Sequence[Event],
        is_hidden: Callable[[Event], bool],
        changes: Callable[[ToolUse], bool],
    ) -> None:
        self._items = items
        self._events = events
        self._changes = changes
        """Whether a call changed something."""
        speeches = [event for event in events if type(event) is Spoken and event.role == "assistant"]
        self._ages = {id(event): age for age, event in enumerate(reversed(speeches[-NEW_SPEECHES:]), 1)}
        asked = [event for event in events if type(event) is Spoken and event.role == "user"]
        self._newest_user = asked[-NEW_REQUESTS].at if len(asked) >= NEW_REQUESTS else -1
        """Position from which on messages of the user count more than older ones."""
        self._last_user = asked[-1].at if asked else -1
        requests = [event.text[:MAX_REQUEST_WORDS] for event in (asked[0], asked[-1])] if asked else []
        self.asked_words = set[str]().union(*map(words_of, requests))
        """Words of the first request and of the newest one, which are always shown."""
        facts = set[str]().union(*map(facts_of, requests))
        self.asked_facts = {fact for fact in facts if not fact.isdigit() or len(fact) >= MIN_ID}
        """Ids in them, such as "db-3", and long numbers."""
        self._words = {id(event): user_message(event.text) for event in asked}
        """What the user wrote in each message."""
        hidden = [event for event in asked if is_hidden(event)]
        self._times = Counter(self._words[id(event)] for event in hidden)
        """How often the user wrote the same."""
        self._newest = {self._words[id(event)]: event for event in hidden}
        """The newest message of each text."""
        replies = _replies(events)
        self._rejected, self._confirmed = _rejected(replies, self._words, events), _confirmed(replies, self._words)
        self._final = _final_texts(events)
        self._answered = _answered_text(events, is_hidden)
        self._is_hidden = is_hidden
        self._next_call, self._report = _turns(events)
        calls = [event.at for event in events if type(event) is ToolUse]
        self._resumed = calls[-MIN_RESUMED] if len(calls) >= MIN_RESUMED else -1
        """Position before which a summary was followed by enough calls that its next steps count as done."""

    def read(self, number: int, event: Spoken) -> None:
        """Add a hidden text, given its number among the events."""
        if event.role == "user":
            self._read_user(event, self._before(number), is_spent=self._is_spent(number))
            return
        is_answered = event is self._answered
        age = 1 if is_answered else self._ages.get(id(event), NEW_SPEECHES + 1)
        scale = ANSWERED_VALUE if is_answered else FINAL_VALUE if id(event) in self._final else 1.0
        scale = max(scale, CONFIRMED_VALUE) if id(event) in self._confirmed else scale
        is_remark = bool(self._final) and scale == 1.0 and age > NEW_SPEECHES and event.role != THOUGHT
        is_reported = self._report[number] is not None and _VALUES.search(event.text) is None
        settled = MIN_SETTLED_BEFORE_REPORT if is_reported else MIN_SETTLED
        if (is_remark and _is_spent_remark(event.text, settled)) or self._is_done(number, event):
            return
        self._read_assistant(
            event,
            age,
            scale=scale,
            is_rejected=id(event) in self._rejected,
            is_reported=is_reported,
            is_spent=self._spent_in(number, event),
        )

    def _is_done(self, number: int, event: Spoken) -> bool:
        """Return whether a short text leads to an edit that was made at once, after which it says nothing."""
        if self._next_call[number] < 0 or len(event.text) >= MIN_REMARK:
            return False
        report = self._report[number]
        is_slip = _SLIPS.search(event.text) is not None
        if (report is None and not is_slip) or (edit := self._edit_after(number)) is None:
            return False
        if len(event.text) < MAX_ANNOUNCED and (is_slip or not _DECIDES.search(event.text)):
            return True
        names = {(one or other).removesuffix("()") for one, other in _CODE_NAME.findall(event.text)}
        if report is None or not names:
            return False
        paths = [path for _, path in edit.effect.files]
        changed = edit_of(edit.effect.fields, paths[0])
        touched = "\n".join([*paths, changed.removed, changed.added])
        return 2 * sum(name in touched for name in names) >= len(names) and any(name in report.text for name in names)

    def _edit_after(self, number: int) -> ToolUse | None:
        """Return the edit that is among the next calls and was made."""
        place, steps = self._next_call[number], 0
        while place >= 0 and steps < MAX_STEPS:
            event = self._events[place]
            assert type(event) is ToolUse
            effect, result = event.effect, event.result
            if effect.command is None and any(how != "read" for how, _ in effect.files):
                if result is not None and refusal(result) is None and not has_failed(result, effect):
                    return event
            place, steps = self._next_call[place], steps + 1
        return None

    def _spent_in(self, number: int, event: Spoken) -> Callable[[str], bool] | None:
        """Return what tells of a sentence whether a later event of the session overtakes it."""
        place = self._next_call[number]
        if place < 0:
            asked = self._answered_question(number, event)
            return (lambda sentence: sentence == asked) if asked else None
        call = self._events[place]
        assert type(call) is ToolUse
        if call.result is None or refusal(call.result) is not None:
            return None
        report = self._report[number]
        reported = facts_of(report.text) if report is not None else set[str]()
        passed_later = _FAILS.search(event.text) is not None and self._passed_later(number)

        def is_spent(sentence: str) -> bool:
            if _PASSES.fullmatch(sentence):
                return True
            if _REASONS.search(sentence):
                return False
            if _INTENDS.match(sentence) and not _TELLS.search(sentence, 0, MAX_VERB):
                return True
            if passed_later and _FAILS.search(sentence):
                return True
            return report is not None and _HESITATES.match(sentence) is not None and facts_of(sentence) <= reported

        return is_spent

    def _answered_question(self, number: int, event: Spoken) -> str:
        """Return the question at the end of a text if it is quoted with the user's reply."""
        reply = self._events[number + 1] if number + 1 < len(self._events) else None
        if type(reply) is not Spoken or reply.role != "user" or not self._is_hidden(reply):
            return ""
        question = _question(event)
        if not _is_about_something(question) or question in _answered_by(self._words[id(reply)], event):
            return question
        return ""

    def _passed_later(self, number: int) -> bool:
        """Return whether the newest command before a text failed and passed later."""
        for event in reversed(self._events[max(0, number - MAX_APART) : number]):
            if type(event) is Spoken and event.role == "user":
                return False
            if type(event) is ToolUse and event.effect.command is not None:
                break
        else:
            return False
        if not _ended(event, failed=True):
            return False
        key = command_key(event.effect.command or "")
        later = [one for one in self._events[number : number + MAX_APART] if type(one) is ToolUse]
        return any(command_key(one.effect.command or "") == key and _ended(one, failed=False) for one in later)

    def _before(self, number: int) -> Event | None:
        """Return what came before a message of the user, apart from thoughts and what an agent put before it."""
        said = self._events[number]
        for place in range(number - 1, max(-1, number - MAX_SKIPPED), -1):
            event = self._events[place]
            if type(event) is not Spoken or (
                event.role != THOUGHT and event.at != said.at and not is_notice(event.text)
            ):
                return event
        return None

    def _read_user(self, event: Spoken, before: Event | None, *, is_spent: bool = False) -> None:
        if is_notice(event.text):
            if len(event.text) > MIN_SUMMARY:  # a summary that another agent wrote: findings, but not the user's words
                origin = SUMMARY_ORIGIN if _is_summary(event.text) else ""
                said = _summary_in(event.text) if origin else event.text
                if (steps := _RESUMED.search(said)) and event.at < self._resumed:
                    said = said[: steps.start()]
                summary = Spoken(event.at, "assistant", said)
                self._read_assistant(summary, NEW_SPEECHES + 1, scale=FOREIGN_VALUE, origin=origin)
            return
        text, times = self._words[id(event)], self._times[self._words[id(event)]]
        is_new = event.at >= self._newest_user
        if answered := _answered_by(text, before):  # "yes" says nothing by itself
            value = 16.0 if STRICT.search(text) else 14.0 if is_new else 8.0
            self._items.add(USER, event.at, f"{text} (reply to {quoted(answered, MAX_QUESTION)})", value)
            return
        if len(text) <= MAX_REPLY and _SAYS_NOTHING.fullmatch(text):
            return
        if event is not self._newest[text]:
            return  # the newest message with the same words is quoted
        parts = passages(text, 400, keep_all=True)
        last = len(parts) - 1
        repeated = f" (said {times} times)" if last == 0 and times > 1 else ""
        for number, part in enumerate(parts):
            if STRICT.search(part):
                value = 16.0
            elif number == 0:
                value = 14.0 if is_new else 8.0
                if last == 0 and event.at < self._last_user:
                    value = LITTLE_VALUE if _says_little(part) else SPENT_VALUE if is_spent else value
            else:
                value = 6.0 if number == last else 3.0
            self._items.add(USER, event.at, part + repeated, value, passage=number, passages=last + 1)

    def _read_assistant(
        self,
        event: Spoken,
        age: int,
        *,
        scale: float = 1.0,
        is_rejected: bool = False,
        is_reported: bool = False,
        is_spent: Callable[[str], bool] | None = None,
        origin: str = "",
    ) -> None:
        """Add the passages of a text; ``is_reported`` if its turn ended with another one."""
        text = event.text
        if _RESTATES.match(text):
            text = text.partition(". ")[2] or text.partition("\n")[2]
        parts = passages(text, is_spent=is_spent)
        is_report = len(text) > 300
        recency = 1.9 if age <= 2 else 1.5 if age <= NEW_SPEECHES else 1.0
        if event.role == THOUGHT:
            scale *= THOUGHT_VALUE if not is_reported else REPORTED_THOUGHT_VALUE
        else:
            scale *= REJECTED_VALUE if is_rejected else 1.0
        remark = " (the user disagreed)" if is_rejected else ""
        if len(parts) > 1 and scale != FOREIGN_VALUE and (titles := outline(text)):
            value = TITLE_VALUE * len(titles) * recency * scale
            listed = f"The text lists: {harmless('; '.join(titles))}."
            self._items.add(FINDINGS, event.at, listed, value, passage=OUTLINE, passages=len(parts))
        for number, part in enumerate(parts):
            value = (2.2 * substance(part) + (1.2 if is_report else 0)) * recency * (1.25 if number == 0 else 1.0)
            if not is_report and len(part) < SHORT_STATEMENT and age > 2 and event.role != THOUGHT:
                value *= SHORT_VALUE_WITH_FACTS if facts_of(part) else SHORT_VALUE
            if number == 0 and lacks_subject(part):
                value *= UNNAMED_VALUE
            if event.role == THOUGHT and part.endswith("?") and len(part) < PASSAGE:
                continue  # the answer follows
            said = harmless(part).removeprefix("- ") + remark
            self._items.add(FINDINGS, event.at, said, value * scale, passage=number, passages=len(parts), origin=origin)

    def discount_repetition(self) -> None:
        """Lower the value of findings that newer ones repeat, or the user's words: a request is quoted or shown."""
        said, stated = set(self.asked_words), set[str]()
        findings = [item for item in self._items.all if item.section == FINDINGS]
        for item in sorted(findings, key=lambda item: (-item.at, item.passage)):
            words, facts = words_of(item.text), facts_of(item.text)
            if words:
                novelty = 0.3 + 0.7 * len(words - said) / len(words)
                item.value *= max(novelty, NEW_FACT) if facts - stated else novelty
            said |= words
            stated |= facts

    def _is_spent(self, number: int) -> bool:
        """Return whether a short message of the user led to no change: it was answered or tried out."""
        event = self._events[number]
        if type(event) is not Spoken or _REJECTS.match(event.text):
            return False
        if len(event.text) > (MAX_SPENT_QUESTION if is_question(event.text.rstrip()) else MAX_REPLY):
            return False
        for place in range(number + 1, len(self._events)):
            later = self._events[place]
            if type(later) is Spoken and later.role == "user":
                return True
            if type(later) is ToolUse and self._changes(later):
                return False
        return False


def _is_summary(notice: str) -> bool:
    """Return whether a notice is the summary of a coding agent, and not the output of a hook or a command."""
    return _CONTINUED.match(notice) is not None or notice.lstrip().startswith(_TAKEN_OVER)


def _summary_in(text: str) -> str:
    """Return the summary of a coding agent without the draft before it and the instruction after it.

    An earlier instruction may be quoted in it, so only one at the end counts.
    """
    if opening := _CONTINUED.match(text):
        text = text[opening.end() :]
    if _DRAFT.match(text) and (heading := _SUMMARY.search(text)):
        text = text[heading.end() :]
    text = text.strip()
    ends = (found.start() for found in _RESUME.finditer(text) if len(text) - found.start() <= MAX_RESUME)
    return text[: next(ends, len(text))].strip()


def _says_little(text: str) -> bool:
    """Return whether a short message of the user names nothing, as in "do that again"."""
    if len(text) > MAX_REPLY or not is_latin(text) or any(map(str.isdigit, text)) or _NAMES_CODE.search(text):
        return False
    if _REFUSES.search(text):
        return False
    return set(_SHORT_WORD.findall(text.lower())) <= _POINTS


def _is_spent_remark(text: str, settled: float) -> bool:
    """Return whether a short text between calls settles nothing that a reader would miss once the step is done."""
    return len(text) < MIN_REMARK and substance(text) < settled


def _ended(event: ToolUse, *, failed: bool) -> bool:
    """Return whether a call was answered and failed, or passed."""
    return event.result is not None and has_failed(event.result, event.effect) == failed


def _turns(events: Sequence[Event]) -> tuple[list[int], list[Spoken | None]]:
    """Return for each event the next call of its turn, or -1, and the text with which its turn ends later."""
    calls, reports = [-1] * len(events), list[Spoken | None]([None]) * len(events)
    call, report = -1, None
    for number in range(len(events) - 1, -1, -1):
        event = events[number]
        calls[number], reports[number] = call, report
        if type(event) is ToolUse:
            call = number
        elif type(event) is Spoken and event.role == "user":
            if not event.text.startswith("<system-reminder>"):
                call, report = -1, None
        elif type(event) is Spoken and event.role != THOUGHT and call < 0 and len(event.text) >= MIN_FINAL:
            report = event
    return calls, reports


def _final_texts(events: Sequence[Event]) -> set[int]:
    """Return the texts after which the assistant waited for the user, in a session with more than one turn."""
    said = [event for event in events if type(event) is not Spoken or event.role != THOUGHT]
    return {
        id(event)
        for event, then in pairwise(said)
        if type(event) is Spoken and event.role == "assistant" and type(then) is Spoken and then.role == "user"
    }


def _answered_text(events: Sequence[Event], is_hidden: Callable[[Event], bool]) -> Spoken | None:
    """Return the hidden text of the assistant that the newest message of the user, which is shown, replies to."""
    newest_first = (event for event in reversed(events) if type(event) is not Spoken or event.role != THOUGHT)
    for before, event in pairwise(newest_first):
        if type(before) is Spoken and before.role == "user" and not is_notice(before.text):
            if type(event) is Spoken and event.role == "assistant" and is_hidden(event) and not is_hidden(before):
                return event
            return None
    return None


def _replies(events: Sequence[Event]) -> list[tuple[Spoken, Spoken, Spoken | None]]:
    """Return the texts of the assistant that the user replied to, each with the reply and with what was said next."""
    texts = (event for event in events if type(event) is Spoken and event.role != THOUGHT)
    spoken = [event for event in texts if event.role != "user" or not is_notice(event.text)]
    return [
        (said, reply, then)
        for said, reply, then in zip_longest(spoken, spoken[1:], spoken[2:])
        if said.role == "assistant" and reply is not None and reply.role == "user"
    ]


def _rejected(
    replies: Sequence[tuple[Spoken, Spoken, Spoken | None]], words: Mapping[int, str], events: Sequence[Event]
) -> set[int]:
    """Return the texts of the assistant that the user's next words reject, or that it then takes back itself."""
    conceded = [
        (said, reply)
        for said, reply, then in replies
        if then is not None and then.role == "assistant" and _CONCEDES.match(then.text)
    ]
    rejected = {id(said) for said, reply, _ in replies if _is_rejected(said, words[id(reply)])}
    return rejected | _taken_back(conceded, events)


def _taken_back(conceded: Sequence[tuple[Spoken, Spoken]], events: Sequence[Event]) -> set[int]:
    """Return the texts that conceding answers take back: those that the user repeats, or else the last one.

    Each text is read once, however many answers concede something.
    """
    repeated = [(said, reply, _repeatable(reply.text)) for said, reply in conceded]
    wanted: dict[str, dict[str, int]] = {}  # when each line was last repeated, by the beginning of the line
    for _, reply, lines in repeated:
        for line in lines:
            alike = wanted.setdefault(line[:MIN_REPEATED], {})
            if line in alike or len(alike) < MAX_ALIKE:
                alike[line] = reply.at
    found, first = set[int](), dict[str, int]()
    for text in (event for event in events if type(event) is Spoken and event.role == "assistant") if wanted else ():
        plain = _plain(text.text)
        for place in range(len(plain) - MIN_REPEATED + 1):
            for line, at in wanted.get(plain[place : place + MIN_REPEATED], {}).items():
                if text.at < at and plain.startswith(line, place):
                    found.add(id(text))
                    first.setdefault(line, text.at)
    return found | {
        id(said) for said, reply, lines in repeated if not any(first.get(line, reply.at) < reply.at for line in lines)
    }


def _repeatable(text: str) -> list[str]:
    """Return the lines of a message that may repeat an earlier statement."""
    parts = re.split(r"\n|: |\d\. ", text[:MAX_REQUEST_WORDS])
    return [plain for part in parts if len(plain := _plain(part)) >= MIN_REPEATED]


def _plain(text: str) -> str:
    """Return a text without marks, on one line."""
    return " ".join(text.replace("`", "").replace("*", "").split())


def _confirmed(replies: Sequence[tuple[Spoken, Spoken, Spoken | None]], words: Mapping[int, str]) -> set[int]:
    """Return the texts of the assistant that the user's next words confirm."""
    return {id(said) for said, reply, _ in replies if _CONFIRMS.match(words[id(reply)])}


def _is_rejected(said: Spoken, words: str) -> bool:
    """Return whether the user's next words reject what the assistant said. A short "no" may answer a question."""
    return _REJECTS.match(words) is not None and (len(words) > MAX_REPLY or not _question(said))


def _answered_by(reply: str, before: Event | None) -> str:
    """Return what a short reply answers: the item of a list that it chooses, a question, or a statement."""
    if type(before) is not Spoken or before.role != "assistant":
        return ""
    question = _question(before)
    is_about = _is_about_something(question)
    leans = _REFERS_BACK.match(reply) is not None
    if not 0 < len(reply) <= (MAX_ANSWER if is_about and leans else MAX_REPLY) or is_question(reply):
        return ""
    if choice := _CHOOSES.match(reply):
        if chosen := _chosen_items(choice, before.text):
            return f"{chosen} … {question}" if is_about else chosen
    if question:
        decides = not is_latin(reply) or leans or (choice and choice.end() == len(reply))
        return question if is_about or (decides and not _SAYS_NOTHING.fullmatch(reply)) else ""
    if len(reply) > MAX_REPLY or not leans or _SAYS_NOTHING.fullmatch(reply):
        return ""
    last = next((part for part in reversed(passages(before.text[-MAX_QUESTION * 10 :])) if part[-1:] != "?"), "")
    return last if len(last) <= MAX_QUESTION and _is_about_something(last) else ""


def _is_about_something(text: str) -> bool:
    """Return whether a question or a statement says what it is about, and not only "shall I go on?"."""
    return not is_latin(text) or len(words_of(text) - _ASKS_NOTHING) >= ABOUT_WORDS


def _chosen_items(choice: re.Match[str], text: str) -> str:
    """Return the items of the last list in a text that the user chose."""
    listed: list[tuple[str, str]] = []
    for line in text.split("\n"):
        if found := _LISTED.match(line[:MAX_REQUEST_WORDS]):
            label = found["label"].lower()
            if label in ("1", "a"):
                listed.clear()
            listed.append((label, one_line(line.strip(" -#").replace("**", ""), MAX_CHOICE)))
    if choice["all"]:
        return " … ".join(item for _, item in listed) if len(listed) <= MAX_CHOICES else ""
    if choice["nth"]:
        place = _NTH[choice["nth"].lower()]
        return listed[place][1] if len(listed) > max(place, 1) else ""
    label = (choice["named"] or choice["bare"]).lower()
    return next((item for one, item in listed if one == label), "")


def _question(event: Event) -> str:
    """Return the question with which the assistant ended a text, if it did."""
    if type(event) is not Spoken or event.role != "assistant":
        return ""
    lines = [line.strip() for line in event.text[-MAX_REQUEST_WORDS:].split("\n") if line.strip()]
    while len(lines) > 3 and _LISTED.match(lines[-1]):  # the answers to choose from
        lines.pop()
    return next((found for line in reversed(lines[-3:]) if (found := last_question(line))), "")
