"""The smolagents adapter with smolagents' own agents and a scripted model."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from smolagents import ActionStep, CodeAgent, LogLevel, Model, ToolCallingAgent, tool
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from tests.integrations.contract import (
    BUDGET,
    STEPS,
    TASK,
    AdapterContract,
    Run,
    Script,
    judge,
    page,
    run_page,
    texts,
)

import kompakt
from kompakt.integrations.smolagents import keep_inside_window


def as_chat(messages: Any) -> list[dict[str, Any]]:
    """Translate messages, independently of the adapter. An observation answers the calls before it."""
    found: list[dict[str, Any]] = []
    open_call = ""
    for message in messages:
        text = "\n".join(one["text"] for one in message.content)
        if message.role == MessageRole.TOOL_CALL:
            calls = ast.literal_eval(text.removeprefix("Calling tools:\n"))
            open_call = calls[0]["id"]
            found.append({"role": "assistant", "content": "", "tool_calls": calls[:1]})
        elif message.role == MessageRole.TOOL_RESPONSE:
            found.append({"role": "tool", "tool_call_id": open_call, "content": text})
        else:
            found.append({"role": message.role.value, "content": text})
    return found


class ScriptedModel(Model):
    """Calls tools, or writes code if ``code`` is set."""

    def __init__(self, script: Script, *, code: bool = False) -> None:
        super().__init__()
        self.script, self.code = script, code

    def generate(self, messages: Any, tools_to_call_from: Any = None, **_: Any) -> ChatMessage:
        names = {one.name for one in tools_to_call_from or ()}
        answer = self.script.answer(as_chat(messages), names)
        id, name, arguments = answer.get("call", ("call-end", "final_answer", {"answer": answer.get("text")}))
        if self.code:
            given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
            line = f"{name}({given})" if name == "final_answer" else f"print({name}({given}))"
            return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: next.\n<code>\n{line}\n</code>")
        function = ChatMessageToolCallFunction(name=name, arguments=arguments)
        return ChatMessage(
            role=MessageRole.ASSISTANT, tool_calls=[ChatMessageToolCall(function=function, id=id, type="function")]
        )


class PlanningModel(ScriptedModel):
    """Answers requests for a plan with a text and records their sizes."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.plans: list[int] = []

    def generate(self, messages: Any, tools_to_call_from: Any = None, **_: Any) -> ChatMessage:
        if tools_to_call_from is not None:
            return super().generate(messages, tools_to_call_from)
        self.plans.append(kompakt.count(as_chat(messages), format="openai-chat").total)
        return ChatMessage(role=MessageRole.ASSISTANT, content="The plan: read on.")


@tool
def read_page(number: int) -> str:
    """Read one page.

    Args:
        number: Number of the page.
    """
    return page(number)


class TestSmolagents(AdapterContract, framework="smolagents"):
    def run_loop(
        self, script: Script, *, mode: str = "sync", thread: str = "one", code: bool = False, **options: Any
    ) -> Run:
        made: Any = CodeAgent if code else ToolCallingAgent
        agent = made(
            tools=[read_page], model=ScriptedModel(script, code=code), max_steps=100, verbosity_level=LogLevel.OFF
        )
        agent.prompt_templates["system_prompt"] = "You read."
        keep_inside_window(agent, **options)
        done = list(agent.run(TASK, stream=True))[-1].output if mode == "stream" else agent.run(TASK)
        kept = [str(getattr(step, "observations", "")) for step in agent.memory.steps]
        return Run(
            script, done, [one.removeprefix("Execution logs:\n").split("\nLast output")[0].strip() for one in kept]
        )

    def test_a_step_writes_only_what_is_new(self, monkeypatch: pytest.MonkeyPatch) -> None:
        written: list[Any] = []
        write = ActionStep.to_messages
        monkeypatch.setattr(ActionStep, "to_messages", lambda step, **mode: written.append(step) or write(step, **mode))
        self.run_loop(Script(), budget=BUDGET)
        assert len(written) <= STEPS + 1

    def test_a_step_that_a_callback_changed_is_written_anew(self) -> None:
        """Callbacks drop what old steps do not need, for example images."""
        agent = ToolCallingAgent(tools=[read_page], model=ScriptedModel(Script(steps=3)), verbosity_level=LogLevel.OFF)
        keep_inside_window(agent, budget=BUDGET)
        agent.run(TASK)
        assert page(1) in texts(as_chat(agent.write_memory_to_messages()))
        agent.memory.steps[1].observations = "dropped"
        view = texts(as_chat(agent.write_memory_to_messages()))
        assert page(1) not in view and "dropped" in view

    def test_recall_finds_what_left_the_context(self) -> None:
        """The system prompt lists the tools of an agent, so recall is offered from the start."""
        run = self.run_loop(Script(recall_at=25), budget=BUDGET)
        assert "D15838" in texts(run.script.requests[25])

    def test_a_code_agent_fits_too(self) -> None:
        run = self.run_loop(Script(), budget=BUDGET, code=True)
        assert run.text == "done"
        assert [judge(one) for one in run.script.requests] == [[] for _ in run.script.requests]
        assert max(kompakt.count(one, format="openai-chat").total for one in run.script.requests) <= BUDGET
        assert page(30) in texts(run.script.requests[-1])

    def test_requests_for_a_plan_are_compacted_too(self) -> None:
        script = Script()
        model = PlanningModel(script)
        agent = ToolCallingAgent(
            tools=[read_page], model=model, max_steps=100, planning_interval=4, verbosity_level=LogLevel.OFF
        )
        agent.prompt_templates["system_prompt"] = "You read."
        keep_inside_window(agent, budget=BUDGET)
        assert agent.run(TASK) == "done"
        assert len(model.plans) == 8
        assert max(model.plans) <= BUDGET + 1_500  # smolagents adds texts of its own around the memory
        assert [judge(one) for one in script.requests] == [[] for _ in script.requests]

    @pytest.mark.parametrize("reset", [True, False])
    def test_a_second_task_sees_the_first_unless_the_memory_is_reset(self, reset: bool) -> None:
        script = Script(steps=20)
        agent = ToolCallingAgent(
            tools=[read_page], model=ScriptedModel(script), max_steps=100, verbosity_level=LogLevel.OFF
        )
        keep_inside_window(agent, budget=BUDGET, recall=False)
        agent.run(TASK)
        agent.run("Say done again.", reset=reset)
        assert "Say done again." in texts(script.requests[-1])
        assert (TASK in texts(script.requests[-1])) is not reset

    def test_the_page_runs(self) -> None:
        names = run_page("smolagents", model=ScriptedModel(Script(steps=2)), tools=[read_page])
        assert names["answer"] == "done"
