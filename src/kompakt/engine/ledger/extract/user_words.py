"""The user's own words: what a person wrote in a user message, and the sentences in it that demand or forbid.

Agents put more than a person's words into user messages: reminders in tags, skill files, slash commands, notes about
interruptions, summaries. None of that is the user's. Linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kompakt.engine.ledger.excerpts import harmless, quoted

MAX_PASTED = 200
"""Characters shown of what the user pasted."""

MAX_LINE = 400
"""Longest line of the user's that is kept whole; of a longer one the sentences that bind."""

_TAG = re.compile(r"<(/?)([A-Za-z][\w-]{0,80})(?:\s[^<>]{0,2000})?(/?)>")
_NEVER_CLOSED = frozenset(["area", "br", "col", "hr", "img", "input", "li", "link", "meta", "p", "source"])
_MAX_TAGS = 20
"""Consecutive tagged texts that are skipped."""
_FENCES = ("```", "~~~")
STRICT = re.compile(
    r"\b(?:don['\u2019]?t|do not|never|always|must|only|make sure|should(?:n['\u2019]?t| not)|instead of"
    r"|without \w+ing|(?<!\bI )ha(?:ve|s) to)\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_PASTED = re.compile(
    r"^(?:>|\d{1,5}[:|\u2192\t]|\d{4}-\d\d-\d\d[T ]\d|\[\d|at \S+\(|File \"|[+-]{3} |@@ |\$ |\S+:\d+:|[{}\[\]();]+$"
    r"|//|/\*|\* @|(?:\S+\s+)?\[?(?:ERROR|WARN(?:ING)?|INFO|DEBUG|TRACE|FATAL)\b)|\) ?=>|=> ?[{(\[]"
)
_CODE = frozenset("=(){}")


def own_words(text: str) -> str:
    """Leave out of a user's text what is not in the user's own words."""
    if "<" in text:
        text = "\n".join(_untagged(text))
    if "```" in text or "~~~" in text:
        text = "\n".join(_unfenced(text.split("\n")))
    return text


def _untagged(text: str) -> Iterator[str]:
    """Yield the text outside of tags; an unclosed tag on a line of its own reaches to the end."""
    tags = list(_TAG.finditer(text))
    opened: dict[str, list[int]] = {}
    closed: dict[int, int] = {}
    for number, tag in enumerate(tags):
        if not tag[1] and not tag[3]:
            opened.setdefault(tag[2], []).append(number)
        elif tag[1] and opened.get(tag[2]):
            closed[opened[tag[2]].pop()] = tag.end()
    lost = {number for name, numbers in opened.items() if name.lower() not in _NEVER_CLOSED for number in numbers}
    at = 0
    for number, tag in enumerate(tags):
        if tag.start() < at:
            continue
        end = closed.get(number, len(text) if number in lost and _is_alone(text, tag.start(), tag.end()) else 0)
        if end:
            yield text[at : tag.start()]
            at = end
    yield text[at:]


def _is_alone(text: str, start: int, end: int) -> bool:
    """Return whether a line contains nothing else."""
    before = text[max(0, start - 200) : start].rpartition("\n")[2]
    return not before.strip() and not text[end : end + 200].partition("\n")[0].strip()


def _unfenced(lines: list[str]) -> Iterator[str]:
    """Yield the lines outside of code blocks."""
    fence = ""
    for line in lines:
        begun = line.lstrip()[:3]
        if fence:
            fence = "" if begun == fence else fence
        elif begun in _FENCES and line.count(begun) == 1:
            fence = begun
        else:
            yield line


def spoken_lines(text: str) -> list[str]:
    """Return the lines of a user's text that the user wrote."""
    lines = map(str.strip, own_words(text).split("\n"))
    return [line for line in lines if line and not _is_pasted(line) and not _TAG.match(line)]


def _is_pasted(line: str) -> bool:
    """Return whether a line looks like code, a log or a quotation."""
    if _PASTED.search(line[:MAX_LINE]) or line.endswith(("{", "}")):
        return True
    return line.endswith(";") and not _CODE.isdisjoint(line)


def binding(text: str) -> list[str]:
    """Return the sentences that forbid, demand or restrict something, with their line if it is not long."""
    if not STRICT.search(text):
        return []
    found: list[str] = []
    for line in spoken_lines(text):
        if not STRICT.search(line):
            continue
        if len(line) <= MAX_LINE:
            found.append(line)
        else:
            found += [part for part in _SENTENCE.split(line) if len(part) <= MAX_LINE and STRICT.search(part)]
    return found


_NOTICE = re.compile(
    r"\s*(?:\[Request interrupted|Caveat: The messages below|This session is being continued from"
    r"|Another language model started to solve|[A-Z]\w+ hook feedback:"
    r"|<(?:local-command|task-notification|bash-stdout|bash-stderr)\b)"
)
"""Beginnings of notices that coding agents put into user messages: interruptions, output of local commands and hooks,
and summaries that another agent wrote."""

_READ_IN = re.compile(
    r"\s*(?:Base directory for this skill|Invoke the \S+ skill|/[a-z][\w:.-]*\s*$"
    r"|Retrieving content for: |Added workspace context|#{1,2} [A-Z][\w -]* (?:Command|Skill)\b)"
)
"""Beginnings of skill and command files that were read in, slash commands without words, and notes of OpenHands."""

_AGENT_CONTEXT = ("# AGENTS.md instructions", "This is the Gemini CLI.")
"""Beginnings of texts that agents put before the task. Most agents put theirs into tags."""

_CONTEXT_TAG = re.compile(
    r"\s*<(?:environment_context|environment_details|user_instructions|session_context|permissions instructions)>"
)
"""Tags in which Codex, Gemini CLI and Cline put their own context."""

_COMMAND_NAME = re.compile(r"<command-name>\s*(/?[\w:.-]{1,80})\s*</command-name>")
_COMMAND_WORDS = re.compile(r"<command-args>(.{1,4000}?)</command-args>", re.DOTALL)


def is_notice(text: str) -> bool:
    """Return whether a text in a user message only reports something and requests nothing."""
    return _NOTICE.match(text) is not None


def is_injected(text: str) -> bool:
    """Return whether an agent and not a person wrote a text in a user message.

    Notices, files that were read in, slash commands without words, and context in tags that agents are known to use,
    such as Codex's ``<environment_context>``. Other tags may be the user's: some people write whole requests in them.
    """
    if _NOTICE.match(text) or _READ_IN.match(text) or text.startswith(_AGENT_CONTEXT):
        return True
    if "<command-name>" in text[:400]:
        return not user_message(text)
    return _CONTEXT_TAG.match(text) is not None and not without_leading_tags(text).strip()


def without_leading_tags(text: str) -> str:
    """Leave out tagged texts before the first words: reminders, environment, commands."""
    for _ in range(_MAX_TAGS):
        text = text.lstrip()
        tag = _TAG.match(text)
        end = text.find(f"</{tag[2]}>") if tag and not tag[1] and not tag[3] else -1
        if tag is None or end < 0:
            break
        text = text[end + len(tag[2]) + 3 :]
    return text


def user_message(text: str) -> str:
    """Return what the user wrote in a message, on one line; empty where nothing of it is the user's.

    Words given to a slash command are the user's, the command's own text is not. Code, logs and documents that the user
    pasted are quoted and cut: the user chose to show them, but nothing in them is a demand of the user's.
    """
    if _NOTICE.match(text) or _READ_IN.match(text):
        return ""
    if command := _COMMAND_NAME.search(text):
        words = _COMMAND_WORDS.search(text)
        return f"{command[1]} {_folded(words[1])}" if words and words[1].strip() else ""
    bare = "\n".join(_untagged(text)) if "<" in text else text
    lines = spoken_lines(text)
    own = set(lines)
    pasted = [line for line in map(str.strip, bare.split("\n")) if line and line not in own and line[:3] not in _FENCES]
    shown = " ".join(lines)
    if pasted and (said := " ".join(pasted)[:MAX_PASTED].strip()):
        shown += f" (pasted: {quoted(said, MAX_PASTED)})"
    return harmless(shown.strip())


def _folded(text: str) -> str:
    return harmless(" ".join(filter(None, map(str.strip, text.split("\n")))))
