"""The ADK adapter with ADK's own runner and agent, and a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import App
from google.adk.flows.llm_flows.contents import _copy_content_for_request
from google.adk.models import BaseLlm, LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.genai.types import Content, FunctionCall, FunctionResponse, Part
from pydantic import BaseModel
from tests.integrations.contract import (
    BUDGET,
    STEPS,
    TASK,
    AdapterContract,
    ObjectCheck,
    Run,
    Script,
    TooLong,
    judge,
    page,
    run_page,
    texts,
)

import kompakt
from kompakt.integrations.adk import KompaktPlugin, _GeminiConverter


def as_chat(contents: Any) -> list[dict[str, Any]]:
    """Translate contents, independently of the adapter. Calls and results without ids are paired by their order."""
    found: list[dict[str, Any]] = []
    calls = results = 0
    for content in contents:
        text = "\n".join(part.text for part in content.parts or () if part.text)
        made: list[dict[str, Any]] = []
        for part in content.parts or ():
            if part.function_call:
                calls += 1
                made.append({"id": part.function_call.id or f"n{calls}", "function": {"name": part.function_call.name}})
            elif part.function_response:
                results += 1
                response = part.function_response
                content_text = "".join(str(value) for value in response.response.values())
                found.append({"role": "tool", "tool_call_id": response.id or f"n{results}", "content": content_text})
        if text or made:
            role = "assistant" if content.role == "model" else "user"
            found.append({"role": role, "content": text, "tool_calls": made})
    return found


class ScriptedModel(BaseLlm):
    script: Any
    ids: bool = True
    objects: Any = None

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        names = {
            one.name for declared in llm_request.config.tools or () for one in declared.function_declarations or ()
        }
        if self.objects is not None:
            self.objects.show(llm_request.contents)
        answer = self.script.answer(as_chat(llm_request.contents), names)
        if "text" in answer:
            part = Part(text=answer["text"])
        else:
            id, name, arguments = answer["call"]
            part = Part(function_call=FunctionCall(id=id if self.ids else None, name=name, args=arguments))
        if stream and "text" in answer:
            yield LlmResponse(content=Content(role="model", parts=[part]), partial=True)
        yield LlmResponse(content=Content(role="model", parts=[part]))


class TwoCallsModel(BaseLlm):
    """Reads two pages in a step, with a thought and a signature, and gives no ids."""

    steps: int = 20
    requests: Any

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        self.requests.append(list(llm_request.contents))
        number = len(self.requests)
        parts = [Part(text="done")]
        if number <= self.steps:
            first, second = (FunctionCall(name="read_page", args={"number": 2 * number + one}) for one in (0, 1))
            parts = [Part(text="I think.", thought=True), Part(function_call=first, thought_signature=b"s\xff")]
            parts.append(Part(function_call=second))
        yield LlmResponse(content=Content(role="model", parts=parts))


def read_page(number: int) -> str:
    """Read one page."""
    return page(number)


class Recorder(BasePlugin):
    """Notes the contents of a request before the next plugin changes them."""

    def __init__(self, objects: ObjectCheck) -> None:
        super().__init__(name="recorder")
        self.objects = objects

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        self.objects.give(llm_request.contents)


class Editor(BasePlugin):
    """Changes the result of the first page in the events of the session before a request, in place."""

    def __init__(self, at: int) -> None:
        super().__init__(name="editor")
        self.at, self.requests = at, 0

    async def before_agent_callback(self, *, agent: Any, callback_context: Any) -> None:
        self.events = callback_context.session.events

    async def after_tool_callback(self, **_: Any) -> None:
        self.requests += 1
        if self.requests == self.at:
            part = self.events[2].content.parts[0]
            response = {"result": "fact-1: the harbour is closed"}
            part.function_response = part.function_response.model_copy(update={"response": response})


class Marker(BasePlugin):
    """Changes the copies in a request after kompakt."""

    def __init__(self) -> None:
        super().__init__(name="marker")

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        for content in llm_request.contents:
            for part in content.parts:
                if part.text:
                    part.text = f"{part.text} (marked)"


def contents_with_calls(id: str) -> list[Content]:
    """Return a request, a call with a thought, and its result."""
    call = FunctionCall(id=id, name="read_page", args={"number": 1})
    result = FunctionResponse(id=id, name="read_page", response={"result": "row 1"})
    thought = Part(text="I think.", thought=True)
    return [
        Content(role="user", parts=[Part(text=TASK), Part(text="Begin.")]),
        Content(role="model", parts=[thought, Part(function_call=call, thought_signature=b"s")]),
        Content(role="user", parts=[Part(function_response=result)]),
        Content(role="model"),
    ]


def copies(contents: list[Content]) -> list[Content]:
    """Return what ADK makes of the contents of events for a request."""
    return [_copy_content_for_request(one, strip_client_function_call_ids=True) for one in contents]


CHANGES: dict[str, Callable[[list[Content]], Any]] = {
    "role": lambda given: setattr(given[2], "role", "function"),
    "text": lambda given: setattr(given[0].parts[1], "text", "End."),
    "thought": lambda given: setattr(given[1].parts[0], "thought", None),
    "signature": lambda given: setattr(given[1].parts[1], "thought_signature", None),
    "arguments": lambda given: setattr(given[1].parts[1].function_call, "args", {"number": 2}),
    "result": lambda given: setattr(given[2].parts[0].function_response, "response", {"result": "row 2"}),
    "no call": lambda given: setattr(given[1].parts[1], "function_call", None),
    "order": lambda given: given[0].parts.reverse(),
    "a part less": lambda given: given[0].parts.pop(),
    "a part moved": lambda given: given[1].parts.insert(0, given[0].parts.pop()),
    "a part more": lambda given: setattr(given[3], "parts", [Part(text="done")]),
    "a content less": lambda given: given.pop(),
}


class TestADK(AdapterContract, framework="adk"):
    def make_adapter(self, **options: Any) -> Any:
        return KompaktPlugin(**options)

    def run_loop(
        self,
        script: Script,
        *,
        mode: str = "async",
        thread: str = "one",
        adapter: Any = None,
        user: str = "u",
        ids: bool = True,
        before: Sequence[BasePlugin] = (),
        after: Sequence[BasePlugin] = (),
        **options: Any,
    ) -> Run:
        objects = ObjectCheck()
        agent = LlmAgent(
            name="reader",
            model=ScriptedModel(model="scripted", script=script, ids=ids, objects=objects),
            instruction="You read.",
            tools=[read_page],
        )
        plugins = [*before, Recorder(objects), adapter or self.make_adapter(**options), *after]
        runner = InMemoryRunner(app=App(name="reading", root_agent=agent, plugins=plugins))
        config = RunConfig(streaming_mode=StreamingMode.SSE if mode == "stream" else StreamingMode.NONE)
        task = {
            "user_id": user,
            "session_id": thread,
            "new_message": Content(role="user", parts=[Part(text=TASK)]),
            "run_config": config,
        }

        async def create() -> None:
            await runner.session_service.create_session(app_name="reading", user_id=user, session_id=thread)

        async def run() -> list[Any]:
            await create()
            return [event async for event in runner.run_async(**task)]

        if mode == "sync":
            asyncio.run(create())
            events = list(runner.run(**task))
        else:
            events = asyncio.run(run())
        session = asyncio.run(runner.session_service.get_session(app_name="reading", user_id=user, session_id=thread))
        kept = as_chat([event.content for event in session.events if event.content])
        return Run(script, events[-1].content.parts[0].text, [one["content"] for one in kept], objects.same)

    def test_a_request_that_stays_too_long_is_a_typed_error(self) -> None:
        """ADK wraps the errors of plugins."""
        with pytest.raises(RuntimeError) as caught:
            self.run_loop(Script(reject=frozenset({12, 13, 14})), budget=BUDGET)
        assert isinstance(caught.value.__cause__, kompakt.Overflowed)

    def test_calls_without_ids_fit_too(self) -> None:
        with_ids = self.run_loop(Script(), budget=BUDGET).script.requests
        run = self.run_loop(Script(), budget=BUDGET, ids=False)
        assert run.text == "done"
        assert [judge(one) for one in run.script.requests] == [[] for _ in run.script.requests]
        assert max(kompakt.count(one, format="openai-chat").total for one in run.script.requests) <= BUDGET
        assert [len(one) for one in run.script.requests] == [len(one) for one in with_ids]

    def test_parallel_calls_with_signatures_stay_valid(self) -> None:
        model = TwoCallsModel(model="gemini-2.5-pro", requests=[])
        agent = LlmAgent(name="reader", model=model, tools=[read_page])
        app = App(name="reading", root_agent=agent, plugins=[KompaktPlugin(budget=BUDGET)])
        asyncio.run(InMemoryRunner(app=app).run_debug(TASK, quiet=True))
        bodies = [
            {"contents": [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in request]}
            for request in model.requests
        ]
        assert [kompakt.check(body, format="gemini") for body in bodies] == [[] for _ in bodies]
        assert max(kompakt.count(body, format="gemini").total for body in bodies) <= BUDGET
        signatures = [part.thought_signature for one in model.requests[-1] for part in one.parts if part.function_call]
        assert signatures[::2] == [b"s\xff"] * (len(signatures) // 2)

    @pytest.mark.parametrize("ids", [True, False])
    def test_a_result_changed_in_the_session_is_in_the_next_request(self, ids: bool) -> None:
        run = self.run_loop(Script(steps=6), budget=100_000, ids=ids, before=[Editor(4)])
        assert ["harbour" in texts(one) for one in run.script.requests] == [False] * 4 + [True] * 3

    @pytest.mark.parametrize("ids", [True, False])
    def test_a_hidden_result_changed_in_the_session_is_found_by_recall(self, ids: bool) -> None:
        script = Script(recall_at=26, query="fact-1 harbour")
        run = self.run_loop(script, budget=BUDGET, ids=ids, before=[Editor(25)])
        assert "harbour" not in texts(run.script.requests[24])
        assert "harbour is closed" in texts(run.script.requests[26])

    @pytest.mark.parametrize("ids", [True, False])
    def test_copies_of_known_contents_are_not_converted_again(self, ids: bool, monkeypatch: Any) -> None:
        """Also when a later plugin changes the copies of a request."""
        converted = list[int]()
        original = _GeminiConverter.to_wire
        monkeypatch.setattr(
            _GeminiConverter, "to_wire", lambda *given: converted.append(id(given[1])) or original(*given)
        )
        self.run_loop(Script(), budget=BUDGET, ids=ids, after=[Marker()])
        assert len(converted) == 1 + 2 * STEPS

    @pytest.mark.parametrize("id", ["adk-1", "c1"])
    @pytest.mark.parametrize("change", [None, *CHANGES])
    def test_copies_are_equal_unless_something_in_them_changed(
        self, id: str, change: str | None, monkeypatch: Any
    ) -> None:
        """Without Pydantic's own comparison, which takes many times longer."""
        monkeypatch.setattr(BaseModel, "__eq__", None)
        events, converter = contents_with_calls(id), _GeminiConverter()
        known = [converter.remember(one) for one in copies(events)]
        given = copies(events)
        if change is not None:
            CHANGES[change](given)
        assert converter.same(given, known) == (change is None)

    def test_contents_have_no_other_fields_than_those_that_are_compared(self) -> None:
        assert set(Content.model_fields) == {"role", "parts"}

    def test_users_and_sessions_with_similar_names_have_conversations_of_their_own(self) -> None:
        reports: list[Any] = []
        shared = self.make_adapter(budget=BUDGET, on_compaction=reports.append)
        self.run_loop(Script(), user="a-b", thread="c", adapter=shared)
        self.run_loop(Script(), user="a", thread="b-c", adapter=shared)
        assert len({report.session for report in reports}) == 2

    def test_second_attempts_of_two_runs_of_one_session_do_not_mix(self) -> None:
        plugin, sent = KompaktPlugin(budget=BUDGET), list[str]()

        class Rejecting(BaseLlm):
            async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
                sent.append(llm_request.contents[-1].parts[0].text)
                if len(sent) == 1:
                    await runner.run_debug("second run", user_id="u", session_id="s", quiet=True)
                    raise TooLong(BUDGET)
                yield LlmResponse(content=Content(role="model", parts=[Part(text="done")]))

        agent = LlmAgent(name="reader", model=Rejecting(model="scripted"))
        runner = InMemoryRunner(app=App(name="reading", root_agent=agent, plugins=[plugin]))
        asyncio.run(runner.run_debug("first run", user_id="u", session_id="s", quiet=True))
        assert sent == ["first run", "second run", "first run"]

    def test_the_page_runs(self) -> None:
        model = ScriptedModel(model="scripted", script=Script(steps=2))
        names = run_page("adk", model=model, tools=[read_page])
        assert names["events"][-1].content.parts[0].text == "done"
