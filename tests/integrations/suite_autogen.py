"""The AutoGen adapter with AutoGen's own agent and a scripted client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_core import CancellationToken, FunctionCall
from autogen_core.models import (
    AssistantMessage,
    ChatCompletionClient,
    CreateResult,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    RequestUsage,
    UserMessage,
)
from tests.integrations.contract import BUDGET, TASK, AdapterContract, Run, Script, page, run_page, texts

import kompakt
from kompakt.errors import UsageError
from kompakt.integrations.autogen import KompaktContext
from kompakt.integrations.stores import close_stores


def as_chat(messages: Any) -> list[dict[str, Any]]:
    """Translate messages, independently of the adapter."""
    found: list[dict[str, Any]] = []
    for message in messages:
        if message.type == "FunctionExecutionResultMessage":
            found += [{"role": "tool", "tool_call_id": one.call_id, "content": one.content} for one in message.content]
        elif message.type == "AssistantMessage" and not isinstance(message.content, str):
            calls = [
                {"id": one.id, "function": {"name": one.name, "arguments": one.arguments}} for one in message.content
            ]
            found.append({"role": "assistant", "content": message.thought, "tool_calls": calls})
        else:
            role = message.type.removesuffix("Message").lower()
            found.append({"role": role, "content": message.content})
    return found


class ScriptedClient(ChatCompletionClient):
    component_type = "model"

    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen: list[Any] = []

    async def create(self, messages: Any, *, tools: Any = (), **_: Any) -> CreateResult:
        self.seen = list(messages)
        answer = self.script.answer(as_chat(messages), {one["name"] for one in tools})
        content: Any = answer.get("text")
        if content is None:
            id, name, arguments = answer["call"]
            content = [FunctionCall(id=id, name=name, arguments=json.dumps(arguments))]
        reason = "stop" if isinstance(content, str) else "function_calls"
        usage = RequestUsage(prompt_tokens=0, completion_tokens=0)
        return CreateResult(finish_reason=reason, content=content, usage=usage, cached=False)

    async def create_stream(self, messages: Any, *, tools: Any = (), **_: Any) -> Any:  # type: ignore[override]
        yield await self.create(messages, tools=tools)

    async def close(self) -> None: ...

    def actual_usage(self) -> Any: ...

    def total_usage(self) -> Any: ...

    def count_tokens(self, messages: Any, **_: Any) -> int:
        return 0

    def remaining_tokens(self, messages: Any, **_: Any) -> int:
        return 0

    @property
    def capabilities(self) -> Any:
        return self.model_info

    @property
    def model_info(self) -> Any:
        return {
            "vision": False,
            "function_calling": True,
            "json_output": False,
            "family": "unknown",
            "structured_output": False,
        }


async def read_page(number: int) -> str:
    """Read one page."""
    return page(number)


class TestAutoGen(AdapterContract, framework="autogen"):
    def run_loop(self, script: Script, *, mode: str = "async", thread: str = "one", **options: Any) -> Run:
        context, client = KompaktContext(**options), ScriptedClient(script)
        agent = AssistantAgent(
            "reader",
            client,
            tools=[read_page, *([context.recall_tool] if options.get("recall", True) else [])],
            system_message="You read.",
            model_context=context,
            max_tool_iterations=100,
            model_client_stream=mode == "stream",
        )

        async def run() -> Any:
            if mode == "stream":
                return [one async for one in agent.run_stream(task=TASK)][-1]
            return await agent.run(task=TASK)

        done = asyncio.run(run())
        kept = context._messages
        own, contents = {id(one) for one in kept}, [as_chat([one]) for one in kept]
        same = all(id(one) in own for one in client.seen if as_chat([one]) in contents)
        return Run(script, done.messages[-1].content, [one["content"] for one in as_chat(kept)], same)

    def test_without_recall_its_tool_cannot_be_given_to_an_agent(self) -> None:
        with pytest.raises(UsageError, match="recall=False"):
            _ = KompaktContext(recall=False).recall_tool

    def test_recall_finds_what_left_the_context(self) -> None:
        """Tools of an agent are fixed, so recall is offered from the start."""
        run = self.run_loop(Script(recall_at=25), budget=BUDGET)
        assert "D15838" in texts(run.script.requests[25])

    def test_several_results_of_one_message_stay_in_one_message(self) -> None:
        async def run() -> Any:
            context = KompaktContext(budget=BUDGET)
            calls = [FunctionCall(id=f"c{number}", name="read_page", arguments="{}") for number in (1, 2)]
            long = "\n".join(map(page, range(20)))
            results = [
                FunctionExecutionResult(content=text, name="read_page", call_id=f"c{number}")
                for number, text in ((1, long), (2, "short"))
            ]
            await context.add_message(UserMessage(content=TASK, source="user"))
            await context.add_message(AssistantMessage(content=calls, source="reader"))
            await context.add_message(FunctionExecutionResultMessage(content=results))
            return results, await context.get_messages()

        results, view = asyncio.run(run())
        assert len(view) == 3
        assert view[2].content[1] is results[1]
        assert len(view[2].content[0].content) < len(results[0].content)

    def test_a_restored_context_recalls_from_the_store(self, tmp_path: Any) -> None:
        store = f"sqlite:///{tmp_path / 'agent.db'}"
        context = KompaktContext(budget=BUDGET, store=store)
        agent = AssistantAgent(
            "reader",
            ScriptedClient(Script()),
            tools=[read_page],
            model_context=context,
            max_tool_iterations=100,
        )

        async def run() -> str:
            await agent.run(task=TASK)
            state = await context.save_state()
            assert "D15838" in str(state["messages"])
            restored = KompaktContext(budget=BUDGET, store=store)
            await restored.load_state(state)
            assert len(restored._messages) == len(context._messages)
            arguments = {"query": "depot number of fact-2"}
            return str(await restored.recall_tool.run_json(arguments, CancellationToken()))

        assert "D15838" in asyncio.run(run())
        close_stores()

    def test_the_context_survives_a_component_file(self) -> None:
        budget = kompakt.Budget(window=900, trigger=800, target=500)
        made = KompaktContext(budget=budget, pins=["keep"], store="sqlite:///x.db", recall=False, admission="firm")
        again = KompaktContext.load_component(made.dump_component())
        assert again.dump_component() == made.dump_component()
        assert again._options == made._options
        with pytest.raises(kompakt.UsageError, match="by name"):
            KompaktContext(policy=kompakt.Policy("mine", ())).dump_component()

    def test_the_page_runs(self) -> None:
        names = run_page("autogen", client=ScriptedClient(Script(steps=2)), tools=[read_page])
        assert names["answer"].messages[-1].content == "done"
