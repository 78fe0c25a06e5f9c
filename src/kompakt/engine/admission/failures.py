"""Lines of an output: which report a failure, and how a choice of them is written.

Finding failures is the inner loop of every kind, so words are looked for in the whole text first and only the lines
that hold one are judged. Cost: a few scans at the speed of memory, and one look at each line found.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import msgspec

from kompakt.model.phrases import FOLD

_TAIL = r"(?:\[[\w-]+\]|\([\w-]+\))?(?: \w{1,12})?:"
"""Text between a word such as "error" and its colon: a code, the name of a check."""

_NAMED = re.compile(rf"(?<!\w)(?i:errors?|fatal|panic|failure|exception){_TAIL}|(?<=\w)(?:Error|Exception): ")
_SHOUTED = re.compile(r"(?<!\w)(?:FAIL(?:ED|URES?)?|ERROR|FATAL|PANIC)(?!\w)")
_EXIT = re.compile(r"(?<!\w)(?i:exit(?:ed)?(?: with)?(?: exit)? (?:code|status):? *[1-9])")
_COUNTED = re.compile(
    r"\b[1-9]\d* (?:\w+ )?(?:failed|failures?|errors?)\b|\b(?:task|command|build|tests?|check|script) failed\b"
)
_RAISED = re.compile(r"[\w.]*(?:Error|Exception|Interrupt|StopIteration|Exit|Failure)(?:$|: |\()")
"""The last line of a traceback."""

_PLAIN = (
    *("Traceback (most recent", ": command not found", "No such file or directory", "ermission denied", "timed out"),
    *("egmentation fault", "npm error", "ERR!"),
)
"""Words that report a failure at any position."""

_OTHER_LANGUAGES = (
    # Japanese, Chinese, Korean
    *(
        "エラー",
        "失敗",
        "例外が",
        "できません",
        "拒否",
        "タイムアウト",
        "異常終了",
        "重大",
        "错误",
        "失败",
        "异常",
        "無法",
    ),
    *(
        "错误",
        "无法",
        "拒绝",
        "超时",
        "中断",
        "错误",
        "錯誤",
        "失敗",
        "逾時",
        "오류",
        "실패",
        "거부",
        "할 수 없",
        "시간 초과",
    ),
    # Russian, Ukrainian
    *("ошибк", "Ошибк", "сбой", "Сбой", "не удалось", "Не удалось", "отказано", "Отказано", "превышено время"),
    *("помилк", "Помилк", "не вдалося", "Не вдалося"),
    # French, German, Polish
    *("erreur", "Erreur", "échec", "Échec", "échoué", "impossible de", "Impossible de", "refusé", "délai dépassé"),
    *("Fehler", "fehlgeschlagen", "konnte nicht", "konnten nicht", "kann nicht", "Zeitüberschreitung", "abgebrochen"),
    *("verweigert", "abgelehnt", "abgestürzt", "ungültig", "Störung", "błąd", "Błąd", "nie można", "Nie można"),
    *("nie udało się", "Nie udało się", "odmowa", "Odmowa"),
    # Italian, Portuguese, Spanish, Turkish
    *("errore", "Errore", "impossibile", "Impossibile", "non riuscit", "rifiutat", "erro:", "Erro:", "falha", "Falha"),
    *("não foi possível", "Não foi possível", "recusad", "fallo:", "Fallo", "falló", "no se pudo", "No se pudo"),
    *("no se puede", "No se puede", "rechazad", "hata:", "Hata", "başarısız", "Başarısız"),
    # Arabic, Vietnamese, Indonesian, Hindi, Greek, Dutch, Swedish
    *("خطأ", "فشل", "lỗi", "Lỗi", "thất bại", "gagal", "Gagal", "त्रुटि", "विफल", "σφάλμα", "Σφάλμα", "αποτυχία"),
    *("mislukt", "kon niet", "geweigerd", "misslyckades", "kunde inte", "nekad"),
)
"""Words for failures, refusals and timeouts in other languages; a word that is part of English ones has its colon."""

_OTHER_ASCII = tuple(filter(str.isascii, _OTHER_LANGUAGES))

PRINTOUT = 4_000
"""Longest output, in characters, that is searched for keyed numbers."""

_PRINTED = re.compile(r"^[ \t]*([A-Za-z_][\w .-]{2,40}?)\s*[:=]\s*(\d[\d.,]*\d%?)[ \t]*(\w{0,10})$", re.MULTILINE)
_CLOCK = re.compile(r"\b(?:time|lines?|date)$|\.\w{1,5}$", re.IGNORECASE)
"""Keys whose numbers are times or line numbers, and names of files."""

_AT_START = ("E   ", "Killed", "✗ ", "✘ ", "✖ ")
"""Words that report a failure at the beginning of a line."""

_HINTS: tuple[tuple[str, re.Pattern[str], int], ...] = (
    *((word, _NAMED, 1) for word in ("rror", "xception", "ailure")),
    *((word, _NAMED, 0) for word in ("fatal", "Fatal", "panic")),
    *((word, _SHOUTED, 0) for word in ("FAIL", "ERROR", "FATAL", "PANIC")),
    *((word, _EXIT, 1) for word in ("xit ", "xited ")),
    *((word, _COUNTED, 28) for word in (" failed", " failure", " error")),
    *((word, _RAISED, -1) for word in ("Error\n", "Exception\n", "Interrupt", "StopIteration", "SystemExit")),
)
"""Where to look closer: a word, what must be found there, and from how many characters before it; -1 for the line."""

_WARNING = re.compile(r"\b(?:WARN(?:ING)?|[Ww]arning)\b[\]:(! ]|\bdeprecat", re.IGNORECASE)

_OTHER_WARNINGS = (
    *("警告", "注意", "경고", "редупрежд", "попередж", "arnung", "WARNUNG", "HINWEIS", "vertissement", "AVERTISSEMENT"),
    *("dvertencia", "ADVERTENCIA", "vviso", "AVVISO", "Aviso", "AVISO", "strzeżeni", "aarschuwing", "uyarı", "Uyarı"),
)
"""Words for warnings in other languages."""

_SUMMARY = re.compile(
    r"\b\d+ (?:\w+ )?(?:passed|passing|skipped|pending|warnings?|tests?|issues?|problems?|files? changed|vulnerabilit)"
    r"|\bcoverage\b|^(?:Tests?|Total|Summary|Ran|Time|Duration|Finished|Done|Test Suites|Snapshots|Result)\b"
    r"|\bexit code\b|^[-=*]{3}(?=.*\w).*[-=*]{3}$",
)
"""A line that says how something ended, or how much of it there was."""

_SUMMARY_WORDS = (
    *("pass", "skipped", "pending", "warning", "test", "issue", "problem", "changed", "vulnerabilit", "overage"),
    *("Test", "Total", "Summary", "Ran", "Time", "Duration", "Finished", "Done", "Snapshots", "Result", "xit code"),
    *("===", "---", "***"),
)


class Shrunk(msgspec.Struct, frozen=True):
    """A compressed text."""

    text: str
    folded: int
    """Lines of the original that are not in it; 0 when only the layout changed."""
    lines: int
    """Lines of the original."""
    shown: tuple[str, ...] | None = None
    """The lines of the original that can be pointed to from now on; all of them for ``None``."""


def failures(text: str, lines: Sequence[str]) -> set[int]:
    """Find the lines that report a failure."""
    index = _Index(f"{text}\n", lines)
    found: set[int] = set()
    for word in (*_PLAIN, *(_OTHER_ASCII if text.isascii() else _OTHER_LANGUAGES)):
        found.update(place for place, _ in index.hits(word))
    for word in _AT_START:
        found.update(place for place, column in index.hits(word) if not lines[place][:column].strip())
    for word, pattern, before in _HINTS:
        for place, column in index.hits(word):
            if place not in found and _holds(pattern, lines[place], column, before):
                found.add(place)
    return found


def printed_numbers(output: str) -> Iterator[tuple[str, str]]:
    """Find the lines of a short printout that are a key and a number."""
    if len(output) < PRINTOUT:
        for found in _PRINTED.finditer(output):
            if not _CLOCK.search(found[1]):
                yield found[1].strip(), found[2]


def keyed(text: str, lines: Sequence[str]) -> set[int]:
    """Find the lines of what a command printed that give a number its key."""
    index = _Index(text, lines)
    pairs = dict.fromkeys(printed_numbers(text))
    return {place for key, number in pairs for place, _ in index.hits(key) if number in lines[place]}


def essential(text: str, lines: Sequence[str]) -> set[int]:
    """Find the lines that stay unchanged: failures, and numbers with their keys."""
    return failures(text, lines) | keyed(text, lines)


def _holds(pattern: re.Pattern[str], line: str, column: int, before: int) -> bool:
    """Return whether a pattern matches around a word."""
    if before < 0:
        return pattern.match(line) is not None
    if before > 1:
        return pattern.search(line, max(0, column - before), column + 16) is not None
    return pattern.match(line, max(0, column - before)) is not None


def warnings(text: str, lines: Sequence[str]) -> set[int]:
    """Find the lines that warn of something."""
    index = _Index(text, lines)
    hits = {place for word in ("warn", "Warn", "WARN", "deprecat") for place, _ in index.hits(word)}
    found = {place for place in hits if _WARNING.search(lines[place])}
    return found.union(place for word in _OTHER_WARNINGS for place, _ in index.hits(word))


def summaries(text: str, lines: Sequence[str]) -> set[int]:
    """Find the lines that say how something ended."""
    index = _Index(text, lines)
    hits = {place for word in _SUMMARY_WORDS for place, _ in index.hits(word)}
    return {place for place in hits if _SUMMARY.search(lines[place])}


class _Index:
    """Finds the lines of a text that hold a word."""

    __slots__ = ("_ends", "_lines", "_text")

    def __init__(self, text: str, lines: Sequence[str]) -> None:
        self._text = text
        self._lines = lines
        self._ends: list[int] = []

    def hits(self, word: str) -> Iterator[tuple[int, int]]:
        """Iterate over the places of a word: the line, and the column in it."""
        at = self._text.find(word)
        if at >= 0 and not self._ends:
            self._ends = list(accumulate([len(line) + 1 for line in self._lines]))
        while at >= 0:
            place = bisect_right(self._ends, at)
            yield place, at - (self._ends[place - 1] if place else 0)
            at = self._text.find(word, at + len(word))


def around(places: Iterable[int], count: int, total: int) -> set[int]:
    """Add ``count`` neighbours on either side."""
    return {near for place in places for near in range(max(0, place - count), min(total, place + count + 1))}


MAX_LINE = 1_200
"""Characters from which a line is too long to read."""

_LINE_HEAD, _LINE_TAIL = 0.4, 0.15
"""Shares of the limit that stay at the beginning and at the end."""

_WORDS = ("rror:", "rror(", "atal:", "anic:", "xception:", "xception(", "ailed:", "FAIL")

_MAX_WINDOWS = 8
"""Failures shown of one such line."""


def cut(line: str, limit: int = MAX_LINE) -> str:
    """Keep beginning and end of a very long line, and the words around each failure in it."""
    if len(line) <= limit:
        return line
    at, end = int(limit * _LINE_HEAD), len(line) - int(limit * _LINE_TAIL)
    out = [line[:at]]
    for found in sorted(set(_failure_columns(line, at, end)))[:_MAX_WINDOWS]:
        if found >= at:
            start, stop = max(at, found - 40), min(end, found + 120)
            out += [_gap(start - at), line[start:stop]]
            at = stop
    out += [_gap(end - at), line[end:]]
    return "".join(out)


def _failure_columns(line: str, start: int, end: int) -> Iterator[int]:
    """Find the first failures of each kind."""
    for word in _WORDS:
        at = line.find(word, start, end)
        for _ in range(_MAX_WINDOWS):
            if at < 0:
                break
            yield at
            at = line.find(word, at + 120, end)


def _gap(characters: int) -> str:
    return f" {FOLD}{characters} characters {FOLD}" if characters else ""
