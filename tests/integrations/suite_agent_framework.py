"""The Agent Framework adapter with the framework's own agent and a scripted client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    InMemoryHistoryProvider,
    Message,
    ResponseStream,
    chat_middleware,
    tool,
)
from tests.integrations.contract import (
    BUDGET,
    TASK,
    AdapterContract,
    Run,
    Script,
    judge,
    page,
    run_blocks,
    run_page,
    texts,
)

import kompakt
from kompakt.errors import UsageError
from kompakt.integrations.agent_framework import KompaktHistory, KompaktStrategy
from kompakt.integrations.stores import close_stores


def as_chat(messages: Any) -> list[dict[str, Any]]:
    """Translate messages, independently of the adapter."""
    found: list[dict[str, Any]] = []
    for message in messages:
        results = [one for one in message.contents if one.type == "function_result"]
        found += [{"role": "tool", "tool_call_id": one.call_id, "content": one.result} for one in results]
        if results:
            continue
        calls = [
            {"id": one.call_id, "function": {"name": one.name, "arguments": str(one.arguments)}}
            for one in message.contents
            if one.type == "function_call"
        ]
        found.append({"role": str(message.role), "content": message.text, "tool_calls": calls})
    return found


class ScriptedClient(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], BaseChatClient[Any]):
    def __init__(self, script: Script, seen: list[Any]) -> None:
        super().__init__()
        self.script, self.seen = script, seen
        self.function_invocation_configuration["max_iterations"] = 100

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_: Any) -> Any:
        def reply() -> Content:
            self.seen[:] = messages
            answer = self.script.answer(as_chat(messages), {one.name for one in options.get("tools") or ()})
            if "text" in answer:
                return Content.from_text(answer["text"])
            id, name, arguments = answer["call"]
            return Content.from_function_call(id, name, arguments=json.dumps(arguments))

        async def response() -> ChatResponse[Any]:
            return ChatResponse(messages=[Message("assistant", [reply()])])

        async def updates() -> Any:
            yield ChatResponseUpdate(role="assistant", contents=[reply()])

        return ResponseStream(updates(), finalizer=ChatResponse.from_updates) if stream else response()


@chat_middleware
async def pass_on(context: Any, call_next: Any) -> None:
    await call_next()


@tool(approval_mode="never_require")
def read_page(number: int) -> str:
    """Read one page."""
    return page(number)


class TestAgentFramework(AdapterContract, framework="agent_framework"):
    def make_adapter(self, **options: Any) -> Any:
        return KompaktStrategy(**options)

    def run_loop(
        self, script: Script, *, mode: str = "async", thread: str = "one", adapter: Any = None, **options: Any
    ) -> Run:
        seen: list[Any] = []
        strategy = adapter or self.make_adapter(**options)
        tools = [read_page, *([strategy.recall_tool] if options.get("recall", True) else [])]
        agent = Agent(ScriptedClient(script, seen), instructions="You read.", tools=tools, compaction_strategy=strategy)

        async def run() -> Any:
            if mode == "stream":
                return await agent.run(TASK, stream=True).get_final_response()
            return await agent.run(TASK)

        done = asyncio.run(run())
        own, contents = {id(one) for one in done.messages}, [as_chat([one]) for one in done.messages]
        same = mode == "stream" or all(id(one) in own for one in seen if as_chat([one]) in contents)
        assert not any(one.additional_properties.get("_excluded") for one in done.messages)
        return Run(script, done.text.splitlines()[-1], [one["content"] for one in as_chat(done.messages)], same)

    def test_without_recall_its_tool_cannot_be_given_to_an_agent(self) -> None:
        with pytest.raises(UsageError, match="recall=False"):
            _ = self.make_adapter(recall=False).recall_tool

    def test_recall_finds_what_left_the_context(self) -> None:
        """Tools of an agent are fixed, so recall is offered from the start."""
        run = self.run_loop(Script(recall_at=25), budget=BUDGET)
        assert "D15838" in texts(run.script.requests[25])

    def test_recall_reads_a_store_that_is_given_as_an_object(self) -> None:
        """Also what a strategy no longer has, because it belongs to another process."""

        async def run() -> str:
            store = await kompakt.open_store("memory:")
            said = [{"role": "user", "content": "The depot is D15838."}]
            await (await store.session("run")).append(said, format="openai-chat")
            strategy = KompaktStrategy(store=store)
            strategy._current.set("run")
            (answer,) = await strategy.recall_tool.invoke(arguments={"query": "depot"})
            return answer.text

        assert "D15838" in asyncio.run(run())

    def test_a_second_run_of_a_session_starts_from_the_whole_history(self) -> None:
        script = Script(steps=20)
        agent = Agent(ScriptedClient(script, []), tools=[read_page], compaction_strategy=KompaktStrategy(budget=BUDGET))

        async def run() -> Any:
            session = agent.create_session()
            await agent.run(TASK, session=session)
            return await agent.run("Thanks. What was the first page?", session=session), session

        _, session = asyncio.run(run())
        kept = str([one.to_dict() for one in next(iter(session.state.values()))["messages"]])
        assert [number for number in range(1, 21) if f"D{number * 7919}" not in kept] == []
        assert TASK in texts(script.requests[-1])
        assert "What was the first page?" in texts(script.requests[-1])

    def test_behind_a_chat_middleware_requests_still_extend_the_ones_before(self) -> None:
        script, reports = Script(), list[Any]()
        strategy = KompaktStrategy(budget=BUDGET, on_compaction=reports.append)
        agent = Agent(ScriptedClient(script, []), tools=[read_page], compaction_strategy=strategy, middleware=[pass_on])
        done = asyncio.run(agent.run(TASK))
        assert done.text.endswith("done")
        assert max(kompakt.count(one, format="openai-chat").total for one in script.requests) <= BUDGET
        assert len(reports) <= 8
        assert len({report.session for report in reports}) == 1

    def test_the_page_runs(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        names = run_page("agent_framework", client=ScriptedClient(Script(steps=2), []), tools=[read_page])
        assert names["answer"].text.endswith("done")
        assert names["again"].text.endswith("done")
        close_stores()

    def test_the_migration_page_runs(self) -> None:
        """Both agents of the page are complete, and the one with kompakt answers."""
        names = run_blocks(
            "docs/migration/agent-framework.md", "py", client=ScriptedClient(Script(steps=2), []), tools=[read_page]
        )
        assert asyncio.run(names["after"].run(TASK)).text.endswith("done")


class TestKompaktHistory:
    """The history provider against the one that the framework ships."""

    @staticmethod
    async def converse(provider: Any, session_id: str = "s", steps: int = 3, **options: Any) -> tuple[Any, Any]:
        """Run two turns with a client that reads pages; return the requests and the session."""
        script = Script(steps=steps)
        agent = Agent(ScriptedClient(script, []), tools=[read_page], context_providers=[provider], **options)
        session = agent.create_session(session_id=session_id)
        await agent.run(TASK, session=session)
        await agent.run("Thanks. Say it again.", session=session)
        return script.requests, session

    def test_it_keeps_the_same_messages_as_the_provider_of_the_framework(self, tmp_path: Any) -> None:
        url = f"sqlite:///{tmp_path / 'agent.db'}"

        async def run() -> None:
            theirs, ours = InMemoryHistoryProvider(), KompaktHistory(store=url)
            expected, session = await self.converse(theirs)
            sent, _ = await self.converse(ours)
            assert sent == expected
            kept = await theirs.get_messages("s", state=session.state[theirs.source_id])
            close_stores()
            restarted = KompaktHistory(store=url)
            restored = [one.to_dict() for one in await restarted.get_messages("s")]
            assert [without_ids(one) for one in restored] == [without_ids(one.to_dict()) for one in kept]
            assert await restarted.get_messages("other") == []

        asyncio.run(run())
        close_stores()

    def test_what_the_format_does_not_express_survives(self) -> None:
        async def run() -> None:
            provider = KompaktHistory(store=await kompakt.open_store("memory:"))
            contents = [
                Content.from_text("See:", additional_properties={"k": 1}),
                Content.from_uri("data:image/png;base64,AAAA", media_type="image/png"),
            ]
            results = [Content.from_function_result(f"c{number}", result="ok") for number in (1, 2)]
            calls = [Content.from_function_call(f"c{number}", "read_page", arguments="{}") for number in (1, 2)]
            reasoning = Content.from_text_reasoning(text="hm")
            given = [Message("user", contents, author_name="ann"), Message("assistant", [reasoning, *calls])]
            given.append(Message("tool", results))
            await provider.save_messages("s", given)
            found = await provider.get_messages("s")
            assert [one.to_dict() for one in found] == [one.to_dict() for one in given]

        asyncio.run(run())

    def test_a_session_over_its_budget_is_compacted_and_recall_has_all(self) -> None:
        reports: list[Any] = []

        async def run() -> None:
            store = await kompakt.open_store("memory:")
            provider = KompaktHistory(store=store, budget=BUDGET, on_compaction=reports.append)
            requests, _ = await self.converse(provider, steps=30)
            assert judge(requests[-1]) == []
            assert kompakt.count(requests[-1], format="openai-chat").total <= BUDGET
            assert TASK in texts(requests[-1])
            assert "Say it again." in texts(requests[-1])
            await provider.get_messages("s")
            (answer,) = await provider.recall_tool.invoke(arguments={"query": "depot number of fact-2"})
            assert "D15838" in answer.text
            assert "D15838" in str(await (await store.session("s")).export())

        asyncio.run(run())
        assert reports

    def test_history_and_strategy_work_together(self) -> None:
        async def run() -> None:
            provider = KompaktHistory(store=await kompakt.open_store("memory:"), budget=BUDGET)
            strategy = KompaktStrategy(budget=BUDGET)
            requests, _ = await self.converse(provider, steps=30, compaction_strategy=strategy)
            assert [judge(one) for one in requests] == [[] for _ in requests]
            assert max(kompakt.count(one, format="openai-chat").total for one in requests) <= BUDGET

        asyncio.run(run())


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without the random ids of its calls."""
    contents = [{key: value for key, value in one.items() if key != "id"} for one in message["contents"]]
    return {**message, "contents": contents}
