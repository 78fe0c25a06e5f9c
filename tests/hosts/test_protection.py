"""Coding agents as shipped, through the gateway: they finish sessions that do not fit, and everything is recorded."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.gateway_server import gateway
from tests.hosts.agents import AGENTS, Agent, Finished, line_of, run, shell_step
from tests.provider.script import Script
from tests.provider.server import Provider, Record

import kompakt

STEPS = 60
RULE = "Never delete a file."

ANSWERED_AS_TEXT = re.compile(r"calls of step \d+ were never answered")
"""With manual thinking (Claude Code) a compaction sends the open round as text, because its thinking is bound to the
prefix; the script then sees no result block."""

SENT = re.compile(r"/v1/(?:messages|responses|chat/completions)$")


class Responses:
    """Middleware that records the headers of every answer to a model request."""

    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []

    def wrap(self, app: Callable[..., Any]) -> Callable[..., Any]:
        """Return the application with this in front of it."""

        async def watched(scope: dict[str, Any], receive: Any, send: Any) -> None:
            async def keep(message: dict[str, Any]) -> None:
                if message["type"] == "http.response.start" and SENT.search(scope["path"]):
                    self.headers.append({name.decode(): value.decode() for name, value in message["headers"]})
                await send(message)

            await app(scope, receive, keep)

        return watched


class Session:
    """One finished session of an agent, with what the provider and the client saw."""

    def __init__(self, agent: Agent, folder: Path) -> None:
        self.agent, self.script, self.responses = (
            agent,
            Script(STEPS, make=shell_step(agent), constraints=[RULE]),
            Responses(),
        )
        self.task = self.script.task(f"Write the report of each shard, one after the other. {RULE}")
        store = f"sqlite:///{folder / 'kompakt.db'}"
        window = agent.window
        with (
            Provider(self.script, window=window, models=agent.models) as provider,
            gateway(provider.url, store=store, context_window=window, change=self.responses.wrap) as gate,
        ):
            self.finished: Finished = run(agent, self.task, url=gate.url, home=folder / "home")
        self.requests, self.overflows, self.refusals = provider.requests, provider.overflows, provider.refusals
        self.recorded = asyncio.run(_recorded(store))

    @property
    def steps(self) -> list[Record]:
        """Requests of the agent's own conversation, titles and the like left out."""
        return [record for record in self.requests if record.kind == "step"]


async def _recorded(url: str) -> str:
    """Return the contents of the store as text."""
    store = await kompakt.open_store(url)
    try:
        texts: list[str] = []
        async for session in store.sessions():
            async for page in session.pages():
                texts.extend(str(part) for message in page for part in message.parts)
        return "\n".join(texts)
    finally:
        await store.close()


# One worker runs all tests of an agent, so that each agent runs once.
EACH = [pytest.param(agent, marks=pytest.mark.xdist_group(agent.name), id=agent.name) for agent in AGENTS]


@pytest.fixture(scope="module", params=EACH)
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Run an agent for 60 steps through a gateway with a small window."""
    return Session(request.param, tmp_path_factory.mktemp(request.param.name))


class TestAgentsAreProtected:
    def test_the_agent_finishes_the_task(self, session: Session) -> None:
        """The script reaches its end, and the agent reports success."""
        assert session.finished.code == 0, session.finished.errors
        assert session.script.step_of(session.task) == STEPS + 1
        assert f"All {STEPS} steps are done." in session.finished.output

    def test_no_request_overflows_or_is_refused(self, session: Session) -> None:
        """Every request is valid and fits the window."""
        assert [record.number for record in session.overflows] == []
        assert [record.refusal for record in session.refusals] == []

    def test_the_history_would_not_fit_without_the_gateway(self, session: Session) -> None:
        """What the agent sent exceeds the window, so the test proves something."""
        sent = [int(headers["x-kompakt-tokens-before"]) for headers in session.responses.headers]
        assert max(sent) > session.agent.window

    def test_task_and_rule_reach_the_model_in_every_request(self, session: Session) -> None:
        """Neither leaves the context, and no result is lost or mixed up."""
        assert [fault for fault in session.script.violations if not ANSWERED_AS_TEXT.search(fault)] == []

    def test_the_model_reads_every_output_whole(self, session: Session) -> None:
        """What the model has not answered yet is never shortened."""
        sent = [json.dumps(record.body) for record in session.steps]
        unread = [
            step
            for step in range(1, STEPS + 1)
            if not any(line_of(step, 1) in body and line_of(step, 90) in body for body in sent)
        ]
        assert unread == []

    def test_the_agent_does_not_compact_by_itself(self, session: Session) -> None:
        """The agent never notices how long its history is."""
        assert not session.agent.compacted_itself(session.finished.output, session.finished.home)

    def test_every_output_is_recorded(self, session: Session) -> None:
        """The store contains each tool result in full, compacted or not."""
        missing = [step for step in range(1, STEPS + 1) if line_of(step, 90) not in session.recorded]
        assert missing == []

    def test_every_response_says_what_was_done(self, session: Session) -> None:
        """Each answer names the outcome; for a request that was left alone also the reason."""
        silent = [h for h in session.responses.headers if "x-kompakt-outcome" not in h]
        assert len(session.responses.headers) >= STEPS
        assert silent == []
