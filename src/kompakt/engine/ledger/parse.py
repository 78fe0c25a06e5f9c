"""Read a ledger that an earlier pass wrote, so that its facts are merged as facts and not as text.

Only lines of the shape that ``lines`` writes are facts. What else an earlier pass left, a summariser's words or the
transcript of an open round, is kept as lines that assert nothing. Linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import msgspec

from kompakt.engine.ledger.facts import OPERATIONS, Fact
from kompakt.engine.ledger.format import BARE, HEADING, HEADINGS, ORIGIN, ROOTED, SAME, SEEN, SPEAKERS, THERE
from kompakt.engine.ledger.path_roots import absolute
from kompakt.engine.ledger.quotes import quotations, quoted
from kompakt.model.phrases import OPEN_ROUND_NOTE

MAX_TOLD = 200
"""Characters kept of a line of a transcript."""

_REFERENCE = re.compile(r"(m[0-9a-f]{4,40}(?:\.\d+)?) ")
_TASK = re.compile(r"task (?:#(\S+) )?(open|in progress|done|dropped): (.*)")
_COMMAND = re.compile(r"((?:success|failed)(?:, exit code \d+)?(?:, before that [a-z]+)?): `")
_KEY_END = re.compile(r"`(?= said [\"\u201c]|; there: |\Z)")
_CALL = re.compile(r"(failed|called): (.+?) said(?= [\"\u201c])")
_FILE = re.compile(rf"({'|'.join(sorted(OPERATIONS, key=len, reverse=True))}) (.+)")
_VALUE = re.compile(r"value of (.+): (\d.*)")
_ID = re.compile(r"id (\S+) names (.*)")
_TEST = re.compile(r"(tests?) (passed|failed): (.*)")


class Names(msgspec.Struct, frozen=True, gc=False):
    """Names that an earlier pass told, in its words."""

    kind: str
    key: str
    """Kind and key of the fact they stood at; nothing, and their own label."""
    words: str
    reference: str


class Known(msgspec.Struct, frozen=True):
    """What an earlier pass told."""

    narrative: list[str]
    """Lines that are no facts."""
    facts: list[Fact]
    names: list[Names]


def read(text: str) -> Known:
    """Read what earlier passes wrote: summaries, and behind them transcripts of open rounds."""
    known = Known([], [], [])
    found = f"\n{text}".find(f"\n{OPEN_ROUND_NOTE}")
    told, transcript = (text, "") if found < 0 else (text[:found], text[found:])
    for number, section in enumerate(f"\n{told}".split(f"\n{HEADING}")):
        lines = section.split("\n")
        ledger = list(_lines(lines)) if number else []
        _read(ledger, known)
        known.narrative.extend(line for line in lines[len(ledger) :] if line.strip())
    lines = (line for line in transcript.split("\n") if line.strip() and line != OPEN_ROUND_NOTE)
    known.narrative.extend(quoted(line, MAX_TOLD) for line in lines)
    return known


def without_false_quotes(text: str, is_said: Callable[[str, str], bool]) -> str:
    """Drop the lines of ledgers that quote the user in words which their reference does not bear out.

    ``is_said`` takes a reference and words and tells whether the words stand in the message of that name.
    """
    first, *ledgers = f"\n{text}".split(f"\n{HEADING}")
    out = [first]
    for section in ledgers:
        lines = section.split("\n")
        kept: list[str] = []
        last = ""
        told = list(_lines(lines))
        for line, (reference, body) in zip(lines, told, strict=False):
            quoted_words = body.removeprefix(SPEAKERS["word"])
            is_quote = reference not in ("", BARE) and quoted_words != body
            if is_quote and not is_said(reference, quoted_words):
                continue
            is_cut_off = line.startswith(SAME) and reference not in (last, BARE)
            kept.append(f"{reference} {body}" if is_cut_off else line)
            last = reference
        out.append("\n".join([*kept, *lines[len(told) :]]))
    return f"\n{HEADING}".join(out).removeprefix("\n")


def _lines(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Go through the lines of a ledger with their references, up to one that is no part of it; a heading has none."""
    reference = ""
    for line in lines:
        start = _REFERENCE.match(line)
        if start is not None:
            reference = start[1]
            yield reference, line[start.end() :]
        elif line.startswith(BARE):
            reference = BARE
            yield reference, line[len(BARE) :]
        elif line.startswith(SAME) and reference:
            yield reference, line[len(SAME) :]
        elif not line or line in HEADINGS or line.startswith(ROOTED):
            reference = ""
            yield "", line
        else:
            return


def _read(ledger: list[tuple[str, str]], known: Known) -> None:
    root = ""
    for reference, body in ledger:
        if not reference:
            root = body[len(ROOTED) : -1] if body.startswith(ROOTED) else root
        elif reference == BARE:
            known.facts.append(Fact("remark", body, "", ""))
        elif body.startswith(SEEN):
            place, _, words = body.partition(": ")
            known.names.append(Names("", place, words, reference))
        elif tests := _TEST.fullmatch(body):
            listed = tests[3].split(", ") if tests[1] == "tests" else [tests[3]]
            known.facts.extend(Fact("test", name, tests[2], reference) for name in listed)
        elif known.facts and body.startswith(more := _more(known.facts[-1])):
            notes, rest = quotations(body[len(more) :])
            last = known.facts[-1]
            known.facts[-1] = msgspec.structs.replace(last, notes=(*last.notes, *notes))
            _note_names(known, rest)
        else:
            fact, rest = _fact(reference, body, root)
            known.facts.append(fact)
            _note_names(known, rest)


def _more(fact: Fact) -> str:
    """Say how a line begins that goes on telling what a call said."""
    return f"more from `{fact.key[:ORIGIN]}`:"


def _note_names(known: Known, rest: str) -> None:
    if rest.startswith(THERE):
        fact = known.facts[-1]
        known.names.append(Names(fact.kind, fact.key, rest[len(THERE) :], fact.reference))


def _fact(reference: str, body: str, root: str) -> tuple[Fact, str]:
    """Read one line behind its reference: the fact, and what follows it."""
    for kind, speaker in SPEAKERS.items():
        if body.startswith(speaker):
            return Fact(kind, body[len(speaker) :], "", reference), ""
    if task := _TASK.fullmatch(body):
        return Fact("task", task[3], task[2], reference, (task[1],) if task[1] else ()), ""
    if found := _ID.fullmatch(body):
        return Fact("id", found[1], found[2], reference), ""
    if value := _VALUE.fullmatch(body):
        return Fact("value", value[1], value[2], reference), ""
    command = _COMMAND.match(body)
    if command is not None and (end := _KEY_END.search(body, command.end())):
        notes, rest = quotations(body[end.end() :].removeprefix(" said"))
        return Fact("command", body[command.end() : end.start()], command[1], reference, notes), rest
    if call := _CALL.match(body):
        notes, rest = quotations(body[call.end() :])
        return Fact("failure" if call[1] == "failed" else "call", call[2], call[1], reference, notes), rest
    head, there, words = body.partition(THERE)
    if file := _FILE.fullmatch(head):
        return Fact("file", absolute(file[2], root), file[1], reference), there + words
    return Fact("remark", body, "", reference), ""
