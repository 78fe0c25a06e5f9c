"""What a summary claims, held against what bears it out: references it cites, words it puts into the user's mouth.

A model's citation counts when the material has that name; its quotation of the user when the user said so. What the
user demanded or forbade is added where a summary does not have it word for word. Linear in the texts.
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
"""A reference: one without any digit is as likely a word, and is let be."""

_BRACKETS = re.compile(r"(?:(?<![ \t])[ \t]++)?(?:\[([^\[\]\n]{1,1000})\]|\(([^()\n]{1,1000})\))")
_SEPARATOR = re.compile(r"\s*[,;]\s*|\s+")
_QUOTED = re.compile(r"\s*(?:[-*] )*user, (m[0-9a-f]{4,40}(?:\.\d+)?): ?((?:.*\S)?)\s*")
_SPEAKER = re.compile(r"\s*(?:\[[^\]\n]{0,80}\]\s*)?[A-Z][A-Za-z' -]{0,30}:\s")
"""Starts a message in which the name of its speaker is written, as in a transcript of people who talk."""

_MARKS = "\"'`\u201c\u201d"


DEMANDS_SHARE = 0.5
"""Share of a narrative for demands of the user that are nowhere else. More would push out what the model wrote."""


MIN_TALK = 10
"""Messages from which names before them show that people talk to each other."""

MIN_DEMANDS = 80
"""Tokens that they may have where that share is less."""


class Saying(msgspec.Struct, frozen=True, gc=False):
    """Words of the user's, one line, with where they stand."""

    reference: str
    words: str

    def __str__(self) -> str:
        return f"- user, {self.reference}: {self.words}"


# --- references --------------------------------------------------------------------------------------------------


def cited(text: str) -> set[str]:
    """List the references that stand in a text."""
    return {name.partition(".")[0] for name in _CITED.findall(text)}


def without(text: str, names: set[str]) -> str:
    """Take references out of a text, with the brackets that hold nothing else."""

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
    """What the user said, as far as a material shows it."""

    def __init__(self, material: Material) -> None:
        self._said = list(_said(material))
        self._earlier = list(quotations(material.earlier or ""))
        held = [saying for saying in self._earlier if STRICT.search(saying.words)]
        # People who talk to each other use the same words, but give no rules to an assistant.
        named = sum(_SPEAKER.match(text) is not None for _, text in self._said)
        is_talk = len(self._said) >= MIN_TALK and named * 2 > len(self._said)
        demanded = [Saying(name, line) for name, text in self._said for line in binding(text)] if not is_talk else []
        self.demanded = list({saying.words: saying for saying in [*held, *demanded]}.values())
        """What the user demanded or forbade, oldest first; what an earlier summary quotes comes before."""

    def origin(self, words: str) -> str | None:
        """Find where the user said something; ``None`` where that is nowhere."""
        for name, text in self._said:
            if words and words in text:
                return name
        return next((saying.reference for saying in self._earlier if words and words in saying.words), None)

    def corrected(self, text: str) -> str:
        """Let a text quote the user only where the user said so: the name is set right, or the claim is taken back."""
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
        """Add what the user demanded and neither a text nor what is ``known`` beside it contains, within a limit.

        Demands take a share of the limit, the newest first; the ledger has the others as far as there is room. Where
        there is no room for that share, other lines give way, from the first on and headings last.
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
    """Read back the user's words that a summary quotes."""
    for line in text.split("\n"):
        claim = _QUOTED.fullmatch(line)
        if claim is not None and claim[2]:
            yield Saying(claim[1], claim[2])


def _said(material: Material) -> Iterator[tuple[str, str]]:
    """Go through the texts that are the user's own."""
    for message, reference in zip(material.messages, material.references, strict=True):
        if speaks(message):
            for part in message.parts:
                if type(part) is Text and not is_own(part.text):
                    yield reference, part.text


def _with(lines: Sequence[str], sayings: Iterable[Saying]) -> str:
    """Put quotations at the end of their section; make the section where there is none."""
    added = list(map(str, sayings))
    heading = next((at for at, line in enumerate(lines) if line.lower().startswith(CONSTRAINTS.lower())), None)
    if heading is None:
        return "\n".join([*lines, CONSTRAINTS, *added]).strip()
    end = next((at for at in range(heading + 1, len(lines)) if lines[at].startswith("#")), len(lines))
    while end > heading + 1 and not lines[end - 1].strip():
        end -= 1
    return "\n".join([*lines[:end], *added, *lines[end:]]).strip()
