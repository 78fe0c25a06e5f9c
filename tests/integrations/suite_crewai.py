"""The CrewAI adapter with CrewAI's own agents and a scripted model."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

os.environ.update({"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_TRACING_ENABLED": "false"})

import pytest
from crewai import Agent, Crew, Task
from crewai.hooks import clear_all_llm_call_hooks, clear_all_tool_call_hooks
from crewai.hooks.dispatch import HookAborted, InterceptionPoint, scoped_hooks
from crewai.llms.base_llm import BaseLLM
from crewai.tools import tool
from tests.integrations.contract import (
    BUDGET,
    TASK,
    AdapterContract,
    ObjectCheck,
    Run,
    Script,
    judge,
    page,
    run_page,
    texts,
)

import kompakt
from kompakt.errors import UsageError
from kompakt.integrations.crewai import CrewDoesNotFit, KompaktHooks
from kompakt.integrations.stores import close_stores


class ScriptedLLM(BaseLLM):
    """Answers as the script says; notes the objects of each request."""

    script: Any
    objects: Any = None

    def supports_function_calling(self) -> bool:
        return True

    def get_context_window_size(self) -> int:
        return 170_000

    def call(self, messages: Any, tools: Any = None, **_: Any) -> Any:
        if self.objects is not None:
            self.objects.show(messages)
        names = {one["function"]["name"] for one in tools or ()}
        answer = self.script.answer([dict(one) for one in messages], names)
        if "text" in answer:
            return answer["text"]
        id, name, arguments = answer["call"]
        return [{"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}]

    async def acall(self, messages: Any, tools: Any = None, **_: Any) -> Any:
        return self.call(messages, tools)


@tool("read_page")
def read_page(number: int) -> str:
    """Read one page."""
    return page(number)


class TextLLM(ScriptedLLM):
    """A model without native calls: calls and results are texts."""

    def supports_function_calling(self) -> bool:
        return False

    def call(self, messages: Any, tools: Any = None, **_: Any) -> Any:
        answer = self.script.answer([dict(one) for one in messages], set())
        if "text" in answer:
            return f"Thought: I know.\nFinal Answer: {answer['text']}"
        _, name, arguments = answer["call"]
        return f"Thought: next.\nAction: {name}\nAction Input: {json.dumps(arguments)}"


def build_crew(llm: Any, tools: list[Any], *, stream: bool = False, task: str = TASK) -> Crew:
    agent = Agent(role="Reader", goal="Read.", backstory="You read.", llm=llm, tools=tools, max_iter=100)
    return Crew(
        agents=[agent], tasks=[Task(description=task, expected_output="The word done.", agent=agent)], stream=stream
    )


@pytest.fixture(autouse=True)
def _no_hooks() -> Iterator[None]:
    yield
    clear_all_llm_call_hooks()
    clear_all_tool_call_hooks()


class TestCrewAI(AdapterContract, framework="crewai"):
    def make_adapter(self, **options: Any) -> Any:
        return KompaktHooks(**options)

    def run_loop(
        self, script: Script, *, mode: str = "sync", thread: str = "one", adapter: Any = None, **options: Any
    ) -> Run:
        hooks = adapter or self.make_adapter(**options)
        objects = ObjectCheck()
        llm = ScriptedLLM(model=f"scripted-{thread}", script=script, objects=objects)
        crew = build_crew(
            llm, [read_page, *([hooks.recall_tool] if options.get("recall", True) else [])], stream=mode == "stream"
        )
        before = [lambda context: objects.give(context.messages), hooks.before_llm_call]
        with scoped_hooks(
            {InterceptionPoint.PRE_MODEL_CALL: before, InterceptionPoint.PRE_TOOL_CALL: [hooks.before_tool_call]}
        ):
            done: Any = asyncio.run(crew.akickoff()) if mode == "async" else crew.kickoff()
            if mode == "stream":
                for _ in done:
                    pass
                done = done.result
        return Run(script, done.raw, same_objects=objects.same)

    def test_without_recall_its_tool_cannot_be_given_to_an_agent(self) -> None:
        with pytest.raises(UsageError, match="recall=False"):
            _ = self.make_adapter(recall=False).recall_tool

    def test_recall_finds_what_left_the_context(self) -> None:
        """Tools of an agent are fixed, so recall is offered from the start."""
        run = self.run_loop(Script(recall_at=25), budget=BUDGET)
        assert "D15838" in texts(run.script.requests[25])

    def test_recall_searches_the_conversation_of_the_agent_that_calls_it(self) -> None:
        """Both agents share the hooks and the tool; only the first one has read page 2."""
        hooks = KompaktHooks(budget=BUDGET).register()
        scripts = [Script(recall_at=25), Script(recall_at=25, first=100)]

        def run(script: Script) -> str:
            llm = ScriptedLLM(model=f"scripted-{script.first}", script=script)
            return str(build_crew(llm, [read_page, hooks.recall_tool]).kickoff().raw)

        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(run, scripts)) == ["done", "done"]
        assert ["D15838" in texts(script.requests[25]) for script in scripts] == [True, False]
        assert [judge(one) for script in scripts for one in script.requests if judge(one)] == []

    def test_recall_after_a_restart_reads_the_store(self, tmp_path: Any) -> None:
        store = f"sqlite:///{tmp_path / 'agent.db'}"
        self.run_loop(Script(), budget=BUDGET, store=store)
        close_stores()

        async def found() -> str:
            opened = await kompakt.open_store(store)
            answer = await opened.recall("depot number of fact-2")
            await opened.close()
            return answer.text

        assert "D15838" in asyncio.run(found())

    def test_an_agent_without_native_calls_fits_too(self) -> None:
        script = Script()
        KompaktHooks(budget=BUDGET).register()
        assert build_crew(TextLLM(model="text", script=script), [read_page]).kickoff().raw == "done"
        assert max(kompakt.count(one, format="openai-chat").total for one in script.requests) <= BUDGET
        assert TASK in texts(script.requests[-1])
        assert page(30) in texts(script.requests[-1])

    def test_the_model_is_never_asked_for_a_summary(self) -> None:
        """CrewAI finds the window full before it sends, because it counts four characters as one token."""

        class SmallLLM(ScriptedLLM):
            def get_context_window_size(self) -> int:
                return 2_000

        script = Script()
        KompaktHooks(budget=BUDGET).register()
        llm = SmallLLM(model="small", script=script)
        assert build_crew(llm, [read_page]).kickoff().raw == "done"
        assert len(script.requests) == 31

    def test_what_cannot_fit_stops_the_crew(self) -> None:
        KompaktHooks(budget=100).register()
        script = Script()
        with pytest.raises(CrewDoesNotFit) as caught:
            build_crew(ScriptedLLM(model="m", script=script), [read_page], task="word " * 500).kickoff()
        assert isinstance(caught.value, kompakt.DoesNotFit)
        assert isinstance(caught.value, HookAborted)
        assert script.requests == []

    def test_an_error_of_a_callback_stops_the_crew(self) -> None:
        """CrewAI would ignore it and send the whole messages."""

        def broken(_: Any) -> None:
            raise KeyError("mine")

        KompaktHooks(budget=BUDGET, on_compaction=broken).register()
        with pytest.raises(HookAborted, match="mine"):
            build_crew(ScriptedLLM(model="m", script=Script()), [read_page]).kickoff()

    def test_hooks_shorten_the_requests_of_a_model_that_other_hooks_used(self) -> None:
        first = KompaktHooks(budget=BUDGET).register()
        llm = ScriptedLLM(model="m", script=Script(steps=1))
        build_crew(llm, [read_page]).kickoff()
        first.unregister()
        KompaktHooks(budget=BUDGET).register()
        llm.script = script = Script(reject=frozenset({12}))
        assert build_crew(llm, [read_page]).kickoff().raw == "done"
        assert len(script.requests) == 32
        assert all(TASK in texts(one) and judge(one) == [] for one in script.requests)

    def test_without_the_hooks_nothing_is_compacted(self) -> None:
        hooks = KompaktHooks(budget=BUDGET).register()
        hooks.unregister()
        script = Script()
        build_crew(ScriptedLLM(model="m", script=script), [read_page]).kickoff()
        assert kompakt.count(script.requests[-1], format="openai-chat").total > 2 * BUDGET

    def test_the_page_runs(self) -> None:
        llm = ScriptedLLM(model="m", script=Script(steps=2))
        names = run_page("crewai", llm=llm, tools=[read_page])
        assert names["answer"].raw == "done"
