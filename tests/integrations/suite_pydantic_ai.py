"""The Pydantic AI adapter with the framework's own agent and a scripted model."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import httpx2
from openai import AsyncOpenAI
from pydantic_ai import Agent, Tool
from pydantic_ai.capabilities import AbstractCapability, ToolSearch
from pydantic_ai.messages import (
    BinaryContent,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from tests.integrations.contract import (
    BUDGET,
    TASK,
    AdapterContract,
    FakeOpenAI,
    Run,
    Script,
    TooLong,
    judge,
    page,
    run_blocks,
    run_page,
)

import kompakt
from kompakt.integrations.pydantic_ai import Kompakt


def as_chat(messages: Any) -> list[dict[str, Any]]:
    """Translate messages, independently of the adapter."""
    found: list[dict[str, Any]] = []
    for message in messages:
        if message.kind == "response":
            calls = [
                {"id": part.tool_call_id, "function": {"name": part.tool_name, "arguments": str(part.args)}}
                for part in message.parts
                if part.part_kind == "tool-call"
            ]
            text = "".join(part.content for part in message.parts if part.part_kind == "text")
            found.append({"role": "assistant", "content": text, "tool_calls": calls})
            continue
        for part in message.parts:
            if part.part_kind == "tool-return":
                found.append({"role": "tool", "tool_call_id": part.tool_call_id, "content": part.content})
            elif part.part_kind in ("user-prompt", "system-prompt"):
                role = "user" if part.part_kind == "user-prompt" else "system"
                found.append({"role": role, "content": part.content})
    return found


def scripted(script: Script, seen: list[Any]) -> FunctionModel:
    def reply(messages: Any, info: AgentInfo) -> ModelResponse:
        seen[:] = messages
        answer = script.answer(as_chat(messages), {tool.name for tool in info.function_tools})
        if "text" in answer:
            return ModelResponse(parts=[TextPart(answer["text"])])
        id, name, arguments = answer["call"]
        return ModelResponse(parts=[ToolCallPart(name, arguments, id)])

    async def stream(messages: Any, info: AgentInfo) -> Any:
        for part in reply(messages, info).parts:
            if isinstance(part, TextPart):
                yield part.content
            elif isinstance(part, ToolCallPart):
                yield {0: DeltaToolCall(part.tool_name, json.dumps(part.args), tool_call_id=part.tool_call_id)}

    return FunctionModel(reply, stream_function=stream)


class Recorder(AbstractCapability[Any]):
    """Keeps the messages of a request before the adapter changes them."""

    def __init__(self, given: list[Any]) -> None:
        self.given = given

    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        self.given[:] = request_context.messages
        return request_context


@dataclass
class Totals(AbstractCapability[Any]):
    """Instructions that the model loads when it needs them."""

    def get_instructions(self) -> str:
        """Return what the model should know once it has loaded them."""
        return "LOADED: totals are sums."


def read_page(number: int) -> str:
    """Read one page."""
    return page(number)


class TestPydanticAI(AdapterContract, framework="pydantic_ai"):
    def make_adapter(self, **options: Any) -> Any:
        return Kompakt(**options)

    def run_loop(
        self, script: Script, *, mode: str = "async", thread: str = "one", adapter: Any = None, **options: Any
    ) -> Run:
        seen: list[Any] = []
        given: list[Any] = []
        agent = Agent(
            scripted(script, seen),
            instructions="You read.",
            tools=[read_page],
            capabilities=[Recorder(given), adapter or self.make_adapter(**options)],
        )

        async def run() -> Any:
            if mode == "stream":
                async with agent.run_stream(TASK) as result:
                    text = await result.get_output()
                return text, result.all_messages()
            done = await agent.run(TASK)
            return done.output, done.all_messages()

        if mode == "sync":
            done = agent.run_sync(TASK)
            text, kept = done.output, done.all_messages()
        else:
            text, kept = asyncio.run(run())
        own, contents = {id(one) for one in given}, [as_chat([one]) for one in given]
        same = all(id(one) in own for one in seen if as_chat([one]) in contents)
        return Run(script, text, [one["content"] for one in as_chat(kept)], same)

    def test_media_stay_when_another_part_of_their_request_is_shortened(self) -> None:
        image = BinaryContent(b"pixels", media_type="image/png")
        long = "\n".join(map(page, range(20)))
        history: list[Any] = [
            ModelRequest(parts=[UserPromptPart(TASK)]),
            ModelResponse(parts=[ToolCallPart("read_page", {"number": 1}, "c1")]),
            ModelRequest(parts=[ToolReturnPart("read_page", [long, image], "c1"), UserPromptPart(["See:", image])]),
        ]
        seen: list[Any] = []
        agent = Agent(scripted(Script(steps=0), seen), capabilities=[Kompakt(budget=BUDGET)])
        agent.run_sync(message_history=history)
        result, prompt = seen[-1].parts
        assert len(result.content[0]) < len(long)
        assert result.content[1] == image
        assert prompt.content == ["See:", image]

    def test_second_attempts_of_two_runs_of_one_conversation_do_not_mix(self) -> None:
        sent: list[str] = []
        history: list[Any] = [ModelRequest(parts=[UserPromptPart(TASK)])]
        for number in range(8):
            history.append(ModelResponse(parts=[ToolCallPart("read_page", {"number": number}, f"c{number}")]))
            history.append(ModelRequest(parts=[ToolReturnPart("read_page", page(number), f"c{number}")]))
        history.append(ModelResponse(parts=[TextPart("done")]))

        async def reply(messages: Any, info: AgentInfo) -> ModelResponse:
            sent.append(str(messages[-1].parts[-1].content))
            if len(sent) == 1:
                await agent.run("second run", conversation_id="c", message_history=history)
                raise TooLong(BUDGET)
            return ModelResponse(parts=[TextPart("done")])

        agent = Agent(FunctionModel(reply), capabilities=[Kompakt(budget=BUDGET)])
        asyncio.run(agent.run("first run", conversation_id="c", message_history=history))
        assert sent == ["first run", "second run", "first run"]

    def test_tools_that_were_found_by_a_search_stay_available(self) -> None:
        """Pydantic AI offers a deferred tool if the request has the search that found it."""
        offered: list[bool] = []

        def hidden_gem(x: int) -> int:
            """Compute the gem."""
            return x + 1

        def reply(messages: Any, info: AgentInfo) -> ModelResponse:
            offered.append(any(tool.name == "hidden_gem" for tool in info.function_tools))
            if len(offered) == 1:
                return ModelResponse(parts=[ToolCallPart("search_tools", {"queries": ["gem"]}, "search")])
            if len(offered) <= 20:
                return ModelResponse(parts=[ToolCallPart("read_page", {"number": len(offered)}, f"c{len(offered)}")])
            if len(offered) == 21:
                return ModelResponse(parts=[ToolCallPart("hidden_gem", {"x": 1}, "gem")])
            return ModelResponse(parts=[TextPart("done")])

        reports: list[Any] = []
        agent = Agent(
            FunctionModel(reply),
            tools=[read_page, Tool(hidden_gem, defer_loading=True)],
            capabilities=[ToolSearch(), Kompakt(budget=BUDGET, on_compaction=reports.append)],
        )
        result = agent.run_sync(TASK)
        assert result.output == "done"
        assert reports
        assert offered[0] is False and all(offered[1:])

    def test_capabilities_that_were_loaded_stay_loaded(self) -> None:
        instructions: list[str] = []

        def reply(messages: Any, info: AgentInfo) -> ModelResponse:
            step = len(instructions) + 1
            instructions.append(str(messages) + str(info.instructions))
            if step == 1:
                return ModelResponse(parts=[ToolCallPart("load_capability", {"id": "totals"}, "load")])
            if step <= 20:
                return ModelResponse(parts=[ToolCallPart("read_page", {"number": step}, f"c{step}")])
            return ModelResponse(parts=[TextPart("done")])

        reports: list[Any] = []
        totals = Totals(id="totals", description="How to compute totals", defer_loading=True)
        agent = Agent(
            FunctionModel(reply),
            tools=[read_page],
            capabilities=[totals, Kompakt(budget=BUDGET, on_compaction=reports.append)],
        )
        assert agent.run_sync(TASK).output == "done"
        assert reports
        assert "LOADED" not in instructions[0]
        assert all("LOADED" in one for one in instructions[1:])

    def test_the_page_runs(self) -> None:
        names = run_page("pydantic_ai", model=scripted(Script(steps=2), []), tools=[read_page])
        assert names["answer"].output == "done"

    def test_a_wrapped_client_shortens_and_retries(self) -> None:
        script = Script(reject=frozenset({12}))
        fake = FakeOpenAI(script)

        async def respond(request: Any) -> Any:
            status, body = fake.answer(request.content)
            return httpx2.Response(status, json=body)

        http = httpx2.AsyncClient(transport=httpx2.MockTransport(respond))
        client = AsyncOpenAI(api_key="none", http_client=http, max_retries=0)
        names = run_blocks(
            "docs/integrations/wrap.md", "python", section="Pydantic AI", openai_client=client, tools=[read_page]
        )
        assert names["answer"].output == "done"
        sizes = [kompakt.count(one, format="openai-chat").total for one in script.requests]
        assert sizes[13] < sizes[12]
        assert [judge(one) for one in script.requests] == [[] for _ in script.requests]
