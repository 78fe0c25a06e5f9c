"""The OpenAI Agents adapter with the SDK's own runner and a scripted model."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from agents import Agent, ModelResponse, RunConfig, Runner, Usage, function_tool, set_tracing_disabled
from agents.models.interface import Model
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from tests.integrations.contract import BUDGET, TASK, AdapterContract, Run, Script, page, run_page

from kompakt.integrations.openai_agents import input_filter

set_tracing_disabled(True)


def as_chat(item: Any) -> dict[str, Any]:
    """Translate an item of the Responses API, independently of kompakt."""
    kind = item.get("type", "message")
    if kind == "function_call":
        call = {"id": item["call_id"], "function": {"name": item["name"], "arguments": item["arguments"]}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
    content = item["content"]
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    return {"role": item["role"], "content": text}


class ScriptedModel(Model):
    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen: list[Any] = []

    def _answer(self, given: Any, tools: Any) -> Any:
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        self.seen = list(items)
        answer = self.script.answer([as_chat(item) for item in items], {tool.name for tool in tools})
        if "text" in answer:
            text = ResponseOutputText(text=answer["text"], type="output_text", annotations=[])
            return ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
        id, name, arguments = answer["call"]
        return ResponseFunctionToolCall(call_id=id, name=name, arguments=json.dumps(arguments), type="function_call")

    async def get_response(
        self, system_instructions: Any, input: Any, model_settings: Any, tools: Any, *_: Any, **__: Any
    ) -> ModelResponse:
        return ModelResponse(output=[self._answer(input, tools)], usage=Usage(), response_id=None)

    async def stream_response(
        self, system_instructions: Any, input: Any, model_settings: Any, tools: Any, *_: Any, **__: Any
    ) -> Any:
        made = Response(
            id="r",
            created_at=0,
            model="scripted",
            object="response",
            output=[self._answer(input, tools)],
            tool_choice="auto",
            tools=[],
            parallel_tool_calls=False,
        )
        yield ResponseCompletedEvent(type="response.completed", response=made, sequence_number=0)


@function_tool
def read_page(number: int) -> str:
    """Read one page."""
    return page(number)


class TestOpenAIAgents(AdapterContract):
    modes = ("async", "stream")
    retries = False

    def run_loop(self, script: Script, *, mode: str = "async", thread: str = "one", **options: Any) -> Run:
        given: list[Any] = []
        made = input_filter(**options)

        async def recording(data: Any) -> Any:
            given[:] = data.model_data.input
            return await made(data)

        model = ScriptedModel(script)
        agent = Agent(name="reader", instructions="You read.", model=model, tools=[read_page, made.recall_tool])
        config = RunConfig(call_model_input_filter=recording)

        async def run() -> Any:
            if mode == "stream":
                result = Runner.run_streamed(agent, TASK, run_config=config, max_turns=100)
                async for _ in result.stream_events():
                    pass
                return result
            return await Runner.run(agent, TASK, run_config=config, max_turns=100)

        result = asyncio.run(run())
        own, contents = {id(one) for one in given}, list(given)
        same = all(id(one) in own for one in model.seen if one in contents)
        stored = [str(item.get("output", item.get("content"))) for item in result.to_input_list()]
        return Run(script, result.final_output, stored, same)

    def test_parallel_runs_as_tools_have_conversations_of_their_own(self) -> None:
        reports: list[Any] = []
        made = input_filter(budget=BUDGET, on_compaction=reports.append)

        class Reader(ScriptedModel):
            """Each run has a script of its own, told apart by its input."""

            def __init__(self) -> None:
                super().__init__(Script())
                self.scripts: dict[str, Script] = {}

            def _answer(self, given: Any, tools: Any) -> Any:
                self.script = self.scripts.setdefault(str(given[0]["content"]), Script())
                return super()._answer(given, tools)

        class Delegating(ScriptedModel):
            """Calls the reader twice at once."""

            async def get_response(self, *given: Any, **named: Any) -> ModelResponse:
                if self.seen:
                    return await super().get_response(*given, **named)
                self.seen = ["asked"]
                calls = [
                    ResponseFunctionToolCall(
                        call_id=f"call-{name}",
                        name="read",
                        arguments=json.dumps({"input": f"{TASK} Part {name}."}),
                        type="function_call",
                    )
                    for name in ("a", "b")
                ]
                return ModelResponse(output=calls, usage=Usage(), response_id=None)

        model = Reader()
        reader = Agent(name="reader", model=model, tools=[read_page, made.recall_tool])
        read = reader.as_tool("read", "Read a part.", max_turns=100)
        lead = Agent(name="lead", model=Delegating(Script(steps=0)), tools=[read])
        asyncio.run(Runner.run(lead, "Read.", run_config=RunConfig(call_model_input_filter=made)))
        assert len(model.scripts) == 2
        alone = self.run_loop(Script(), budget=BUDGET, on_compaction=(expected := list[Any]()).append)
        assert alone.text == "done"
        assert len({report.session for report in reports}) == 2
        assert len(reports) == 2 * len(expected)

    def test_the_page_runs(self) -> None:
        names = run_page("openai_agents", model=ScriptedModel(Script(steps=2)), tools=[read_page])
        assert names["answer"].final_output == "done"
