"""The LlamaIndex adapter with LlamaIndex's own agent and a scripted model."""

from __future__ import annotations

import asyncio
import json
from contextvars import ContextVar
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import ChatMemoryBuffer
from tests.integrations.contract import BUDGET, TASK, AdapterContract, Run, Script, page, run_page, texts

from kompakt.errors import UsageError
from kompakt.integrations.llama_index import KompaktLLM


def as_chat(messages: Any) -> list[dict[str, Any]]:
    """Translate messages, independently of the adapter."""
    found: list[dict[str, Any]] = []
    for message in messages:
        calls = [
            {"id": one.tool_call_id, "function": {"name": one.tool_name, "arguments": json.dumps(one.tool_kwargs)}}
            for one in message.blocks
            if isinstance(one, ToolCallBlock)
        ]
        made = {"role": message.role.value, "content": message.content, "tool_calls": calls}
        if message.role.value == "tool":
            made = {**made, "tool_call_id": message.additional_kwargs["tool_call_id"]}
        found.append(made)
    return found


_running: ContextVar[Script] = ContextVar("script")
"""The script of the conversation that calls a model without a script."""


class ScriptedLLM(MockFunctionCallingLLM):
    script: Any = None
    seen: Any = None

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_function_calling_model=True, is_chat_model=True)

    def chat(self, messages: Any, **kwargs: Any) -> ChatResponse:
        self.seen[:] = messages
        answer = (self.script or _running.get()).answer(
            as_chat(messages), {one.metadata.name for one in kwargs.get("tools") or ()}
        )
        blocks = []
        if "call" in answer:
            id, name, arguments = answer["call"]
            blocks = [ToolCallBlock(tool_call_id=id, tool_name=name, tool_kwargs=arguments)]
        message = ChatMessage(role="assistant", content=blocks or answer["text"])
        return ChatResponse(message=message, delta=answer.get("text"))

    async def achat(self, messages: Any, **kwargs: Any) -> ChatResponse:
        return self.chat(messages, **kwargs)

    def stream_chat(self, messages: Any, **kwargs: Any) -> Any:
        yield self.chat(messages, **kwargs)

    async def astream_chat(self, messages: Any, **kwargs: Any) -> Any:
        async def parts() -> Any:
            yield self.chat(messages, **kwargs)

        return parts()


def read_page(number: int) -> str:
    """Read one page."""
    return page(number)


class TestLlamaIndex(AdapterContract, framework="llama_index"):
    def make_adapter(self, **options: Any) -> Any:
        return KompaktLLM(ScriptedLLM(seen=[]), **options)

    def run_loop(
        self, script: Script, *, mode: str = "stream", thread: str = "one", adapter: Any = None, **options: Any
    ) -> Run:
        llm = adapter or self.make_adapter(**options)
        _running.set(script)
        agent = FunctionAgent(
            llm=llm,
            tools=[read_page, *([llm.recall_tool] if options.get("recall", True) else [])],
            system_prompt="You read.",
            streaming=mode == "stream",
            timeout=None,
        )
        memory = ChatMemoryBuffer.from_defaults(token_limit=10_000_000)

        async def run() -> Any:
            return await agent.run(TASK, memory=memory, max_iterations=200)

        done = asyncio.run(run())
        kept = memory.get_all()
        own, contents = {id(one) for one in kept}, [as_chat([one]) for one in kept]
        tools = [one for one in llm._llm.seen if one.role.value == "tool" and as_chat([one]) in contents]
        same = bool(tools) and all(id(one) in own for one in tools)
        return Run(script, str(done), [str(one.content) for one in kept], same)

    def test_synchronous_calls_and_streams_are_compacted_too(self) -> None:
        messages = [ChatMessage(role="user", content=TASK)]
        for number in range(1, 20):
            call = ToolCallBlock(tool_call_id=f"c{number}", tool_name="read_page", tool_kwargs={"number": number})
            messages.append(ChatMessage(role="assistant", content=[call]))
            result = {"tool_call_id": f"c{number}"}
            messages.append(ChatMessage(role="tool", content=page(number), additional_kwargs=result))
        seen: list[Any] = []
        script = Script(steps=0, reject=frozenset({0, 2}))
        llm = KompaktLLM(ScriptedLLM(script=script, seen=seen), budget=BUDGET)
        assert llm.chat(messages).message.content == "done"
        assert [one.message.content for one in llm.stream_chat(messages)] == ["done"]
        assert len(script.requests) == 4
        assert all(TASK in texts(one) and len(one) < len(messages) for one in script.requests)
        fitting = KompaktLLM(ScriptedLLM(script=Script(steps=0), seen=seen), budget=BUDGET)
        assert fitting.chat(messages).message.content == "done"
        assert seen[-1] is messages[-1]

    def test_without_recall_its_tool_cannot_be_given_to_an_agent(self) -> None:
        with pytest.raises(UsageError, match="recall=False"):
            _ = self.make_adapter(recall=False).recall_tool

    def test_recall_finds_what_left_the_context(self) -> None:
        """Tools of an agent are fixed, so recall is offered from the start."""
        run = self.run_loop(Script(recall_at=25), budget=BUDGET)
        assert "D15838" in texts(run.script.requests[25])

    def test_equal_conversations_of_one_model_do_not_mix(self) -> None:
        first, second = [ChatMessage(role="user", content=TASK)], [ChatMessage(role="user", content=TASK)]
        llm = KompaktLLM(ScriptedLLM(script=Script(steps=0), seen=[]), budget=BUDGET)
        llm.chat(first)
        first.append(ChatMessage(role="assistant", content="one"))
        first.append(ChatMessage(role="user", content="go on"))
        llm.chat(first)
        second.append(ChatMessage(role="assistant", content="other"))
        llm.chat(second)
        known = llm._conversation(first), llm._conversation(second)
        assert known[0] is not known[1]

    def test_the_page_runs(self) -> None:
        names = run_page("llama_index", llm=ScriptedLLM(script=Script(steps=2), seen=[]), tools=[read_page])
        assert str(names["answer"]) == "done"
