"""One HTML file with sessions: the pages of the inspector with their data inside, which needs no server.

The file contains the modules of the pages as one script, with ``offline.js`` in place of ``api.js``. The data is
compressed, so no recorded text is ever part of the HTML. A policy in the file allows exactly its own script and style.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kompakt import files
from kompakt.errors import UsageError
from kompakt.inspector.assets import bundle, read_text
from kompakt.inspector.redaction import Redaction
from kompakt.model.json import encode
from kompakt.version import __version__

if TYPE_CHECKING:
    from kompakt.model.messages import JsonObject
    from kompakt.view.inspection import Inspection
    from kompakt.view.values import CompactionView, MessageRow, SessionDetail, SessionRow, StepRequest

MAX_SESSIONS = 20
"""Sessions in one file: the newest."""

MAX_MESSAGES = 5_000
"""Messages of a session in a file: the newest."""

MAX_STEPS = 60
"""Requests of a session in a file: those around compactions, and the newest."""

MAX_TEXT = 2_000_000
"""Characters of all messages in a file. If there are more, the longest messages are cut."""

MAX_MESSAGE = 20_000
"""Characters of one message in a file."""

_PAGE = 500

COPY = "This file is a copy. Open the session with kompakt inspect to change it."


async def write_html(
    inspection: Inspection, out: str | Path, *, session: str | None = None, redact: bool = False
) -> int:
    """Write one session, or the newest ones, as an HTML file that needs no network; return its size in bytes.

    With ``redact`` every text is replaced by its kind and size, and every name by a number.

    Raises:
        UsageError: there is no session, or not this one.
        UnreadableFile: the file cannot be written.
    """
    data = await _collect(inspection, session)
    if redact:
        data = Redaction().file(data)
    page = _page(data, redacted=redact)
    files.write(out, page)
    return len(page)


# --- data ------------------------------------------------------------------------------------------------------------


async def _collect(inspection: Inspection, session: str | None) -> JsonObject:
    """Read everything that the file shows."""
    if session is not None:
        rows, total = [(await inspection.session(session)).row], 1
    else:
        page = await inspection.sessions(limit=MAX_SESSIONS)
        rows, total = list(page.rows), page.total or len(page.rows)
    if not rows:
        raise UsageError("there is no session to export")
    content: dict[str, JsonObject] = {}
    shown: list[SessionRow] = []
    for row in rows:
        detail = await inspection.session(row.id)
        content[row.id] = await _content(inspection, detail)
        shown.append(detail.row)
    _cut([text for one in content.values() for text in one["texts"].values()])
    return {"sessions": msgspec.to_builtins(shown), "content": content, "total": total}


async def _content(inspection: Inspection, detail: SessionDetail) -> JsonObject:
    id = detail.row.id
    growth = await inspection.growth(id)
    whole = await inspection.messages(id, limit=1)
    first = max(0, whole.total - MAX_MESSAGES)
    rows: list[MessageRow] = []
    texts: dict[str, JsonObject] = {}
    while page := (await inspection.messages(id, start=first + len(rows), limit=_PAGE)).rows:
        rows += page
        for seq, text in (await inspection.texts(id, [row.seq for row in page])).items():
            texts[str(seq)] = {"text": text[:MAX_MESSAGE], "total": len(text)}
    for row in rows:
        if row.state == "shortened":
            shown = (await inspection.message(id, row.seq)).shown
            texts[str(row.seq)]["shown"] = shown[:MAX_MESSAGE] if shown is not None else None
    compactions = {one.id: await _compaction(inspection, id, one.id) for one in detail.compactions}
    near = {mark.step + offset for mark in growth.compactions for offset in (-1, 0, 1)}
    newest = range(max(1, growth.steps + 1 - MAX_STEPS), growth.steps + 1)
    chosen = sorted({step for step in near if 1 <= step <= growth.steps} | set(newest))[-MAX_STEPS:]
    sizes = {row.seq: row.tokens for row in rows}
    copy = msgspec.structs.replace(detail, writable=False, live=False, read_only_reason=COPY)
    return {
        "detail": msgspec.to_builtins(copy),
        "growth": msgspec.to_builtins(growth),
        "context": msgspec.to_builtins(await inspection.context(id)),
        "rows": msgspec.to_builtins(rows),
        "notes": whole.notes,
        "texts": texts,
        "compactions": msgspec.to_builtins(compactions),
        "steps": {str(number): _step(await inspection.step(id, number), sizes) for number in chosen},
    }


async def _compaction(inspection: Inspection, id: str, compaction: str) -> CompactionView:
    """Return a compaction with everything that it removed; an inspection gives pages of it."""
    view = await inspection.compaction(id, compaction)
    removed = list(view.removed)
    while page := (await inspection.compaction(id, compaction, start=len(removed))).removed:
        removed += page
    return msgspec.structs.replace(view, removed=tuple(removed))


def _step(step: StepRequest, sizes: dict[int, int]) -> JsonObject:
    """Return a request whose messages are ranges of numbers; they are in the file once."""
    plain = msgspec.to_builtins(step)
    del plain["rows"], plain["answer"]
    return plain | {
        "body": "The request body is not in this file.",
        "body_chars": step.body_chars,
        "ranges": _ranges(row.seq for row in step.rows),
        "sizes": {str(row.seq): row.tokens for row in step.rows if sizes.get(row.seq) != row.tokens},
        "answers": [row.seq for row in step.answer],
    }


def _ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Combine numbers that follow each other."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges


def _cut(texts: list[JsonObject]) -> None:
    """Cut the longest texts, all to the same length, until all together are short enough."""
    lengths = sorted(len(text["text"]) for text in texts)
    left, limit = MAX_TEXT, 0
    for index, length in enumerate(lengths):
        limit = left // (len(lengths) - index)
        if length > limit:
            break
        left -= length
    else:
        return
    for text in texts:
        text["text"] = text["text"][:limit]


# --- page ------------------------------------------------------------------------------------------------------------


def _page(data: JsonObject, *, redacted: bool) -> bytes:
    """Return the page with its data."""
    script, style = bundle(api="offline"), read_text("style.css")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    icon = base64.b64encode(read_text("icon.svg").encode()).decode()
    packed = base64.b64encode(zlib.compress(encode(data), 9)).decode()
    rows = data["sessions"]
    only = f' data-session="{html.escape(rows[0]["id"])}"' if len(rows) == 1 else ""
    kind = "Redacted copy" if redacted else "Copy"
    some = f" of the newest {len(rows):,} of {data['total']:,} sessions" if data["total"] > len(rows) else ""
    page = read_text("index.html")
    page = re.sub(r"<(?:link|script)\b[^>]*>(?:</script>)?\n", "", page)
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<link rel="icon" href="data:image/svg+xml;base64,{icon}">\n<style>{style}</style>\n</head>'
    )
    tail = (
        f'<footer class="page faint"><p>{kind}{some}, written by kompakt {__version__}.</p></footer>\n'
        f'<script type="text/plain" id="kompakt-data"{only}>{packed}</script>\n<script>{script}</script>\n</body>'
    )
    return page.replace("</head>", head, 1).replace("</body>", tail, 1).encode()


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
