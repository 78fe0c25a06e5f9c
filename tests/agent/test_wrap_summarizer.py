"""Wrapped clients with a summarizer: the narrative is asked for through the client, once for each compaction."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.agent import test_wrap
from tests.agent.test_wrap import BUDGET, LONG, TOOL, Seen, async_clients, sync_clients

import kompakt
from kompakt.agent.summarizer.llm import LLMSummarizer, NarrativeCache
from kompakt.agent.summarizer.prompts import SYSTEM
from kompakt.agent.wrap import wrap
from kompakt.engine.pivot.pivot import TRIES, Material

server = test_wrap.server
NARRATIVE = "They exchanged numbered lists of words, because the task says so."
CHAT = {**test_wrap.CHAT, "usage": {"prompt_tokens": 900, "completion_tokens": 12, "total_tokens": 912}}


@pytest.fixture(autouse=True)
def narrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server write a narrative when it is asked for one."""
    usual = test_wrap.answer_of

    def answer(path: str, body: Any) -> bytes:
        if not is_summary(body):
            return usual(path, body)
        if "messages" in path:
            content = [{"type": "text", "text": NARRATIVE}]
            whole = {**test_wrap.MESSAGE, "content": content, "stop_reason": "end_turn", "usage": test_wrap.USED}
            return json.dumps(whole).encode()
        said = {"role": "assistant", "content": NARRATIVE}
        return json.dumps({**CHAT, "choices": [{"index": 0, "finish_reason": "stop", "message": said}]}).encode()

    monkeypatch.setattr(test_wrap, "answer_of", answer)


def is_summary(body: Any) -> bool:
    return SYSTEM[:60] in json.dumps(body)


def bodies(server: Seen) -> tuple[list[Any], list[Any]]:
    """Return the requests for narratives and the others."""
    every = [json.loads(raw) for _, raw in server.raw]
    return [body for body in every if is_summary(body)], [body for body in every if not is_summary(body)]


def sent(kind: str, client: Any, messages: list[Any]) -> Any:
    if kind == "anthropic":
        return client.messages.create(model="claude-opus-4-5", max_tokens=100, messages=messages, tools=[TOOL])
    return client.chat.completions.create(model="gpt-5", messages=messages)


@pytest.mark.parametrize("kind", ["openai", "azure", "anthropic"])
class TestAuto:
    def test_a_synchronous_client_asks_itself_once(self, server: Seen, kind: str) -> None:
        """The second request, one step longer, has the same prefix and asks for nothing."""
        client = wrap(sync_clients(server.url)[kind], budget=BUDGET, summarizer="auto")
        more = [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "go on"}]
        reports: list[kompakt.Report] = []
        stop = kompakt.on_compaction(reports.append)
        try:
            sent(kind, client, LONG)
            sent(kind, client, LONG + more)
        finally:
            stop()
        asked, others = bodies(server)
        assert len(asked) == 1 and "tools" not in asked[0] and asked[0]["model"] == others[0]["model"]
        first, second = (body["messages"] for body in others)
        assert NARRATIVE in str(first) and second[: len(first)] == first
        assert reports[0].narrative is not None and reports[0].narrative.requests == 1
        assert reports[1].narrative is None, "a narrative from the cache costs nothing"

    def test_an_asynchronous_client_asks_itself(self, server: Seen, kind: str) -> None:
        async def work() -> None:
            client = wrap(async_clients(server.url)[kind], budget=BUDGET, summarizer="auto")
            await sent(kind, client, LONG)

        asyncio.run(work())
        asked, (other,) = bodies(server)
        assert len(asked) == 1 and NARRATIVE in str(other)

    def test_it_works_inside_of_an_event_loop(self, server: Seen, kind: str) -> None:
        async def work() -> None:
            sent(kind, wrap(sync_clients(server.url)[kind], budget=BUDGET, summarizer="auto"), LONG)

        asyncio.run(work())
        assert NARRATIVE in str(bodies(server)[1])


def test_without_the_option_no_model_is_asked(server: Seen) -> None:
    sent("openai", wrap(sync_clients(server.url)["openai"], budget=BUDGET), LONG)
    asked, (other,) = bodies(server)
    assert asked == [] and NARRATIVE not in str(other)


def test_another_model_or_summarizer_can_be_given(server: Seen) -> None:
    client = sync_clients(server.url)["openai"]
    sent("openai", wrap(client, budget=BUDGET, summarizer="gpt-5-mini"), LONG)
    sent("openai", wrap(client, budget=BUDGET, summarizer=lambda material: "Mine."), LONG)
    asked, others = bodies(server)
    assert [body["model"] for body in asked] == ["gpt-5-mini"]
    assert NARRATIVE in str(others[0]) and "Mine." in str(others[1])


def test_a_failing_model_leaves_the_summary_to_code(server: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is sent with code's own summary, and the model is not asked about the same messages again."""

    async def fails(self: LLMSummarizer, material: Material) -> str:
        tries.append(material)
        raise RuntimeError("no connection")

    tries: list[Material] = []
    monkeypatch.setattr(LLMSummarizer, "__call__", fails)
    client = wrap(sync_clients(server.url)["openai"], budget=BUDGET, summarizer="auto")
    sent("openai", client, LONG)
    sent("openai", client, LONG)
    _, (first, second) = bodies(server)
    assert len(tries) == TRIES and first == second and kompakt.count(first).total <= BUDGET


def test_the_cache_is_bounded() -> None:
    asked: list[str] = []
    cache = NarrativeCache(size=2)
    summarizer = cache.over(lambda material: asked.append(material.references[0]) or "text")

    async def ask(name: str) -> None:
        made = summarizer(Material((), (name,), None, 100, len))
        assert not isinstance(made, str) and await made == "text"

    async def work() -> None:
        for name in ("a", "b", "a", "c", "a", "b"):
            await ask(name)

    asyncio.run(work())
    assert asked == ["a", "b", "c", "b"]
