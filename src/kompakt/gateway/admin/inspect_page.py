"""The ``/inspect/plain`` page: recorded sessions as HTML, without scripts or resources, with all values escaped."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from starlette.responses import Response

if TYPE_CHECKING:
    from kompakt.gateway.admin.openapi import SessionDetails, SessionPage, SessionSummary

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1c1c1c; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #ddd; overflow-wrap: anywhere; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f5f5f5; padding: 1rem; }
.undone { color: #888; }
a { color: #0b57d0; }
@media (prefers-color-scheme: dark) {
  body { background: #161616; color: #e6e6e6; } th, td { border-color: #333; } pre { background: #222; }
  a { color: #8ab4f8; }
}
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_HASH}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def session_list(page: SessionPage, *, keyless: bool = False) -> Response:
    """Render a list of sessions, the newest first."""
    rows = [_row(one) for one in sorted(page.sessions, key=lambda one: one.touched, reverse=True)]
    parts = ["<h1>Sessions</h1>"]
    if rows:
        head = (
            "session",
            "model",
            "client",
            "tenant",
            "messages",
            "turns",
            "compactions",
            "before",
            "after",
            "last written",
        )
        parts.append(_table(head, rows, numbers=range(4, 9)))
    elif keyless:
        parts.append("<p>This gateway requires keys: send one in the header x-kompakt-key to see its sessions.</p>")
    else:
        parts.append("<p>No sessions recorded yet.</p>")
    if page.next:
        parts.append(f'<p><a href="?{escape(urlencode({"after": page.next}))}">next page</a></p>')
    return _page("Sessions", parts)


def _row(one: SessionSummary) -> list[str]:
    where = escape(urlencode({"session": one.id, "tenant": one.tenant}, errors="replace"))
    link = f'<a href="?{where}" title="{_shown(one.id)}">{_shown(one.title or one.id)}</a>'
    if one.purpose:
        link += f' <span class="undone">{_shown(one.purpose)}</span>'
    numbers = (one.messages, one.turns, one.compactions, one.tokens_before, one.tokens_after)
    texts = (one.model or one.format, one.client or "", one.tenant)
    return [link, *map(_shown, texts), *map(_number, numbers), _shown(one.touched)]


def session_details(details: SessionDetails, query: str, found: str) -> Response:
    """Render one session and the result of a search in it."""
    one = details.session
    saved = sum(each.tokens_before - each.tokens_after for each in details.compactions if not each.undone)
    parts = [
        '<p><a href="/inspect/plain">all sessions</a></p>',
        f"<h1>{_shown(one.title or one.id)}</h1>",
        f"<p>{_shown(_origin(one))}, {one.messages:,} messages, {one.turns:,} turns, started {_shown(one.created)}, "
        f"{one.compactions:,} compactions that saved {saved:,} tokens.</p>",
        _compactions(details),
        '<form method="get"><p>'
        f'<input type="hidden" name="session" value="{escape(one.id)}">'
        f'<input type="hidden" name="tenant" value="{escape(one.tenant)}">'
        f'<input name="q" value="{escape(query)}" aria-label="words or a reference to search for" size="40"> '
        "<button>search</button></p></form>",
    ]
    if query:
        parts.append(f"<pre>{escape(found)}</pre>")
    return _page(one.id, parts)


def _origin(one: SessionSummary) -> str:
    return ", ".join(filter(None, (one.id, one.purpose, one.client, one.model, one.format)))


def _compactions(details: SessionDetails) -> str:
    if not details.compactions:
        return "<p>No compactions: every request was passed on unchanged.</p>"
    rows = [
        [
            *map(_shown, (one.id, one.at, one.reason, one.policy)),
            *map(_number, (one.tokens_before, one.tokens_after)),
            "undone" if one.undone else "",
        ]
        for one in details.compactions
    ]
    return _table(("compaction", "time", "reason", "policy", "before", "after", ""), rows, numbers=range(4, 6))


def _table(head: tuple[str, ...], rows: list[list[str]], *, numbers: range) -> str:
    def line(cells: tuple[str, ...] | list[str], tag: str) -> str:
        marks = (' class="n"' if at in numbers else "" for at in range(len(cells)))
        return "".join(f"<{tag}{mark}>{cell}</{tag}>" for mark, cell in zip(marks, cells, strict=True))

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{line(head, 'th')}</tr></thead><tbody>{body}</tbody></table>"


def _shown(text: str) -> str:
    return escape("".join(each if each.isprintable() else "�" for each in text))


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _page(title: str, parts: list[str]) -> Response:
    html = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_shown(title)} – kompakt</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>"
    )
    return Response(html.encode("utf-8", "replace"), headers=_HEADERS, media_type="text/html")
