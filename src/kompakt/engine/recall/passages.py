"""Passages: the pieces of a history that a search finds and shows.

A short part is one passage, so that a turn of a conversation stays whole. A long one is divided at line ends. A
passage stores the position of its text, not the text. Cost: one pass over the parts of a message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice

import msgspec

from kompakt.engine.ledger.extract.user_words import is_injected
from kompakt.model import phrases
from kompakt.model.json import decode_text, json_text
from kompakt.model.messages import Json, Media, Message, Opaque, Part, Reasoning, Text, ToolCall, ToolResult

PASSAGE_CHARS = 450
"""Characters of a passage of a long part: about 130 tokens, so that several fit into an answer."""

WHOLE_CHARS = 700
"""Longest part that is not divided, and longest passage."""

TURN_CHARS = 1_200
"""Longest text that is not divided: a turn of a conversation only makes sense as a whole."""

RECORD_CHARS = 225
"""Characters after which a passage may end with a record of a JSON list, so that a record is in one passage."""

LINE_CHARS = 200
"""Longest line. Longer ones are divided into pieces of at most this length, which fit into any usual answer."""

_LINE = re.compile(
    rf"[^\n]{{0,{LINE_CHARS - 1}}}+\n|[^\n]{{1,{LINE_CHARS}}}+\Z"
    rf"|[^\n]{{1,{LINE_CHARS - 3}}}\}},? ?(?=\{{)"  # a piece of a long line: up to the end of a record
    rf"|[^\n]{{{LINE_CHARS // 2},{LINE_CHARS - 1}}}[ \t,;]"  # or of a word
    rf"|[^\n]{{1,{LINE_CHARS}}}"
)

_RECORDS = ("[{", '{"')
"""The start of a list of records, or of an object, in JSON."""

_SUBJECT_KEYS = ("command", "cmd", "file_path", "path", "filename", "file", "url", "pattern", "query")
"""Arguments that name the subject of a call, in order of preference."""

_SUBJECT_CHARS = 120
"""Characters of a subject that are printed with a passage: a command with its arguments, a path."""

_MAX_ARGUMENTS, _ARGUMENT_CHARS = 8, 40
"""Arguments of a call without a file, command or URL that are its subject, and characters of each."""

_SHELL = re.compile(r"\A(?:/\S{1,60}/)?(?:ba|z|da)?sh -l?c ")
"""The shell that a command given as a list of words starts with."""

_OWN_PLACEHOLDER = re.compile(r"\[kompakt\] [^\n]*\b(?:recall|Original:) m[0-9a-f]{4,}[^\n]*\Z")


class Passage(msgspec.Struct, frozen=True, gc=False):
    """The position of a passage: characters ``start`` to ``end`` of a part's searchable text."""

    message: int
    part: int
    start: int
    end: int
    first_line: int
    last_line: int
    """Lines of the part, from 1; both 0 when the passage is the whole part."""


def passages_of(message: Message, index: int) -> Iterator[tuple[Passage, str]]:
    """Divide a message into passages, each with its text. Texts that kompakt wrote are left out."""
    for number, part in enumerate(message.parts):
        if is_own(message, part):
            continue
        text = spoken(part)
        if not text.strip():
            continue
        is_list = type(part) is ToolResult and text.startswith(_RECORDS[0])
        if len(text) <= (TURN_CHARS if type(part) is Text else 2 * RECORD_CHARS if is_list else WHOLE_CHARS):
            yield Passage(index, number, 0, len(text), 0, 0), text
            continue
        numbered = type(part) is not ToolCall
        for start, end, first, last in _divided(text):
            lines = (first, last) if numbered else (0, 0)
            yield Passage(index, number, start, end, *lines), text[start:end]


def is_own(message: Message, part: Part) -> bool:
    """Return whether a part is a text that an earlier compaction put there."""
    if type(part) is Text:
        return phrases.is_own(part.text) or (message.role == "assistant" and phrases.unseal(part.text) is not None)
    return type(part) is ToolResult and _OWN_PLACEHOLDER.fullmatch(part.output) is not None


def is_recall(part: Part, calls: Mapping[str, ToolCall]) -> bool:
    """Return whether a part is a call of the recall tool or its result, which repeats other passages."""
    call = part if type(part) is ToolCall else calls.get(part.call_id) if type(part) is ToolResult else None
    name = call.name if call is not None else part.name if type(part) is ToolResult else None
    if name != "recall" or call is None:
        return name is not None and name.endswith("recall") and ("kompakt" in name or name == "recall")
    value = call.input  # the tool of an application may have the same name
    if isinstance(value, str):
        return value.lstrip().startswith('{"query"')
    return isinstance(value, dict) and list(value) == ["query"]


def is_by_user(message: Message, part: Part) -> bool:
    """Return whether a part is a text that the user wrote. It is read whole, so ask once, not for each passage."""
    if message.role != "user" or message.source_id is not None or type(part) is not Text:
        return False
    return not is_injected(part.text)


def spoken(part: Part) -> str:
    """Return the searchable text of a part: of a call, its name and arguments, one per line."""
    if type(part) is Text or type(part) is Reasoning:
        return part.text
    if type(part) is ToolResult:
        return part.output
    if type(part) is ToolCall:
        return "\n".join([part.name, *_arguments(_decoded(part.input), "")])
    return exact(part) if type(part) is Opaque else ""


def exact(part: Part) -> str:
    """Return the text of a part byte for byte: of a call its JSON, of media the data or URL."""
    if type(part) is Text:
        return part.text
    if type(part) is ToolResult:
        return part.output
    if type(part) is ToolCall:
        return part.input if type(part.input) is str else json_text(part.input)
    if type(part) is Reasoning:
        return part.text or part.blob or ""
    if type(part) is Media:
        return part.data or part.url or ""
    return json_text(part.raw) if type(part) is Opaque else ""


def subject_of(call: ToolCall) -> str:
    """Return the file, command or URL that a call is about, else its short arguments, in one line."""
    arguments = _decoded(call.input)
    if not isinstance(arguments, dict):
        return ""
    for key in _SUBJECT_KEYS:
        if line := _line_of(arguments.get(key)):
            return _cut(line)
    lines = {key: _line_of(value) for key, value in islice(arguments.items(), _MAX_ARGUMENTS)}
    short = [f"{key} {line}" for key, line in lines.items() if line and len(line) <= _ARGUMENT_CHARS]
    if len(short) > 1:
        return _cut(", ".join(short))
    return _cut(next(filter(None, lines.values()), ""))


def _line_of(value: Json) -> str:
    """Return the first line of a text or of a list of words; empty for another value."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return json_text(value)
    words = " ".join(map(str, value)) if isinstance(value, list) and all(map(_is_text, value)) else value
    if not isinstance(words, str):
        return ""
    return _SHELL.sub("", words.strip(), count=1).split("\n", 1)[0]


def _cut(line: str) -> str:
    return line if len(line) <= _SUBJECT_CHARS else f"{line[:_SUBJECT_CHARS]}…"


def _is_text(value: Json) -> bool:
    return isinstance(value, str)


def _decoded(value: Json) -> Json:
    if not isinstance(value, str):
        return value
    try:
        return decode_text(value)
    except ValueError:
        return value


def _arguments(value: Json, key: str) -> Iterator[str]:
    """Write a JSON value as lines of name and value, with texts unescaped."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _arguments(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _arguments(inner, key)
    elif value is not None:
        said = value if isinstance(value, str) else json_text(value)
        yield f"{key}: {said}" if key else said


def line_ends(text: str) -> list[int]:
    """Return the end positions of the lines of a text; a long line is divided between records or words."""
    return [found.end() for found in _LINE.finditer(text)]


def _divided(text: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield runs of whole lines of about ``PASSAGE_CHARS``: start, end, first and last line."""
    start, first = 0, 1
    ends = line_ends(text)
    has_records = text.startswith(_RECORDS) and text[ends[0] - 1] != "\n"
    for number, end in enumerate(ends, start=1):
        last = number == len(ends)
        if has_records:
            is_enough = text.startswith("{", end) and end - start >= RECORD_CHARS
        else:
            is_enough = end - start >= PASSAGE_CHARS
        if last or is_enough or ends[number] - start > WHOLE_CHARS:
            if text[start:end].strip():
                yield start, end, first, number
            start, first = end, number + 1
