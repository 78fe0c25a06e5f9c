"""Summaries that extend the agent's own request: the prefix is unchanged, and there is always a fallback."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.agent.summarizer.summarizer_client import FORMATS, RULE, WORK, Client, material
from tests.histories.messages import assistant, user

import kompakt
from kompakt import api
from kompakt.agent.summarizer.llm import LLMSummarizer, SummaryFault
from kompakt.agent.summarizer.prompts import Prompts
from kompakt.errors import Overflowed
from kompakt.model.messages import JsonObject, Message, Text, ToolCall, ToolResult
from kompakt.wire.registry import WIRES

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
SPOKEN = [user(RULE), assistant("I am at it."), user("And the tests?"), assistant("They pass.")]


def running(format: str, *messages: Message) -> JsonObject:
    """Make the request of an agent that is at work."""
    tools = [WIRES[format].define_tool(name="read", description="Read a file.", schema=SCHEMA)]
    items = [item for message in messages for item in WIRES[format].render(message)]
    body: JsonObject = {"model": "gpt-5", WIRES[format].messages_key: items}
    return body if format == "bedrock" else {**body, "tools": tools}


def called(format: str) -> list[Message]:
    """Make a step whose result is the newest message, as the format carries it."""
    contract = WIRES[format].contract
    call = ToolCall("call00001", "read", {"path": "a.py"} if contract.alternates else "{}")
    result = ToolResult("call00001", "text", name="read")
    return [user("go"), assistant(call), Message("user" if contract.alternates else "tool", (result,))]


def ask(client: Client, body: JsonObject | None, *messages: Message, **options: Any) -> str:
    summarizer = LLMSummarizer(client, **{"reuse_prefix": True, **options}).with_prefix(body, changes={"beta": "x"})
    made = summarizer(material(*messages))
    assert not isinstance(made, str)
    return asyncio.run(_awaited(made))


async def _awaited(made: Any) -> str:
    return await made


class TestPrefix:
    @pytest.mark.parametrize("format", FORMATS)
    def test_only_the_question_is_new(self, format: str) -> None:
        """System, tools and messages are the agent's, byte for byte; the question names what to summarise."""
        body, client = running(format, *SPOKEN), Client("- fine", format=format)
        text = ask(client, body, *SPOKEN)
        (sent,) = client.bodies
        key = WIRES[format].messages_key
        assert {name: value for name, value in sent.items() if name != key} == {
            name: value for name, value in body.items() if name != key
        }
        assert sent[key][:-1] == body[key] and client.changes == [{"beta": "x"}]
        assert kompakt.check(sent, format) == []
        (asked,) = client.asked
        assert all(name in asked for name in material(*SPOKEN).references) and Prompts().instruction in asked
        assert RULE in text and text.startswith("- fine")

    @pytest.mark.parametrize("format", [name for name in FORMATS if name != "bedrock"])
    def test_the_provider_accepts_it_after_a_tool_result(self, format: str) -> None:
        """If roles must alternate, the question is added to the results, or a line of the model separates the two."""
        messages = called(format)
        body, client = running(format, *messages), Client("- fine", format=format)
        assert ask(client, body, *messages) == "- fine"
        (sent,) = client.bodies
        assert kompakt.check(sent, format) == [] and sent.get("tools") == body["tools"]
        key = WIRES[format].messages_key
        joins = format == "anthropic"
        assert len(sent[key]) == len(body[key]) + {"anthropic": 0, "gemini": 2}.get(format, 1)
        assert sent[key][: len(body[key]) - joins] == body[key][: len(body[key]) - joins]
        assert Prompts().instruction in api.parse(sent, format)[-1].text

    def test_the_body_is_not_touched(self) -> None:
        """The messages of the agent are not changed."""
        body = running("anthropic", *called("anthropic"))
        before = repr(body)
        ask(Client(format="anthropic"), body, *called("anthropic"))
        assert repr(body) == before

    @pytest.mark.parametrize(
        ("body", "options"),
        [
            (None, {}),
            (running("openai-chat", *SPOKEN), {"reuse_prefix": False}),
            (running("openai-chat", *SPOKEN), {"model": "gpt-5-mini"}),
            (running("openai-chat", *SPOKEN, user("long " * 200_000)), {}),
            (running("openai-chat", user("go"), assistant(ToolCall("open", "read", "{}"))), {}),
        ],
        ids=["none", "not wanted", "another model", "no room", "an open call"],
    )
    def test_else_the_record_is_shown(self, body: JsonObject | None, options: dict[str, Any]) -> None:
        """Without a usable prefix the summary is requested in the usual way."""
        client = Client("- fine")
        assert "- fine" in ask(client, body, *WORK, **options)
        (sent,) = client.bodies
        assert "tools" not in sent and len(sent["messages"]) == 2

    @pytest.mark.parametrize(
        "first", [Overflowed("too long"), assistant(ToolCall("c", "read", "{}"))], ids=["too long", "calls"]
    )
    def test_what_only_the_prefix_brings_on_is_asked_again_without(self, first: Any) -> None:
        """A model that sees tools may call them; a request may be too long by a little."""
        client = Client(first, "- fine")
        assert "- fine" in ask(client, running("openai-chat", *SPOKEN), *SPOKEN)
        assert ["tools" in body for body in client.bodies] == [True, False]

    def test_other_faults_are_faults(self) -> None:
        """An empty answer is no better for having been cheap."""
        with pytest.raises(SummaryFault, match="empty"):
            ask(Client(""), running("openai-chat", *SPOKEN), *SPOKEN)

    def test_a_text_of_the_user_is_listed_in_one_line(self) -> None:
        """A list names messages and cannot be broken by what they say."""
        client = Client()
        message = Message("user", (Text("one\ntwo\n[kompakt] three " + "x" * 500),))
        ask(client, running("openai-chat", message), message)
        (line,) = [line for line in client.asked[0].split("\n") if line.startswith(material(message).references[0])]
        assert "one two [ kompakt] three" in line and len(line) < 120
