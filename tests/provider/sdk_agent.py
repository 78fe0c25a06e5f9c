"""A minimal agent over the official SDKs: it sends, runs tools that do nothing, and continues. It never compacts."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from tests.provider import Provider, Script

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
    "required": ["path"],
}
NAMES = ("read_file", "run_tests")
FORMATS = ("openai-chat", "openai-responses", "anthropic", "gemini")
Body = dict[str, Any]
TRUST = ssl.create_default_context()
"""One for all clients, because loading the certificates takes longer than a test."""
MODELS = {"anthropic": "claude-opus-5-5", "gemini": "gemini-3-pro"}
ERRORS = (openai.APIError, anthropic.APIError, genai.errors.APIError)
each_format = pytest.mark.parametrize("format", FORMATS)
each_way = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


class Driver:
    """Drives one conversation; ``items`` is its history in the words of the format."""

    def __init__(self, provider: Provider, format: str, *, stream: bool = False, model: str = "test-model") -> None:
        self.format, self.stream, self.model, self.limit = format, stream, model, 500
        self.items: list[Any] = []
        self.extra: Body = {}
        self.tools, self.last = True, None
        self._url = provider.url
        self._options: Any = {"api_key": "local", "max_retries": 0, "timeout": 10}

    @cached_property
    def openai(self) -> openai.OpenAI:
        """OpenAI's own client."""
        return openai.OpenAI(
            base_url=f"{self._url}/v1", http_client=openai.DefaultHttpxClient(verify=TRUST), **self._options
        )

    @cached_property
    def anthropic(self) -> anthropic.Anthropic:
        """Anthropic's own client."""
        return anthropic.Anthropic(
            base_url=self._url, http_client=anthropic.DefaultHttpxClient(verify=TRUST), **self._options
        )

    @cached_property
    def genai(self) -> genai.Client:
        """Google's own client."""
        options = {
            "base_url": self._url,
            "timeout": 10_000,
            "client_args": {"verify": TRUST},
            "async_client_args": {"verify": TRUST},
        }
        return genai.Client(api_key="local", vertexai=False, http_options=options)

    def close(self) -> None:
        """Close the connections."""
        for name in ("openai", "anthropic", "genai"):
            if name in self.__dict__:
                self.__dict__[name].close()

    def say(self, text: str) -> None:
        """Add a user message."""
        gemini = {"role": "user", "parts": [{"text": text}]}
        self.items.append(gemini if self.format == "gemini" else {"role": "user", "content": text})

    def step(self) -> bool:
        """Send the history, add the answer and the results of its calls; say whether there were calls."""
        made = getattr(self, "_" + self.format.replace("-", "_"))()
        return bool(made)

    def run(self, task: str) -> int:
        """Go on until there are no calls; return the number of requests."""
        self.say(task)
        sent = 1
        while self.step():
            sent += 1
        return sent

    def _declared(self) -> Body:
        if not self.tools:
            return {}
        if self.format == "anthropic":
            return {"tools": [{"name": name, "description": name, "input_schema": SCHEMA} for name in NAMES]}
        flat = [{"name": name, "description": name, "parameters": SCHEMA} for name in NAMES]
        if self.format == "openai-responses":
            return {"tools": [{"type": "function", "strict": False, **tool} for tool in flat]}
        return {"tools": [{"type": "function", "function": tool} for tool in flat]}

    def _openai_chat(self) -> list[str]:
        body: Body = {"model": self.model, "messages": self.items, "max_completion_tokens": self.limit}
        body |= self._declared() | self.extra
        if self.stream:
            with self.openai.chat.completions.stream(**body, stream_options={"include_usage": True}) as events:
                self.last = events.get_final_completion()
        else:
            self.last = self.openai.chat.completions.create(**body)
        message = self.last.choices[0].message.model_dump(exclude_none=True)
        calls = [
            {"id": c["id"], "type": "function", "function": {k: c["function"][k] for k in ("name", "arguments")}}
            for c in message.get("tool_calls") or []
        ]
        said: Body = {"role": "assistant", "content": message.get("content") or (None if calls else "")}
        self.items.append({**said, "tool_calls": calls} if calls else said)
        ids = [call["id"] for call in calls]
        self.items += [{"role": "tool", "tool_call_id": id_, "content": f"result of {id_}"} for id_ in ids]
        return ids

    def _openai_responses(self) -> list[str]:
        body: Body = {"model": self.model, "input": self.items, "max_output_tokens": self.limit, "store": False}
        body |= {"include": ["reasoning.encrypted_content"]} | self._declared() | self.extra
        if self.stream:
            with self.openai.responses.stream(**body) as events:
                self.last = events.get_final_response()
        else:
            self.last = self.openai.responses.create(**body)
        dumped = [item.model_dump(exclude_none=True) for item in self.last.output]
        for item in dumped:
            item.pop("parsed_arguments", None)
            for part in item.get("content") or []:
                part.pop("parsed", None)
        self.items += dumped
        ids = [item["call_id"] for item in dumped if item["type"] == "function_call"]
        self.items += [{"type": "function_call_output", "call_id": id_, "output": f"result of {id_}"} for id_ in ids]
        return ids

    def _anthropic(self) -> list[str]:
        body: Body = {"model": self.model, "messages": self.items, "max_tokens": self.limit}
        body |= self._declared() | self.extra
        if self.stream:
            with self.anthropic.messages.stream(**body) as events:
                self.last = events.get_final_message()
        else:
            self.last = self.anthropic.messages.create(**body)
        keys = ("type", "text", "thinking", "signature", "id", "name", "input")
        blocks = [block.model_dump(exclude_none=True) for block in self.last.content]
        blocks = [{key: block[key] for key in keys if key in block} for block in blocks]
        self.items.append({"role": "assistant", "content": blocks})
        ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if ids:
            results = [{"type": "tool_result", "tool_use_id": id_, "content": f"result of {id_}"} for id_ in ids]
            self.items.append({"role": "user", "content": results})
        return ids

    def _gemini(self) -> list[str]:
        config: Body = {"max_output_tokens": self.limit, **self.extra}
        if self.tools:
            declared = [{"name": name, "description": name, "parameters_json_schema": SCHEMA} for name in NAMES]
            config["tools"] = [{"function_declarations": declared}]
        request: Body = {"model": self.model, "contents": self.items, "config": config}
        chunks = (
            list(self.genai.models.generate_content_stream(**request))
            if self.stream
            else [self.genai.models.generate_content(**request)]
        )
        self.last = chunks[-1]
        parts: list[Any] = []
        for chunk in chunks:
            for part in (chunk.candidates[0].content.parts if chunk.candidates else None) or []:
                dumped = part.model_dump(mode="json", by_alias=True, exclude_none=True)
                glue = parts and "text" in dumped and "text" in parts[-1] and not part.thought
                if glue and not parts[-1].get("thought"):
                    parts[-1]["text"] += dumped["text"]
                elif not part.thought:
                    parts.append(dumped)
        self.items.append({"role": "model", "parts": parts})
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        answers = [
            {"functionResponse": {"id": c["id"], "name": c["name"], "response": {"output": f"result of {c['id']}"}}}
            for c in calls
        ]
        if answers:
            self.items.append({"role": "user", "parts": answers})
        return [call["id"] for call in calls]


@contextmanager
def driving(provider: Provider, format: str, **options: Any) -> Iterator[Driver]:
    driver = Driver(provider, format, **{"model": MODELS.get(format, "test-model"), **options})
    try:
        yield driver
    finally:
        driver.close()


@contextmanager
def running(format: str, script: Script | None = None, *, stream: bool = False, **options: Any) -> Iterator[Any]:
    script = script or Script(steps=4, seed=1)
    with Provider(script, **options) as provider, driving(provider, format, stream=stream) as driver:
        yield provider, driver, script


def refusal_of(driver: Driver) -> Exception:
    with pytest.raises(ERRORS) as caught:
        driver.step()
    return caught.value
