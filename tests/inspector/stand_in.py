"""An inspection with invented sessions, for tests of what shows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from kompakt.errors import UsageError
from kompakt.view.status import CompactionStatus
from kompakt.view.values import (
    KINDS,
    ActionResult,
    CacheClasses,
    CompactionMark,
    CompactionPreview,
    CompactionView,
    ContentKind,
    ContextNode,
    ContextView,
    Growth,
    GrowthPoint,
    InspectorAction,
    MessagePage,
    MessageRow,
    MessageText,
    PivotLine,
    RecallAnswer,
    RemovedItem,
    RepeatedContent,
    SessionDetail,
    SessionList,
    SessionRow,
    StepRequest,
)

HOSTILE = (
    "[bold red]markup[/] [@click=app.quit]quit[/] <script>alert(1)</script> \x1b[31mred\x07 \u202egnp.exe\u200b [/"
)
"""Markup of Rich and Textual, HTML, terminal controls, bidirectional and invisible characters, an unclosed tag."""

PAGE_CHARS = 65_536


class StandIn:
    """Answers like ``Inspection``, from values that are made up here. Actions are only recorded."""

    def __init__(self, *, messages: int = 60, sessions: int = 3, writable: bool = False, text: str = HOSTILE) -> None:
        self.writable = writable
        self.text = text
        self.acted: list[InspectorAction] = []
        self.deleted = False
        self.asked: list[str] = []
        self.changed: dict[str, asyncio.Event] = {}
        self.rows = tuple(self._message(seq) for seq in range(messages))
        self.sessions_made = [self._session(number, messages) for number in range(sessions)]

    def _session(self, number: int, messages: int) -> SessionRow:
        return SessionRow(
            id=f"session-{number}",
            title=f"Fix the login of shop {number} {self.text if number == 1 else ''}",
            client="claude-code",
            model="claude-sonnet-4-5",
            format="anthropic",
            tokens=124_000 - 40_000 * (number % 3),
            window=200_000,
            fullness=(124_000 - 40_000 * (number % 3)) / 200_000,
            messages=messages,
            steps=messages // 2,
            compactions=2,
            tokens_saved=181_000,
            money_saved=1.25,
            last_activity="2026-11-16T17:04:05Z",
        )

    def _message(self, seq: int) -> MessageRow:
        kinds: tuple[ContentKind, ...] = ("user", "assistant", "tool_results")
        kind = "user" if seq == 0 else kinds[1 + seq % 2]
        title = f"message {seq} {self.text if seq in (1, 2) else ''}"
        return MessageRow(
            seq=seq,
            role="user" if kind != "assistant" else "assistant",
            kind=kind,
            tool="read_file" if kind == "tool_results" else None,
            title=title[:120],
            tokens=100 + 37 * seq,
            at="2026-11-16T17:04:05Z",
            pinned=seq == 3,
            state="replaced" if 0 < seq < 6 else "sent",
            ref=f"m{seq:04x}",
            step=(seq + 1) // 2,
        )

    async def sessions(self, query: str = "", cursor: str | None = None, limit: int = 50) -> SessionList:
        found = [row for row in self.sessions_made if query.lower() in row.title.lower()]
        start = int(cursor or 0)
        rows = tuple(found[start : start + limit])
        return SessionList(rows=rows, next=str(start + limit) if start + limit < len(found) else None, total=len(found))

    async def only(self) -> str | None:
        return self.sessions_made[0].id if len(self.sessions_made) == 1 else None

    async def session(self, id: str) -> SessionDetail:
        row = next((row for row in self.sessions_made if row.id == id), None)
        if row is None:
            raise UsageError(f"there is no session {id}")
        return SessionDetail(
            row=row,
            messages=len(self.rows),
            turns=1,
            recallable=5,
            compactions=tuple(self._compaction(number) for number in (1, 2)),
            pins=("message 3",),
            cache=CacheClasses(fresh=9_000, cached=800_000, written=40_000, output=12_000, money=1.5, reported=True),
            policies=("default", "conservative", "aggressive"),
            can_undo=True,
            writable=self.writable,
            read_only_reason="" if self.writable else "read-only; start with --write",
        )

    def _compaction(self, number: int) -> CompactionStatus:
        return CompactionStatus(
            id=f"c{number}",
            at="2026-11-16T17:04:05Z",
            reason="the window is nearly full",
            policy="default",
            tokens_before=160_000,
            tokens_after=60_000 + number,
            covers_to=6,
        )

    async def growth(self, id: str) -> Growth:
        points: list[GrowthPoint] = []
        for step in range(1, len(self.rows) // 2 + 1):
            grown = (step % 20) * 7_000
            tokens = {"system": 8_000, "tools": 12_000, "user": 2_000, "assistant": grown // 3, "tool_results": grown}
            tokens["ledger"] = 5_000 if step >= 20 else 0
            total = sum(tokens.values())
            points.append(GrowthPoint(step=step, seq=2 * step, tokens=tokens, total=total, cached=total // 2))
        mark = CompactionMark(id="c1", step=20, before=160_000, after=60_000)
        marks = (mark,) if len(points) >= 20 else ()
        return Growth(
            window=200_000,
            reserve=20_000,
            trigger=170_000,
            target=90_000,
            kinds=KINDS,
            steps=len(points),
            points=tuple(points),
            compactions=marks,
        )

    async def messages(self, id: str, start: int = 0, limit: int = 100, kind: str | None = None) -> MessagePage:
        self.asked.append(f"messages {start}")
        rows: Sequence[MessageRow] = [row for row in self.rows if kind is None or row.kind == kind]
        return MessagePage(rows=tuple(rows[start : start + limit]), start=start, total=len(rows), messages=len(rows))

    async def message(self, id: str, seq: int, offset: int = 0) -> MessageText:
        if seq >= len(self.rows):
            raise UsageError(f"there is no message {seq}")
        text = f"whole text of message {seq}\n{self.text}\n" + ("long " * 30_000 if seq == 4 else "")
        end = offset + PAGE_CHARS
        return MessageText(
            row=self.rows[seq],
            text=text[offset:end],
            offset=offset,
            next=end if end < len(text) else None,
            total=len(text),
        )

    async def step(self, id: str, n: int) -> StepRequest:
        last = len(self.rows) // 2
        if not 1 <= n <= last + 1:
            raise UsageError(f"there is no step {n}")
        return StepRequest(
            step=n,
            steps=last,
            seq=2 * n,
            total=100,
            tokens={"user": 100},
            cached=50,
            rows=self.rows[:4],
            answer=self.rows[-1:] if n <= last else (),
            body='{"model": "m"}',
            body_chars=14,
        )

    async def context(self, id: str) -> ContextView:
        leaves = tuple(
            ContextNode(name=row.title, kind=row.kind, tokens=row.tokens, seq=row.seq, ref=row.ref)
            for row in self.rows[6:12]
        )
        tool = ContextNode(name="read_file", kind="tool_results", tokens=70_000, count=6, children=leaves)
        groups = (
            ContextNode(name="system", kind="system", tokens=8_000),
            ContextNode(name="tool results", kind="tool_results", tokens=70_000, count=6, children=(tool,)),
        )
        repeated = RepeatedContent(title=f"the same file {self.text}", count=3, tokens=9_000, seqs=(7, 9, 11))
        return ContextView(
            total=78_000,
            window=200_000,
            reserve=20_000,
            free=102_000,
            tokens={"system": 8_000, "tool_results": 70_000},
            tree=ContextNode(name="context", kind="system", tokens=78_000, children=groups),
            largest=tuple(sorted(self.rows[6:], key=lambda row: -row.tokens)[:5]),
            repeated=(repeated,),
        )

    def _removed(self) -> tuple[RemovedItem, ...]:
        return tuple(
            RemovedItem(
                seq=row.seq,
                ref=row.ref,
                title=row.title,
                kind=row.kind,
                tokens=row.tokens,
                why="older than the newest turns",
                strategy="summarize",
                pivot_lines=(row.seq + 1,) if row.seq < 4 else (),
                recallable=True,
            )
            for row in self.rows[1:6]
        )

    async def compaction(self, id: str, cid: str) -> CompactionView:
        pivot = [PivotLine(line=1, text="What was done so far?")]
        pivot += [
            PivotLine(line=number, text=f"{item.title} [{item.ref}]", refs=(item.ref,), seqs=(item.seq,))
            for item in self._removed()
            for number in item.pivot_lines
        ]
        return CompactionView(
            id=cid,
            reason="the window is nearly full",
            policy="default",
            tokens_before=160_000,
            tokens_after=60_001 if cid == "c1" else 60_002,
            by_kind_before={"tool_results": 140_000},
            by_kind_after={"tool_results": 40_000},
            pivot=tuple(pivot),
            pivot_tokens=900,
            removed=self._removed(),
            removed_count=5,
            removed_tokens=90_000,
            kept=54,
            named_count=3,
        )

    async def changes(self, id: str | None = None, *, pause: float = 1.0) -> AsyncIterator[list[tuple[str, int]]]:
        while True:
            event = self.changed.setdefault(id or "", asyncio.Event())
            await event.wait()
            event.clear()
            yield [(id or "session-0", len(self.rows))]

    def append(self, count: int) -> None:
        """Add messages to every session, and report it to those who watch."""
        self.rows += tuple(self._message(seq) for seq in range(len(self.rows), len(self.rows) + count))
        for event in self.changed.values():
            event.set()

    async def preview(self, id: str, *, budget: int, policy: str = "default") -> CompactionPreview:
        if budget < 1_000:
            raise UsageError("this does not fit: at least 1,000 tokens are needed")
        return CompactionPreview(
            budget=budget,
            policy=policy,
            due=True,
            tokens_before=124_000,
            tokens_after=budget - 1,
            fits=True,
            seconds=0.12,
            pivot=f"What was done so far?\n{self.text}",
            removed=self._removed(),
            removed_count=5,
            removed_tokens=90_000,
        )

    async def recall(self, id: str, query: str) -> RecallAnswer:
        return RecallAnswer(query=query, found=True, text=f"found for {query}\n{self.text}", tokens=42)

    async def act(self, id: str, action: InspectorAction) -> ActionResult:
        if not (self.writable and action.confirm):
            raise UsageError("refused")
        self.acted.append(action)
        if action.action == "delete":
            self.sessions_made = [row for row in self.sessions_made if row.id != id]
        return ActionResult(action=action.action, changed=True, message=f"{action.action} is done")
