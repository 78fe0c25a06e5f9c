"""The LangChain adapter with LangChain's own agent and a scripted model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from examples.frameworks import langchain_agent
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.messages.utils import convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from tests.integrations.contract import BUDGET, TASK, AdapterContract, Run, Script, judge, page, run_blocks, run_page

import kompakt
from kompakt.integrations.langchain import KompaktMiddleware, pre_model_hook
from kompakt.integrations.stores import close_stores


class ScriptedModel(BaseChatModel):
    """Answers as the script says; keeps the messages of the last request."""

    script: Any
    names: Any = frozenset()
    seen: Any = None

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        names = frozenset(getattr(one, "name", None) or one["function"]["name"] for one in tools)
        return self.model_copy(update={"names": names})

    def _answer(self, messages: list[Any]) -> AIMessage:
        self.seen[:] = messages
        sent = convert_to_openai_messages(messages, text_format="string")
        answer = self.script.answer(sent, set(self.names))
        if "text" in answer:
            return AIMessage(answer["text"])
        id, name, arguments = answer["call"]
        return AIMessage("", tool_calls=[{"id": id, "name": name, "args": arguments}])

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._answer(messages))])

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any) -> Any:
        made = self._answer(messages)
        chunk = AIMessageChunk(made.content, tool_calls=made.tool_calls)
        yield ChatGenerationChunk(message=chunk)


class Recorder(AgentMiddleware[Any, Any]):
    """Keeps the messages that the agent gave to its middleware."""

    def __init__(self, given: list[Any]) -> None:
        super().__init__()
        self.given = given

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        self.given[:] = request.messages
        return handler(request)

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        self.given[:] = request.messages
        return await handler(request)


@tool
def read_page(number: int) -> str:
    """Read one page."""
    return page(number)


class TestLangChain(AdapterContract, framework="langchain"):
    def make_adapter(self, **options: Any) -> Any:
        return KompaktMiddleware(**options)

    def run_loop(
        self, script: Script, *, mode: str = "sync", thread: str = "one", adapter: Any = None, **options: Any
    ) -> Run:
        seen: list[Any] = []
        given: list[Any] = []
        model = ScriptedModel(script=script, seen=seen, disable_streaming=mode != "stream")
        agent = create_agent(
            model,
            [read_page],
            system_prompt="You are a reader.",
            middleware=[Recorder(given), adapter or self.make_adapter(**options)],
            checkpointer=InMemorySaver(),
        )
        config: Any = {"configurable": {"thread_id": thread}, "recursion_limit": 200}
        task: Any = {"messages": [{"role": "user", "content": TASK}]}
        if mode == "async":
            asyncio.run(agent.ainvoke(task, config))
        elif mode == "stream":
            for _ in agent.stream(task, config, stream_mode="messages"):
                pass
        else:
            agent.invoke(task, config)
        kept = agent.get_state(config).values["messages"]
        own, contents = {id(one) for one in given}, {str(one.content) for one in given}
        same = all(id(one) in own for one in seen if str(one.content) in contents)
        return Run(script, str(kept[-1].content), [str(one.content) for one in kept], same)

    def test_a_hook_before_the_model_returns_a_view(self) -> None:
        hook = pre_model_hook(budget=2_000)
        messages: list[Any] = []
        for number in range(1, 20):
            call = {"id": f"c{number}", "name": "read_page", "args": {"number": number}}
            messages += [AIMessage("", tool_calls=[call]), read_page.invoke({**call, "type": "tool_call"})]
        view = hook({"messages": [HumanMessage(TASK), *messages]})["llm_input_messages"]
        assert len(view) < len(messages)
        assert view[-1] is messages[-1]

    def test_a_hook_with_a_store_that_it_cannot_use_is_refused_at_once(self) -> None:
        store: Any = asyncio.run(kompakt.open_store("memory:"))
        with pytest.raises(kompakt.UsageError, match="pass the URL of the store"):
            pre_model_hook(store=store)

    def test_agents_that_are_called_by_tools_have_conversations_of_their_own(self) -> None:
        reports: list[Any] = []
        shared = KompaktMiddleware(budget=BUDGET, on_compaction=reports.append)
        inner_script = Script()

        @tool
        def delegate(part: str) -> str:
            """Let another agent read."""
            inner_script._step = 0
            model = ScriptedModel(script=inner_script, seen=[])
            inner = create_agent(model, [read_page], middleware=[shared])
            return str(inner.invoke({"messages": [{"role": "user", "content": part}]})["messages"][-1].content)

        class Delegating(Script):
            def answer(self, messages: Any, tools: set[str]) -> dict[str, Any]:
                made = super().answer(messages, tools)
                return made if "text" in made else {"call": (made["call"][0], "delegate", {"part": TASK})}

        agent = create_agent(
            ScriptedModel(script=Delegating(steps=2), seen=[]),
            [delegate],
            middleware=[shared],
            checkpointer=InMemorySaver(),
        )
        agent.invoke({"messages": [{"role": "user", "content": TASK}]}, {"configurable": {"thread_id": "one"}})
        assert len({report.session for report in reports}) == 2
        assert "langchain-one" not in {report.session for report in reports}

    def test_recall_after_a_restart_reads_the_store(self, tmp_path: Any) -> None:
        store = f"sqlite:///{tmp_path / 'agent.db'}"
        self.run_loop(Script(), budget=BUDGET, store=store)
        for mode in ("sync", "async"):
            agent = create_agent(
                ScriptedModel(script=Script(steps=0), seen=[]),
                [read_page],
                middleware=[KompaktMiddleware(budget=BUDGET, store=store)],
                checkpointer=InMemorySaver(),
            )
            config: Any = {"configurable": {"thread_id": "one"}}
            call = {"id": "c", "name": "recall", "args": {"query": "depot number of fact-2"}}
            asked = [HumanMessage(TASK), AIMessage("", tool_calls=[call])]
            agent.update_state(config, {"messages": asked}, as_node="model")
            done = agent.invoke(None, config) if mode == "sync" else asyncio.run(agent.ainvoke(None, config))
            assert "D15838" in str(done["messages"][2].content)
        close_stores()

    def test_the_page_runs(self) -> None:
        script = Script(steps=2)
        names = run_page("langchain", model=ScriptedModel(script=script, seen=[]), tools=[read_page])
        assert names["answer"]["messages"][-1].content == "done"

    def test_the_readme_example_finishes_the_loop(self) -> None:
        """The block of the README turns a model and tools into an agent that works."""
        script = Script(steps=30)
        names = run_blocks("README.md", "py", model=ScriptedModel(script=script, seen=[]), tools=[read_page])
        done = names["agent"].invoke({"messages": [HumanMessage(TASK)]}, {"recursion_limit": 100})
        assert done["messages"][-1].content == "done"

    def test_the_migration_page_runs(self) -> None:
        """Trimming loses the task of a single long turn; the hook keeps it. Both agents of the page are complete."""
        names = run_blocks(
            "docs/migration/langchain.md", "py", model=ScriptedModel(script=Script(steps=2), seen=[]), tools=[read_page]
        )
        messages: list[Any] = [HumanMessage(TASK)]
        for number in range(1, 20):
            call = {"id": f"c{number}", "name": "read_page", "args": {"number": number}}
            messages += [AIMessage("", tool_calls=[call]), read_page.invoke({**call, "type": "tool_call"})]
        before, after = (names[name]({"messages": messages})["llm_input_messages"] for name in ("before", "after"))
        assert TASK not in str(before)
        assert TASK in str(after) and after[-1] is messages[-1]
        done = names["agent_after"].invoke({"messages": [HumanMessage(TASK)]})
        assert done["messages"][-1].content == "done"

    def test_the_example_reads_a_folder_that_is_larger_than_the_window(self, tmp_path: Any) -> None:
        for number in range(1, 21):
            (tmp_path / f"{number}.txt").write_text(page(number))

        class Reading(Script):
            def answer(self, messages: Any, tools: set[str]) -> dict[str, Any]:
                made = super().answer(messages, tools)
                if "text" in made:
                    return made
                return {"call": (made["call"][0], "read_text", {"name": f"{self._step}.txt"})}

        script = Reading(steps=20)
        store = f"sqlite:///{tmp_path / 'agent.db'}"
        agent = langchain_agent.build(ScriptedModel(script=script, seen=[]), tmp_path, budget=BUDGET, store=store)
        assert langchain_agent.ask(agent, TASK) == "done"
        assert langchain_agent.ask(agent, "Say it again.") == "done"
        assert max(kompakt.count(one, format="openai-chat").total for one in script.requests) <= BUDGET
        assert [judge(one) for one in script.requests] == [[] for _ in script.requests]
        close_stores()
