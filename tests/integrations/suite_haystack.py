"""The Haystack adapter with Haystack's own agent and hook, and a scripted chat generator."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import httpx2
import pytest
from haystack import component
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.core.serialization import allow_deserialization_module
from haystack.dataclasses import ChatMessage, StreamingChunk, ToolCall
from haystack.hooks import hook
from haystack.hooks.compaction import CompactionHook
from haystack.tools import tool
from openai import OpenAI
from tests.integrations.contract import (
    BUDGET,
    LARGE,
    TASK,
    AdapterContract,
    FakeOpenAI,
    ObjectCheck,
    Run,
    Script,
    page,
    run_blocks,
    run_page,
    sessions,
    texts,
)

import kompakt
from kompakt.errors import UsageError
from kompakt.integrations.haystack import KompaktAdmissionHook, KompaktCompactor, KompaktTokenCounter, _ChatConverter
from kompakt.integrations.stores import close_stores


def as_chat(messages: Any) -> list[dict[str, Any]]:
    """Translate messages with Haystack's own converter."""
    return [one.to_openai_dict_format() for one in messages]


@component
class ScriptedGenerator:
    def __init__(self, script: Script, objects: ObjectCheck | None = None) -> None:
        self.script, self.objects = script, objects

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage], tools: Any = None, streaming_callback: Any = None) -> dict[str, Any]:
        if self.objects is not None:
            self.objects.show(messages)
        answer = self.script.answer(as_chat(messages), {one.name for one in tools or ()})
        if streaming_callback is not None:
            streaming_callback(StreamingChunk(answer.get("text", "")))
        if "text" in answer:
            return {"replies": [ChatMessage.from_assistant(answer["text"])]}
        id, name, arguments = answer["call"]
        return {"replies": [ChatMessage.from_assistant(tool_calls=[ToolCall(name, arguments, id)])]}

    @component.output_types(replies=list[ChatMessage])
    async def run_async(
        self, messages: list[ChatMessage], tools: Any = None, streaming_callback: Any = None
    ) -> dict[str, Any]:
        return self.run(messages, tools, streaming_callback)


@tool
def read_page(number: int) -> str:
    """Read one page."""
    return page(number)


class TestHaystack(AdapterContract, framework="haystack"):
    def make_adapter(self, budget: int | None = None, **options: Any) -> Any:
        """Return a compactor. The budget is that of the framework's hook."""
        return KompaktCompactor(**options)

    def run_loop(
        self,
        script: Script,
        *,
        mode: str = "sync",
        thread: str = "one",
        adapter: Any = None,
        budget: int = BUDGET,
        **options: Any,
    ) -> Run:
        compactor, objects = adapter or self.make_adapter(**options), ObjectCheck()

        @hook
        def record(state: State) -> None:
            objects.give(state.data["messages"])

        compaction = CompactionHook(
            compactor, context_window=budget, compact_at=0.9, compact_to=0.5, token_counter=KompaktTokenCounter()
        )
        tools = [read_page, *([compactor.recall_tool] if options.get("recall", True) else [])]
        agent = Agent(
            chat_generator=ScriptedGenerator(script, objects),
            tools=tools,
            system_prompt="You read.",
            hooks={"before_llm": [record, compactor.admission_hook, compaction]},
        )
        task, chunks = [ChatMessage.from_user(TASK)], list[StreamingChunk]()
        if mode == "async":
            done = asyncio.run(agent.run_async(task))
        else:
            done = agent.run(task, streaming_callback=chunks.append if mode == "stream" else None)
        assert bool(chunks) is (mode == "stream")
        return Run(script, done["last_message"].text, same_objects=objects.same)

    def test_without_recall_its_tool_cannot_be_given_to_an_agent(self) -> None:
        with pytest.raises(UsageError, match="recall=False"):
            _ = self.make_adapter(recall=False).recall_tool

    def test_recall_finds_what_left_the_context(self) -> None:
        """Tools of an agent are fixed, so recall is offered from the start."""
        run = self.run_loop(Script(recall_at=25))
        assert "D15838" in texts(run.script.requests[25])

    def test_the_compactor_gets_as_close_to_the_target_as_it_can(self) -> None:
        call = ToolCall("read_page", {"number": 1}, "c1")
        calls = [ChatMessage.from_assistant(tool_calls=[call]), ChatMessage.from_tool(page(1), call)]
        messages = [ChatMessage.from_user(TASK), *calls, ChatMessage.from_assistant("word " * 2_000)]
        messages += [ChatMessage.from_user("And now?")]
        counter = KompaktTokenCounter()
        view = KompaktCompactor().compact(messages, 10, counter)
        assert view is not None
        assert counter.count(view) < counter.count(messages)
        assert len(messages) == 5

    def test_a_conversation_that_cannot_get_shorter_is_one_session(self, tmp_path: Any) -> None:
        """The hook asks before every request as long as the window is too full."""
        url, counter = f"sqlite:///{tmp_path / 'agent.db'}", KompaktTokenCounter()
        compactor, messages = KompaktCompactor(store=url), [ChatMessage.from_user(page(LARGE))]
        assert [compactor.compact(list(messages), 100, counter) for _ in range(3)] == [None] * 3
        assert len(sessions(url)) == 1

    def test_the_counter_counts_only_what_is_new(self, monkeypatch: pytest.MonkeyPatch) -> None:
        messages, counter = [ChatMessage.from_user(page(number)) for number in range(20)], KompaktTokenCounter()
        assert counter.count(messages) == KompaktTokenCounter().count(list(map(copy.copy, messages)))
        converted: list[Any] = []
        monkeypatch.setattr(_ChatConverter, "to_wire", lambda _, one: converted.append(one) or as_chat([one]))
        messages.append(ChatMessage.from_user("and this"))
        assert counter.count(messages) == kompakt.count(as_chat(messages), format="openai-chat").total
        assert converted == messages[-1:]
        assert counter.count(messages[:3]) == kompakt.count(as_chat(messages[:3]), format="openai-chat").total

    def test_a_short_conversation_stays(self) -> None:
        messages = [ChatMessage.from_user(TASK)]
        assert KompaktCompactor().compact(messages, 2_000, KompaktTokenCounter()) is None
        assert KompaktCompactor().compact(messages, 0, KompaktTokenCounter()) is None

    def test_compactor_and_counter_survive_serialization(self) -> None:
        budget = kompakt.Budget(window=900, trigger=800, target=500)
        made = KompaktCompactor(budget=budget, pins=["keep"], store="sqlite:///x.db", recall=False)
        compaction = CompactionHook(made, context_window=1_000, token_counter=KompaktTokenCounter("gpt-5"))
        allow_deserialization_module("kompakt.integrations.haystack")
        again = CompactionHook.from_dict(compaction.to_dict())
        assert again.to_dict() == compaction.to_dict()
        assert isinstance(again.compactor, KompaktCompactor)

    @pytest.mark.parametrize("admission", ["firm", kompakt.admission.Settings(min_tokens=300), None])
    def test_the_admission_hook_survives_serialization(self, admission: Any) -> None:
        made = KompaktCompactor(admission=admission).admission_hook
        allow_deserialization_module("kompakt.integrations.haystack")
        again = KompaktAdmissionHook.from_dict(made.to_dict())
        assert again.compactor._options.admission == admission

    def test_shortened_results_are_recalled(self) -> None:
        script = Script(steps=2, first=LARGE, recall_at=3)
        compactor = KompaktCompactor(admission="firm")
        compaction = CompactionHook(compactor, context_window=100_000, token_counter=KompaktTokenCounter())
        agent = Agent(
            chat_generator=ScriptedGenerator(script),
            tools=[read_page, compactor.recall_tool],
            hooks={"before_llm": [compactor.admission_hook, compaction]},
        )
        script.query = "row 1001-200"
        agent.run([ChatMessage.from_user(TASK)])
        assert "row 1001-200: " not in texts(script.requests[2])
        assert "row 1001-200: " in texts(script.requests[3])

    def test_the_original_message_is_not_marked(self) -> None:
        call = ToolCall("read_page", {"number": LARGE}, "c1")
        result = ChatMessage.from_tool(page(LARGE), call, meta={"source": "test"})
        given = [ChatMessage.from_user(TASK), ChatMessage.from_assistant(tool_calls=[call]), result]
        state = State(schema={"messages": {"type": list[ChatMessage]}}, data={"messages": given})
        KompaktCompactor(admission="firm").admission_hook.run(state)
        shown = state.data["messages"][-1]
        assert len(shown.tool_call_result.result) < len(page(LARGE))
        assert shown.meta["source"] == "test" and "context_compaction" in shown.meta
        assert result.meta == {"source": "test"}
        assert state.data["messages"][:2] == given[:2]

    def test_recall_after_a_restart_reads_the_store(self, tmp_path: Any) -> None:
        store = f"sqlite:///{tmp_path / 'agent.db'}"
        calls = [ToolCall("read_page", {"number": number}, f"c{number}") for number in range(20)]
        messages = [ChatMessage.from_user(TASK)]
        for number, call in enumerate(calls):
            messages += [ChatMessage.from_assistant(tool_calls=[call]), ChatMessage.from_tool(page(number), call)]
        kept = KompaktCompactor(store=store).compact(messages, 2_000, KompaktTokenCounter())
        restarted = KompaktCompactor(store=store)
        state = State(schema={"messages": {"type": list[ChatMessage]}}, data={"messages": kept})
        assert "D15838" in restarted.recall_tool.invoke(query="depot number of fact-2", state=state)
        close_stores()

    def test_several_results_of_one_message_stay_in_one_message(self) -> None:
        calls = [ToolCall("read_page", {"number": number}, f"c{number}") for number in (1, 2)]
        both = ChatMessage.from_tool("\n".join(map(page, range(30))), calls[0])
        both._content.append(ChatMessage.from_tool("short", calls[1])._content[0])
        messages = [ChatMessage.from_user(TASK), ChatMessage.from_assistant(tool_calls=calls), both]
        view = KompaktCompactor().compact(messages, 2_000, KompaktTokenCounter())
        assert view is not None
        assert len(view) == 3
        assert [one.origin for one in view[-1].tool_call_results] == calls
        assert view[-1].tool_call_results[1].result == "short"

    def test_the_page_runs(self) -> None:
        names = run_page("haystack", generator=ScriptedGenerator(Script(steps=2)), tools=[read_page])
        assert names["answer"]["last_message"].text == "done"

    def test_a_wrapped_client_shortens_and_retries(self, monkeypatch: pytest.MonkeyPatch) -> None:
        script = Script(reject=frozenset({12}))
        fake = FakeOpenAI(script)

        def respond(request: Any) -> Any:
            status, body = fake.answer(request.content)
            return httpx2.Response(status, json=body)

        def client(**_: Any) -> OpenAI:
            http = httpx2.Client(transport=httpx2.MockTransport(respond))
            return OpenAI(api_key="none", http_client=http, max_retries=0)

        monkeypatch.setenv("OPENAI_API_KEY", "none")
        monkeypatch.setattr("haystack.components.generators.chat.openai.OpenAI", client)
        names = run_blocks(
            "docs/integrations/wrap.md", "python", section="Haystack", tools=[read_page], ChatMessage=ChatMessage
        )
        assert names["answer"]["last_message"].text == "done"
        sizes = [kompakt.count(one, format="openai-chat").total for one in script.requests]
        assert sizes[13] < sizes[12]
