"""The Agent Framework adapter with the framework's own agent and a scripted client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
    chat_middleware,
    tool,
)
from tests.integrations.contract import BUDGET, TASK, AdapterContract, Run, Script, page, run_page, texts

import kompakt
from kompakt.integrations.agent_framework import KompaktStrategy


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


class TestAgentFramework(AdapterContract):
    modes = ("async", "stream")
    retries = False

    def run_loop(self, script: Script, *, mode: str = "async", thread: str = "one", **options: Any) -> Run:
        seen: list[Any] = []
        strategy = KompaktStrategy(**options)
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

    def test_recall_finds_what_left_the_context(self) -> None:
        """Tools of an agent are fixed, so recall is offered from the start."""
        run = self.run_loop(Script(recall_at=25), budget=BUDGET)
        assert "D15838" in texts(run.script.requests[25])

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

    def test_the_page_runs(self) -> None:
        names = run_page("agent_framework", client=ScriptedClient(Script(steps=2), []), tools=[read_page])
        assert names["answer"].text.endswith("done")
