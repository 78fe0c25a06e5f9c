"""The LiteLLM adapter with LiteLLM's own calls and a scripted provider."""

from __future__ import annotations

import asyncio
import json
import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else the import waits for the network

import litellm
from litellm import CustomLLM
from litellm.integrations.custom_logger import CustomLogger
from tests.integrations.contract import (
    BUDGET,
    STEPS,
    TASK,
    AdapterContract,
    ObjectCheck,
    Run,
    Script,
    page,
    run_page,
    texts,
)

from kompakt.integrations.conversation import WireConverter
from kompakt.integrations.litellm import KompaktLogger

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_page",
            "description": "Read one page.",
            "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}},
        },
    }
]


class ScriptedProvider(CustomLLM):
    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script

    def answer(self, messages: Any, optional_params: Any) -> dict[str, Any]:
        answer = self.script.answer(messages, {tool["function"]["name"] for tool in optional_params.get("tools", ())})
        message: dict[str, Any] = {"role": "assistant", "content": answer.get("text")}
        if "call" in answer:
            id, name, arguments = answer["call"]
            function = {"name": name, "arguments": json.dumps(arguments)}
            message["tool_calls"] = [{"id": id, "type": "function", "function": function}]
        return message

    async def acompletion(self, *_: Any, messages: Any, model_response: Any, optional_params: Any, **__: Any) -> Any:
        message = self.answer(messages, optional_params)
        model_response.choices = [litellm.Choices(message=litellm.Message(**message))]
        return model_response

    async def astreaming(self, *_: Any, messages: Any, optional_params: Any, **__: Any) -> Any:
        message = self.answer(messages, optional_params)
        calls = message.get("tool_calls")
        yield {
            "text": message["content"] or "",
            "tool_use": {**calls[0], "index": 0} if calls else None,
            "is_finished": False,
            "finish_reason": "",
            "index": 0,
            "usage": None,
        }
        reason = "tool_calls" if calls else "stop"
        yield {"text": "", "tool_use": None, "is_finished": True, "finish_reason": reason, "index": 0, "usage": None}


class Recorder(CustomLogger):
    """Notes the messages of a request before or after the adapter."""

    def __init__(self, note: Any) -> None:
        super().__init__()
        self.note = note

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> None:
        self.note(kwargs["messages"])


async def converse(
    script: Script, thread: str, *, stream: bool = False, edit_at: int | None = None
) -> tuple[str, list[Any]]:
    """Call the model and the tool until it is done; return the answer and all messages.

    ``edit_at``: the number of the request before which the result of the first call is changed in place.
    """
    name = f"scripted{id(script)}"
    litellm.custom_provider_map = [
        *litellm.custom_provider_map,
        {"provider": name, "custom_handler": ScriptedProvider(script)},
    ]
    messages: list[Any] = [{"role": "user", "content": TASK}]
    while True:
        if len(script.requests) == edit_at:
            messages[2]["content"] = "fact-1: the harbour is closed"
        done: Any = await litellm.acompletion(
            model=f"{name}/m", messages=messages, tools=TOOLS, litellm_session_id=thread, stream=stream
        )
        if stream:
            done = litellm.stream_chunk_builder([chunk async for chunk in done])
        message = done.choices[0].message
        if not message.tool_calls:
            return message.content, messages
        call = message.tool_calls[0]
        function = {"name": call.function.name, "arguments": call.function.arguments}
        calls = [{"id": call.id, "type": "function", "function": function}]
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        text = page(json.loads(call.function.arguments)["number"])
        messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


class TestLiteLLM(AdapterContract, framework="litellm"):
    def make_adapter(self, **options: Any) -> Any:
        options.pop("recall", None)
        return KompaktLogger(**options)

    def run_loop(
        self, script: Script, *, mode: str = "async", thread: str = "one", adapter: Any = None, **options: Any
    ) -> Run:
        objects, made = ObjectCheck(), adapter or self.make_adapter(**options)
        litellm.callbacks = [Recorder(objects.give), made, Recorder(objects.show)]
        text, messages = asyncio.run(converse(script, thread, stream=mode == "stream"))
        return Run(script, text, [str(one["content"]) for one in messages], objects.same)

    def test_a_result_changed_in_place_is_in_the_next_request(self) -> None:
        script = Script(steps=6)
        litellm.callbacks = [KompaktLogger(budget=100_000)]
        asyncio.run(converse(script, "one", edit_at=4))
        assert ["harbour" in texts(one) for one in script.requests] == [False] * 4 + [True] * 3

    def test_a_hidden_result_changed_in_place_is_noticed(self) -> None:
        script, logger = Script(), KompaktLogger(budget=BUDGET)
        litellm.callbacks = [logger]
        asyncio.run(converse(script, "one", edit_at=25))
        assert page(1) not in texts(script.requests[24])
        conversation = logger._conversations["openai-chat"].get("litellm-one")
        assert "harbour is closed" in conversation.recall("fact-1 harbour").text

    def test_copies_of_known_messages_are_not_converted_again(self, monkeypatch: Any) -> None:
        converted = list[int]()
        original = WireConverter.to_wire
        monkeypatch.setattr(WireConverter, "to_wire", lambda *given: converted.append(id(given[1])) or original(*given))
        litellm.callbacks = [KompaktLogger(budget=BUDGET)]
        asyncio.run(converse(Script(), "one"))
        assert len(converted) == 1 + 2 * STEPS

    def test_conversations_without_names_that_start_alike_do_not_mix(self) -> None:
        """Requests without a session id are told apart by their messages."""
        beat = Barrier(2)

        def run(first: int, beat: Barrier | None = None) -> list[str]:
            script = Script(first=first, beat=beat)
            asyncio.run(converse(script, ""))
            return [texts(one) for one in script.requests]

        litellm.callbacks = [KompaktLogger(budget=BUDGET)]
        with ThreadPoolExecutor(2) as threads:
            both = list(threads.map(lambda first: run(first, beat), (0, 200)))
        litellm.callbacks = [KompaktLogger(budget=BUDGET)]
        assert both == [run(0), run(200)]

    def test_two_conversations_in_two_threads_do_not_mix(self) -> None:
        """Callbacks of LiteLLM are global, so both conversations use the same one."""
        litellm.callbacks = [KompaktLogger(budget=BUDGET)]
        scripts = [Script() for _ in range(3)]
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda one: asyncio.run(converse(scripts[one], f"thread-{one}")), (0, 1)))
        asyncio.run(converse(scripts[2], "alone"))
        assert [texts(one) for one in scripts[0].requests] == [texts(one) for one in scripts[2].requests]
        assert [texts(one) for one in scripts[1].requests] == [texts(one) for one in scripts[2].requests]

    def test_the_page_runs(self) -> None:
        provider = ScriptedProvider(Script(steps=0))
        litellm.custom_provider_map = [{"provider": "scripted", "custom_handler": provider}]
        names = run_page("litellm", model="scripted/m", messages=[{"role": "user", "content": TASK}])
        assert names["answer"].choices[0].message.content == "done"
