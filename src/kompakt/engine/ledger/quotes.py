"""How text of others is quoted: one line, bounded, and never able to pass for kompakt's own words."""

from __future__ import annotations

import re

_CONTROL = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
_OWN = re.compile(r"\[(?=\s*kompakt)", re.IGNORECASE)
_FRAME = re.compile(r"`(?= said [\"\u201c]|; there: )|;(?= there: )")
_QUOTATION = re.compile(r" ?(\"[^\"]*\"|\u201c[^\u201d]*\u201d)")


def one_line(text: str, limit: int) -> str:
    """Fold a text into one line of at most so many characters."""
    folded = " ".join(text[: limit * 4].split())
    return folded if len(folded) <= limit else folded[: limit - 1] + "…"


def harmless(text: str) -> str:
    """Take out of a line what could break it, hide in it or imitate a marker."""
    if not text.isprintable():
        text = _CONTROL.sub(" ", text)
    return _OWN.sub("[ ", text) if "[" in text and "kompakt" in text.lower() else text


def keyed(text: str) -> str:
    """Make a text the key of a line: harmless, and without what ends a key there."""
    text = harmless(text)
    return _FRAME.sub("'", text) if "`" in text or ";" in text else text


def quoted(line: str, limit: int) -> str:
    """Quote the beginning of a line as it stands, in marks that it does not hold: it is data, whatever it says."""
    text = harmless(line[:limit])
    if '"' not in text:
        return f'"{text}"'
    if "\u201c" in text or "\u201d" in text:
        return '"' + text.replace('"', "'") + '"'
    return f"\u201c{text}\u201d"


def quotations(text: str) -> tuple[tuple[str, ...], str]:
    """Take quotations off the beginning of a text; return them and what follows."""
    found: list[str] = []
    at = 0
    while quotation := _QUOTATION.match(text, at):
        found.append(quotation[1])
        at = quotation.end()
    return tuple(found), text[at:]
