"""Admission of one tool output: detect its kind by its shape and compress it accordingly.

A pure function of the text, the settings and what the history showed before. The same history therefore gives the same
bytes, and later messages change nothing. It never raises and never makes an output larger; an output that would gain
little is not changed. Cost: the first lines for each kind, then one pass over the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from kompakt.engine.admission.calls import arguments, texts_of
from kompakt.engine.admission.failures import Shrunk, failures
from kompakt.engine.admission.kinds import blob, diff, html, json_value, listing, log, search, source, table, test_run
from kompakt.engine.admission.lines import NumberedText, Seen, numbered_text
from kompakt.engine.admission.settings import DEFAULT, AdmissionSettings
from kompakt.model.messages import Json
from kompakt.model.phrases import folded_note, is_admitted, is_cut, repeated_note
from kompakt.model.tokens import counter_for

_REFERENCE = re.compile(r"\bm[0-9a-f]{4,40}(?:\.\d{1,6})?\b")

_LONGEST_REFERENCE = "m9f9f.0"
"""A reference with as many tokens as any of the usual length. References differ between passes, so the decision to
compress must not depend on the tokens of a specific one."""

_MIN_ANCHOR = 12
"""Characters of a line by which a text is found again."""


class Admitted(msgspec.Struct, frozen=True):
    """An output in the form in which it enters the context."""

    text: str
    kind: str
    tokens_before: int
    tokens_after: int


def admit(
    text: str,
    *,
    reference: str,
    settings: AdmissionSettings = DEFAULT,
    seen: Seen | None = None,
    call_input: Json = None,
    count: Callable[[str], int] | None = None,
    above: Callable[[], str] | None = None,
) -> Admitted | None:
    """Compress a tool output; ``None`` means that it stays unchanged.

    ``reference`` is the name under which the original can be recalled. ``seen`` is what the history showed before
    and learns what is shown now. ``call_input`` is what the call that is answered was given;
    ``count`` counts tokens; ``above`` says what is to stand above an output that is compressed.
    """
    seen = Seen() if seen is None else seen
    count = counter_for(None).text if count is None else count
    before = count(text) if len(text) >= settings.min_tokens else 0
    found = None
    if before >= settings.min_tokens and not is_admitted(text) and not is_cut(text):
        found = _compressed(text, reference, settings, seen, call_input)
    if found is not None:
        shrunk, kind = found
        written = above() + shrunk.text if above is not None else shrunk.text
        if count(_REFERENCE.sub(_LONGEST_REFERENCE, written)) <= before * (1 - settings.min_saving):
            if kind != "source" or not settings.show_again:  # what was shown of a file is found line by line
                seen.add_whole(reference, text)
            seen.add(reference, shrunk.shown or ())
            return Admitted(written, kind, before, count(written))
    seen.add_text(reference, text)
    return None


def _compressed(
    text: str, reference: str, settings: AdmissionSettings, seen: Seen, call_input: Json
) -> tuple[Shrunk, str] | None:
    """Compress an output and append the note with the reference of the original."""
    earlier = seen.whole(text) if "repeat" in settings.kinds else None
    if earlier is not None:
        return _repeated(text, earlier), "repeat"
    short, count = blob.replace(text) if "blob" in settings.kinds else (text, 0)
    shrunk, kind = _by_kind(short, settings, seen, call_input)
    if shrunk is None and count:
        shrunk, kind = Shrunk(short, count, short.count("\n") + 1), "blob"
    if shrunk is None:
        return None
    note = folded_note(reference, shrunk.folded + count, shrunk.lines)
    return msgspec.structs.replace(shrunk, text=f"{shrunk.text}\n{note}"), kind


def _repeated(text: str, reference: str) -> Shrunk:
    """Replace an output that occurred before; lines that report a failure are repeated."""
    lines, bare = text.split("\n"), numbered_text(text).lines
    failed = [lines[place] for place in sorted(failures("\n".join(bare), bare))]
    return Shrunk("\n".join([*failed, repeated_note(reference, len(lines))]), len(lines), len(lines), ())


def _by_kind(text: str, settings: AdmissionSettings, seen: Seen, call_input: Json) -> tuple[Shrunk | None, str]:
    """Try the kinds that match a text, the most specific first; the rest is a log or prose."""
    kinds = settings.kinds
    value = json_value.decoded(text) if "json" in kinds else None
    if value is not None:
        return json_value.shrink(text, settings, value), "json"
    page = numbered_text(text)
    if "diff" in kinds and not page.is_numbered and diff.is_diff(text):
        return diff.shrink(text, settings, seen=seen), "diff"
    words = "\n".join(page.lines) if page.is_numbered else text
    is_prose = log.is_prose(words)
    if "source" in kinds and page.is_numbered:
        if settings.fold_echoes and _is_echo(page, call_input):
            return source.shrink_echo(page, settings), "source"
        is_range = page.first > 1 or _asks_for_part(call_input)
        outline = log.sentences if is_prose else source.signatures
        return source.shrink(page, settings, seen=seen, is_range=is_range, outline=outline), "source"
    for kind, matches, shrink in _PRINTED:
        if kind in kinds and matches(text):
            shrunk = shrink(text, settings)
            if shrunk is not None:
                return _without_seen(shrunk, seen), kind
    if "source" in kinds and not is_prose and source.is_code(text):
        is_range = _asks_for_part(call_input)
        return source.shrink(page, settings, seen=seen, is_range=is_range, outline=source.signatures), "source"
    if "log" in kinds and not is_prose:
        return _without_seen(log.shrink(text, settings), seen), "log"
    if "repeat" in kinds:
        return source.shrink(page, settings, seen=seen, is_range=True, outline=log.sentences), "repeat"
    return None, ""


_PRINTED: tuple[tuple[str, Callable[[str], bool], Callable[[str, AdmissionSettings], Shrunk | None]], ...] = (
    ("html", html.is_html, html.shrink),
    ("trace", log.is_trace, log.shrink),
    ("test run", test_run.is_test_run, test_run.shrink),
    ("listing", listing.is_listing, listing.shrink),
    ("search", search.is_search, search.shrink),
    ("table", table.is_table, table.shrink),
)
"""Kinds of command output with a shape of their own: name, detection, compression."""


def _without_seen(shrunk: Shrunk, seen: Seen) -> Shrunk:
    """Replace lines of a compressed output that an earlier output contains, as repeated test runs do."""
    lines = shrunk.text.split("\n")
    page = NumberedText(lines, [0] * len(lines))  # no line stands where it stood
    again = source.shrink(page, AdmissionSettings(), seen=seen, is_range=True, outline=None)
    if again is None:
        return Shrunk(shrunk.text, shrunk.folded, shrunk.lines, tuple(page.lines))
    return Shrunk(again.text, min(shrunk.lines, shrunk.folded + again.folded), shrunk.lines, again.shown)


def _is_echo(page: NumberedText, call_input: Json) -> bool:
    """Return whether a page shows what the call itself brought along: a line of a text of several lines."""
    lines = set(page.lines)
    for text in texts_of(call_input):
        anchor = max(text.split("\n"), key=len)
        if "\n" in text and len(anchor) >= _MIN_ANCHOR and anchor in lines:
            return True
    return False


def _asks_for_part(call_input: Json) -> bool:
    """Tell from the shape of a call whether it asks for some lines of a file: it holds numbers."""
    values = arguments(call_input)
    return any(type(value) is int or (isinstance(value, list) and value and type(value[0]) is int) for value in values)
