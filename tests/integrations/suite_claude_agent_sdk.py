"""The session store for the Claude Agent SDK, judged by the SDK's own conformance suite."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from claude_agent_sdk import get_session_messages_from_store, list_sessions_from_store
from claude_agent_sdk.testing import run_session_store_conformance
from tests.integrations.contract import TASK, page, run_page

import kompakt
from kompakt.integrations.claude_agent_sdk import KompaktSessionStore
from kompakt.integrations.stores import close_stores

KEY: Any = {"project_key": "proj", "session_id": "11111111-1111-4111-8111-111111111111"}


def entries(steps: int) -> list[Any]:
    """Return a transcript as Claude Code writes it."""
    made: list[Any] = [{"type": "user", "message": {"role": "user", "content": TASK}}]
    for number in range(1, steps + 1):
        call = {"type": "tool_use", "id": f"t{number}", "name": "read_page", "input": {"number": number}}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": page(number)}
        usage = {"input_tokens": 1.5, "cache": None}
        answer = {"id": f"m{number}", "role": "assistant", "content": [call], "usage": usage}
        made += [
            {"type": "assistant", "message": answer},
            {"type": "user", "message": {"role": "user", "content": [result]}, "toolUseResult": {"ok": True}},
        ]
    made.append({"type": "assistant", "message": {"id": "end", "role": "assistant", "content": []}})
    before: str | None = None
    for number, entry in enumerate(made):
        entry |= {
            "uuid": f"00000000-0000-4000-8000-{number:012}",
            "parentUuid": before,
            "sessionId": KEY["session_id"],
            "timestamp": f"2026-01-01T00:00:{number % 60:02}.000Z",
        }
        before = entry["uuid"]
    return [*made, {"type": "custom-title", "customTitle": "Pages", "sessionId": KEY["session_id"]}]


class TestConformance:
    @pytest.mark.parametrize("kind", ["memory", "sqlite", "url"])
    def test_the_sdk_accepts_the_store(self, kind: str, tmp_path: Any) -> None:
        made: list[Any] = []

        async def make() -> KompaktSessionStore:
            url = f"sqlite:///{tmp_path / f'{len(made)}.db'}"
            made.append(None if kind == "url" else await kompakt.open_store("memory:" if kind == "memory" else url))
            return KompaktSessionStore(store=made[-1] or url)

        async def run() -> None:
            await run_session_store_conformance(make)
            for store in made:
                if store is not None:
                    await store.close()

        asyncio.run(run())
        close_stores()
        assert len(made) > 10


class TestTranscripts:
    def test_entries_come_back_after_a_restart_as_they_were(self, tmp_path: Any) -> None:
        url = f"sqlite:///{tmp_path / 'agent.db'}"
        given = entries(20)

        async def run() -> None:
            for start in range(0, len(given), 7):
                await KompaktSessionStore(store=url).append(KEY, given[start : start + 7])
            close_stores()
            assert await KompaktSessionStore(store=url).load(KEY) == given

        asyncio.run(run())
        close_stores()

    def test_an_entry_is_stored_once(self) -> None:
        async def run() -> None:
            store = await kompakt.open_store("memory:")
            given = entries(3)
            await KompaktSessionStore(store=store).append(KEY, given[:-1])
            again = KompaktSessionStore(store=store)
            await asyncio.gather(again.append(KEY, given), again.append(KEY, given[:4]))
            assert await again.load(KEY) == given
            await again.append(KEY, given[-1:])  # a title has no id
            assert await again.load(KEY) == [*given, given[-1]]

        asyncio.run(run())

    def test_the_sdk_reads_sessions_and_messages_from_the_store(self) -> None:
        async def run() -> None:
            store = KompaktSessionStore(store=await kompakt.open_store("memory:"))
            key = {"project_key": "-work", "session_id": KEY["session_id"]}
            await store.append(key, entries(3))  # type: ignore[arg-type]
            sessions = await list_sessions_from_store(store, directory="/work")
            assert [one.custom_title for one in sessions] == ["Pages"]
            messages = await get_session_messages_from_store(store, KEY["session_id"], directory="/work")
            assert len(messages) == 8

        asyncio.run(run())

    def test_recall_searches_all_sessions_and_those_of_sub_agents(self) -> None:
        async def run() -> None:
            kept = await kompakt.open_store("memory:")
            store = KompaktSessionStore(store=kept)
            await store.append(KEY, entries(1))
            await store.append({**KEY, "subpath": "subagents/agent-1"}, entries(20))
            answer = await store.recall_tool.handler({"query": "depot number of fact-12"})
            assert "D95028" in answer["content"][0]["text"]
            names = [session.id async for session in kept.sessions()]
            main = await kept.session(min(names, key=len))
            assert "D95028" in (await main.recall("depot number of fact-12")).text

        asyncio.run(run())

    def test_the_page_runs(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        names = run_page("claude_agent_sdk")
        assert names["options"].session_store is names["sessions"]
        assert "kompakt" in names["options"].mcp_servers
        close_stores()
