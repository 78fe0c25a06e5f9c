"""HTML: the text of a page, without scripts, styles and markup. Cost: one pass of the standard parser."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from kompakt.engine.admission.failures import Shrunk
from kompakt.engine.admission.settings import AdmissionSettings

_START = re.compile(
    r"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)?(?:<!doctype\s+html|<html[\s>])", re.IGNORECASE | re.DOTALL
)

_HIDDEN = ("script", "style", "noscript", "template", "svg", "iframe")
"""Elements that a browser does not display."""

_BLOCKS = frozenset(
    (
        *("address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "figcaption", "footer", "form"),
        *("h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "option", "p", "pre"),
        *("section", "table", "title", "tr", "ul"),
    )
)
"""Elements that start a new line."""

_BLANK = re.compile(r"[ \t\r\f\v\xa0]+")


def is_html(text: str) -> bool:
    """Return whether a text is an HTML document."""
    return _START.match(text[:4_000]) is not None


def shrink(text: str, settings: AdmissionSettings) -> Shrunk | None:
    """Return the text of a page, with headings, list items and links marked as in Markdown."""
    del settings
    reader = _Reader()
    reader.feed(text)
    reader.close()
    lines = [_BLANK.sub(" ", line).strip() for line in "".join(reader.out).split("\n")]
    kept = [line for place, line in enumerate(lines) if line or (place and lines[place - 1])]
    written = "\n".join(kept).strip("\n")
    total = text.count("\n") + 1
    return Shrunk(written, max(1, total - len(kept)), total, ()) if written else None


class _Reader(HTMLParser):
    """Collects the text of a document."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.out: list[str] = []
        self._hidden = 0
        self._links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _HIDDEN:
            self._hidden += 1
        if self._hidden:
            return
        if tag in _BLOCKS:
            self.out.append("\n")
        if tag == "li":
            self.out.append("- ")
        elif tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
            self.out.append("#" * int(tag[1]) + " ")
        elif tag in ("td", "th"):
            self.out.append(" | ")
        elif tag == "a":
            target = dict(attrs).get("href") or ""
            self._links.append("" if target.startswith(("#", "javascript:")) else target)
        elif tag == "img" and dict(attrs).get("alt"):
            self.out.append(f"[image: {dict(attrs)['alt']}]")

    def handle_endtag(self, tag: str) -> None:
        if tag in _HIDDEN:
            self._hidden = max(0, self._hidden - 1)
        elif self._hidden:
            return
        elif tag == "a" and self._links:
            target = self._links.pop()
            self.out.append(f" <{target}>" if target else "")
        elif tag in _BLOCKS:
            self.out.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.out.append(data if "\n" not in data else " ".join(data.split("\n")))
