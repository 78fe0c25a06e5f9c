"""Check of the references and quotations in a summary, and the user's demands that it misses.

A reference is valid if the material has it, a quotation of the user if the user wrote it. Demands and prohibitions of
the user are added if a summary does not contain them word for word. Linear in the texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from kompakt.agent.summarizer.prompts import CONSTRAINTS
from kompakt.engine.context.archive import speaks
from kompakt.engine.ledger.extract.user_words import STRICT, binding
from kompakt.engine.pivot.pivot import Material
from kompakt.model.messages import Text
from kompakt.model.phrases import is_own

_CITED = re.compile(r"(?<![\w./-])m(?=[0-9a-f]*\d)[0-9a-f]{4,40}(?:\.\d+)?(?![\w-]|\.\w)")
"""A reference. One without a digit could be a word and is not matched."""

_BRACKETS = re.compile(r"(?:(?<![ \t])[ \t]++)?(?:\[([^\[\]\n]{1,1000})\]|\(([^()\n]{1,1000})\))")
_SEPARATOR = re.compile(r"\s*[,;]\s*|\s+")
_QUOTED = re.compile(r"\s*(?:[-*] )*user, (m[0-9a-f]{4,40}(?:\.\d+)?): ?((?:.*\S)?)\s*")
_SPEAKER = re.compile(r"\s*(?:\[[^\]\n]{0,80}\]\s*)?[A-Z][A-Za-z' -]{0,30}:\s")
"""The name of a speaker at the start of a message, as in a transcript of a conversation between people."""

_MARKS = "\"'`\u201c\u201d"


DEMANDS_SHARE = 0.5
"""Share of a narrative for demands of the user that it misses. More would displace the model's text."""


MIN_TALK = 10
"""Least messages, most of them with a speaker's name, for a conversation between people."""

MIN_DEMANDS = 80
"""Least tokens for these demands."""


class Saying(msgspec.Struct, frozen=True, gc=False):
    """Words of the user on one line, with the reference of their message."""

    reference: str
    words: str

    def __str__(self) -> str:
        return f"- user, {self.reference}: {self.words}"


# --- references --------------------------------------------------------------------------------------------------


def cited(text: str) -> set[str]:
    """Return the references in a text."""
    return {name.partition(".")[0] for name in _CITED.findall(text)}


def without(text: str, names: set[str]) -> str:
    """Remove references from a text, with brackets that contain nothing else."""

    def is_one(name: str) -> bool:
        return _CITED.fullmatch(name) is not None and name.partition(".")[0] in names

    def bracket(found: re.Match[str]) -> str:
        listed = _SEPARATOR.split((found[1] or found[2]).strip())
        if not any(map(is_one, listed)) or not all(map(_CITED.fullmatch, listed)):
            return found[0]
        kept = ", ".join(name for name in listed if not is_one(name))
        opening = found[0].lstrip()[0]
        return f" {opening}{kept}{']' if opening == '[' else ')'}" if kept else ""

    def loose(found: re.Match[str]) -> str:
        return "" if is_one(found[0].strip()) else found[0]

    return re.sub(rf"[ \t]?{_CITED.pattern}", loose, _BRACKETS.sub(bracket, text)) if names else text


# --- the user's words --------------------------------------------------------------------------------------------


class Sayings:
    """The user's words in a material."""

    def __init__(self, material: Material) -> None:
        self._said = list(_said(material))
        self._earlier = list(quotations(material.earlier or ""))
        held = [saying for saying in self._earlier if STRICT.search(saying.words)]
        # People who talk to each other use the same words, but give no rules to an assistant.
        named = sum(_SPEAKER.match(text) is not None for _, text in self._said)
        is_talk = len(self._said) >= MIN_TALK and named * 2 > len(self._said)
        demanded = [Saying(name, line) for name, text in self._said for line in binding(text)] if not is_talk else []
        self.demanded = list({saying.words: saying for saying in [*held, *demanded]}.values())
        """Demands and prohibitions of the user, oldest first, after those that an earlier summary quotes."""

    def origin(self, words: str) -> str | None:
        """Return the reference of the message with these words; ``None`` if there is none."""
        for name, text in self._said:
            if words and words in text:
                return name
        return next((saying.reference for saying in self._earlier if words and words in saying.words), None)

    def corrected(self, text: str) -> str:
        """Correct the references of quotations of the user; false quotations become plain statements."""
        return "\n".join(map(self._corrected, text.split("\n")))

    def _corrected(self, line: str) -> str:
        claim = _QUOTED.fullmatch(line)
        if claim is None:
            return line
        for words in (claim[2], claim[2].strip(_MARKS)):
            origin = self.origin(words)
            if origin is not None:
                return str(Saying(origin, words))
        return f"- {claim[2]} [{claim[1]}]"

    def completed(self, text: str, most: int, count: Callable[[str], int], *, known: str = "") -> str:
        """Add demands of the user that are neither in a text nor in ``known``, within a limit.

        Demands take a share of the limit, the newest first; the ledger has the others if there is room. If that share
        does not fit, other lines are removed, from the first on and headings last.
        """
        beside = " ".join(known.split())
        demanded = [saying for saying in self.demanded if " ".join(saying.words.split()) not in beside]
        missing = [saying for saying in demanded if saying.words not in text]
        while missing and count("\n".join(map(str, missing))) > max(most * DEMANDS_SHARE, MIN_DEMANDS):
            del missing[0]
        lines = text.split("\n")
        others = [line for line in lines if not any(saying.words in line for saying in self.demanded)]
        others.sort(key=lambda line: line.startswith("#"))
        others.reverse()
        while missing:
            made = _with(lines, missing)
            if count(made) <= most:
                return made
            if others:
                lines.remove(others.pop())
            else:
                del missing[0]
        return text


def quotations(text: str) -> Iterator[Saying]:
    """Yield the user's words that a summary quotes."""
    for line in text.split("\n"):
        claim = _QUOTED.fullmatch(line)
        if claim is not None and claim[2]:
            yield Saying(claim[1], claim[2])


def _said(material: Material) -> Iterator[tuple[str, str]]:
    """Yield the user's own texts with their references."""
    for message, reference in zip(material.messages, material.references, strict=True):
        if speaks(message):
            for part in message.parts:
                if type(part) is Text and not is_own(part.text):
                    yield reference, part.text


def _with(lines: Sequence[str], sayings: Iterable[Saying]) -> str:
    """Append quotations to their section, which is added if there is none."""
    added = list(map(str, sayings))
    heading = next((at for at, line in enumerate(lines) if line.lower().startswith(CONSTRAINTS.lower())), None)
    if heading is None:
        return "\n".join([*lines, CONSTRAINTS, *added]).strip()
    end = next((at for at in range(heading + 1, len(lines)) if lines[at].startswith("#")), len(lines))
    while end > heading + 1 and not lines[end - 1].strip():
        end -= 1
    return "\n".join([*lines[:end], *added, *lines[end:]]).strip()
