"""The LiteLLM adapter with LiteLLM's own calls and a scripted provider."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else the import waits for the network

import litellm
from litellm import CustomLLM
from tests.integrations.contract import TASK, AdapterContract, Run, Script, page, run_page

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
        self.seen: list[Any] = []

    async def acompletion(self, *_: Any, messages: Any, model_response: Any, optional_params: Any, **__: Any) -> Any:
        self.seen = list(messages)
        names = {tool["function"]["name"] for tool in optional_params.get("tools", ())}
        answer = self.script.answer(messages, names)
        message: dict[str, Any] = {"role": "assistant", "content": answer.get("text")}
        if "call" in answer:
            id, name, arguments = answer["call"]
            function = {"name": name, "arguments": json.dumps(arguments)}
            message["tool_calls"] = [{"id": id, "type": "function", "function": function}]
        model_response.choices = [litellm.Choices(message=litellm.Message(**message))]
        return model_response


class TestLiteLLM(AdapterContract):
    shows_objects = False
    modes = ("async",)
    has_recall = False
    retries = False

    def run_loop(self, script: Script, *, mode: str = "async", thread: str = "one", **options: Any) -> Run:
        options.pop("recall", None)
        provider = ScriptedProvider(script)
        name = f"scripted{id(provider)}"
        litellm.custom_provider_map = [*litellm.custom_provider_map, {"provider": name, "custom_handler": provider}]
        litellm.callbacks = [KompaktLogger(**options)]
        messages: list[Any] = [{"role": "user", "content": TASK}]

        async def run() -> str:
            while True:
                done: Any = await litellm.acompletion(
                    model=f"{name}/m", messages=messages, tools=TOOLS, litellm_session_id=thread
                )
                message = done.choices[0].message
                if not message.tool_calls:
                    return message.content
                call = message.tool_calls[0]
                function = {"name": call.function.name, "arguments": call.function.arguments}
                calls = [{"id": call.id, "type": "function", "function": function}]
                messages.append({"role": "assistant", "content": None, "tool_calls": calls})
                text = page(json.loads(call.function.arguments)["number"])
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})

        text = asyncio.run(run())
        return Run(script, text, [str(one["content"]) for one in messages])

    def test_two_conversations_in_two_threads_do_not_mix(self) -> None:
        """Callbacks of LiteLLM are global, so two conversations take turns here."""
        alone = self.run_loop(Script(), thread="c", budget=4_000).script.requests
        again = self.run_loop(Script(), thread="d", budget=4_000).script.requests
        assert alone == again

    def test_the_page_runs(self) -> None:
        provider = ScriptedProvider(Script(steps=0))
        litellm.custom_provider_map = [{"provider": "scripted", "custom_handler": provider}]
        names = run_page("litellm", model="scripted/m", messages=[{"role": "user", "content": TASK}])
        assert names["answer"].choices[0].message.content == "done"
