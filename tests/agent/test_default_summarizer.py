"""Summaries by default: the agent's own model writes the narrative, and code takes over when it cannot."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.agent.agent_runs import FORMATS, SYSTEM, TASK, Desk, clean, client_for, scripted, watched
from tests.provider import Provider

import kompakt
from kompakt.agent.agent import Agent
from kompakt.agent.client import Reply
from kompakt.agent.config import CompactionConfig, prepares_at, summarizer_of
from kompakt.agent.summarizer.llm import LLMSummarizer
from kompakt.engine.ledger.items import FINDINGS, SECTIONS
from kompakt.errors import ProviderUnavailable, UsageError
from kompakt.events import Compacted, Result
from kompakt.model.budget import Usage
from kompakt.model.messages import JsonObject

BUDGET = 4_000
NARRATIVE = "The pages describe the harbour, because the task asks for all of them."


class Model:
    """A client that works with tools and answers requests without tools with a fixed text or error."""

    format, model, context_window, output_limit = "openai-chat", "gpt-5", 100_000, 1_000
    compaction: CompactionConfig | None = None

    def __init__(self, said: str | Exception = NARRATIVE, *, steps: int = 24, pause: float = 0.0) -> None:
        self.said, self.steps, self.pause = said, steps, pause
        self.asked: list[JsonObject] = []
        self.worked = 0

    def envelope(self, *, system: str | None, tools: Any) -> JsonObject:
        named = [{"name": tool.name, "parameters": tool.schema} for tool in tools]
        made = [{"type": "function", "function": one} for one in named]
        return {"model": self.model, **({"tools": made} if made else {})}

    def opening(self, system: str | None) -> list[Any]:
        return [{"role": "system", "content": system}] if system else []

    async def send(self, body: JsonObject, *, on_delta: Any = None, changes: Any = None) -> Reply:
        assert kompakt.check(body, "openai-chat") == []
        if "tools" not in body:
            self.asked.append(body)
            await asyncio.sleep(self.pause)
            if isinstance(self.said, Exception):
                raise self.said
            return Reply(({"role": "assistant", "content": self.said},), "end", Usage(), Usage(input=1_000, output=10))
        self.worked += 1
        if self.worked > self.steps:
            return Reply(({"role": "assistant", "content": "Done."},), "end", Usage(), Usage())
        function = {"name": "look", "arguments": f'{{"page": {self.worked}}}'}
        call = {"id": f"call_{self.worked}", "type": "function", "function": function}
        said = {"role": "assistant", "content": f"I look at page {self.worked} next.", "tool_calls": [call]}
        return Reply((said,), "tools", Usage(), Usage())

    async def close(self) -> None: ...


def look(page: int) -> str:
    """Look at a page."""
    return f"Page {page}. " + "The tide was rising in the harbour. " * 60


async def ran(client: Model, **options: Any) -> tuple[list[Compacted], Result]:
    config = CompactionConfig(economic=False, budget=BUDGET)
    agent = Agent(client, tools=[look], system=SYSTEM, compaction=config, **options)
    seen = await watched(agent, "Look at all pages. Never skip one.", session="s")
    return [event for event in seen.events if isinstance(event, Compacted)], seen.result


class TestDefault:
    def test_the_agents_own_model_writes_the_narrative(self) -> None:
        """It is asked without tools; cost and narrative are in the report, and the cost in the usage of the run."""
        client = Model()
        compacted, result = asyncio.run(ran(client))
        assert client.asked and compacted
        reports = [event.report for event in compacted if event.report is not None]
        assert all(NARRATIVE in report.notes for report in reports)
        assert all(SECTIONS[FINDINGS] not in report.notes for report in reports), "code repeats the model's part"
        assert all(report.narrative and report.narrative.usage == Usage(input=1_000, output=10) for report in reports)
        assert result.usage == Usage(input=1_000 * len(client.asked), output=10 * len(client.asked))
        assert result.stop == "end" and client.worked == 25

    def test_off_leaves_summaries_to_code(self) -> None:
        client = Model()
        compacted, result = asyncio.run(ran(client, summarizer="off"))
        assert client.asked == [] and compacted and result.usage == Usage()
        assert all(event.report is not None and event.report.narrative is None for event in compacted)

    def test_another_model_can_be_named(self) -> None:
        client = Model()
        client.compaction = CompactionConfig(summary_model="gpt-5-mini")
        asyncio.run(ran(client))
        assert client.asked and {body["model"] for body in client.asked} == {"gpt-5-mini"}

    @pytest.mark.parametrize(
        "said", ["", "word " * 9_000, ProviderUnavailable("down"), "All is in src/a.py. And b/c.py."]
    )
    def test_code_takes_over_when_the_model_fails(self, said: str | Exception) -> None:
        """No part of a bad narrative is used, the run continues, and the number of attempts is limited."""
        client = Model(said)
        compacted, result = asyncio.run(ran(client))
        assert result.stop == "end" and client.worked == 25 and len(compacted) > 2
        assert all(event.report is not None and SECTIONS[FINDINGS] in event.report.notes for event in compacted)
        assert compacted[0].report is not None and compacted[0].report.failures
        assert 3 <= len(client.asked) <= 9

    def test_a_slow_model_is_not_waited_for(self) -> None:
        client = Model(pause=60)
        summarizer = LLMSummarizer(client, max_seconds=0.01)
        compacted, result = asyncio.run(ran(client, summarizer=summarizer))
        assert result.stop == "end" and compacted
        assert all(event.report is not None and "no summary after" in str(event.report.failures) for event in compacted)
        assert len(client.asked) <= len(compacted) + 1, "a slow model was asked again for the same summary"

    def test_an_invented_sentence_does_not_reach_the_context(self) -> None:
        client = Model(f"{NARRATIVE} The log was saved to /var/log/harbour.log.")
        compacted, _ = asyncio.run(ran(client))
        for event in compacted:
            assert event.report is not None and event.report.narrative is not None
            assert NARRATIVE in event.report.notes and "/var/log" not in event.report.notes
            assert event.report.narrative.dropped == ("The log was saved to /var/log/harbour.log.",)


class TestSettings:
    def test_the_default_asks_only_where_a_model_can_help(self) -> None:
        """Not with a policy that does not summarize, and not instead of the summarizer of a policy's own step."""
        client = Model()
        assert isinstance(summarizer_of(client, CompactionConfig()), LLMSummarizer)
        assert isinstance(summarizer_of(client, CompactionConfig(summarizer="auto")), LLMSummarizer)
        own = kompakt.Policy("own", (kompakt.strategies.Summarization(lambda material: "mine"),))
        for config in (
            CompactionConfig(summarizer="off"),
            CompactionConfig(policy="window"),
            CompactionConfig(policy=own),
        ):
            assert summarizer_of(client, config) is None and prepares_at(config) == 0
        assert prepares_at(CompactionConfig()) == prepares_at(CompactionConfig(summarizer="auto")) == 0.8

    def test_an_unknown_word_is_refused(self) -> None:
        with pytest.raises(UsageError, match="'auto', 'off'"):
            CompactionConfig(summarizer="gpt-5-mini")  # type: ignore[arg-type]


@pytest.mark.parametrize("format", FORMATS)
def test_a_strict_provider_accepts_the_requests_for_summaries(format: str) -> None:
    """Every provider is asked in its own format; the run has narratives and no violation."""

    async def work() -> list[Compacted]:
        with Provider(scripted(40)) as provider:
            agent = Agent(client_for(format, provider), tools=Desk().tools, system=SYSTEM)
            async with agent:
                seen = await watched(agent, TASK, session="s")
            clean(provider)
        return [event for event in seen.events if isinstance(event, Compacted)]

    compacted = asyncio.run(work())
    accounts = [event.report.narrative for event in compacted if event.report is not None]
    assert accounts and all(account is not None and account.requests for account in accounts)
