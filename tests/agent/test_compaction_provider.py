"""Compaction by the provider, on demand or automatic.

Its items are sent back unchanged, and kompakt is the fallback.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.agent.agent_runs import RULE, SYSTEM, TASK, WINDOW, Desk, clean, client_for, said_in, scripted, watched
from tests.agent.clients.client_servers import asked_of, whole
from tests.agent.test_agent_settings import Echo
from tests.provider import Provider

import kompakt
from kompakt.agent.agent import Agent
from kompakt.agent.clients import AnthropicMessages, OpenAIResponses
from kompakt.agent.config import CompactionConfig
from kompakt.errors import UsageError
from kompakt.events import Compacted
from kompakt.session.store import open_store

NATIVE = ("openai-responses", "anthropic")
each_native = pytest.mark.parametrize("format", NATIVE)
MODEL = {"anthropic": "claude-opus-4-6", "openai-responses": "gpt-5"}


def config(how: str, **options: Any) -> CompactionConfig:
    return CompactionConfig(native=how, economic=False, **options)  # type: ignore[arg-type]


def compactions_in(body: dict[str, Any]) -> list[str]:
    """Return the compaction items of a request."""
    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if value.get("type") == "compaction" and ("content" in value or "encrypted_content" in value):
                found.append(json.dumps({k: v for k, v in value.items() if k != "cache_control"}, sort_keys=True))
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(body.get("messages") or body.get("input"))
    return found


@each_native
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
def test_the_provider_compacts_on_demand(format: str, streams: bool) -> None:
    async def main() -> None:
        script = scripted(60)
        store = await open_store("memory:")
        with Provider(script, window=WINDOW) as provider:
            client = client_for(format, provider, model=MODEL[format])
            agent = Agent(client, tools=Desk().tools, system=SYSTEM, store=store, compaction=config("demand"))
            task = script.task(TASK)
            if streams:
                seen = await watched(agent, task, session="s")
                result, compacted = seen.result, [event for event in seen.events if type(event) is Compacted]
                assert compacted and all(event.report and event.report.session == "s" for event in compacted)
            else:
                result = await agent.run(task, session="s")
            await agent.close()
            made = provider.compactor.made
            assert made.count("demand") >= 2 and set(made) == {"demand"}
            clean(provider, breaks=len(made))
            assert provider.overflows == []
            asked = [record for record in provider.requests if record.kind == "compaction"]
            steps = [record for record in provider.requests if record.kind == "step"]
            assert result.usage.prompt >= sum(record.prompt for record in asked), "what it cost is not in the bill"
            assert all(len(compactions_in(record.body)) <= 1 for record in steps)
            assert len({item for record in steps for item in compactions_in(record.body)}) == len(made), (
                "an item was changed"
            )
            assert all(RULE in json.dumps(record.body) for record in steps)
        session = await store.session("s")
        assert [account.policy for account in await session.compactions()] == ["provider"] * len(made)
        assert result.text == "All 60 steps are done."
        said = await said_in(store, "s")
        assert sum(len(message.calls) for message in said) == sum(len(message.results) for message in said) >= 60

    asyncio.run(main())


@each_native
@pytest.mark.parametrize("why", ["refuses", "fails", "too large", "nothing"])
def test_kompakt_compacts_if_the_provider_does_not(format: str, why: str, caplog: Any) -> None:
    async def main() -> None:
        script = scripted(40)
        with Provider(script, window=WINDOW, compacts=why != "refuses") as provider:
            client = client_for(format, provider, model=MODEL[format], max_retries=0)
            if why == "fails":

                async def failing(body: Any, **options: Any) -> Any:
                    raise kompakt.ProviderUnavailable("overloaded")

                client.compact = failing
            elif why in ("too large", "nothing"):
                client.compact = _answering(client, "word " * 20_000 if why == "too large" else "")
            async with Agent(client, tools=Desk().tools, system=SYSTEM, compaction=config("demand")) as agent:
                seen = await watched(agent, script.task(TASK), session="s")
                accounts = await (await agent.session("s")).compactions()
            assert seen.result.text == "All 40 steps are done." and seen.count(Compacted) > 0
            assert {account.policy for account in accounts} == {"default"}
            clean(provider)
            asked = [record for record in provider.requests if record.kind == "compaction"]
            assert len(asked) == (1 if why == "refuses" else 0), "it was asked again although it had refused"
            assert why == "too large" or "provider compaction failed" in caplog.text

    asyncio.run(main())


def _answering(client: Any, content: str) -> Any:
    async def compact(body: Any, **_: Any) -> kompakt.agent.client.Reply:
        block = {"type": "compaction", "content": content, "signature": "s"}
        item = {"type": "compaction", "encrypted_content": content}
        made = {"role": "assistant", "content": [block]} if client.format == "anthropic" else item
        items = (made,) if content else ()
        return kompakt.agent.client.Reply(items, "end", kompakt.Usage(), kompakt.Usage())

    return compact


@pytest.mark.parametrize(("format", "window", "steps"), [("openai-responses", WINDOW, 60), ("anthropic", 90_000, 130)])
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
def test_the_provider_compacts_automatically(format: str, window: int, steps: int, streams: bool) -> None:
    async def main() -> None:
        script = scripted(steps, parallel=0.5)
        store = await open_store("memory:")
        with Provider(script, window=window) as provider:
            client = client_for(format, provider, model=MODEL[format], context_window=window)
            agent = Agent(client, tools=Desk().tools, system=SYSTEM, store=store, compaction=config("threshold"))
            task = script.task(TASK)
            run = watched(agent, task, session="s") if streams else agent.run(task, session="s")
            await run
            await agent.close()
            made = provider.compactor.made
            assert set(made) == {"threshold"} and provider.overflows == []
            clean(provider, breaks=len(made))
            last = provider.requests[-1].body
            assert all(
                item in {*compactions_in(record.body)}
                for record in provider.requests[-1:]
                for item in compactions_in(last)[-1:]
            )
            assert len(compactions_in(last)) == 1 and len(json.dumps(last)) < 4 * window
        session = await store.session("s")
        accounts = await session.compactions()
        assert [account.policy for account in accounts] == ["provider"] * len(made)
        assert await session.verify() == []

    asyncio.run(main())


def test_the_provider_clears_old_outputs() -> None:
    async def main() -> None:
        script = scripted(60)
        with Provider(script, window=WINDOW) as provider:
            client = client_for("anthropic", provider, model=MODEL["anthropic"])
            async with Agent(client, tools=Desk().tools, system=SYSTEM, compaction=config("edits")) as agent:
                await agent.run(script.task(TASK), session="s")
            assert "clearing" in provider.compactor.made
            clean(provider)
            sent = [record for record in provider.requests if record.kind == "step"]
            assert all("clear_tool_uses_20250919" in json.dumps(record.body["context_management"]) for record in sent)

    asyncio.run(main())


def test_kompakt_compacts_below_the_providers_threshold(caplog: Any) -> None:
    async def main() -> None:
        script = scripted(40)
        with Provider(script, window=WINDOW) as provider:
            client = client_for("anthropic", provider, model=MODEL["anthropic"])
            async with Agent(client, tools=Desk().tools, system=SYSTEM, compaction=config("threshold")) as agent:
                seen = await watched(agent, script.task(TASK), session="s")
            assert seen.count(Compacted) > 0 and provider.compactor.made == []
            clean(provider)
        assert "kompakt compacts instead" in caplog.text

    asyncio.run(main())


@each_native
def test_a_manual_compaction_with_instructions_pins_and_undo(format: str) -> None:
    async def main() -> None:
        script = scripted(8)
        store = await open_store("memory:")
        with Provider(script, window=WINDOW) as provider:
            client = client_for(format, provider, model=MODEL[format])
            agent = Agent(client, tools=Desk().tools, system=SYSTEM, store=store, compaction=config("demand"))
            await agent.run(script.task(TASK), session="s")
            session = await store.session("s")
            await session.pin("The tide turns at noon.")
            before = await session.count()
            done = await agent.compact("s", instructions="Keep the names of ships.")
            assert done.changed and done.report is not None and done.report.policy == "provider"
            assert done.tokens_after < before and await session.pending() == {}
            (account,) = await session.compactions()
            assert not account.auto
            assert "Keep the names of ships." in json.dumps(provider.requests[-1].body)
            shown = json.dumps((await session.project()).payload)
            assert TASK in shown and "The tide turns at noon." in shown and '"compaction"' in shown
            await session.undo()
            assert await session.count() == before and await session.verify() == []
            other = await agent.compact("s", summarizer=lambda material: "Written by hand.", policy="default")
            assert other.report is not None and other.report.policy == "default"
            await agent.close()

    asyncio.run(main())


def test_the_ledger_survives_an_opaque_compaction() -> None:
    """kompakt compacts after the provider: the ledger still has what happened before."""

    async def main() -> None:
        script = scripted(
            30, make=lambda step, dice, tools: [("read_file", {"path": f"src/part_{step}.py", "lines": 5})]
        )
        store = await open_store("memory:")
        with Provider(script, window=WINDOW) as provider:
            client = client_for("openai-responses", provider)
            agent = Agent(client, tools=Desk().tools, system=SYSTEM, store=store, compaction=config("demand"))
            await agent.run(script.task(TASK), session="s")
            assert provider.compactor.made
            session = await store.session("s")
            await session.request_compaction()
            await session.compact(6_000)
            shown = json.dumps((await session.project()).payload)
            assert "part_1.py" in shown and TASK in shown
            await agent.close()

    asyncio.run(main())


def test_a_client_without_provider_compaction_is_rejected() -> None:
    async def main() -> None:
        agent = Agent(Echo(), compaction=config("demand"))
        with pytest.raises(UsageError, match="no provider compaction"):
            await agent.run("Go.", session="s")

    asyncio.run(main())
    assert isinstance(AnthropicMessages("claude-opus-4-6", api_key="k"), kompakt.agent.client.CompactingClient)
    assert isinstance(OpenAIResponses("gpt-5", api_key="k"), kompakt.agent.client.CompactingClient)


@pytest.mark.parametrize("field", ["previous_response_id", "conversation"])
def test_a_history_stored_by_the_provider_is_sent_unchanged(field: str) -> None:
    async def main() -> None:
        said = {"status": "completed", "output": []}
        body = {"model": "gpt-5", "input": [{"role": "user", "content": "And now?"}], field: "kept_1"}
        _, server = await asked_of("openai-responses", whole(said), body=body)
        assert server.asked[0].json == body

    asyncio.run(main())


def test_beta_headers_match_the_request() -> None:
    block = {"type": "compaction", "content": "Summary.", "signature": "s"}
    body = {"model": "m", "messages": [{"role": "user", "content": [block, {"type": "text", "text": "Go."}]}]}
    answer = {"role": "assistant", "content": [{"type": "compaction", "content": "Summary."}]}
    unsigned = {**body, "messages": [*body["messages"], answer]}
    plain = {**body, "messages": [{"role": "user", "content": "Go."}]}
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}, {"type": "compact_20260112"}]}
    extra = {"headers": {"Anthropic-Beta": "mine"}}

    async def betas(body: Any, **options: Any) -> str:
        _, server = await asked_of("anthropic", whole({"content": [], "stop_reason": "end_turn"}), body=body, **options)
        return server.asked[0].headers.get("anthropic-beta", "")

    async def main() -> None:
        assert await betas(plain) == ""
        assert await betas(plain, changes=extra) == "mine"
        assert await betas(body, changes=extra) == "mine,compact-2026-09-04"
        assert await betas(unsigned) == "compact-2026-09-04,compact-2026-01-12"
        assert await betas({**plain, "context_management": edits}) == "compact-2026-01-12,context-management-2025-06-27"

    asyncio.run(main())


def test_parameters_of_automatic_compaction() -> None:
    responses, messages = OpenAIResponses("gpt-5", api_key="k"), AnthropicMessages("claude-opus-4-6", api_key="k")
    assert responses.managed("threshold", 900) is None and responses.managed("edits", 9_000) is None
    assert messages.managed("threshold", 49_999) is None
    assert responses.managed("threshold", 1_000) == {
        "context_management": [{"type": "compaction", "compact_threshold": 1_000}]
    }
    edit = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 50_000}}
    assert messages.managed("threshold", 50_000) == {"context_management": {"edits": [edit]}}
