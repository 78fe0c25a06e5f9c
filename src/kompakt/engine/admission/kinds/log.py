"""Logs and other command output: similar lines are counted; head, tail, failures and warnings stay.

Two lines are similar if they differ in digits only; in a long log, if they differ in words with digits, ids and drawn
bars only. Of similar lines the first and the last stay, and those with a number far away from the others. Of a history
of commits, id, date and subject of each stay. Cost: one pass over the lines, and one over the numbers of similar lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from kompakt.engine.admission.columns import far_records
from kompakt.engine.admission.failures import MAX_LINE, Shrunk, around, cut, failures, keyed, summaries, warnings
from kompakt.engine.admission.kinds import json_value
from kompakt.engine.admission.kinds.source import is_signature
from kompakt.engine.admission.lines import NumberedText
from kompakt.engine.admission.settings import AdmissionSettings
from kompakt.model.phrases import FOLD

_SHOWN_ALIKE = 2
"""Similar lines that are shown, the first and the last; those between are counted."""

_MARKUP = ("# ", "## ", "### ", "- ", "* ", "> ", "|", "```", "**")
"""Beginnings of lines in marked-up text."""

_COMMENT = ("//", "/*", "#", "--", ";")
"""Beginnings of comments in code."""

_MIN_WORDS, _MIN_PROSE = 5, 0.4
"""Minimum plain words of a sentence, and minimum share of sentences: reports quote code and output between them."""

_MIN_DISTINCT = 0.7
"""Minimum share of distinct lines: prose does not repeat itself."""

_SAMPLE = 50
"""Lines at either end from which the kind of a text is detected."""

IDS = re.compile(
    r"(?=[0-9a-fA-Z])(?<![\w./-])(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}|[A-Z]{2,8}-\d{1,6})(?![\w-])"
)
"""UUIDs, commit hashes and issue keys."""

_VARIES = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<![0-9A-Za-z])[0-9A-Za-z]*\d[0-9A-Za-z]*|\b[a-f]{6,}\b"
    r"|[=#>.\-█▓▒░▏▎▍▌▋▊▉━╸╺ ]{5,}"
)
"""What similar lines of a long log may differ in: ids, words with digits, drawn bars."""

_MIN_LETTERS = 8
"""Fewest letters that two lines must share to be similar in this way: the id is what an id line says."""

_MIN_COMMITS = 3
"""Fewest commits that make a history."""

_NUMBER = re.compile(r"(?<!\d:)(?<![\w.-])-?\d+(?:\.\d+)?(?!\w|:\d)")
"""A separate number that is not part of a time."""

_MIN_COMPARED = 12
"""Fewest similar lines whose numbers are compared."""

_NEAR = 2
"""Lines shown around a failure."""


def is_prose(text: str) -> bool:
    """Return whether a text is prose, judged by its first and last lines."""
    sample = [*text[:8_000].split("\n", _SAMPLE)[:_SAMPLE], *text[8_000:][-8_000:].rsplit("\n", _SAMPLE)[-_SAMPLE:]]
    lines = [line for line in sample if line.strip()]
    if max(map(len, lines), default=0) > MAX_LINE or len(set(_makes("\n".join(lines)))) < len(lines) * _MIN_DISTINCT:
        return False
    return sum(map(_is_sentence, lines)) >= len(lines) * _MIN_PROSE


def _makes(text: str) -> list[bytes]:
    """Return each line without digits, so that similar lines are equal."""
    return text.encode("utf-8", "surrogatepass").translate(None, b"0123456789").split(b"\n")


def _templates(lines: Sequence[str]) -> list[str]:
    """Return each line without what similar lines may differ in; a line of little else is like no other."""
    templates = [_VARIES.sub("#", line) for line in lines]
    return [
        template if sum(map(str.isalpha, template)) >= _MIN_LETTERS else line
        for template, line in zip(templates, lines, strict=True)
    ]


_COMMIT = re.compile(r"commit [0-9a-f]{7,64}\b")

_MAX_COMMITS = 400
"""Commits of a history that are shown, the newest."""


def _commits(lines: Sequence[str]) -> set[int]:
    """Find the lines with id, date and subject of the commits of a history."""
    starts = [place for place, line in enumerate(lines) if line.startswith("commit ") and _COMMIT.match(line)]
    found: set[int] = set()
    if len(starts) < _MIN_COMMITS:
        return found
    for start, end in zip(starts[:_MAX_COMMITS], [*starts[1:], len(lines)], strict=False):
        dates = [place for place in range(start, end) if lines[place].startswith("Date:")][:1]
        subject = next((place for place in range(start, end) if lines[place].startswith("    ")), start)
        found.update([start, *dates, subject])
    return found


def _is_sentence(line: str) -> bool:
    """Return whether a line consists of plain words or has text markup."""
    if line.startswith(_MARKUP):
        return True
    words = line.split()
    plain = sum(map(str.isalpha, words))
    return plain >= _MIN_WORDS and plain * 2 > len(words) and not words[0].startswith(_COMMENT)


def shrink(text: str, settings: AdmissionSettings, *, extra: frozenset[int] = frozenset()) -> Shrunk:
    """Compress a log; ``extra`` are further lines to keep."""
    lines = text.split("\n")
    failed = failures(text, lines)
    must = failed | keyed(text, lines) | _commits(lines) | extra
    frames = folded_frames(text, lines, settings.max_frames)
    alike = _alike(_makes(text), lines, must, settings)
    gone = frames.union(*alike.values()) - must
    rest = [place for place in range(len(lines)) if place not in gone]
    if len(rest) > settings.max_log_lines:
        alike = _merged(alike, lines, [place for place in rest if place not in must])
        gone = frames.union(*alike.values()) - must
        rest = [place for place in rest if place not in gone]
    if len(rest) > settings.max_log_lines:
        head = settings.max_log_lines // 3
        rest = [*rest[:head], *rest[len(rest) - 2 * head :]]
        rest += [*warnings(text, lines), *summaries(text, lines), *(around(failed, _NEAR, len(lines)) - frames)]
    return _written(lines, {*rest, *must}, alike, settings)


def _line_limit(lengths: Sequence[int], settings: AdmissionSettings) -> int:
    """Return the characters of a very long line: more if the output consists of few long lines."""
    long = sum(length > settings.max_line for length in lengths)
    room = settings.max_json_tokens * 4 - sum(length for length in lengths if length <= settings.max_line)
    return max(settings.max_line, room // max(1, long))


def _shortened(line: str, settings: AdmissionSettings, limit: int) -> str:
    """Cut a very long line."""
    if len(line) <= settings.max_line:
        return line
    return json_value.shrink_record(line, settings, limit) or cut(line, limit)


def _alike(
    makes: Sequence[str | bytes], lines: list[str], must: set[int], settings: AdmissionSettings
) -> dict[int, list[int]]:
    """Map the first of similar lines to those between it and the last; lines in ``must`` are left out."""
    groups: dict[str | bytes, list[int]] = {}
    for place, make in enumerate(makes):
        if place not in must:
            groups.setdefault(make, []).append(place)
    found: dict[int, list[int]] = {}
    for places in groups.values():
        if len(places) > _SHOWN_ALIKE and lines[places[0]].strip():
            odd = _odd(lines, places, settings.max_items)
            found[places[0]] = [place for place in places[1:-1] if place not in odd]
    return found


def _merged(alike: dict[int, list[int]], lines: Sequence[str], rest: Sequence[int]) -> dict[int, list[int]]:
    """Fold those of the remaining lines that differ in words with digits, ids and bars only."""
    groups: dict[str, list[int]] = {}
    for place, template in zip(rest, _templates([lines[place] for place in rest]), strict=True):
        groups.setdefault(template, []).append(place)
    found = dict(alike)
    for places in groups.values():
        if len(places) > _SHOWN_ALIKE and lines[places[0]].strip():
            inner = [place for other in places[1:-1] for place in (other, *found.pop(other, ()))]
            found[places[0]] = sorted([*found.get(places[0], ()), *inner, *found.pop(places[-1], ())])
    return found


def _odd(lines: Sequence[str], places: Sequence[int], limit: int) -> set[int]:
    """Find similar lines with a number that is far away from those of the others."""
    if len(places) < _MIN_COMPARED:
        return set()
    numbers = {place: _NUMBER.findall(lines[place]) for place in places}
    usual = Counter(map(len, numbers.values())).most_common(1)[0][0]
    regular = {place: found for place, found in numbers.items() if len(found) == usual}
    columns = {str(column): {place: found[column] for place, found in regular.items()} for column in range(usual)}
    return far_records(columns, limit)


def _written(lines: list[str], keep: set[int], alike: dict[int, list[int]], settings: AdmissionSettings) -> Shrunk:
    """Write the remaining lines. Hidden lines are counted after the first similar one, or on a line of their own."""
    out: list[str] = []
    folded, last = 0, -1
    limit = _line_limit([len(lines[place]) for place in keep], settings)
    counted = {place for first in alike.keys() & keep for place in alike[first]}
    for place in [*sorted(keep), len(lines)]:
        gap = [other for other in range(last + 1, place) if lines[other].strip()]
        folded += len(gap)
        last = place
        apart = sum(other not in counted for other in gap)
        if apart and out and not out[-1].startswith(FOLD):
            out.append(f"{FOLD}{apart} lines")
        if place == len(lines):
            break
        line = _shortened(lines[place], settings, limit)
        folded += line is not lines[place]
        if not line.strip() and out and not out[-1].strip():
            continue
        more = sum(other not in keep for other in alike.get(place, ()))
        out.append(f"{line} {FOLD}{more} alike" if more else line)
    return Shrunk("\n".join(out), folded, len(lines), ())


_HINTS = ('  File "', "\tat ", "    at ", "goroutine ", " +0x", "#0 ")

_FRAME = re.compile(
    r'\s+File "[^"]+", line \d+'
    r"|\s+at [\w$.<>\[\]/ ]+[(:]|\s+at (?:async )?(?:/|file:|node:)|\s+\.\.\. \d+ more"
    r"|\t\S+\.\w+:\d+(?: \+0x[0-9a-f]+)?$|[\w./*()-]+\([\w., {}?]*\)$"
    r"|\s*#?\d+:? +0x[0-9a-f]+|#\d+ +(?:0x|\S+ \()"
)
"""A stack frame of Python, Java, JavaScript, Go, Rust or a debugger."""


def is_trace(text: str) -> bool:
    """Return whether a text is mostly stack frames, judged by its first lines."""
    if not any(hint in text for hint in _HINTS):
        return False
    lines = [line for line in text[:8_000].split("\n", 60)[:60] if line.strip()]
    return sum(_FRAME.match(line) is not None for line in lines) * 3 > len(lines)


def folded_frames(text: str, lines: list[str], limit: int) -> set[int]:
    """Find the frames in the middle of long traces, to be hidden."""
    gone: set[int] = set()
    if not any(hint in text for hint in _HINTS):
        return gone
    run: list[list[int]] = []
    for place, line in enumerate(lines):
        if _FRAME.match(line):
            run.append([place])
        elif run and line[:4] == "    " and lines[run[-1][0]].lstrip().startswith("File ") and len(run[-1]) < 4:
            run[-1].append(place)  # the code of a frame
        else:
            gone |= _middle(run, limit)
            run = []
    return gone | _middle(run, limit)


def _middle(run: list[list[int]], limit: int) -> set[int]:
    """Return all but the first and last frames; more stay at the end, where most languages print the origin."""
    if len(run) <= limit:
        return set()
    head = limit // 2
    return {place for frame in run[head : len(run) - (limit - head)] for place in frame}


_FENCES = ("```", "~~~")

_MIN_BLOCK = 8
"""Minimum lines of a code block whose bodies are folded."""

_HEAD = 2
"""Lines of a code block that always stay."""


def sentences(page: NumberedText, left: Sequence[int]) -> set[int]:
    """Choose the lines to keep of a text with code blocks."""
    keep = set(left)
    for start, end in _blocks(page.lines):
        if end - start >= _MIN_BLOCK and _is_code(page.lines[start:end]):
            keep.difference_update(place for place in range(start + _HEAD, end) if not _stays(page.lines[place]))
    return keep


def _is_code(lines: Sequence[str]) -> bool:
    """Distinguish code from data, which has no definitions."""
    return any(line.strip(" \t{}[]") and is_signature(line) for line in lines)


def _stays(line: str) -> bool:
    """Return whether a line of a code block is likely referred to by the text: a definition, an id."""
    return is_signature(line) or IDS.search(line) is not None


def _blocks(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the closed code blocks: the first line, and the line after the last."""
    start, fence = -1, ""
    for place, line in enumerate(lines):
        bare = line.strip()
        if start < 0 and bare.startswith(_FENCES):
            start, fence = place + 1, bare[:3]
        elif start >= 0 and bare == fence:
            yield start, place
            start = -1
