"""Sessions in a file: every later process finds them unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from tests.histories import plain
from tests.session.builders import FORMATS, asked, run, text, total, turn, turns

import kompakt
from kompakt.errors import StoreDamaged
from kompakt.session.session import Session
from kompakt.session.store import open_store

Result = TypeVar("Result")
SECRET = "sk-live-0123456789"


async def opened(
    directory: Path, work: Callable[[Session], Awaitable[Result]], *, id: str = "s", key: bytes | None = None
) -> Result:
    """Open the store, run an operation on a session, and close it."""
    async with await open_store(f"sqlite:///{directory / 'sessions.db'}", key=key) as store:
        return await work(await store.session(id))


class TestReopened:
    @pytest.mark.parametrize("format", FORMATS)
    def test_a_reopened_session_is_unchanged(self, format: str, tmp_path: Path) -> None:
        """Messages, names, views, compactions, requests and pins are the same for every reader."""
        body = plain.build(format, messages=40, mean_chars=700, parallel=2)
        budget = total(format, body) // 2

        async def look(session: Session) -> list[str]:
            assert await session.verify() == []
            views = [text(await session.export()), text(await session.export(view="model"))]
            return [*views, str(await session.pending()), str((await session.reader()).timeline.pins)]

        async def work() -> None:
            await opened(tmp_path, lambda session: session.save(body, format=format))
            started = await opened(tmp_path, look)
            assert started[:2] == [text(body)] * 2
            await opened(tmp_path, lambda session: session.request_compaction())
            assert len(await opened(tmp_path, lambda session: session.pending())) == 1
            done = await opened(tmp_path, lambda session: session.compact(budget))
            assert done.changed
            after = await opened(tmp_path, look)
            assert after[0] == started[0]
            assert after[1] != started[1]
            assert await opened(tmp_path, look) == after
            await opened(tmp_path, lambda session: session.fork("other"))
            assert await opened(tmp_path, look, id="other") == after
            await opened(tmp_path, lambda session: session.undo())
            assert await opened(tmp_path, look) == started
            assert await opened(tmp_path, lambda session: session.delete())
            assert await opened(tmp_path, look, id="other") == after

        run(work())

    def test_a_turn_is_reverted_and_replaced(self, tmp_path: Path) -> None:
        """Revert, continue, compact, revert again: the newest messages are live."""

        async def work() -> None:
            await opened(tmp_path, lambda session: session.save(turns(6), format="openai-chat"))
            assert await opened(tmp_path, lambda session: session.revert(4)) == len(turns(6)) - len(turns(4))
            await opened(tmp_path, lambda session: session.append(turn(9)))
            await opened(tmp_path, lambda session: session.compact(700))
            assert await opened(tmp_path, lambda session: session.export()) == [*turns(4), *turn(9)]
            await opened(tmp_path, lambda session: session.revert(4))
            assert await opened(tmp_path, lambda session: session.export()) == turns(4)
            assert await opened(tmp_path, lambda session: session.verify()) == []

        run(work())

    def test_two_stores_make_one_compaction(self, tmp_path: Path) -> None:
        """A writer that waited for another one uses its result."""

        async def work() -> None:
            await opened(tmp_path, lambda session: session.save(turns(8), format="openai-chat"))
            done = await asyncio.gather(*(opened(tmp_path, lambda session: session.compact(900)) for _ in range(3)))
            assert sorted(one.changed for one in done) == [False, False, True]
            assert len({one.id for one in done}) == 1

        run(work())

    def test_encrypted_text_is_not_in_the_file(self, tmp_path: Path) -> None:
        """Neither while it is open nor after; another key reads nothing."""

        async def work() -> None:
            messages = [*turns(6), asked(SECRET * 500)]
            await opened(tmp_path, lambda session: session.save(messages, format="openai-chat"), key=b"k" * 32)
            await opened(tmp_path, lambda session: session.compact(5000), key=b"k" * 32)
            stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
            assert SECRET.encode() not in stored
            assert b"Request 1" not in stored
            with pytest.raises(StoreDamaged, match="another key"):
                await opened(tmp_path, lambda session: session.export(), key=b"o" * 32)
            assert await opened(tmp_path, lambda session: session.export(), key=b"k" * 32) == messages

        run(work())

    def test_deleted_text_is_not_in_the_file(self, tmp_path: Path) -> None:
        """Not one byte of it stays."""

        async def work() -> None:
            messages = [*turns(3), asked(f"{SECRET} " * 2)]
            await opened(tmp_path, lambda session: session.save(messages, format="openai-chat"))
            assert SECRET.encode() in b"".join(path.read_bytes() for path in tmp_path.iterdir())
            await opened(tmp_path, lambda session: session.delete())
            await opened(tmp_path, lambda session: session.records.scrub())
            assert SECRET.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
            with pytest.raises(kompakt.UsageError, match="there is no session"):
                await opened(tmp_path, lambda session: session.export())

        run(work())
