"""The OpenAI Agents adapter with the SDK's own runner and a scripted model."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest
from agents import (
    Agent,
    ModelResponse,
    RunConfig,
    Runner,
    Session,
    SessionSettings,
    SQLiteSession,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from agents.models.interface import Model
from examples.frameworks import openai_agents_agent
from openai import AsyncOpenAI
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from tests.integrations.contract import (
    BUDGET,
    PIN,
    TASK,
    AdapterContract,
    FakeOpenAI,
    Run,
    Script,
    judge,
    page,
    run_blocks,
    run_page,
    texts,
)

import kompakt
from kompakt.integrations.openai_agents import KompaktSession, input_filter
from kompakt.integrations.stores import close_stores

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


class TestOpenAIAgents(AdapterContract, framework="openai_agents"):
    def make_adapter(self, **options: Any) -> Any:
        return input_filter(**options)

    def run_loop(
        self, script: Script, *, mode: str = "async", thread: str = "one", adapter: Any = None, **options: Any
    ) -> Run:
        given: list[Any] = []
        made = adapter or self.make_adapter(**options)

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

        if mode == "sync":
            result: Any = Runner.run_sync(agent, TASK, run_config=config, max_turns=100)
        else:
            result = asyncio.run(run())
        own, contents = {id(one) for one in given}, list(given)
        same = all(id(one) in own for one in model.seen if one in contents)
        stored = [str(item.get("output", item.get("content"))) for item in result.to_input_list()]
        return Run(script, result.final_output, stored, same)

    def test_parallel_runs_as_tools_have_conversations_of_their_own(self) -> None:
        reports: list[Any] = []
        made = input_filter(budget=BUDGET, on_compaction=reports.append)

        class Reader(ScriptedModel):
            """Each run has its own script, chosen by its input."""

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

    def test_the_page_runs(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        names = run_page("openai_agents", model=ScriptedModel(Script(steps=2)), tools=[read_page])
        assert names["answer"].final_output == "done"
        assert names["again"].final_output == "done"
        close_stores()


class TestKompaktSession:
    """The session against the one that the SDK ships."""

    @staticmethod
    async def converse(session: Any, steps: int = 3, **agent: Any) -> list[Any]:
        """Run two turns with a model that reads pages; return the requests."""
        model = ScriptedModel(Script(steps=steps))
        reader = Agent(name="reader", model=model, tools=[read_page, *agent.get("tools", ())])
        await Runner.run(reader, TASK, session=session, max_turns=100)
        await Runner.run(reader, "Thanks. Say it again.", session=session)
        return model.script.requests

    def test_it_is_a_session(self) -> None:
        assert isinstance(KompaktSession("s", store="memory:"), Session)

    def test_it_keeps_the_same_items_as_the_sessions_of_the_sdk(self, tmp_path: Any) -> None:
        url = f"sqlite:///{tmp_path / 'agent.db'}"

        async def run() -> None:
            theirs, ours = SQLiteSession("s"), KompaktSession("s", store=url)
            assert await self.converse(theirs) == await self.converse(ours)
            expected = await theirs.get_items()
            assert len(expected) > 8
            assert await ours.get_items() == expected
            close_stores()
            assert await KompaktSession("s", store=url).get_items() == expected  # another process
            assert await KompaktSession("other", store=url).get_items() == []

        asyncio.run(run())
        close_stores()

    def test_items_can_be_taken_back_and_cleared(self) -> None:
        async def run() -> None:
            theirs, ours = SQLiteSession("s"), KompaktSession("s", store=await kompakt.open_store("memory:"))
            await self.converse(theirs)
            await self.converse(ours)
            for _ in range(3):
                assert await ours.pop_item() == await theirs.pop_item()
                assert await ours.get_items() == await theirs.get_items()
            more: Any = [{"role": "user", "content": "Go on."}]
            await ours.add_items(more)
            await theirs.add_items(more)
            assert await ours.get_items() == await theirs.get_items()
            await ours.clear_session()
            assert await ours.get_items() == []
            assert await ours.pop_item() is None

        asyncio.run(run())

    def test_a_limit_never_separates_a_call_from_its_result(self) -> None:
        async def run() -> None:
            session = KompaktSession("s", store=await kompakt.open_store("memory:"))
            await self.converse(session)
            whole = await session.get_items()
            for limit in range(len(whole) + 2):
                items = await session.get_items(limit)
                assert len(items) <= limit
                assert items == whole[len(whole) - len(items) :]
                calls = [one["call_id"] for one in items if one.get("type") == "function_call"]
                results = [one["call_id"] for one in items if one.get("type") == "function_call_output"]
                assert calls == results
            limited = KompaktSession("s", store=session._history._options.store, session_settings=SessionSettings(2))
            assert len(await limited.get_items()) == 2

        asyncio.run(run())

    def test_a_session_over_its_budget_is_compacted_and_recall_has_all(self) -> None:
        reports: list[Any] = []

        async def run() -> None:
            store = await kompakt.open_store("memory:")
            session = KompaktSession("s", store=store, budget=BUDGET, pins=[PIN], on_compaction=reports.append)
            requests = await self.converse(session, steps=30, tools=[session.recall_tool])
            assert judge(requests[-1]) == []
            assert kompakt.count(requests[-1], format="openai-chat").total <= BUDGET
            assert TASK in texts(requests[-1])
            assert PIN in texts(requests[-1])
            assert "Say it again." in texts(requests[-1])
            found = await session.recall_tool.on_invoke_tool(None, '{"query": "depot number of fact-2"}')
            assert "D15838" in found
            assert "D15838" in str(await (await store.session("s")).export())

        asyncio.run(run())
        assert reports
        assert all(report.tokens_after < report.tokens_before for report in reports)

    def test_the_runner_may_force_a_compaction(self) -> None:
        async def run() -> None:
            session = KompaktSession("s", store=await kompakt.open_store("memory:"), budget=100_000)
            await self.converse(session, steps=10)
            before = len(await session.get_items())
            await session.run_compaction()
            assert len(await session.get_items()) == before
            await session.run_compaction({"force": True})
            assert len(await session.get_items()) < before

        asyncio.run(run())


class TestExamples:
    def test_the_assistant_continues_a_session_after_a_restart(self, tmp_path: Any) -> None:
        store, path = f"sqlite:///{tmp_path / 'agent.db'}", tmp_path / "may.txt"
        path.write_text("\n".join(map(page, range(6))))

        class Reading(Script):
            def answer(self, messages: Any, tools: set[str]) -> dict[str, Any]:
                made = super().answer(messages, tools)
                return made if "text" in made else {"call": (made["call"][0], "read_text", {"path": str(path)})}

        def ask(script: Script, question: str) -> str:
            work = openai_agents_agent.ask(
                ScriptedModel(script), question, session="ann", store=store, budget=2 * BUDGET
            )
            answer = asyncio.run(work)
            close_stores()
            return answer

        assert ask(Reading(steps=4), "Remember the facts.") == "done"
        later = Script(steps=0)
        assert ask(later, "Which fact was first?") == "done"
        assert judge(later.requests[0]) == []
        assert "Remember the facts." in texts(later.requests[0])
        assert kompakt.count(later.requests[0], format="openai-chat").total <= 2 * BUDGET

    def test_a_wrapped_client_shortens_and_retries(self) -> None:
        script = Script(reject=frozenset({12}))
        fake = FakeOpenAI(script)

        async def respond(request: Any) -> Any:
            status, body = fake.answer(request.content)
            return httpx2.Response(status, json=body)

        http = httpx2.AsyncClient(transport=httpx2.MockTransport(respond))
        client = AsyncOpenAI(api_key="none", http_client=http, max_retries=0)
        names = run_blocks(
            "docs/integrations/wrap.md",
            "python",
            section="OpenAI Agents SDK",
            openai_client=client,
            tools=[read_page],
        )
        assert names["answer"].final_output == "done"
        sizes = [kompakt.count(one, format="openai-chat").total for one in script.requests]
        assert sizes[13] < sizes[12]
        assert [judge(one) for one in script.requests] == [[] for _ in script.requests]
