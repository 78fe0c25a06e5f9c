"""Admission: compress tool outputs, each once, when its message is appended.

The kind of an output is detected by its shape. The result depends on the text, the settings and the messages before it,
never on later ones. A request that was sent is therefore repeated byte for byte, and prompt caches stay valid.
Admission never raises and never makes an output larger; an output that would gain little is not changed.

Calls are read by their shape: no tool name and no argument name is special. Their arguments are remembered, because a
file that the agent wrote itself need not be shown again. Cost: the first lines for each kind, then one pass over the
text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import msgspec

from kompakt.engine.admission.failures import Shrunk, failures
from kompakt.engine.admission.kinds import blob, diff, html, json_value, log, paths, source, table, terminal, test_run
from kompakt.engine.admission.lines import NumberedText, Seen, numbered_text
from kompakt.engine.admission.settings import DEFAULT, AdmissionSettings
from kompakt.engine.context.context import Context
from kompakt.engine.ledger.extract.outcomes import failure_lines, outcome
from kompakt.engine.ledger.extract.shell import quotes
from kompakt.engine.ledger.extract.tool_calls import effect_of
from kompakt.engine.strategies.strategy import results_of
from kompakt.model.json import decode_text
from kompakt.model.messages import Json, ToolCall, ToolResult
from kompakt.model.phrases import FOLD, folded_note, is_admitted, is_cut, repeated_note
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

    ``reference`` is the name under which the original can be recalled. ``seen`` is what the history showed before; what
    is shown now is added to it. ``call_input`` is the input of the answered call. ``count`` counts tokens. ``above``
    returns the text to put above a compressed output.
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
    plain, redrawn = terminal.replace(text) if "log" in settings.kinds else (text, 0)
    short, blobs = blob.replace(plain) if "blob" in settings.kinds else (plain, 0)
    shrunk, kind = _by_kind(short, settings, seen, call_input)
    if shrunk is None and short != text:
        shrunk, kind = Shrunk(short, 0, short.count("\n") + 1), "blob" if blobs else "log"
    if shrunk is None:
        return None
    note = folded_note(reference, shrunk.folded + blobs + redrawn, shrunk.lines + redrawn)
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
    records = json_value.decoded_lines(text) if "json" in kinds else None
    if records is not None:
        return json_value.shrink_lines(text, settings, records), "json"
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
            if kind == "table":
                return None, kind  # all rows are shown; no other kind may fold them as alike
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
    ("listing", paths.is_listing, paths.shrink_listing),
    ("search", paths.is_search, paths.shrink_search),
    ("table", table.is_table, table.shrink),
)
"""Kinds of command output with a shape of their own: name, detection, compression."""


def _without_seen(shrunk: Shrunk, seen: Seen) -> Shrunk:
    """Replace lines of a compressed output that an earlier output contains, as repeated test runs do."""
    lines = shrunk.text.split("\n")
    page = NumberedText(lines, [0] * len(lines))  # line numbers of the original no longer apply
    again = source.shrink(page, AdmissionSettings(), seen=seen, is_range=True, outline=None)
    if again is None:
        return Shrunk(shrunk.text, shrunk.folded, shrunk.lines, tuple(page.lines))
    return Shrunk(again.text, min(shrunk.lines, shrunk.folded + again.folded), shrunk.lines, again.shown)


def _is_echo(page: NumberedText, call_input: Json) -> bool:
    """Return whether a page shows a text of the call itself: a line of one of its texts of several lines."""
    lines = set(page.lines)
    for text in texts_of(call_input):
        anchor = max(text.split("\n"), key=len)
        if "\n" in text and len(anchor) >= _MIN_ANCHOR and anchor in lines:
            return True
    return False


def _asks_for_part(call_input: Json) -> bool:
    """Return whether a call asks for a part of a file: one of its arguments is a number or starts with one."""
    values = arguments(call_input)
    return any(type(value) is int or (isinstance(value, list) and value and type(value[0]) is int) for value in values)


def arguments(call_input: Json) -> list[Json]:
    """List the arguments of a call, whether they come as JSON or as JSON text."""
    if isinstance(call_input, str):
        try:
            call_input = decode_text(call_input)
        except ValueError:
            return [call_input]
    return list(cast("dict[str, Any]", call_input).values()) if isinstance(call_input, dict) else [call_input]


def texts_of(call_input: Json) -> list[str]:
    """List the texts of a call: its arguments, and those of the objects in its lists."""
    found: list[str] = []
    for value in arguments(call_input):
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, list):
            objects = [item for item in cast("list[Any]", value) if isinstance(item, dict)]
            found += [
                text for item in objects for text in cast("dict[str, Any]", item).values() if isinstance(text, str)
            ]
    return found


_COMMAND = 60
"""Characters of a command that are printed."""

_LINE = 80
"""Characters of a failure line that are repeated."""

_REACH = 160
"""Characters of all repeated failure lines; the full lines follow below."""


def heading(call: ToolCall, result: ToolResult) -> str:
    """Describe how a command ended; empty for other calls."""
    command = effect_of(call).command
    if command is None or not command.strip():
        return ""
    name = command.strip().split("\n", 1)[0][:_COMMAND].rstrip()
    name = name if name == command.strip() else f"{name} {FOLD.strip()}"
    how = outcome(result)
    failed = [] if quotes(command) else list(_within_reach(failure_lines(result.output)))
    if failed:
        ended = "success, yet its output reports" if how == "success" else how
        return f"[kompakt] {name}: {ended}: {f' {FOLD}'.join(failed)}\n"
    return f"[kompakt] {name}: {how}\n"


def _within_reach(lines: list[str]) -> Iterator[str]:
    """Yield the beginnings of failure lines up to the limit."""
    room = _REACH
    for line in lines:
        start = line[:_LINE].rstrip()
        if len(start) > room:
            return
        room -= len(start)
        yield start


_MIN_LINES = 3
"""Minimum lines of an argument that is remembered."""


class Gate:
    """Admits the messages of one history, each once and in order."""

    __slots__ = ("_passed", "_seen", "settings")

    def __init__(self, settings: AdmissionSettings) -> None:
        self.settings = settings
        self._seen = Seen()
        self._passed = 0

    def admit(self, context: Context) -> bool:
        """Admit new messages; return whether any output was changed."""
        changed = False
        for index in range(self._passed, len(context.messages)):
            changed |= admit_message(context, index, self._seen, self.settings)
        self._passed = len(context.messages)
        return changed


def admit_message(context: Context, index: int, seen: Seen, settings: AdmissionSettings = DEFAULT) -> bool:
    """Admit a message that was just appended; return whether it was changed.

    Call it once for every message, in order, with the same ``seen``. Errors, pinned outputs, outputs with media,
    results of the provider's own tools and fixed results are not changed.
    """
    for place, part in enumerate(context.messages[index].parts):
        if type(part) is ToolCall and not part.hosted:
            _remember(context.reference(index, place), part, seen)
    changed = False
    for place, result in list(results_of(context, index)):
        reference = context.reference(index, place)
        call = seen.calls.pop(result.call_id, None)
        if result.is_error or result.media or context.group_at(index).pinned:
            seen.add_text(reference, result.output)
            continue
        count = context.counter.text
        given, above = (None, None) if call is None else (call.input, partial(heading, call, result))
        admitted = admit(
            result.output,
            reference=reference,
            settings=settings,
            seen=seen,
            call_input=given,
            count=count,
            above=above,
        )
        if admitted is not None:
            instead = msgspec.structs.replace(result, output=admitted.text, edited=True)
            context.show(index, place, instead, what="admitted", why=f"as {admitted.kind}")
            changed = True
    return changed


def _remember(reference: str, call: ToolCall, seen: Seen) -> None:
    """Remember a call for its result, and its texts for outputs that repeat them."""
    seen.calls[call.id] = call
    for text in texts_of(call.input):
        if text.count("\n") >= _MIN_LINES:
            seen.add(reference, text.split("\n"))
