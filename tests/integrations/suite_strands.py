"""The Strands adapter with Strands' own agent and a scripted model."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from strands import Agent, tool
from strands.hooks import AfterModelCallEvent, HookProvider, MessageAddedEvent
from strands.models.model import Model
from strands.types.exceptions import ContextWindowOverflowException
from tests.integrations.contract import TASK, AdapterContract, ObjectCheck, Run, Script, TooLong, page, run_page

import kompakt
from kompakt.errors import UsageError
from kompakt.integrations.stores import close_stores
from kompakt.integrations.strands import KompaktConversationManager


def as_chat(messages: Any) -> list[dict[str, Any]]:
    """Translate messages of Bedrock, independently of kompakt."""
    found: list[dict[str, Any]] = []
    for message in messages:
        text = "\n".join(block["text"] for block in message["content"] if "text" in block)
        calls = [
            {"id": block["toolUse"]["toolUseId"], "function": {"name": block["toolUse"]["name"]}}
            for block in message["content"]
            if "toolUse" in block
        ]
        for block in message["content"]:
            if "toolResult" in block:
                result = block["toolResult"]
                content = "".join(str(one.get("text", "")) for one in result["content"])
                found.append({"role": "tool", "tool_call_id": result["toolUseId"], "content": content})
        if text or calls:
            found.append({"role": message["role"], "content": text, "tool_calls": calls})
    return found


class ScriptedModel(Model):
    def __init__(self, script: Script) -> None:
        self.script = script

    def update_config(self, **_: Any) -> None: ...

    def get_config(self) -> Any:
        return {"context_window_limit": 200_000}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, tool_specs: Any = None, system_prompt: Any = None, **_: Any) -> Any:
        try:
            answer = self.script.answer(as_chat(messages), {spec["name"] for spec in tool_specs or ()})
        except TooLong as error:
            raise ContextWindowOverflowException(str(error)) from error
        yield {"messageStart": {"role": "assistant"}}
        if "text" in answer:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": answer["text"]}}}
        else:
            id, name, arguments = answer["call"]
            yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": id, "name": name}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(arguments)}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if "text" in answer else "tool_use"}}


class Recorder(HookProvider):
    """Compares the messages of the agent before and after a rewrite. The model gets copies of them."""

    def __init__(self, objects: ObjectCheck) -> None:
        self.objects = objects

    def register_hooks(self, registry: Any, **_: Any) -> None:
        registry.add_callback(MessageAddedEvent, lambda event: self.objects.give(event.agent.messages))
        registry.add_callback(AfterModelCallEvent, lambda event: self.objects.show(event.agent.messages))


@tool
def read_page(number: int) -> str:
    """Read one page."""
    return page(number)


class TestStrands(AdapterContract, framework="strands"):
    def run_loop(self, script: Script, *, mode: str = "sync", thread: str = "one", **options: Any) -> Run:
        manager, objects = KompaktConversationManager(**options), ObjectCheck()
        tools = [read_page, *([manager.recall_tool] if options.get("recall", True) else [])]
        agent = Agent(
            model=ScriptedModel(script),
            tools=tools,
            system_prompt="You read.",
            conversation_manager=manager,
            callback_handler=None,
            hooks=[Recorder(objects)],
        )

        async def stream() -> Any:
            return [event async for event in agent.stream_async(TASK)][-1]["result"]

        modes = {"sync": lambda: agent(TASK), "async": lambda: asyncio.run(agent.invoke_async(TASK))}
        result = asyncio.run(stream()) if mode == "stream" else modes[mode]()
        return Run(script, str(result).strip(), same_objects=objects.same)

    def test_without_recall_its_tool_cannot_be_given_to_an_agent(self) -> None:
        with pytest.raises(UsageError, match="recall=False"):
            _ = KompaktConversationManager(recall=False).recall_tool

    def test_recall_finds_what_left_the_context(self) -> None:
        """Tools of Strands are fixed, so recall is offered from the start."""
        run = self.run_loop(Script(recall_at=25), budget=4_000)
        assert any("D15838" in str(one["content"]) for one in run.script.requests[25])

    def test_the_store_has_one_session(self, tmp_path: Any) -> None:
        """Metadata that Strands adds to messages is not of Bedrock, but no reason to repair them."""
        url = f"sqlite:///{tmp_path / 'agent.db'}"
        self.run_loop(Script(), budget=4_000, store=url)
        close_stores()

        async def names() -> list[str]:
            async with await kompakt.open_store(url) as store:
                return [session.id async for session in store.sessions()]

        assert len(asyncio.run(names())) == 1

    def test_recall_after_a_restart_reads_the_store(self, tmp_path: Any) -> None:
        store = f"sqlite:///{tmp_path / 'agent.db'}"
        first = KompaktConversationManager(budget=4_000, store=store)
        agent = Agent(ScriptedModel(Script()), tools=[read_page], conversation_manager=first, callback_handler=None)
        agent(TASK)
        restarted = KompaktConversationManager(budget=4_000, store=store)
        restarted.restore_from_session(first.get_state())
        assert "D15838" in restarted.recall_tool(query="depot number of fact-2")
        close_stores()

    def test_the_page_runs(self) -> None:
        names = run_page("strands", model=ScriptedModel(Script(steps=2)), tools=[read_page])
        assert str(names["answer"]).strip() == "done"
